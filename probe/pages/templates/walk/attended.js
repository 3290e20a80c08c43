{% include "carried.js" %}
const { sizes, tokens, source } = data;
const label = (place) => tokens[place].label;
const [places, keys] = [tokens, source].map((list) => list.map((_, place) => place));
const state = { ...data.first, queries: "rows" };
const carried = () => data.heads.findIndex(([layer, head]) => layer === state.layer && head === state.head);
const fromEach = (name, c) => keys.map((key) => get(name, c, state.at, key));
const sum = (values) => values.reduce((whole, value) => whole + value, 0);
const signed = (value) => (Math.round(100 * value) > 0 ? "+" : "") + decimal(value);
const quoted = (text) => `“${text.trim() || JSON.stringify(text)}”`;
// All of a head at the followed token, with the source tokens that are not drawn.
const whole = (name, c) => sum(fromEach(name, c)) + get(`${name}_rest`, c, state.at);

// What the pictures draw, by the name of their data.
const live = {
  cells: (c) =>
    places.flatMap((query) =>
      keys.map((key) => {
        const pattern = get("pattern", c, query, key);
        const allowed = !data.causal || key <= query;
        return { query: label(query), key: source[key].label, allowed, chosen: query === state.at, pattern, size: pattern, positive: true };
      }),
    ),
  values: (c) => keys.map((key) => ({ label: source[key].label, weight: get("pattern", c, state.at, key), share: get("share", c, state.at, key) })),
  logits: (c) => keys.map((key) => ({ label: source[key].label, logit: get("logit", c, state.at, key) })),
};

const drawSlots = (c) => {
  const [weights, shares] = [fromEach("pattern", c), fromEach("share", c)];
  const most = [...keys].sort((a, b) => weights[b] - weights[a]).filter((key) => weights[key] >= 0.05).slice(0, 3);
  const best = largest(shares);
  const said = {
    token: quoted(tokens[state.at].piece),
    layer: String(state.layer),
    line: state.queries === "rows" ? "row" : "column",
    following: `L${state.layer}H${state.head} at ${label(state.at)}`,
    "best-weight": most.map((key, rank) => `${percent(weights[key])} ${rank ? "" : "of its attention "}to ${quoted(source[key].piece)}`).join(", ") || "no token as much as 5 % of its attention",
    "delta-length": length(get("length", state.layer, state.head, state.at)),
    "best-share": `${percent(shares[best])} of it comes from ${quoted(source[best].piece)}`,
    "map-limit": percent(mapLimit()),
  };
  if (data.words.following) said.next = `${quoted(data.words.following[state.at][0])} first, with ${percent(get("following", state.at)[0])}`;
  if (data.asked) said.adds = addsUp(c);
  for (const [name, text] of Object.entries(said)) say(name, text);
};
const addsUp = (c) => {
  const parts = fromEach("logit", c);
  const best = largest(parts.map(Math.abs));
  const everyone = sum(Array.from({ length: sizes.layers * sizes.heads }, (_, place) => get("adds", Math.floor(place / sizes.heads), place % sizes.heads, state.at)));
  return `By itself this head adds ${signed(whole("logit", c))} to its logit, ${signed(parts[best])} of that from ${quoted(source[best].piece)}. All heads of cross-attention together add ${signed(everyone)} here.`;
};

const drawTables = (c) => {
  const long = keys.map((key) => get("part_length", c, state.at, key));
  const digits = digitsFor([...long, get("length", state.layer, state.head, state.at)]);
  const more = (value) => (data.asked ? [number(value, signed(value))] : []);
  const rows = keys.map((key) => {
    const [weight, size, share] = [get("pattern", c, state.at, key), get("value_length", c, key), get("share", c, state.at, key)];
    return row([source[key].label, number(weight, decimal(weight, 3)), number(size), number(long[key], decimal(long[key], digits)), number(share, percent(share)), ...(data.asked ? more(get("logit", c, state.at, key)) : [])]);
  });
  if (data.beyond) {
    const [weight, share] = ["pattern_rest", "share_rest"].map((name) => get(name, c, state.at));
    rows.push(row([`${data.beyond} other tokens`, number(weight, decimal(weight, 3)), "", "", number(share, percent(share)), ...(data.asked ? more(get("logit_rest", c, state.at)) : [])]));
  }
  const size = get("length", state.layer, state.head, state.at);
  const total = [number(whole("pattern", c), decimal(whole("pattern", c), 3)), "", number(size, decimal(size, digits)), number(whole("share", c), percent(whole("share", c)))];
  rows.push(row(["together, ΔE", ...total, ...(data.asked ? more(whole("logit", c)) : [])], "sum"));
  fill("values", rows, ["source", "weight", "value", "part", "of ΔE", ...(data.asked ? [`to “${data.asked}”`] : [])]);
  drawHeads();
  if (data.words.following) drawNext(data.words.following[state.at], get("following", state.at));
};
const drawNext = (words, probable) => fill("next", words.map((word, rank) => row([word.trim() || JSON.stringify(word), number(probable[rank], percent(probable[rank]))])));
const drawHeads = () => {
  const rows = data.heads.flatMap(([layer, head], c) => {
    if (layer !== state.layer) return [];
    const weights = fromEach("pattern", c);
    const best = largest(weights);
    const [size, moved] = ["length", "moved"].map((name) => get(name, layer, head, state.at));
    const adds = data.asked ? [number(get("adds", layer, head, state.at), signed(get("adds", layer, head, state.at)))] : [];
    return [row([`L${layer}H${head}`, number(size), number(moved, percent(moved)), { text: source[best].label, kind: "n" }, number(weights[best], percent(weights[best])), ...adds], head === state.head ? "followed" : "")];
  });
  fill("heads", rows, ["head", "ΔE", "of vector", "looks most at", "weight", ...(data.asked ? [`to “${data.asked}”`] : [])]);
};
const drawAll = (c) => {
  drawSlots(c);
  drawTables(c);
};

{% include "follow.js" %}
