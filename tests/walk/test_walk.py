"""The walk's numbers: identities of every step, equal in frames and page; the choice of the
head; refusals.
"""

import base64
import json
import re

import numpy as np
import pandas as pd
import pytest
import torch
from families import family_model
from inside import DESCRIBED, attention, choose, formula, scene
from markupsafe import escape
from page_text import check_charts

import probe
from probe.walks import numbers

TEXT = "The mole dug a tunnel under the river bank after the flood."


@pytest.fixture(scope="module")
def walked(model):
    return probe.walk(model, TEXT, at="bank", head=(1, 2), beside="A red bank")


@pytest.fixture(scope="module")
def traced(model):
    return probe.trace(model, TEXT)


def unpacked(walked, name):
    """An array from the page."""
    packed = walked.block["arrays"][name]
    return np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])


def coordinates(frame, letter):
    return frame[
        [column for column in frame if column[0] == letter and column[1:].isdigit()]
    ].to_numpy()


def test_the_words_token_vector_is_the_same_in_both_sentences_and_its_position_vector_is_not(
    walked,
):
    rows = walked.frames["embedding"].set_index(["part", "where"])
    assert walked.same_tokens
    assert rows.loc[("token", "here"), "difference"] == 0
    assert rows.loc[("token", "here")].drop("pos").equals(rows.loc[("token", "beside")].drop("pos"))
    assert rows.loc[("position", "here"), "difference"] > 0
    for where in ("here", "beside"):
        parts = [
            coordinates(rows.loc[[(part, where)]], "e") for part in ("token", "position", "sum")
        ]
        assert parts[0] + parts[1] == pytest.approx(parts[2], abs=1e-5)


def test_the_scores_and_the_variants_of_the_shares_are_the_formulas(walked, traced):
    cells, n = walked.frames["attention"], len(traced.tokens)
    grid = {
        name: cells[name].to_numpy().reshape(n, n) for name in ("dot", "score", "open", "steep")
    }
    dot = traced.q[1, 2] @ traced.k[1, 2].T
    assert grid["dot"] == pytest.approx(dot.numpy(), abs=1e-4)
    assert grid["score"] * np.sqrt(8) == pytest.approx(grid["dot"], abs=1e-4)
    assert grid["open"] == pytest.approx(torch.softmax(dot / 8**0.5, -1).numpy(), abs=1e-5)
    masked = dot.masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    assert grid["steep"] == pytest.approx(torch.softmax(masked, -1).numpy(), abs=1e-5)


def test_entropy_and_response_by_hand_and_by_autograd():
    assert numbers.entropy(torch.tensor([0.5, 0.25, 0.25])).item() == pytest.approx(1.5)
    assert numbers.entropy(torch.tensor([1.0, 0.0])).item() == 0
    score = torch.tensor([0.3, -1.0, 2.0])
    jacobian = torch.autograd.functional.jacobian(attention.softmax, score)
    assert numbers.response(attention.softmax(score)).item() == pytest.approx(
        jacobian.trace().item(), abs=1e-6
    )


def test_the_softmax_table_holds_the_words_row(walked):
    table = walked.frames["softmax"].set_index("variant")
    row = walked.frames["attention"].query(f"query_pos == {walked.at}")
    assert table.loc["divided", "largest"] == pytest.approx(row["pattern"].max())
    assert table.loc["not divided", "largest"] == pytest.approx(row["steep"].max())
    assert table.loc["not divided", "entropy"] == pytest.approx(
        -(row["steep"] * np.log2(row["steep"].where(row["steep"] > 0, 1))).sum(), abs=1e-4
    )


def test_the_plane_has_the_largest_variance():
    points = torch.tensor(
        [[3.0, 0, 0], [-3.0, 0, 0], [0, 1.0, 0], [0, -1.0, 0], [0, 0, 0.1], [0, 0, -0.1]]
    )
    projected, explained = numbers.plane(points)
    assert projected[:, 0].tolist() == pytest.approx([3, -3, 0, 0, 0, 0], abs=1e-6)
    assert sum(explained) == pytest.approx(20 / 20.02)
    assert numbers.plane(torch.ones(1, 4))[0].tolist() == [[0, 0]]


def test_a_head_of_a_layer_can_be_requested_and_the_page_gives_its_attention_to_the_token_before(
    model, traced
):
    walked = probe.walk(model, TEXT, at="flood", head=(0, None))
    heads = walked.frames["heads"].query("layer == 0")
    assert walked.layer == 0 and walked.head == heads["from_content"].to_numpy().argmax()
    (_, reason), (_, before) = walked.statements["why"]
    assert reason.startswith("first of 4 heads by how far its ΔE from other content words moves")
    pattern = traced.pattern[0, walked.head]
    by_hand = torch.stack([pattern[pos, pos - 1] for pos in range(2, len(pattern))]).mean()
    assert before == f"{100 * float(by_hand):.0f}\u202f% in this text"


def test_a_first_word_reads_no_other_word_and_nothing_comes_after_the_last_word(model):
    assert probe.walk(model, "The river bank").truncation_change is None
    walked = probe.walk(model, "Bank")
    assert "“Bank” reads no other content word" in walked.statements["why"][0][1]
    assert walked.frames["heads"]["moved"].max() == 0


def test_content_words_exclude_function_words_and_punctuation(model):
    tokens = probe.tokenize(model, "The mole, and his river bank.")
    pieces = zip(tokens.pieces, choose.content_words(tokens), strict=True)
    assert "".join(piece.strip() for piece, content in pieces if content) == "moleriverbank"


def test_the_last_word_is_followed_by_default_or_the_last_that_the_lexicon_has(model):
    assert probe.walk(model, "The river of the river, twice.").word == "twice"
    assert probe.walk(model, "The moles of the banks, twice.").word == "banks"
    tokens = probe.tokenize(model, "The bank of the bank!")
    assert probe.walk(model, tokens.text).at == tokens.positions_of("bank")[-1] < len(tokens) - 2


def test_a_word_of_several_tokens_is_read_at_its_last_token_and_its_tokens_are_not_context(model):
    here = choose.word_in_text(model, "The mole wugged away", "wugged")
    assert len(here.positions) > 1 and here.at == here.positions[-1]
    view = scene.AttentionView.of_self_attention(probe.trace(model, "The mole wugged away"))
    context = view.other_words(here)
    for at in here.positions:
        assert context[at].nonzero()[:, 0].tolist() == list(range(1, here.positions[0]))


def test_the_other_sentence_has_the_same_tokens_at_the_word_and_others_before(model):
    for text, word in (
        ("The river bank", "bank"),
        ("Apple soared", "Apple"),
        ("A verdant wug", "wug"),
    ):
        here = choose.word_in_text(model, text, word)
        there = choose.second_word(model, here, None)
        assert there.ids == here.ids and there.context_ids(causal=True) != here.context_ids(
            causal=True
        )
        assert there.tokens.text != text


def test_the_vectors_of_the_same_word_diverge_with_depth(walked):
    layers = walked.frames["layers"]
    assert layers["depth"].tolist() == [-1, 0, 1, 2]
    assert layers["apart"].iloc[0] == 0 and (layers["apart"].iloc[1:] > 0).all()
    assert layers["attention"].notna().tolist() == [False, False, True, True]


def test_every_column_is_described_and_every_description_has_a_column(model):
    walks = [
        probe.walk(
            model,
            "The old river was by the bank",
            against="The old mole was by the bank",
            at="bank",
        ),
        probe.walk(
            family_model("bart"), "He sat by the river", target="a fluffy river roamed", at="river"
        ),
    ]
    used = set()
    for walk in walks:
        rows = walk.frames["columns"].set_index(["table", "column"])
        frames = walk.frames
        assert list(rows.index) == [(name, column) for name in frames for column in frames[name]]
        assert (rows["meaning"].str.len() > 3).all()
        for name, column in rows.index:
            measured = frames[name][column].dtype.kind == "f" and column != "tolerance"
            assert not measured or rows.loc[(name, column), ["formula", "unit"]].all(), (
                name,
                column,
            )
            key = re.sub(r"\d+$", "#", column)
            used.add(f"{name}.{key}" if f"{name}.{key}" in DESCRIBED else key)
    assert used == set(DESCRIBED)


def test_formulas_are_the_functions_without_their_docstrings():
    scores = "return q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])"
    assert formula(attention.scores) == ("attention.scores(q, k)", scores)


def test_the_same_walk_writes_the_same_bytes_and_so_does_one_that_was_read(walked, model, tmp_path):
    again = probe.walk(model, TEXT, at="bank", head=(1, 2), beside="A red bank")
    first = probe.write(walked, tmp_path / "first").parent
    second = probe.write(again, tmp_path / "second").parent
    third = probe.write(probe.read(first), tmp_path / "third").parent
    names = {file.name for file in first.iterdir()}
    tables = {f"{name}.csv" for name in walked.frames}
    assert names == {"walk.html", "walk.record", "manifest.json", "tables.zip"} | tables
    for name in names - {"manifest.json"}:
        assert len({(out / name).read_bytes() for out in (first, second, third)}) == 1, name
    check_charts(first / "walk.html")
    manifest = json.loads((first / "manifest.json").read_text())
    assert manifest["options"]["word"] == "bank" and set(manifest["files"]) == names - {
        "manifest.json"
    }
    assert len(pd.read_csv(first / "values.csv")) == walked.at + 1


def test_the_tables_of_a_replaced_walk_are_removed(model, tmp_path):
    """Tables that the user has changed stay."""
    probe.write(probe.walk(model, TEXT, at="bank", against="A bank"), tmp_path)
    (tmp_path / "contrast.csv").write_text("my notes", encoding="utf-8")
    probe.write(probe.walk(model, TEXT, at="bank"), tmp_path)
    after = {file.name for file in tmp_path.iterdir()}
    files = json.loads((tmp_path / "manifest.json").read_text("utf-8"))["files"]
    assert after == {*files, "manifest.json", "contrast.csv"} and "contrast.csv" not in files


TWO = {"against": "A bank", "beside": "My bank"}
REFUSED = [
    ("", {}, "Cannot read the text: it is empty. Give a sentence with at least one word."),
    ("?!", {}, "a word of '?!': got no letters or digits. Give a text with a word in it."),
    ("The bank", {"at": "mole"}, "it occurs nowhere. Give a word of the text."),
    (
        "The bank",
        {"against": "The bank"},
        "twice, where nothing can differ. Give a second one with",
    ),
    (
        "The bank",
        TWO,
        "got both beside and against, expected one other sentence. Give one of them.",
    ),
    ("The bank", {"against": "A mole", "at": "bank"}, "Cannot find 'bank' in 'A mole': it occurs"),
    (
        "The bank of the river",
        {"beside": "The garden of a mole"},
        "the two sentences share only “the”, “of”, expected an ambiguous word. Write both with",
    ),
    ("The bank", {"beside": "A mole"}, "the two sentences share no word, expected"),
    ("bank " * 60, {}, "expected at most 48, the context window of"),
    ("The bank", {"head": (2, None)}, ": it has 2 layers. Give a layer from 0 to 1."),
    ("The bank", {"head": (0, 4)}, ": it has 4 heads per layer. Give a head from 0 to 3."),
    ("The bank", {"head": (-1, 0)}, "Cannot follow layer -1 of "),
    (
        "The bank",
        {"head": (None, 1)},
        "got a head without its layer, expected both. Give the layer",
    ),
    (TEXT, {"at": " "}, "got an empty one, expected a word of the text. Give bank, say."),
]


@pytest.mark.parametrize(("text", "options", "message"), REFUSED)
def test_invalid_walks_are_refused_in_one_sentence(model, text, options, message):
    with pytest.raises(probe.InputError) as raised:
        probe.walk(model, text, **options)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_a_notebook_shows_the_walk(walked):
    page = walked._repr_html_()
    assert (
        escape(walked.statements["answer"]) in page
        and "L1H2" in page
        and "values" in page
        and "<script" not in page
    )
