{% extends "walk.js" %}
{% block page %}
// The explorer: sentences are typed, heads swapped. A question is asked of the model, its answer comes as messages.
{% include "answers.js" %}
const ask = document.querySelector(".ask");
const put = (within, hidden) => (document.querySelector(within).hidden = hidden);
const write = (within, text) => {
  const box = document.querySelector(within);
  [box.textContent, box.hidden] = [text ?? "", !text];
};
const KINDS = { other: "the other sentence's", mean: "its mean", off: "nothing" };
let [swaps, turns, along, unchanged, outcome, chosen] = [[], 0, null, null, null, null];
// The last request for each kind of answer. A newer one aborts it, and a new turn aborts all of them.
const requests = new Map();
// Why no head can move the word; empty where one may.
let noWay = "";
// The axis that was chosen, kept where it cannot be had; the field shows the one that the answer was measured along.
let axisWanted = "sentences";
// Whether the sentences were asked about and their answer is not all there yet.
let unread = false;
// Swaps that are carried out: without a second sentence a head cannot get what it writes there, and waits.
const applied = () => swaps.filter(([, , kind]) => kind !== "other" || data.second_tokens);
// An answer that is no longer that of what was asked last.
const fade = (old) => document.querySelectorAll("main, .strip, .stage, header .answer, .ask .caution").forEach((part) => part.classList.toggle("stale", old));
const settled = () => fade(!document.querySelector("[data-trouble]").hidden);

// The stages of the model, by the keys of its messages.
const DOING = {
  read: "reading",
  axis: "fitting the axis",
  decompose: "adding up what writes it",
  cache: "keeping both runs",
  swap: "swapping",
  write: "writing",
  score: "splitting the score",
  effects: "fitting the axis and swapping every head",
  trace: "tracing",
  words: "asking which tokens are words",
  cues: "trying other words",
  save: "swapping every head and writing the page",
};
// The first stage of a question, where its name differs.
const FIRST = { sentence: "read", along: "axis", trace_heads: "trace", cues: "axis" };
const doing = (message) => {
  document.querySelector("[data-status]").textContent = message?.doing ? `${DOING[message.doing]} …` : "";
  const bar = ask.querySelector("progress");
  [bar.hidden, bar.value] = [!(message?.progress < 1), message?.progress ?? 0];
};
// The result, or null if the request was aborted; what cannot be answered is thrown.
const answered = async (what, more = {}, onMessage = () => {}) => {
  requests.get(what)?.abort();
  const request = new AbortController();
  requests.set(what, request);
  doing({ doing: FIRST[what] ?? what, progress: 0 });
  try {
    for await (const message of messagesOf({ ...asked(), ...more, what }, request.signal)) {
      if (request.signal.aborted) return null;
      if (message.absent) return doing(), null;
      if ("error" in message) throw new Error(message.error);
      if ("result" in message) return doing(), message.result;
      doing(message);
      onMessage(message);
    }
  } catch (error) {
    if (request.signal.aborted) return null;
    throw error;
  }
  throw new Error(STOPPED);
};
const asked = () => {
  const { text, other, word } = ask.elements;
  return { text: text.value, other: other.value || null, word: word.value || null, axis: axisWanted, follow: data && state.layer !== undefined ? [state.layer, state.head] : null, swaps: applied() };
};
const hold = (name, packed) => (arrays[name] = unpack(packed));

// What asks for a new answer: until it is there, the page shows that of another question.
const asking = async (work) => {
  const turn = ++turns;
  for (const request of requests.values()) request.abort();
  fade(true);
  try {
    await work();
  } catch (error) {
    if (turn === turns) write("[data-trouble]", error.message);
  }
  if (turn !== turns) return;
  doing();
  settled();
  document.documentElement.dataset.answered = turns;
};
const typed = ({ follow = chosen, at = null } = {}) => {
  chosen = follow;
  return asking(() => readSentence(follow, at));
};
// A sentence: its block, then the position of the word, then the swaps.
const readSentence = async (follow, at) => {
  unread = true;
  const result = await answered("sentence", { follow });
  if (!result) return;
  if (trying) trying.open = false;
  write("[data-trouble]", null);
  const { direct } = arrays;
  take({ ...result.block, axis: result.axis, text: result.text });
  if (direct) arrays.direct = direct;
  if (follow) Object.assign(state, { layer: follow[0], head: follow[1] });
  form.querySelector(".chips").innerHTML = result.choices;
  const index = tokens.findIndex((token) => token.pos === at);
  if (index >= 0) state.at = index;
  write("[data-caution]", result.caution);
  write("[data-places]", result.places);
  say("guessed", result.guessed ?? "");
  put("[data-guessed]", !result.guessed);
  put("[data-contrast]", !data.second_tokens);
  put("[data-traced]", true);
  const { axis } = ask.elements;
  [axis.value, axis.disabled] = [data.axis.kind, !(result.lexicon && data.second_tokens)];
  say("kind", KINDS[result.swapped_by]);
  for (const input of form.elements.swap) {
    const carried = !recorded || ["own", result.swapped_by].includes(input.value);
    input.disabled = !carried || (input.value === "other" && !data.second_tokens);
  }
  [unchanged, outcome] = [result.next, null];
  say("report", `probe report ${data.word}${result.lexicon ? "" : " --sentences FILE"}`);
  say("word", data.word);
  await show({});
  await moving();
};
const moving = async () => {
  [along, noWay] = [null, ""];
  try {
    along = await answered("along");
    if (!along) return;
    for (const [name, array] of Object.entries(along.arrays)) hold(name, array);
  } catch (error) {
    doing();
    for (const name of ["direct", "direct_source"]) delete arrays[name];
    noWay = error.message;
  }
  drawMoving();
  unread = false;
  await swapped();
  await askTrace();
};
const swapped = async () => {
  drawSwaps();
  if (applied().length) {
    const result = await answered("swap");
    if (!result) return;
    outcome = result;
    write("[data-trouble]", null);
  } else outcome = null;
  drawOutcome();
  settled();
  if (!document.querySelector(".written")) return;
  // Without the space before the first word, which would indent the first line only.
  const showWritten = (texts, blank = "…") => (say("own", (texts?.own || blank).trimStart()), say("swapped-text", (texts?.swapped || blank).trimStart()));
  put("[data-with-swap]", !applied().length);
  showWritten();
  const whole = await answered("write", {}, ({ written }) => showWritten(written));
  if (!whole) return;
  showWritten(whole, "(nothing: the model ends its text here)");
  if (applied().length && whole.swapped === undefined) say("swapped-text", "(not in this saved page: run probe explore)");
};

// Pictures of the answers.
const drawMoving = () => {
  maps.filter(({ name }) => has(name)).forEach(drawMap);
  page.shown();
  drawSources();
  for (const { box, name } of maps) box.hidden = !has(name);
  for (const part of document.querySelectorAll("[data-way]")) part.hidden = !along;
  // Without an axis nothing is halfway.
  if (!along) document.querySelector('[name="swap"][value="mean"]').disabled = true;
  say("mean-of", !along ? "" : ofLexicon() ? `, halfway between its means in the two senses (${along.n_sentences} sentences of the lexicon)` : ", halfway between the two sentences");
  if (!along) return drawOutcome();
  for (const [index, side] of ["a", "b"].entries()) {
    say(`sense-${side}`, along.senses[index]);
    say(`cue-${side}`, along.senses[index]);
  }
  const first = along.depth;
  say("behind", first < sizes.layers ? ` The word is read ${where(first)}, as in a report. A head of layer ${first} or later is read ${where(sizes.layers)}.` : "");
  say("sum", `All parts together are ${percent(along.sum)}: the way ${data.second_tokens ? "from this sentence's word to the other's" : "to the middle between both meanings"}.`);
  const rows = along.leading.map(({ name, source, moved }) => row([name, source === null ? "" : quoted(source), number(moved, percent(moved))]));
  fill("leading", rows);
  drawOutcome();
};
// What was done to the heads: “L0H0 and L1H2 swapped, L3H2 set to nothing”.
const DONE = { other: "swapped", mean: "set to their mean", off: "set to nothing" };
const allSwapped = () => applied().every(([, , kind]) => kind === "other");
const headName = ([layer, head]) => `L${layer}H${head}`;
const done = () =>
  Object.entries(DONE)
    .map(([kind, verb]) => [applied().filter((swap) => swap[2] === kind).map(headName), verb])
    .filter(([heads]) => heads.length)
    .map(([heads, verb]) => `${heads.join(", ")} ${heads.length > 1 ? verb : verb.replace("their", "its")}`)
    .join(" and ");
// The headline, from fixed sentences.
const HEADLINES = {
  nothing: () => `No single head moves “${data.word}” from ${senses()}. Click one to swap it.`,
  first: ({ head, size }) => `${head} alone moves “${data.word}” ${percent(size)} of the way from ${senses()}.`,
  unmoved: () => `With ${done()}, “${data.word}” moves less than half a percent of the way from ${senses()}.`,
  moved: ({ size }) => `With ${done()}, “${data.word}” moves ${percent(size)} of the way from ${senses()}.`,
  // Three digits, as the bars have them: 0 % would say that it is never chosen.
  next: ({ token, from, to }) => ` ${quoted(token)} goes from ${share(from)} to ${share(to)}.`,
  swapped: () => `${done()}.`,
  waiting: ({ heads }) => ` Waiting for a second sentence: ${heads}.`,
};
const senses = () => along.senses.map(quoted).join(" to ");
const headline = () => {
  const coordinates = outcome?.coordinates;
  if (!along) return [noWay, applied().length ? HEADLINES.swapped() : ""].filter(Boolean).join(" ");
  if (!applied().length) {
    const values = has("swap") ? [...arrays.swap.flat] : [];
    const best = largest(values);
    if (!(values[best] > 0) || isNoPercent(values[best])) return HEADLINES.nothing();
    return HEADLINES.first({ head: headName([Math.floor(best / sizes.heads), best % sizes.heads]), size: values[best] });
  }
  if (!coordinates) return HEADLINES.swapped();
  const size = coordinates[1] - coordinates[0];
  return isNoPercent(size) ? HEADLINES.unmoved() : HEADLINES.moved({ size });
};
// The first of the listed tokens changed most, and is a content word where one is among those.
const nextChange = () => {
  if (!outcome?.next) return "";
  const [from, to] = outcome.next.probabilities.map(([first]) => first);
  return share(from) === share(to) ? "" : HEADLINES.next({ token: outcome.next.pieces[0], from, to });
};
const drawOutcome = () => {
  const [next, coordinates] = [outcome?.next ?? unchanged, outcome?.coordinates];
  const change = allSwapped() ? "swap" : "change";
  say("changed", allSwapped() ? "swapped" : "changed");
  put("[data-unchanged]", !applied().length);
  say("as-it-is", `${data.second_tokens ? "your sentences as they are" : "your sentence as it is"}, without the ${change}`);
  stop();
  form.elements.depth.value = readAt();
  drawWay();
  if (along) {
    const late = readAt() > along.depth ? `, because a head of layer ${along.depth} or later is ${allSwapped() ? "swapped" : "changed"}` : "";
    const from = ofLexicon() ? `${along.n_sentences} sentences of the lexicon` : "these two sentences";
    const gap = ofLexicon() ? "" : " The gap is between these two sentences, whether or not the word means the same in them.";
    say("axis", `Line: the axis of ${from}, from ${quoted(along.senses[0])} (0\u202f%) to ${quoted(along.senses[1])} (100\u202f%). The word is read ${where(readAt())}${late}.${gap}`);
  }
  const waiting = swaps.filter((swap) => !applied().includes(swap)).map(headName);
  const told = headline() + nextChange() + (waiting.length ? HEADLINES.waiting({ heads: waiting.join(", ") }) : "");
  drawNext(next ?? { pieces: [], probabilities: [[]] });
  say("outcome", told);
  const place = data.causal ? "after the sentence" : "at the word";
  say("next", !next ? "The checkpoint has no language-model head, so no next word is shown." : next.probabilities.length > 1 ? `Next words: the tokens ${place} whose probability changes most; a content word is first, if there is one. Grey: as it is. Violet: with the ${change}.` : `Next words: the likeliest tokens ${place}, softmax over all tokens.`);
};
const BAR = 10; // pixels of a bar's height
const drawNext = ({ pieces, probabilities }) => {
  const most = Math.max(1e-9, ...probabilities.flat());
  const rows = pieces.map((piece, index) => {
    const values = probabilities.map((side) => side[index]);
    const bars = values.map((value, side) => svg("rect", { class: side ? "after" : "before", y: (BAR + 1) * side, height: BAR, width: `${(100 * value) / most}%` }));
    const picture = svg("svg", { height: (BAR + 1) * values.length, "aria-hidden": "true" }, bars);
    return row([quoted(piece), { nodes: [picture] }, ...values.map((value) => number(value, share(value)))]);
  });
  const names = probabilities.length > 1 ? ["as it is", allSwapped() ? "swapped" : "changed"] : ["probability"];
  fill("next", rows, ["token", "", ...names]);
};
const share = (value) => (value >= 0.0995 ? percent(value) : value < 0.0005 ? "< 0.1\u202f%" : `${decimal(100 * value, 1)}\u202f%`);

// The line from one meaning to the other: the word in both sentences, and where a swap puts it; in the layer of the slider.
const readAt = () => (outcome?.coordinates ? outcome.depth : along?.depth) ?? sizes.layers;
const between = (values, depth) => {
  const low = Math.min(Math.floor(depth), sizes.layers);
  const high = Math.min(low + 1, sizes.layers);
  return values[low] + (values[high] - values[low]) * (depth - low);
};
const isParting = () => Boolean(along) && !ofLexicon();
// How far apart the two vectors of the word are in a layer, by their mean length there: the scale of that layer.
const apartAt = (depth) => between(arrays.apart.flat.subarray(1), depth);
// Both sentences' word and the swapped one, from 0 to 1 after the last layer, and how far the swapped one has gone from the first to the second.
const placesAt = (depth) => {
  if (!isParting()) {
    const [own, moved] = outcome?.coordinates ?? [along.coordinates.first];
    return { first: own, second: (outcome?.coordinates ? outcome : along.coordinates).second, moved, way: moved };
  }
  const half = apartAt(depth) / apartAt(sizes.layers) / 2;
  const way = outcome?.way && between(outcome.way, depth);
  return { first: 0.5 - half, second: 0.5 + half, moved: outcome?.way && 0.5 - half + 2 * half * way, way };
};
const drawWay = (depth = Number(form.elements.depth.value)) => {
  for (const part of document.querySelectorAll("[data-parting]")) part.hidden = !isParting();
  document.querySelector("[data-axis]").replaceChildren(...(along ? [line(depth)] : []));
  say("depth", depth < sizes.layers ? `entering layer ${Math.floor(depth)} of ${sizes.layers}` : `after the last of ${sizes.layers} layers`);
  if (isParting()) say("apart", percent(apartAt(depth)));
};
const isPlace = (value) => typeof value === "number";
const line = (depth) => {
  const { first, second, moved, way } = placesAt(depth);
  // The scale holds every depth, so that it stays as it is while the dots move.
  const everywhere = isParting() ? Array.from({ length: sizes.layers + 1 }, (_, layer) => placesAt(layer)) : [placesAt(depth)];
  const all = [0, 1, ...everywhere.flatMap((one) => [one.first, one.second, one.moved])].filter(isPlace);
  const [low, high] = [Math.min(...all), Math.max(...all)];
  const x = (value) => `${(100 * (value - low)) / (high - low)}%`;
  // Text at an end begins or ends there.
  const anchor = (value) => (value - low < 0.15 * (high - low) ? "start" : high - value < 0.15 * (high - low) ? "end" : "middle");
  const text = (value, y, words, kind = "") => svg("text", { x: x(value), y, "text-anchor": anchor(value), class: kind }, [words]);
  const drawn = [svg("line", { x1: "0%", x2: "100%", y1: 36, y2: 36 })];
  for (const [value, name] of along.senses.entries()) drawn.push(svg("line", { x1: x(value), x2: x(value), y1: 29, y2: 43 }), text(value, 64, `${name} ${percent(value)}`, "end"));
  if (isPlace(moved)) drawn.push(svg("line", { class: "moved", x1: x(first), x2: x(moved), y1: 36, y2: 36 }));
  if (isPlace(second)) drawn.push(svg("circle", { cx: x(second), cy: 36, r: 7, class: "second" }));
  drawn.push(svg("circle", { cx: x(first), cy: 36, r: 7, class: "first" }));
  const change = allSwapped() ? "swapped" : "changed";
  if (isPlace(moved)) drawn.push(svg("svg", { x: x(moved), y: 36, class: "after" }, [svg("path", { d: "M0,-10l10,10l-10,10l-10,-10z" })]), text(moved, 16, `${change} ${percent(way)}`));
  else if (!isParting()) drawn.push(text(first, 16, percent(first)));
  const described = [`${quoted(data.word)} at ${percent(first)}`, ...(isPlace(moved) ? [`${change} at ${percent(moved)}`] : [])].join(", ");
  const label = `${described}${isPlace(second) ? `; the other sentence's at ${percent(second)}` : ""}, from ${senses()}`;
  return svg("svg", { height: 70, class: "axis-line", role: "img", "aria-label": label }, drawn);
};
// The dots on their way through the layers, only when somebody asks.
const PLAYED = 3000; // milliseconds from the first layer to the last
const player = document.querySelector("[data-play]");
let frame = null;
const stop = () => {
  if (frame !== null) cancelAnimationFrame(frame);
  frame = null;
  player.setAttribute("aria-pressed", "false");
  player.textContent = "▶ play";
};
const play = () => {
  let begun = null;
  const step = (now) => {
    begun ??= now;
    const depth = Math.min(1, (now - begun) / PLAYED) * sizes.layers;
    form.elements.depth.value = Math.floor(depth);
    drawWay(depth);
    if (depth >= sizes.layers) return stop();
    frame = requestAnimationFrame(step);
  };
  player.setAttribute("aria-pressed", "true");
  player.textContent = "■ stop";
  frame = requestAnimationFrame(step);
};
player.addEventListener("click", () => (frame === null ? play() : stop()));
form.elements.depth.addEventListener("input", () => (stop(), drawWay()));

// Swaps: of the followed head, several at once, undone one by one.
const drawSwaps = () => {
  const box = document.querySelector("[data-swapped]");
  const buttons = swaps.map(([layer, head, kind], index) => {
    const button = make("button", { type: "button", className: kind === "other" && !data.second_tokens ? "waiting" : "", textContent: `L${layer}H${head}: ${KINDS[kind]} ×` });
    button.setAttribute("aria-label", `Put L${layer}H${head} back`);
    button.addEventListener("click", () => setSwaps(swaps.filter((_, other) => other !== index)));
    return button;
  });
  if (swaps.length) {
    const undo = make("button", { type: "button", textContent: "Undo", title: "Ctrl+Z" });
    undo.addEventListener("click", undoSwap);
    buttons.push(undo);
  }
  box.replaceChildren(...buttons);
  page.shown();
};
const undoSwap = () => swaps.length && setSwaps(swaps.slice(0, -1));
const setSwaps = (changed) => {
  swaps = changed;
  remember(true);
  return asking(unread ? () => readSentence(chosen, null) : swapped);
};
const chooseSwap = (kind) => {
  const others = recorded ? [] : swaps.filter(([layer, head]) => layer !== state.layer || head !== state.head);
  return setSwaps(kind === "own" ? others : [...others, [state.layer, state.head, kind]]);
};

// The causal trace: asked when it is looked at.
const mapShown = () => document.querySelector('[name="map"]:checked').value;
const tracing = document.querySelector("[data-tracing]");
const askTrace = async () => {
  if (!tracing.open) return;
  try {
    const result = await answered("trace");
    if (!result) return;
    data.trace_columns = result.columns;
    hold("trace", result.arrays.trace);
    write("[data-trace-trouble]", null);
    put("[data-traced]", false);
    drawTrace();
  } catch (error) {
    doing();
    put("[data-traced]", true);
    write("[data-trace-trouble]", error.message);
  }
};
// Other words as the cue: asked when it is looked at, and closed again where something newer is asked.
const trying = document.querySelector("[data-cues]");
const askCues = async () => {
  if (!trying.open) return;
  put("[data-cues-found]", true);
  write("[data-cues-trouble]", null);
  try {
    const result = await answered("cues");
    if (!result) return (trying.open = false);
    drawCues(result);
  } catch (error) {
    doing();
    write("[data-cues-trouble]", error.message);
  }
};
const grouped = (count) => count.toLocaleString("en").replaceAll(",", "\u202f");
const drawCues = ({ ends, depth, n_cues, n_frames, n_vocabulary, n_beginnings, reliability }) => {
  document.querySelectorAll("[data-end]").forEach((list, side) => {
    const items = ends[side].map(({ word, value }) => {
      const item = make("li", {});
      item.append(make("bdi", { textContent: word }), make("span", { textContent: percent(0.5 - value) }));
      return item;
    });
    list.replaceChildren(...items);
  });
  say("cues", `Strongest first, with the place of “${data.word}”: 0\u202f% is this sentence's, 100\u202f% the other's, read ${where(depth)}. ${grouped(n_cues)} words in ${n_frames} short texts each, drawn from ${grouped(n_vocabulary)} tokens of letters; ${n_beginnings} that begin longer words are left out. The short texts agree with a reliability of ${decimal(reliability, 2)}. The command probe cues tries every word.`);
  put("[data-cues-found]", false);
};
// What all heads of a layer take from a token, and in the first row what the followed one does.
const drawSources = () => {
  if (!has("direct_source")) return fill("sources", []);
  const word = data.first.at;
  const columns = openTo(word).map((key) => source[key]);
  const every = Array.from({ length: sizes.heads }, (_, head) => head);
  const one = (layer, head, index) => get("direct_source", layer, head, columns[index].pos);
  const rows = layered((layer, index) => sum(every.map((head) => one(layer, head, index))));
  const own = [`L${state.layer}H${state.head}`, state.layer, (index) => one(state.layer, state.head, index)];
  const open = (layer, index) => follow(layer, largest(every.map((head) => Math.abs(one(layer, head, index)))));
  drawGrid("sources", columns.map(({ piece }) => written(piece)), [own, ...rows], limitOf("direct"), open);
};

// The address keeps the state: typing replaces it, a choice adds a step that the back button takes back.
const addressOf = () => {
  const parts = new URLSearchParams();
  for (const name of ["text", "other", "word"]) if (ask.elements[name].value || name === "other") parts.set(name, ask.elements[name].value);
  if (axisWanted !== "sentences") parts.set("axis", axisWanted);
  parts.set("follow", `L${state.layer}H${state.head}@${tokens[state.at].pos}`);
  if (swaps.length) parts.set("swap", swaps.map(([layer, head, kind]) => `L${layer}H${head}-${kind}`).join("."));
  return `#${parts}`;
};
const remember = (step) => {
  const address = addressOf();
  if (address === currentState()) return;
  // The whole URL, because in a frame with `srcdoc` a fragment alone is resolved against the URL of the page around it.
  const url = location.href.split("#")[0] + address;
  history[step ? "pushState" : "replaceState"](null, "", url);
};
const restore = () => {
  const parts = new URLSearchParams(currentState().slice(1));
  if (!parts.get("text")) return remember(false);
  for (const name of ["text", "other", "word"]) ask.elements[name].value = parts.get(name) ?? "";
  axisWanted = parts.get("axis") ?? "sentences";
  // An address may come from another model: what this one does not have is left out.
  const isThere = ([layer, head]) => layer < sizes.layers && head < sizes.heads;
  const given = (parts.get("swap") ?? "").split(".").flatMap((one) => {
    const [, layer, head, kind] = one.match(/^L(\d+)H(\d+)-(other|mean|off)$/) ?? [];
    return kind ? [[Number(layer), Number(head), kind]] : [];
  });
  swaps = given.every(isThere) && isAnswered(given) ? given : [];
  const [layer, head, at] = ((parts.get("follow") ?? "").match(/^L(\d+)H(\d+)@(\d+)$/) ?? []).slice(1).map(Number);
  return typed(layer !== undefined && isThere([layer, head]) ? { follow: [layer, head], at } : {});
};
// Scores by pairs of parts: asked where a cell is clicked.
const kept = new Map();
const embedded = page.scores;
const scoreName = (layer, head, pos) => `L${layer}H${head}@${pos} ${data.text}`;
page.scores = (layer, head, pos) => embedded(layer, head, pos) ?? kept.get(scoreName(layer, head, pos));
page.split = async () => {
  const [layer, head, pos] = [state.layer, state.head, tokens[state.at].pos];
  if (recorded || page.scores(layer, head, pos)) return;
  try {
    const found = await answered("score", { follow: [layer, head], pos });
    if (!found) return;
    kept.set(scoreName(layer, head, pos), found);
    drawScore(headIndex());
  } catch (error) {
    doing();
    write("[data-trouble]", error.message);
  }
};
document.querySelector("[data-split]")?.addEventListener("click", page.split);
page.open = async (layer, pos) => {
  const result = await answered("trace_heads", { pos });
  if (!result) return;
  hold("trace_heads", result.arrays.trace_heads);
  const moves = Array.from({ length: sizes.heads }, (_, head) => get("trace_heads", layer, head));
  await page.follow(layer, largest(moves.map(Math.abs)), pos);
  document.getElementById("softmax").scrollIntoView({ block: "start" });
};
page.reaches = () => true;
// On the first map a click swaps a head, and a second click puts it back; elsewhere it follows one.
page.choose = (name, layer, head, event) => {
  if (name !== "swap") return follow(layer, head);
  const kind = data.second_tokens ? "other" : "mean";
  const several = !recorded && (event.shiftKey || form.elements.several.checked);
  const isSame = ([of, number]) => of === layer && number === head;
  const others = several ? swaps.filter((swap) => !isSame(swap)) : [];
  const back = swaps.some(isSame) && (several || swaps.length === 1);
  const wanted = back ? others : [...others, [layer, head, kind]];
  if (!isAnswered(wanted)) return follow(layer, head);
  if (data.heads.some((one) => one[0] === layer && one[1] === head)) {
    chosen = [layer, head];
    show({ layer, head });
    return setSwaps(wanted);
  }
  swaps = wanted;
  return typed({ follow: [layer, head], at: tokens[state.at].pos }).then(() => remember(true));
};
page.restore = restore;
page.remember = () => remember(true);
page.follow = (layer, head, at = null) => {
  const known = data.heads.some((one) => one[0] === layer && one[1] === head);
  const index = at === null ? state.at : tokens.findIndex((token) => token.pos === at);
  chosen = [layer, head];
  if (known && index >= 0) return layer !== state.layer || head !== state.head || index !== state.at ? show({ layer, head, at: index }) : null;
  return typed({ follow: [layer, head], at: at ?? tokens[state.at].pos }).then(() => remember(true));
};
page.shown = () => {
  const kindOf = Object.fromEntries(applied().map(([layer, head, kind]) => [`${layer}.${head}`, kind]));
  for (const { cells } of maps) for (const [key, cell] of cells) cell.classList.toggle("swapped", key in kindOf);
  say("head", `L${state.layer}H${state.head}`);
  drawSources();
  for (const input of form.elements.swap) input.checked = input.value === (kindOf[`${state.layer}.${state.head}`] ?? "own");
};

ask.addEventListener("submit", (event) => event.preventDefault());
for (const name of ["text", "other", "word"])
  ask.elements[name].addEventListener("input", () => typed().then(() => remember(false)));
for (const name of ["text", "other"])
  ask.elements[name].addEventListener("keydown", (event) => event.key === "Enter" && event.preventDefault());
ask.elements.example.addEventListener("change", ({ target }) => {
  const { text, other } = target.selectedOptions[0].dataset;
  if (!text) return;
  Object.assign(ask.elements.text, { value: text });
  Object.assign(ask.elements.other, { value: other });
  [ask.elements.word.value, target.value, chosen, swaps] = ["", "", null, []];
  typed().then(() => remember(true));
});
ask.elements.axis.addEventListener("change", ({ target }) => {
  axisWanted = target.value;
  typed().then(() => remember(true));
});
ask.elements.save.addEventListener("click", async () => {
  try {
    const file = await answered("save", { follow: [state.layer, state.head] });
    if (!file) return;
    Object.assign(document.createElement("a"), { href: URL.createObjectURL(new Blob([file.page], { type: "text/html" })), download: file.name }).click();
  } catch (error) {
    doing();
    write("[data-trouble]", error.message);
  }
});
for (const input of form.elements.swap) input.addEventListener("change", () => chooseSwap(input.value));
for (const input of document.querySelectorAll('[name="map"]'))
  input.addEventListener("change", () => {
    for (const part of document.querySelectorAll("[data-shown]")) part.hidden = part.dataset.shown !== mapShown();
  });
tracing.addEventListener("toggle", askTrace);
trying?.addEventListener("toggle", askCues);
document.addEventListener("keydown", (event) => {
  if (event.key !== "z" || !(event.ctrlKey || event.metaKey) || event.target.matches("textarea, input:not([type=radio])")) return;
  event.preventDefault();
  undoSwap();
});
restore() ?? typed();
{% endblock %}
