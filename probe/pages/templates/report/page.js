"use strict";
{% include "saving.js" %}
// A click on a cell of the map goes to that head: to its tab among the leading heads, or to its row in the table of all.
const named = (word, within) =>
  [...document.querySelectorAll(within)].filter((each) => each.closest("[data-word]").dataset.word === word);
const goTo = (word, name) => {
  const tab = named(word, ".tabs label").find((label) => label.querySelector("b").textContent === name);
  const row = named(word, "#every th[scope=row]").find((cell) => cell.textContent === name);
  if (tab) document.getElementById(tab.htmlFor).click();
  else if (row) row.closest("details").open = true;
  for (const marked of document.querySelectorAll("tr.followed")) marked.classList.remove("followed");
  row?.parentElement.classList.add("followed");
  (tab ?? row)?.scrollIntoView({ block: "center" });
};
const follow = (box, view) => {
  const map = box.closest("[data-map]");
  if (!map) return;
  map.classList.add("clickable");
  view.addEventListener("click", (_, item) => {
    if (item?.datum?.head !== undefined) goTo(map.dataset.map, `L${item.datum.layer}H${item.datum.head}`);
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
const draw = (script) => {
  const box = document.getElementById(script.dataset.for);
  const spec = JSON.parse(script.textContent);
  const name = spec.description.split(/[.:;]/)[0].toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60);
  const wide = () => (spec.width === "container" ? { ...spec, width: drawnWidth(box) } : spec);
  return vegaEmbed(box, spec, options).then(
    ({ view }) => {
      box.classList.add("drawn");
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
const folded = "details:not([open])"; // a picture in there has no width yet: it is drawn when it is unfolded
const scripts = [...document.querySelectorAll("script[data-for]")];
for (const details of document.querySelectorAll(folded)) {
  const inside = [...details.querySelectorAll("script[data-for]")];
  details.addEventListener("toggle", () => inside.forEach(draw), { once: true });
}
Promise.all(scripts.filter((script) => !script.closest(folded)).map(draw)).then(() =>
  document.documentElement.classList.add("ready"),
);
