"""The output of a notebook: traces and studies as pictures.

Jupyter's own front end is not run. A page with the same HTML imitates a saved notebook, which needs
neither a kernel nor a network.
"""

import pytest
from inside import html_of
from stored_study import stored_study

import probe

HEAD = '<!doctype html><meta charset="utf-8"><title>t</title>'


def test_a_study_without_significant_effects_has_a_note_instead_of_a_picture():
    picture = stored_study("window")._repr_html_()
    assert "<img" not in picture and "These sentences do not separate the meanings of" in picture
    assert picture.count("not significant, so no head is ranked") == 1
    with pytest.raises(TypeError, match="no picture of a dict"):
        html_of({})


def test_the_picture_of_a_long_text_is_small(model):
    assert len(probe.trace(model, "river bank " * 20)._repr_html_()) < 400_000


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


def test_pictures_need_neither_scripts_nor_a_network(model, open_page, tmp_path):
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    head = f'{HEAD}<meta http-equiv="Content-Security-Policy" content="{policy}">'
    shown = [
        probe.trace(model, "He sat by the <b>river</b> near the bank"),
        stored_study(),
    ]
    path = tmp_path / "saved.html"
    path.write_text(head + "".join(one._repr_html_() for one in shown), encoding="utf-8")
    opened = open_page(path, ready=False)
    page = opened.page
    requests = [url for url in opened.requests if not url.startswith("data:")]
    assert opened.trouble == [] and requests == [path.as_uri()]
    images = page.locator("img")
    pictures = images.evaluate_all("all => all.map(one => [one.naturalWidth, one.width, one.alt])")
    assert [wide == 2 * width for wide, width, _ in pictures] == [True, True]
    assert pictures[0][2].startswith("Attention of ")
    assert pictures[1][2].startswith("Maps of bank, mole")
    assert all(share > 0.01 for share in images.evaluate_all(INKED))
    assert "Resolvers: bank L0H0 and L3H2; mole L0H0, L3H2 and L3H0." in page.inner_text("body")
    # The text's own markup is shown, not run.
    assert page.locator("body > div b", has_text="river").count() == 0
