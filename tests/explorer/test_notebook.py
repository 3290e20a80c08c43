"""The output of a notebook: traces and studies as pictures, the explorer as a widget whose page
sends questions to a running kernel.

One notebook is run, saved and read again; its kernel then answers the page. The saved
notebook needs neither scripts nor a network.

Jupyter's own front end is not run: a page imitates the interface of anywidget (`render({model,
el})`, with get, set, save_changes, send, on and off) and sends its messages to the kernel as comm
messages, as Jupyter does.
"""

import asyncio
import json
import queue
import re
import sys
import time
from pathlib import Path
from urllib.parse import parse_qsl

import nbformat
import pytest
from example_study import make_study

import probe
from probe.display import html_of
from probe.errors import InputError
from probe.explorer.session import Explorer, messages

anywidget = pytest.importorskip(
    "anywidget", reason="anywidget is not installed: probe-heads[explore]"
)

from jupyter_client.manager import KernelManager
from nbclient import NotebookClient

THIS, THAT = "They saw the river from the bank", "They saw the money from the bank"
CELLS = (
    """import probe
model = probe.load("tiny-senses")
probe.trace(model, "He sat by the <b>river</b> near the bank")""",
    f"""import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from example_study import make_study
make_study()""",
    f"""widget = probe.explore(model, {THIS!r}, against={THAT!r})
widget""",
)
PATIENCE = 60
QUESTION = {"what": "sentence", "text": THIS, "other": THAT, "page": "a", "number": 1}


@pytest.fixture(scope="module")
def widget(tiny):
    return probe.explore(tiny, THIS, against=THAT)


def messages_of(widget, *questions):
    """The messages of the widget until every question has its last message."""
    sent = []
    widget.send = lambda message: sent.append(message)

    async def ask():
        for question in questions:
            widget._handle_custom_msg(question, [])
        while sum("doing" not in message for message in sent) < len(questions):
            await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(ask(), PATIENCE))
    return sent


def of(sent, number):
    return [message for message in sent if message["number"] == number]


def test_a_study_without_significant_effects_has_a_note_instead_of_a_picture():
    picture = make_study(apart=False)._repr_html_()
    assert "<img" not in picture and "These sentences do not separate the meanings of" in picture
    assert picture.count("not significant, so no head is ranked") == 3
    with pytest.raises(TypeError, match="no picture of a dict"):
        html_of({})


def test_the_picture_of_a_long_text_is_small(model):
    assert len(probe.trace(model, "river bank " * 20)._repr_html_()) < 400_000


@pytest.mark.real_model
class TestMessages:
    def test_the_widget_answers_like_the_server(self, tiny, widget):
        sent = messages_of(widget, QUESTION | {"number": 7})
        alike = [message | {"number": 7} for message in messages(Explorer(tiny), QUESTION)]
        assert sent == alike and len(alike) == 5
        assert json.loads(json.dumps(sent)) == sent

    def test_a_newer_question_ends_the_older_one(self, widget):
        sent = messages_of(
            widget, QUESTION | {"number": 10, "what": "trace"}, QUESTION | {"number": 11}
        )
        assert of(sent, 10)[-1] == {"number": 10, "superseded": True}
        assert "result" in of(sent, 11)[-1]

    def test_an_invalid_question_gets_an_error(self, widget):
        for question, sentence in (
            (QUESTION | {"text": "a\x00b"}, "it contains a NUL character"),
            ({}, "got what = None"),
        ):
            (message,) = messages_of(widget, question | {"page": sentence})
            assert sentence in message["error"]

    def test_it_opens_with_the_sentences_of_its_call(self, widget):
        assert dict(parse_qsl(widget.state[1:])) == {"text": THIS, "other": THAT}
        (policy,) = re.findall(
            r'http-equiv="Content-Security-Policy" content="([^"]*)"', widget.page
        )
        assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
        assert "connect-src" not in policy and "unsafe" not in policy

    def test_a_text_that_cannot_be_explored_is_refused_at_once(self, tiny):
        with pytest.raises(InputError, match="it is empty"):
            probe.explore(tiny, " ")
        with pytest.raises(InputError, match="the two sentences share no word"):
            probe.explore(tiny, THIS, against="Nothing here.")

    def test_a_word_without_an_axis_is_displayed_without_a_map(self, tiny):
        explorer = probe.explore(tiny, "He walked to the garden")
        assert set(explorer.results) == {"sentence"} and "garden" in explorer._picture().data

    def test_the_repr_names_the_model_and_the_sentences(self, tiny, widget):
        assert repr(widget) == f"<ExplorerWidget of tiny-senses: {THIS!r} against {THAT!r}>"
        assert repr(probe.explore(tiny, THIS)) == f"<ExplorerWidget of tiny-senses: {THIS!r}>"

    def test_without_anywidget_the_error_names_the_package_to_install(self, tiny, monkeypatch):
        monkeypatch.delitem(sys.modules, "probe.explorer.widget")
        monkeypatch.setitem(sys.modules, "anywidget", None)
        with pytest.raises(
            InputError,
            match="the package anywidget is missing. Install it with pip install anywidget",
        ):
            probe.explore(tiny, THIS)


class Kernel:
    """The kernel of the notebook after its last cell; its widget's state and its picture, as a
    front end stores them."""

    def __init__(self, folder):
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(cell) for cell in CELLS]
        )
        NotebookClient(notebook, timeout=300, km=self.manager).execute()
        nbformat.write(notebook, folder / "shown.ipynb")
        self.saved = nbformat.read(folder / "shown.ipynb", as_version=4)
        *pictures, (view, still) = [cell.outputs for cell in self.saved.cells]
        self.pictures = [outputs[0].data["text/html"] for outputs in pictures]
        self.view, self.still = view.data, still.data["text/html"]
        self.model = self.view["application/vnd.jupyter.widget-view+json"]["model_id"]
        states = self.saved.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
        self.state = states[self.model]["state"]
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=PATIENCE)

    def hear(self):
        """Receive the messages of the kernel, and return the custom messages to the widget."""
        custom = []
        while True:
            try:
                message = self.client.get_iopub_msg(timeout=0.05)
            except queue.Empty:
                return custom
            kind, content = message["msg_type"], message["content"]
            assert kind != "error", content["evalue"]
            if kind == "comm_msg" and content["data"]["method"] == "custom":
                custom.append(content["data"]["content"])
            elif kind == "update_display_data":
                self.still = content["data"]["text/html"]

    def send(self, data):
        content = {"comm_id": self.model, "data": data}
        self.client.shell_channel.send(self.client.session.msg("comm_msg", content))

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


HOST = """<!doctype html><meta charset="utf-8"><title>t</title><main></main>STILL
<script type="application/json" id="state">STATE</script>
<script type="module">
const state = JSON.parse(document.getElementById("state").textContent);
const source = new Blob([state._esm], { type: "text/javascript" });
const { default: widget } = await import(URL.createObjectURL(source));
const hearers = new Set();
window.sent = [];
window.state = () => state;
window.deliver = (messages) => {
  for (const message of messages) hearers.forEach((hear) => hear(message, []));
};
let changed = {};
const model = {
  get: (name) => state[name],
  set: (name, value) => (state[name] = changed[name] = value),
  save_changes: () => {
    sent.push({ method: "update", state: changed, buffer_paths: [] });
    changed = {};
  },
  send: (content) => sent.push({ method: "custom", content }),
  on: (event, hear) => event === "msg:custom" && hearers.add(hear),
  off: (event, hear) => hearers.delete(hear),
};
window.end = await widget.render({ model, el: document.querySelector("main") });
</script>"""


class NotebookPage:
    """The widget in a page that imitates the notebook."""

    def __init__(self, kernel, open_page, folder, **options):
        self.kernel = kernel
        state = json.dumps(kernel.state).replace("<", "\\u003c")
        path = folder / "notebook.html"
        path.write_text(
            HOST.replace("STILL", kernel.still).replace("STATE", state), encoding="utf-8"
        )
        self.opened = open_page(path, ready=False, **options)
        self.page = self.opened.page
        self.page.wait_for_selector("iframe")
        self.frame = self.page.frames[1]

    def settle(self, text):
        """Pass messages on until the outcome begins with a text that the notebook stores, and
        nothing is being computed."""
        end = time.monotonic() + PATIENCE
        is_settled = f"""
            document.querySelector('[data-slot="outcome"]')
                ?.textContent.startsWith({json.dumps(text)})
            && !document.querySelector('[data-status]').textContent"""
        while not (self.frame.evaluate(is_settled) and text in self.kernel.still):
            for data in self.page.evaluate("sent.splice(0)"):
                self.kernel.send(data)
            self.page.evaluate("messages => deliver(messages)", self.kernel.hear())
            assert time.monotonic() < end, text


@pytest.fixture(scope="module")
def kernel(tmp_path_factory):
    started = Kernel(tmp_path_factory.mktemp("notebook"))
    yield started
    started.close()


@pytest.mark.campaign
def test_a_saved_notebook_contains_the_page_and_the_picture(kernel):
    assert (
        kernel.state["page"].startswith("<!doctype html>")
        and kernel.view["text/plain"] == "The explorer"
    )
    assert THIS in kernel.still and THAT in kernel.still and len(kernel.still) < 20_000


INKED = """all => all.map(image => {
  const [width, height] = [image.naturalWidth, image.naturalHeight];
  const canvas = Object.assign(document.createElement("canvas"), { width, height });
  const drawn = canvas.getContext("2d");
  drawn.drawImage(image, 0, 0);
  const { data } = drawn.getImageData(0, 0, canvas.width, canvas.height);
  let violet = 0;
  for (let at = 0; at < data.length; at += 4) violet += data[at + 2] > data[at + 1] + 25;
  return violet / (data.length / 4);
})"""


@pytest.mark.campaign
class TestInChromium:
    def test_a_saved_notebook_needs_neither_scripts_nor_a_network(
        self, kernel, open_page, tmp_path
    ):
        policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
        head = (
            '<meta charset="utf-8"><title>t</title>'
            f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        )
        path = tmp_path / "saved.html"
        still = kernel.saved.cells[-1].outputs[1].data["text/html"]
        path.write_text(
            f"<!doctype html>{head}{''.join(kernel.pictures)}<main>{still}</main>", encoding="utf-8"
        )
        opened = open_page(path, ready=False)
        page, requests = (
            opened.page,
            [url for url in opened.requests if not url.startswith("data:")],
        )
        assert opened.trouble == [] and requests == [path.as_uri()]
        images = page.locator("img")
        pictures = images.evaluate_all(
            "all => all.map(one => [one.naturalWidth, one.width, one.alt])"
        )
        assert [wide == 2 * width for wide, width, _ in pictures] == [True, True]
        assert pictures[0][2].startswith("Attention of 16 heads over ")
        assert pictures[1][2].startswith("Maps of bank, mole")
        assert all(share > 0.01 for share in images.evaluate_all(INKED))
        assert "Resolvers: bank L0H2; mole L0H1 and L0H2." in page.inner_text("body")
        assert (
            page.locator("body > div b", has_text="river").count() == 0
        )  # the text's own markup is shown, not run
        cells = page.locator("main td")
        assert cells.count() == 16 and cells.first.is_visible()
        tints = cells.evaluate_all("all => all.map(cell => getComputedStyle(cell).backgroundColor)")
        values = cells.all_inner_texts()
        strongest = max(range(16), key=lambda index: abs(int(values[index].replace("−", "-") or 0)))
        assert tints[strongest] == "rgba(122, 80, 200, 0.75)" and len(set(tints)) > 4

    def test_the_widget_behaves_like_the_explorer(self, kernel, open_page, tmp_path):
        notebook = NotebookPage(kernel, open_page, tmp_path)
        frame, page = notebook.frame, notebook.page
        notebook.settle("L0H0 alone moves “bank” ")
        assert frame.locator('[name="text"]').input_value() == THIS
        assert frame.locator('[data-map="swap"] .cell').count() >= 16
        assert page.locator("[id^=picture-]").is_hidden()  # while the explorer is displayed
        frame.locator('[name="map-swap"][value="0.0"]').click(force=True)
        notebook.settle("With L0H0 swapped, “bank” moves ")
        frame.locator('[name="text"]').fill("In the garden they found a mole")
        frame.locator('[name="other"]').fill("In the agency they found a mole")
        notebook.settle("With L0H0 swapped, “mole” moves ")
        assert (
            "In the garden they found a mole" in kernel.still
            and "With L0H0 swapped, “mole”" in kernel.still
        )
        assert "swap=L0H0-other" in page.evaluate("state().state")
        frame.get_by_role("button", name="Undo").click()
        notebook.settle("L0H0 alone moves “mole” ")
        assert all(
            url.startswith(("file:", "blob:", "about:", "data:"))
            for url in notebook.opened.requests
        )
        assert notebook.opened.trouble == []
        page.evaluate("end()")
        page.evaluate("document.querySelector('iframe').remove()")
        assert page.locator("[id^=picture-]").is_visible()
