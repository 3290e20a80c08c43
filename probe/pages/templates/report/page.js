"use strict";
{% include "saving.js" %}
// Whatever leads to a place opens what is folded around it: a link, the address, a click on a map.
const show = (target) => {
  for (let fold = target.closest("details"); fold; fold = fold.parentElement.closest("details")) fold.open = true;
  const own = target.querySelector(":scope > details.fold");
  if (own) own.open = true;
  if (target.type === "radio") choose(target);
  (target.closest(".tabs")?.previousElementSibling ?? target).scrollIntoView(); // a head stands under its word
};
const arrive = () => {
  const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
  if (target) show(target);
};
// The head that is chosen for one word is chosen for every word whose sentences show it.
const choose = (radio) => {
  const name = radio.id.split("-").pop();
  for (const other of document.querySelectorAll(`.tabs > input[id$="-${name}"]`)) other.checked = true;
};
const goTo = (id) => (location.hash === `#${id}` ? arrive() : (location.hash = id));
document.addEventListener("click", (event) => {
  const link = event.target.closest('a[href^="#"]');
  if (!link) return;
  event.preventDefault();
  goTo(link.hash.slice(1));
});
document.addEventListener("change", ({ target }) => {
  if (target.type !== "radio") return;
  choose(target);
  history.replaceState(null, "", `#${target.id}`);
});
addEventListener("hashchange", arrive);
const follow = (box, view) => {
  const map = box.closest("[data-map]");
  if (!map) return;
  map.classList.add("clickable");
  view.addEventListener("click", (_, item) => {
    if (item?.datum?.target) return goTo(item.datum.target);
    if (item?.datum?.head === undefined) return;
    const name = `${map.dataset.map}-L${item.datum.layer}H${item.datum.head}`;
    const table = `every-${map.dataset.map}`; // of a head without a mark that is not among the first
    goTo([`word-${name}`, `every-${name}`, table].find((id) => document.getElementById(id)));
  });
};
// The parts of a circuit are reached with the keyboard: one stop for all, arrows from one to the next; what it is stands below.
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
      if (box.querySelector(".vega-bindings")) box.setAttribute("role", "group"); // fields to type in are no part of a picture
      if (box.closest("[data-circuit]")) reachable(box);
      else box.querySelector("svg").setAttribute("aria-hidden", "true"); // the box is the picture and says what is in it
      follow(box, view);
      saving(box, (ending) => saveAs(wide(), name, ending));
    },
    (error) => {
      box.textContent = `This picture could not be drawn: ${error.message}`;
      console.error(error);
    },
  );
};
// What is opened to be copied is selected, and where the browser allows it copied at once; for a moment it says so.
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
// What is in sight is drawn first; what is folded when it is opened, or while the page is idle, so that it can be printed.
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
