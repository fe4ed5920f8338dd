// The virtual queue: who waits, what holds them up, and what an operator wants of it. An entry is made once and only what
// has changed in it is written, so that neither the focus nor a click is lost to an update.
import { at, count, explained, make, moment, plain, put, round, span } from "./parts.js";
import { call } from "./questions.js";

const entries = new Map(); // id -> {item, cells}
let wanted = null; // the id of the queue that is asked about, null for the whole
let ordersShown = "";

const perMinute = (per_s) => (per_s === null ? "unknown" : rate(60 * per_s));
const rate = (number) => (number >= 10 ? count(number) : round(number)) + " a minute";
const percent = (share) => round(100 * share, 0) + " %";

function people(row) {
  const lanes = Object.entries(row.lanes).filter(([lane, number]) => number && lane !== "plain");
  return count(row.waiting) + (lanes.length ? " (" + lanes.map(([lane, number]) => lane + " " + count(number)).join(", ") + ")" : "");
}

function wait(row) {
  if (row.at_once) return "not at all";
  return row.eta_s === null ? "unknown" : span(row.eta_s) + ", nine in ten at most " + span(row.eta90_s);
}

const CELLS = {
  queue: ["Queue", (row) => row.queue],
  waiting: ["Wait", people],
  drain: ["Let in, last minute", (row) => (row.waiting ? perMinute(row.drain_per_s) : "nobody waits")],
  planned: ["Planned", (row) => (row.planned_per_s === null ? "no limit" : perMinute(row.planned_per_s))],
  wait: ["Who joins now waits", wait],
  limit: ["Own rate", (row) => (row.per_minute === null ? "none" : rate(row.per_minute))],
};

function makeEntry(name) {
  const item = make("li");
  const cells = Object.fromEntries(Object.entries(CELLS).map(([key, [head]]) => {
    const [cell, text] = [make("div", undefined, key), make("bdi")];
    cell.append(make("small", head), text);
    item.append(cell);
    return [key, text];
  }));
  const button = make("button", "rate");
  button.type = "button";
  button.setAttribute("aria-label", "rate of " + plain(name));
  button.addEventListener("click", () => open(name));
  item.append(button);
  return { item, cells };
}

function write(row) {
  if (!entries.has(row.queue)) entries.set(row.queue, makeEntry(row.queue));
  const { item, cells } = entries.get(row.queue);
  for (const [key, [, show]] of Object.entries(CELLS)) put(cells[key], show(row));
  return item;
}

function arrange(rows) {
  // By name: in another order they would change places under a finger.
  const items = [...rows].sort((a, b) => (a.queue < b.queue ? -1 : 1)).map(write);
  const list = at("queues");
  if (items.length !== list.children.length || items.some((item, i) => item !== list.children[i])) {
    const held = document.activeElement;
    list.replaceChildren(...items);
    if (held !== document.activeElement && held.isConnected) held.focus({ preventScroll: true });
  }
  const named = new Set(rows.map((row) => row.queue));
  for (const name of entries.keys()) if (!named.has(name)) entries.delete(name);
}

function showOrders(orders) {
  const now = JSON.stringify(orders);
  if (now === ordersShown) return;
  ordersShown = now;
  at("queue-orders").replaceChildren(...orders.map((order) => {
    const words = ["mode", "text", "per_minute", "target_load"].filter((key) => order[key] !== null)
      .map((key) => key.replaceAll("_", " ") + " " + (order[key] === "" ? "empty" : order[key])).join(", ");
    const item = make("li");
    item.append(...(order.queue ? [make("bdi", order.queue), ": "] : []), make("bdi", words),
      " by ", make("bdi", order.who), ", ", make("time", moment(order.at)), ": ", make("bdi", order.reason));
    return item;
  }));
}

function alarm({ store, loop, waiting }) {
  const texts = [];
  if (store && store.failing) {
    texts.push("The queue has not been written for " + span(store.written_s_ago) + ": " + count(store.unwritten) + " changes would not outlive a crash.");
  }
  if (loop.by === "frozen" && waiting) texts.push("The control loop is frozen: the news of the backends is too old.");
  return texts.join(" ");
}

function pace({ by, per_s, planned_per_s }) {
  const binds = by === "manual" ? perMinute(per_s) + " by hand" : per_s === null ? "set by the places alone" : perMinute(per_s) + " by the control loop";
  return "pace: " + binds + (planned_per_s === null || planned_per_s === per_s ? "" : ", the loop plans " + perMinute(planned_per_s)) +
    (by === "frozen" || by === "no_news" ? " (" + explained(by) + ")" : "");
}

function facts({ load, loop, promises, gone, counts, called, held, limits }) {
  const told = promises.kept + promises.broken;
  return [
    count(called) + " called",
    held ? count(held) + " held on their connections" : "",
    count(load.users) + " users" + (load.places === null ? "" : " of " + count(load.places) + " places at a target load of " + load.target_load),
    load.serving + " of " + load.wanted + " backends serve",
    load.cpu === null ? "" : "CPU " + percent(load.cpu),
    limits.per_minute === null ? "no rate binds" : "at most " + rate(limits.per_minute),
    pace(loop),
    told ? percent(promises.share) + " of " + count(told) + " promises came true" : "no promise has come due",
    gone.share === null ? "" : percent(gone.share) + " have gone (left " + count(gone.left) + ", lapsed " + count(gone.lapsed) +
      ", missed their call " + count(gone.missed) + ", came back " + count(gone.returned) + ")",
    count(counts.claimed) + " let in",
  ].filter(Boolean).join(" · ");
}

export function hide() {
  at("queue").hidden = at("to-queue").hidden = true;
}

export function show(told) {
  at("queue").hidden = at("to-queue").hidden = false;
  const who = told.waiting ? count(told.waiting) + (told.waiting === 1 ? " waits" : " wait") : "Nobody waits";
  const binds = told.waiting ? "; " + explained(told.limit) + " (" + told.reason + ")" : "";
  put(at("queue-state"), who + " · mode " + told.mode + binds);
  put(at("queue-alarm"), alarm(told));
  showOrders(told.orders);
  arrange(told.queues);
  const left = told.count - told.queues.length;
  put(at("queue-more"), left > 0 ? count(left) + (left === 1 ? " more, in which fewer wait" : " more, in each of which fewer wait") : "");
  put(at("queue-facts"), facts(told));
}

function open(name) {
  wanted = name;
  at("order-head").replaceChildren(...(name === null ? ["Change the queue"] : ["Rate of ", make("bdi", name)]));
  at("order-whole").hidden = name !== null;
  put(at("order-error"), "");
  at("order").querySelector("form").reset();
  at("order").showModal();
}

// A number goes as one; what is none is refused by the master, in its words.
const numeric = (text) => (text.trim() === "" || Number.isNaN(Number(text)) ? text.trim() : Number(text));

function body(form, reset) {
  const reason = form.get("reason");
  if (reset) return { reason, reset };
  const given = [["per_minute", numeric(form.get("per_minute"))]];
  if (wanted === null) {
    given.push(["mode", form.get("mode")], ["text", form.get("text")], ["target_load", numeric(form.get("target_load"))]);
  }
  return { reason, ...Object.fromEntries(given.filter(([, value]) => value !== "")) };
}

at("queue-change").addEventListener("click", () => open(null));

at("order").querySelector("form").addEventListener("submit", async (event) => {
  const word = event.submitter.value;
  if (word === "cancel") return;
  event.preventDefault();
  const path = "queue" + (wanted === null ? "" : "/" + encodeURIComponent(wanted));
  const sent = JSON.stringify(body(new FormData(event.target), word === "reset"));
  event.submitter.disabled = true;
  try {
    await call(path, { method: "POST", headers: { "Content-Type": "application/json" }, body: sent });
    at("order").close();
  } catch (error) {
    put(at("order-error"), error.message);
  } finally {
    event.submitter.disabled = false;
  }
});
