// All heads as maps of a quantity; a choice is followed. Shades grow with its square root, so that small ones can be told apart.
const follow = (layer, head) => show({ layer, head });
const SHADES = 15;
const shade = (share) => `t${Math.round(SHADES * Math.sqrt(Math.max(0, share)))}`;
const maps = [...document.querySelectorAll("[data-map]")].map((box) => ({ box, name: box.dataset.map, cells: new Map() }));
const mapped = (name, layer, head) => get(name, ...[layer, head, state.at].slice(0, arrays[name].shape.length));
const makeMap = ({ box, name, cells }) => {
  const line = (side, parts) => box.append(make("div", { className: "map-row" }, [make("span", { textContent: side }), make("div", { className: "map-cells" }, parts), make("span", { textContent: side })]));
  const across = () => line("", Array.from({ length: sizes.heads }, (_, head) => make("span", { className: "map-head", textContent: `H${head}` })));
  across();
  for (let layer = 0; layer < sizes.layers; layer++) {
    const made = Array.from({ length: sizes.heads }, (_, head) => {
      const input = make("input", { type: "radio", name: `map-${name}`, value: `${layer}.${head}` });
      input.disabled = !data.heads.some((known) => known[0] === layer && known[1] === head);
      input.addEventListener("change", () => follow(layer, head));
      const cell = make("label", { className: "cell" }, [input, make("span")]);
      cells.set(`${layer}.${head}`, cell);
      return cell;
    });
    line(`L${layer}`, made);
  }
  across();
  box.append(make("p", { className: "map-scale" }));
};
const drawMap = ({ box, name, cells }) => {
  const places = [...cells.keys()].map((key) => key.split(".").map(Number));
  const limit = Math.max(1e-9, ...places.map(([layer, head]) => mapped(name, layer, head)));
  places.forEach(([layer, head]) => {
    const [value, cell] = [mapped(name, layer, head), cells.get(`${layer}.${head}`)];
    const [input, text] = cell.children;
    cell.className = `cell ${shade(value / limit)}`;
    cell.title = `L${layer}H${head}: ${full(100 * value)} %`;
    input.checked = layer === state.layer && head === state.head;
    input.setAttribute("aria-label", `L${layer}H${head}: ${percent(value)}`);
    text.textContent = value >= 0.005 ? decimal(100 * value, 0) : "";
  });
  const steps = [0, 1, 4, 9, 16].map((part) => make("span", { className: `cell ${shade(part / 16)}`, textContent: percent((part / 16) * limit) }));
  box.lastChild.replaceChildren("scale: ", ...steps);
};

{% include "lines.js" %}

// Pictures: drawn once, then given other data; what is hidden or folded has no width yet and waits.
{% include "saving.js" %}
const views = new Map();
const waiting = new Set(document.querySelectorAll("script[data-for]"));
const refresh = ({ view, name, kind, box, told }) => {
  const where = `L${state.layer}H${state.head} at ${token()}`;
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
      view.addEventListener("click", (_, item) => goTo(({ label }) => label === item?.datum?.query || (data.alone && label === item?.datum?.label)));
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
// The first token of those that look for which this holds becomes the destination.
const goTo = (wanted) => {
  const at = tokens.findIndex(wanted);
  if (at >= 0) show({ at });
};
const show = (change) => {
  Object.assign(state, change);
  const c = carried();
  drawForm();
  maps.forEach(drawMap);
  drawAll(c);
  linesOf(c);
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
const KEYS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
for (const grid of document.querySelectorAll(".square[data-queries]"))
  grid.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    show({ at: Math.min(Math.max(state.at + KEYS[event.key], 0), tokens.length - 1) });
  });
for (const chip of document.querySelectorAll("[data-pos]")) chip.addEventListener("click", () => goTo(({ pos }) => pos === Number(chip.dataset.pos)));
// The address holds what is followed: #L5H1@9.
const addressed = () => {
  const [layer, head, pos] = (location.hash.match(/^#L(\d+)H(\d+)@(\d+)$/) ?? []).slice(1).map(Number);
  const at = tokens.findIndex((one) => one.pos === pos);
  return at >= 0 && data.heads.some((known) => known[0] === layer && known[1] === head) ? { at, layer, head } : {};
};
window.addEventListener("hashchange", () => show(addressed()));
Object.assign(state, addressed());
maps.forEach(makeMap);
show({})
  .then(drawWaiting)
  .then(() => document.documentElement.classList.add("ready"));
