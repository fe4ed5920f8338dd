// The feed: what the master tells as it happens, and whether it still does.
import * as cache from "./cache.js";
import * as charts from "./charts.js";
import { at, count, make, moment, put, span } from "./parts.js";
import "./questions.js";
import * as queue from "./queue.js";
import * as table from "./table.js";

const SHOWN_EVENTS = 50;
const SHOWN_FAULTS = 20;
const SILENT_MS = 4000;
const DRAW_MS = 250;
const events = new Map(); // number -> event
let complete = false, drawing = false, fresh = false, link = "new", reloadShown = "";
let heardAt = performance.now(), wallHeardAt = Date.now(), source = null;

function drawSoon() {
  if (drawing || !complete) return;
  drawing = true;
  setTimeout(() => { drawing = false; draw(); }, DRAW_MS);
}

function draw() {
  if (document.hidden) return;
  table.draw();
  if (fresh) drawLog();
}

function drawLog() {
  fresh = false;
  const newest = [...events.values()].sort((a, b) => b.number - a.number).slice(0, SHOWN_EVENTS);
  at("log").replaceChildren(...newest.map((event) => {
    const item = make("li");
    const texts = [event.kind.replaceAll("_", " "), event.backend, event.text].filter(Boolean);
    item.append(make("time", moment(event.at)), ...texts.flatMap((text, i) => [i ? " · " : " ", make("bdi", text)]));
    return item;
  }));
}

function judge(pool) {
  const doubt = pool.panic || pool.verdict.includes("do not fit");
  const troubled = pool.cache && pool.cache.trouble.length;
  const mark = pool.alone ? (troubled ? "!" : "✓") : !pool.takers ? "✗" : doubt ? "!" : "✓";
  document.body.classList.toggle("alone", Boolean(pool.alone));
  put(at("mark"), mark);
  put(at("verdict"), pool.verdict);
  document.title = mark + (pool.alone ? " cache" : " " + pool.takers + "/" + pool.count) + " lambdamu";
  const instead = pool.takers ? "the last good reports of all are taken for true." : "nobody is sent anywhere.";
  put(at("panic"), pool.panic ? "Panic: too few backends work, so " + instead : "");
}

function facts(pool) {
  const { reload } = pool;
  const texts = [
    (pool.alone ? "Node " : "Master ") + location.host + (pool.version ? ", version " + pool.version : ""),
    pool.ready ? "ready" : "not ready: " + pool.unready,
    pool.alone ? "" : count(pool.connections) + (pool.connections === 1 ? " connection" : " connections"),
    pool.alone || pool.session_s === null ? "" : "users stay " + span(pool.session_s) + " on the average",
    pool.cache_node && pool.cache_node.trouble
      ? "no data are warmed at the cache node: " + pool.cache_node.trouble : "",
    reload && reload.ok ? "configuration read at " + moment(reload.at) + " by " + reload.who : "",
    "as of " + moment(pool.at),
  ];
  put(at("pool"), texts.filter(Boolean).join(" · "));
}

function showReload(reload) {
  const now = JSON.stringify(reload || null);
  if (now === reloadShown) return;
  reloadShown = now;
  const refused = reload && !reload.ok;
  at("reload").hidden = !refused;
  if (!refused) return;
  put(at("reload-head"), "✗ The reload of " + moment(reload.at) + " by " + reload.who + " was refused; the old configuration stays:");
  const faults = (reload.faults || []).slice(0, SHOWN_FAULTS).map((fault) => make("li", fault));
  const left = (reload.faults || []).length - SHOWN_FAULTS;
  at("faults").replaceChildren(...faults, ...(left > 0 ? [make("li", left + " more")] : []));
}

const hear = {
  begin() {
    complete = false;
    events.clear();
    table.begin();
  },
  pool(pool) {
    judge(pool);
    facts(pool);
    showReload(pool.reload);
    if (!pool.queue) queue.hide();
    if (!pool.cache) cache.hide();
    if (!complete) return;
    charts.take(pool);
    // What no turn has told of for long, and what is gone after a change of the configuration, is asked for anew.
    if (table.size() !== pool.count) connect();
    drawSoon();
  },
  queue: queue.show,
  cache: cache.show,
  backends(rows) {
    table.take(rows);
    drawSoon();
  },
  log(rows) {
    for (const event of rows) events.set(event.number, event);
    for (const number of events.keys()) {
      if (events.size <= 2 * SHOWN_EVENTS) break;
      events.delete(number); // the oldest come first
    }
    fresh = true;
    drawSoon();
  },
  complete() {
    table.prune();
    complete = true;
    draw();
  },
};

function linked(yes) {
  const now = yes ? "ok" : "lost";
  if (now === link) return;
  link = now;
  put(at("link"), yes ? "" :
    "The link to the master is lost since " + moment(wallHeardAt / 1000) + "; what stands here is old. Trying again…");
  if (yes) return;
  put(at("mark"), "?");
  document.title = "? lambdamu";
}

function connect() {
  if (source) source.close();
  complete = false;
  source = new EventSource("api/v1/events");
  for (const kind of Object.keys(hear)) {
    source.addEventListener(kind, (event) => {
      heardAt = performance.now();
      wallHeardAt = Date.now();
      linked(true);
      hear[kind](JSON.parse(event.data));
    });
  }
  source.onerror = () => linked(false);
}

setInterval(() => {
  if (link === "lost") draw(); // reports grow old meanwhile
  if (performance.now() - heardAt < SILENT_MS) return;
  linked(false);
  heardAt = performance.now();
  connect(); // a link may hang without an error, and a browser gives up after some
}, 1000);

document.addEventListener("visibilitychange", draw);
connect();
