"use strict";
// Asks again when the page was told to, and puts what comes into it: never as markup, always as text.

const LEAST_S = 1, ANSWER_S = 20, FAILED_S = 5, MOST_FAILED_S = 60;
const TEXTS = ["heading", "place", "eta", "note", "more", "address", "turn_label", "turn"];
const at = (id) => document.getElementById(id);

let due = 0, timer = 0, failures = 0, asking = false;

function wait(seconds) {
  clearTimeout(timer);
  due = Date.now() + 1000 * Math.max(LEAST_S, seconds);
  timer = setTimeout(ask, due - Date.now());
}

function put(id, text) {
  const element = at(id);
  if (element.textContent !== text) element.textContent = text; // or a screen reader says it again
  element.hidden = !text;
}

function show(view) {
  due = 0;
  document.title = view.title;
  at("page").className = view.kind;
  for (const id of TEXTS) put(id, view[id]);
  at("done").hidden = view.done === null;
  if (view.done !== null) at("done").value = view.done;
  at("leave").hidden = !view.leave;
  at("again").hidden = !view.again;
  at("go").hidden = !view.link;
  if (view.link) {
    at("go").href = view.link;
    location.assign(view.link);
  } else if (view.after !== null) wait(view.after);
}

async function ask() {
  if (asking) return;
  asking = true;
  const limit = new AbortController();
  const bell = setTimeout(() => limit.abort(), 1000 * ANSWER_S);
  try {
    const answer = await fetch(document.hidden ? "?away" : "?", {
      headers: { Accept: "application/json" }, cache: "no-store", redirect: "error",
      signal: limit.signal,
    });
    const view = await answer.json();
    failures = 0;
    at("offline").hidden = true;
    show(view);
  } catch {
    failures += 1;
    at("offline").hidden = false;
    wait(Math.min(MOST_FAILED_S, FAILED_S * 2 ** (failures - 1)) * (0.5 + Math.random()));
  } finally {
    clearTimeout(bell);
    asking = false;
  }
}

document.addEventListener("visibilitychange", () => {
  if (!due) return;
  if (document.hidden) navigator.sendBeacon("?", new URLSearchParams({ away: "1" }));
  else if (Date.now() >= due) ask(); // browsers let the timers of hidden pages sleep
});

if (at("page").dataset.after) wait(Number(at("page").dataset.after));
