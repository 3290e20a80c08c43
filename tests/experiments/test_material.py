"""The sentences that a causal model can use, and the reasons why the others are left out."""

import json
from dataclasses import replace

import pytest
from checkpoints import make_checkpoint
from handmade import PLAIN, WORD, make_sentences, resolver_model, without
from inside import REPEATED, LeftOut, Sentence, find_word, prepare, prepare_counted

from probe import InputError, load, read_sentences

LATE = "the cue comes after the word, where a causal model cannot have read it yet"
NOTHING_BEFORE = "no text precedes the word, and this model reads left to right"
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
    """A model that splits almost every word into several tokens."""
    folder = tmp_path_factory.mktemp("material") / "bytes"
    return load(make_checkpoint(folder, n_layer=1, n_head=2, n_embd=8, n_inner=12, n_positions=64))


def sentence(text, sense, word=WORD, **more):
    start, end = find_word(text, word)
    return Sentence(word=word, sense=sense, text=text, start=start, end=end, **more)


def test_the_positions_of_words_and_cues_are_found(model):
    material = prepare(model, WORD, EARLY)
    assert material.sentences == EARLY and material.left_out == ()
    for row, item in enumerate(EARLY):
        tokens = material.tokens[row]
        assert tokens.pieces[material.targets[row]] == WORD
        assert list(material.words[row]) == [material.targets[row]]
        [cue] = material.cues[row]
        assert tokens.pieces[cue] == item.text[item.cue_start : item.cue_end]
        assert material.targets[row] - cue == item.distance
    assert material.labels == tuple(item.sense for item in EARLY)


def test_a_word_of_several_tokens_is_read_at_its_last_token(bytewise):
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


def test_a_sentence_whose_cue_follows_the_word_is_left_out_with_the_reason(model):
    late = make_sentences(frames=1, distances=(2,), cue_after=True)
    mixed = [
        row
        for pair in zip(EARLY, [*late, *EARLY[len(late) :]], strict=True)
        for row in dict.fromkeys(pair)
    ]
    material = prepare(model, WORD, mixed)
    assert material.sentences == EARLY
    assert material.left_out == tuple(LeftOut(item.text, LATE) for item in late)
    # The columns of a material stay aligned.
    for row, item in enumerate(material.sentences):
        assert material.tokens[row].text == item.text


def test_sentences_of_different_senses_with_the_same_prefix_are_left_out_without_a_marked_cue(
    model,
):
    late = without(make_sentences(frames=1, distances=(2,), cue_after=True), "cue_start", "cue_end")
    material = prepare(model, WORD, [*EARLY, *late])
    assert material.sentences == EARLY
    assert material.left_out == tuple(LeftOut(item.text, SAME) for item in late)


def test_a_sentence_that_begins_with_the_word_is_left_out_unless_the_model_reads_both_ways(model):
    first = sentence(f"{WORD} {PLAIN[0]}", EARLY[0].sense)
    assert prepare(model, WORD, [*EARLY, first]).left_out == (LeftOut(first.text, NOTHING_BEFORE),)
    both_ways = replace(model, config=replace(model.config, causal=False))
    assert prepare(both_ways, WORD, [*EARLY, first]).sentences == (*EARLY, first)


def test_a_text_with_two_labels_is_left_out_with_that_reason(model):
    twice = [EARLY[0], replace(EARLY[0], sense=EARLY[-1].sense)]
    assert twice[0].sense != twice[1].sense
    material = prepare(model, WORD, [*EARLY[1:], *twice])
    reason = "the same text is also labelled with another sense: one of the labels is wrong"
    assert material.left_out == tuple(LeftOut(item.text, reason) for item in twice)


def test_a_text_with_the_word_twice_may_have_a_label_for_each(model):
    text = f"once {WORD} and then {WORD}"
    spans = [find_word(text, WORD, occurrence) for occurrence in (1, 2)]
    twice = [
        Sentence(WORD, sense, text, *span)
        for sense, span in zip(("door", "canal"), spans, strict=True)
    ]
    assert prepare(model, WORD, [*EARLY, *twice]).sentences == (*EARLY, *twice)


def test_the_first_sentence_with_each_prefix_within_a_sense_is_kept(model):
    rows = [sentence(f"the {WORD} {after}", "door") for after in PLAIN[:3]]
    rows += [sentence(f"a {WORD} {after}", "canal") for after in PLAIN[:3]]
    material = prepare(model, WORD, rows)
    assert material.sentences == (rows[0], rows[3])
    assert material.left_out == tuple(LeftOut(rows[n].text, REPEATED) for n in (1, 2, 4, 5))


def test_a_model_that_reads_both_ways_uses_sentences_whose_cue_follows_the_word(model):
    both_ways = replace(model, config=replace(model.config, causal=False))
    late = make_sentences(frames=1, cue_after=True)
    assert prepare(both_ways, WORD, late).sentences == late


def test_unmarked_sentences_without_pairs_have_unknown_cues(model):
    unmarked = without(EARLY, "cue_start", "cue_end", "pair")
    material = prepare(model, WORD, unmarked)
    assert set(material.cues) == {None} and len(material.sentences) == len(EARLY)


def test_fewer_than_two_senses_are_refused_with_one_message(model):
    late = make_sentences(frames=1, distances=(1,), cue_after=True)
    left_out = f"no usable sentence (20 sentences left out: {LATE})"
    message = (
        "Cannot compare the senses of 'lock': got {}. Give sentences of at least two senses{}."
    )
    hint = (
        " with the cue before the word, or choose a model that reads both ways, such as "
        "tiny-senses-bidirectional"
    )
    one_sense = [item for item in EARLY if item.sense == "door"]
    for rows, expected in (
        (late, message.format(left_out, hint)),
        (one_sense, message.format("only the sense 'door'", "")),
    ):
        with pytest.raises(InputError) as error:
            prepare(model, WORD, rows)
        assert str(error.value) == expected


def test_a_text_beyond_the_context_window_is_refused_with_its_file_and_line(model, tmp_path):
    long = replace(EARLY[0], text=EARLY[0].text + " the" * 40)
    rows = [vars(item) | {"where": "not a column"} for item in (*EARLY, long)]
    (tmp_path / "own.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    with pytest.raises(InputError) as error:
        prepare(model, WORD, read_sentences(tmp_path / "own.jsonl").sentences)
    assert str(error.value).startswith(
        f"In {tmp_path / 'own.jsonl'}, line {len(rows)}: cannot read the text "
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"end": -1}, f"its last token also contains {WORD[-1]}"),
        ({"text": "Käfer"}, "the model's vocabulary does not hold 'Käfer'"),
        ({"cue": "🏦"}, "the model's vocabulary does not hold '🏦'"),
    ],
)
def test_a_sentence_whose_word_or_cue_the_tokens_do_not_hold_is_left_out(model, change, reason):
    first = EARLY[0]
    start, end = first.start, first.end
    if "cue" in change:
        text = first.text.replace(first.cue, change["cue"])
        start, end = find_word(text, WORD)
        cue_start = text.index(change["cue"])
        spans = {"cue_start": cue_start, "cue_end": cue_start + len(change["cue"])}
    else:
        text = first.text[:start] + change.get("text", WORD) + first.text[end:]
        end = start + len(change.get("text", WORD)) + change.get("end", 0)
        spans = {}
    bad = replace(first, text=text, start=start, end=end, **spans)
    expected = (LeftOut(bad.text, reason),)
    material = prepare(model, WORD, [bad, *EARLY])
    assert material.sentences == EARLY and material.left_out == expected
    assert prepare_counted(model, WORD, [bad, *EARLY]).left_out == expected


@pytest.mark.parametrize(
    ("word", "form"), [("mouse", "mice"), ("carry", "carried"), ("go", "went"), ("Gott", "Götter")]
)
def test_an_explicit_span_may_mark_any_form_of_the_word(bytewise, word, form):
    rows = [
        {"word": word, "sense": row.sense, "text": row.text[: row.start] + form}
        | {"start": row.start, "end": row.start + len(form)}
        for row in EARLY
    ]
    material = prepare(bytewise, word, read_sentences(rows).sentences)
    assert len(material) == len(rows) and material.left_out == ()
