"""What is asked of a causal model, and what is refused with its reason."""

import json
from dataclasses import replace

import pytest
from checkpoints import make_checkpoint
from handmade import PLAIN, WORD, make_sentences, resolver_model, without

from probe.errors import InputError
from probe.experiments.material import REPEATED, prepare
from probe.model.load import load
from probe.text.sentences import LeftOut, Sentence, read_sentences
from probe.text.spans import find_word

LATE = "the cue comes after the word, where a causal model cannot have read it yet"
SAME = (
    "identical to a sentence of another sense up to the word: its cue comes after it, where a "
    "causal model cannot have read it yet"
)
EARLY = make_sentences(frames=2, distances=(1, 2))


@pytest.fixture(scope="module")
def model():
    return resolver_model(0)[0]


@pytest.fixture(scope="module")
def bytewise(tmp_path_factory):
    """A model to which almost every word is several tokens."""
    folder = tmp_path_factory.mktemp("material") / "bytes"
    return load(make_checkpoint(folder, n_layer=1, n_head=2, n_embd=8, n_inner=12, n_positions=64))


def sentence(text, sense, word=WORD, **more):
    start, end = find_word(text, word)
    return Sentence(word=word, sense=sense, text=text, start=start, end=end, **more)


def test_words_and_cues_are_placed(model):
    material = prepare(model, WORD, EARLY)
    assert material.sentences == EARLY and material.left_out == ()
    for row, given in enumerate(EARLY):
        tokens = material.tokens[row]
        assert tokens.pieces[material.targets[row]] == WORD
        assert list(material.words[row]) == [material.targets[row]]
        [cue] = material.cues[row]
        assert tokens.pieces[cue] == given.text[given.cue_start : given.cue_end]
        assert material.targets[row] - cue == given.distance
    assert material.labels == tuple(given.sense for given in EARLY)


def test_a_word_of_several_tokens_is_read_at_the_last(bytewise):
    rows = [
        sentence("one antechamber door", "a", "antechamber"),
        sentence("two antechamber roof", "b", "antechamber"),
    ]
    material = prepare(bytewise, "antechamber", rows)
    for words, target, tokens in zip(
        material.words, material.targets, material.tokens, strict=True
    ):
        assert len(words) > 1 and target == words[-1]
        assert tokens.text[tokens.spans[words[0]][0] : tokens.spans[target][1]] == "antechamber"


def test_a_cue_after_the_word_is_left_out_with_the_reason(model):
    late = make_sentences(frames=1, distances=(2,), cue_after=True)
    mixed = [
        row
        for pair in zip(EARLY, [*late, *EARLY[len(late) :]], strict=True)
        for row in dict.fromkeys(pair)
    ]
    material = prepare(model, WORD, mixed)
    assert material.sentences == EARLY
    assert material.left_out == tuple(LeftOut(given.text, LATE) for given in late)
    for row, given in enumerate(material.sentences):  # the columns stay together
        assert material.tokens[row].text == given.text


def test_what_is_identical_up_to_the_word_is_left_out_without_knowing_the_cue(model):
    late = without(make_sentences(frames=1, distances=(2,), cue_after=True), "cue_start", "cue_end")
    material = prepare(model, WORD, [*EARLY, *late])
    assert material.sentences == EARLY
    assert material.left_out == tuple(LeftOut(given.text, SAME) for given in late)


def test_a_text_with_two_labels_is_said_to_be_that(model):
    twice = [EARLY[0], replace(EARLY[0], sense=EARLY[-1].sense)]
    assert twice[0].sense != twice[1].sense
    material = prepare(model, WORD, [*EARLY[1:], *twice])
    said = "the same text stands under another sense, too: one of the labels is wrong"
    assert material.left_out == tuple(LeftOut(given.text, said) for given in twice)


def test_of_a_beginning_within_one_sense_the_first_sentence_is_kept(model):
    rows = [sentence(f"the {WORD} {after}", "door") for after in PLAIN[:3]]
    rows += [sentence(f"a {WORD} {after}", "canal") for after in PLAIN[:3]]
    material = prepare(model, WORD, rows)
    assert material.sentences == (rows[0], rows[3])
    assert material.left_out == tuple(LeftOut(rows[n].text, REPEATED) for n in (1, 2, 4, 5))


def test_a_bidirectional_model_may_be_asked(model):
    both_ways = replace(model, config=replace(model.config, causal=False))
    late = make_sentences(frames=1, cue_after=True)
    assert prepare(both_ways, WORD, late).sentences == late


def test_cues_may_be_unknown(model):
    unmarked = without(EARLY, "cue_start", "cue_end", "pair")
    material = prepare(model, WORD, unmarked)
    assert set(material.cues) == {None} and len(material.sentences) == len(EARLY)


def test_fewer_than_two_senses_end_in_one_sentence(model):
    late = make_sentences(frames=1, distances=(1,), cue_after=True)
    lost = f"no usable sentence (20 sentences were left out: {LATE})"
    comparing = (
        "Comparing the senses of 'lock': got {}, expected sentences of at least two senses; give "
        "sentences of "
    )
    comparing += "another sense{}."
    more = (
        ", with the cue before the word, or take a model that reads both ways, as "
        "tiny-senses-bidirectional"
    )
    for rows, said in (
        (late, comparing.format(lost, more)),
        ([given for given in EARLY if given.sense == "door"], comparing.format("only 'door'", "")),
    ):
        with pytest.raises(InputError) as error:
            prepare(model, WORD, rows)
        assert str(error.value) == said


def test_a_text_beyond_the_context_window_is_reported_with_file_and_line(model, tmp_path):
    long = replace(EARLY[0], text=EARLY[0].text + " the" * 40)
    rows = [vars(given) | {"where": "not a column"} for given in (*EARLY, long)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(InputError) as error:
        prepare(model, WORD, read_sentences(tmp_path / "own.jsonl").sentences)
    assert str(error.value).startswith(
        f"In {tmp_path / 'own.jsonl'}, line {len(rows)}: reading the text "
    )


@pytest.mark.parametrize(
    ("word", "form"), [("mouse", "mice"), ("carry", "carried"), ("go", "went"), ("Gott", "Götter")]
)
def test_an_explicit_span_is_trusted_whatever_form_it_marks(model, word, form):
    rows = [
        {"word": word, "sense": row.sense, "text": row.text[: row.start] + form}
        | {"start": row.start, "end": row.start + len(form)}
        for row in EARLY
    ]
    material = prepare(model, word, read_sentences(rows).sentences)
    assert len(material) == len(rows) and material.left_out == ()
