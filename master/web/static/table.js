// The table of the backends. A row is made once and only what has changed in it is written, so neither the focus nor a
// click is lost to an update, and a pool of thousands costs no more than the rows that are shown.
import { at, count, draw as drawn, make, meaning, moment, plain, put, rate, round, set, span } from "./parts.js";

const SHOWN = 50;
const MOST = 200;
const ASIDE = new Set(["drain", "maint", "no_weight"]);
const WISHES = ["drain", "maint", "ready"];
const first = (value) => (value === null || value === undefined ? -Infinity : -value);

const entries = new Map(); // name -> {row, heard, cells, tr}
let sortedBy = "state";
let wanted = "";
let shown = SHOWN;

function failures(row) {
  const reasons = Object.entries(row.failures || {}).filter(([, times]) => times).sort((a, b) => b[1] - a[1]);
  const notes = reasons.map(([reason, times]) => reason + " " + count(times));
  if (row.ejections) notes.push("ejected " + count(row.ejections) + (row.ejections === 1 ? " time" : " times"));
  return notes.join(", ");
}

function probeTime(row) {
  const ms = (seconds) => round(seconds * 1000, seconds < 0.01 ? 1 : 0);
  if (typeof row.probe_p50_s === "number" && typeof row.probe_p99_s === "number") {
    return [ms(row.probe_p50_s) + " / " + ms(row.probe_p99_s) + " ms", "p50 / p99"];
  }
  return row.probe_mean_s === null ? ["none good yet", ""] : [ms(row.probe_mean_s) + " ms", "mean"];
}

function use(row) {
  if (row.capacity === null) return count(row.users) + " (no limit)";
  const share = row.capacity ? " (" + round(100 * row.users / row.capacity, 0) + " %)" : "";
  return count(row.users) + " of " + count(row.capacity) + share;
}

function mark(row) {
  if (row.takes_clients) return "✓";
  if (ASIDE.has(row.state)) return "○";
  return row.works ? "!" : "✗";
}

function why(row) {
  if (row.takes_clients) return "";
  return row.why || (row.state === "ready" ? "it works, but nobody is sent anywhere now" : meaning(row.state));
}

function wish(admin) {
  if (!admin) return ["", ""];
  const until = admin.until === null ? "" : ", until " + moment(admin.until);
  return [admin.state, "by " + admin.who + ": " + admin.reason + until];
}

function age(entry) {
  if (entry.row.report_age_s === null) return "none yet";
  return span(entry.row.report_age_s + (performance.now() - entry.heard) / 1000) + " ago";
}

// A column: its head, what it shows (a text and a note), and by what it is sorted; ties go by name.
const COLUMNS = {
  name: { head: "Backend", show: ({ row }) =>
    [row.name, [row.address === row.name ? "" : row.address, row.zone && "zone " + row.zone].filter(Boolean).join(", ")],
  order: () => 0 },
  state: { head: "State", show: ({ row }) => [mark(row) + " " + row.state, why(row)],
    order: (row) => ["✗", "!", "○", "✓"].indexOf(mark(row)) },
  users: { head: "Users", show: ({ row }) =>
    [use(row), row.reservations ? count(row.reservations) + " sent, not yet reported" : ""],
  order: (row) => first(row.users) },
  rate: { head: "Asks", show: ({ row }) => [rate(row.assignments_per_s || 0), count(row.assignments) + " in all"],
    order: (row) => first(row.assignments_per_s) },
  report: { head: "Report", show: (entry) => [age(entry), ""],
    order: (row) => (row.report_age_s === null ? -Infinity : -row.report_age_s) },
  probe: { head: "Probe", show: ({ row }) => probeTime(row), order: (row) => first(row.probe_p99_s ?? row.probe_mean_s) },
  failures: { head: "Failures", show: ({ row }) =>
    [count(row.probe_failures) + " of " + count(row.probes + row.probe_failures), failures(row)],
  order: (row) => first(row.probe_failures) },
  operator: { head: "Operator", show: ({ row }) => wish(row.admin),
    order: (row) => (row.admin ? WISHES.indexOf(row.admin.state) : WISHES.length) },
};

function makeCell(key) {
  const td = make("td", undefined, key);
  td.setAttribute("role", "cell");
  td.dataset.head = COLUMNS[key].head;
  const [text, note] = [make("span"), make("small")];
  text.dir = note.dir = "auto";
  td.append(text, note);
  return { td, text, note };
}

function makeMeter(td) {
  const svg = drawn("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "meter", "aria-hidden": "true" });
  const bar = drawn("rect", { width: 0, height: 10 });
  svg.append(bar);
  td.insertBefore(svg, td.lastChild);
  return bar;
}

function makeButtons(td, name) {
  const group = make("div", undefined, "buttons");
  for (const word of WISHES) {
    const button = make("button", word);
    button.type = "button";
    button.dataset.word = word;
    button.dataset.name = name;
    button.setAttribute("aria-label", word + " " + plain(name));
    group.append(button);
  }
  td.append(group);
}

function makeRow(entry) {
  const tr = make("tr");
  tr.setAttribute("role", "row");
  tr.dataset.name = entry.row.name;
  entry.cells = Object.fromEntries(Object.keys(COLUMNS).map((key) => [key, makeCell(key)]));
  for (const { td } of Object.values(entry.cells)) tr.append(td);
  entry.bar = makeMeter(entry.cells.users.td);
  makeButtons(entry.cells.operator.td, entry.row.name);
  return tr;
}

function write(entry) {
  entry.tr ||= makeRow(entry);
  for (const [key, column] of Object.entries(COLUMNS)) {
    const [text, note] = column.show(entry);
    put(entry.cells[key].text, text);
    put(entry.cells[key].note, note);
  }
  const { users, capacity } = entry.row;
  set(entry.bar.parentNode, "class", capacity === null ? "meter unlimited" : "meter");
  set(entry.bar, "width", capacity ? round(Math.min(100, 100 * users / capacity)) : 0);
  set(entry.tr, "class", { "✓": "in", "○": "aside" }[mark(entry.row)] || "out");
  return entry.tr;
}

function fits(row) {
  const texts = [row.name, row.address, row.zone, row.state, row.why, row.admin && row.admin.who + " " + row.admin.reason];
  const all = texts.filter(Boolean).join(" ").toLowerCase();
  return wanted.split(/\s+/).every((word) => all.includes(word));
}

function sorted() {
  const { order } = COLUMNS[sortedBy];
  const found = [...entries.values()].filter(({ row }) => !wanted || fits(row));
  const keyed = found.map((entry) => [order(entry.row), entry.row.name, entry]);
  keyed.sort((a, b) => (a[0] !== b[0] ? (a[0] < b[0] ? -1 : 1) : a[1] < b[1] ? -1 : 1));
  return keyed.map(([, , entry]) => entry);
}

function arrange(body, rows) {
  const held = document.activeElement;
  let next = body.firstChild;
  for (const tr of rows) {
    if (tr === next) next = next.nextSibling;
    else body.insertBefore(tr, next);
  }
  while (next) {
    const gone = next;
    next = next.nextSibling;
    gone.remove();
  }
  if (held !== document.activeElement && held.isConnected) held.focus({ preventScroll: true });
}

export function draw() {
  const found = sorted();
  arrange(at("backends"), found.slice(0, shown).map(write));
  const left = found.length - shown;
  at("show").hidden = left <= 0 || shown === MOST;
  if (left > 0) put(at("more"), count(left) + (left === 1 ? " more is not shown" : " more are not shown") + ": filter or sort to see them.");
  else put(at("more"), wanted && !found.length ? "No backend has all of these words." : "");
}

export function take(rows) {
  for (const row of rows) {
    const entry = entries.get(row.name) || { past: undefined };
    entries.set(row.name, Object.assign(entry, { row, heard: performance.now(), fresh: true }));
  }
}

export const all = () => entries.values();
export const size = () => entries.size;

// Everything is told anew: what is not told of until `prune` is gone.
export function begin() {
  for (const entry of entries.values()) entry.fresh = false;
}
export function prune() {
  for (const [name, entry] of entries) if (!entry.fresh) entries.delete(name);
}

function makeHead(key) {
  const [th, button] = [make("th"), make("button", COLUMNS[key].head)];
  th.scope = "col";
  th.setAttribute("role", "columnheader");
  button.type = "button";
  button.addEventListener("click", () => {
    sortedBy = key;
    markSorted();
    draw();
  });
  th.append(button);
  th.dataset.key = key;
  return th;
}

function markSorted() {
  for (const th of at("heads").children) {
    if (th.dataset.key !== sortedBy) th.removeAttribute("aria-sort");
    else th.setAttribute("aria-sort", sortedBy === "name" || sortedBy === "state" ? "ascending" : "descending");
  }
}

at("heads").append(...Object.keys(COLUMNS).map(makeHead));
markSorted();
at("show").addEventListener("click", () => {
  shown = MOST;
  draw();
});
at("filter").addEventListener("input", (event) => {
  wanted = event.target.value.trim().toLowerCase();
  draw();
});
