"use strict";
{% include "saving.js" %}
const draw = (script) => {
  const box = document.getElementById(script.dataset.for);
  const spec = JSON.parse(script.textContent);
  const name = spec.description.split(/[.:;]/)[0].toLowerCase().replace(/[^a-z0-9]+/g, "-").slice(0, 60);
  const wide = () => (spec.width === "container" ? { ...spec, width: drawnWidth(box) } : spec);
  return vegaEmbed(box, spec, options).then(
    () => {
      box.classList.add("drawn");
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
