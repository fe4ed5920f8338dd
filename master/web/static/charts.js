// The charts of the last two minutes, kept by the page: a point a second, with a gap where the link was lost.
import { all } from "./table.js";
import { at, count, draw, explained, make, put, rate, set } from "./parts.js";

const POINTS = 120;
const BIGGEST = 6;
const PICK_EVERY = 10; // points: the biggest change places all the time in a pool that is well balanced
const GAP_S = 5;
const WIDTH = 240;
const HEIGHT = 60;
const RESULTS = ["OK", "Wait", "NoServer", "Closed", "Denied"];

const times = new Float64Array(POINTS).fill(NaN); // rings: the newest point is at (points - 1) % POINTS
const asks = new Map(RESULTS.map((result) => [result, ring()]));
const total = ring();
let points = 0;
let biggest = [];

function ring() {
  return new Float32Array(POINTS).fill(NaN);
}

const spots = () => Array.from({ length: Math.min(points, POINTS) }, (_, i) => (points - Math.min(points, POINTS) + i) % POINTS);
const highest = (values) => values.reduce((top, value) => (value > top ? value : top), 0);

// The next of 1, 2, 5, 10, 20 ..., so that the scale stands still.
function scale(top) {
  const power = 10 ** Math.floor(Math.log10(Math.max(top, 1)));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= top);
}

function path(values, top) {
  const now = times[(points - 1) % POINTS];
  let [way, last] = ["", -Infinity];
  for (const spot of spots()) {
    if (Number.isNaN(values[spot])) continue;
    const x = (WIDTH * (1 - (now - times[spot]) / POINTS)).toFixed(1);
    const y = (HEIGHT - 1 - (HEIGHT - 2) * Math.min(1, values[spot] / top)).toFixed(1);
    if (x < 0) continue;
    way += times[spot] - last > GAP_S ? `M${x} ${y}h0` : `L${x} ${y}`;
    last = times[spot];
  }
  return way;
}

function makeChart(...kinds) {
  const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", class: "chart", "aria-hidden": "true" });
  svg.append(draw("path", { class: "grid", d: `M0 1H${WIDTH}M0 ${HEIGHT / 2}H${WIDTH}` }));
  const lines = kinds.map((kind) => draw("path", { class: "line " + kind, d: "" }));
  svg.append(...lines);
  return { svg, lines };
}

function makeAsks() {
  const { svg, lines } = makeChart(...RESULTS);
  at("asks-chart").append(svg);
  return RESULTS.map((result, i) => {
    const item = make("li");
    item.dataset.result = result;
    item.hidden = true;
    const sample = draw("svg", { viewBox: "0 0 30 10", class: "sample", "aria-hidden": "true" });
    sample.append(draw("path", { class: "line " + result, d: "M0 5H30" }));
    const text = make("span");
    item.append(sample, text);
    at("rates").append(item);
    return { result, line: lines[i], item, text };
  });
}

function drawAsks() {
  const top = scale(highest([...asks.values()].map(highest)));
  put(at("asks-top"), rate(top));
  for (const { result, line, item, text } of asksShown) {
    const values = asks.get(result);
    item.hidden = result !== "OK" && !highest(values);
    set(line, "d", item.hidden ? "" : path(values, top));
    put(text, rate(values[(points - 1) % POINTS] || 0) + " " + explained(result));
  }
}

function makeUsers() {
  const item = make("li");
  const [name, value, { svg, lines }] = [make("bdi", "", "name"), make("span", "", "value"), makeChart("OK")];
  item.append(name, value, svg);
  item.hidden = true;
  at("users").append(item);
  return { item, name, value, line: lines[0] };
}

function showUsers(slot, name, value, values, top) {
  slot.item.hidden = false;
  put(slot.name, name);
  put(slot.value, value);
  set(slot.line, "d", path(values, top));
}

function pick(entries) {
  const gone = biggest.some((entry) => !entry.fresh);
  if (points % PICK_EVERY !== 1 && !gone && biggest.length === Math.min(BIGGEST, entries.length)) return;
  biggest = [...entries].sort((a, b) => b.row.users - a.row.users || (a.row.name < b.row.name ? -1 : 1)).slice(0, BIGGEST);
  biggest.sort((a, b) => (a.row.name < b.row.name ? -1 : 1));
}

function drawUsers(entries) {
  pick(entries);
  const top = scale(highest(biggest.map((entry) => highest(entry.past))));
  const [sum, ...rest] = [usersShown.at(-1), usersShown.at(-2)];
  usersShown.slice(0, BIGGEST).forEach((slot, i) => {
    const entry = biggest[i];
    slot.item.hidden = !entry;
    if (entry) showUsers(slot, entry.row.name, count(entry.row.users), entry.past, top);
  });
  const others = total.map((all, spot) => all - biggest.reduce((part, { past }) => part + (past[spot] || 0), 0));
  const left = entries.length - biggest.length;
  const spot = (points - 1) % POINTS;
  if (left) showUsers(rest[0], count(left) + " others together", count(others[spot]), others, scale(highest(others)));
  else rest[0].item.hidden = true;
  showUsers(sum, "all together", count(total[spot]), total, scale(highest(total)));
  const which = left ? "The biggest of " + count(entries.length) + " backends" : "Each backend";
  put(at("users-scale"), which + ", from 0 to " + count(top) + " users; those together have a scale of their own, to " +
    (left ? count(scale(highest(others))) + " and " : "") + count(scale(highest(total))) + ".");
}

// Take a point: how the asks of `pool` and the users of all backends are now.
export function take(pool) {
  const entries = [...all()];
  const spot = points % POINTS;
  const [last, now] = [times[(points + POINTS - 1) % POINTS], pool.at];
  if (now - last < 0.5) return; // told twice: at a beginning
  if (now < last) for (let i = 0; i < POINTS; i += 1) times[i] -= last - now; // the clock was set back
  times[spot] = now;
  points += 1;
  for (const result of RESULTS) asks.get(result)[spot] = pool.asks_per_s[result] || 0;
  total[spot] = 0;
  for (const entry of entries) {
    entry.past ||= ring();
    entry.past[spot] = entry.row.users;
    total[spot] += entry.row.users;
  }
  if (document.hidden) return;
  drawAsks();
  drawUsers(entries);
}

const asksShown = makeAsks();
const usersShown = Array.from({ length: BIGGEST + 2 }, makeUsers);
