"use strict";
{% include "saving.js" %}
// Whatever leads to a place opens what is around it: a link, the address, a cell of a map.
const show = (target) => {
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  target.querySelector(":scope > details.fold")?.setAttribute("open", "");
  if (target.matches("dialog")) return openCard(target);
  target.scrollIntoView();
};
const arrive = () => {
  const id = decodeURIComponent(location.hash.slice(1));
  const target = document.getElementById(id);
  if (target) show(target);
  else if (cells.has(id)) openCard(filled(cells.get(id)));
  else document.querySelector("dialog[open]")?.close();
};
// To set the hash takes the focus from where it was, so a card is opened without that.
const goTo = (id) => {
  if (location.hash === `#${id}`) return arrive();
  if (!cells.has(id) && !document.getElementById(id)?.matches("dialog")) return (location.hash = id);
  history.pushState(null, "", `#${id}`);
  arrive();
};
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  goTo(link.hash.slice(1));
});
addEventListener("hashchange", arrive);
// A sentence that is wider than its place begins at its cue, or before the word if the cue is near.
const scrollToWords = (part) => {
  for (const box of part.querySelectorAll(".arcs")) {
    const cue = box.querySelector("rect")?.x.baseVal.value ?? Infinity;
    box.scrollLeft = Math.min(cue - 8, box.dataset.at - box.clientWidth * 0.8);
  }
};
scrollToWords(document);
// A head's card lies over the page, which stays where it was. The address holds which one is open.
const openCard = (card) => {
  const open = document.querySelector("dialog[open]");
  if (open === card) return;
  open?.close();
  card.append(...document.querySelectorAll(".meaning")); // what lies outside an open card cannot be read
  card.showModal();
  card.scrollTop = 0;
  scrollToWords(card);
};
for (const card of document.querySelectorAll("dialog.card")) {
  card.addEventListener("close", () => {
    if (document.querySelector("dialog[open]")) return;
    document.querySelector("main").append(...card.querySelectorAll(".meaning"));
    history.replaceState(null, "", location.pathname + location.search);
  });
  card.addEventListener("click", ({ target }) => (target === card || target.closest("[data-close]")) && card.close());
}
// A head without a card has the numbers of its cell.
const cells = new Map();
const inPercent = (value) => `${(100 * value).toFixed(0).replace("-", "−").replace(/^−0$/, "0")}\u202f%`;
const filled = ({ datum, word }) => {
  const card = document.getElementById("any-head");
  for (const field of card.querySelectorAll("[data-field]")) {
    const name = field.dataset.field;
    const value = name === "word" ? word : datum[name];
    const missing = value === undefined || value === null;
    field.parentElement.hidden = field.tagName === "DD" && missing;
    if (missing) field.textContent = "";
    else if (name === "net" && datum.net_low !== undefined) field.textContent = `${inPercent(value)} [${inPercent(datum.net_low)}, ${inPercent(datum.net_high)}]`;
    else if (typeof value === "string") field.textContent = value;
    else field.textContent = name === "auroc" ? value.toFixed(2) : inPercent(value);
  }
  return card;
};
// The cells of a map: one stop for the keyboard, arrows from cell to cell, Enter opens the card.
const idOf = (map, { layer, head }) => `head-${map.dataset.map}-L${layer}H${head}`;
const STEPS = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] };
const clickable = (map, box) => {
  const places = new Map();
  for (const path of box.querySelectorAll(".mark-rect.role-mark path")) {
    const datum = path.__data__?.datum;
    if (datum?.head === undefined || places.has(idOf(map, datum))) continue;
    places.set(idOf(map, datum), path);
    cells.set(idOf(map, datum), { datum, word: map.dataset.word });
    path.setAttribute("role", "button");
    path.setAttribute("aria-label", `${datum.name}, ${inPercent(datum.net)}${datum.verdict ? `, ${datum.verdict}` : ""}`);
    path.setAttribute("tabindex", places.size === 1 ? 0 : -1);
  }
  const rows = [...new Set([...places.values()].map((path) => path.__data__.datum.layer))].sort((a, b) => a - b);
  const columns = [...new Set([...places.values()].map((path) => path.__data__.datum.head))];
  box.setAttribute("role", "group");
  box.classList.add("clickable");
  box.addEventListener("keydown", (event) => {
    const datum = event.target.__data__?.datum;
    if (!datum) return;
    if (event.key === "Enter" || event.key === " ") {
      event.preventDefault();
      return goTo(idOf(map, datum));
    }
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    const layer = rows[rows.indexOf(datum.layer) + step[0]];
    const head = columns[columns.indexOf(datum.head) + step[1]];
    const next = places.get(idOf(map, { layer, head }));
    if (!next) return;
    event.target.setAttribute("tabindex", -1);
    next.setAttribute("tabindex", 0);
    next.focus();
  });
};
const follow = (box, view) => {
  const map = box.closest("[data-map]");
  if (!map) return;
  if (map.dataset.word) clickable(map, box);
  view.addEventListener("click", (_, item) => {
    if (item?.datum?.target) return goTo(item.datum.target);
    if (item?.datum?.head === undefined) return;
    if (map.dataset.word) return goTo(idOf(map, item.datum));
    const row = document.getElementById(idOf(map, item.datum).replace("head", "every"));
    if (row) goTo(row.id);
  });
};
// The parts of a circuit are reached with the keyboard: one stop for all, arrows from one to the next; its name appears below.
const reachable = (box) => {
  const parts = [...box.querySelectorAll("path[role=graphics-symbol]")];
  const told = Object.assign(document.createElement("p"), { className: "quiet told" });
  const idle = "Hover, or go through edges and parts with Tab and the arrow keys.";
  told.textContent = idle;
  box.setAttribute("role", "group");
  parts.forEach((part, number) => {
    part.setAttribute("tabindex", number ? -1 : 0);
    part.addEventListener("focus", () => (told.textContent = part.getAttribute("aria-label")));
    part.addEventListener("blur", () => (told.textContent = idle));
    part.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      part.setAttribute("tabindex", -1);
      const next = parts.at((number + step) % parts.length);
      next.setAttribute("tabindex", 0);
      next.focus();
    });
  });
  box.after(told);
};
const begun = new Set();
const draw = (script) => {
  const box = document.getElementById(script.dataset.for);
  if (begun.has(box)) return;
  begun.add(box);
  const spec = JSON.parse(script.textContent);
  const name = spec.description.split(/[.:;]/)[0].toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60);
  const wide = () => (spec.width === "container" ? { ...spec, width: drawnWidth(box) } : spec);
  return vegaEmbed(box, spec, options).then(
    ({ view }) => {
      box.classList.add("drawn");
      if (box.querySelector(".vega-bindings")) box.setAttribute("role", "group"); // fields to type in do not belong to a picture
      if (box.closest("[data-circuit]")) reachable(box);
      else if (!box.closest("[data-word]")) box.querySelector("svg").setAttribute("aria-hidden", "true"); // the box is the picture, with its description
      follow(box, view);
      saving(box, (ending) => saveAs(wide(), name, ending));
    },
    (error) => {
      box.textContent = `This picture could not be drawn: ${error.message}`;
      console.error(error);
    },
  );
};
// Opening this fold selects the text, and copies it where the browser allows that; a message appears for a moment.
const COPIED = 4000; // milliseconds
for (const details of document.querySelectorAll("details.result"))
  details.addEventListener("toggle", () => {
    const text = details.querySelector("textarea");
    text.select();
    if (!details.open) return;
    const told = details.querySelector("[data-copied]");
    const tell = (words) => {
      told.textContent = words;
      setTimeout(() => (told.textContent = ""), COPIED);
    };
    const copied = navigator.clipboard?.writeText(text.value) ?? Promise.reject();
    copied.then(() => tell("Copied."), () => tell("Selected, not copied: press Ctrl+C, on a Mac ⌘C."));
  });
// Visible charts are drawn first. Folded charts follow when they are opened, or while the page is idle, so that they can be printed.
const scripts = [...document.querySelectorAll("script[data-for]")];
const inside = (details) => [...details.querySelectorAll("script[data-for]")];
for (const details of document.querySelectorAll("details"))
  details.addEventListener("toggle", () => details.open && inside(details).filter((script) => !script.closest("details:not([open])")).forEach(draw));
const sized = (script) => document.getElementById(script.dataset.for).clientWidth > 0;
const idle = () => new Promise((done) => (window.requestIdleCallback ?? setTimeout)(done));
Promise.all(scripts.filter((script) => !script.closest("details:not([open])")).map(draw)).then(async () => {
  arrive();
  document.documentElement.classList.add("ready");
  for (const script of scripts.filter(sized)) {
    await idle();
    await draw(script);
  }
});
