// All heads as a map; a choice is followed.
const follow = (layer, head) => show({ layer, head });
const mapLimit = () => Math.max(1e-9, ...Array.from({ length: sizes.layers * sizes.heads }, (_, place) => get("moved", Math.floor(place / sizes.heads), place % sizes.heads, state.at)));
const cells = new Map();
const makeMap = () => {
  const box = document.querySelector("[data-map]");
  const numbered = Array.from({ length: sizes.heads }, (_, head) => make("span", { className: "map-head", textContent: `H${head}` }));
  box.append(make("div", { className: "map-row", "aria-hidden": "true" }, [make("span"), make("div", { className: "map-cells" }, numbered)]));
  for (let layer = 0; layer < sizes.layers; layer++) {
    const made = Array.from({ length: sizes.heads }, (_, head) => {
      const input = make("input", { type: "radio", name: "map", value: `${layer}.${head}` });
      input.disabled = !data.heads.some((known) => known[0] === layer && known[1] === head);
      input.addEventListener("change", () => follow(layer, head));
      const cell = make("label", { className: "cell" }, [input, make("span")]);
      cells.set(`${layer}.${head}`, cell);
      return cell;
    });
    box.append(make("div", { className: "map-row" }, [make("span", { textContent: `L${layer}` }), make("div", { className: "map-cells" }, made)]));
  }
};
const drawMap = () => {
  const limit = mapLimit();
  for (const [name, cell] of cells) {
    const [layer, head] = name.split(".").map(Number);
    const moved = get("moved", layer, head, state.at);
    const [input, text] = cell.children;
    cell.className = `cell t${Math.round((15 * moved) / limit)}`;
    cell.title = `L${layer}H${head}: ${full(100 * moved)} %`;
    input.checked = layer === state.layer && head === state.head;
    input.setAttribute("aria-label", `L${layer}H${head}: ${percent(moved)}`);
    text.textContent = moved >= 0.005 ? decimal(100 * moved, 0) : "";
  }
};

// Pictures: drawn once, then given other data; what is hidden or folded has no width yet and waits.
{% include "saving.js" %}
const views = new Map();
const waiting = new Set(document.querySelectorAll("script[data-for]"));
const refresh = ({ view, name, kind, box, told }) => {
  const where = `L${state.layer}H${state.head} at ${label(state.at)}`;
  box.setAttribute("aria-label", isFirst() ? told : `${told.split(/[.:]/)[0]}, now of ${where}; the numbers are in the tables of this step.`);
  return view.data(name, live[name](carried(), kind)).runAsync();
};
const save = (box, spec, ending) => {
  const { name, kind } = views.get(box.id);
  const shown = { ...spec, data: { name, values: live[name](carried(), kind) }, width: drawnWidth(box) };
  return saveAs(shown, `${name}-L${state.layer}H${state.head}`, ending);
};
const draw = (script) => {
  waiting.delete(script);
  const box = document.getElementById(script.dataset.for);
  const spec = JSON.parse(script.textContent);
  const [name, kind] = [spec.data.name, box.closest("[data-kind]").dataset.kind];
  spec.data.values = live[name](carried(), kind);
  return vegaEmbed(box, spec, options).then(
    ({ view }) => {
      views.set(box.id, { view, name, kind, box, told: spec.description });
      box.classList.add("drawn");
      saving(box, (ending) => save(box, spec, ending));
    },
    (error) => {
      box.textContent = `This picture could not be drawn: ${error.message}`;
      console.error(error);
    },
  );
};
const drawWaiting = () => Promise.all([...waiting].filter((script) => !script.closest("[hidden]")).map(draw));

const form = document.querySelector(".strip");
const drawForm = () => {
  form.elements.layer.value = state.layer;
  form.elements.head.value = state.head;
  const chip = form.querySelector(`[name="at"][value="${state.at}"]`);
  chip.checked = true;
  const strip = form.querySelector(".chips");
  strip.scrollLeft = chip.parentElement.offsetLeft - strip.offsetLeft - strip.clientWidth / 2;
};
const show = (change) => {
  Object.assign(state, change);
  const c = carried();
  drawForm();
  drawMap();
  drawAll(c);
  if (Object.keys(change).length) history.replaceState(null, "", `#L${state.layer}H${state.head}@${tokens[state.at].pos}`);
  return Promise.all([...views.values()].map(refresh));
};
const turn = (queries) => {
  state.queries = queries;
  for (const part of document.querySelectorAll("[data-queries]")) part.hidden = part.dataset.queries !== queries;
  drawSlots(carried());
  window.dispatchEvent(new Event("resize"));
  return drawWaiting();
};

for (const layer of new Set(data.heads.map(([layer]) => layer))) form.elements.layer.append(new Option(layer, layer));
for (let head = 0; head < sizes.heads; head++) form.elements.head.append(new Option(head, head));
form.addEventListener("change", () => {
  const { at, layer, head } = form.elements;
  show({ at: Number(at.value), layer: Number(layer.value), head: Number(head.value) });
});
for (const input of document.querySelectorAll('[name="queries"]')) input.addEventListener("change", () => turn(input.value));
// The address holds what is followed: #L5H1@9.
const asked = location.hash.match(/^#L(\d+)H(\d+)@(\d+)$/);
if (asked) {
  const [layer, head, pos] = asked.slice(1).map(Number);
  const at = tokens.findIndex((one) => one.pos === pos);
  if (at >= 0 && data.heads.some((known) => known[0] === layer && known[1] === head)) Object.assign(state, { at, layer, head });
}
makeMap();
show({})
  .then(drawWaiting)
  .then(() => document.documentElement.classList.add("ready"));
