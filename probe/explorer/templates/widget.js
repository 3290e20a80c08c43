// The explorer in a notebook (anywidget): its page in a frame, whose questions are the widget's messages.
const render = ({ model, el }) => {
  const frame = document.createElement("iframe");
  frame.setAttribute("sandbox", "allow-scripts allow-downloads");
  frame.style.cssText = "display: block; width: 100%; height: 760px; border: 0; resize: vertical";
  const id = `explored-${model.get("key")}`;
  Object.assign(frame, { id, title: "Explorer", name: model.get("state"), srcdoc: model.get("page") });
  const heard = ({ source, data }) => {
    if (source !== frame.contentWindow) return;
    if ("what" in data) return model.send(data);
    for (const [name, value] of Object.entries(data)) model.set(name, value);
    model.save_changes();
  };
  const answered = (message) => frame.contentWindow?.postMessage(message, "*");
  window.addEventListener("message", heard);
  model.on("msg:custom", answered);
  el.append(frame);
  return () => {
    window.removeEventListener("message", heard);
    model.off("msg:custom", answered);
  };
};
export default { render };
