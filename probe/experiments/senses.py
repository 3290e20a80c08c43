"""How far apart are the senses at each depth, and is there a gap to explain?

The gap of each pair of senses, with the sentences that it was measured on and the tests that it has
to pass before an effect on it has a meaning (`probe.experiments.prepare`).
"""

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from probe.experiments import swaps
from probe.experiments.beside_nouns import NO_GATE
from probe.experiments.columns import (
    KEYS,
    Column,
    Table,
    as_elsewhere,
    dataset,
    listed,
    rows,
)
from probe.experiments.design import pair_variables
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord, by_number
from probe.experiments.run import WordRun
from probe.stats import axes, resampling
from probe.stats.limits import FEW, FEW_CUES
from probe.text.cautions import words_before
from probe.text.sentences import Sentence
from probe.text.spans import fold

if TYPE_CHECKING:
    import xarray as xr

ORDER = 0
NEEDS = ()
ANSWERS = True
SECONDS = 0.5
# Pairs of sentences with the word in one form. With fewer, the form's gap is not reported.
FEWEST_OF_A_FORM = 4
NOT_ASKED_FOR = "no nouns were asked for"  # why a word was not compared with nouns
NO_GAP = "the gap between the senses is not significant"
# The fields of a sentence that are columns of its table.
SENTENCE = (
    *("word", "sense", "text", "start", "end", "form", "frame", "pair"),
    *("cue_start", "cue_end", "cue_inferred", "distance"),
)


def with_gate(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each pair of senses: sample sizes, the read-out layer, the gap and its tests, and
    how far unambiguous nouns in the word's place change.
    """
    frame = rows(record, data).assign(depth=record.depth, causal=record.causal)
    gates = []
    for is_ranked, nouns in zip(frame["ranked"], record.of_pairs("nouns"), strict=True):
        if nouns is None or not is_ranked:
            gates.append({**NO_GATE, "not_compared": NOT_ASKED_FOR if is_ranked else NO_GAP})
        else:
            gates.append({name: nouns[name].item() for name in NO_GATE})
    return frame.join(pd.DataFrame(gates, index=frame.index))


def of_sentences(record: WordRecord, data: "xr.Dataset") -> pd.DataFrame:
    """A row for each tested sentence and pair of senses, with its sense, its cue and its text."""
    frame = rows(record, data)
    sentences = rows(record, record.measured["senses"]["sentences"]).loc[frame["sentence"]]
    columns = sentences[["sense", "cue", "words_before", "text"]].set_axis(frame.index)
    return frame.join(columns).assign(right=frame["predicted"] == columns["sense"])


# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "sentences_fit": Column(
        "number of sentences of the two senses to which an axis was fitted: the smallest number "
        "in any fold",
        "count",
    ),
    "sentences_report": Column(
        "number of sentences of the two senses that were tested, each held out once", "count"
    ),
    "pair_design": Column(
        "how the pairs were formed. The two sentences of an aligned pair differ in the cue only. "
        "Otherwise donors are drawn at random."
    ),
    "split_design": Column(
        "how the tested sentences were separated from the sentences used for fitting"
    ),
    "tokens_of_word": Column(
        "number of tokens of the word. The word is read at its last token.", "tokens"
    ),
    "causal": Column("whether the model reads only the text before a token"),
    "gap_low": Column(
        "lower end of the 95 % bootstrap interval of gap", "fraction of the sense gap"
    ),
    "gap_high": Column(
        "upper end of the 95 % bootstrap interval of gap", "fraction of the sense gap"
    ),
    "gap_p": Column(
        "p of the gap, corrected for all depths and adjusted for the pairs of senses of the word. "
        "Heads are ranked only if p < .01.",
        "0 to 1",
    ),
    "smallest_gap_p": Column(
        "smallest p that the test of the gap can have with these pairs of cue words. Not below "
        ".01 if they are too few, whatever the model does.",
        "0 to 1",
    ),
    "gap_form": Column(
        "the gap over the pairs of sentences with the word in its dictionary form",
        "fraction of the fitted sense gap",
    ),
    "gap_other_forms": Column(
        "the gap over the other pairs, e.g. with plurals. The comparison with nouns does not "
        "cover these pairs.",
        "fraction of the fitted sense gap",
    ),
    "next_token_p": Column(
        "p that the logits of the next token differ between the senses. 1 for a model that "
        "predicts no tokens.",
        "0 to 1",
    ),
    "continuation_p": Column(
        "p that the lexicon's continuations of the word's sense have the larger mean logit after "
        "the word. Missing if the lexicon has no continuations.",
        "0 to 1",
    ),
    "nuisance_p": Column(
        "p that the position of the word, or the length of the text, differs between the senses",
        "0 to 1",
    ),
    "negative_gaps": Column("pairs of sentences whose order on the axis is reversed", "count"),
    "cue_words": Column(
        "number of pairs of cue words, one of each sense, in the swapped sentences: the sample of "
        "the tests. Without marked cues, the number of pairs of sentences.",
        "count",
    ),
    "smallest_p": Column(
        "smallest p that the swap test of a head can have with this number of pairs of cue words "
        "and of permutations",
        "0 to 1",
    ),
    "visible_d_pairs": Column(
        "smallest swap effect that a test with this number of pairs of cue words detects in 80 % "
        "of cases, in standard deviations over the pairs of cue words",
        "standard deviations",
    ),
    "exploratory": Column("fewer than 50 sentences per sense, or fewer than 12 pairs of cue words"),
    "ranked": Column("whether the gap is significant, so that heads were swapped and ranked"),
    "largest_share": Column(
        "the largest of these shares over the nouns", "fraction of the word's squared gap"
    ),
    "surprisal_nouns": Column("mean surprisal of the nouns in the word's place", "nats"),
    "nouns_near": Column("number of nouns whose surprisal is within 2 nats of the word's", "count"),
    "ambiguity_p_near": Column(
        "p of the ambiguity gate among these nouns. Missing if there are fewer than 19.", "0 to 1"
    ),
    "sentences_not_compared": Column(
        "number of sentences in which no noun could take the word's place, because the word is "
        "not a noun in its dictionary form there or has different tokens",
        "count",
    ),
    "not_compared": Column("why the ambiguity gate was not computed. Empty if it was."),
    "label": Column("the depth in words"),
    "low": Column(
        "10 % of the sentences of this sense have a lower coordinate", "fraction of the sense gap"
    ),
    "high": Column(
        "10 % of the sentences of this sense have a higher coordinate", "fraction of the sense gap"
    ),
    "form": Column("the word as it is written in the text, e.g. banks or mice"),
    "frame": Column(
        "the story from which the sentence was made. Nothing is tested on a frame to which it was "
        "fitted."
    ),
    "pair": Column("name of an aligned pair. Sentences with the same name differ in the cue only."),
    "cue_inferred": Column(
        "whether the cue was inferred from the difference between the two sentences of a pair, "
        "because the file marks none"
    ),
    "position": Column("position of the token at which the word is read, counted from 0"),
    "predicted": Column(
        "the nearest sense of the sentence at the read-out layer, held out. Missing if both "
        "senses are equally near."
    ),
    "right": Column("whether predicted is the labelled sense"),
    "words_before": Column("number of words before the word in the sentence", "count"),
}
TABLES = {
    "words": Table(
        "every word and pair of senses: sample sizes, read-out layer, gap and its tests",
        {
            **as_elsewhere(*KEYS, "sentences_fit", "sentences_report", "pairs", "pair_design"),
            **as_elsewhere("split_design", "tokens_of_word", "causal", "depth", "auroc", "gap"),
            **as_elsewhere("gap_low", "gap_high", "gap_p", "smallest_gap_p", "gap_form"),
            **as_elsewhere("gap_other_forms", "next_token_p", "continuation_p", "nuisance_p"),
            **as_elsewhere("untrained_p", "negative_gaps", "cue_words", "smallest_p"),
            **as_elsewhere("visible_d_pairs", "exploratory", "ranked", *NO_GATE),
        },
        with_gate,
    ),
    "depth": Table(
        "how far apart the senses are at every depth",
        as_elsewhere(*KEYS, "label", "depth", "sense", "coordinate", "low", "high", "auroc"),
        rows,
    ),
    "sentences": Table(
        "every sentence, its use, and the position of its word",
        as_elsewhere(*SENTENCE, "position", "tokens_of_word", "part"),
        rows,
        missing=("cue_start", "cue_end", "distance"),
    ),
    "predictions": Table(
        "every tested sentence: its sense coordinate, the predicted sense, and whether it is right",
        {
            **as_elsewhere(*KEYS, "sense", "predicted", "right", "coordinate", "cue"),
            **as_elsewhere("words_before", "sentence", "text"),
        },
        of_sentences,
    ),
}
STREAM = "residual stream"
MORE = {
    "gaps": Column(
        "G of each pair of sentences at every stage: the distance between the two along the axis",
        "fraction of the fitted sense gap",
    ),
    "raw_gaps": Column("the same in units of the residual stream", STREAM),
    "separation": Column("held-out AUROC of the word's vector at every depth", "0 to 1"),
    "squared_gap": Column("cross-validated squared gap at every depth", "residual stream, squared"),
    "untrained_gap": Column(
        "mean gap in a model of random weights, along axes that were fitted in it", STREAM
    ),
    "read_depth": Column("the stage at which the heads of a layer are read", "blocks"),
    "write_depth": Column("the stage at which their writes are read", "blocks"),
    "a": Column("number of the sentence of the first sense in a pair of sentences"),
    "b": Column("number of the sentence of the second sense"),
    "same_a": Column("number of the same-sense donor of a"),
    "same_b": Column("number of the same-sense donor of b"),
    "unit": Column("the pair of cue words of a pair of sentences"),
    "word_unit": Column("the same, numbered across all pairs of senses"),
    "frame": Column("the frame of a pair of sentences"),
    "distance": Column("tokens from cue to word in both; missing if they differ", "tokens"),
}


def measure(run: WordRun) -> "dict[str, xr.Dataset]":
    """The tables of all pairs of senses, `row` each, and for every pair of senses its gaps and the
    design of its swaps, by the number of the pair.
    """
    prepared = run.prepared
    senses = [each.sense.senses for each in prepared]
    keys = [{"sense_a": a, "sense_b": b} for a, b in senses]
    words = [key | _row(run, each) for key, each in zip(keys, prepared, strict=True)]
    depths = [
        key | {"label": depth_label(here.depth)} | asdict(here)
        for key, each in zip(keys, prepared, strict=True)
        for here in _profile(run, each)
    ]
    predictions = [
        pd.DataFrame(_predictions(run, each)).assign(**key)
        for key, each in zip(keys, prepared, strict=True)
    ]
    frames = {
        "words": pd.DataFrame(words),
        "depth": pd.DataFrame(depths),
        "sentences": _sentences(run),
        "predictions": pd.concat(predictions, ignore_index=True),
    }
    tables = {name: listed({name: TABLES[name]}, each, "row") for name, each in frames.items()}
    return tables | by_number([_arrays(run, each) for each in prepared])


def depth_label(depth: int) -> str:
    """A depth in words: the last addition to the residual stream. -1 is the token embedding."""
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def _row(run: WordRun, each: Prepared) -> dict[str, Any]:
    """The columns of the table `words` for two senses, without the comparison with nouns."""
    depth = run.observation.depth
    split = each.sense.split
    weights = each.pairs.bootstrap()
    units = len(set(each.pairs.units))
    gap = each.gap[:, depth]
    # Bootstrap means of the gap: Σ w g / Σ w over the pairs of sentences.
    low, high = resampling.interval(weights @ gap / weights.sum(1), float(gap.mean()), units=units)
    tested = [bool(split.is_a[position]) for position in split.tested]
    per_sense = (sum(tested), len(tested) - sum(tested))
    heads = run.weights.shape[0] * run.weights.shape[1]
    return {
        "sentences_fit": min(len(holdout.train) for holdout in split.holdouts),
        "sentences_report": sum(per_sense),
        "pairs": len(each.pairs),
        "pair_design": each.pairs.design,
        "split_design": split.design,
        "tokens_of_word": max(map(len, run.observation.material.words)),
        "auroc": float(each.sense.separation.auroc[depth]),
        "gap": float(gap.mean()),
        "gap_low": float(low),
        "gap_high": float(high),
        "smallest_gap_p": resampling.smallest_gap_p(split),
        **_by_form(run, each),
        **each.gates,
        "negative_gaps": int((gap <= 0).sum()),
        "cue_words": units,
        "smallest_p": resampling.smallest_p(units, draws=run.options.permutations),
        "visible_d_pairs": resampling.smallest_effect(units, tests=heads, paired=True),
        "exploratory": min(per_sense) < FEW or units < FEW_CUES,
        "ranked": run.is_ranked(each),
    }


def _by_form(run: WordRun, each: Prepared) -> dict[str, float]:
    """The gap over the pairs of sentences with the word in its dictionary form, and over the other
    pairs. NaN for fewer than FEWEST_OF_A_FORM pairs.
    """
    material = run.observation.material
    plain = [fold(sentence.form) == fold(material.word) for sentence in material.sentences]
    # A pair belongs to the dictionary form only if both of its sentences have it.
    both = np.array([plain[a] and plain[b] for a, b in zip(each.pairs.a, each.pairs.b)])
    gap = each.gap[:, run.observation.depth]
    by_form = {"gap_form": gap[both], "gap_other_forms": gap[~both]}
    return {
        name: float(gaps.mean()) if len(gaps) >= FEWEST_OF_A_FORM else float("nan")
        for name, gaps in by_form.items()
    }


def _profile(run: WordRun, each: Prepared) -> list[axes.SenseAtDepth]:
    """Mean sense coordinates at every depth, starting with the token embedding alone."""
    states = run.observation.states
    # Stage 0 is the token embedding without the position; depth 0 comes after it.
    # `row stage d_model`
    stages = torch.cat([states.token_embedding[:, None], states.resid], dim=1)
    sense = each.sense
    auroc = sense.separation.auroc
    return axes.profile(sense.axes, stages, sense.split, run.observation.depth, auroc)


def _predictions(run: WordRun, each: Prepared) -> dict[str, Any]:
    """The held-out sense coordinate of each tested sentence at the read-out layer, and the nearest
    sense; "" where both are equally near.
    """
    split = each.sense.split
    tested = [split.rows[position] for position in split.tested]
    along = each.sense.axes.coordinates(run.observation.states.resid[tested], tested)
    coordinates = along[:, run.observation.depth]
    a, b = each.sense.senses
    # Exactly 0 if the model gives both senses the same vector.
    predicted = np.select([coordinates > 0, coordinates < 0], [a, b], "")
    return {"predicted": predicted, "coordinate": coordinates, "sentence": tested}


def _sentences(run: WordRun) -> pd.DataFrame:
    """A row for every usable sentence: whether it was tested or used for fitting only, and the
    position at which its word was read.
    """
    material = run.observation.material
    splits = [each.sense.split for each in run.prepared]
    # A sentence counts as tested if any pair of senses tests it.
    tested = {split.rows[position] for split in splits for position in split.tested}
    used = {row for split in splits for row in split.rows}

    def part(row: int) -> str:
        if row in tested:
            return "tested"
        return "learned from" if row in used else "neither"

    frame = pd.DataFrame(map(_columns, material.sentences))
    whole = dict.fromkeys(("cue_start", "cue_end", "distance"), float)
    return frame.astype(whole).assign(
        position=material.targets,
        tokens_of_word=[len(word) for word in material.words],
        part=[part(row) for row in range(len(material))],
    )


def _columns(sentence: Sentence) -> dict[str, Any]:
    """The columns of a sentence."""
    columns = {name: getattr(sentence, name) for name in SENTENCE}
    return columns | {"cue": sentence.cue, "words_before": words_before(sentence)}


def _arrays(run: WordRun, each: Prepared) -> "xr.Dataset":
    """The gaps of two senses, and the design of their swaps."""
    states = run.observation.states
    stages = run.observation.stages.vectors
    sense = each.sense
    untrained = _untrained_gap(run, each)
    return dataset(
        {},
        {
            "gaps": ("sentence_pair stage", each.gap),
            "raw_gaps": (
                "sentence_pair stage",
                swaps.gaps(sense.axes.in_units(), stages, each.pairs),
            ),
            "separation": ("depth", sense.separation.auroc),
            "squared_gap": (
                "depth",
                axes.squared_gap(states.resid[list(sense.split.rows)], sense.split),
            ),
            **({} if untrained is None else {"untrained_gap": ("depth", untrained)}),
            "read_depth": ("layer", each.readout.at),
            "write_depth": ("layer", each.readout.direct),
            **pair_variables(each.pairs),
            **{name: ("", p) for name, p in each.gates.items()},
        },
        coordinates={name: ("", sense) for name, sense in zip(KEYS[1:], sense.senses, strict=True)},
        more=MORE | COLUMNS,
    )


def _untrained_gap(run: WordRun, each: Prepared) -> "np.ndarray[Any, Any] | None":
    """The mean gap at every depth in the model of random weights; None without that model.
    `depth`
    """
    if run.untrained is None:
        return None
    resid = run.untrained.resid
    # The axes are fitted in the untrained model itself. M is in units of its residual stream,
    # because a gap of random weights would be a poor unit.
    axes_untrained = axes.hold_out(resid, each.sense.split, each.sense.senses).in_units()
    return np.asarray(swaps.gaps(axes_untrained, resid, each.pairs).mean(0))
