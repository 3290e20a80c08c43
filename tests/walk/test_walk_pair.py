"""The walk across two texts: contributions to the logit of a word, its page, rectangular charts,
refusals.
"""

import json
from itertools import product

import drawing
import numpy as np
import pandas as pd
import pytest
import torch
from browser import cells, dots, number, settled, unfold
from families import family_model
from inside import blocks, certify_pair, decimal, first_token, percent
from test_walk import unpacked
from test_walk_families import close

import probe
from probe.walks.charts import ACROSS, pictures

SOURCE, TARGET, WORD = "He sat by the river near the bank", "a fluffy river roamed", "river"


@pytest.fixture(scope="module")
def model():
    return family_model("bart")


@pytest.fixture(scope="module")
def walked(model):
    return probe.walk(model, SOURCE, target=TARGET, at=WORD, head=(1, 2))


@pytest.fixture(scope="module")
def pair(model):
    return probe.trace(model, SOURCE, TARGET)


@pytest.fixture(scope="module")
def page_path(walked, tmp_path_factory):
    return probe.write(walked, tmp_path_factory.mktemp("walk"), command="probe walk")


def test_a_word_of_the_target_is_followed_where_it_is_chosen(model, walked, pair):
    first = pair.target.positions_of(WORD)[0]
    assert walked.at == first - 1
    before = TARGET[: TARGET.index(WORD)].rstrip()
    added = probe.cross.direct_logits(model, probe.trace(model, SOURCE, before), WORD)[
        walked.layer, walked.head, -1
    ]
    close(walked.frames["values"]["logit"].to_numpy(), added, rtol=1e-3, atol=1e-6)


def test_a_word_that_the_target_does_not_have_yet_is_followed_at_the_last_token(model, pair):
    walked = probe.walk(model, SOURCE, target=TARGET, at="bank")
    assert walked.at == len(probe.trace(model, SOURCE, TARGET).target) - 1
    added = probe.cross.direct_logits(model, probe.trace(model, SOURCE, TARGET), "bank")[
        :, :, -1
    ].sum(-1)
    assert (walked.layer, walked.head) == divmod(int(added.argmax()), added.shape[1])
    rows = dict(walked.statements["why"])
    heads = walked.frames["heads"].set_index(["layer", "head"])["logit"]
    best = decimal(heads[walked.layer, walked.head])
    assert rows[f"why L{walked.layer}H{walked.head}"] == (
        f"first of {added.numel()} heads by what it adds to the logit of “bank”: {best}"
    )
    token = first_token(model, TARGET, "bank")
    first = model.tokenizer.decode([token]).strip()
    assert rows["read at the token"] == f"“{first or '·'}”, the first of “bank”"
    started = f"L{walked.layer}H{walked.head} alone adds {best} to the logit of “bank”, "
    assert walked.statements["answer"].startswith(started)
    above = pair.logits[-1] - pair.logits[-1].mean()
    for name, value in (
        (f"all {added.numel()} heads of cross-attention", added.sum().item()),
        ("whole logit, against the mean of all tokens", above[token].item()),
    ):
        assert rows[name] == decimal(value)
    assert rows["tokens that are likelier"] == str(int((above > above[token]).sum()))


def test_without_a_word_the_head_that_takes_most_from_the_content_words_of_the_source_is_followed(
    model, pair
):
    walked = probe.walk(model, SOURCE, target=TARGET)
    words = [
        (SOURCE.index(word), SOURCE.index(word) + len(word)) for word in ("sat", "river", "bank")
    ]
    content = [
        pos
        for pos, (low, high) in enumerate(pair.source.spans)
        if any(low < end and high > start for start, end in words)
    ]
    after = (pair.cross.resid_pre[:, -1] + pair.cross.attn_out[:, -1]).norm(dim=-1)
    sizes = torch.tensor(
        [
            pair.cross.delta_e_by_source(layer, head, -1)[content].sum(0).norm() / after[layer]
            for layer, head in product(range(2), range(4))
        ]
    )
    assert (walked.layer, walked.head) == divmod(int(sizes.argmax()), 4) and walked.word is None
    assert walked.statements["why"][0][1].endswith(
        f"{percent(float(sizes.max()))} of the vector's length"
    )
    assert "logit" not in walked.frames["values"] and "logit" not in walked.block["arrays"]


REFUSED = [
    ("bart", {"target": None}, "it is an encoder-decoder. Give the translation so far as target."),
    ("llama", {}, "it has no decoder for a target. Give a word to follow as at=, or take an"),
    (
        "bart",
        {"beside": SOURCE},
        "a walk through two texts compares no word with another sentence.",
    ),
    ("bart", {"at": " "}, "got an empty one, expected a word of the translation. Give rive, say."),
    ("bart", {"head": (2, 0)}, "layer 2 of bart: it has 2 layers. Give a layer from 0 to 1."),
    ("bart", {"target": " "}, "the text: it is empty. Give a sentence with at least one word."),
]


@pytest.mark.parametrize(("kind", "options", "message"), REFUSED)
def test_invalid_walks_are_refused_in_one_sentence(kind, options, message):
    with pytest.raises(probe.InputError) as raised:
        probe.walk(family_model(kind), SOURCE, **({"target": TARGET} | options))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_the_two_texts_are_certified_and_nothing_is_walked_when_hooks_and_formulas_disagree(
    model, monkeypatch
):
    scales = {
        (row.where, row.quantity): row.scale for row in certify_pair(model, SOURCE, TARGET).rows
    }
    cross = probe.trace(model, SOURCE, TARGET).cross
    for layer, scores in enumerate(cross.scores):
        assert scales[f"cross layer {layer}", "scores"] == pytest.approx(
            scores.abs().max().item(), rel=1e-5
        )
    attend = blocks.attend
    monkeypatch.setattr(blocks, "attend", lambda *inputs: 2 * attend(*inputs))
    with pytest.raises(probe.CrossCheckError, match="z of encoder layer 0 is off by"):
        probe.walk(model, SOURCE, target=TARGET)


def test_the_command_shows_where_rive_comes_from(run, tmp_path):
    source, target = (
        "Nobody knew why the bank was near the river.",
        "Personne ne savait pourquoi la",
    )
    options = [
        "--target",
        target,
        "--word",
        "rive",
        "--model",
        "tiny-translator",
        "--out",
        tmp_path,
    ]
    assert run("walk", source, *options)[:2] == (0, f"{tmp_path / 'walk.html'}\n")
    command = json.loads((tmp_path / "manifest.json").read_text())["command"]
    assert command.startswith(
        f"probe walk '{source}' --target '{target}' --word rive --model tiny-translator --layer "
    )
    values = pd.read_csv(tmp_path / "values.csv").set_index("label")
    assert values["logit"].idxmax() == "4·bank"
    page = (tmp_path / "walk.html").read_text(encoding="utf-8")
    assert " to the logit of “rive”, mostly from “bank”." in page
    assert pd.read_csv(tmp_path / "lens.csv").query("rank == 1")["token"].iloc[-1].strip() == "rive"


def test_grids_and_matrices_take_two_texts(walked, pair):
    charts = pictures(walked)
    sizes = len(pair.target), len(pair.source)
    for queries in ("rows", "columns"):
        spec = charts[f"stage_{queries}"].to_dict()
        ground = spec["layer"][0]["encoding"]
        assert (ground["y"]["sort"], ground["x"]["sort"]) == (None, None)
        assert ground["y"]["title"] == ACROSS["query" if queries == "rows" else "key"]
        assert f"{sizes[0]} by {sizes[1]} tokens" in spec["description"]
    cells_of = walked.frames["attention"].rename(columns={"pattern": "value"}).assign(panel="L1H2")
    spec = drawing.matrix_panels(cells_of, {"L1H2": "shares"}).to_dict()["hconcat"][0]
    assert spec["width"] / spec["height"] == pytest.approx(sizes[1] / sizes[0])
    assert spec["layer"][0]["encoding"]["x"]["sort"] == list(pair.source.labels)


class TestPage:
    def test_the_answer_comes_first_and_the_pattern_is_a_rectangle(
        self, shared_page, page_path, walked, pair
    ):
        page = shared_page(page_path).page
        assert page.locator("h1 + p").inner_text() == walked.statements["answer"]
        unfold(page)
        sizes = len(pair.target), len(pair.source)
        dot_sizes = dots(page, "stage", "rows")
        assert len(dot_sizes) == sizes[0] * sizes[1]
        across, down = ({position[axis] for position in dot_sizes} for axis in (0, 1))
        assert across == set(range(sizes[1])) and down == set(range(sizes[0]))
        for row, weights in enumerate(pair.cross.pattern[walked.layer, walked.head]):
            widths = [dot_sizes[column, row] for column in range(sizes[1])]
            assert np.argsort(widths)[-3:].tolist() == weights.argsort()[-3:].tolist()
        page.locator('[name="queries"][value="columns"]').check(force=True)
        settled(page)
        transposed = dots(page, "stage", "columns")
        assert set(transposed) == {(row, column) for column, row in dot_sizes}

    def test_a_head_and_a_token_are_followed_by_every_step(
        self, shared_page, page_path, walked, pair
    ):
        page = shared_page(page_path).page
        unfold(page)
        page.locator('[data-map="moved"] [value="0.1"]').check(force=True)
        page.locator('[name="at"][value="1"]').check(force=True)
        settled(page)
        rows, heads, pattern = (
            cells(page, "values"),
            cells(page, "heads"),
            pair.cross.pattern[0, :, 1],
        )
        weights, lengths = ([number(row[column][1]) for row in rows[:-1]] for column in (1, -3))
        assert weights == pytest.approx(pattern[1].tolist(), rel=1e-4, abs=1e-9)
        parts = pair.cross.delta_e_by_source(0, 1, 1)
        assert lengths == pytest.approx(parts.norm(dim=-1).tolist(), rel=1e-3, abs=1e-6)
        assert [row[0][0] for row in rows] == [*pair.source.labels, "sum"]
        assert "L0H1 at “" in page.locator('[data-slot="following"]').inner_text()
        adds, largest = ([number(row[column][1]) for row in heads] for column in (-1, 4))
        assert adds == pytest.approx(unpacked(walked, "adds")[0, :, 1].tolist(), rel=1e-3, abs=1e-6)
        assert largest == pytest.approx(pattern.amax(-1).tolist(), rel=1e-4)
        assert [row[3][0] for row in heads] == [
            pair.source.labels[best] for best in pattern.argmax(-1)
        ]
        following = pair.logits[1].softmax(-1).topk(5).values.tolist()
        probabilities = (
            page.locator('[data-rows="lens"] tr').last.locator("td").first.locator("small")
        )
        titles = probabilities.evaluate_all("all => all.map(item => item.title)")
        assert [number(title) for title in titles] == pytest.approx(following, rel=1e-4)
