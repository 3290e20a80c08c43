// What was not measured has no line in a tooltip.
const formatTooltip = (told, escape) => {
  if (typeof told !== "object") return escape(String(told));
  const known = Object.entries(told).filter(([, text]) => text !== "null" && text !== null);
  return `<table>${known.map(([name, text]) => `<tr><td class="key">${escape(name)}</td><td class="value">${escape(String(text))}</td></tr>`).join("")}</table>`;
};
const options = { renderer: "svg", actions: false, ast: true, defaultStyle: false, tooltip: { disableDefaultStyle: true, formatTooltip } };
// A picture as a file: drawn again outside the page with this theme's colours, because a file knows no style sheet.
const saveAs = async (spec, name, ending) => {
  const theme = getComputedStyle(document.documentElement);
  const painted = JSON.parse(JSON.stringify(spec).replace(/var\((--[a-z0-9]+)\)/g, (_, part) => theme.getPropertyValue(part).trim()));
  const made = { ...painted, background: theme.getPropertyValue("--paper").trim() };
  const { view } = await vegaEmbed(document.createElement("div"), made, { ...options, renderer: ending === "png" ? "canvas" : "svg" });
  const address = ending === "png" ? await view.toImageURL("png", 2) : URL.createObjectURL(new Blob([await view.toSVG()], { type: "image/svg+xml" }));
  Object.assign(document.createElement("a"), { href: address, download: `${name}.${ending}` }).click();
  view.finalize();
};
// Under a picture a fold with the two buttons that save it; `save` is given the ending. A box that is as wide as the page has no width elsewhere.
const drawnWidth = (box) => box.clientWidth - 90;
const saving = (box, save) => {
  const row = Object.assign(document.createElement("details"), { className: "saving" });
  row.append(Object.assign(document.createElement("summary"), { textContent: "save" }));
  for (const ending of ["svg", "png"]) {
    const button = Object.assign(document.createElement("button"), { type: "button", textContent: ending.toUpperCase() });
    button.setAttribute("aria-label", `Save this picture as ${ending.toUpperCase()}`);
    button.addEventListener("click", () => save(ending));
    row.append(button);
  }
  box.after(row);
};
