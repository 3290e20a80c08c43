"""The explorer in a notebook: its messages, what is saved, and its page in a frame, asked through a running kernel.

Jupyter's own front end is not run: a page plays what anywidget gives a widget (`render({model, el})`, with get, set,
save_changes, send, on and off), and hands its messages to the kernel as comm messages, as Jupyter does.
"""

import asyncio
import json
import queue
import re
import sys
import time
from urllib.parse import parse_qsl

import nbformat
import pytest
from browser import MARKS

import probe
from probe.errors import InputError
from probe.explore.explorer import Explorer, messages

anywidget = pytest.importorskip("anywidget", reason="anywidget is not installed: probe-heads[explore]")

from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

pytestmark = pytest.mark.real_model

THIS, THAT = "They saw the river from the bank", "They saw the money from the bank"
CELL = f"""import probe
shown = probe.explore(probe.load("tiny-senses"), {THIS!r}, against={THAT!r})
shown"""
PATIENCE = 60
ASKED = {"what": "sentence", "text": THIS, "other": THAT, "page": "a", "number": 1}


@pytest.fixture(scope="module")
def tiny():
    return probe.load("tiny-senses")


@pytest.fixture(scope="module")
def shown(tiny):
    return probe.explore(tiny, THIS, against=THAT)


def told(shown, *questions):
    """What the widget sends until every question has its last message."""
    sent = []
    shown.send = lambda message: sent.append(message)

    async def ask():
        for question in questions:
            shown._handle_custom_msg(question, [])
        while sum("doing" not in message for message in sent) < len(questions):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE))
    return sent


def of(sent, number):
    return [message for message in sent if message["number"] == number]


class TestMessages:
    def test_an_answer_is_that_of_the_server(self, tiny, shown):
        sent = told(shown, ASKED | {"number": 7})
        alike = [message | {"number": 7} for message in messages(Explorer(tiny), ASKED)]
        assert sent == alike and len(alike) == 4
        assert json.loads(json.dumps(sent)) == sent

    def test_a_newer_question_ends_the_older_one(self, shown):
        sent = told(shown, ASKED | {"number": 10, "what": "trace"}, ASKED | {"number": 11})
        assert of(sent, 10)[-1] == {"number": 10, "superseded": True}
        assert "result" in of(sent, 11)[-1]

    @pytest.mark.parametrize(
        ("asked", "sentence"),
        [
            (ASKED | {"text": "a\x00b"}, "it holds a NUL character"),
            (ASKED | {"what": "melt"}, "got what = 'melt'"),
            (ASKED | {"text": "bank " * 9000}, "shorten"),
            ({"what": "sentence"}, "Reading a question: got no text"),
            ({}, "Reading a question: got what = None"),
        ],
    )
    def test_what_cannot_be_answered_is_one_sentence(self, shown, asked, sentence):
        (message, *_) = told(shown, asked | {"page": sentence})
        assert sentence in message["error"]

    def test_it_opens_with_the_sentences_that_were_given(self, shown):
        assert dict(parse_qsl(shown.state[1:])) == {"text": THIS, "other": THAT}
        (policy,) = re.findall(r'http-equiv="Content-Security-Policy" content="([^"]*)"', shown.page)
        assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
        assert "connect-src" not in policy and "unsafe" not in policy

    def test_a_text_that_cannot_be_explored_is_refused_at_once(self, tiny):
        with pytest.raises(InputError, match="got an empty text"):
            probe.explore(tiny, " ")
        with pytest.raises(InputError, match="found it 0 times"):
            probe.explore(tiny, THIS, against="Nothing here.")

    def test_a_word_without_an_axis_is_shown_all_the_same(self, tiny):
        alone = probe.explore(tiny, "He walked to the garden")
        assert set(alone.results) == {"sentence"} and "garden" in alone._still().data

    def test_without_anywidget_it_says_what_to_install(self, tiny, monkeypatch):
        monkeypatch.delitem(sys.modules, "probe.explore.widget")
        monkeypatch.setitem(sys.modules, "anywidget", None)
        with pytest.raises(InputError, match="the package anywidget is missing; install it with pip install anywidget"):
            probe.explore(tiny, THIS)


class Kernel:
    """A running kernel with one cell run; its widget's state and its outputs, as a front end keeps them."""

    def __init__(self):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)
        self.comms, self.displays = {}, {}
        self.client.execute(CELL)
        self.hear(until=lambda: len(self.displays) == 2)
        (view,) = [one for one in self.displays.values() if "application/vnd.jupyter.widget-view+json" in one]
        self.model = view["application/vnd.jupyter.widget-view+json"]["model_id"]

    def hear(self, until=lambda: True, patience=PATIENCE):
        """Takes in what the kernel says, and returns the custom messages to the widget."""
        custom, end = [], time.monotonic() + patience
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                if until():
                    return custom
                assert time.monotonic() < end, "the kernel says nothing more"
                continue
            kind, content = message["msg_type"], message["content"]
            assert kind != "error", content["evalue"]
            if kind == "comm_open":
                self.comms[content["comm_id"]] = content["data"]["state"]
            elif kind == "comm_msg" and content["data"]["method"] == "custom":
                custom.append(content["data"]["content"])
            elif kind in {"display_data", "update_display_data"}:
                self.displays[content["transient"].get("display_id", "view")] = content["data"]

    def send(self, data):
        content = {"comm_id": self.model, "data": data}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    @property
    def still(self):
        (html,) = [one["text/html"] for one in self.displays.values() if "text/html" in one]
        return html

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


HOST = """<!doctype html><meta charset="utf-8"><title>t</title><main></main>STILL
<script type="application/json" id="state">STATE</script>
<script type="module">
const state = JSON.parse(document.getElementById("state").textContent);
const { default: widget } = await import(URL.createObjectURL(new Blob([state._esm], { type: "text/javascript" })));
const hearers = new Set();
window.sent = [];
window.state = () => state;
window.deliver = (messages) => messages.forEach((message) => hearers.forEach((hear) => hear(message, [])));
let changed = {};
const model = {
  get: (name) => state[name],
  set: (name, value) => (state[name] = changed[name] = value),
  save_changes: () => (sent.push({ method: "update", state: changed, buffer_paths: [] }), (changed = {})),
  send: (content) => sent.push({ method: "custom", content }),
  on: (event, hear) => event === "msg:custom" && hearers.add(hear),
  off: (event, hear) => hearers.delete(hear),
};
window.end = await widget.render({ model, el: document.querySelector("main") });
</script>"""


class Shown:
    """The widget in a page that plays the notebook."""

    def __init__(self, kernel, open_page, folder, **options):
        self.kernel = kernel
        state = json.dumps(kernel.comms[kernel.model]).replace("<", "\\u003c")
        path = folder / "notebook.html"
        path.write_text(HOST.replace("STILL", kernel.still).replace("STATE", state), encoding="utf-8")
        self.opened = open_page(path, ready=False, **options)
        self.page = self.opened.page
        self.page.wait_for_selector("iframe")
        self.frame = self.page.frames[1]

    def settle(self, text):
        """Carries messages between page and kernel until the outcome begins with a text, nothing is being computed, and
        the notebook keeps it.
        """
        end = time.monotonic() + PATIENCE
        told = f"""document.querySelector('[data-slot="outcome"]')?.textContent.startsWith({json.dumps(text)})
            && !document.querySelector('[data-status]').textContent"""
        while not (self.frame.evaluate(told) and text in self.kernel.still):
            for data in self.page.evaluate("sent.splice(0)"):
                self.kernel.send(data)
            self.page.evaluate("messages => deliver(messages)", self.kernel.hear())
            assert time.monotonic() < end, text


@pytest.fixture(scope="module")
def kernel():
    started = Kernel()
    yield started
    started.close()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A notebook that was run without anybody looking, saved and read again."""
    path = tmp_path_factory.mktemp("notebook") / "explored.ipynb"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    nbformat.write(notebook, path)
    return nbformat.read(path, as_version=4)


def test_a_saved_notebook_holds_the_page_and_the_picture(saved):
    view, still = (output.data for output in saved.cells[0].outputs)
    model = view["application/vnd.jupyter.widget-view+json"]["model_id"]
    states = saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    assert states[model]["state"]["page"].startswith("<!doctype html>") and view["text/plain"] == "The explorer"
    assert THIS in still["text/html"] and THAT in still["text/html"] and len(json.dumps(still)) < 20_000


class TestInChromium:
    pytestmark = MARKS

    def test_the_picture_of_a_saved_notebook_needs_neither_scripts_nor_a_network(self, saved, open_page, tmp_path):
        policy = "default-src 'none'; style-src 'unsafe-inline'"
        head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}"><title>t</title>'
        path = tmp_path / "saved.html"
        path.write_text(f"<!doctype html>{head}{saved.cells[0].outputs[1].data['text/html']}", encoding="utf-8")
        opened = open_page(path, ready=False)
        assert opened.trouble == [] and opened.requests == [path.as_uri()]
        cells = opened.page.locator("td")
        assert cells.count() == 16 and cells.first.is_visible()
        tints = cells.evaluate_all("all => all.map(cell => getComputedStyle(cell).backgroundColor)")
        shown = cells.all_inner_texts()
        strongest = max(range(16), key=lambda place: abs(int(shown[place].replace("−", "-") or 0)))
        assert tints[strongest] == "rgba(122, 80, 200, 0.75)" and len(set(tints)) > 4

    def test_it_is_the_explorer(self, kernel, open_page, tmp_path):
        shown = Shown(kernel, open_page, tmp_path)
        frame, page = shown.frame, shown.page
        shown.settle("“bank” stands at 100\u202f% of the way from “that meaning” to “this meaning”.")
        assert frame.locator('[name="text"]').input_value() == THIS
        assert frame.locator('[data-map="toward"] .cell').count() >= 16
        assert page.locator("[id^=still-]").is_hidden()  # as long as the explorer stands there
        frame.locator('[name="map-toward"][value="0.0"]').check(force=True)
        frame.locator('[name="swap"][value="other"]').check(force=True)
        shown.settle("With L0H0 swapped, “bank” stands at ")
        frame.locator('[name="text"]').fill("In the garden they found a mole")
        frame.locator('[name="other"]').fill("In the agency they found a mole")
        shown.settle("With L0H0 swapped, “mole” stands at ")
        assert "In the garden they found a mole" in kernel.still and "With L0H0 swapped, “mole”" in kernel.still
        assert "swap=L0H0-other" in page.evaluate("state().state")
        frame.get_by_role("button", name="Undo").click()
        shown.settle("“mole” stands at 100")
        assert [url for url in shown.opened.requests if not url.startswith(("file:", "blob:", "about:", "data:"))] == []
        assert shown.opened.trouble == []
        page.evaluate("end()")
        page.evaluate("document.querySelector('iframe').remove()")
        assert page.locator("[id^=still-]").is_visible()
