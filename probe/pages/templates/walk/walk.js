{% include "carried.js" %}
const { sizes, tokens } = data;
const label = (place) => tokens[place].label;
const piece = (place) => tokens[place].piece.trim() || JSON.stringify(tokens[place].piece);
const places = tokens.map((_, place) => place);
const allowed = (query, key) => tokens[key].pos <= tokens[query].pos;
const pair = (query, key) => (query * (query + 1)) / 2 + key;
const state = { ...data.first, queries: "rows" };
const carried = () => data.heads.findIndex(([layer, head]) => layer === state.layer && head === state.head);

const mark = (place) => (place === state.at ? "followed" : "");
const named = (letter, count) => Array.from({ length: count }, (_, place) => `${letter}${place}`);

// What the pictures draw, by the name of their data.
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

// The heads of the layer as small grids; one that is clicked is followed.
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
const drawAll = (c) => {
  drawSlots(c);
  drawTables(c);
  drawHeads();
};

{% include "follow.js" %}