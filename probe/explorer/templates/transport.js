// What holds the page: a server that answers over HTTP and an address that keeps the state; a notebook, whose widget does both; or nothing,
// where the page was saved with its answers.
const STOPPED = "Cannot reach the explorer: it has stopped. Start `probe explore` again.";
const orStopped = (promise) =>
  promise.catch(() => {
    throw new Error(STOPPED);
  });
const linesOverHttp = async function* (question) {
  const token = new URLSearchParams(location.search).get("token");
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  const response = await orStopped(fetch(new URL("ask", location), { method: "POST", headers, body: JSON.stringify(question) }));
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await orStopped(reader.read());
    const lines = (rest + (value ?? "")).split("\n");
    rest = lines.pop();
    for (const line of lines) if (line) yield JSON.parse(line);
    if (done) return;
  }
};
const messagesOfWidget = async function* (question) {
  const [arrived, waiting] = [[], { doing: "wait", progress: 0 }];
  let wake;
  const hear = (message) => (arrived.push(message), wake?.());
  const heard = ({ source, data }) => source === parent && data.number === question.number && hear(data);
  const late = setTimeout(hear, 1500, waiting);
  addEventListener("message", heard);
  parent.postMessage(question, "*");
  try {
    for (;;) {
      while (!arrived.length) await new Promise((done) => (wake = done));
      const message = arrived.shift();
      if (message !== waiting) clearTimeout(late);
      yield message;
      if (!("doing" in message)) return;
    }
  } finally {
    clearTimeout(late);
    removeEventListener("message", heard);
  }
};
const recorded = JSON.parse(document.getElementById("recorded")?.textContent ?? "null");
// The first sentence's block is in the page, with the swaps on the requested axis, or without swaps if no axis exists.
if (recorded) {
  const { swap, ...others } = data.arrays;
  recorded.sentence[0].block = { ...data, arrays: recorded.effects ? { ...others, swap: recorded.effects } : others };
}
const replayed = async function* ({ what, follow, swaps }) {
  if (what === "sentence") {
    const carries = ({ block }) => !follow || block.heads.some(([layer, head]) => layer === follow[0] && head === follow[1]);
    yield { result: recorded.sentence.find(carries) };
    return;
  }
  // Texts after every swap would be too large; the page has only the text without a swap.
  const found = recordedOf(what, ["swap", "write"].includes(what) ? swaps : []) ?? (what === "write" ? recordedOf(what, []) : null);
  yield found?.answer ?? { absent: true };
};
const recordedOf = (what, swaps) => recorded[what]?.find((one) => JSON.stringify(one.swaps) === JSON.stringify(swaps));
// The sentences are the saved ones; the address may hold the head that is followed, and the swaps.
const savedState = () => {
  const parts = new URLSearchParams(recorded.state);
  const wanted = new URLSearchParams(location.hash.slice(1));
  if (wanted.get("follow")) for (const name of ["follow", "swap"]) wanted.get(name) ? parts.set(name, wanted.get(name)) : parts.delete(name);
  return `#${parts}`;
};
// ask: the messages of an answer · reaches: whether these swaps can be answered · state: what is followed and swapped, as an address ·
// keep: it changed; a step is one to go back from · outcome: the sentence on what came out.
const transports = {
  server: {
    ask: linesOverHttp,
    reaches: () => true,
    state: () => location.hash,
    keep: (address, step) => history[step ? "pushState" : "replaceState"](null, "", address),
    outcome: () => {},
  },
  saved: {
    ask: replayed,
    reaches: (swaps) => !swaps.length || Boolean(recordedOf("swap", swaps)),
    state: savedState,
    keep: (address, step) => history[step ? "pushState" : "replaceState"](null, "", address),
    outcome: () => {},
  },
  notebook: {
    ask: messagesOfWidget,
    reaches: () => true,
    state: () => window.name,
    keep: (address) => parent.postMessage({ state: (window.name = address) }, "*"),
    outcome: (sentence) => parent.postMessage({ outcome: sentence }, "*"),
  },
};
