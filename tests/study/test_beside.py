"""The sentence whose cue comes after the word, in a model that reads left to right and in one that reads both ways."""

from dataclasses import replace

import pytest

import probe
from probe.errors import InputError, UnsupportedModel
from probe.model.tokens import is_one_token
from probe.study import examples
from probe.study.material import prepare
from probe.study.word import StudyOptions, observe_word
from probe.text import lexicon

BOTH_WAYS = "tiny-senses-bidirectional"
APPLE = "Apple unveiled a new smartphone model at their latest product launch event"
pytestmark = pytest.mark.real_model


@pytest.fixture(scope="module")
def studied():
    return probe.study(probe.load("tiny-senses"), "apple", permutations=99, max_pairs=8, beside=probe.load(BOTH_WAYS))


def of_apple(frame):
    [row] = frame[frame["text"] == APPLE].to_dict("records")
    return row


def test_left_to_right_nothing_at_the_word_changes(studied):
    row = of_apple(studied.showcase)
    assert row["reads_as"] is None or row["reads_as"] != row["reads_as"]
    assert row["difference"] <= 1e-5


def test_both_ways_the_word_is_a_company_by_words_that_come_later(studied):
    row = of_apple(studied.beside)
    assert row["model"] == BOTH_WAYS and row["shown"]
    assert row["reads_as"] == row["sense"] == "company"
    toward = 1 if row["sense_a"] == "company" else -1
    assert toward * row["coordinate"] > 0.2
    assert row["difference"] > 0.2
    assert row["source"] == row["cue"] == "smartphone" and row["share"] > 0.1
    assert toward * row["cue_alone"] > 0.2 > toward * row["nothing"]
    assert row["through"].startswith("L")


def test_what_a_word_costs_and_what_it_does_alone_are_differences_of_hidden_texts():
    model = probe.load(BOTH_WAYS)
    sentences = lexicon.keep_one_token_cues(
        lexicon.expand("apple", both_sides=True), lambda piece: is_one_token(model, piece)
    )
    result = observe_word(model, prepare(model, sentences, "apple"), StudyOptions(0))
    row, [pair] = of_apple(examples.second_model(model, [result])), result.pairs
    tokens, mask = probe.tokenize(model, APPLE), model.tokenizer.mask_token_id
    others = set(range(2, len(tokens) - 1))  # between stand [CLS], the word, and at the end [SEP]
    cue = tokens.pieces.index(" smartphone")

    def coordinate(hidden):
        ids = tuple(mask if pos in hidden else token for pos, token in enumerate(tokens.ids))
        states = probe.target_states(model, [replace(tokens, ids=ids)], [1])
        return pair.axis.coordinate(states.resid[:, result.depth]).item()

    whole = coordinate(())
    lost = {tokens.pieces[pos].strip(): (whole - coordinate({pos})) / whole for pos in others}
    assert row["coordinate"] == pytest.approx(whole, abs=1e-4)
    assert row["source"] == max(lost, key=lost.__getitem__)
    assert row["share"] == pytest.approx(lost[row["source"]], abs=1e-4)
    assert row["cue_share"] == pytest.approx(lost["smartphone"], abs=1e-4)
    assert row["cue_alone"] == pytest.approx(coordinate(others - {cue}), abs=1e-4)
    assert row["nothing"] == pytest.approx(coordinate(others), abs=1e-4)


def test_the_page_shows_both(studied, tmp_path):
    page = probe.write_report(studied, tmp_path).read_text(encoding="utf-8")
    told = page[page.index('<dl class="beside">') :]
    told = told[: told.index("</dl>")]
    assert "tiny-senses, left to right" in told and f"{BOTH_WAYS}, both ways" in told
    assert "no head&#39;s write at the word changes" in told or "no head's write at the word changes" in told
    assert "Of single words “smartphone” counts most. Coordinate with it hidden: " in told
    assert "; with “smartphone” as the only other word: " in told


def test_a_causal_model_beside_is_refused_before_the_work():
    model = probe.load("tiny-senses")
    with pytest.raises(InputError) as caught:
        probe.study(model, "seal", beside=model, planned=lambda plan: pytest.fail("it had begun"))
    assert str(caught.value) == (
        "Reading the sentences whose cue comes after the word beside the study: tiny-senses reads left to right only, "
        "expected a model "
        "that reads both ways; give tiny-senses-bidirectional or another BERT or RoBERTa."
    )


def test_an_encoder_decoder_beside_is_refused():
    with pytest.raises(
        UnsupportedModel, match="a word is read in one stack of blocks, and it has an encoder and a decoder"
    ):
        probe.study(probe.load("tiny-senses"), "apple", permutations=99, beside=probe.load("tiny-translator"))
