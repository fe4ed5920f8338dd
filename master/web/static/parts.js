// What the parts of the page share. Text from outside goes through `make` and `put` alone: it is never read as HTML.
const SVG = "http://www.w3.org/2000/svg";
// Characters that turn the text around them, or that nobody sees, are shown by their number.
const UNSEEN = /[\u0000-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

export const at = (id) => document.getElementById(id);
export const plain = (text) =>
  String(text).replace(UNSEEN, (each) => "\\u" + each.charCodeAt(0).toString(16).padStart(4, "0"));

export function make(tag, text, kind) {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = plain(text);
  if (kind) element.className = kind;
  return element;
}

export function put(element, text) {
  const shown = plain(text);
  if (element.textContent !== shown) element.textContent = shown;
}

export function set(element, name, value) {
  if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

export function draw(tag, attributes) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

const grouped = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
export const count = (number) => grouped.format(number);
export const round = (number, digits = 1) => Number(number.toFixed(digits)).toString();
export const rate = (per_s) => (per_s >= 100 ? count(per_s) : round(per_s, per_s < 1 ? 2 : 1)) + " /s";

export function span(seconds) {
  if (seconds < 10) return round(seconds) + " s";
  if (seconds < 120) return round(seconds, 0) + " s";
  return seconds < 7200 ? round(seconds / 60, 0) + " min" : round(seconds / 3600, 0) + " h";
}

// The time alone where it is of today.
export function moment(seconds) {
  const date = new Date(seconds * 1000);
  const today = date.toDateString() === new Date().toDateString();
  return today ? date.toLocaleTimeString() : date.toLocaleString();
}

const meanings = new Map(
  [...document.querySelectorAll("#words dt")].map((word) => [word.textContent, word.nextElementSibling.textContent]));
// The sentence that explains a word, and the same within another sentence.
export const meaning = (word) => meanings.get(word) || "";
export function explained(word) {
  const text = meaning(word);
  return text ? word + ": " + text[0].toLowerCase() + text.slice(1).replace(/\.$/, "") : word;
}
