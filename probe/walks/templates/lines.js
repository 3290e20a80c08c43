// Attention as lines from the token that looks (left) to what it looks at (right): the same numbers as the grids.
const STEP = 28; // pixels from a token to the next
const drawLines = (box, c) => {
  const kind = drawnAs(box.dataset.lines);
  const most = mostOf(c, kind);
  const isWeight = most === 1;
  const pairs = queries.flatMap((query) => keys.filter((key) => !isMasked(kind) || allowed(query, key)).map((key) => [query, key, cellValue(c, query, key, kind)]));
  const lines = [];
  const middle = (query) => STEP * (query + 0.5);
  for (const [query, key, value] of [...pairs].sort((a, b) => (a[0] === state.at) - (b[0] === state.at))) {
    const strength = Math.abs(value) / most;
    if (strength < 0.005) continue;
    const ends = { x1: 0, x2: "100%", y1: middle(query), y2: middle(key) };
    const line = svg("line", { ...ends, "stroke-width": 1 + 5 * strength, "stroke-opacity": (query === state.at ? 0.9 : 0.2) * Math.max(strength, 0.15), class: value < 0 ? "against" : "with" });
    const told = svg("title", {});
    told.textContent = `${label(query)} → ${source[key].label}: ${isWeight ? percent(value) : full(value)}`;
    line.append(told);
    line.addEventListener("click", () => pick({ query: label(query), key: source[key].label }));
    lines.push(line);
  }
  const looks = queries.map((query) => {
    const button = make("button", { type: "button", className: query === state.at ? "followed" : "", textContent: label(query) });
    button.setAttribute("aria-pressed", query === state.at);
    button.addEventListener("click", () => show({ at: query }).then(() => box.querySelectorAll("button")[query].focus()));
    return button;
  });
  const seen = keys.map((key) => make("span", { className: isWeight ? shade(get(kind, c, state.at, key)) : "", textContent: source[key].label }));
  box.replaceChildren(make("div", {}, looks), svg("svg", { height: STEP * Math.max(queries.length, keys.length), "aria-hidden": "true" }, lines), make("div", {}, seen));
};
const linesOf = (c) => document.querySelectorAll("[data-lines]:not([hidden])").forEach((box) => drawLines(box, c));
