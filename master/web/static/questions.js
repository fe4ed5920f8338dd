// What an operator asks and wants: why a client got its answer, and that a backend be drained, left alone or back.
import { at, count, explained, make, meaning, moment, put, round } from "./parts.js";

const ANSWERS = 20;
const STANDINGS = 50;
const TIMEOUT_MS = 10000;
const UNREACHABLE = "the master cannot be reached";
let asking = null;
let searches = 0;

// Return what the API answers; throw an Error with one line.
export async function call(path, options = {}) {
  let answer;
  try {
    answer = await fetch("api/v1/" + path, { ...options, signal: AbortSignal.timeout(TIMEOUT_MS) });
  } catch {
    throw new Error(UNREACHABLE);
  }
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Error(body.error || "the master answered " + answer.status);
  return body;
}

function paragraph(...parts) {
  const p = make("p");
  p.append(...parts);
  return p;
}

function told(backend, result, reason) {
  const what = backend ? ["sent to ", make("bdi", backend)] : ["told ", make("bdi", explained(result))];
  const strong = make("strong");
  strong.append(...what);
  return [strong, " because ", make("bdi", explained(reason))];
}

const load = (number) => (number === null ? "?" : round(number, 2));

function compared(loads, backend) {
  const parts = loads.flatMap(({ name, load: each }, i) =>
    [i ? ", " : "Loads compared: ", make("bdi", name), " " + load(each) + (name === backend ? " (chosen)" : "")]);
  return parts.length ? [paragraph(...parts)] : [];
}

function showAnswer(answer) {
  const item = make("li");
  const who = [answer.client ? "client " + answer.client.slice(0, 12) : "no id", "from " + answer.network,
    answer.zone && "zone " + answer.zone].filter(Boolean).join(", ");
  item.append(paragraph(make("time", moment(answer.at)), " ", make("bdi", who)),
    paragraph(...told(answer.backend, answer.result, answer.reason)), ...compared(answer.loads, answer.backend));
  return item;
}

function standing(each) {
  const item = make("li");
  item.append(make("bdi", each.name), (each.load === null ? "" : ", load " + load(each.load)) + ", ", make("bdi", explained(each.reason)));
  return item;
}

function showNow(now) {
  const rows = [...now.backends].sort((a, b) =>
    (b.name === now.chosen) - (a.name === now.chosen) || (a.load ?? Infinity) - (b.load ?? Infinity));
  const zone = now.zone ? [" in zone ", make("bdi", now.zone)] : [];
  at("now").replaceChildren("Asked now", ...zone, ", it would be ", ...told(now.chosen, "NoServer", now.reason));
  at("standings").replaceChildren(...rows.slice(0, STANDINGS).map(standing));
  if (rows.length > STANDINGS) at("standings").append(make("li", count(rows.length - STANDINGS) + " more"));
  at("standing").hidden = false;
}

async function search(client) {
  const mine = ++searches;
  const query = "client=" + encodeURIComponent(client);
  const { answers } = await call("answers?" + query);
  const zone = answers.length ? answers[0].zone : "";
  const now = await call("explain?" + query + "&zone=" + encodeURIComponent(zone));
  if (mine !== searches) return;
  showNow(now);
  const which = client ? "to such a client" : "at all";
  put(at("found"), answers.length ? count(answers.length) + (answers.length === 1 ? " answer" : " answers") + ", the newest first" +
    (answers.length > ANSWERS ? "; " + ANSWERS + " are shown" : "") : "no answer " + which + " is kept");
  at("answers").replaceChildren(...answers.slice(0, ANSWERS).map(showAnswer));
}

at("why").addEventListener("submit", async (event) => {
  event.preventDefault();
  try {
    await search(new FormData(event.target).get("client").trim());
  } catch (error) {
    at("standing").hidden = true;
    at("answers").replaceChildren();
    at("now").replaceChildren();
    put(at("found"), error.message);
  }
});

at("backends").addEventListener("click", (event) => {
  const { word, name } = event.target.dataset;
  if (!word) return;
  asking = { word, name };
  at("ask-head").replaceChildren(word + " ", make("bdi", name));
  put(at("ask-meaning"), word === "ready" ? "It takes clients again, if its probes succeed." : meaning(word));
  put(at("ask-error"), "");
  at("ask-until").hidden = word === "ready";
  at("ask").querySelector("form").reset();
  at("ask").showModal();
});

function wanted(form) {
  const until_s = Number(form.get("until"));
  return JSON.stringify({ reason: form.get("reason"), ...(until_s && asking.word !== "ready" ? { until_s } : {}) });
}

at("ask").querySelector("form").addEventListener("submit", async (event) => {
  if (event.submitter.value !== "do") return;
  event.preventDefault();
  const path = "backends/" + encodeURIComponent(asking.name) + "/" + asking.word;
  const options = { method: "POST", headers: { "Content-Type": "application/json" }, body: wanted(new FormData(event.target)) };
  event.submitter.disabled = true;
  try {
    await call(path, options);
    at("ask").close();
  } catch (error) {
    put(at("ask-error"), error.message);
  } finally {
    event.submitter.disabled = false;
  }
});
