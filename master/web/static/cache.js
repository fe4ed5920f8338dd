// The cache: how full it is, who waits for the upstream, what is asked for most. Only what has changed is written.
import { at, count, draw, make, put, rate, round, set, span } from "./parts.js";

const BREAKERS = { closed: "works", open: "fails: it is left alone", half_open: "has failed: one call tries it" };
const GONE = ["expired", "evicted", "refused"];
const bars = new Map(); // label -> {item, text, bar}
const tables = new Map(); // id -> what stands there

const percent = (share) => (share === null ? "unknown" : round(100 * share, 0) + " %");

function size(bytes) {
  const [unit, word] = [[2 ** 30, " GiB"], [2 ** 20, " MiB"], [2 ** 10, " KiB"]].find(([least]) => bytes >= least) || [1, " B"];
  return round(bytes / unit) + word;
}

function makeBar(label) {
  const [item, text] = [make("li"), make("span")];
  const svg = draw("svg", { viewBox: "0 0 100 10", preserveAspectRatio: "none", class: "meter", "aria-hidden": "true" });
  const bar = draw("rect", { width: 0, height: 10 });
  svg.append(bar);
  item.append(make("bdi", label), text, svg);
  return { item, text, bar };
}

function writeBar([label, used, most, told]) {
  if (!bars.has(label)) bars.set(label, makeBar(label));
  const { item, text, bar } = bars.get(label);
  put(text, told);
  set(bar, "width", most ? round(Math.min(100, (100 * used) / most)) : 0);
  set(item, "class", most && used >= most ? "full" : "");
  return item;
}

const of = (label, used, most, more = "") => [label, used, most, count(used) + " of " + count(most) + more];

function loads({ workers, queue, warm, bytes, max_bytes, connections }) {
  const fetching = [
    of("Workers", workers.busy, workers.max),
    ...workers.kinds.map(({ kind, busy, max }) => of(kind, busy, max)),
    of("Queue", queue.length, queue.max_length, queue.length ? ", the first for " + span(queue.oldest_s) : ""),
    of("Asks that wait", queue.waiting, queue.max_waiting),
  ];
  return [
    ...(warm === null ? [] : fetching),
    ["Memory", bytes, max_bytes, size(bytes) + " of " + size(max_bytes)],
    of("Connections", connections.open, connections.max, connections.refused ? ", " + count(connections.refused) + " refused" : ""),
  ];
}

function cells(tag, ...texts) {
  const row = make("tr");
  row.append(...texts.map((text) => {
    const cell = make(tag);
    cell.append(make("bdi", text));
    return cell;
  }));
  return row;
}

function fill(id, heads, rows) {
  const now = JSON.stringify(rows);
  if (tables.get(id) === now) return;
  tables.set(id, now);
  const body = make("tbody");
  body.append(cells("th", ...heads), ...rows.map((row) => cells("td", ...row)));
  at(id).replaceChildren(body);
}

function state({ sessions, last_minute: minute, warm }) {
  const texts = [count(sessions) + (sessions === 1 ? " session" : " sessions")];
  if (warm !== null) texts.push("hit rate " + percent(minute.hit_rate) + " in the last minute");
  if (minute.seconds !== null) texts.push(rate(minute.asks_per_s) + " asks");
  if (warm !== null && minute.seconds !== null) {
    texts.push(rate(minute.saved_per_s) + " calls saved", rate(minute.calls_per_s) + " made");
    if (minute.failed_per_s) texts.push(rate(minute.failed_per_s) + " failed");
    if (minute.refused_per_s) texts.push(rate(minute.refused_per_s) + " refused");
  }
  return texts.join(" · ");
}

function facts({ warm, queue, store }) {
  const { refused, put_out, expired, cut } = queue;
  return [
    warm === null ? "nothing is fetched here" : "since the start " + count(warm.saved) + " calls saved, " + count(warm.calls) + " made, " +
      count(warm.failures) + " failed, " + count(warm.stale) + " old answers in place of a failure",
    warm === null ? "" : count(warm.app_starts) + " AppStarts, which began " + count(warm.warmed) + " of them",
    warm === null ? "" : count(refused) + " refused, " + count(put_out) + " put out, " + count(expired) + " expired, " + count(cut) + " cut off",
    store === null ? "it ends with the process" : count(store.unwritten) + " changes are not written",
  ].filter(Boolean).join(" · ");
}

export function hide() {
  at("cache").hidden = at("to-cache").hidden = true;
}

export function show(told) {
  at("cache").hidden = at("to-cache").hidden = false;
  put(at("cache-alarm"), told.trouble.map((line) => line[0].toUpperCase() + line.slice(1) + ".").join(" "));
  put(at("cache-state"), state(told));
  const items = loads(told).map(writeBar);
  if (items.length !== at("cache-loads").children.length) at("cache-loads").replaceChildren(...items);
  fill("cache-tables", ["Table", "Rows", "Memory", "Since the start"], told.tables.map((row) =>
    [row.table, count(row.rows), size(row.bytes), GONE.filter((how) => row[how]).map((how) => count(row[how]) + " " + how).join(", ")]));
  at("cache-peers").hidden = !told.upstream.length;
  fill("cache-peers", ["Upstream", ""], told.upstream.map(({ peer, breaker }) => [peer, BREAKERS[breaker] || breaker]));
  at("cache-keys").hidden = !told.keys.length;
  fill("cache-keys", ["Asked for most", "Table", "In 5 to 10 min"], told.keys.map(({ name, table, asks, over }) =>
    [name, table, over ? count(asks - over) + " to " + count(asks) : count(asks)]));
  put(at("cache-facts"), facts(told));
}
