// Questions are answered by the server that the page comes from, over HTTP, or by the answers that a saved page holds.
const STOPPED = "Cannot reach the explorer: it has stopped. Start `probe explore` again.";
const orStopped = (promise) =>
  promise.catch(() => {
    throw new Error(STOPPED);
  });
const linesOverHttp = async function* (question, signal) {
  const token = new URLSearchParams(location.search).get("token");
  const headers = { "Content-Type": "application/json", Authorization: `Bearer ${token}` };
  const response = await orStopped(fetch(new URL("ask", location), { method: "POST", headers, signal, body: JSON.stringify(question) }));
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
const recorded = JSON.parse(document.getElementById("recorded")?.textContent ?? "null");
if (recorded) recorded.sentence[0].block = data;
const replayed = async function* ({ what, follow, swaps }) {
  if (what === "sentence") {
    const carries = ({ block }) => !follow || block.heads.some(([layer, head]) => layer === follow[0] && head === follow[1]);
    yield { result: recorded.sentence.find(carries) };
    return;
  }
  // Texts after every swap would take too long; for most the page has only the text without a swap.
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
// What the page asks, whether these swaps can be answered, and what is followed and swapped, as an address.
const messagesOf = recorded ? replayed : linesOverHttp;
const isAnswered = (swaps) => !recorded || !swaps.length || Boolean(recordedOf("swap", swaps));
const currentState = () => (recorded ? savedState() : location.hash);
