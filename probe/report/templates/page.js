"use strict";
const options = {
  renderer: "svg",
  actions: false,
  ast: true,
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};
const draw = (script) => {
  const box = document.getElementById(script.dataset.for);
  return vegaEmbed(box, JSON.parse(script.textContent), options).then(
    () => box.classList.add("drawn"),
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
