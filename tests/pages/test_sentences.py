"""Every kind of sentence that a report says of a word, with frames in which it is said and frames,
one condition away, in which it is not.
"""

import ast
import re
from pathlib import Path

import numpy as np
import page_text
import pandas as pd
import pytest
from example_study import make_study

from probe.experiments.material import LATE as CUE_COMES_LATE
from probe.inference.verdicts import ORDER
from probe.results.frames import NOT_ASKED_FOR
from probe.text.splits import DRAWN

FRAMES = make_study().frames
N = "\u202f"


def head(
    name: str,
    place: tuple[int, int, int] = (1, 1, 1),
    net: float = 0.3,
    verdict: str = "resolver",
    **changes,
):
    """One head of bank; `place` is its rank and the interval of it."""
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
    row |= {"self_repair": 0.0, "attention_previous": 0.1}
    row |= {"attention_cue": 0.6, "attention_itself": 0.3} | dict(
        zip(("rank", "rank_low", "rank_high"), place)
    )
    row |= {"verdict": verdict, "resolves": int(verdict == "resolver"), "of": 1}
    row |= {"general": net, "specific": 0.0, "specific_low": -0.05, "specific_high": 0.05}
    row |= {"p_specific": 1.0, "comparison": "same", "denoise": net, "noise": net}
    row |= {"own_write": 9.0, "own_write_nouns": 5.0, "own_write_more_low": 2.0}
    row |= {"moved_raw": 20.0, "moved_raw_nouns": 6.0}
    row |= {"continuation": 0.2, "p_continuation": 0.01 if verdict == "resolver" else 0.3}
    return row | {"p_auroc": 0.001, "p_swap": 0.013, "p_next_token": 0.02} | changes


def frames_of(*heads, kept=(0.0, 0.6, 0.95, 1.0), routes=(0.95, 0.03), frames=None, **words):
    """The study's frames with these heads for bank, and a curve over them in the order given.

    `routes`: the shares of a head's effect that come from the cue and from the other words that
    differ · `frames` replaces some · `words` changes columns of the words table.
    """
    heads = heads or (head("L0H2"),)
    rows = pd.DataFrame(list(heads))
    added = [None, *(f"L{row['layer']}H{row['head']}" for row in heads), "L9H9", "L9H8", "L9H7"][
        : len(kept)
    ]
    smallest = next((size for size, value in enumerate(kept) if value >= 0.9), None)
    curve = pd.DataFrame(
        {"word": "bank", "size": range(len(kept)), "added": added, "faithfulness": kept}
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
    shares = rows.assign(cue_only=routes[0] * rows["swap"], other_only=routes[1] * rows["swap"])
    made = {
        "word_heads": rows,
        "heads": rows,
        "head_parts": shares,
        "random_sets": sets,
    }
    made |= {"curves": curve.assign(smallest=smallest), "words": FRAMES["words"].assign(**words)}
    whole = FRAMES | made | (frames or {})
    # The means over pairs of senses have no tests of their own.
    tests = ["p_auroc", "p_swap"]
    return whole | {"word_heads": whole["word_heads"].drop(columns=tests, errors="ignore")}


def changed(name: str, rows: str = "", **columns) -> dict[str, pd.DataFrame]:
    """One of the study's frames with other columns, or with fewer rows."""
    frame = FRAMES[name].query(rows) if rows else FRAMES[name]
    return {name: frame.assign(**columns)}


def of(function, word):
    """What is said of one word, from frames to one text."""
    return lambda frames: function(frames, word)


answer, answer_mole = (of(page_text.card_answer, word) for word in ("bank", "mole"))
evidence, evidence_mole = (of(page_text.card_evidence, word) for word in ("bank", "mole"))


def cautions(frames, origin="folder"):
    return page_text.cautions(frames, "made-up", origin)


def row_of(name: str, place: int, **changes) -> dict[str, object]:
    return FRAMES[name].to_dict("records")[place] | changes


STEP = {
    "word": "bank",
    "sense_a": "river",
    "sense_b": "money",
    "path": 0,
    "share": 0.8,
    "together": 0.95,
    "p": 0.01,
}
CHAIN = {
    "paths": pd.DataFrame(
        [
            STEP | {"step": at, "receiver_layer": at, "receiver_head": place}
            for at, place in enumerate((2, 0))
        ]
    )
}
UNREAD, NOBODY = head("L0H2", verdict="unread"), frames_of(head("L0H2", verdict="none", net=0.03))
TWO = head("L0H2", (1, 1, 1)), head("L1H0", (2, 2, 2), 0.2)
USUAL, OF_TWO = frames_of(), frames_of(*TWO)
EIGHT = [head(f"L0H{place}", (place, place, place)) for place in range(1, 9)]
MANY = [head(f"L0H{place}", (place, place, place)) for place in range(1, 6)]
FORMS = changed("sentences", form=["bank", "Bank"] * (len(FRAMES["sentences"]) // 2))
TWICE_LATE = {"left_out": pd.concat([FRAMES["left_out"].assign(reason=CUE_COMES_LATE)] * 2)}
MOVER = head("L0H2", verdict="mover")


def compared(*comparisons: str, verdict: str = "resolver", **changes):
    """Heads of bank, by rank, with these comparisons with nouns of one meaning."""
    names = [f"L0H{number}" for number in range(len(comparisons))]
    heads = [
        head(name, (rank, rank, rank), verdict=verdict, comparison=comparison, **changes)
        for rank, (name, comparison) in enumerate(zip(names, comparisons, strict=True), start=1)
    ]
    return frames_of(*heads)


def mlps_more(*layers: int):
    """A frame of MLPs in which those of some layers do more for bank than for other nouns."""
    rows = [
        {
            "word": "bank",
            "sense_a": "river",
            "sense_b": "money",
            "layer": layer,
            "net": 0.2,
            "specific": 0.1 if layer in layers else 0.0,
            "specific_low": 0.05 if layer in layers else -0.2,
            "specific_high": 0.2,
            "p_specific": 0.01 if layer in layers else 1.0,
        }
        for layer in range(5)
    ]
    return frames_of(frames={"mlps": pd.DataFrame(rows)})


def gate(as_far: int, **words):
    """The words of the study where so many of 48 nouns change as far as the word."""
    return FRAMES | changed("words", ambiguity_p=(1 + as_far) / 49, **words)


def asked_of_one(pairs: int) -> dict[str, pd.DataFrame]:
    """The study's frames in which nouns stood in mole's place in so many of its pairs of senses."""
    words = FRAMES["words"].copy()
    of_mole = words.index[(words["word"] == "mole") & words["ranked"]]
    words.loc[of_mole[pairs:], "ambiguity_p"] = np.nan
    return FRAMES | {"words": words}


NOT_NAMED = {"ambiguity_p": np.nan, "nouns": 0, "not_compared": NOT_ASKED_FOR}
TOO_FEW_NOUNS = {
    "ambiguity_p": np.nan,
    "nouns": 3,
    "not_compared": "nouns that can take its place: 3, and 19 are needed",
}
OF_BANK = (FRAMES["words"]["word"] == "bank").to_numpy()
ODD = changed(
    "sentences",
    text=[
        re.sub("^The", "Any", text) if place % 2 else text
        for place, text in enumerate(FRAMES["sentences"]["text"])
    ],
)
SILENT = FRAMES["words"]["ranked"] & (FRAMES["words"]["word"] == "mole")
ONE_SILENT = changed("words", continuation_p=np.where(SILENT & (SILENT.cumsum() == 1), 0.5, 0.001))
NEAR = changed("distances", "distance == 1")
LAYERS = FRAMES["heads"].query("word == 'bank'").assign(verdict="none")
ON_ITSELF = {"attention_cue": 0.02, "attention_itself": 0.83}
RIGHT, WRONG, LATE = (row_of("showcase", place) for place in range(3))
TOKEN = {"role": "", "attention_percent": f"42{N}%", "size": f"3.1{N}%", "toward": "river"}
SECOND, OK = row_of("beside", 0), FRAMES["certificate"]
BY_MODEL, BY_PLACE = (
    "by the same model with random weights",
    "by where the word or its cue stands in the text or how long the text is",
)
EFFECT_SEEN = (
    f"an effect of 0.45 standard deviations over cue words would have been seen in 80{N}% of cases"
)

# What says it, the words, frames (or a row of one) with which it is said, and others with which it
# is not. fmt: off
SENTENCES = [
    (answer, "One head moves “bank”: L0H2 30", USUAL, frames_of(UNREAD)),
    (answer, "Two heads move “bank”: L0H2 30", OF_TWO, USUAL),
    (answer, "Five heads move “bank”. Among them, L0H1", frames_of(*MANY), frames_of(*MANY[:3])),
    (answer, "of the way between river and money", USUAL, frames_of(UNREAD)),
    (answer_mole, "of the way between two senses", FRAMES, FRAMES | changed("words", ranked=False)),
    (answer_mole, "(mean over all 6 pairs)", FRAMES | changed("words", ranked=True), FRAMES),
    (
        answer_mole,
        "mean over the 5 pairs that were shown to be apart",
        FRAMES,
        FRAMES | changed("words", ranked=True),
    ),
    (
        answer,
        "No head was shown to move “bank”, although its senses are apart",
        frames_of(UNREAD),
        USUAL,
    ),
    (
        answer,
        "the largest effect is 30\u202f% [25, 35], by L0H2 (unread)",
        frames_of(UNREAD),
        NOBODY,
    ),
    (
        answer,
        "was not shown to separate the senses of “bank” at the word",
        frames_of(ranked=False),
        frames_of(UNREAD),
    ),
    (
        answer,
        ", so no head is ranked. In 192 sentences (64 pairs with 14",
        frames_of(ranked=False),
        USUAL,
    ),
    (
        answer_mole,
        "to separate any of the 6 pairs of senses of “mole” at the word (p ≥ .2, limit .01), so",
        FRAMES | changed("words", ranked=False, gap_p=[0, 0.3, 0.2, 0.4, 1, 1, 1, 0]),
        FRAMES,
    ),
    (
        answer,
        EFFECT_SEEN,
        frames_of(UNREAD, smallest_p=0.049),
        frames_of(UNREAD, smallest_p=0.0625),
    ),
    (
        answer,
        "no test can come below p = .062, so nothing could have been shown",
        frames_of(UNREAD, smallest_p=0.0625),
        frames_of(UNREAD, smallest_p=0.049),
    ),
    (
        answer,
        "no test can come below p = .05, so",
        frames_of(ranked=False, smallest_p=0.05),
        frames_of(ranked=False),
    ),
    (
        answer,
        "Exploratory: fewer than 50 sentences per sense. One head moves",
        frames_of(exploratory=True),
        frames_of(exploratory=True, cue_words=11),
    ),
    (
        answer,
        "Exploratory: fewer than 12 pairs of cue words. One",
        frames_of(exploratory=True, cue_words=11),
        USUAL,
    ),
    (
        answer,
        "Exploratory: fewer than 50 sentences per sense and than 12 pairs of cue words. One",
        frames_of(exploratory=True, cue_words=11, sentences_report=99),
        frames_of(exploratory=True, cue_words=11),
    ),
    (
        cautions,
        "No cue is marked in the sentences of “bank”, so every pair of sentences counts as a cue word of its",
        FRAMES | changed("sentences", cue_start=None),
        FRAMES,
    ),
    (
        cautions,
        "No cue is marked in the sentences of “bank”, so every sentence counts as a cue word of its own:",
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
        ", in 4 of 8 sentences; each of the others counts as a cue word of its own.",
        FRAMES
        | {"sentences": FRAMES["sentences"].assign(cue_inferred=FRAMES["sentences"].index < 4)},
        FRAMES | changed("sentences", cue_inferred=True),
    ),
    (
        cautions,
        "6 of 8 sentences of “bank” stand in pairs, fewer than half, so all of them were put into pairs at random. Give",
        FRAMES | changed("words", pair_design=DRAWN),
        FRAMES,
    ),
    (
        answer,
        f"apart without meaning, {BY_MODEL}: no head",
        frames_of(UNREAD, untrained_p=0.009, ambiguity_p=0.3),
        frames_of(UNREAD, untrained_p=0.01, ambiguity_p=0.3),
    ),
    (
        answer,
        f"apart without meaning, {BY_PLACE}: no",
        frames_of(UNREAD, nuisance_p=0.049, ambiguity_p=0.3),
        frames_of(UNREAD, nuisance_p=0.05, ambiguity_p=0.3),
    ),
    (
        answer,
        "These senses can also be told apart without",
        frames_of(UNREAD, untrained_p=0, ambiguity_p=0.3),
        frames_of(untrained_p=0, ranked=False),
    ),
    (
        answer_mole,
        "The senses of 2 pairs can also be told apart without meaning",
        FRAMES | changed("words", nuisance_p=[1, 0, 1, 1, 0, 1, 0, 1], ambiguity_p=0.3),
        FRAMES,
    ),
    (
        answer,
        "The ranks of L0H2 and L1H0 overlap: they are in no order.",
        frames_of(head("L0H2", (1, 1, 2)), head("L1H0", (2, 1, 2))),
        OF_TWO,
    ),
    (
        answer,
        f"Together they keep 95{N}% [90, 98] of the gap",
        OF_TWO,
        frames_of(*TWO, kept=(0, 0.6, 0.8)),
    ),
    (answer, f"Alone it keeps 93{N}% [88, 96]", frames_of(kept=(0, 0.93, 1)), USUAL),
    (
        answer,
        f"L0H2 alone keeps 93{N}%",
        frames_of(*TWO, kept=(0, 0.93, 1)),
        frames_of(kept=(0, 0.93, 1)),
    ),
    (
        answer,
        "L0H2 and L1H0 together keep",
        frames_of(TWO[0], TWO[1] | {"verdict": "none"}),
        OF_TWO,
    ),
    (
        answer,
        f"The first 7 heads up to the read-out together keep 95{N}%",
        frames_of(*EIGHT, kept=(0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.95, 0.96)),
        OF_TWO,
    ),
    (
        answer,
        f"Nothing less than all 2 heads together keeps 90{N}%",
        frames_of(kept=(0, 0.6, 1)),
        USUAL,
    ),
    (
        answer,
        f"the best of 2 random sets of 2 heads from the same layers 30{N}%",
        USUAL,
        frames_of(kept=(0, 0.2)),
    ),
    (
        answer,
        ": a random set does as well",
        frames_of(kept=(0, 0.2, 0.9, 1), frames=changed("random_sets", size=2, faithfulness=0.9)),
        USUAL,
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
        lambda hooked: page_text.cautions(FRAMES, "made-up", "folder", hooked=hooked),
        (
            "made-up is run with hooks on h.1: every swap is a whole forward with the hooks on, and what is computed "
            "from the weights alone is left out: shares, parts of heads, paths, and the comparison with nouns of one "
            "meaning."
        ),
        "run with hooks on h.1",
        "",
    ),
    (
        cautions,
        "“bank” stands in 2 forms, each a token of its own to the model: “bank” (4), “Bank” (4).",
        FRAMES | FORMS,
        FRAMES,
    ),
    (
        cautions,
        "“bank” is cut into pieces in 8 of 8 sentences and read at the last one.",
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
        answer,
        "[15, 25] at the end",
        frames_of(*TWO, depth=1),
        OF_TWO,
    ),
    (
        page_text.numbers_apart,
        f"It moves the word 30{N}% of the way and itself writes 14{N}%: what comes after it adds the rest.",
        head("L0H2", direct=0.14),
        head("L0H2", direct=0.15),
    ),
    (
        page_text.numbers_apart,
        f"It writes 46{N}% of the way and moves the word 30{N}%: what comes after it takes part of it back.",
        head("L0H2", direct=0.46),
        head("L0H2", direct=0.45),
    ),
    (
        page_text.numbers_apart,
        f"It hardly looks at the cue (10{N}% of its attention): what it moves may come from there even so, or by",
        head("L0H2", direct=0.3, attention_cue=0.1),
        head("L0H2", direct=0.3, attention_cue=0.2),
    ),
    (
        evidence,
        "It moves the word beyond a same-sense swap (max-T p = .013)",
        USUAL,
        frames_of(UNREAD),
    ),
    (
        evidence,
        "Each moves the word beyond a same-sense swap (max-T p ≤ .013)",
        OF_TWO,
        USUAL,
    ),
    (
        evidence,
        ", and what the model says next (max-T p = .02).",
        USUAL,
        frames_of(head("L0H2", p_next_token=np.nan)),
    ),
    (
        evidence,
        "to prefer the next words that were prepared for the sense that is meant, although the senses are apart.",
        frames_of(continuation_p=0.01),
        frames_of(continuation_p=0.009),
    ),
    (
        evidence_mole,
        "that is meant, although the senses of 1 such pair are apart.",
        FRAMES | changed("words", continuation_p=0.009) | ONE_SILENT,
        FRAMES,
    ),
    (
        evidence,
        "That L0H2 also changes which of the next words that were prepared for each sense are likely was not shown.",
        frames_of(head("L0H2", p_continuation=0.05)),
        USUAL,
    ),
    (
        evidence,
        "That L0H2 also changes which of the next words that were prepared for each sense are likely was not shown.",
        frames_of(head("L0H2", continuation=0.019)),
        frames_of(head("L0H2", p_continuation=np.nan)),
    ),
    (
        evidence_mole,
        "also change which of the next words that were prepared for each sense are likely was not shown for every pair of senses.",
        FRAMES | changed("heads", p_continuation=0.5),
        FRAMES,
    ),
    (
        evidence,
        "L1H0 changes which of the next words that were prepared for each sense are likely, but failed another test.",
        frames_of(TWO[0], head("L1H0", verdict="none", p_continuation=0.01)),
        frames_of(TWO[0], head("L1H0", verdict="none", p_continuation=0.05)),
    ),
    (
        evidence,
        "What it writes separates the senses in sentences held out (AUROC 0.93, max-T p = .001).",
        USUAL,
        frames_of(head("L0H2", p_auroc=0.05)),
    ),
    (
        evidence,
        "What each writes separates the senses in sentences held out (AUROC 0.93 or",
        OF_TWO,
        USUAL,
    ),
    (
        evidence,
        "That what it writes separates the senses was not shown.",
        frames_of(head("L0H2", p_auroc=0.05)),
        USUAL,
    ),
    (
        evidence,
        "; this was not shown of L1H0.",
        frames_of(TWO[0], TWO[1] | {"p_auroc": 0.05}),
        OF_TWO,
    ),
    (
        evidence,
        "Tests are corrected for 2 heads and 1 pair of senses together.",
        OF_TWO,
        USUAL,
    ),
    (
        evidence,
        f"From the word, L0H2 gives 60{N}% of its attention to the cue",
        USUAL,
        frames_of(head("L0H2", attention_cue=np.nan)),
    ),
    (
        evidence,
        f"L0H2 looks at the word itself (83{N}%), at what layers below have brought there.",
        frames_of(head("L0H2", **ON_ITSELF)),
        frames_of(head("L0H2", attention_itself=0.5)),
    ),
    (
        evidence,
        f"L0H2 and L1H0 look at the word itself (83{N}% or more)",
        frames_of(head("L0H2", **ON_ITSELF), head("L1H0", attention_itself=0.9, attention_cue=0)),
        OF_TWO,
    ),
    (
        evidence,
        "the heads of layers 0 to 2 do is read after layer 2, the first that tells the senses apart as well as any",
        frames_of(head("L3H0")),
        frames_of(head("L3H0"), depth=4),
    ),
    (
        evidence,
        "; what those of layer 3 do, after the last layer.",
        frames_of(head("L3H0")),
        frames_of(head("L2H0")),
    ),
    (
        evidence,
        " do, after the last layer.",
        frames_of(head("L3H0")),
        frames_of(head("L3H0"), depth=4),
    ),
    (
        evidence,
        "the heads of layer 0 do is read after layer 0,",
        frames_of(*TWO, depth=1),
        OF_TWO,
    ),
    (
        evidence,
        "The 2 other heads: ",
        frames_of(*TWO, UNREAD, UNREAD),
        frames_of(UNREAD, UNREAD),
    ),
    (
        evidence,
        f"Of the one other head nothing was shown; its interval does not reach beyond 8{N}% either way.",
        frames_of(TWO[0], head("L1H0", net=0.03, verdict="none")),
        OF_TWO,
    ),
    (
        evidence,
        "moves the word by the token beside it, whatever that is (position-explained)",
        frames_of(head("L0H2", verdict="position-explained")),
        frames_of(head("L0H2", verdict="position-explained"), frames=NEAR),
    ),
    (
        evidence,
        "every cue stands beside it: whether it reads the cue or the place cannot be told (position-explained)",
        frames_of(head("L0H2", verdict="position-explained"), frames=NEAR),
        frames_of(head("L0H2", verdict="position-explained")),
    ),
    *(
        (
            evidence,
            f"{said} ({name})",
            frames_of(head("L0H2", verdict=name)),
            frames_of(head("L0H2", verdict="none")),
        )
        for name, said in {
            "confounded": "L0H2 moves the word, which something without meaning tells apart as well",
            "opposes": "L0H2 moves the word the wrong way",
            "backup": "L0H2 stands in for another head: swapping both moves the word further",
            "erased": "L0H2 writes much of the difference, which later layers take away",
            "suggestive": f"L0H2 moves the word by 2{N}% or more, which is not confirmed",
            "unread": "L0H2 moves the word, which was not shown to be read",
            "separates": "L0H2 writes something different for each sense, without an effect that was shown",
        }.items()
    ),
    (
        evidence,
        f"and of 1 nothing was shown; L0H2 has the largest effect of all 2, 30{N}%, and no interval of theirs reaches beyond",
        frames_of(UNREAD, head("L1H0", verdict="none")),
        frames_of(UNREAD),
    ),
    (
        answer,
        f"L1H0 moves it −30{N}% [−35, −25]: this head moves it away from the sense that is put in (opposes).",
        frames_of(head("L0H2"), head("L1H0", net=-0.3, verdict="opposes")),
        frames_of(head("L0H2"), head("L1H0", net=-0.05, verdict="opposes")),
    ),
    (
        answer,
        f"L1H0 moves it −30{N}% [−35, −25] and L1H1 −20{N}% [−25, −15]: these heads move it away from the sense",
        frames_of(
            head("L0H2"),
            head("L1H1", net=-0.2, verdict="opposes"),
            head("L1H0", net=-0.3, verdict="opposes"),
        ),
        frames_of(head("L0H2"), head("L1H0", net=-0.3, verdict="opposes")),
    ),
    (
        page_text.scope,
        "Swapped: the output of each of 16 heads at the word, one head at a time, between",
        FRAMES,
        FRAMES | changed("words", ranked=False),
    ),
    (
        page_text.scope,
        "of two senses (at least 192 sentences held out, at least 14 pairs of cue words)",
        FRAMES,
        FRAMES | changed("words", "word == 'bank'"),
    ),
    (
        page_text.scope,
        "Not swapped for these numbers: any other position than the word.",
        FRAMES,
        FRAMES | changed("words", ranked=False),
    ),
    (
        page_text.scope,
        "for the heads and pairs of senses of a word (up to 80 tests), not for the number of words (2).",
        FRAMES,
        FRAMES | changed("words", "word == 'mole'"),
    ),
    (
        page_text.scope,
        "Nothing was swapped, because no word was shown to have a gap",
        FRAMES | changed("words", ranked=False),
        FRAMES,
    ),
    (
        page_text.agreement,
        "model and the from-scratch math agree: the largest of 17 differences",
        OK,
        OK.assign(ok=[False, *[True] * 16]),
    ),
    (
        lambda certificate: page_text.agreement(certificate, "run with hooks on h.1"),
        (
            "No certificate was asked for: the model is run with hooks on h.1, and what hooks do does not follow from "
            "the weights."
        ),
        OK.head(0),
        OK,
    ),
    (
        page_text.agreement,
        "1 of 17 differences between the hooked model and the from-scratch math are too large",
        OK.assign(ok=[False, *[True] * 16]),
        OK,
    ),
    (
        page_text.later_words,
        "“carbon” comes after the word: a causal model cannot have resolved the word by it. Measured: with",
        LATE,
        LATE | {"cue": None},
    ),
    (
        page_text.later_words,
        "no head's write at the word changes by more than 3 × 10⁻⁸ of the largest ΔE",
        LATE,
        LATE | {"difference": 0.0},
    ),
    (
        page_text.later_words,
        "no head's write at the word changes at all.",
        LATE | {"difference": 0.0},
        LATE,
    ),
    (
        page_text.later_words,
        "What tells the sense comes after the word",
        LATE | {"cue": None},
        LATE,
    ),
    (
        page_text.second_model,
        "is nearest to unit, as meant (coordinate 0.41). Without what comes after the word",
        SECOND,
        SECOND | {"reads_as": "animal"},
    ),
    (
        page_text.second_model,
        "so this is no better than a guess",
        SECOND | {"shown": False},
        SECOND,
    ),
    (
        page_text.second_model,
        "Of single words “carbon” counts most. Coordinate with it hidden: 0.17",
        SECOND,
        SECOND | {"share": np.nan},
    ),
    (
        page_text.second_model,
        "; with “dioxide” as the only other word: 0.31; with none: 0.04",
        SECOND,
        SECOND | {"cue_share": np.nan},
    ),
    (page_text.second_model, "; with “dioxide” hidden: ", SECOND, SECOND | {"cue": "carbon"}),
    (
        page_text.second_model,
        "Through which heads “carbon” acts, in per cent of the coordinate that is lost without each: L1H0",
        SECOND,
        SECOND | {"shown": False},
    ),
    (
        lambda row: page_text.reading(row, True),
        "nearest to river, although money is meant",
        WRONG,
        RIGHT,
    ),
    (
        lambda row: page_text.reading(row, True),
        "nearest to river, as meant (coordinate 0.43, from −0.50 for money to 0.50 for river).",
        RIGHT,
        WRONG,
    ),
    (
        lambda known: page_text.reading(RIGHT, known),
        "The senses were not shown to be apart in this model, so this is no better",
        False,
        True,
    ),
    (
        page_text.token_title,
        f"attention 42{N}%, ΔE 3.1{N}% of the gap toward river",
        TOKEN,
        TOKEN | {"role": "later"},
    ),
    (page_text.token_title, "comes after the word", TOKEN | {"role": "later"}, TOKEN),
    (
        answer,
        "nouns of one meaning in the same sentences do not change as far.",
        frames_of(untrained_p=0),
        frames_of(untrained_p=0, ambiguity_p=0.3),
    ),
    (
        answer_mole,
        "without meaning, by the same model with random weights: of 2 pairs of them nouns of one meaning in the same sentences do not change",
        FRAMES | changed("words", untrained_p=0, ambiguity_p=[0.02, *[0.02] * 2, *[np.nan] * 5]),
        FRAMES | changed("words", untrained_p=0),
    ),
    (
        answer,
        "No head was shown to resolve it, with more for “bank” than for nouns of one meaning in its place.",
        frames_of(MOVER),
        USUAL,
    ),
    (
        answer,
        "L0H2 and L1H0 resolve it, with more for “bank” than for nouns of one meaning in its place.",
        OF_TWO,
        frames_of(TWO[0], TWO[1] | {"verdict": "mover"}),
    ),
    (answer, " and 2 others resolve it, with more", frames_of(*MANY), frames_of(*MANY[:3])),
    (
        answer,
        (
            f"48 nouns of one meaning in its place change 50{N}% as far in the mean and 80{N}% at most (“noun47”): "
            "“bank” is first of 49."
        ),
        FRAMES,
        gate(3),
    ),
    (
        answer_mole,
        "“mole” is first of 49, over all 5 pairs of senses.",
        FRAMES,
        gate(3),
    ),
    (
        answer,
        "The ambiguity gate was not asked (no nouns were asked for).",
        frames_of(**NOT_NAMED),
        USUAL,
    ),
    (
        answer_mole,
        "L0H1 (in the mean over its pairs of senses) resolves it",
        frames_of(head("L0H1", word="mole", resolves=0)),
        frames_of(head("L0H1", word="mole", resolves=1)),
    ),
]
# fmt: on


SAID: dict[tuple[object, int], str] = {}


def said(say, given) -> str:
    """What is said of what a row of SENTENCES holds; asked once where several rows hold it."""
    key = say, id(given)
    if key not in SAID:
        SAID[key] = say(given)
    return SAID[key]


@pytest.mark.parametrize("place", range(len(SENTENCES)), ids=[row[1] for row in SENTENCES])
def test_a_sentence_is_said_under_its_condition_and_not_without_it(place):
    say, words, given, otherwise = SENTENCES[place]
    assert words in said(say, given)
    assert words not in said(say, otherwise)


def phrases(module) -> set[str]:
    """The texts of three words or more in a module's code, its docstrings aside."""
    tree = ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
    quiet = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    texts = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {
        node.value
        for node in texts
        if id(node) not in quiet and len(re.findall(r"\w+", node.value)) >= 3
    }


TEMPLATES = (
    "agreement",
    "card",
    "cautions",
    "grammar",
    "head_sentences",
    "showcase_sentences",
)
PHRASES = {name: page_text.phrases(f"{name}.html.j2") for name in TEMPLATES}


@pytest.mark.parametrize("source", PHRASES)
def test_the_table_lists_every_kind_of_sentence(source):
    every = "\n".join(said(say, given) for say, _, given, _ in SENTENCES)
    assert PHRASES[source]
    assert sorted(phrase for phrase in PHRASES[source] if phrase not in every) == []


@pytest.mark.parametrize("word", ["bank", "mole", "apple"])
def test_nothing_is_a_reason_and_the_first_sentence_names_no_head(word):
    card = page_text.card_answer(FRAMES, word) + page_text.card_evidence(FRAMES, word)
    assert not re.search(r"because|\bfirst,|second|third", card)


def test_every_verdict_has_its_words():
    for name in set(ORDER) - {"resolver", "mover", "none"}:
        said_of_it = evidence(frames_of(head("L0H1"), head("L0H2", verdict=name)))
        assert re.search(rf"L0H2 \w+ [^;]+ \({name}\)", said_of_it), name
