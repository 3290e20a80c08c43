"""QK attribution: why a head attends to the cue, and what it writes from there.

The contrast is the head's score at the cue minus its mean score at the other tokens that it can
read from the word. It is split into pairs of parts of the two residual streams (`probe.model.qk`).
Each part of the word's and of the cue's stream is also replaced by the same part of the other
tokens, and the score is computed again (`probe.patching.score_parts`). The head's write from the
cue along the sense axis is split into parts of the cue's stream.

In tables, all heads of a layer and their bias are one part, e.g. "heads 3".
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np
import torch
from scipy.stats import spearmanr

from probe.experiments.columns import KEYS, Column, Columns, Table, as_elsewhere
from probe.experiments.design import Pairs, spread
from probe.experiments.plan import Size, Work
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord
from probe.experiments.run import Run
from probe.model import qk
from probe.model.records import Trace
from probe.model.trace import trace
from probe.patching.score_parts import Donor, Replaced, Side, replace_parts
from probe.patching.sets import HeadIndex
from probe.stats import resampling
from probe.stats.resampling import Array

MOST_PAIRS = 8  # pairs of sentences, spread over cue words
# The labels of parts that belong to the heads of a layer: a head, or the bias of all heads.
ATTENTION = re.compile(r"L(\d+)H\d+|attention bias (\d+)")
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True, eq=False)
class PartsReplaced:
    """The losses if one part of the query or of the key is replaced by that of the other tokens.

    parts: the labels of the parts
    attributed: `sentence part`, the loss of contrast that the attribution predicts
    score: `sentence part`, the loss of contrast, computed
    attention: `sentence part`, the loss of attention to the cue, computed
    """

    parts: tuple[str, ...]
    attributed: Array
    score: Array
    attention: Array


@dataclass(frozen=True, eq=False)
class CueAttribution:
    """The QK attribution of one head's attention to the cue, and of its write from there.

    layer, head: the head
    senses: the two senses of the axis of `writes`
    pairs: the number of pairs of sentences
    cues: the cue word of each sentence
    seed: of the sign flips and the bootstrap
    contrast: `sentence`, the score at the cue minus the mean score at the other tokens
    query_parts, key_parts: the labels of the parts; all heads of a layer are one part
    scores: `query_part key_part`, the contrast by pairs of parts, mean over the sentences
    largest: the labels of the largest pair of single parts
    largest_score: `sentence`, the score of this pair
    replaced: the losses by the side that is replaced, "query" or "key"
    written_parts: the labels of the parts of the write
    writes: `written_part`, the head's write from the cue toward the sentence's sense, in fractions
        of the gap, mean over the sentences
    """

    layer: int
    head: int
    senses: tuple[str, str]
    pairs: int
    cues: tuple[str, ...]
    seed: int
    contrast: Array
    query_parts: tuple[str, ...]
    key_parts: tuple[str, ...]
    scores: Array
    largest: tuple[str, str]
    largest_score: Array
    replaced: dict[str, PartsReplaced]
    written_parts: tuple[str, ...]
    writes: Array

    @property
    def contrast_p(self) -> float:
        """The one-sided p of the contrast: low if it is above 0."""
        return float(self._p(self.contrast[:, None])[0])

    @property
    def share(self) -> tuple[float, float, float]:
        """The largest pair's fraction of the contrast, with the ends of its 95 % interval over cue
        words.
        """
        weights = resampling.bootstrap_weights([self.cues], seed=self.seed)
        # share = Σ_sentence score of the pair / Σ_sentence contrast. It is undefined for a head
        # without keys, whose contrast is 0.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = float(self.largest_score.sum() / self.contrast.sum())
            draws = resampling.bootstrap_ratio(self.largest_score, self.contrast, weights)
        low, high = resampling.interval(draws, share, units=len(set(self.cues)))
        return share, float(low), float(high)

    @property
    def agreement(self) -> float:
        """The rank correlation of predicted and computed losses over the parts of both sides, mean
        over the sentences; NaN if it is defined in no sentence.
        """
        sides = self.replaced.values()
        attributed = np.concatenate([side.attributed for side in sides], axis=1)
        score = np.concatenate([side.score for side in sides], axis=1)
        # A rank correlation is undefined if one of its sides does not vary.
        ranks = [
            spearmanr(predicted, computed).statistic
            for predicted, computed in zip(attributed, score, strict=True)
            if np.ptp(predicted) > 0 and np.ptp(computed) > 0
        ]
        return float(np.mean(ranks)) if ranks else float("nan")

    @cached_property
    def p_replaced(self) -> dict[str, Array]:
        """The one-sided p of each part's loss of contrast, by side, corrected for all parts of the
        side. `part` each
        """
        return {side: self._p(replaced.score) for side, replaced in self.replaced.items()}

    def _p(self, effects: Array) -> Array:
        """One-sided p, with signs flipped by cue word and corrected for all columns.

        `sentence column -> column`
        """
        return resampling.flip_signs(effects, self.cues, seed=self.seed).p


RECORDS = (CueAttribution, PartsReplaced)
HEAD = ("word", "layer", "head")


def _attributions(record: WordRecord) -> Iterator[tuple[dict[str, object], CueAttribution]]:
    """The attribution of each head of a word, with the values of HEAD."""
    for attribution in record.measured.get("qk", ()):
        key = {"word": record.word, "layer": attribution.layer, "head": attribution.head}
        yield key, attribution


def _heads(record: WordRecord) -> Iterator[Columns]:
    for key, attribution in _attributions(record):
        share, low, high = attribution.share
        part_query, part_key = attribution.largest
        yield {
            **dict(zip(KEYS, (record.word, *attribution.senses), strict=True)),
            **key,
            "contrast": [attribution.contrast.mean()],
            "p_contrast": attribution.contrast_p,
            "part_query": part_query,
            "part_key": part_key,
            "share": share,
            "share_low": low,
            "share_high": high,
            "p_query": _p_of_part(attribution, "query", part_query),
            "p_key": _p_of_part(attribution, "key", part_key),
            "agreement": attribution.agreement,
            "sentences": len(attribution.cues),
            "pairs": attribution.pairs,
        }


def _p_of_part(attribution: CueAttribution, side: str, part: str) -> float:
    """The p of a part; NaN for a bias, which is equal at every token and is not replaced."""
    parts = attribution.replaced[side].parts
    return float(attribution.p_replaced[side][parts.index(part)]) if part in parts else float("nan")


def _scores(record: WordRecord) -> Iterator[Columns]:
    for key, attribution in _attributions(record):
        n_queries, n_keys = attribution.scores.shape
        yield key | {
            "part_query": np.repeat(attribution.query_parts, n_keys),
            "part_key": np.tile(attribution.key_parts, n_queries),
            "score": attribution.scores.ravel(),
        }


def _interventions(record: WordRecord) -> Iterator[Columns]:
    for key, attribution in _attributions(record):
        for side, replaced in attribution.replaced.items():
            yield key | {
                "side": side,
                "part": replaced.parts,
                "attributed": replaced.attributed.mean(0),
                "score": replaced.score.mean(0),
                "attention": replaced.attention.mean(0),
                "p": attribution.p_replaced[side],
            }


def _writes(record: WordRecord) -> Iterator[Columns]:
    for key, attribution in _attributions(record):
        yield key | {"part_key": attribution.written_parts, "write": attribution.writes}


TESTED = (
    "one-sided, signs flipped by cue word, corrected for all parts of that side; the tokens that "
    "replace a part were chosen after p values had been seen, so this p is descriptive, not "
    "confirmatory"
)
TABLES = {
    "why_it_attends": Table(
        "why the top heads attend to the cue: the largest pair of parts, and its tests",
        {
            **as_elsewhere(*KEYS, "layer", "head"),
            "contrast": Column("score at the cue minus the mean at the other tokens", "score"),
            "p_contrast": Column("p that the contrast is not above 0, signs flipped by cue word"),
            "part_query": Column("the part of the word's stream in the largest pair"),
            "part_key": Column("the part of the cue's stream in the largest pair"),
            "share": Column("the contribution of the largest pair", "fraction of the contrast"),
            "share_low": Column("lower end of the 95 % interval of share, over cue words"),
            "share_high": Column("upper end of the 95 % interval of share, over cue words"),
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
        _heads,
    ),
    "qk_attribution": Table(
        "the contrast by pairs of parts: a head's score at the cue minus its mean score at the "
        "other tokens; all heads of a layer are one part",
        as_elsewhere(*HEAD, "part_query", "part_key", "score"),
        _scores,
    ),
    "qk_interventions": Table(
        "losses if one part of the word's or of the cue's stream is replaced by that of the other "
        "tokens",
        {
            **as_elsewhere(*HEAD, "side", "part", "attributed", "score", "attention"),
            "p": Column(f"p of the loss of score: {TESTED}"),
        },
        _interventions,
    ),
    "ov_attribution": Table(
        "a head's write from the cue, by parts of the cue's stream",
        {
            **as_elsewhere(*HEAD),
            "part_key": Column("the part of the cue's stream that the write comes from"),
            **as_elsewhere("write"),
        },
        _writes,
    ),
}


def work(size: Size) -> Work:
    """The work of the attribution: both sentences of a few pairs of two senses."""
    return Work(forwards=2 * min(MOST_PAIRS, max(size.pairs, default=0)))


def measure(run: Run) -> tuple[CueAttribution, ...]:
    """The attributions of the word's top heads, in sentences of the two senses whose gap is
    clearest; empty if no heads were swapped or no cue is marked.
    """
    if not run.swapped_pairs:
        return ()
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
    rows = dict.fromkeys([*sampled_pairs.a, *sampled_pairs.b])
    traces = {row: trace(run.model, run.observation.material.sentences[row].text) for row in rows}
    attributions = [_of_head(run, prepared, sampled_pairs, head, traces) for head in run.top_heads]
    return tuple(each for each in attributions if each is not None)


class Sentence(NamedTuple):
    """The attribution of one head in one sentence.

    cue: the cue word
    terms: the contrast by pairs of parts, in a single row
    replaced: the losses by side
    write_terms: the write from the cue toward the sentence's sense, by parts, in a single row
    """

    cue: str
    terms: qk.Terms
    replaced: dict[Side, Replaced]
    write_terms: qk.Terms


def _of_head(
    run: Run, prepared: Prepared, pairs: Pairs, head: HeadIndex, traces: Mapping[int, Trace]
) -> CueAttribution | None:
    """The attribution of one head in the sentences of some pairs; None if the head can read fewer
    than two different cues.
    """
    in_sentences = [
        _in_sentence(run, prepared, head, row, traced) for row, traced in traces.items()
    ]
    sentences = [sentence for sentence in in_sentences if sentence is not None]
    if len({sentence.cue for sentence in sentences}) < 2:
        return None
    pair_labels = sentences[0].terms.labels
    scores = _stacked([sentence.terms for sentence in sentences])
    # The largest pair is one of single parts; only the tables join the heads of a layer.
    largest = int(scores.mean(0).argmax())
    part_query, part_key = pair_labels[largest]
    query_parts, key_parts, by_layer = _by_layer(pair_labels, scores.mean(0))
    mean_write = _stacked([sentence.write_terms for sentence in sentences]).mean(0)
    # A write has a single part: an empty second one makes it a table with one column.
    written_parts, _, writes = _by_layer(
        [(*label, "") for label in sentences[0].write_terms.labels], mean_write
    )
    return CueAttribution(
        layer=head[0],
        head=head[1],
        senses=prepared.sense.senses,
        pairs=len(pairs),
        cues=tuple(sentence.cue for sentence in sentences),
        seed=pairs.seed,
        contrast=scores.sum(1),
        query_parts=query_parts,
        key_parts=key_parts,
        scores=by_layer,
        largest=(part_query, part_key),
        largest_score=scores[:, largest],
        replaced={
            side: _replaced([sentence.replaced[side] for sentence in sentences]) for side in SIDES
        },
        written_parts=written_parts,
        writes=writes[:, 0],
    )


def _in_sentence(
    run: Run, prepared: Prepared, head: HeadIndex, row: int, traced: Trace
) -> Sentence | None:
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
    labels, values = qk.score_terms(view._replace(sources=[*weights]))
    contrast = torch.tensor([*weights.values()], dtype=torch.float64) @ values
    replaced = {
        side: replace_parts(
            traced,
            layer,
            number,
            Donor(traced, other_tokens),
            side=side,
            at=view.at,
            weights=weights,
        )
        for side in SIDES
    }
    # Toward the sentence's sense: the axis points to sense A, and is reversed for sense B.
    axis = prepared.sense.axes.at(row, prepared.reading.direct[layer])
    along = axis.u / axis.gap if material.labels[row] == axis.sense_a else -axis.u / axis.gap
    # The axis belongs to a later stream, so it is followed back through the norms in between.
    direction = qk.before_norms(traced, layer, view.at, along, axis.depth)
    return Sentence(
        cue=str(material.sentences[row].cue_word),
        terms=qk.Terms(labels, contrast[None]),
        replaced=replaced,
        write_terms=qk.write_terms(view, direction),
    )


def _stacked(terms: Sequence[qk.Terms]) -> Array:
    """The values of the same terms in several sentences. `-> sentence term`"""
    return torch.cat([each.values for each in terms]).numpy()


def _replaced(sentences: Sequence[Replaced]) -> PartsReplaced:
    """The losses of one side in several sentences."""
    columns = {
        name: torch.stack([getattr(sentence, name) for sentence in sentences]).numpy()
        for name in ("attributed", "score", "attention")
    }
    return PartsReplaced(sentences[0].labels, **columns)


def _by_layer(
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
