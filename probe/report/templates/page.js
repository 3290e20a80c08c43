"use strict";
const options = {
  renderer: "svg",
  actions: false,
  ast: true,
  defaultStyle: false,
  tooltip: { disableDefaultStyle: true },
};
const drawn = [...document.querySelectorAll("script[data-for]")].map((script) => {
  const box = document.getElementById(script.dataset.for);
  return vegaEmbed(box, JSON.parse(script.textContent), options).then(
    () => box.classList.add("drawn"),
    (error) => {
      box.textContent = `This picture could not be drawn: ${error.message}`;
      console.error(error);
    },
  );
});
Promise.all(drawn).then(() => document.documentElement.classList.add("ready"));
