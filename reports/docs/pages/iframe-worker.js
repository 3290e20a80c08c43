// The site's search runs in a web worker, which browsers refuse to pages that are opened as files.
// This file replaces the worker there: the worker's script runs in a hidden frame with the worker's
// functions that the script uses: `postMessage`, `importScripts`, and events named "message".
//
// The theme recognises such a replacement by the name of the file and of the class; without one it
// would download another from the network.
"use strict";

class IFrameWorker extends EventTarget {
  constructor(url) {
    super();
    this.onmessage = null;
    this.onerror = null;
    this.frame = document.createElement("iframe");
    this.frame.hidden = true;
    this.frame.srcdoc = "<!doctype html><title>search</title>";
    // A message that is sent while the script loads waits for it.
    this.ready = new Promise((resolve) => {
      this.frame.addEventListener("load", resolve, { once: true });
    }).then(() => this.start(url));
    document.body.append(this.frame);
  }

  start(url) {
    const inside = this.frame.contentWindow;
    inside.postMessage = (data) => this.tell(new MessageEvent("message", { data }));
    inside.importScripts = async (...urls) => {
      for (const each of urls) await this.load(each);
    };
    inside.addEventListener("error", ({ message, filename, lineno, error }) =>
      this.tell(new ErrorEvent("error", { message, filename, lineno, error })));
    return this.load(url);
  }

  load(url) {
    const script = this.frame.contentDocument.createElement("script");
    script.src = new URL(url, document.baseURI);
    return new Promise((resolve, reject) => {
      script.addEventListener("load", resolve);
      script.addEventListener("error", () => reject(new Error(`${script.src} cannot be loaded`)));
      this.frame.contentDocument.body.append(script);
    });
  }

  tell(event) {
    this.dispatchEvent(event);
    this[`on${event.type}`]?.(event);
  }

  async postMessage(message) {
    const data = structuredClone(message);
    await this.ready;
    const inside = this.frame.contentWindow;
    inside.dispatchEvent(new inside.MessageEvent("message", { data }));
  }

  terminate() {
    this.frame.remove();
  }
}

window.IFrameWorker = IFrameWorker;
if (location.protocol === "file:") window.Worker = IFrameWorker;
