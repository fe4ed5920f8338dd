"use strict";
// All text from outside goes through textContent; nothing here is ever read as HTML.
const SVG = "http://www.w3.org/2000/svg";
const SHOWN_ROWS = 200, SHOWN_EVENTS = 50, SHOWN_POINTS = 120, SILENT_MS = 4000;
const at = (id) => document.getElementById(id);
const backends = new Map(); // name -> {row, seen, heard}
const events = new Map(); // number -> event
const points = []; // asks a second: [answered with a backend, all others]
let generation = 0, complete = false, drawing = false, heardAt = performance.now(), source = null, asking = null;

function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
}
const round = (number, digits = 1) => Number(number.toFixed(digits)).toString();
const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();
const whole = (seconds) => new Date(seconds * 1000).toLocaleString();

function cell(head, text, note) {
  const td = make("td", text);
  td.dataset.head = head;
  if (note) td.append(make("small", note));
  return td;
}

function meter(users, capacity) {
  const svg = document.createElementNS(SVG, "svg");
  svg.setAttribute("viewBox", "0 0 100 10");
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("class", "meter");
  svg.setAttribute("aria-hidden", "true");
  const bar = document.createElementNS(SVG, "rect");
  bar.setAttribute("width", capacity ? Math.min(100, 100 * users / capacity) : 0);
  bar.setAttribute("height", 10);
  svg.append(bar);
  return svg;
}

function buttons(row) {
  const td = cell("Operator", "");
  const admin = row.admin;
  if (admin) {
    const until = admin.until === null ? "" : ", until " + whole(admin.until);
    td.append(make("span", admin.state), make("small", "by " + admin.who + ": " + admin.reason + until));
  }
  for (const word of ["drain", "maint", "ready"]) {
    const button = make("button", word);
    button.type = "button";
    button.dataset.word = word;
    button.dataset.name = row.name;
    button.setAttribute("aria-label", word + " " + row.name);
    td.append(button);
  }
  return td;
}

function age(entry) {
  if (entry.row.report_age_s === null) return "none yet";
  return round(entry.row.report_age_s + (performance.now() - entry.heard) / 1000) + " s ago";
}

function show(entry) {
  const row = entry.row;
  const tr = make("tr", undefined, row.takes_clients ? "" : "out");
  tr.dataset.name = row.name;
  const where = [row.address, row.zone && "zone " + row.zone].filter(Boolean).join(", ");
  const name = cell("Backend", row.name, where);
  name.className = "name";
  const state = cell("State", (row.takes_clients ? "✓ " : "✗ ") + row.state, row.why);
  state.classList.add("state");
  const limit = row.capacity === null ? " (no limit)" : " of " + row.capacity;
  const users = cell("Users", row.users + limit);
  if (row.capacity !== null) users.append(meter(row.users, row.capacity));
  const report = cell("Report", age(entry));
  report.classList.add("age");
  const probe = row.probe_mean_s === null ? "none good yet" : round(row.probe_mean_s * 1000) + " ms mean";
  tr.append(name, state, users, report, cell("Sent", round(row.assignments_per_s || 0) + " /s", row.assignments + " in all"),
    cell("Probe", probe, row.probe_failures + " failed of " + (row.probes + row.probe_failures)), buttons(row));
  return tr;
}

function drawSoon() {
  if (drawing || !complete) return;
  drawing = true;
  setTimeout(() => { drawing = false; draw(); }, 100);
}

function draw() {
  const rows = [...backends.values()];
  // Those in trouble first; a pool may be larger than a page.
  rows.sort((a, b) => a.row.takes_clients - b.row.takes_clients || (a.row.name < b.row.name ? -1 : 1));
  const held = document.activeElement && document.activeElement.dataset ? { ...document.activeElement.dataset } : {};
  at("backends").replaceChildren(...rows.slice(0, SHOWN_ROWS).map(show));
  at("more").textContent = rows.length > SHOWN_ROWS ? (rows.length - SHOWN_ROWS) + " more are not shown" : "";
  if (held.word) {
    const again = [...at("backends").querySelectorAll("button")];
    const button = again.find((each) => each.dataset.word === held.word && each.dataset.name === held.name);
    if (button) button.focus();
  }
}

function line(key, top, kind) {
  const path = document.createElementNS(SVG, "path");
  const step = 240 / (SHOWN_POINTS - 1);
  const start = SHOWN_POINTS - points.length;
  const spots = points.map((point, i) => round((start + i) * step) + " " + round(58 - 56 * point[key] / top));
  path.setAttribute("d", spots.length ? "M" + spots.join("L") : "");
  path.setAttribute("class", kind);
  return path;
}

function chart(rates) {
  const ok = rates.OK || 0;
  const all = Object.values(rates).reduce((sum, rate) => sum + rate, 0);
  points.push([ok, all - ok]);
  if (points.length > SHOWN_POINTS) points.shift();
  const top = Math.max(1, ...points.flat());
  at("chart").replaceChildren(line(0, top, "good"), line(1, top, "bad"));
  at("rates").textContent = "line: " + round(ok) + " /s told a backend; dashes: " + round(all - ok) +
    " /s told to wait or refused; top of the chart: " + round(top) + " /s";
}

function log() {
  const newest = [...events.values()].sort((a, b) => b.number - a.number).slice(0, SHOWN_EVENTS);
  for (const number of [...events.keys()]) {
    if (!newest.some((event) => event.number === number)) events.delete(number);
  }
  at("log").replaceChildren(...newest.map((event) =>
    make("li", clock(event.at) + " " + [event.kind.replaceAll("_", " "), event.backend, event.text].filter(Boolean).join(" · "))));
}

const hear = {
  begin() { generation += 1; complete = false; events.clear(); },
  pool(pool) {
    at("verdict").textContent = pool.verdict;
    document.title = pool.takers + "/" + pool.count + " lambdamu";
    const ready = pool.ready ? "ready" : "not ready: " + pool.unready;
    at("pool").textContent = "This master is " + ready + "; " + pool.connections + " connections; " +
      whole(pool.at) + "; users stay " + (pool.session_s === null ? "?" : round(pool.session_s, 0)) + " s on the average";
    chart(pool.asks_per_s);
    if (complete) {
      // What no turn has told of for long, and what is gone after a change of the configuration, is asked for anew.
      if (backends.size !== pool.count) connect();
      drawSoon();
    }
  },
  backends(rows) {
    for (const row of rows) backends.set(row.name, { row, seen: generation, heard: performance.now() });
    drawSoon();
  },
  log(fresh) { for (const event of fresh) events.set(event.number, event); log(); },
  complete() {
    for (const [name, entry] of backends) if (entry.seen !== generation) backends.delete(name);
    complete = true;
    draw();
  },
};

function linked(yes) {
  at("link").textContent = yes ? "" : "The link to the master is lost; what stands here is old. Trying again…";
  at("link").className = yes ? "" : "lost";
}

function connect() {
  if (source) source.close();
  complete = false;
  source = new EventSource("api/v1/events");
  for (const kind of Object.keys(hear)) {
    source.addEventListener(kind, (event) => {
      heardAt = performance.now();
      hear[kind](JSON.parse(event.data));
      linked(true);
    });
  }
  source.onerror = () => linked(false);
}

setInterval(() => {
  if (performance.now() - heardAt < SILENT_MS) return;
  linked(false);
  heardAt = performance.now();
  connect(); // a link may hang without an error, and a browser gives up after some
}, 1000);

function answerText(answer) {
  const who = answer.client ? "client " + answer.client.slice(0, 12) : "no id";
  const loads = answer.loads.map((each) => each.name + " " + (each.load === null ? "?" : round(each.load, 2))).join(", ");
  const what = answer.backend ? "sent to " + answer.backend : answer.result;
  return [clock(answer.at), who + (answer.network ? " from " + answer.network : ""), what, answer.reason,
    loads && "loads compared: " + loads].filter(Boolean).join(" · ");
}

at("why").addEventListener("submit", async (event) => {
  event.preventDefault();
  const client = new FormData(event.target).get("client").trim();
  try {
    const answer = await fetch("api/v1/answers?client=" + encodeURIComponent(client));
    const body = await answer.json();
    const found = answer.ok ? body.answers.slice(0, 50).map(answerText) : [body.error];
    at("answers").replaceChildren(...(found.length ? found : ["no answer to such a client is kept"]).map((text) => make("li", text)));
  } catch {
    at("answers").replaceChildren(make("li", "the master cannot be reached"));
  }
});

at("backends").addEventListener("click", (event) => {
  const { word, name } = event.target.dataset;
  if (!word) return;
  asking = { word, name };
  at("ask-head").textContent = word + " " + name;
  at("ask-error").textContent = "";
  at("ask").querySelector("input").value = "";
  at("ask").showModal();
});

at("ask").querySelector("form").addEventListener("submit", async (event) => {
  if (event.submitter.value !== "do") return;
  event.preventDefault();
  const reason = at("ask").querySelector("input").value;
  const path = "api/v1/backends/" + encodeURIComponent(asking.name) + "/" + asking.word;
  const headers = { "Content-Type": "application/json" };
  try {
    const answer = await fetch(path, { method: "POST", headers, body: JSON.stringify({ reason }) });
    if (answer.ok) { at("ask").close(); return; }
    at("ask-error").textContent = (await answer.json()).error;
  } catch {
    at("ask-error").textContent = "the master cannot be reached";
  }
});

connect();
