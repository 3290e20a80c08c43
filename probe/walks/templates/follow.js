// All heads as maps of a quantity; a choice is followed. Shades grow with its square root, so that small values differ visibly;
// what is below zero has the other hue.
const page = {
  // A head that is chosen anywhere; where the address keeps what is followed: #L5H1@9.
  follow: (layer, head) => show({ layer, head }),
  // A head that is chosen on a map, by its name.
  choose: (name, layer, head) => page.follow(layer, head),
  remember: () => history.replaceState(null, "", `#L${state.layer}H${state.head}@${tokens[state.at].pos}`),
  restore: () => show(addressed()),
  reaches: (layer, head) => data.heads.some((known) => known[0] === layer && known[1] === head),
  // A cell of the trace: the head of the layer that moves that token most, there where the token is drawn.
  open: (layer, pos) => {
    const at = tokens.findIndex((one) => one.pos === pos);
    const index = at < 0 ? state.at : at;
    const moves = Array.from({ length: sizes.heads }, (_, head) => get("moved", layer, head, index));
    return show({ layer, head: largest(moves), at: index });
  },
  shown: () => {},
  // The scores from a position, split into pairs of parts, where the page has them; and a wish for them.
  scores: (layer, head, pos) => (data.scores?.layer === layer && data.scores.head === head ? data.scores.rows[pos] : undefined),
  split: () => {},
};
const follow = (layer, head) => page.follow(layer, head);
const SHADES = 15;
const shade = (share) => `t${Math.round(SHADES * Math.sqrt(Math.max(0, share)))}`;
const tinted = (share) => `cell ${shade(Math.abs(share))}${share < 0 ? " against" : ""}`;
const maps = [...document.querySelectorAll("[data-map]")].map((box) => ({ box, name: box.dataset.map, cells: new Map() }));
const mapped = (name, layer, head) => get(name, ...[layer, head, state.at].slice(0, arrays[name].shape.length));
const BOTH_SIDES = 8; // layers
const makeMap = ({ box, name, cells }) => {
  box.style.setProperty("--layers", sizes.layers);
  // A large map has its names on both sides.
  const both = sizes.layers > BOTH_SIDES;
  const line = (side, parts, place = "") => box.append(make("div", { className: `map-row ${place}` }, [make("span", { textContent: side }), make("div", { className: "map-cells" }, parts), ...(both ? [make("span", { textContent: side })] : [])]));
  const across = (place) => line("", Array.from({ length: sizes.heads }, (_, head) => make("span", { className: "map-head", textContent: `H${head}` })), place);
  across();
  for (let layer = 0; layer < sizes.layers; layer++) {
    const made = Array.from({ length: sizes.heads }, (_, head) => {
      const input = make("input", { type: "radio", name: `map-${name}`, value: `${layer}.${head}` });
      input.disabled = !page.reaches(layer, head);
      // A click, because a head that is chosen already can be chosen again.
      input.addEventListener("click", (event) => page.choose(name, layer, head, event));
      const cell = make("label", { className: "cell" }, [input, make("span")]);
      cells.set(`${layer}.${head}`, cell);
      return cell;
    });
    line(`L${layer}`, made);
  }
  if (both) across("below");
  box.append(make("p", { className: "map-scale" }));
};
const ROUNDS_TO_ZERO = 0.0005; // as a share: less is 0.0 %, which has no colour and no scale
const IN_GAPS = ["swap", "direct"]; // maps of one quantity, % of the gap, on one scale
const onScaleOf = (name) => maps.filter((map) => map.name === name || (IN_GAPS.includes(name) && IN_GAPS.includes(map.name) && has(map.name)));
const valuesOf = ({ name, cells }) => [...cells.keys()].map((key) => mapped(name, ...key.split(".").map(Number)));
const limitOf = (name) => Math.max(ROUNDS_TO_ZERO, ...onScaleOf(name).flatMap(valuesOf).map(Math.abs));
const drawMap = ({ box, name, cells }) => {
  const heads = [...cells.keys()].map((key) => key.split(".").map(Number));
  const [limit, least] = [limitOf(name), Math.min(...onScaleOf(name).flatMap(valuesOf))];
  heads.forEach(([layer, head]) => {
    const [value, cell] = [mapped(name, layer, head), cells.get(`${layer}.${head}`)];
    const [input, text] = cell.children;
    cell.className = tinted(value / limit);
    cell.title = `L${layer}H${head}: ${full(100 * value)} %`;
    input.checked = layer === state.layer && head === state.head;
    input.setAttribute("aria-label", `L${layer}H${head}: ${percent(value)}`);
    text.textContent = heads.length <= FEW ? inCell(value) : "";
  });
  const scaled = (value) => (limit < 0.1 ? `${decimal(100 * value, 1)}\u202f%` : percent(value));
  const parts = [...(least <= -0.005 ? [-16, -4] : []), 0, 1, 4, 9, 16];
  const steps = parts.map((part) => make("span", { className: tinted(part / 16), textContent: scaled((part / 16) * limit) }));
  if (limit <= ROUNDS_TO_ZERO) box.lastChild.replaceChildren("Every head's value is 0\u202f%.");
  else box.lastChild.replaceChildren(...(heads.length <= FEW ? [] : [make("span", { className: "told", textContent: "Colour scale; small numbers are drawn stronger." }), ...steps]));
};

{% include "lines.js" %}

// Pictures: drawn once, then given other data; what is hidden or folded has no width yet and waits.
{% include "saving.js" %}
const views = new Map();
const waiting = new Set(document.querySelectorAll("script[data-for]"));
// As many lines as there are tokens down the side.
const height = (rows, lines) => lines.step * new Set(rows.map((one) => one[lines.by])).size;
const refresh = ({ view, name, kind, box, told, lines }) => {
  const where = `L${state.layer}H${state.head} at ${token()}`;
  // A description is of the weights of the first head.
  const isTold = isFirst() && (kind !== "stage" || stage === STAGES.length - 1);
  const drawn = kind === "stage" ? told.replace(stepNames.pattern, stepNames[drawnAs(kind)]) : told;
  box.setAttribute("aria-label", isTold ? told : `${drawn.split(/[.:]/)[0]}, now of ${where}; the numbers are in the tables of this step.`);
  const rows = live[name](headIndex(), kind);
  if (lines) view.height(height(rows, lines));
  return view.data(name, rows).runAsync();
};
// Folded pictures are drawn again when they are unfolded.
const refreshAll = () => Promise.all([...views.values()].filter(({ box }) => box.offsetParent).map(refresh));
const save = (box, spec, ending) => {
  const { name, kind } = views.get(box.id);
  const shown = { ...spec, data: { name, values: live[name](headIndex(), kind) }, width: drawnWidth(box) };
  return saveAs(shown, `${name}-L${state.layer}H${state.head}`, ending);
};
const draw = (script) => {
  waiting.delete(script);
  const box = document.getElementById(script.dataset.for);
  const spec = JSON.parse(script.textContent);
  const [name, kind] = [spec.data.name, box.closest("[data-kind]").dataset.kind];
  spec.data.values = live[name](headIndex(), kind);
  if (spec.usermeta) spec.height = height(spec.data.values, spec.usermeta);
  return vegaEmbed(box, spec, options).then(
    ({ view }) => {
      views.set(box.id, { view, name, kind, box, told: spec.description, lines: spec.usermeta });
      view.addEventListener("click", (_, item) => pick(item?.datum ?? {}));
      box.classList.add("drawn");
      saving(box, (ending) => save(box, spec, ending));
    },
    (error) => {
      box.textContent = `This picture could not be drawn: ${error.message}`;
      console.error(error);
    },
  );
};
const drawWaiting = () => Promise.all([...waiting].filter((script) => !script.closest("[hidden], details:not([open])")).map(draw));

const form = document.querySelector(".strip");
const drawForm = () => {
  form.elements.layer.value = state.layer;
  form.elements.head.value = state.head;
  const chip = form.querySelector(`[name="at"][value="${state.at}"]`);
  chip.checked = true;
  const strip = form.querySelector(".chips");
  const { offsetLeft, offsetWidth } = chip.parentElement;
  const left = offsetLeft - strip.offsetLeft;
  // From the first token on, where the text fits up to this one.
  strip.scrollLeft = left + offsetWidth <= strip.clientWidth ? 0 : left - strip.clientWidth / 2;
};
// The first query token for which this holds becomes the destination.
const goTo = (wanted) => {
  const at = tokens.findIndex(wanted);
  if (at >= 0) show({ at });
};
// What was clicked in a picture: the token that looks, and of a grid the one that it looks at, whose score is split.
const pick = ({ query, key, label }) => {
  const at = tokens.findIndex((one) => one.label === query || (data.one_text && one.label === label));
  const clicked = source.findIndex((one) => one.label === key);
  if (at < 0) return;
  show({ at, key: clicked < 0 ? null : clicked });
  if (clicked < 0) return;
  document.querySelector("[data-score]").open = true;
  page.split();
};
const show = (change) => {
  Object.assign(state, change);
  const c = headIndex();
  drawForm();
  maps.filter(({ name }) => has(name)).forEach(drawMap);
  drawAll(c);
  linesOf(c);
  if (Object.keys(change).length) page.remember();
  page.shown();
  return refreshAll();
};
const turn = (queries) => {
  state.queries = queries;
  for (const part of document.querySelectorAll("[data-queries]")) part.hidden = part.dataset.queries !== queries;
  drawSlots(headIndex());
  linesOf(headIndex());
  window.dispatchEvent(new Event("resize"));
  return drawWaiting().then(refreshAll);
};

form.addEventListener("change", () => {
  const { at, layer, head } = form.elements;
  if (Number(at.value) !== state.at) show({ at: Number(at.value) });
  else follow(Number(layer.value), Number(head.value));
});
for (const folded of document.querySelectorAll("details")) folded.addEventListener("toggle", () => folded.open && drawWaiting().then(refreshAll));
for (const input of document.querySelectorAll('[name="queries"]')) input.addEventListener("change", () => turn(input.value));
const KEYS = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
for (const grid of document.querySelectorAll(".square[data-queries]"))
  grid.addEventListener("keydown", (event) => {
    if (!(event.key in KEYS)) return;
    event.preventDefault();
    show({ at: Math.min(Math.max(state.at + KEYS[event.key], 0), tokens.length - 1) });
  });
document.querySelector('[name="scored"]').addEventListener("change", ({ target }) => {
  show({ key: Number(target.value) });
  page.split();
});
for (const chip of document.querySelectorAll("[data-pos]")) chip.addEventListener("click", () => goTo(({ pos }) => pos === Number(chip.dataset.pos)));
// The address holds what is followed: #L5H1@9.
const addressed = () => {
  const [layer, head, pos] = (location.hash.match(/^#L(\d+)H(\d+)@(\d+)$/) ?? []).slice(1).map(Number);
  const at = tokens.findIndex((one) => one.pos === pos);
  return at >= 0 && data.heads.some((known) => known[0] === layer && known[1] === head) ? { at, layer, head } : {};
};
const start = () => {
  for (let layer = 0; layer < sizes.layers; layer++) if (page.reaches(layer, 0)) form.elements.layer.append(new Option(layer, layer));
  for (let head = 0; head < sizes.heads; head++) form.elements.head.append(new Option(head, head));
  window.addEventListener("hashchange", () => page.restore());
  Object.assign(state, addressed());
  maps.forEach(makeMap);
  makeStages();
  return show({})
    .then(drawWaiting)
    .then(() => document.documentElement.classList.add("ready"));
};
