{% include "arrays.js" %}
let sizes, tokens, source, queries, keys;
const state = { queries: "rows" };
const take = (block) => {
  data = block;
  arrays = Object.fromEntries(Object.entries(data.arrays).map(([name, packed]) => [name, unpack(packed)]));
  ({ sizes, tokens, source } = data);
  [queries, keys] = [tokens, source].map((list) => list.map((_, index) => index));
  Object.assign(state, data.first, { key: null });
};
take(JSON.parse(document.getElementById("walk-data").textContent));
const label = (index) => tokens[index].label;
const written = (text) => text.trim() || text.replace(/[\n\r\t ]/g, (one) => ({ "\n": "⏎", "\r": "␍", "\t": "⇥", " ": "␣" })[one]);
const quoted = (text) => `“${written(text)}”`;
const tokenText = (key) => quoted(source[key].piece);
const allowed = (query, key) => !data.causal || source[key].pos <= tokens[query].pos;
const openTo = (query) => keys.filter((key) => allowed(query, key));
const has = (name) => name in arrays;
const sum = (values) => values.reduce((whole, value) => whole + value, 0);
const signed = (value) => (Math.round(100 * value) > 0 ? "+" : "") + decimal(value);
const heading = document.title;
const headIndex = () => data.heads.findIndex(([layer, head]) => layer === state.layer && head === state.head);

const mark = (index) => (data.one_text && index === state.at ? "followed" : "");
// All of a head at the followed token, with the tokens that are not drawn.
const whole = (name, c) => sum(keys.map((key) => get(name, c, state.at, key))) + (data.n_undrawn ? get(`${name}_rest`, c, state.at) : 0);
const named = (letter, count) => Array.from({ length: count }, (_, index) => `${letter}${index}`);

// What the pictures draw, by the name of their data.
const live = {
  cells(c, kind) {
    const name = drawnAs(kind);
    const most = mostOf(c, name);
    return queries.flatMap((query) =>
      keys.map((key) => {
        const value = cellValue(c, query, key, name);
        const [size, closed] = [Math.abs(value) / most, !Number.isFinite(value)];
        return { query: label(query), key: source[key].label, allowed: allowed(query, key), grey: name !== "dot" && name !== "score", chosen: query === state.at, value, step: stepNames[name], size: closed ? 0 : size, positive: value >= 0 };
      }),
    );
  },
  points(c, kinds) {
    const rows = kinds.split(" ").flatMap((kind) =>
      (kind === "query" ? tokens : source).map((token, index) => {
        const [plane_x, plane_y] = get(`${kind[0]}_plane`, c, index);
        const weight = kind === "query" ? 2 : get("pattern", c, state.at, index);
        return { kind, label: token.label, name: "", chosen: index === state.at && (data.one_text || kind === "query"), weight, plane_x, plane_y, norm: get(`${kind[0]}_norm`, c, index) };
      }),
    );
    const reach = (axis) => Math.max(...rows.map((row) => row[axis])) - Math.min(...rows.map((row) => row[axis]));
    const [width, height] = [0.24 * reach("plane_x"), 0.1 * reach("plane_y")];
    const written = []; // a name is written unless it would cover another; the followed query goes first, then what it looks at most
    for (const row of [...rows].sort((a, b) => b.weight - a.weight)) {
      if (row.kind === "query" && !row.chosen) continue;
      if (written.some((other) => Math.abs(row.plane_x - other.plane_x) <= width && Math.abs(row.plane_y - other.plane_y) <= height)) continue;
      row.name = row.label;
      written.push(row);
    }
    return rows;
  },
  norms: () => queries.map((index) => ({ label: label(index), before: get("before", state.layer, index), after: get("after", state.layer, index) })),
  shares: (c) =>
    [[data.plain_root ? "divided by √d_head" : "divided", "pattern"], ["not divided", "steep"]].flatMap(([variant, name]) =>
      keys.map((key) => ({ key: source[key].label, variant, weight: get(name, c, state.at, key) })),
    ),
  values: (c) => openTo(state.at).map((key) => ({ label: source[key].label, weight: get("pattern", c, state.at, key), share: get("share", c, state.at, key) })),
  apart: () => (has("apart") ? [...arrays.apart.flat].map((apart, index) => ({ depth: index - 1, apart })) : []),
  logits: (c) => keys.map((key) => ({ label: source[key].label, logit: get("logit", c, state.at, key) })),
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
    if (state.at !== data.first.at || !has("second_cosine")) return rows;
    return [...rows, ...[...arrays.second_cosine.flat].map((value, index) => ({ depth: index - 1, what: "the same word in the other sentence", value }))];
  },
};

const drawTables = (c) => {
  if (has("after")) drawNorms();
  if (has("steep")) drawSoftmax(c);
  drawRow(c);
  drawVectors(c);
  drawValues(c);
  drawSums(c);
  drawNumbers();
  if (has("nearest")) drawLens();
  if (data.second_tokens) drawContrast(c);
  fill("agreement", data.steps.map((step, index) => row([step, number(get("agreement", state.layer, index), small(get("agreement", state.layer, index)))])));
};
const drawNorms = () =>
  fill("norms", queries.map((index) => row([label(index), ...["mean", "std", "before", "after"].map((name) => number(get(name, state.layer, index), decimal(get(name, state.layer, index), 3)))], mark(index))));
const divisor = () => `√${data.under_root}${data.by_layer ? ` ÷ ${state.layer + 1}` : ""}`;
const drawSoftmax = (c) => {
  const told = (kind, what) => number(get(`${kind}_${what}`, c, state.at), decimal(get(`${kind}_${what}`, c, state.at), 3));
  fill("softmax", [[`Q·K ÷ ${data.plain_root ? "√d_head" : divisor()}`, "pattern"], ["Q·K", "steep"]].map(([name, kind]) => row([name, ...["largest", "entropy", "response"].map((what) => told(kind, what))])));
};
// Attention from score to weight, one step after the other.
const STAGES = [
  ["Q·K", "dot"],
  ...(data.scaled ? [["÷ √d", "score"]] : []),
  ...(data.causal ? [["mask", "masked"]] : []),
  ["softmax", "pattern"],
];
let stage = STAGES.length - 1;
const stepNames = { dot: "Q·K", score: "score", masked: "masked score", pattern: "attention weight", open: "weight without the mask" };
const drawnAs = (kind) => (kind === "stage" ? STAGES[stage][1] : kind);
const isMasked = (name) => name === "masked" || name === "pattern";
const cellValue = (c, query, key, name) => {
  if (name !== "masked") return get(name, c, query, key);
  return allowed(query, key) ? get("score", c, query, key) : -Infinity;
};
// What fills a cell: a weight of 1, or the head's largest Q·K or score. Both have one scale, so that the division shrinks the dots.
const mostOf = (c, name) => {
  if (name === "pattern" || name === "open") return 1;
  return Math.max(1e-9, ...["dot", "score"].flatMap((kind) => queries.flatMap((query) => keys.map((key) => Math.abs(get(kind, c, query, key))))));
};
const drawRow = (c) => {
  const values = keys.map((key) => cellValue(c, state.at, key, STAGES[stage][1]));
  const isWeight = STAGES[stage][1] === "pattern";
  const finite = values.filter(Number.isFinite);
  const scores = keys.map((key) => get("dot", c, state.at, key));
  const range = isWeight ? [0, 1] : [Math.min(0, ...scores), Math.max(1e-9, ...scores)];
  const rows = keys.map((key, index) => {
    const value = values[index];
    const text = Number.isFinite(value) ? number(value, isWeight ? percent(value) : decimal(value)) : { text: "−∞", kind: "n" };
    const picture = { nodes: Number.isFinite(value) ? [bar(value, ...range)] : [] };
    return row([source[key].label, picture, text], mark(key));
  });
  const sums = isWeight ? [row(["sum", "", number(sum(finite), percent(whole("pattern", c)))], "sum")] : [];
  fill("row", [...rows, ...sums], ["key", "", isWeight ? "weight" : STAGES[stage][1] === "dot" ? "Q·K" : `Q·K ÷ ${divisor()}`]);
};
const setStage = (wanted) => {
  stage = wanted;
  for (const [index, input] of document.querySelectorAll('[name="stage"]').entries()) input.checked = index === stage;
  drawRow(headIndex());
  linesOf(headIndex());
  return refreshAll();
};
const STAGE_TIME = 900; // milliseconds that each step is shown
const playRow = () => {
  setStage(0);
  for (let step = 1; step < STAGES.length; step++) setTimeout(setStage, STAGE_TIME * step, step);
};
const makeStages = () => {
  const labels = STAGES.map(([name, array], index) => {
    const input = make("input", { type: "radio", name: "stage", id: `stage-${array}`, value: String(index) });
    input.checked = index === stage;
    input.addEventListener("change", () => setStage(index));
    return make("label", {}, [input, name]);
  });
  document.querySelector("[data-stages]").replaceChildren(...labels);
  document.querySelector("[data-play-row]").addEventListener("click", playRow);
};
const drawVectors = (c) => {
  const kinds = { query: ["q", tokens], key: ["k", source], value: ["v", source] };
  const vector = (letter, index) => [...numbers(get(letter, c, index)), { text: "…", kind: "n" }, number(get(`${letter}_norm`, c, index))];
  const header = [...Array.from({ length: arrays.q.shape.at(-1) }, (_, index) => String(index)), "", "length"];
  const weights = keys.map((key) => get("pattern", c, state.at, key));
  const followed = { query: state.at, key: data.one_text ? state.at : largest(weights), value: data.one_text ? state.at : largest(weights) };
  const named = Object.entries(kinds);
  fill("qkv", named.map(([name, [letter, side]]) => row([`${name} of ${side[followed[name]].label}`, ...vector(letter, followed[name])])), ["vector", ...header]);
  const everyone = named.flatMap(([name, [letter, side]]) => side.map((token, index) => row([`${name} of ${token.label}`, ...vector(letter, index)], mark(index))));
  fill("vectors", everyone, ["token", ...header]);
};
const drawValues = (c) => {
  const count = arrays.out.shape.at(-1);
  const open = openTo(state.at);
  const part = (key) => get("out", c, key).map((value) => value * get("pattern", c, state.at, key));
  const delta = get("delta", c, state.at);
  const outDigits = digitsFor(open.flatMap((key) => get("out", c, key)));
  const partDigits = digitsFor([...delta, ...open.flatMap(part)]);
  const sizeDigits = digitsFor([get("delta_norm", c, state.at)]);
  const more = (value) => (data.logit_word ? [number(value, signed(value))] : []);
  const blank = Array(count).fill("");
  const rows = open.map((key) => {
    const [weight, share] = ["pattern", "share"].map((name) => get(name, c, state.at, key));
    const size = weight * get("out_norm", c, key);
    const lengths = [number(size, decimal(size, sizeDigits)), number(share, percent(share))];
    return row([source[key].label, number(weight, decimal(weight, 3)), "×", ...numbers(get("out", c, key), outDigits), { text: "=", kind: "n" }, ...numbers(part(key), partDigits), ...lengths, ...(data.logit_word ? more(get("logit", c, state.at, key)) : [])], mark(key));
  });
  if (data.n_undrawn) {
    const [weight, share] = ["pattern_rest", "share_rest"].map((name) => get(name, c, state.at));
    const parts = delta.map((value, index) => value - sum(open.map((key) => part(key)[index])));
    rows.push(row([`${data.n_undrawn} other tokens`, number(weight, decimal(weight, 3)), "", ...blank, "", ...numbers(parts, partDigits), "", number(share, percent(share)), ...(data.logit_word ? more(get("logit_rest", c, state.at)) : [])]));
  }
  const [weight, size] = [whole("pattern", c), get("delta_norm", c, state.at)];
  const total = [...blank, { text: "ΔE =", kind: "n" }, ...numbers(delta, partDigits), number(size, decimal(size, sizeDigits)), { text: percent(1), kind: "n" }];
  rows.push(row(["sum", number(weight, decimal(weight, 3)), "", ...total, ...(data.logit_word ? more(whole("logit", c)) : [])], "sum"));
  fill("values", rows, ["source", "weight", "", ...named("V W_O ", count), "", ...named("w · V W_O ", count), "length", "of ΔE", ...(data.logit_word ? [`to ${quoted(data.logit_word)}`] : [])]);
};
// Why a token is attended to: its score as a sum over pairs of parts. The token is the one that was clicked, or the one with most
// attention apart from the first token and the one that looks.
const scoredKey = (c) => {
  const open = openTo(state.at);
  if (open.includes(state.key)) return state.key;
  const others = open.filter((key) => !data.one_text || (source[key].pos > 0 && key !== state.at));
  const candidates = others.length ? others : open;
  return candidates[largest(candidates.map((key) => get("pattern", c, state.at, key)))];
};
const bar = (value, least, most) => {
  const x = (at) => `${(100 * (at - least)) / (most - least)}%`;
  const [from, to] = [Math.min(0, value), Math.max(0, value)];
  const shape = svg("rect", { x: x(from), width: `${(100 * (to - from)) / (most - least)}%`, y: 2, height: 12, class: value < 0 ? "against" : "with" });
  return svg("svg", { height: 16, "aria-hidden": "true" }, [shape, svg("line", { x1: x(0), x2: x(0), y1: 0, y2: 16 })]);
};
const drawScore = (c) => {
  const box = document.querySelector("[data-score]");
  const key = scoredKey(c);
  box.querySelector("select").replaceChildren(...openTo(state.at).map((one) => new Option(written(source[one].piece), one, false, one === key)));
  const found = page.scores(state.layer, state.head, tokens[state.at].pos);
  const split = found?.scores[source[key].pos];
  box.querySelector("[data-score-shown]").hidden = !split;
  box.querySelector("[data-score-missing]").hidden = Boolean(split);
  if (!split) return;
  const name = (part) => found.parts[part].replace(" embedding", "");
  // A bias of positions belongs to both tokens.
  const parts = split.pairs.map(([a, b, value]) => [a === b && data.biases.includes(found.parts[a]) ? name(a) : `${name(a)} × ${name(b)}`, value]);
  const rows = [...parts, ["all other pairs", split.others]];
  const [least, most] = [Math.min(0, ...rows.map(([, value]) => value)), Math.max(1e-9, ...rows.map(([, value]) => value))];
  fill("score", [...rows.map(([name, value]) => row([name, { nodes: [bar(value, least, most)] }, number(value, signed(value))])), row(["sum", "", number(split.score, signed(split.score))], "sum")], ["pair of parts", "", "score"]);
  say("scored", tokenText(key));
  say("score-sum", signed(split.score));
};
const drawNumbers = () => {
  const rows = data.heads.flatMap(([layer, head], c) => {
    if (layer !== state.layer) return [];
    const weights = keys.map((key) => get("pattern", c, state.at, key));
    const best = largest(weights);
    const [size, moved, adds] = ["added", "moved", "adds"].map((name) => (has(name) ? get(name, layer, head, state.at) : 0));
    return [row([`L${layer}H${head}`, number(size, percent(size)), number(moved, percent(moved)), { text: source[best].label, kind: "n" }, number(weights[best], percent(weights[best])), ...(data.logit_word ? [number(adds, signed(adds))] : [])], head === state.head ? "followed" : "")];
  });
  fill("heads", rows, ["head", "adds", "pushes", "looks most at", "weight", ...(data.logit_word ? [`to ${quoted(data.logit_word)}`] : [])]);
};
const drawSums = (c) => {
  const { layer, at } = state;
  const terms = [
    [data.one_text ? "E, entering the block" : "E, after self-attention", get("e", layer, at), get("before", layer, at)],
    [`+ ΔE of L${layer}H${state.head}`, get("delta", c, at), get("delta_norm", c, at)],
    [`+ ΔE of the other ${sizes.heads - 1}`, get("others", c, at), get("others_norm", c, at)],
    ...(has("b_o") ? [["+ b_O", get("b_o", layer), arrays.b_o_norm.flat[layer]]] : []),
    [data.norm_after_write ? "= what the heads write" : "= their sum", get("total", layer, at), get("total_norm", layer, at)],
    ...(has("normed") ? [[`${data.norm} of it${data.norm_after_write ? ", added to E" : ""}`, get("normed", layer, at), get("normed_norm", layer, at)]] : []),
    ["E′, hooked", get("e_after", layer, at), get("e_after_norm", layer, at)],
  ];
  const inShort = ["E", "ΔE", `ΔE of the other ${sizes.heads - 1}`, ...(has("b_o") ? ["b_O"] : []), "", ...(has("normed") ? [data.norm] : []), "E′"];
  const rows = terms.map(([name, vector, size]) => row([name, ...numbers(vector, 3), { text: "…", kind: "n" }, number(size)], name.startsWith("=") ? "sum" : ""));
  fill("sums", rows, ["term", ...named("e", arrays.e.shape.at(-1)), "", "length"]);
  const most = Math.max(...terms.map(([, , size]) => size));
  const bars = terms.map(([, , size], index) => row([inShort[index], { nodes: [bar(size, 0, most)] }, number(size)]));
  fill("lengths", bars.filter((_, index) => inShort[index]), ["", "", "length"]);
};
const entering = (depth, sign = "") => (depth < sizes.layers ? `${sign}${depth}` : "end");
const drawLens = () => {
  const chips = (name, shown) =>
    data.words[name].map((of) => of[state.at]).map((words, depth) => ({
      nodes: words.flatMap((word, rank) => {
        const value = get(name, depth, state.at)[rank];
        const small = make("small", { textContent: `\u00a0${shown(value)}`, title: full(value) });
        return [make("span", { className: "t" }, [make("b", { textContent: word }), small]), " "];
      }),
    }));
  const left = has("lens") ? chips("lens", percent) : [];
  fill("lens", chips("nearest", decimal).map((cell, depth) => row([entering(depth), ...left.slice(depth, depth + 1), cell])));
};

const SHOWN = 0.05; // weights below it are in the tables only
const mixed = (c, open, weights) => {
  const order = open.map((_, index) => index).sort((a, b) => weights[b] - weights[a]);
  const shown = order.slice(0, 6).filter((index) => weights[index] >= SHOWN);
  const terms = shown.sort((a, b) => a - b).map((index) => `${decimal(weights[index])} V(${tokenText(open[index])})`);
  if (!terms.length) return `(Σ weight × V) W_O, no weight above ${SHOWN}`;
  return `(${terms.join(" + ")}${shown.length < open.length || data.n_undrawn ? " + …" : ""}) W_O`;
};
// A first token with much of a head's attention and little of its ΔE; nothing where it is not one.
const SINK = 0.3;
const sink = ([first], where = "here") => {
  const is = data.one_text && first.pos === 0 && first.weight >= SINK && Math.abs(first.share) < first.weight / 2;
  return is ? ` ${quoted(first.piece)} is a sink: ${where} it gets ${percent(first.weight)} of the attention and gives ${percent(first.share)} of ΔE.` : "";
};
const read = (c, key) => ({ ...source[key], weight: get("pattern", c, state.at, key), share: get("share", c, state.at, key) });
// Whether the word has the same vector in both sentences at every depth: rounding of float32 sums does not count.
const SAME_VECTOR = 1e-5; // of their mean length
const alike = () => Boolean(data.second_tokens) && arrays.apart.flat.every((value) => value < SAME_VECTOR);
// Where the word is read, and the way that a swapped head of a layer moves it: to the other sentence's, or along the lexicon's axis.
const where = (depth) => (depth < sizes.layers ? `entering layer ${depth}` : "after the last layer");
const ofLexicon = () => data.axis?.kind === "lexicon";
const wayOf = (layer) => {
  if (!ofLexicon()) return `to its vector in the other sentence, read ${where(sizes.layers)}`;
  const { senses, depth } = data.axis;
  return `from ${quoted(senses[0])} to ${quoted(senses[1])}, read ${where(layer < depth ? depth : sizes.layers)}`;
};
// How far something moves: 0 % would say that it does not.
const isNoPercent = (value) => percent(value) === percent(0);
const distance = (value) => (isNoPercent(value) ? "less than half a percent" : percent(value));
// Both sentences side by side, at the word that they share.
const drawContrast = (c) => {
  const { at } = data.first;
  const sides = {
    here: openTo(at).map((key) => ({ ...source[key], weight: get("pattern", c, at, key), share: get("share", c, at, key) })),
    there: data.second_tokens.map((one, key) => ({ pos: key, ...one, weight: get("second_pattern", c, key), share: get("second_share", c, key) })),
  };
  const told = ({ weight }) => ({ ...number(weight, percent(weight)), kind: `n ${shade(weight)}` });
  const shown = (one) => make("span", { className: `chip ${shade(one.weight)}` }, [make("span", { textContent: written(one.piece) }), make("small", { textContent: one.weight >= SHOWN ? percent(one.weight) : "" })]);
  for (const [side, parts] of Object.entries(sides)) {
    fill(`contrast-${side}`, parts.map((one) => row([one.label, told(one), number(one.share, percent(one.share))])));
    document.querySelector(`[data-reading="${side}"]`).replaceChildren(...parts.map(shown));
  }
  const head = `L${state.layer}H${state.head}`;
  say("contrast-head", head);
  const size = has("swap") ? distance(get("swap", state.layer, state.head)) : "";
  const said = alike() ? CONTRAST.same() : has("swap") && !isFirst() ? CONTRAST.swap({ head, size, way: wayOf(state.layer) }) : "";
  say("contrast", `${said}${sink(sides.here) || sink(sides.there, "in the other sentence")}`);
};
const CONTRAST = {
  same: () => `${quoted(data.word)} is the same vector in both sentences, after every layer.`,
  swap: ({ head, size, way }) => `Swapping ${head} alone moves ${quoted(data.word)} ${size} of the way ${way}.`,
};
const addsUp = (c) => {
  const parts = keys.map((key) => get("logit", c, state.at, key));
  const best = largest(parts.map(Math.abs));
  const everyone = sum(Array.from({ length: sizes.layers * sizes.heads }, (_, index) => get("adds", Math.floor(index / sizes.heads), index % sizes.heads, state.at)));
  return `This head alone adds ${signed(whole("logit", c))}, ${signed(parts[best])} of it from ${tokenText(best)}; all heads of cross-attention add ${signed(everyone)}.`;
};
// What the mask takes from the token that looks; the last one has nothing after it.
const hidden = (c) => {
  if (tokens[state.at].pos === sizes.tokens - 1) return `${token()} is the last token.`;
  const later = queries.map((query) => get("later", c, query));
  const [own, most] = [later[state.at], largest(later)];
  if (isNoPercent(own)) return `Without the mask, ${token()} would give less than half a percent of its attention to tokens that come after it; ${quoted(tokens[most].piece)} would give the most: ${percent(later[most])}.`;
  return `Without the mask, ${token()} would give ${percent(own)} of its attention to tokens that come after it.`;
};
const answer = (c, open) => {
  if (isFirst()) return data.answer;
  const shares = open.map((key) => get("share", c, state.at, key));
  const best = open[largest(shares.map(Math.abs))];
  return `L${state.layer}H${state.head} adds ${percent(added())} of the vector's length to ${token()}, mostly from ${tokenText(best)}.`;
};
// The length of ΔE, as a fraction of the vector's length after the layer's attention.
const added = () => get("added", state.layer, state.head, state.at);
const isFirst = () => ["at", "layer", "head"].every((part) => state[part] === data.first[part]);
const token = () => quoted(data.one_text && state.at === data.first.at ? data.word : tokens[state.at].piece);
const drawSlots = (c) => {
  const { layer, head, at } = state;
  const open = openTo(at);
  const dots = keys.map((key) => get("dot", c, at, key));
  const weights = open.map((key) => get("pattern", c, at, key));
  const best = largest(dots);
  const most = open.map((_, index) => index).sort((a, b) => weights[b] - weights[a]).filter((index) => weights[index] >= SHOWN).slice(0, 3);
  const step = (name) => small(get("agreement", layer, data.steps.findIndex((one) => one.startsWith(name))));
  const said = {
    token: token(),
    answer: answer(c, open),
    layer: String(layer),
    line: { rows: "row", columns: "column", lines: "bundle of lines" }[state.queries],
    heading: at === data.first.at ? heading : data.one_text ? `What happens to ${token()}?` : `What does the translation read at ${token()}?`,
    following: `L${layer}H${head} at ${token()}, token ${tokens[at].pos}`,
    before: length(get("before", layer, at)),
    explained: percent(get("explained", c, 0)),
    "explained-values": percent(get("explained", c, 1)),
    "best-dot": `${tokenText(best)}, ${decimal(dots[best])}${allowed(at, best) ? "" : " (later, so the mask hides it)"}`,
    largest: percent(get("pattern_largest", c, at)),
    "best-weight": most.map((index, rank) => `${percent(weights[index])} ${rank ? "" : "of its attention "}to ${tokenText(open[index])}`).join(", ") || "no token as much as 5 % of its attention",
    sink: at > 0 ? sink(open.map((key) => read(c, key))) : "",
    "weight-sum": decimal(whole("pattern", c), 3),
    "delta-length": length(get("delta_norm", c, at)),
    added: percent(added()),
    mix: mixed(c, open, weights),
    missed: small(get("missed", layer, at)),
    concat: step("Concat"),
    summed: step("Σ ΔE"),
  };
  if (has("after")) said.after = length(get("after", layer, at));
  if (has("steep")) said["steep-largest"] = percent(get("steep_largest", c, at));
  if (has("later")) said.later = hidden(c);
  if (data.logit_word) said.adds = addsUp(c);
  for (const [name, text] of Object.entries(said)) say(name, text);
  document.title = said.heading;
};

// The heads of the layer as small grids; one that is clicked is followed.
const svg = (name, attributes, children = []) => {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
};
const thumbnail = (c) => {
  const [width, height] = [keys.length, queries.length];
  const shapes = [svg("rect", { class: "ground", width, height }), svg("rect", { class: "row", y: state.at, width, height: 1 })];
  for (const query of queries)
    for (const key of openTo(query)) {
      const weight = get("pattern", c, query, key);
      if (weight > 0.005) shapes.push(svg("circle", { class: "dot", cx: key + 0.5, cy: query + 0.5, r: (0.48 * Math.sqrt(weight)).toFixed(3) }));
    }
  return svg("svg", { viewBox: `0 0 ${width} ${height}`, "aria-hidden": "true" }, shapes);
};
const drawHeads = () => {
  const made = [];
  const most = Math.max(1e-9, ...Array.from({ length: sizes.heads }, (_, head) => get("added", state.layer, head, state.at)));
  data.heads.forEach(([layer, head], c) => {
    if (layer !== state.layer) return;
    const name = `L${layer}H${head}`;
    const size = get("added", layer, head, state.at);
    const told = `${name} adds ${percent(size)} of the vector's length`;
    const pressed = String(head === state.head);
    const button = make("button", { type: "button", "aria-pressed": pressed, "aria-label": told, title: told, "data-head": head }, [name, thumbnail(c), bar(size, 0, most)]);
    button.addEventListener("click", () => {
      follow(layer, head);
      document.querySelector(`[data-heads] [data-head="${head}"]`).focus({ preventScroll: true });
    });
    made.push(button);
  });
  document.querySelector("[data-heads]").replaceChildren(...made);
};
const FEW = 64; // cells of a map or a grid that has a number in each; the others have a scale
const inCell = (value) => (Math.abs(value) >= 0.005 ? decimal(100 * value, 0) : "");
// Layers down, tokens across; `rows`: [name, layer, value of a column], a cell that is chosen is opened.
const drawGrid = (name, columns, rows, limit, open) => {
  const head = document.querySelector(`[data-rows="${name}"]`).parentElement.tHead.rows[0];
  head.replaceChildren(make("td"), ...columns.map((textContent) => make("th", { scope: "col", textContent })));
  const lines = rows.map(([title, layer, value]) => {
    const cells = columns.map((column, index) => {
      const [amount, token] = [value(index), quoted(column.split("\n")[0])];
      const className = tinted(Math.max(-1, Math.min(1, amount / limit))).replace("cell ", "");
      const button = make("button", { type: "button", className, title: `${full(100 * amount)} %`, textContent: rows.length * columns.length <= FEW ? inCell(amount) : "" });
      button.setAttribute("aria-label", `${title}, ${token}: ${percent(amount)}`);
      button.disabled = !page.reaches(layer, 0);
      button.addEventListener("click", () => open(layer, index));
      return make("td", {}, [button]);
    });
    return make("tr", {}, [make("th", { scope: "row", textContent: title }), ...cells]);
  });
  fill(name, lines);
};
const layered = (value) => Array.from({ length: sizes.layers }, (_, layer) => [`L${layer}`, layer, (index) => value(layer, index)]);
const drawTrace = () => {
  const component = Number(document.querySelector('[name="component"]:checked').value);
  const columns = data.trace_columns.map(({ pieces: [one, other] }) => (one === other ? one.trim() : `${one.trim()}\n${other.trim()}`));
  const rows = layered((layer, index) => get("trace", component, layer, index)).slice(0, arrays.trace.shape[1]);
  drawGrid("trace", columns, rows, 1, (layer, index) => page.open(layer, data.trace_columns[index].pos));
};
for (const input of document.querySelectorAll('[name="component"]')) input.addEventListener("change", () => has("trace") && drawTrace());
const drawAll = (c) => {
  drawSlots(c);
  drawTables(c);
  drawHeads();
  drawScore(c);
  if (has("trace")) drawTrace();
};

{% include "follow.js" %}
{% block page %}{% endblock %}
start();
