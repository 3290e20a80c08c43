{% extends "walk.js" %}
{% block page %}
// The explorer: sentences are typed, heads swapped. A question is asked of the model, its answer comes as messages.
{% include "transport.js" %}
const ask = document.querySelector(".ask");
const transport = transports[ask.dataset.transport];
const put = (within, hidden) => (document.querySelector(within).hidden = hidden);
const write = (within, text) => {
  const box = document.querySelector(within);
  [box.textContent, box.hidden] = [text ?? "", !text];
};
const KINDS = { other: "the other sentence's", mean: "its mean", off: "nothing" };
const own = crypto.getRandomValues(new Uint32Array(2)).join("-");
let [swaps, turns, questions, along, unchanged, outcome, chosen] = [[], 0, 0, null, null, null, null];
// The axis that was chosen, kept where it cannot be had; the field shows the one that the answer was measured along.
let axisWanted = "sentences";
// Whether the sentences were asked about and their answer is not all there yet.
let unread = false;
// Swaps that are carried out: without a second sentence a head cannot get what it writes there, and waits.
const applied = () => swaps.filter(([, , kind]) => kind !== "other" || data.second_tokens);
// An answer that is no longer that of what was asked last.
const fade = (old) => document.querySelectorAll("main, .strip, header .answer, .ask .caution").forEach((part) => part.classList.toggle("stale", old));
const settled = () => fade(!document.querySelector("[data-trouble]").hidden);

// What the model is doing, by the keys of its messages.
const DOING = {
  wait: "waiting for the notebook",
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
// What a question begins with, where that is not its own name.
const FIRST = { sentence: "read", along: "axis", trace_heads: "trace", cues: "axis" };
const doing = (message) => {
  document.querySelector("[data-status]").textContent = message?.doing ? `${DOING[message.doing]} …` : "";
  const bar = ask.querySelector("progress");
  [bar.hidden, bar.value] = [!(message?.progress < 1), message?.progress ?? 0];
};
// The result, or null where it was superseded or another sentence was typed meanwhile; what cannot be answered is thrown.
const answered = async (what, more = {}, onMessage = () => {}) => {
  const turn = turns;
  const question = { ...asked(), ...more, what, page: own, number: ++questions };
  doing({ doing: FIRST[what] ?? what, progress: 0 });
  for await (const message of transport.ask(question)) {
    if (turn !== turns || message.superseded) return null;
    if (message.absent) return doing(), null;
    if ("error" in message) throw new Error(message.error);
    if ("result" in message) return doing(), message.result;
    doing(message);
    onMessage(message);
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
// A sentence: its block, then where the word stands, then what the swaps do.
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
  [unchanged, outcome] = [result.next && [result.next], null];
  say("word", data.word);
  await show({});
  await moving();
};
const moving = async () => {
  along = null;
  write("[data-no-way]", null);
  try {
    along = await answered("along");
    if (!along) return;
    for (const [name, array] of Object.entries(along.arrays)) hold(name, array);
  } catch (error) {
    doing();
    for (const name of ["direct", "direct_source"]) delete arrays[name];
    write("[data-no-way]", error.message);
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
  const showWritten = (texts, blank = "…") => (say("own", texts?.own || blank), say("swapped-text", texts?.swapped || blank));
  put("[data-with-swap]", !applied().length);
  showWritten();
  const whole = await answered("write", {}, ({ written }) => showWritten(written));
  if (!whole) return;
  showWritten(whole, "(nothing: the model ends its text here)");
  put("[data-with-swap]", whole.swapped === undefined);
};

// Pictures of the answers.
const drawMoving = () => {
  maps.filter(({ name }) => has(name)).forEach(drawMap);
  page.shown();
  drawSources();
  for (const { box, name } of maps) box.hidden = !has(name);
  for (const part of document.querySelectorAll("[data-way]")) part.hidden = !along;
  // Without an axis nothing is halfway.
  if (!along) form.querySelector('[name="swap"][value="mean"]').disabled = true;
  say("mean-of", !along ? "" : ofLexicon() ? `, halfway between what it writes on average in each of the two senses (${along.n_sentences} sentences of the lexicon)` : ", halfway between what it writes in the two sentences");
  drawAnswer();
  if (!along) return drawOutcome();
  say("sense-b", along.senses[1]);
  const first = along.depth;
  say("behind", first < sizes.layers ? ` The word is read ${where(first)}, as in a report; where a head of layer ${first} or later is swapped, ${where(sizes.layers)}, as there.` : "");
  say("report-reads", first < sizes.layers ? "" : " and may read the word at an earlier layer");
  say("sum", `All parts together are ${percent(along.sum)}: the way ${data.second_tokens ? "from this sentence's word to the other's" : "to the middle between both meanings"}.`);
  const rows = along.leading.map(({ name, source, moved }) => row([name, source === null ? "" : quoted(source), number(moved, percent(moved))]));
  fill("leading", rows);
  drawOutcome();
};
// The head whose swap by itself moves the word furthest, where any does.
const drawAnswer = () => {
  const values = along && has("swap") ? [...arrays.swap.flat] : [0];
  const [best, most] = [largest(values), Math.max(...values)];
  const none = most <= 0 || isNoPercent(most);
  put("[data-answer]", none);
  if (none) return;
  say("furthest", `L${Math.floor(best / sizes.heads)}H${best % sizes.heads}`);
  say("furthest-by", data.second_tokens ? "gets what it computes in the other sentence" : "gets the mean of what it writes in both meanings");
  say("furthest-to", ofLexicon() ? quoted(along.senses[1]) : "its vector there");
  say("furthest-size", percent(most));
  say("furthest-of", ofLexicon() ? ` of the way from ${quoted(along.senses[0])}` : "");
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
// Where the word stands, in a sentence: two sentences are the ends of their own axis, so only a swap tells anything.
const standing = (coordinates) => {
  const [a, b] = along.senses.map(quoted);
  if (!coordinates) return ofLexicon() ? `“${data.word}” stands at ${percent(along.coordinates.first)} of the way from ${a} to ${b}.` : "Your two sentences define 0\u202f% and 100\u202f%. Swap a head to move the dot.";
  const [before, after] = coordinates;
  const told = `With ${done()}, “${data.word}” moves ${distance(after - before)} of the way from ${a} to ${b}`;
  if (isNoPercent(after - before)) return `${told}.`;
  const away = after < before ? `, away from ${b}` : "";
  return `${told}${ofLexicon() ? `: from ${percent(before)} to ${percent(after)}` : ""}${away}.`;
};
const drawOutcome = () => {
  const [next, coordinates] = [outcome?.next ?? unchanged, outcome?.coordinates];
  const change = allSwapped() ? "swap" : "change";
  say("changed", allSwapped() ? "swapped" : "changed");
  put("[data-unchanged]", !applied().length);
  say("as-it-is", `${data.second_tokens ? "your sentences as they are" : "your sentence as it is"}, without the ${change}`);
  document.querySelector("[data-axis]").replaceChildren(...(along ? [line(coordinates)] : []));
  if (along) {
    const [a, b] = along.senses.map(quoted);
    const depth = coordinates ? outcome.depth : along.depth;
    const late = depth > along.depth ? `, because a head of layer ${along.depth} or later is ${allSwapped() ? "swapped" : "changed"}` : "";
    const source = ofLexicon() ? `, which ${along.n_sentences} sentences of the lexicon give` : ", which these two sentences give";
    say("axis", `Read ${where(depth)}${late}, on the axis from ${a} (0\u202f%) to ${b} (100\u202f%)${source}.`);
  }
  const sentences = [];
  if (applied().length && alike() && allSwapped()) {
    sentences.push(`With ${done()} nothing moves: “${data.word}” is one and the same vector in both sentences.`);
  } else if (along) sentences.push(standing(coordinates));
  const waiting = swaps.filter((swap) => !applied().includes(swap)).map(headName);
  if (waiting.length) sentences.push(`${waiting.join(", ")} ${waiting.length > 1 ? "are" : "is"} swapped again as soon as there is a second sentence.`);
  if (next) {
    const best = next.map((side) => side.reduce((one, other) => (other.probability > one.probability ? other : one)));
    const [own, swapped] = best.map((one) => [quoted(one.piece), percent(one.probability)].join(", "));
    const moved = swapped === undefined ? "" : swapped === own ? `, with the ${change} and without it` : `; with the ${change} ${swapped}`;
    sentences.push(`Likeliest ${data.causal ? "next" : "there"}: ${own}${moved}.`);
    drawNext(next);
  } else fill("next", []);
  say("outcome", sentences.join(" "));
  transport.outcome(sentences.join(" "));
  say("next", next ? `${data.causal ? "After the last token of the sentence" : "What the model would put at the word"}: softmax over all tokens. ${next.length > 1 ? `The ten likeliest with the ${change}, then those that are among the ten likeliest without it alone. Last column: how far the logit changes; if all logits rise alike, no probability changes.` : "The ten likeliest."}` : "The checkpoint holds no language-model head.");
};
const drawNext = ([before, after]) => {
  const known = new Map(after?.map((one) => [one.id, one]));
  const all = after ? [...before].sort((one, other) => known.get(other.id).probability - known.get(one.id).probability) : before;
  const rows = all.map((one) => {
    const swapped = known.get(one.id);
    const cells = [number(one.probability, share(one.probability))];
    if (swapped) cells.push(number(swapped.probability, share(swapped.probability)), number(swapped.logit - one.logit, signed(swapped.logit - one.logit)));
    return row([quoted(one.piece), ...cells]);
  });
  fill("next", rows, ["token", after ? "as it is" : "probability", ...(after ? [allSwapped() ? "swapped" : "changed", "logit"] : [])]);
};
const share = (value) => (value >= 0.0995 ? percent(value) : value < 0.0005 ? "< 0.1\u202f%" : `${decimal(100 * value, 1)}\u202f%`);
// The axis: both meanings, both sentences, where the word goes.
const line = (coordinates) => {
  const second = coordinates ? outcome.second : along.coordinates.second;
  const marks = [along.coordinates.first, second, ...(coordinates ?? []), 0, 1].filter((one) => one !== null);
  const [low, high] = [Math.min(...marks), Math.max(...marks)];
  const x = (value) => 24 + (352 * (value - low)) / (high - low);
  const text = (value, y, words, kind = "") => svg("text", { x: x(value), y, "text-anchor": x(value) < 90 ? "start" : x(value) > 310 ? "end" : "middle", class: kind }, [words]);
  const parts = [svg("line", { x1: 24, x2: 376, y1: 40, y2: 40 })];
  for (const [value, name] of [[0, along.senses[0]], [1, along.senses[1]]]) parts.push(svg("line", { x1: x(value), x2: x(value), y1: 33, y2: 47 }), text(value, 72, name, "quietly"));
  if (second !== null) parts.push(svg("circle", { cx: x(second), cy: 40, r: 6, class: "second" }));
  const [before, after] = coordinates ?? [along.coordinates.first];
  if (coordinates) parts.push(svg("line", { class: "moved", x1: x(before), x2: x(after), y1: 40, y2: 40 }));
  parts.push(svg("circle", { cx: x(before), cy: 40, r: 7, class: "before" }));
  if (coordinates) parts.push(svg("circle", { cx: x(after), cy: 40, r: 7, class: "after" }), text(after, 22, percent(after)));
  else parts.push(text(before, 22, percent(before)));
  const description = `${quoted(data.word)} at ${percent(before)}${coordinates ? `, ${allSwapped() ? "swapped" : "changed"} at ${percent(after)}` : ""}${second === null ? "" : `; the other sentence's at ${percent(second)}`}`;
  return svg("svg", { viewBox: "0 0 400 80", class: "axis-line", role: "img", "aria-label": description }, parts);
};

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
  const limit = Math.max(ROUNDS_TO_ZERO, ...rows.flatMap(([, , value]) => columns.map((_, index) => Math.abs(value(index)))));
  const own = [`L${state.layer}H${state.head}`, state.layer, (index) => one(state.layer, state.head, index)];
  const open = (layer, index) => follow(layer, largest(every.map((head) => Math.abs(one(layer, head, index)))));
  drawGrid("sources", columns.map(({ piece }) => written(piece)), [own, ...rows], limit, open);
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
  if (address !== transport.state()) transport.keep(address, step);
};
const restore = () => {
  const parts = new URLSearchParams(transport.state().slice(1));
  if (!parts.get("text")) return remember(false);
  for (const name of ["text", "other", "word"]) ask.elements[name].value = parts.get(name) ?? "";
  axisWanted = parts.get("axis") ?? "sentences";
  // An address may come from another model: what this one does not have is left out.
  const isThere = ([layer, head]) => layer < sizes.layers && head < sizes.heads;
  const given = (parts.get("swap") ?? "").split(".").flatMap((one) => {
    const [, layer, head, kind] = one.match(/^L(\d+)H(\d+)-(other|mean|off)$/) ?? [];
    return kind ? [[Number(layer), Number(head), kind]] : [];
  });
  swaps = given.every(isThere) && transport.reaches(given) ? given : [];
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
for (const input of form.elements.swap) input.addEventListener("change", (event) => (event.stopPropagation(), chooseSwap(input.value)));
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
