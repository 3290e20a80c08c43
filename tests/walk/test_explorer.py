"""The answers of the explorer agree with hooked forward passes with the same heads changed, and with
functions of study and walk."""

import base64

import pytest
import torch
from embedded import embedded
from families import family_model
from hooked_runs import edit_at, read_all
from inside import (
    COMPONENTS,
    EMBEDDED,
    KINDS,
    MAX_TOKENS,
    WHAT,
    Explorer,
    TargetText,
    choose,
    forward,
    frames_for,
    hooks,
    messages,
    parse,
    read_weights,
    swap_heads,
    target_states,
    trace_positions,
    visible_token,
)
from inside import walk_axes as axes

import probe
from probe import InputError, UnsupportedModel, tokenize

THIS, THAT = "They saw the river from the bank.", "They saw the money from the bank."
LONGER = "They all saw the money from the bank."
SWAPS = [[0, 0, "other"], [1, 2, "off"], [2, 1, "mean"]]


@pytest.fixture(scope="module")
def explorer(tiny):
    return Explorer(tiny)


def messages_of(explorer, kind, **more):
    """Every message of an answer."""
    return list(messages(explorer, {"what": kind, "text": THIS, "other": THAT} | more))


def result(explorer, kind, **more):
    (last,) = messages_of(explorer, kind, **more)[-1:]
    assert "result" in last, last
    return last["result"]


def unpacked(packed):
    raw = bytearray(base64.b64decode(packed["data"]))
    return torch.frombuffer(raw, dtype=torch.float32).reshape(packed["shape"])


def test_equal_vectors_have_no_axis_and_no_map(explorer):
    late = {"text": "The bank by the river", "other": "The bank of the mortgage", "word": "bank"}
    (*_, last) = messages_of(explorer, "along", **late)
    assert last["error"] == (
        "Cannot move “bank” toward another meaning: its vector is the same in both sentences, because "
        "the words that differ come after it. Put them before it."
    )
    (*_, last) = messages_of(explorer, "along", **late | {"other": late["text"]})
    assert last["error"] == (
        "Cannot move “bank” toward another meaning: its vector is the same in both sentences, which "
        "are identical. Change the words that tell the meaning."
    )
    reply = result(explorer, "sentence", **late)
    assert "swap" not in reply["block"]["arrays"] and "cannot change anything" in reply["caution"]


def test_a_different_spelling_of_the_word_is_a_caution(explorer):
    reply = result(explorer, "sentence", text="The river bank", other="The money Bank", word="bank")
    assert reply["caution"] == (
        "The word is cut into bank here and into B·ank there: the two differ in spelling, not in "
        "meaning alone. Write the word alike in both."
    )
    assert result(explorer, "sentence")["caution"] is None


def axis_of(explorer, axis="sentences"):
    return explorer.sense_axis_of(
        explorer.state(parse({"what": "along", "text": THIS, "other": THAT, "axis": axis}))
    )


def word_position(tiny, text):
    tokens = tokenize(tiny, text)
    return tokens, tokens.positions_of("bank")[-1]


def changed(tiny, swaps, donors):
    """The first sentence through the hooked model with these heads' z at the word: stream at the
    word, logits."""
    tokens, at = word_position(tiny, THIS)
    edits = [
        (layer, "z", edit_at((at, head), donors[kind][layer, head])) for layer, head, kind in swaps
    ]
    run = read_all(tiny, tokens.ids, ["resid_pre", "resid_post"], edits)
    stream = torch.cat([run["resid_pre"][:, at], run["resid_post"][-1:, at]])
    return stream, forward.unembed(read_weights(tiny), run["resid_post"][-1])


def token_of(model, piece):
    """The token that the page shows as this text."""
    (token,) = (
        token for token in range(len(model.tokenizer)) if visible_token(model, token) == piece
    )
    return token


@pytest.mark.parametrize("axis", ["lexicon", "sentences"])
@pytest.mark.parametrize("swaps", [SWAPS[:1], SWAPS[1:2], SWAPS], ids=["one", "off", "three"])
def test_a_swap_moves_the_word_and_the_next_token_like_a_hooked_forward_pass(
    tiny, explorer, axis, swaps
):
    sense_axis = axis_of(explorer, axis)
    tokens, at = word_position(tiny, THAT)
    donors = {"other": read_all(tiny, tokens.ids, ["z"])["z"][:, at], "mean": sense_axis.z}
    donors["off"] = torch.zeros_like(sense_axis.z)
    runs = [changed(tiny, edits, donors) for edits in ([], swaps)]
    reply = result(explorer, "swap", swaps=swaps, axis=axis)
    is_after_read_out = any(layer >= sense_axis.axis.depth for layer, _, _ in swaps)
    read_along = sense_axis.last.axis if is_after_read_out else sense_axis.axis
    assert reply["depth"] == read_along.depth
    ids = [token_of(tiny, piece) for piece in reply["next"]["pieces"]]
    for stream, logits, coordinate, shares in zip(
        *zip(*runs, strict=True),
        reply["coordinates"],
        reply["next"]["probabilities"],
        strict=True,
    ):
        assert coordinate == pytest.approx(
            0.5 - float(read_along.coordinate(stream[reply["depth"]])), abs=1e-4
        )
        assert shares == pytest.approx(logits[-1].double().softmax(-1)[ids].tolist(), abs=1e-4)
    assert abs(reply["coordinates"][1] - reply["coordinates"][0]) > 0.01
    # The tokens that change most: the first may be a content word.
    before, after = (logits[-1].double().softmax(-1) for _, logits in runs)
    assert len(ids) == 8 and set(ids[1:]) <= set((after - before).abs().topk(8).indices.tolist())


def test_a_swapped_word_is_somewhere_between_its_two_vectors_in_each_layer(tiny, explorer):
    """As in a hooked forward pass; a head changes nothing before its layer, and the last layer has the
    coordinate."""
    reply = result(explorer, "swap", swaps=[[2, 1, "other"]])
    texts = [word_position(tiny, text) for text in (THIS, THAT)]
    donor = read_all(tiny, texts[1][0].ids, ["z"])["z"][:, texts[1][1]]
    swapped, _ = changed(tiny, [(2, 1, "other")], {"other": donor})
    runs = [read_all(tiny, tokens.ids, ["resid_pre", "resid_post"], []) for tokens, _ in texts]
    first, second = (
        torch.cat([run["resid_pre"][:, at], run["resid_post"][-1:, at]])
        for run, (_, at) in zip(runs, texts, strict=True)
    )
    for depth, way in enumerate(reply["way"]):
        length = (second - first)[depth].norm()
        unit = (second - first)[depth] / length if depth else torch.zeros(())
        expected = float(((swapped - first)[depth] * unit).sum() / length) if depth else 0.0
        assert way == pytest.approx(expected, abs=1e-4)
    assert reply["way"][:3] == [0, 0, 0] and reply["way"][3] and len(reply["way"]) == 5
    assert reply["way"][-1] == pytest.approx(reply["coordinates"][1], abs=1e-4)
    assert result(explorer, "swap", swaps=[[2, 1, "other"]], axis="lexicon")["way"] is None
    assert result(explorer, "swap", swaps=[[2, 1, "off"]], other=None)["way"] is None
    assert result(explorer, "along")["senses"] == ["river", "money"]


@pytest.mark.parametrize(
    ("here", "there", "names"),
    [
        ("They saw the river from the bank", "They took the money from the bank", "river money"),
        ("A wet day at the light", "A dry night at the light", "day night"),
        ("The light was red", "The light was blue", None),
    ],
)
def test_the_ends_are_named_by_the_cue_of_each_sentence(tiny, here, there, names):
    words = [
        choose.word_in_text(tiny, text, text.split()[1 if names is None else -1])
        for text in (here, there)
    ]
    cues = axes.cue_names(*words, causal=True)
    assert cues == (tuple(names.split()) if names else axes.SENTENCE_SENSES)


def test_heads_after_the_read_out_layer_are_read_at_the_end(tiny, explorer):
    """As in a study: the effect of a head after the read-out layer is not 0."""
    sense_axis = axis_of(explorer, "lexicon")
    sentence = result(explorer, "sentence", axis="lexicon")
    assert sentence["axis"] == {
        "kind": "lexicon",
        "senses": [sense_axis.axis.sense_a, sense_axis.axis.sense_b],
        "depth": sense_axis.axis.depth,
    }
    effects = unpacked(sentence["block"]["arrays"]["swap"])
    (here, at), (there, second_at) = (word_position(tiny, text) for text in (THIS, THAT))
    states = target_states(tiny, [here, there], [at, second_at])
    along = torch.stack(
        [axis.u / axis.gap for axis in (sense_axis.axis, sense_axis.last.axis)]
    ).float()
    depth = sense_axis.axis.depth
    expected = [
        -swap_heads(read_weights(tiny), [TargetText(here.ids, at)], z, along)[0]
        for z in (states.z[1:, :depth], states.z[1:])
    ]
    assert 0 < depth < len(effects)
    assert torch.allclose(effects[:depth], expected[0][..., 0], atol=1e-4)
    assert torch.allclose(effects[depth:], expected[1][depth:, :, 1], atol=1e-4)
    assert effects[depth:].abs().max() > 0.02
    for layer, head in ((0, 0), (depth, 2)):
        reply = result(explorer, "swap", swaps=[[layer, head, "other"]], axis="lexicon")
        before, after = reply["coordinates"]
        assert after - before == pytest.approx(float(effects[layer, head]), abs=1e-4)
        assert reply["depth"] == (depth if layer < depth else len(effects))


def test_the_same_occurrence_of_a_repeated_word_is_followed_everywhere(tiny, explorer):
    """In the sentence, along the axis, in a swap and in a walk; the answer states it."""
    question = {"text": "The river bank and the bank", "other": "The mortgage bank by the old bank"}
    walked = probe.walk(tiny, question["text"], against=question["other"], causal_trace=False)
    reply = result(explorer, "sentence", **question)
    effects = unpacked(reply["block"]["arrays"]["swap"])
    assert effects.flatten().tolist() == pytest.approx(walked.frames["heads"]["swap"], abs=1e-5)
    ends = result(explorer, "along", **question)["coordinates"]
    assert ends == pytest.approx({"first": 0.0, "second": 1.0}, abs=1e-5)
    before, after = result(explorer, "swap", **question, swaps=[[0, 0, "other"]])["coordinates"]
    assert after - before == pytest.approx(float(effects[0, 0]), abs=1e-4)
    assert reply["block"]["tokens"][reply["block"]["first"]["at"]]["pos"] == walked.at == 3
    assert reply["places"] == "“bank” occurs more than once. The first occurrence is followed."


def test_a_guessed_word_is_reported_as_a_guess(tiny, explorer):
    two = {"text": "A bright light shone in the garden", "other": "A small light shone in a garden"}
    reply = result(explorer, "sentence", **two)
    assert reply["guessed"].endswith("because it is the last word that both sentences have.")
    by_lexicon = result(explorer, "sentence", **two, axis="lexicon")  # which does not have the word
    assert by_lexicon["axis"]["kind"] == "sentences" and by_lexicon["block"] == reply["block"]
    assert result(explorer, "sentence", **two, word="light")["guessed"] is None
    assert result(explorer, "sentence")["guessed"] is None  # the lexicon has it
    walked = probe.walk(tiny, two["text"], against=two["other"], causal_trace=False)
    assert walked.statements["others"] == ["light", "shone"]


def test_direct_writes_add_up_to_the_gap_to_the_other_sentence(explorer):
    for axis in ("lexicon", "sentences"):
        reply = result(explorer, "along", axis=axis)
        ends = reply["coordinates"]
        assert reply["sum"] == pytest.approx(ends["second"] - ends["first"], abs=1e-4)
        heads, sources = (unpacked(reply["arrays"][name]) for name in ("direct", "direct_source"))
        assert torch.allclose(heads, sources.sum(-1), atol=1e-6)
        first = next(row for row in reply["leading"] if row["head"] is not None)
        assert sources[first["layer"], first["head"], first["pos"]] == pytest.approx(
            first["moved"], abs=1e-5
        )
    assert reply["coordinates"] == pytest.approx({"first": 0.0, "second": 1.0}, abs=1e-5)


def test_other_words_are_tried_along_the_axis_of_both_sentences(tiny, explorer):
    """Every value agrees with traces of the short texts."""
    first, second = "The river bank", "The loan bank"
    reply = result(explorer, "cues", text=first, other=second, word="bank")
    a, b = (vector_of_bank(tiny, text, reply["depth"]) for text in (first, second))
    u = (a - b) / (a - b).square().sum()
    for end, cue in zip(reply["ends"], ("shore", "lender"), strict=True):
        values = {each["word"]: each["value"] for each in end}
        texts = [frame.replace("_", cue) for frame in frames_for("bank", both_sides=False)]
        streams = [vector_of_bank(tiny, text, reply["depth"]) for text in texts]
        expected = sum(float((stream - (a + b) / 2) @ u) for stream in streams) / len(texts)
        assert values[cue] == pytest.approx(expected, abs=1e-4)
    assert reply["reliability"] > 0.9 and reply["n_cues"] > 300


def vector_of_bank(model, text, depth):
    whole = probe.trace(model, text)
    return whole.resid_post[depth - 1, whole.tokens.positions_of("bank")[-1]].double()


def test_the_trace_agrees_with_trace_positions_along_the_axis(tiny, explorer):
    reply = result(explorer, "trace")
    sense_axis = axis_of(explorer)
    texts = [
        TargetText(tokens.ids, at)
        for tokens, at in (word_position(tiny, text) for text in (THIS, THAT))
    ]
    along = sense_axis.axis.u[None].float()
    whole = trace_positions(
        read_weights(tiny), texts[:1], texts[1:], along, depth=sense_axis.axis.depth
    )
    fractions = whole.stream[0, 1, ..., 0] / whole.gap[0, 0]
    trace = unpacked(reply["arrays"]["trace"])
    assert torch.allclose(trace, fractions, atol=1e-4) and len(trace) == len(COMPONENTS)
    assert [column["pos"] - texts[0].at for column in reply["columns"]] == list(whole.positions)
    assert trace[0, :, 0].max() == pytest.approx(
        1.0, abs=1e-3
    )  # the stream at the cue, where they first differ
    pos = reply["columns"][-1]["pos"]
    heads = unpacked(
        result(explorer, "trace_heads", pos=pos, axis="sentences")["arrays"]["trace_heads"]
    )
    assert torch.allclose(heads, whole.heads[0, 1, :, :, -1, 0] / whole.gap[0, 0], atol=1e-4)


def test_the_continuation_is_the_likeliest_of_the_hooked_model(tiny, explorer):
    text = "They saw the river and then the bank"
    steps_and_result = messages_of(explorer, "write", text=text, swaps=SWAPS[:1])
    ids = list(tokenize(tiny, text).ids)
    start = len(ids)
    while len(ids) < start + 20:
        with torch.inference_mode():
            token = int(hooks.run(tiny, [ids])[0, -1].argmax())
        if token == tiny.tokenizer.eos_token_id:
            break
        ids.append(token)
    assert steps_and_result[-1]["result"]["own"] == tiny.tokenizer.decode(ids[start:])
    assert 1 < len(ids) - start < len(steps_and_result) <= 41
    assert messages_of(explorer, "write")[-1]["result"] == {"own": ""}  # a sentence that has ended
    assert all(0 <= message["progress"] <= 1 for message in steps_and_result[:-1])


def test_the_answer_for_a_sentence_contains_the_walk_of_its_head(tiny, explorer):
    reply = result(explorer, "sentence", follow=[1, 2])
    walked = probe.walk(tiny, THIS, head=(1, 2), against=THAT)
    block = reply["block"]
    assert (
        block["first"] == walked.block["first"] and block["answer"] == walked.statements["answer"]
    )
    assert set(walked.block["arrays"]) - set(block["arrays"]) == {"lens", "nearest", "trace"}
    for name in ("pattern", "share", "delta_norm", "second_pattern"):
        assert torch.allclose(
            unpacked(block["arrays"][name]), unpacked(walked.block["arrays"][name]), atol=1e-6
        )
    assert reply["choices"].count("<label") == len(tokenize(tiny, THIS))
    logits = probe.trace(tiny, THIS).logits[-1].double().softmax(-1)
    assert reply["next"]["probabilities"][0][0] == pytest.approx(float(logits.max()), abs=1e-6)


def test_a_single_sentence_can_be_explored(explorer):
    question = {"text": "The mole dug a tunnel.", "other": None}
    reply = result(explorer, "sentence", **question)
    assert reply["block"]["second_tokens"] is None and reply["block"]["word"] == "mole"
    assert result(explorer, "swap", **question, swaps=[[0, 0, "mean"], [1, 1, "off"]])[
        "coordinates"
    ]
    assert reply["swapped_by"] == "mean" and unpacked(reply["block"]["arrays"]["swap"]).any()


def test_a_word_outside_the_lexicon_has_next_tokens_and_no_axis(explorer):
    question = {"text": "He walked to the garden", "other": None}
    (error,) = messages_of(explorer, "along", **question)[-1:]
    assert error["error"] == (
        "Cannot move “garden” toward another meaning: the lexicon does not have it, and there is only "
        "one sentence. Give a second one in which it means something else."
    )
    reply = result(explorer, "swap", **question, swaps=[[0, 0, "off"]])
    assert "coordinates" not in reply and len(reply["next"]["probabilities"]) == 2
    assert "swap" not in result(explorer, "sentence", **question)["block"]["arrays"]


def test_a_score_is_split_into_the_parts_that_the_public_function_lists(explorer, tiny):
    reply = result(explorer, "score", follow=[1, 2], pos=6)
    trace = probe.trace(tiny, THIS)
    assert list(reply["scores"]) == [*range(7)]
    for key, split in reply["scores"].items():
        assert split["score"] == pytest.approx(float(trace.scores[1, 2, 6, key]), abs=1e-4)
    parts = probe.qk_attribution(tiny, trace, layer=1, head=2, at=6, source=3)
    by_name = parts.set_index(["part_query", "part_key"])["score"]
    for query, key, value in reply["scores"][3]["pairs"]:
        assert value == pytest.approx(by_name[reply["parts"][query], reply["parts"][key]], rel=1e-4)


ALONE = {"other": None}
REFUSED = [
    (
        {"text": "a\x00b"},
        "the text: it contains a NUL character, which no tokenizer reads. Remove it.",
    ),
    ({"text": "bank " * MAX_TOKENS}, "at most 128. Shorten it, or use `probe walk`."),
    ({"text": "..."} | ALONE, "got no letters or digits. Give a text with a word in it."),
    (
        {"follow": [9, 0]},
        "follow layer 9 of tiny-senses: it has 4 layers. Give a layer from 0 to 3.",
    ),
    ({"follow": [True, 0]}, "a head or a position that is not a number. Choose one on the page."),
    ({"swaps": [[0, 0, "melt"]]}, "are not [layer, head, kind] each. Choose heads on the map."),
    ({"what": "__init__"}, "got what = '__init__', expected one of sentence, along, swap,"),
    ({"text": None}, "Cannot read the question: got no text, expected a sentence. Give one."),
    ({"text": 5}, "Cannot read the question: got text as int, expected a string. Give one."),
    ({"axis": "x"}, "got axis = 'x', expected lexicon or sentences. Give one of these."),
    ({"what": "trace"} | ALONE, "Cannot trace two sentences: got only one. Give a second one"),
    ({"what": "cues"} | ALONE, "Cannot try other words: got only one sentence. Give a second one"),
    (
        {"what": "trace", "other": LONGER},
        "the word is token 7 of this one and token 8 of the other",
    ),
    ({"what": "score", "follow": [0, 0], "pos": 77}, "got token 77 of 9. Choose one on the page."),
    ({"what": "score"}, "Cannot split a score: got no head. Choose one on the map."),
    ({"what": "trace_heads", "pos": 77}, "position 77: the word is at 7. Click on a cell."),
    (
        {"what": "swap", "swaps": SWAPS[:1]} | ALONE,
        "with the other sentence's: got only one sentence",
    ),
]


@pytest.mark.parametrize(("fields", "sentence"), REFUSED)
def test_an_invalid_question_gets_an_error_of_one_line(explorer, fields, sentence):
    *_, error = messages_of(explorer, "sentence", **fields)
    assert sentence in error["error"] and "\n" not in error["error"]


def test_a_question_that_is_not_a_record_is_refused():
    with pytest.raises(InputError, match="got list, expected a record with `what` and `text`"):
        parse([])
    assert set(KINDS) == {"other", "mean", "off"} and all(
        callable(getattr(Explorer, name)) for name in WHAT if name != "save"
    )


def test_an_encoder_decoder_is_refused():
    with pytest.raises(
        UnsupportedModel,
        match="it is an encoder-decoder, whose heads read two texts. Use `probe walk",
    ) as raised:
        Explorer(family_model("t5"))
    # The model that it recommends is one that ships.
    recommended = str(raised.value).rpartition(", such as ")[2].removesuffix(".")
    assert recommended in EMBEDDED


def test_a_bidirectional_model_swaps_and_does_not_write():
    explorer = Explorer(embedded("tiny-senses-bidirectional"))
    assert len(result(explorer, "sentence")["next"]["pieces"]) == 8
    reply = result(explorer, "swap", swaps=[[0, 0, "other"]])
    assert (
        len(reply["next"]["probabilities"]) == 2
        and reply["coordinates"][0] != reply["coordinates"][1]
    )
    assert result(explorer, "trace")["columns"]
    (error,) = messages_of(explorer, "write")
    assert error["error"] == (
        "Cannot continue the text: tiny-senses-bidirectional does not write from left to right. "
        "Explore a model that does, such as tiny-senses."
    )


def test_the_caches_are_bounded(tiny):
    explorer = Explorer(tiny)
    for number in range(10):
        result(
            explorer, "sentence", text=f"They sat by the river bank on day {number}.", other=None
        )
    assert explorer.trace_of.cache_info().currsize == explorer.trace_of.cache_info().maxsize == 8
