"""Traces and studies in a notebook: pictures that need no script and no network, and stay in the saved file."""

from pathlib import Path

import nbformat
import pytest
from browser import MARKS
from example_study import make_study
from nbclient import NotebookClient

import probe
from probe.pages.notebook import html_of

TESTS = Path(__file__).parents[1]
CELLS = (
    """import probe
model = probe.load({folder!r})
probe.trace(model, "He sat by the <b>river</b> near the bank")""",
    """import sys
sys.path.insert(0, {tests!r})
from example_study import make_study
make_study()""",
)


@pytest.fixture(scope="module")
def executed(checkpoint, tmp_path_factory):
    """The HTML outputs of a notebook that was run, saved and read again."""
    path = tmp_path_factory.mktemp("notebook") / "shown.ipynb"
    cells = [nbformat.v4.new_code_cell(cell.format(folder=str(checkpoint), tests=str(TESTS))) for cell in CELLS]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    nbformat.write(notebook, path)
    saved = nbformat.read(path, as_version=4)
    return [output.data["text/html"] for cell in saved.cells for output in cell.outputs if "data" in output]


def page_of(shown, folder):
    """A page of these outputs that may load nothing but what stands in it and run nothing at all."""
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = f'<meta charset="utf-8"><meta http-equiv="Content-Security-Policy" content="{policy}"><title>t</title>'
    path = folder / "shown.html"
    path.write_text(f"<!doctype html>{head}{''.join(shown)}", encoding="utf-8")
    return path


class TestInChromium:
    pytestmark = MARKS

    def test_a_saved_notebook_shows_pictures_without_scripts_or_a_network(self, executed, open_page, tmp_path):
        path = page_of(executed, tmp_path)
        opened = open_page(path, ready=False)
        page = opened.page
        assert opened.trouble == [] and [url for url in opened.requests if not url.startswith("data:")] == [
            path.as_uri()
        ]
        pictures = page.locator("img").evaluate_all("all => all.map(one => [one.naturalWidth, one.width, one.alt])")
        assert [wide == 2 * drawn for wide, drawn, _ in pictures] == [True, True]
        assert pictures[0][2].startswith("Attention of 8 heads over ") and pictures[1][2].startswith(
            "Maps of bank, mole"
        )
        text = page.inner_text("body")
        assert "Single heads were shown to move “bank” and “mole”; for “apple” none was." in text
        assert page.locator("body b", has_text="river").count() == 0  # the text's own markup is shown, not run
        inked = page.locator("img").evaluate_all(INKED)
        assert all(share > 0.01 for share in inked), inked


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


def test_a_study_that_shows_nothing_has_no_picture_and_says_so():
    shown = make_study(apart=False)._repr_html_()
    assert "<img" not in shown and "No single head was shown to move any of these words." in shown
    assert shown.count("Not shown: in these sentences") == 3


def test_what_has_no_picture_is_a_mistake_of_the_caller():
    with pytest.raises(TypeError, match="no picture of a dict"):
        html_of({})


def test_a_long_text_keeps_the_picture_small(model):
    shown = probe.trace(model, "river bank " * 20)._repr_html_()
    assert len(shown) < 400_000
