"""Why does a head attend to the cue, and what does it take from there?

The score at the cue, minus the mean over the other tokens that the head can read from the word, is
split into pairs of parts of the two residual streams (`probe.model.qk`). Each part is also replaced
by that of the other tokens, at the word and at the cue, and the score is computed again
(`probe.patching.score_parts`). What the head writes from the cue along the sense axis is split by
parts of the cue.

In tables, all heads of a layer are one part, with their bias: "heads 3".
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

MOST_PAIRS = 8  # of sentences, spread over cue words
ATTENTION = re.compile(r"L(\d+)H\d+|attention bias (\d+)")
SIDES: tuple[Side, ...] = get_args(Side)


@dataclass(frozen=True, eq=False)
class PartsReplaced:
    """What is lost when one part of the query or of the key is that of the other tokens, over
    sentences. `sentence part` each

    attributed: of the contrast, as the attribution predicts it
    score, attention: of the contrast and of the attention to the cue, as computed
    """

    parts: tuple[str, ...]
    attributed: Array
    score: Array
    attention: Array


@dataclass(frozen=True, eq=False)
class CueAttribution:
    """What makes one head attend to the cue, and what it takes from there.

    senses: between which the axis of `writes` runs. pairs: of sentences.
    cues: the cue word of each sentence. seed: of the signs that are flipped.
    contrast: the score at the cue minus the mean at the other tokens. `sentence`
    query_parts, key_parts, scores: the contrast by pairs of parts, mean over the sentences, all
        heads of a layer as one part. `query_part key_part`
    largest, largest_score: the largest pair of single parts, and its score. `sentence`
    replaced: by the side that is replaced, query or key.
    written_parts, writes: what the head writes from the cue toward the sense that is meant, in
        fractions of the gap, mean over the sentences. `written_part`
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
        """p that the contrast is not above 0."""
        return float(self._p(self.contrast[:, None])[0])

    @property
    def share(self) -> tuple[float, float, float]:
        """The part of the contrast that the largest pair makes, with its 95 % interval over cue
        words."""
        weights = resampling.bootstrap_weights([self.cues], seed=self.seed)
        # A head without keys has no contrast to share out.
        with np.errstate(divide="ignore", invalid="ignore"):
            share = float(self.largest_score.sum() / self.contrast.sum())
            draws = resampling.bootstrap_ratio(self.largest_score, self.contrast, weights)
        low, high = resampling.interval(draws, share, units=len(set(self.cues)))
        return share, float(low), float(high)

    @property
    def agreement(self) -> float:
        """The rank correlation of predicted and computed losses over the parts of both sides, mean
        over the sentences."""
        sides = self.replaced.values()
        attributed = np.concatenate([side.attributed for side in sides], axis=1)
        score = np.concatenate([side.score for side in sides], axis=1)
        ranks = [
            spearmanr(predicted, computed).statistic
            for predicted, computed in zip(attributed, score, strict=True)
            if np.ptp(predicted) > 0 and np.ptp(computed) > 0
        ]
        return float(np.mean(ranks)) if ranks else float("nan")

    @cached_property
    def p_replaced(self) -> dict[str, Array]:
        """By side, p that replacing a part does not lower the contrast, corrected for all parts of
        that side. `part`"""
        return {side: self._p(replaced.score) for side, replaced in self.replaced.items()}

    def _p(self, effects: Array) -> Array:
        return resampling.flip_signs(effects, self.cues, seed=self.seed).p


RECORDS = (CueAttribution, PartsReplaced)
HEAD = ("word", "layer", "head")


def _found(record: WordRecord) -> Iterator[tuple[dict[str, object], CueAttribution]]:
    """The heads of a word with the values of HEAD."""
    for found in record.measured.get("qk", ()):
        yield {"word": record.word, "layer": found.layer, "head": found.head}, found


def _heads(record: WordRecord) -> Iterator[Columns]:
    for key, found in _found(record):
        share, low, high = found.share
        part_query, part_key = found.largest
        yield {
            **dict(zip(KEYS, (record.word, *found.senses), strict=True)),
            **key,
            "contrast": [found.contrast.mean()],
            "p_contrast": found.contrast_p,
            "part_query": part_query,
            "part_key": part_key,
            "share": share,
            "share_low": low,
            "share_high": high,
            "p_query": _p_of_part(found, "query", part_query),
            "p_key": _p_of_part(found, "key", part_key),
            "agreement": found.agreement,
            "sentences": len(found.cues),
            "pairs": found.pairs,
        }


def _p_of_part(found: CueAttribution, side: str, part: str) -> float:
    """p of a part; NaN for a bias, which is the same at every token and is not replaced."""
    parts = found.replaced[side].parts
    return float(found.p_replaced[side][parts.index(part)]) if part in parts else float("nan")


def _scores(record: WordRecord) -> Iterator[Columns]:
    for key, found in _found(record):
        n_queries, n_keys = found.scores.shape
        yield key | {
            "part_query": np.repeat(found.query_parts, n_keys),
            "part_key": np.tile(found.key_parts, n_queries),
            "score": found.scores.ravel(),
        }


def _interventions(record: WordRecord) -> Iterator[Columns]:
    for key, found in _found(record):
        for side, replaced in found.replaced.items():
            yield key | {
                "side": side,
                "part": replaced.parts,
                "attributed": replaced.attributed.mean(0),
                "score": replaced.score.mean(0),
                "attention": replaced.attention.mean(0),
                "p": found.p_replaced[side],
            }


def _writes(record: WordRecord) -> Iterator[Columns]:
    for key, found in _found(record):
        yield key | {"part_key": found.written_parts, "write": found.writes}


TESTED = (
    "one-sided, signs flipped by cue word, corrected for all parts of that side; the tokens that "
    "replace a part were chosen after p values had been seen, so p describes and confirms nothing"
)
TABLES = {
    "why_it_attends": Table(
        "why the leading heads attend to the cue: the largest pair of parts, and its tests",
        {
            **as_elsewhere(*KEYS, "layer", "head"),
            "contrast": Column("score at the cue minus the mean at the other tokens", "score"),
            "p_contrast": Column("p that the contrast is not above 0, signs flipped by cue word"),
            "part_query": Column("part at the word of the largest pair"),
            "part_key": Column("part at the cue of the largest pair"),
            "share": Column("what the pair adds to the contrast", "fraction of the contrast"),
            "share_low": Column("lower end of the 95 % interval of share, over cue words"),
            "share_high": Column("upper end of the 95 % interval of share, over cue words"),
            "p_query": Column(f"p of replacing the part at the word: {TESTED}"),
            "p_key": Column(f"p of replacing the part at the cue: {TESTED}"),
            "agreement": Column(
                "rank correlation of predicted and computed losses over all parts, mean over "
                "sentences",
                "-1 to 1",
            ),
            "sentences": Column("sentences in which the head is taken apart"),
            "pairs": Column("pairs that these sentences form"),
        },
        _heads,
    ),
    "qk_attribution": Table(
        "the same for all pairs of parts: a head's score at the cue, minus the mean at the other "
        "tokens; all heads of a layer are one part",
        as_elsewhere(*HEAD, "part_query", "part_key", "score"),
        _scores,
    ),
    "qk_interventions": Table(
        "what is lost when one part of the word or of the cue is that of the other tokens",
        {
            **as_elsewhere(*HEAD, "side", "part", "attributed", "score", "attention"),
            "p": Column(f"p that no score is lost: {TESTED}"),
        },
        _interventions,
    ),
    "ov_attribution": Table(
        "what a head takes from the cue, part by part",
        {
            **as_elsewhere(*HEAD),
            "part_key": Column("part of the cue whose value the head takes"),
            **as_elsewhere("write"),
        },
        _writes,
    ),
}


def work(size: Size) -> Work:
    """Both sentences of a few pairs of two senses."""
    return Work(forwards=2 * min(MOST_PAIRS, max(size.pairs, default=0)))


def measure(run: Run) -> tuple[CueAttribution, ...]:
    """The first heads of the word, in sentences of the two senses whose gap is surest; nothing
    where no head was swapped or no cue is marked."""
    if not run.swapped:
        return ()
    prepared = run.prepared[run.clearest]
    cues = run.seen.material.cues
    pairs = prepared.pairs
    marked = [
        number
        for number, rows in enumerate(zip(pairs.a, pairs.b, strict=True))
        if all(cues[row] for row in rows)
    ]
    units = [pairs.units[number] for number in marked]
    drawn = spread(units, MOST_PAIRS, np.random.default_rng(pairs.seed))
    chosen = pairs.take(sorted(marked[index] for index in drawn))
    rows = dict.fromkeys([*chosen.a, *chosen.b])
    traces = {row: trace(run.model, run.seen.material.sentences[row].text) for row in rows}
    found = [_of_head(run, prepared, chosen, head, traces) for head in run.leaders]
    return tuple(each for each in found if each is not None)


class Sentence(NamedTuple):
    """One head in one sentence.

    terms: the contrast by pairs of parts; one row. written: the same of what the head writes from
        the cue toward the sense that is meant.
    """

    cue: str
    terms: qk.Terms
    replaced: dict[Side, Replaced]
    written: qk.Terms


def _of_head(
    run: Run, prepared: Prepared, pairs: Pairs, head: HeadIndex, traces: Mapping[int, Trace]
) -> CueAttribution | None:
    """One head in the sentences of some pairs; None where it can read fewer than two cues."""
    found = [_in_sentence(run, prepared, head, row, traced) for row, traced in traces.items()]
    sentences = [sentence for sentence in found if sentence is not None]
    if len({sentence.cue for sentence in sentences}) < 2:
        return None
    pair_labels = sentences[0].terms.labels
    scores = _stacked([sentence.terms for sentence in sentences])
    largest = int(scores.mean(0).argmax())
    part_query, part_key = pair_labels[largest]
    query_parts, key_parts, by_layer = _by_layer(pair_labels, scores.mean(0))
    written = _stacked([sentence.written for sentence in sentences]).mean(0)
    written_parts, _, writes = _by_layer(
        [(*label, "") for label in sentences[0].written.labels], written
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
        replaced={side: _replaced([one.replaced[side] for one in sentences]) for side in SIDES},
        written_parts=written_parts,
        writes=writes[:, 0],
    )


def _in_sentence(
    run: Run, prepared: Prepared, head: HeadIndex, row: int, traced: Trace
) -> Sentence | None:
    """One head at the word of one sentence; None where it cannot read the cue or no other token."""
    layer, number = head
    material = run.seen.material
    cue = material.cues[row]
    assert cue is not None
    view = qk.View(traced, layer, number, material.targets[row], [cue[-1]])
    others = qk.other_tokens(view)
    if cue[-1] not in qk.readable(traced, layer, view.at) or not others:
        return None
    weights = {cue[-1]: 1.0} | dict.fromkeys(others, -1 / len(others))
    labels, values = qk.score_terms(view._replace(sources=[*weights]))
    contrast = torch.tensor([*weights.values()], dtype=torch.float64) @ values
    replaced = {
        side: replace_parts(
            traced, layer, number, Donor(traced, others), side=side, at=view.at, weights=weights
        )
        for side in SIDES
    }
    axis = prepared.sense.axes.at(row, prepared.reading.direct[layer])
    along = axis.u / axis.gap if material.labels[row] == axis.sense_a else -axis.u / axis.gap
    direction = qk.before_norms(traced, layer, view.at, along, axis.depth)
    return Sentence(
        cue=str(material.sentences[row].cue_word),
        terms=qk.Terms(labels, contrast[None]),
        replaced=replaced,
        written=qk.write_terms(view, direction),
    )


def _stacked(terms: Sequence[qk.Terms]) -> Array:
    """The same terms of several sentences. `-> sentence term`"""
    return torch.cat([each.values for each in terms]).numpy()


def _replaced(sentences: Sequence[Replaced]) -> PartsReplaced:
    """One side of several sentences."""
    columns = {
        name: torch.stack([getattr(sentence, name) for sentence in sentences]).numpy()
        for name in ("attributed", "score", "attention")
    }
    return PartsReplaced(sentences[0].labels, **columns)


def _by_layer(
    labels: Sequence[tuple[str, ...]], values: Array
) -> tuple[tuple[str, ...], tuple[str, ...], Array]:
    """Values of pairs of parts, all heads of a layer as one part: both sides' parts, and `part
    part`."""
    pairs = [tuple(map(_of_layer, label)) for label in labels]
    first, second = (tuple(dict.fromkeys(side)) for side in zip(*pairs, strict=True))
    summed = np.zeros((len(first), len(second)))
    for (one, other), value in zip(pairs, values, strict=True):
        summed[first.index(one), second.index(other)] += value
    return first, second, summed


def _of_layer(part: str) -> str:
    """A part, or all heads of its layer where it is a head or their bias."""
    matched = ATTENTION.fullmatch(part)
    return part if matched is None else f"heads {matched[1] or matched[2]}"
