"use strict";
const data = JSON.parse(document.getElementById("walk-data").textContent);
const unpack = ({ shape, data: text }) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const whole = new DataView(bytes.buffer);
  return { shape, flat: Float32Array.from({ length: bytes.length / 4 }, (_, place) => whole.getFloat32(4 * place, true)) };
};
const arrays = Object.fromEntries(Object.entries(data.arrays).map(([name, packed]) => [name, unpack(packed)]));
// The number at a full index; the row of numbers at one that leaves out the last axis.
const get = (name, ...index) => {
  const { shape, flat } = arrays[name];
  let place = 0;
  shape.forEach((size, axis) => (place = place * size + (index[axis] ?? 0)));
  return index.length === shape.length ? flat[place] : [...flat.subarray(place, place + shape.at(-1))];
};
const { sizes, tokens } = data;
const label = (place) => tokens[place].label;
const piece = (place) => tokens[place].piece.trim() || JSON.stringify(tokens[place].piece);
const places = tokens.map((_, place) => place);
const allowed = (query, key) => tokens[key].pos <= tokens[query].pos;
const pair = (query, key) => (query * (query + 1)) / 2 + key;
const state = { ...data.first, queries: "rows" };
const carried = () => data.heads.findIndex(([layer, head]) => layer === state.layer && head === state.head);

// Numbers: rounded for reading, all digits on hover.
const full = (value) => String(Number(value.toPrecision(9))).replace("-", "−");
const decimal = (value, digits = 2) => (Math.round(value * 10 ** digits) / 10 ** digits + 0).toFixed(digits).replace("-", "−");
const percent = (value) => `${value > 0 && value < 0.005 ? "< 1" : decimal(100 * value, 0)}\u202f%`;
const length = (value) => decimal(value, value < 100 ? 2 : 0);
const small = (value) => {
  if (!value) return "0";
  const [digit, power] = value.toExponential(0).split("e");
  return `${digit} × 10${[...String(Number(power))].map((sign) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(sign)]).join("")}`;
};
const number = (value, shown = decimal(value)) => ({ text: shown, title: full(value), kind: "n" });
const numbers = (values, digits = 2) => values.map((value) => number(value, decimal(value, digits)));

const make = (name, properties = {}, children = []) => {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) key in made ? (made[key] = value) : made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const row = ([first, ...cells], kind = "") =>
  make("tr", { className: kind }, [
    make("th", { scope: "row", textContent: first }),
    ...cells.map((cell) => make("td", { className: cell.kind ?? "", title: cell.title ?? "" }, cell.nodes ?? [cell.text ?? cell])),
  ]);
const fill = (name, rows, header) => {
  const body = document.querySelector(`[data-rows="${name}"]`);
  body.replaceChildren(...rows);
  if (header) {
    const cells = header.map((text, place) => (text ? make("th", { scope: "col", className: place ? "n" : "", textContent: text }) : make("td")));
    body.parentElement.tHead.rows[0].replaceChildren(...cells);
  }
};
const say = (name, text) => {
  for (const slot of document.querySelectorAll(`[data-slot="${name}"]`)) slot.textContent = text;
};
const mark = (place) => (place === state.at ? "followed" : "");
const named = (letter, count) => Array.from({ length: count }, (_, place) => `${letter}${place}`);

// What the pictures draw, by the name of their data.
const largest = (values) => values.indexOf(Math.max(...values));
const live = {
  cells(c, kind) {
    return places.flatMap((query) =>
      places.map((key) => {
        const value = get(kind, c, query, key);
        const size = kind === "pattern" && !allowed(query, key) ? 0 : Math.abs(value);
        return { query: label(query), key: label(key), allowed: allowed(query, key), chosen: query === state.at, [kind]: value, size, positive: value >= 0 };
      }),
    );
  },
  points(c, kinds) {
    const rows = kinds.split(" ").flatMap((kind) =>
      places.map((place) => {
        const [plane_x, plane_y] = get(`${kind[0]}_plane`, c, place);
        return { kind, label: label(place), name: "", chosen: place === state.at, plane_x, plane_y, norm: get(`${kind[0]}_norm`, c, place) };
      }),
    );
    const reach = (axis) => Math.max(...rows.map((row) => row[axis])) - Math.min(...rows.map((row) => row[axis]));
    const [width, height] = [0.24 * reach("plane_x"), 0.07 * reach("plane_y")];
    const written = []; // a name stands unless it would stand on another; what is followed goes first
    for (const row of [...rows].sort((a, b) => b.chosen - a.chosen)) {
      if (row.kind === "query" && !row.chosen) continue;
      if (written.some((other) => Math.abs(row.plane_x - other.plane_x) <= width && Math.abs(row.plane_y - other.plane_y) <= height)) continue;
      row.name = row.label;
      written.push(row);
    }
    return rows;
  },
  norms: () => places.map((place) => ({ label: label(place), before: get("before", state.layer, place), after: get("after", state.layer, place) })),
  shares: (c) =>
    [["divided by √d_head", "pattern"], ["not divided", "steep"]].flatMap(([variant, name]) =>
      places.map((key) => ({ key: label(key), variant, weight: get(name, c, state.at, key) })),
    ),
  values: (c) =>
    places.filter((key) => key <= state.at).map((key) => ({
      label: label(key), weight: get("pattern", c, state.at, key), share: get("part_share", c, pair(state.at, key)),
    })),
  lengths() {
    const rows = [{ depth: -1, what: "the vector", value: get("token_norm", state.at) }];
    for (let depth = 0; depth <= sizes.layers; depth++) {
      rows.push({ depth, what: "the vector", value: get("depth_norm", depth, state.at) });
      if (!depth) continue;
      rows.push({ depth, what: "attention writes", value: get("attention_norm", depth - 1, state.at) });
      rows.push({ depth, what: "MLP writes", value: get("mlp_norm", depth - 1, state.at) });
    }
    return rows;
  },
  turns() {
    const rows = [{ depth: -1, what: "its own token vector", value: 1 }];
    for (let depth = 0; depth <= sizes.layers; depth++) rows.push({ depth, what: "its own token vector", value: get("token_cosine", depth, state.at) });
    if (state.at !== data.first.at) return rows;
    const beside = arrays.beside_cosine.flat;
    return [...rows, ...[...beside].map((value, place) => ({ depth: place - 1, what: "the same word in the other sentence", value }))];
  },
};

const tables = {
  norms: () =>
    places.map((place) => row([label(place), ...["mean", "std", "before", "after"].map((name) => number(get(name, state.layer, place), decimal(get(name, state.layer, place), 3)))], mark(place))),
  row: (c) =>
    places.map((key) => {
      const open = allowed(state.at, key);
      const score = get("score", c, state.at, key);
      const after = open ? number(score) : { text: "−∞", kind: "n" };
      return row([label(key), number(get("dot", c, state.at, key)), number(score), after, number(get("pattern", c, state.at, key), decimal(get("pattern", c, state.at, key), 3))], mark(key));
    }),
  softmax: (c) =>
    [["Q·K ÷ √d_head", "pattern"], ["Q·K", "steep"]].map(([name, kind]) =>
      row([name, ...["largest", "entropy", "response"].map((what) => number(get(`${kind}_${what}`, c, state.at), decimal(get(`${kind}_${what}`, c, state.at), 3)))]),
    ),
  agreement: () => data.steps.map((step, place) => row([step, number(get("agreement", state.layer, place), small(get("agreement", state.layer, place)))])),
};
const drawTables = (c) => {
  for (const [name, rows] of Object.entries(tables)) fill(name, rows(c));
  const count = arrays.q.shape.at(-1);
  const vector = (kind, place) => [...numbers(get(kind, c, place)), { text: "…", kind: "n" }, number(get(`${kind}_norm`, c, place))];
  const header = [...Array.from({ length: count }, (_, place) => String(place)), "", "length"];
  const kinds = { query: "q", key: "k", value: "v" };
  fill("qkv", Object.entries(kinds).map(([name, kind]) => row([`${name} of ${label(state.at)}`, ...vector(kind, state.at)])), ["vector", ...header]);
  const everyone = Object.entries(kinds).flatMap(([name, kind]) => places.map((place) => row([`${name} of ${label(place)}`, ...vector(kind, place)], mark(place))));
  fill("vectors", everyone, ["token", ...header]);
  drawValues(c);
  drawSums(c);
  drawLens();
};
// Decimals that leave three digits of the largest number of a table, and never fewer than two.
const digitsFor = (values) => {
  const most = Math.max(...values.map(Math.abs), 1e-12);
  return Math.min(6, Math.max(2, 2 - Math.floor(Math.log10(most))));
};
const drawValues = (c) => {
  const count = arrays.out.shape.at(-1);
  const open = places.filter((key) => key <= state.at);
  const outDigits = digitsFor(open.flatMap((key) => get("out", c, key)));
  const partDigits = digitsFor([...get("delta", c, state.at), ...open.flatMap((key) => get("part_vector", c, pair(state.at, key)))]);
  const sizeDigits = digitsFor([get("delta_norm", c, state.at)]);
  const long = (value) => number(value, decimal(value, sizeDigits));
  const rows = open.map((key) => {
    const weight = get("pattern", c, state.at, key);
    const at = pair(state.at, key);
    return row(
      [label(key), number(weight, decimal(weight, 3)), "×", ...numbers(get("out", c, key), outDigits), { text: "=", kind: "n" }, ...numbers(get("part_vector", c, at), partDigits), long(get("part_norm", c, at)), number(get("part_share", c, at), percent(get("part_share", c, at)))],
      mark(key),
    );
  });
  const blank = Array(count).fill("");
  if (data.beyond) {
    const [share, ...parts] = get("rest", c, state.at);
    const weight = get("rest_weight", c, state.at);
    rows.push(row([`${data.beyond} other tokens`, number(weight, decimal(weight, 3)), "", ...blank, "", ...numbers(parts, partDigits), "", number(share, percent(share))]));
  }
  const sum = [...blank, { text: "ΔE =", kind: "n" }, ...numbers(get("delta", c, state.at), partDigits), long(get("delta_norm", c, state.at)), { text: percent(1), kind: "n" }];
  rows.push(row(["sum", number(weightSum(c), decimal(weightSum(c), 3)), "", ...sum], "sum"));
  fill("values", rows, ["source", "weight", "", ...named("v", count), "", ...named("w·v", count), "length", "of ΔE"]);
};
const weightSum = (c) => places.reduce((sum, key) => sum + get("pattern", c, state.at, key), data.beyond ? get("rest_weight", c, state.at) : 0);
const drawSums = (c) => {
  const { layer, at } = state;
  const terms = [
    ["E, entering the block", get("e", layer, at), get("before", layer, at)],
    [`+ ΔE of L${layer}H${state.head}`, get("delta", c, at), get("delta_norm", c, at)],
    [`+ ΔE of the other ${sizes.heads - 1}`, get("others", c, at), get("others_norm", c, at)],
    ["+ b_O", get("b_o", layer), get("b_o_norm", layer)],
    ["= their sum", get("total", layer, at), get("total_norm", layer, at)],
    ["E′, hooked", get("e_after", layer, at), get("e_after_norm", layer, at)],
  ];
  const rows = terms.map(([name, vector, size]) => row([name, ...numbers(vector, 3), { text: "…", kind: "n" }, number(size)], name.startsWith("=") ? "sum" : ""));
  fill("sums", rows, ["term", ...named("e", arrays.e.shape.at(-1)), "", "length"]);
};
const drawLens = () => {
  const chips = (name, shown) =>
    data.words[name].map((of) => of[state.at]).map((words, depth) => ({
      nodes: words.flatMap((word, rank) => {
        const value = get(name, depth, state.at)[rank];
        const small = make("small", { textContent: `\u00a0${shown(value)}`, title: full(value) });
        return [make("span", { className: "t" }, [make("b", { textContent: word.replaceAll("\n", "⏎") }), small]), " "];
      }),
    }));
  const left = chips("lens", percent);
  const right = chips("nearest", decimal);
  fill("lens", left.map((cell, depth) => row([depth ? String(depth - 1) : "E", cell, right[depth]])));
};

const mixed = (c, open, weights) => {
  const shown = [...open].sort((a, b) => weights[b] - weights[a]).slice(0, 6).filter((key) => weights[key] >= 0.005);
  const terms = shown.sort((a, b) => a - b).map((key) => `${decimal(weights[key])} V(${piece(key)})`);
  if (!terms.length) return "Σ weight × V, no weight above 0.005";
  return terms.join(" + ") + (shown.length < state.at + 1 || data.beyond ? " + …" : "");
};
const drawSlots = (c) => {
  const { layer, head, at } = state;
  const open = places.filter((key) => allowed(at, key));
  const dots = places.map((key) => get("dot", c, at, key));
  const weights = open.map((key) => get("pattern", c, at, key));
  const shares = open.map((key) => get("part_share", c, pair(at, key)));
  const best = largest(dots);
  const most = [...open].sort((a, b) => weights[b] - weights[a]).filter((key) => weights[key] >= 0.05).slice(0, 3);
  const giver = open[largest(shares)];
  const moved = get("moved", layer, head, at);
  const said = {
    token: piece(at),
    layer: String(layer),
    line: state.queries === "rows" ? "row" : "column",
    following: `L${layer}H${head} at ${label(at)}`,
    before: length(get("before", layer, at)),
    after: length(get("after", layer, at)),
    held: percent(get("explained", c, 0)),
    "held-values": percent(get("explained", c, 1)),
    "best-dot": `that of ${piece(best)}, ${decimal(dots[best])}${allowed(at, best) ? "" : " (which comes later, and is about to be masked)"}`,
    "steep-largest": percent(get("steep_largest", c, at)),
    largest: percent(get("pattern_largest", c, at)),
    later: percent(get("later", c, at)),
    "best-weight": most.map((key, rank) => `${percent(weights[key])} ${rank ? "" : "of its attention "}to ${piece(key)}`).join(", ") || "no token as much as 5 % of its attention",
    "weight-sum": decimal(weightSum(c), 3),
    "delta-length": length(get("delta_norm", c, at)),
    "best-share": `${percent(Math.max(...shares))} of it comes from ${piece(giver)}`,
    mix: mixed(c, open, weights),
    missed: small(get("missed", layer, at)),
    concat: small(get("agreement", layer, data.steps.indexOf("Concat(z) W_O + b_O"))),
    summed: small(get("agreement", layer, data.steps.indexOf("Σ ΔE + b_O"))),
    "first-length": length(get("depth_norm", 0, at)),
    "last-length": length(get("depth_norm", sizes.layers, at)),
    "map-limit": percent(mapLimit()),
    moved: percent(moved),
  };
  for (const [name, text] of Object.entries(said)) say(name, text);
};

// Heads: the layer's as small grids, all as a map; both follow a choice.
const follow = (layer, head) => show({ layer, head });
const svg = (name, attributes, children = []) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const thumbnail = (c) => {
  const n = places.length;
  const shapes = [svg("rect", { class: "ground", width: n, height: n }), svg("rect", { class: "row", y: state.at, width: n, height: 1 })];
  for (const query of places)
    for (const key of places.slice(0, query + 1)) {
      const weight = get("pattern", c, query, key);
      if (weight > 0.005) shapes.push(svg("circle", { class: "dot", cx: key + 0.5, cy: query + 0.5, r: (0.48 * Math.sqrt(weight)).toFixed(3) }));
    }
  return svg("svg", { viewBox: `0 0 ${n} ${n}`, "aria-hidden": "true" }, shapes);
};
const drawHeads = () => {
  const made = [];
  data.heads.forEach(([layer, head], c) => {
    if (layer !== state.layer) return;
    const name = `L${layer}H${head}`;
    const told = [`ΔE ${length(get("write_norm", layer, head, state.at))}`, `moves ${percent(get("moved", layer, head, state.at))}`];
    const pressed = String(head === state.head);
    const button = make("button", { type: "button", "aria-pressed": pressed, "data-head": head }, [name, thumbnail(c), ...told.map((text) => make("small", { textContent: text }))]);
    button.addEventListener("click", () => {
      follow(layer, head);
      document.querySelector(`[data-heads] [data-head="${head}"]`).focus({ preventScroll: true });
    });
    made.push(button);
  });
  document.querySelector("[data-heads]").replaceChildren(...made);
};
const mapLimit = () => Math.max(1e-9, ...Array.from({ length: sizes.layers * sizes.heads }, (_, place) => get("moved", Math.floor(place / sizes.heads), place % sizes.heads, state.at)));
const cells = new Map();
const makeMap = () => {
  const box = document.querySelector("[data-map]");
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
  const first = ["at", "layer", "head"].every((part) => state[part] === data.first[part]);
  const where = `L${state.layer}H${state.head} at ${label(state.at)}`;
  box.setAttribute("aria-label", first ? told : `${told.split(/[.:]/)[0]}, now of ${where}; the numbers are in the tables of this step.`);
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
  drawSlots(c);
  drawTables(c);
  drawHeads();
  drawMap();
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
makeMap();
show({})
  .then(drawWaiting)
  .then(() => document.documentElement.classList.add("ready"));
