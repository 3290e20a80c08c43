"""Every conditional sentence of a report, with frames for which it appears and with frames, different
in one condition, for which it does not.
"""

import re

import numpy as np
import page_text
import pandas as pd
import pytest
from example_study import make_study

from probe.experiments.material import LATE as CUE_COMES_LATE
from probe.experiments.senses import NOT_ASKED_FOR
from probe.text.splits import DRAWN
from probe.verdicts import PARTS, WRITES

FRAMES = make_study().frames
N = "\u202f"


def head(
    name: str,
    ranks: tuple[int, int, int] = (1, 1, 1),
    net: float = 0.3,
    verdict: str = "resolver",
    **changes,
):
    """One head of bank; `ranks` is its rank and the interval of the rank."""
    layer, number = map(int, re.fullmatch(r"L(\d+)H(\d+)", name).groups())  # type: ignore[union-attr]
    row = {
        "word": "bank",
        "sense_a": "river",
        "sense_b": "money",
        "layer": layer,
        "head": number,
        "auroc": 0.93,
    }
    row |= {"swap": net, "net": net, "net_low": net - 0.05, "net_high": net + 0.05}
    row |= {"same_sense": 0.0, "direct": net, "direct_low": net, "direct_high": net}
    row |= {"added_after": 0.0, "attention_previous": 0.1}
    row |= {"attention_cue": 0.6, "attention_itself": 0.3} | dict(
        zip(("rank", "rank_low", "rank_high"), ranks)
    )
    row |= {"verdict": verdict, "resolves": int(verdict == "resolver"), "of": 1}
    row |= dict.fromkeys(PARTS, 0.0) | {"nouns": net, "more_low": -0.05, "more_high": 0.05}
    row |= {"p_more": 1.0, "comparison": "same", "denoise": net, "noise": net}
    # Its own write is larger at the word.
    row |= dict.fromkeys(WRITES, 0.1) | {"p_more_write": 0.01}
    row |= {"continuation": 0.2, "p_continuation": 0.01 if verdict == "resolver" else 0.3}
    return row | {"p_auroc": 0.001, "p_swap": 0.013, "p_next_token": 0.02} | changes


def frames_of(
    *heads, faithfulness=(0.0, 0.6, 0.95, 1.0), sources=(0.95, 0.03), frames=None, **words
):
    """The study's frames with these heads for bank, and a curve over them in this order.

    `sources`: the shares of a head's effect that come from the cue and from the other words that
    differ · `frames` replaces some · `words` changes columns of the words table.
    """
    heads = heads or (head("L0H2"),)
    rows = pd.DataFrame(list(heads))
    added = [None, *(f"L{row['layer']}H{row['head']}" for row in heads), "L9H9", "L9H8", "L9H7"][
        : len(faithfulness)
    ]
    fewest = next((size for size, value in enumerate(faithfulness) if value >= 0.9), None)
    curve = pd.DataFrame(
        {
            "word": "bank",
            "size": range(len(faithfulness)),
            "added": added,
            "faithfulness": faithfulness,
        }
    )
    curve = curve.assign(
        faithfulness_low=curve["faithfulness"] - 0.05,
        faithfulness_high=curve["faithfulness"] + 0.03,
        necessity=curve["faithfulness"],
        necessity_low=curve["faithfulness"] - 0.04,
        necessity_high=curve["faithfulness"] + 0.02,
    )
    sets = pd.DataFrame(
        {"word": "bank", "size": [1, 1, 2, 2], "faithfulness": [0.1, 0.2, 0.3, 0.12]}
    )
    shares = rows.assign(cue_only=sources[0] * rows["swap"], other_only=sources[1] * rows["swap"])
    study_frames = {
        "word_heads": rows,
        "heads": rows,
        "head_parts": shares,
        "random_sets": sets,
    }
    study_frames |= {
        "curves": curve.assign(smallest=fewest),
        "words": FRAMES["words"].assign(**words),
    }
    whole = FRAMES | study_frames | (frames or {})
    # The means over pairs of senses have no separate tests.
    tests = ["p_auroc", "p_swap"]
    return whole | {"word_heads": whole["word_heads"].drop(columns=tests, errors="ignore")}


def changed(name: str, rows: str = "", **columns) -> dict[str, pd.DataFrame]:
    """One of the study's frames with other columns, or with fewer rows."""
    frame = FRAMES[name].query(rows) if rows else FRAMES[name]
    return {name: frame.assign(**columns)}


def cautions(frames, origin="folder"):
    return page_text.cautions(frames, "made-up", origin)


UNREAD, NOBODY = head("L0H2", verdict="unread"), frames_of(head("L0H2", verdict="none", net=0.03))
TWO = head("L0H2", (1, 1, 1)), head("L1H0", (2, 2, 2), 0.2)
USUAL, OF_TWO = frames_of(), frames_of(*TWO)
EIGHT = [head(f"L0H{rank}", (rank, rank, rank)) for rank in range(1, 9)]
MANY = [head(f"L0H{rank}", (rank, rank, rank)) for rank in range(1, 6)]
FORMS = changed("sentences", form=["bank", "Bank"] * (len(FRAMES["sentences"]) // 2))
TWICE_LATE = {"left_out": pd.concat([FRAMES["left_out"].assign(reason=CUE_COMES_LATE)] * 2)}


def compared(*comparisons: str, verdict: str = "resolver", **changes):
    """Heads of bank, by rank, with these comparisons with unambiguous nouns."""
    names = [f"L0H{number}" for number in range(len(comparisons))]
    heads = [
        head(name, (rank, rank, rank), verdict=verdict, comparison=comparison, **changes)
        for rank, (name, comparison) in enumerate(zip(names, comparisons, strict=True), start=1)
    ]
    return frames_of(*heads)


def mlps_more(*layers: int):
    """A frame of MLPs in which some layers do more for bank than for other nouns."""
    rows = [
        {
            "word": "bank",
            "sense_a": "river",
            "sense_b": "money",
            "layer": layer,
            "net": 0.2,
            "more": 0.1 if layer in layers else 0.0,
            "comparison": "more" if layer in layers else "undecided",
        }
        for layer in range(5)
    ]
    return frames_of(frames={"mlps": pd.DataFrame(rows)})


def mlps_of(*nets: float):
    """The frames of a study in which the MLPs of the first layers have these effects on bank."""
    rows = [
        {"word": "bank", "sense_a": "river", "sense_b": "money", "layer": layer, "net": net}
        | {"more": 0.0, "comparison": "undecided"}
        for layer, net in enumerate(nets)
    ]
    return frames_of(frames={"mlps": pd.DataFrame(rows)})


def gate(n_as_far: int, **words):
    """The frames of a study in which this number of 48 nouns changes as much as the word does."""
    return FRAMES | changed("words", ambiguity_p=(1 + n_as_far) / 49, **words)


def compared_in_pairs(pairs: int) -> dict[str, pd.DataFrame]:
    """The study's frames with mole compared with nouns in this number of its pairs of senses."""
    words = FRAMES["words"].copy()
    of_mole = words.index[(words["word"] == "mole") & words["ranked"]]
    words.loc[of_mole[pairs:], "ambiguity_p"] = np.nan
    return FRAMES | {"words": words}


NOT_NAMED = {"ambiguity_p": np.nan, "nouns_compared": 0, "not_compared": NOT_ASKED_FOR}
TOO_FEW_NOUNS = {
    "ambiguity_p": np.nan,
    "nouns_compared": 3,
    "not_compared": "nouns that can take its place: 3, and 19 are needed",
}
OF_BANK = (FRAMES["words"]["word"] == "bank").to_numpy()
ODD = changed(
    "sentences",
    text=[
        re.sub("^The", "Any", text) if index % 2 else text
        for index, text in enumerate(FRAMES["sentences"]["text"])
    ],
)
OK = FRAMES["certificate"]
BY_MODEL, BY_PLACE = (
    "by the same model with random weights",
    "by the position of the word or its cue, or by the length of the text",
)
# The renderer, the sentence, inputs for which the sentence appears, and inputs for which it does
# not. fmt: off
SENTENCES = [
    (
        cautions,
        "No cue is marked in the sentences of “bank”, so every pair of sentences counts as a separate",
        FRAMES | changed("sentences", cue_start=None),
        FRAMES,
    ),
    (
        cautions,
        "No cue is marked in the sentences of “bank”, so every sentence counts as a separate cue word.",
        FRAMES | changed("sentences", cue_start=None, pair=None),
        FRAMES,
    ),
    (
        cautions,
        "sentences with “bank” differ from one of the other sense in a single word, and no pair says so: one may",
        FRAMES | changed("sentences", pair=None, frame=None, text="the bank"),
        FRAMES,
    ),
    (
        cautions,
        "No cue is marked in the sentences of “bank”, so the words in which the two sentences of a pair differ are",
        FRAMES | changed("sentences", cue_inferred=True),
        FRAMES,
    ),
    (
        cautions,
        ", in 4 of 8 sentences; each of the others counts as a separate cue word.",
        FRAMES
        | {"sentences": FRAMES["sentences"].assign(cue_inferred=FRAMES["sentences"].index < 4)},
        FRAMES | changed("sentences", cue_inferred=True),
    ),
    (
        cautions,
        "6 of 8 sentences of “bank” are in pairs, too few, so all of them were put into pairs at random. Give",
        FRAMES | changed("words", pair_design=DRAWN),
        FRAMES,
    ),
    (
        lambda origin: cautions(FRAMES, origin),
        "learned from a grammar: it shows how the method works, not how English",
        "embedded",
        "hub",
    ),
    (
        lambda quantised: page_text.cautions(FRAMES, "made-up", "package", quantised),
        "made-up is M.gguf, its weights stored in Q4_1 and computed in float32.",
        "M.gguf, its weights stored in Q4_1 and computed in float32",
        "",
    ),
    (
        cautions,
        "“bank” has 2 forms, each a different token for the model: “bank” (4), “Bank” (4).",
        FRAMES | FORMS,
        FRAMES,
    ),
    (
        cautions,
        "“bank” is split into several tokens in 8 of 8 sentences and read at the last one.",
        FRAMES | changed("sentences", tokens_of_word=2),
        FRAMES,
    ),
    (
        cautions,
        "1 sentence is left out because the cue comes after “bank”, and this model reads left to right.",
        FRAMES | changed("left_out", reason=CUE_COMES_LATE),
        FRAMES,
    ),
    (
        cautions,
        "2 sentences are left out because the cue comes after “bank”",
        FRAMES | TWICE_LATE,
        FRAMES | changed("left_out", reason=CUE_COMES_LATE),
    ),
    (
        page_text.agreement,
        "model and the from-scratch math agree: the largest of 17 differences",
        OK,
        OK.assign(ok=[False, *[True] * 16]),
    ),
    (
        page_text.agreement,
        "1 of 17 differences between the hooked model and the from-scratch math are too large",
        OK.assign(ok=[False, *[True] * 16]),
        OK,
    ),
]
# fmt: on


TEXTS: dict[tuple[object, int], str] = {}


def text_of(render, inputs) -> str:
    """The text for the inputs of a row of SENTENCES, rendered once for equal inputs."""
    key = render, id(inputs)
    if key not in TEXTS:
        TEXTS[key] = render(inputs)
    return TEXTS[key]


@pytest.mark.parametrize("index", range(len(SENTENCES)), ids=[row[1] for row in SENTENCES])
def test_a_sentence_appears_only_under_its_condition(index):
    render, words, inputs, other_inputs = SENTENCES[index]
    assert words in text_of(render, inputs)
    assert words not in text_of(render, other_inputs)


TEMPLATES = (
    "agreement",
    "cautions",
    "grammar",
)
PHRASES = {name: page_text.phrases(f"{name}.html.j2") for name in TEMPLATES}


@pytest.mark.parametrize("source", PHRASES)
def test_the_table_lists_every_kind_of_sentence(source):
    all_text = "\n".join(text_of(render, inputs) for render, _, inputs, _ in SENTENCES)
    assert PHRASES[source]
    assert sorted(phrase for phrase in PHRASES[source] if phrase not in all_text) == []
