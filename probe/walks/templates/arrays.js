"use strict";
const unpack = ({ shape, shared_by, data: text }) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const whole = new DataView(bytes.buffer);
  return { shape, shared_by, flat: Float32Array.from({ length: bytes.length / 4 }, (_, index) => whole.getFloat32(4 * index, true)) };
};
// What the page shows: a block of facts, and its arrays by name.
let data, arrays;
// The number at a full index; the row of numbers at one that leaves out the last axis.
const get = (name, ...index) => {
  const { shape, shared_by, flat } = arrays[name];
  let offset = 0;
  const at = [Math.floor(index[0] / shared_by), ...index.slice(1)];
  shape.forEach((size, axis) => (offset = offset * size + (at[axis] ?? 0)));
  return index.length === shape.length ? flat[offset] : [...flat.subarray(offset, offset + shape.at(-1))];
};
// Numbers: rounded for reading, all digits on hover.
const full = (value) => String(Number(value.toPrecision(9))).replace("-", "−");
const decimal = (value, digits = 2) => (Math.round(value * 10 ** digits) / 10 ** digits + 0).toFixed(digits).replace("-", "−");
const percent = (value) => `${decimal(100 * value, 0)}\u202f%`;
const length = (value) => decimal(value, value < 100 ? 2 : 0);
const small = (value) => {
  if (!value) return "0";
  const [digit, power] = value.toExponential(0).split("e");
  return `${digit} × 10${[...String(Number(power))].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
};
const number = (value, shown = decimal(value)) => ({ text: shown, title: full(value), kind: "n" });
const numbers = (values, digits = 2) => values.map((value) => number(value, decimal(value, digits)));

const make = (name, properties = {}, children = []) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) key in made ? (made[key] = value) : made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const row = ([first, ...cells], kind = "") =>
  make("tr", { className: kind }, [
    make("th", { scope: "row", textContent: first }),
    ...cells.map((cell) => make("td", { className: cell.kind ?? "", title: cell.title ?? "" }, cell.nodes ?? [cell.text ?? cell])),
  ]);
const fill = (name, rows, header) => {
  const body = document.querySelector(`[data-rows="${name}"]`);
  if (!body) return;
  body.replaceChildren(...rows);
  if (header) {
    const cells = header.map((text, index) => (text ? make("th", { scope: "col", className: index ? "n" : "", textContent: text }) : make("td")));
    body.parentElement.tHead.rows[0].replaceChildren(...cells);
  }
};
const say = (name, text) => {
  for (const slot of document.querySelectorAll(`[data-slot="${name}"]`)) slot.textContent = text;
};
const largest = (values) => values.indexOf(Math.max(...values));
// Decimals that leave three digits of the largest number of a table, and never fewer than two.
const digitsFor = (values) => {
  const most = Math.max(...values.map(Math.abs), 1e-12);
  return Math.min(6, Math.max(2, 2 - Math.floor(Math.log10(most))));
};
