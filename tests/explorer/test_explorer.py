"""What the explorer answers, against hooked forwards with the same heads changed, and functions of
study and walk."""

import base64

import pytest
import torch
from families import family_model
from hooked_runs import put, read_all

import probe
from probe.errors import InputError, UnsupportedModel
from probe.explorer.page import KINDS, WHAT, parse
from probe.explorer.session import MAX_TOKENS, Explorer, messages
from probe.model import forward, hooks
from probe.model.find import EMBEDDED
from probe.model.load import read_weights
from probe.model.tokens import TargetText, tokenize
from probe.model.trace import target_states
from probe.pages.walk_sentences import answer
from probe.patching.heads import swap_heads
from probe.patching.positions import COMPONENTS, trace_positions
from probe.text.slots import frames_for
from probe.walkthrough import choose, scene

pytestmark = pytest.mark.real_model

THIS, THAT = "They saw the river from the bank.", "They saw the money from the bank."
LONGER = "They all saw the money from the bank."
SWAPS = [[0, 0, "other"], [1, 2, "off"], [2, 1, "mean"]]


@pytest.fixture(scope="module")
def explorer(tiny):
    return Explorer(tiny)


def said(explorer, what, **more):
    """Every message of an answer."""
    return list(messages(explorer, {"what": what, "text": THIS, "other": THAT} | more))


def result(explorer, what, **more):
    (last,) = said(explorer, what, **more)[-1:]
    assert "result" in last, last
    return last["result"]


def unpacked(packed):
    raw = bytearray(base64.b64decode(packed["data"]))
    return torch.frombuffer(raw, dtype=torch.float32).reshape(packed["shape"])


def test_one_and_the_same_vector_has_no_axis_and_no_map(explorer):
    late = {"text": "The bank by the river", "other": "The bank of the mortgage", "word": "bank"}
    (*_, last) = said(explorer, "along", **late)
    assert last["error"] == (
        "“bank” is one and the same vector in both sentences, so no head can move it: the words that "
        "differ come after it. Put them before it."
    )
    (*_, last) = said(explorer, "along", **late | {"other": late["text"]})
    assert last["error"] == (
        "“bank” is one and the same vector in both sentences, so no head can move it: the two "
        "sentences are the same. Change the words that tell the meaning."
    )
    found = result(explorer, "sentence", **late)
    assert "swap" not in found["block"]["arrays"] and "cannot change anything" in found["caution"]


def test_a_word_that_is_spelled_otherwise_is_said(explorer):
    found = result(explorer, "sentence", text="The river bank", other="The money Bank", word="bank")
    assert found["caution"] == (
        "The word is cut into bank here and into B·ank there: the two differ in spelling, not in "
        "meaning alone. Write the word alike in both."
    )
    assert result(explorer, "sentence")["caution"] is None


def axis_of(explorer, axis="sentences"):
    return explorer._sense_axis(
        explorer.state(parse({"what": "along", "text": THIS, "other": THAT, "axis": axis}))
    )


def place(tiny, text):
    tokens = tokenize(tiny, text)
    return tokens, tokens.positions_of("bank")[-1]


def changed(tiny, swaps, donors):
    """The first sentence through the hooked model with these heads' z at the word: stream at the
    word, logits."""
    tokens, at = place(tiny, THIS)
    edits = [
        (layer, "z", put((at, head), donors[kind][layer, head])) for layer, head, kind in swaps
    ]
    run = read_all(tiny, tokens.ids, ["resid_pre", "resid_post"], edits)
    stream = torch.cat([run["resid_pre"][:, at], run["resid_post"][-1:, at]])
    return stream, forward.unembed(read_weights(tiny), run["resid_post"][-1])


@pytest.mark.parametrize("axis", ["lexicon", "sentences"])
@pytest.mark.parametrize("swaps", [SWAPS[:1], SWAPS[1:2], SWAPS], ids=["one", "off", "three"])
def test_a_swap_moves_the_word_and_the_next_token_as_a_hooked_forward_does(
    tiny, explorer, axis, swaps
):
    known = axis_of(explorer, axis)
    tokens, at = place(tiny, THAT)
    donors = {"other": read_all(tiny, tokens.ids, ["z"])["z"][:, at], "mean": known.z}
    donors["off"] = torch.zeros_like(known.z)
    runs = [changed(tiny, some, donors) for some in ([], swaps)]
    told = result(explorer, "swap", swaps=swaps, axis=axis)
    is_behind = any(layer >= known.axis.depth for layer, _, _ in swaps)
    read_along = known.last.axis if is_behind else known.axis
    assert told["depth"] == read_along.depth
    for stream, logits, coordinate, rows in zip(
        *zip(*runs, strict=True), told["coordinates"], told["next"], strict=True
    ):
        assert coordinate == pytest.approx(
            0.5 - float(read_along.coordinate(stream[told["depth"]])), abs=1e-4
        )
        shares = logits[-1].double().softmax(-1)
        for row in rows:
            assert row["probability"] == pytest.approx(float(shares[row["id"]]), abs=1e-4)
    assert abs(told["coordinates"][1] - told["coordinates"][0]) > 0.01
    # The tokens that change most: the first may be a content word, the others are in order.
    before, after = (logits[-1].double().softmax(-1) for _, logits in runs)
    change = (after - before).abs()
    ids = [row["id"] for row in told["next"][0]]
    assert ids == [row["id"] for row in told["next"][1]] and len(ids) == 8
    largest = change.topk(8).indices.tolist()
    assert [token for token in ids[1:] if token in largest] == [
        token for token in largest if token in ids[1:]
    ]
    assert set(ids[1:]) <= set(largest)


def test_the_word_parts_on_its_way_through_the_layers(tiny, explorer):
    """Nothing is apart at the embedding; at the end both are where the axis puts them; the middle
    of both stays where it is, and a swapped head changes nothing before its layer.
    """
    paths = result(explorer, "swap", swaps=[[2, 1, "other"]])["paths"]
    told = result(explorer, "along")
    here, there, swapped = paths
    assert told["paths"] == [pytest.approx(here, abs=1e-5), pytest.approx(there, abs=1e-5)]
    assert len(here) == 5 and here[0] == pytest.approx(there[0], abs=1e-5)
    assert (here[-1], there[-1]) == (pytest.approx(0, abs=1e-5), pytest.approx(1, abs=1e-5))
    assert [a + b for a, b in zip(here, there, strict=True)] == pytest.approx([1] * 5, abs=1e-5)
    assert swapped[:3] == pytest.approx(here[:3], abs=1e-5) and swapped[3] != here[3]
    assert result(explorer, "along", other=None)["paths"] is None
    assert told["senses"] == ["river", "money"]


@pytest.mark.parametrize(
    ("here", "there", "names"),
    [
        ("They saw the river from the bank", "They took the money from the bank", "river money"),
        ("A wet day at the light", "A dry night at the light", "day night"),
        ("The light was red", "The light was blue", None),
    ],
)
def test_the_ends_carry_the_cue_of_each_sentence(tiny, here, there, names):
    words = [
        choose.word_in_text(tiny, text, text.split()[1 if names is None else -1])
        for text in (here, there)
    ]
    found = choose.cue_names(*words, causal=True)
    assert found == (tuple(names.split()) if names else choose.SENTENCE_SENSES)


def test_every_head_swapped_by_itself_is_the_engine_of_swaps(tiny, explorer):
    known = axis_of(explorer)
    (ids, at), (there, other) = (
        (tokens.ids, pos) for tokens, pos in (place(tiny, text) for text in (THIS, THAT))
    )
    donor = target_states(tiny, [tokenize(tiny, THAT)], [other]).z
    along = (known.axis.u / known.axis.gap)[None].float()
    plain = swap_heads(read_weights(tiny), [TargetText(ids, at)], donor, along)[0, :, :, 0]
    told = result(explorer, "sentence", axis="sentences")
    effects = unpacked(told["block"]["arrays"]["swap"])
    assert told["swapped_by"] == "other" and torch.allclose(effects, -plain, atol=1e-4)
    assert plain.abs().max() > 0.05 and len(there) == len(ids)
    for layer, head in ((0, 0), (1, 2)):
        own, swapped = result(explorer, "swap", swaps=[[layer, head, "other"]])["coordinates"]
        assert swapped - own == pytest.approx(float(effects[layer, head]), abs=1e-4)


@pytest.mark.parametrize("other", [THAT, LONGER])
def test_it_opens_on_the_head_whose_swap_moves_the_word_furthest_to_its_other_meaning(
    explorer, other
):
    block = result(explorer, "sentence", other=other)["block"]
    effects = unpacked(block["arrays"]["swap"])
    first = block["first"]
    assert (first["layer"], first["head"]) == divmod(int(effects.argmax()), effects.shape[1])
    assert effects.max() > 0.05 > -0.05
    share = f"{100 * float(effects.max()):.0f}\u202f%"
    assert f" alone moves “bank” {share} of the way " in block["answer"]


def test_heads_behind_the_read_out_are_read_at_the_end(tiny, explorer):
    """As in a study: what is not read where it writes is no 0."""
    known = axis_of(explorer, "lexicon")
    sentence = result(explorer, "sentence", axis="lexicon")
    assert sentence["axis"] == {
        "kind": "lexicon",
        "senses": [known.axis.sense_a, known.axis.sense_b],
        "depth": known.axis.depth,
    }
    effects = unpacked(sentence["block"]["arrays"]["swap"])
    (here, at), (there, second_at) = (place(tiny, text) for text in (THIS, THAT))
    states = target_states(tiny, [here, there], [at, second_at])
    along = torch.stack([axis.u / axis.gap for axis in (known.axis, known.last.axis)]).float()
    depth = known.axis.depth
    moved = [
        -swap_heads(read_weights(tiny), [TargetText(here.ids, at)], z, along)[0]
        for z in (states.z[1:, :depth], states.z[1:])
    ]
    assert 0 < depth < len(effects)
    assert torch.allclose(effects[:depth], moved[0][..., 0], atol=1e-4)
    assert torch.allclose(effects[depth:], moved[1][depth:, :, 1], atol=1e-4)
    assert effects[depth:].abs().max() > 0.02
    direct = unpacked(result(explorer, "along", axis="lexicon")["arrays"]["direct"])
    writes = torch.einsum(
        "lhe,lhed->lhd",
        (states.z[1] - states.z[0]).double(),
        torch.stack([block.w_o for block in read_weights(tiny).blocks]).double(),
    )
    at_the_end = -writes[depth:] @ known.last.axis.u.double() / known.last.axis.gap
    assert torch.allclose(direct[depth:].double(), at_the_end, atol=1e-4)
    for layer, head in ((0, 0), (depth, 2)):
        told = result(explorer, "swap", swaps=[[layer, head, "other"]], axis="lexicon")
        own, swapped = told["coordinates"]
        assert swapped - own == pytest.approx(float(effects[layer, head]), abs=1e-4)
        assert told["depth"] == (depth if layer < depth else len(effects))


REPEATED = [
    ("The river bank and the old bank", "The mortgage bank"),
    ("The river bank and the bank", "The mortgage bank"),
    ("The river bank", "The mortgage bank by the old bank"),
]


@pytest.mark.parametrize(("text", "other"), REPEATED)
def test_a_word_that_stands_twice_is_one_word_everywhere(tiny, explorer, text, other):
    """The same place by default and by name, in the sentence, along the axis and in a swap, and in
    a walk; and it is said which."""
    walked = probe.walk(tiny, text, against=other, causal_trace=False)
    swap = walked.frames["heads"].set_index(["layer", "head"])["swap"]
    for word in (None, "bank"):
        asked = {"text": text, "other": other, "word": word}
        told = result(explorer, "sentence", **asked)
        effects = unpacked(told["block"]["arrays"]["swap"])
        assert effects.flatten().tolist() == pytest.approx(swap.tolist(), abs=1e-5)
        assert result(explorer, "along", **asked)["coordinates"] == pytest.approx(
            {"first": 0.0, "second": 1.0}, abs=1e-5
        )
        own, swapped = result(explorer, "swap", **asked, swaps=[[0, 0, "other"]])["coordinates"]
        assert swapped - own == pytest.approx(float(effects[0, 0]), abs=1e-4)
        assert told["block"]["tokens"][told["block"]["first"]["at"]]["pos"] == walked.at
        assert told["places"] == "“bank” occurs more than once. The first occurrence is followed."
    assert walked.at == 3


def test_a_guessed_word_is_said_to_be_one(tiny, explorer):
    two = {"text": "A bright light stood in the room", "other": "A small light stood in a room"}
    told = result(explorer, "sentence", **two)
    assert told["guessed"] == (
        "“room” was chosen only because it is the last word that both sentences have."
    )
    named = result(explorer, "sentence", **two, axis="lexicon")
    assert named["axis"]["kind"] == "sentences" and named["block"] == told["block"]
    assert result(explorer, "sentence", **two, word="light")["guessed"] is None
    assert result(explorer, "sentence")["guessed"] is None  # the lexicon has it
    alone = result(explorer, "sentence", text="He walked to the garden", other=None)
    assert alone["guessed"].endswith("only because it is the last word of the sentence.")
    assert alone["axis"] == {"kind": "lexicon"}  # which does not have it
    walked = probe.walk(tiny, two["text"], against=two["other"], causal_trace=False)
    assert walked.findings.word_to_follow.others == ("light", "stood")
    assert "meaning" not in answer(walked.findings)


def test_what_writes_the_word_adds_up_to_the_way_to_the_other_sentence(explorer):
    for axis in ("lexicon", "sentences"):
        told = result(explorer, "along", axis=axis)
        ends = told["coordinates"]
        assert told["sum"] == pytest.approx(ends["second"] - ends["first"], abs=1e-4)
        heads, sources = (unpacked(told["arrays"][name]) for name in ("direct", "direct_source"))
        assert torch.allclose(heads, sources.sum(-1), atol=1e-6)
        first = next(row for row in told["leading"] if row["head"] is not None)
        assert sources[first["layer"], first["head"], first["pos"]] == pytest.approx(
            first["moved"], abs=1e-5
        )
    assert told["coordinates"] == pytest.approx({"first": 0.0, "second": 1.0}, abs=1e-5)


def test_what_a_head_writes_has_the_sign_of_the_report(tiny, explorer):
    """What the donor's write changes, along the way to the donor's meaning: a study's *direct*."""
    (here, at), (there, second_at) = (place(tiny, text) for text in (THIS, THAT))
    states = target_states(tiny, [here, there], [at, second_at])
    axis = axis_of(explorer).axis
    w_o = torch.stack([block.w_o for block in read_weights(tiny).blocks]).double()
    write = torch.einsum("rlhe,lhed->rlhd", states.z.double(), w_o)
    direct = (write[1] - write[0]) @ -axis.u.double() / axis.gap
    told = result(explorer, "along", axis="sentences")
    assert torch.allclose(unpacked(told["arrays"]["direct"]).double(), direct, atol=1e-4)
    assert direct.min() < 0 < direct.max()


def test_other_words_are_tried_along_the_axis_of_both_sentences(tiny, explorer):
    """Each stands where traces of the short texts put it."""
    first, second = "The river bank", "The loan bank"
    found = result(explorer, "cues", text=first, other=second, word="bank")
    a, b = (vector_of_bank(tiny, text, found["depth"]) for text in (first, second))
    u = (a - b) / (a - b).square().sum()
    for end, cue in zip(found["ends"], ("shore", "lender"), strict=True):
        values = {each["word"]: each["value"] for each in end}
        texts = [frame.replace("_", cue) for frame in frames_for("bank", both_sides=False)]
        streams = [vector_of_bank(tiny, text, found["depth"]) for text in texts]
        expected = sum(float((stream - (a + b) / 2) @ u) for stream in streams) / len(texts)
        assert values[cue] == pytest.approx(expected, abs=1e-4)
    assert found["reliability"] > 0.9 and found["n_cues"] > 300


def vector_of_bank(model, text, depth):
    whole = probe.trace(model, text)
    return whole.resid_post[depth - 1, whole.tokens.positions_of("bank")[-1]].double()


def test_the_trace_is_that_of_both_sentences_along_their_axis(tiny, explorer):
    told = result(explorer, "trace")
    known = axis_of(explorer)
    texts = [
        TargetText(tokens.ids, at) for tokens, at in (place(tiny, text) for text in (THIS, THAT))
    ]
    along = known.axis.u[None].float()
    whole = trace_positions(read_weights(tiny), texts[:1], texts[1:], along, depth=known.axis.depth)
    fractions = whole.stream[0, 1, ..., 0] / whole.gap[0, 0]
    found = unpacked(told["arrays"]["trace"])
    assert torch.allclose(found, fractions, atol=1e-4) and len(found) == len(COMPONENTS)
    assert [column["pos"] - texts[0].at for column in told["columns"]] == list(whole.positions)
    assert found[0, :, 0].max() == pytest.approx(
        1.0, abs=1e-3
    )  # the cue's own stream, where they first differ
    pos = told["columns"][-1]["pos"]
    heads = unpacked(
        result(explorer, "trace_heads", pos=pos, axis="sentences")["arrays"]["trace_heads"]
    )
    assert torch.allclose(heads, whole.heads[0, 1, :, :, -1, 0] / whole.gap[0, 0], atol=1e-4)


def test_the_trace_can_be_stopped_inside_a_column(explorer, monkeypatch):
    whole, heads = (
        result(explorer, what, pos=3)["arrays"][what] for what in ("trace", "trace_heads")
    )
    monkeypatch.setattr(scene, "LAYERS_PER_STEP", 1)
    told = said(explorer, "trace")
    steps = unpacked(whole)[0].numel()
    shares = [number / steps for number in range(1, steps + 1)]
    assert [message["progress"] for message in told[:-1]] == pytest.approx(shares)
    parts = [told[-1]["result"], result(explorer, "trace_heads", pos=3)]
    for part, name, before in zip(parts, ("trace", "trace_heads"), (whole, heads), strict=True):
        assert torch.allclose(unpacked(part["arrays"][name]), unpacked(before), atol=1e-5)


def test_what_is_written_is_what_the_hooked_model_finds_likeliest(tiny, explorer):
    text = "They saw the river and then the bank"
    told = said(explorer, "write", text=text, swaps=SWAPS[:1])
    ids = list(tokenize(tiny, text).ids)
    start = len(ids)
    while len(ids) < start + 20:
        with torch.inference_mode():
            token = int(hooks.run(tiny, [ids])[0, -1].argmax())
        if token == tiny.tokenizer.eos_token_id:
            break
        ids.append(token)
    assert told[-1]["result"]["own"] == tiny.tokenizer.decode(ids[start:])
    assert 1 < len(ids) - start < len(told) <= 41
    assert said(explorer, "write")[-1]["result"] == {"own": ""}  # a sentence that has ended
    assert all(0 <= message["progress"] <= 1 for message in told[:-1])


def test_the_sentence_carries_the_walk_of_its_head(tiny, explorer):
    told = result(explorer, "sentence", follow=[1, 2])
    walked = probe.walk(tiny, THIS, head=(1, 2), against=THAT)
    block = told["block"]
    assert block["first"] == walked.block["first"] and block["answer"] == answer(walked.findings)
    assert set(walked.block["arrays"]) - set(block["arrays"]) == {"lens", "nearest", "trace"}
    for name in ("pattern", "share", "delta_norm", "second_pattern"):
        assert torch.allclose(
            unpacked(block["arrays"][name]), unpacked(walked.block["arrays"][name]), atol=1e-6
        )
    assert told["choices"].count("<label") == len(tokenize(tiny, THIS))
    logits = probe.trace(tiny, THIS).logits[-1].double().softmax(-1)
    assert told["next"][0]["probability"] == pytest.approx(float(logits.max()), abs=1e-6)


def test_one_sentence_alone_is_explored_too(explorer):
    alone = {"text": "The mole dug a tunnel.", "other": None}
    told = result(explorer, "sentence", **alone)
    assert told["block"]["second_tokens"] is None and told["block"]["word"] == "mole"
    assert result(explorer, "swap", **alone, swaps=[[0, 0, "mean"], [1, 1, "off"]])["coordinates"]
    assert told["swapped_by"] == "mean" and unpacked(told["block"]["arrays"]["swap"]).any()


def test_a_word_beyond_the_lexicon_has_next_tokens_and_no_axis(explorer):
    alone = {"text": "He walked to the garden", "other": None}
    (error,) = said(explorer, "along", **alone)[-1:]
    assert error["error"] == (
        "The lexicon does not have “garden”, so one sentence gives no way to move it on: give a "
        "second sentence in which it means something else."
    )
    told = result(explorer, "swap", **alone, swaps=[[0, 0, "off"]])
    assert "coordinates" not in told and len(told["next"]) == 2
    assert "swap" not in result(explorer, "sentence", **alone)["block"]["arrays"]


def test_a_score_is_split_into_the_parts_that_the_public_function_lists(explorer, tiny):
    found = result(explorer, "score", follow=[1, 2], pos=6)
    trace = probe.trace(tiny, THIS)
    assert list(found["scores"]) == [*range(7)]
    for key, split in found["scores"].items():
        assert split["score"] == pytest.approx(float(trace.scores[1, 2, 6, key]), abs=1e-4)
    parts = probe.qk_attribution(tiny, trace, layer=1, head=2, at=6, source=3)
    by_name = parts.set_index(["part_query", "part_key"])["score"]
    for query, key, value in found["scores"][3]["pairs"]:
        assert value == pytest.approx(by_name[found["parts"][query], found["parts"][key]], rel=1e-4)


REFUSED = {
    "nul": (
        {"text": "a\x00b"},
        ("Reading the text: it holds a NUL character, which no tokenizer reads; take it out."),
    ),
    "empty": (
        {"text": " "},
        ("Reading the text: got an empty text, expected at least one word; give a sentence."),
    ),
    "long": (
        {"text": "bank " * MAX_TOKENS},
        (f"expected at most {MAX_TOKENS} here; shorten it, or use `probe walk`."),
    ),
    "longer": (
        {"text": "bank " * 2000},
        ("the context window of tiny-senses; shorten the text or split it."),
    ),
    "no word": (
        {"text": "...", "other": None},
        ("got no letters or digits. Give a text with a word in it."),
    ),
    "elsewhere": (
        {"other": "Nothing here."},
        ("the two sentences share no word, expected an ambiguous word. Write both with the same"),
    ),
    "no head": (
        {"follow": [9, 0]},
        ("Cannot follow layer 9 of tiny-senses: it has 4 layers. Give a layer from 0 to 3."),
    ),
    "odd head": (
        {"follow": [True, 0]},
        ("got a head or a position that is not a number; choose one on the page."),
    ),
    "odd swap": (
        {"swaps": [[0, 0, "melt"]]},
        ("are not [layer, head, kind] each; choose heads on the map."),
    ),
    "what": ({"what": "__init__"}, "got what = '__init__', expected one of sentence, along, swap,"),
    "no text": ({"text": None}, "Reading a question: got no text, expected a sentence."),
    "typed": ({"text": 5}, "Reading a question: got text as int, expected a string."),
    "axis": (
        {"axis": "x"},
        ("got axis = 'x', expected lexicon or sentences."),
    ),
    "alone": (
        {"what": "trace", "other": None},
        ("got one only; give a second one with the same word."),
    ),
    "alone, other words": (
        {"what": "cues", "other": None},
        ("Trying other words: got one sentence only; give a second one with the same word."),
    ),
    "unequal": (
        {"what": "trace", "other": LONGER},
        (
            "the word is token 7 of this one and token 8 of the other, "
            "so their positions do not correspond."
        ),
    ),
    "no such token": (
        {"what": "score", "follow": [0, 0], "pos": 77},
        ("Splitting a score: got token 77 of 9; choose one on the page."),
    ),
    "score of no head": (
        {"what": "score"},
        ("Splitting a score: got no head; choose one on the map."),
    ),
    "where": (
        {"what": "trace_heads", "pos": 77},
        ("Tracing position 77: the word is at 7; click on a cell."),
    ),
    "other's": (
        {"what": "swap", "other": None, "swaps": SWAPS[:1]},
        "got one sentence only; give a second one",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_answered_is_one_sentence(explorer, name):
    asked, sentence = REFUSED[name]
    (error,) = [
        message
        for message in said(explorer, **({"what": "sentence"} | asked))
        if "doing" not in message
    ]
    assert sentence in error["error"] and "\n" not in error["error"]


def test_a_question_that_is_no_record_is_refused():
    with pytest.raises(InputError, match="got list, expected a record with `what` and `text`"):
        parse([])
    assert set(KINDS) == {"other", "mean", "off"} and all(
        callable(getattr(Explorer, name)) for name in WHAT
    )


def test_an_encoder_decoder_is_refused():
    with pytest.raises(
        UnsupportedModel,
        match="it is an encoder-decoder, whose heads read two texts; use `probe walk",
    ) as raised:
        Explorer(family_model("t5"))
    # The model that it recommends is one that ships.
    recommended = str(raised.value).rpartition(", as ")[2].removesuffix(".")
    assert recommended in EMBEDDED


def test_a_model_that_reads_both_ways_swaps_and_does_not_write():
    explorer = Explorer(probe.load("tiny-senses-bidirectional"))
    assert len(result(explorer, "sentence")["next"]) == 8
    told = result(explorer, "swap", swaps=[[0, 0, "other"]])
    assert len(told["next"]) == 2 and told["coordinates"][0] != told["coordinates"][1]
    assert result(explorer, "trace")["columns"]
    (error,) = said(explorer, "write")
    assert (
        error["error"] == "Writing on: tiny-senses-bidirectional does not write from left to right."
    )


def test_what_is_kept_is_bounded(tiny):
    explorer = Explorer(tiny)
    for number in range(10):
        result(
            explorer, "sentence", text=f"They sat by the river bank on day {number}.", other=None
        )
    assert explorer.trace_of.cache_info().currsize == explorer.trace_of.cache_info().maxsize == 8
