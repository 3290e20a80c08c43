"""QK attribution: why a head attends to the cue, and what it writes from there.

The contrast is the head's score at the cue minus its mean score at the other tokens that it can
read from the word. It is split into pairs of parts of the two residual streams (`probe.model.qk`).
Each part of the word's and of the cue's stream is also replaced by the same part of the other
tokens, and the score is computed again (`probe.patching.score_parts`). The part of the word is
replaced by that of an unambiguous noun, too: only what is lost then depends on the word itself. The
head's write from the cue along the sense axis is split into parts of the cue's stream.

The largest pair of parts is chosen in the sentences of one half of the cue words, and its share is
reported in the others, because the largest of many is too large where it was chosen. Losses and
contrasts are not symmetric if nothing is lost, so their signs cannot be flipped; their p comes from
`resampling.bootstrap_t`.

In tables, all heads of a layer and their bias are one part, e.g. "heads 3".
"""

import re
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np
import pandas as pd
import torch
from scipy.stats import spearmanr

from probe.experiments.candidates import candidates, rows_for
from probe.experiments.columns import KEYS, Column, Table, as_elsewhere, dataset, rows
from probe.experiments.design import Pairs, spread
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord
from probe.experiments.run import WordRun
from probe.model import qk
from probe.model.records import Trace
from probe.model.trace import traces
from probe.patching.score_parts import Replaced, replace_parts
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.tidy import stacked

if TYPE_CHECKING:
    import xarray as xr

ORDER = 120
NEEDS = ()
ANSWERS = False
SECONDS = 11.0
MOST_PAIRS = 8  # pairs of sentences, spread over cue words
NOUNS = 10  # unambiguous nouns that replace the word
NOUNS_PER_SENTENCE = 2  # of these; each further one is one more run
BY_NOUNS = "query, nouns"  # the side in tables if a noun's part replaces the word's
# The labels of parts that belong to the heads of a layer: a head, or the bias of all heads.
ATTENTION = re.compile(r"L(\d+)H\d+|attention bias (\d+)")
SIDES: tuple[qk.Side, ...] = get_args(qk.Side)
# What the datasets contain in addition to columns of the tables.
MORE = {
    "cue": Column("the cue word of the sentence"),
    "frame": Column("the frame of the sentence"),
    "seed": Column("of the bootstrap"),
    "reported": Column("whether the largest pair of parts was chosen without the sentence"),
    "cue_first": Column("whether no other token has a larger score than the cue"),
    "largest": Column("the score of the largest pair of single parts", "score"),
    "noun_contrast": Column("`contrast` with nouns in the word's place, mean over nouns", "score"),
    "noun_largest": Column("`largest` with nouns in the word's place, mean over nouns", "score"),
    "largest_query": Column("the part of the word's stream in the largest pair of single parts"),
    "largest_key": Column("the part of the cue's stream in the largest pair of single parts"),
    "side": Column(f"the side whose part is replaced: query or key, or {BY_NOUNS}"),
    "attributed": Column("the loss of contrast that the attribution predicts", "score"),
    "lost": Column("the loss of contrast, computed", "score"),
    "attention": Column("the loss of attention to the cue, computed", "0 to 1"),
}
# The losses if a part is replaced, with their names in `probe.patching.score_parts`.
LOSSES = {"attributed": "attributed", "lost": "score", "attention": "attention"}
# On the page.
MOST_PARTS = 6  # of the word and of the cue with a row and a column each
MOST_REPLACED = 4  # parts of each side whose replacement is listed
ROUNDS_TO_ZERO = 0.005  # of a sum: a smaller share has a blank cell
OTHERS = "all others"
WRITTEN = "written from the cue"


def whys(record: WordRecord, heads: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each head: its contrast, and the largest pair of parts with its tests."""
    return pd.DataFrame([_why(head) for head in heads.values()]).assign(word=record.word)


def _why(head: "xr.Dataset") -> dict[str, object]:
    part_query, part_key = head.largest_query.item(), head.largest_key.item()
    noun_contrast = head.noun_contrast.values
    # A bias is equal at every token and is not replaced, and no noun may fit.
    p = dict.fromkeys([(BY_NOUNS, part_query), ("query", part_query), ("key", part_key)], np.nan)
    p |= dict(
        zip(zip(head.side.values, head.part.values, strict=True), p_of_losses(head), strict=True)
    )
    return {
        **{name: head[name].item() for name in ("sense_a", "sense_b", "layer", "head")},
        "contrast": head.contrast.values.mean(),
        "p_contrast": _p(head, head.contrast.values[:, None])[0],
        "part_query": part_query,
        "part_key": part_key,
        **share(head, "share", head.largest.values, head.contrast.values),
        "cue_first": head.cue_first.values.mean(),
        "noun_contrast": _mean(noun_contrast[~np.isnan(noun_contrast)]),
        **share(head, "noun_share", head.noun_largest.values, noun_contrast),
        "p_nouns": p[BY_NOUNS, part_query],
        "p_query": p["query", part_query],
        "p_key": p["key", part_key],
        "agreement": agreement(head),
        "sentences": head.sizes["sentence"],
        "pairs": head.pairs.item(),
    }


def scores_by_parts(record: WordRecord, heads: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each pair of parts of a head's contrast."""
    return stacked([rows(record, head[["score"]]) for head in heads.values()], [])


def writes(record: WordRecord, heads: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each part of a head's write."""
    parts = stacked([rows(record, head[["write"]]) for head in heads.values()], [])
    return parts.rename(columns={"written_part": "part_key"})


def losses(record: WordRecord, heads: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each part that is replaced, with means over the sentences."""
    parts = []
    for head in heads.values():
        # Nouns fit in some sentences only; the others have no losses by nouns.
        means = head[["attributed", "lost", "attention"]].mean("sentence")
        parts.append(rows(record, means).assign(p=p_of_losses(head)))
    return stacked(parts, []).rename(columns={"lost": "score"})


def share(head: "xr.Dataset", name: str, scores: Array, contrast: Array) -> dict[str, float]:
    """The fraction of a contrast in some scores, over the reported sentences, with the ends of its
    95 % interval over frames and cue words. NaN if no noun fits.

    scores, contrast: `sentence`
    """
    here = head.reported.values & ~np.isnan(contrast)
    values = (float("nan"),) * 3
    if here.any():
        values = resampling.ratio_interval(scores[here], contrast[here], _factors(head, here))
    return dict(zip((name, f"{name}_low", f"{name}_high"), values, strict=True))


def agreement(head: "xr.Dataset") -> float:
    """The rank correlation of predicted and computed losses over the parts of both sides, mean over
    the sentences; NaN if it is defined in no sentence.
    """
    both_sides = head.side.values != BY_NOUNS
    attributed, lost = head.attributed.values[:, both_sides], head.lost.values[:, both_sides]
    # A rank correlation is undefined if one of its sides does not vary.
    ranks = [
        spearmanr(_with_ties(predicted), _with_ties(computed)).statistic
        for predicted, computed in zip(attributed, lost, strict=True)
        if np.ptp(predicted) > 0 and np.ptp(computed) > 0
    ]
    return float(np.mean(ranks)) if ranks else float("nan")


def _with_ties(values: Array) -> Array:
    """The values in steps of the margin for ties. Of parts that lose nothing, the last digit of a
    sum would decide the order.
    """
    return np.round(values / (resampling.TIE * np.abs(values).max()))


def p_of_losses(head: "xr.Dataset") -> Array:
    """The one-sided p of each loss of contrast, corrected for all parts of its side.
    `replacement`
    """
    p = np.full(head.sizes["replacement"], np.nan)
    for side in np.unique(head.side.values):
        of_side = head.side.values == side
        p[of_side] = _p(head, head.lost.values[:, of_side])
    return p


def _p(head: "xr.Dataset", effects: Array) -> Array:
    """One-sided p of some effects, corrected for all columns, in the sentences that have them.

    `sentence column -> column`
    """
    here = ~np.isnan(effects).any(1)
    factors = _factors(head, here)
    return resampling.bootstrap_t(effects[here], factors, seed=head.seed.item()).p


def _factors(head: "xr.Dataset", here: Any) -> list[list[Hashable]]:
    """What is resampled: the frames and the cue words of some sentences.

    here: `sentence`, whether to take it
    """
    return resampling.crossed_factors(head.frame.values[here], head.cue.values[here])


def _mean(values: Array) -> float:
    """The mean; NaN of nothing."""
    return float(values.mean()) if values.size else float("nan")


TESTED = (
    "one-sided, bootstrap-t over frames and cue words, corrected for all parts of that side; the "
    "tokens that replace a part were chosen after p values had been seen, so this p is "
    "descriptive, not confirmatory"
)
TABLES = {
    "why_it_attends": Table(
        "why the top heads attend to the cue: the largest pair of parts, and its tests",
        {
            **as_elsewhere(*KEYS, "layer", "head"),
            "contrast": Column("score at the cue minus the mean at the other tokens", "score"),
            "p_contrast": Column(
                "p that the contrast is not above 0, bootstrap-t over frames and cue words"
            ),
            "part_query": Column(
                "the part of the word's stream in the largest pair, chosen with half of the cues"
            ),
            "part_key": Column("the part of the cue's stream in the largest pair"),
            "share": Column(
                "the contribution of the largest pair in the other sentences",
                "fraction of the contrast",
            ),
            "share_low": Column(
                "lower end of the 95 % interval of share, over frames and cue words"
            ),
            "share_high": Column(
                "upper end of the 95 % interval of share, over frames and cue words"
            ),
            "cue_first": Column(
                "sentences in which no other token has a higher score than the cue", "fraction"
            ),
            "noun_contrast": Column("contrast with unambiguous nouns in the word's place", "score"),
            "noun_share": Column("share with these nouns", "fraction of noun_contrast"),
            "noun_share_low": Column("lower end of the 95 % interval of noun_share"),
            "noun_share_high": Column("upper end of the 95 % interval of noun_share"),
            "p_nouns": Column(
                f"p of replacing the part at the word by that of a noun in its place: {TESTED}"
            ),
            "p_query": Column(f"p of replacing the part at the word: {TESTED}"),
            "p_key": Column(f"p of replacing the part at the cue: {TESTED}"),
            "agreement": Column(
                "rank correlation of predicted and computed losses over all parts, mean over "
                "sentences",
                "-1 to 1",
            ),
            "sentences": Column("sentences in which the head's scores are split into parts"),
            "pairs": Column("pairs that these sentences form"),
        },
        whys,
    ),
    "qk_attribution": Table(
        "the contrast by pairs of parts: a head's score at the cue minus its mean score at the "
        "other tokens; all heads of a layer are one part",
        as_elsewhere("word", "layer", "head", "part_query", "part_key", "score"),
        scores_by_parts,
    ),
    "qk_interventions": Table(
        "losses if one part of the word's or of the cue's stream is replaced by that of the other "
        f"tokens, or the word's by that of unambiguous nouns in its place ({BY_NOUNS})",
        {
            **as_elsewhere(
                "word", "layer", "head", "side", "part", "attributed", "score", "attention"
            ),
            "p": Column(f"p of the loss of score: {TESTED}"),
        },
        losses,
    ),
    "ov_attribution": Table(
        "a head's write from the cue, by parts of the cue's stream",
        {
            **as_elsewhere("word", "layer", "head"),
            "part_key": Column("the part of the cue's stream that the write comes from"),
            **as_elsewhere("write"),
        },
        writes,
    ),
}


def parts_of_contrast(scores: pd.DataFrame, writes: pd.DataFrame, contrast: float) -> pd.DataFrame:
    """The contrast by parts of the word and of the cue, and in the last row, WRITTEN, what the head
    writes by parts of the cue, as shares of their sums. `part_query part_key`

    scores, writes: the rows of one head in the tables `qk_attribution` and `ov_attribution`
    """
    cells = scores.pivot_table(
        index="part_query", columns="part_key", values="score", aggfunc="sum", sort=False
    )
    cells = cells.fillna(0.0) / contrast
    written = writes.set_index("part_key")["write"]
    # Shares of what goes the other way, or nowhere, would say nothing.
    total = written.sum()
    written = written / total if total >= ROUNDS_TO_ZERO else 0.0 * written
    shares = pd.concat([cells, written.to_frame(WRITTEN).T]).fillna(0.0)
    queries, keys = _largest(cells.abs().max(axis=1)), _largest(shares.abs().max())
    shares = shares.groupby(_gathered(shares.index, [*queries, WRITTEN]), sort=False).sum()
    shares = shares.T.groupby(_gathered(shares.columns, keys), sort=False).sum().T
    of_contrast = shares.drop(index=WRITTEN).abs()
    if of_contrast.max(axis=1).get(OTHERS, 0.0) >= ROUNDS_TO_ZERO:
        queries.append(OTHERS)
    if of_contrast.max().get(OTHERS, 0.0) >= ROUNDS_TO_ZERO:
        keys.append(OTHERS)
    return shares.reindex(index=[*queries, WRITTEN], columns=keys, fill_value=0.0)


def _largest(sizes: pd.Series) -> list[str]:
    """The MOST_PARTS largest parts that do not round to 0, in the order of the stream."""
    largest = set(sizes[sizes >= ROUNDS_TO_ZERO].nlargest(MOST_PARTS).index)
    return [str(part) for part in sizes.index if part in largest]


def _gathered(parts: "pd.Index[str]", shown: list[str]) -> "pd.Index[str]":
    """The names of parts; OTHERS for every part that is not shown."""
    return parts.where(parts.isin(shown), OTHERS)


def largest_losses(losses: pd.DataFrame) -> pd.DataFrame:
    """The parts of each side whose replacement, predicted or computed, matters most.

    losses: the rows of one head in the table `qk_interventions`
    """
    sizes = losses[["attributed", "score"]].abs().max(axis=1)
    by_side = [sizes[losses["side"] == side] for side in (*SIDES, BY_NOUNS)]
    return losses.loc[[part for side in by_side for part in side.nlargest(MOST_REPLACED).index]]


FILTERS = (parts_of_contrast, largest_losses)


def measure(run: WordRun) -> "dict[str, xr.Dataset]":
    """The attribution of each of the word's top heads, in sentences of the two senses whose gap is
    clearest. A dataset for each head, because heads of other layers have other parts.
    `sentence part_query part_key written_part replacement`

    Empty if no heads were swapped or no cue is marked.
    """
    if not run.swapped_pairs:
        return {}
    prepared = run.prepared[run.clearest]
    cues = run.observation.material.cues
    pairs = prepared.pairs
    # The contrast needs a cue in both sentences of a pair.
    marked = [
        number
        for number, rows in enumerate(zip(pairs.a, pairs.b, strict=True))
        if all(cues[row] for row in rows)
    ]
    units = [pairs.units[number] for number in marked]
    sample = spread(units, MOST_PAIRS, np.random.default_rng(pairs.seed))
    sampled_pairs = pairs.take(sorted(marked[index] for index in sample))
    texts = _texts(run, [*dict.fromkeys([*sampled_pairs.a, *sampled_pairs.b])])
    together = iter(traces(run.model, [text for of_row in texts.values() for text in of_row]))
    traced = {row: [next(together) for _ in of_row] for row, of_row in texts.items()}
    attributions = {
        f"L{head[0]}H{head[1]}": _of_head(run, prepared, sampled_pairs, head, traced)
        for head in run.top_heads
    }
    return {name: each for name, each in attributions.items() if each is not None}


def _texts(run: WordRun, rows: Sequence[int]) -> dict[int, list[str]]:
    """Each sentence, and then the sentence with unambiguous nouns in the word's place; each noun in
    a part of the sentences.

    A noun fits where it agrees with the article and has as many tokens as the word.
    """
    material = run.observation.material
    fitting = candidates(run.model, material, run.options.nouns)
    nouns = list(fitting.nouns)[:NOUNS]
    rows_of = {noun: set(rows_for(fitting, noun)) for noun in nouns}
    texts: dict[int, list[str]] = {}
    for number, row in enumerate(rows):
        sentence = material.sentences[row]
        # Another noun comes first in each sentence.
        shift = number * NOUNS_PER_SENTENCE % max(len(nouns), 1)
        in_turn = [noun for noun in [*nouns[shift:], *nouns[:shift]] if row in rows_of[noun]]
        before, after = sentence.text[: sentence.start], sentence.text[sentence.end :]
        with_nouns = [before + noun + after for noun in in_turn[:NOUNS_PER_SENTENCE]]
        texts[row] = [sentence.text, *with_nouns]
    return texts


class HeadInSentence(NamedTuple):
    """The attribution of one head in one sentence.

    cue: the cue word
    frame: the frame
    cue_first: whether no other token has a larger score than the cue
    pairs: the labels of the pairs of parts
    scores: the contrast by pairs of parts. `pair`
    noun_scores: the same with nouns in the word's place, mean over the nouns; NaN if none fits.
        `pair`
    replaced: the losses by side; without BY_NOUNS if no noun fits
    written: the write from the cue toward the sentence's sense, by parts, in a single row
    """

    cue: str
    frame: str | None
    cue_first: bool
    pairs: list[tuple[str, ...]]
    scores: Array
    noun_scores: Array
    replaced: dict[str, Replaced]
    written: qk.Terms


def _of_head(
    run: WordRun,
    prepared: Prepared,
    pairs: Pairs,
    head: HeadIndex,
    traced: Mapping[int, Sequence[Trace]],
) -> "xr.Dataset | None":
    """The attribution of one head in the sentences of some pairs; None if the head can read fewer
    than two different cues.

    traced: each sentence, and the same with nouns in the word's place, by row
    """
    in_sentences = [
        _in_sentence(run, prepared, head, row, whole, of_nouns)
        for row, (whole, *of_nouns) in traced.items()
    ]
    sentences = [sentence for sentence in in_sentences if sentence is not None]
    cues = [sentence.cue for sentence in sentences]
    if len(set(cues)) < 2:
        return None
    labels = sentences[0].pairs
    scores = np.stack([sentence.scores for sentence in sentences])
    noun_scores = np.stack([sentence.noun_scores for sentence in sentences])
    # The largest of many pairs is too large in the sentences in which it was chosen. It is one of
    # single parts; only the tables join the heads of a layer.
    chosen, reported = resampling.folds(cues, 2, seed=pairs.seed)[0]
    largest = int(scores[chosen].mean(0).argmax())
    query_parts, key_parts, by_layer = summed_by_layer(labels, scores.mean(0))
    # A write has a single part: an empty second one makes it a table with one column.
    written_parts, _, write = summed_by_layer(
        [(*label, "") for label in sentences[0].written.labels],
        torch.cat([sentence.written.values for sentence in sentences]).numpy().mean(0),
    )
    sides: dict[str, tuple[str, ...]] = {
        side: next((each.replaced[side].labels for each in sentences if side in each.replaced), ())
        for side in (*SIDES, BY_NOUNS)
    }
    return dataset(
        TABLES,
        {
            "contrast": ("sentence", scores.sum(1)),
            "cue_first": ("sentence", [sentence.cue_first for sentence in sentences]),
            "reported": ("sentence", np.isin(range(len(sentences)), reported)),
            "largest": ("sentence", scores[:, largest]),
            "noun_contrast": ("sentence", noun_scores.sum(1)),
            "noun_largest": ("sentence", noun_scores[:, largest]),
            "score": ("part_query part_key", by_layer),
            "write": ("written_part", write[:, 0]),
            **{
                name: ("sentence replacement", [_losses(each, sides, column) for each in sentences])
                for name, column in LOSSES.items()
            },
            "largest_query": ("", labels[largest][0]),
            "largest_key": ("", labels[largest][1]),
            "pairs": ("", len(pairs)),
            "seed": ("", pairs.seed),
        },
        coordinates={
            "sense_a": ("", prepared.sense.senses[0]),
            "sense_b": ("", prepared.sense.senses[1]),
            "layer": ("", head[0]),
            "head": ("", head[1]),
            "cue": ("sentence", cues),
            "frame": ("sentence", [sentence.frame or "" for sentence in sentences]),
            "part_query": ("part_query", query_parts),
            "part_key": ("part_key", key_parts),
            "written_part": ("written_part", written_parts),
            "side": ("replacement", [side for side, parts in sides.items() for _ in parts]),
            "part": ("replacement", [part for parts in sides.values() for part in parts]),
        },
        more=MORE,
    )


def _losses(sentence: HeadInSentence, sides: Mapping[str, Sequence[str]], column: str) -> Array:
    """A column of the losses of all sides in a sentence; NaN of a side that it lacks.
    `replacement`

    sides: the parts of each side
    """
    return np.concatenate(
        [
            getattr(sentence.replaced[side], column).numpy()
            if side in sentence.replaced
            else np.full(len(parts), np.nan)
            for side, parts in sides.items()
        ]
    )


def _in_sentence(
    run: WordRun,
    prepared: Prepared,
    head: HeadIndex,
    row: int,
    traced: Trace,
    noun_traces: Sequence[Trace],
) -> HeadInSentence | None:
    """The attribution of one head at the word of one sentence; None if the head cannot read the
    cue, or can read no other token.
    """
    layer, number = head
    material = run.observation.material
    cue = material.cues[row]
    assert cue is not None
    # A cue of several tokens is read at its last.
    view = qk.View(traced, layer, number, material.targets[row], [cue[-1]])
    other_tokens = qk.other_tokens(view)
    if cue[-1] not in qk.readable(traced, layer, view.at) or not other_tokens:
        return None
    # contrast = score[cue] - mean score[others], as a weighted sum over tokens
    weights = {cue[-1]: 1.0} | dict.fromkeys(other_tokens, -1 / len(other_tokens))

    # The streams of each text at the word, at its cue, and at the other tokens.
    entering, *of_nouns = (
        qk.stream_parts(of_text, layer, [view.at, *weights], "part")
        for of_text in (traced, *noun_traces)
    )
    at_word, at_cue = entering.at([0]), entering.at([1])
    at_others = entering.at(range(2, 1 + len(weights)))

    def contrast(of_text: Trace, parts: qk.Parts) -> qk.Terms:
        """The scores in a text by pairs of parts, the cue first, and their weighted sum last."""
        of_sources = view._replace(trace=of_text, sources=[*weights])
        labels, scores = qk.score_terms(of_sources, entering=parts)
        weighted = torch.tensor([*weights.values()], dtype=torch.float64) @ scores
        return qk.Terms(labels, torch.cat([scores, weighted[None]]))

    replace = partial(replace_parts, traced, layer, number, at=view.at, weights=weights)
    terms = contrast(traced, entering)
    by_token = terms.values[:-1].sum(1)
    replaced: dict[str, Replaced] = {
        "query": replace(at_word, at_others, side="query"),
        "key": replace(at_cue, at_others, side="key"),
    }
    noun_scores = np.full(terms.values.shape[1], np.nan)
    if noun_traces:
        of_each = [contrast(*each).values[-1] for each in zip(noun_traces, of_nouns, strict=True)]
        noun_scores = torch.stack(of_each).mean(0).numpy()
        losses = [replace(at_word, each.at([0]), side="query") for each in of_nouns]
        means = [
            torch.stack([getattr(loss, name) for loss in losses]).mean(0)
            for name in LOSSES.values()
        ]
        replaced[BY_NOUNS] = Replaced(losses[0].labels, *means)
    # Toward the sentence's sense: the axis points to sense A, and is reversed for sense B.
    axis = prepared.sense.axes.at(row, prepared.readout.direct[layer])
    along = axis.u / axis.gap if material.labels[row] == axis.sense_a else -axis.u / axis.gap
    # The axis belongs to a later stream, so it is followed back through the norms in between.
    direction = qk.before_norms(traced, layer, view.at, along, axis.depth)
    return HeadInSentence(
        cue=str(material.sentences[row].cue_word),
        frame=material.sentences[row].frame,
        cue_first=bool(by_token[0] >= by_token.max()),
        pairs=terms.labels,
        scores=terms.values[-1].numpy(),
        noun_scores=noun_scores,
        replaced=replaced,
        written=qk.write_terms(view, direction),
    )


def summed_by_layer(
    labels: Sequence[tuple[str, ...]], values: Array
) -> tuple[tuple[str, ...], tuple[str, ...], Array]:
    """Sums over pairs of parts, with all heads of a layer as one part.

    `-> labels of the first parts, labels of the second parts, first_part second_part`
    """
    pairs = [tuple(map(_of_layer, label)) for label in labels]
    first, second = (tuple(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    summed = np.zeros((len(first), len(second)))
    for (part_a, part_b), value in zip(pairs, values, strict=True):
        summed[first.index(part_a), second.index(part_b)] += value
    return first, second, summed


def _of_layer(part: str) -> str:
    """The label of a part; of a head or the bias of heads, the label of all heads of its layer."""
    matched = ATTENTION.fullmatch(part)
    return part if matched is None else f"heads {matched[1] or matched[2]}"
