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
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, get_args

import numpy as np
import torch
from scipy.stats import spearmanr

from probe.experiments.candidates import candidates, rows_for
from probe.experiments.columns import KEYS, Column, Columns, Table, as_elsewhere, from_parts
from probe.experiments.design import Pairs, spread
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

ORDER = 120
NEEDS = ()
ANSWERS = False
SECONDS = 49.0
MOST_PAIRS = 8  # pairs of sentences, spread over cue words
NOUNS = 10  # unambiguous nouns that replace the word
NOUNS_PER_SENTENCE = 2  # of these; each further one is one more run
BY_NOUNS = "query, nouns"  # the side in tables if a noun's part replaces the word's
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
    frames: the frame of each sentence
    seed: of the bootstrap
    contrast: `sentence`, the score at the cue minus the mean score at the other tokens
    cue_first: `sentence`, whether no other token has a larger score than the cue
    query_parts, key_parts: the labels of the parts; all heads of a layer are one part
    scores: `query_part key_part`, the contrast by pairs of parts, mean over the sentences
    largest: the labels of the largest pair of single parts in half of the sentences
    reported: the other sentences, in which the share of this pair is reported
    largest_score: `sentence`, the score of this pair
    noun_contrast, noun_score: `sentence`, the contrast, and the score of the same pair of parts,
        with nouns in the word's place, mean over nouns; NaN without a noun that fits
    replaced: the losses by the side that is replaced, "query" or "key", or BY_NOUNS in the
        sentences with nouns
    written_parts: the labels of the parts of the write
    writes: `written_part`, the head's write from the cue toward the sentence's sense, in fractions
        of the gap, mean over the sentences
    """

    layer: int
    head: int
    senses: tuple[str, str]
    pairs: int
    cues: tuple[str, ...]
    frames: tuple[str | None, ...]
    seed: int
    contrast: Array
    cue_first: Array
    query_parts: tuple[str, ...]
    key_parts: tuple[str, ...]
    scores: Array
    largest: tuple[str, str]
    reported: tuple[int, ...]
    largest_score: Array
    noun_contrast: Array
    noun_score: Array
    replaced: dict[str, PartsReplaced]
    written_parts: tuple[str, ...]
    writes: Array

    @property
    def contrast_p(self) -> float:
        """The one-sided p of the contrast: low if it is above 0."""
        return float(self._p(self.contrast[:, None], range(len(self.cues)))[0])

    @property
    def share(self) -> tuple[float, float, float]:
        """The largest pair's fraction of the contrast in the reported sentences, with the ends of
        its 95 % interval over frames and cue words.
        """
        return self._share(self.largest_score, self.contrast)

    @property
    def noun_share(self) -> tuple[float, float, float]:
        """`share` with unambiguous nouns in the word's place; NaN if none fits."""
        return self._share(self.noun_score, self.noun_contrast)

    def _share(self, scores: Array, contrast: Array) -> tuple[float, float, float]:
        rows = [row for row in self.reported if not np.isnan(contrast[row])]
        if not rows:
            return (float("nan"),) * 3
        return resampling.ratio_interval(scores[rows], contrast[rows], self._factors(rows))

    def _factors(self, rows: Sequence[int]) -> list[list[Hashable]]:
        """What is resampled: the frames and the cue words of some sentences."""
        return resampling.crossed_factors(
            [self.frames[row] for row in rows], [self.cues[row] for row in rows]
        )

    @property
    def agreement(self) -> float:
        """The rank correlation of predicted and computed losses over the parts of both sides, mean
        over the sentences; NaN if it is defined in no sentence.
        """
        sides = [self.replaced[side] for side in SIDES]
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
        p = {}
        for side, replaced in self.replaced.items():
            rows = list(range(len(self.cues)))
            if side == BY_NOUNS:
                rows = np.flatnonzero(~np.isnan(self.noun_contrast)).tolist()
            p[side] = self._p(replaced.score, rows)
        return p

    def _p(self, effects: Array, rows: Sequence[int]) -> Array:
        """One-sided p of the effects in some sentences, corrected for all columns.

        `sentence column -> column`
        """
        return resampling.bootstrap_t(effects, self._factors(rows), seed=self.seed).p


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
        noun_share, noun_low, noun_high = attribution.noun_share
        with_nouns = ~np.isnan(attribution.noun_contrast)
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
            "cue_first": attribution.cue_first.mean(),
            "noun_contrast": _mean(attribution.noun_contrast[with_nouns]),
            "noun_share": noun_share,
            "noun_share_low": noun_low,
            "noun_share_high": noun_high,
            "p_nouns": _p_of_part(attribution, BY_NOUNS, part_query),
            "p_query": _p_of_part(attribution, "query", part_query),
            "p_key": _p_of_part(attribution, "key", part_key),
            "agreement": attribution.agreement,
            "sentences": len(attribution.cues),
            "pairs": attribution.pairs,
        }


def _mean(values: Array) -> float:
    """The mean; NaN of nothing."""
    return float(values.mean()) if values.size else float("nan")


def _p_of_part(attribution: CueAttribution, side: str, part: str) -> float:
    """The p of a part; NaN for a bias, which is equal at every token and is not replaced, and
    without nouns.
    """
    if side not in attribution.replaced:
        return float("nan")
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
        from_parts(_heads),
    ),
    "qk_attribution": Table(
        "the contrast by pairs of parts: a head's score at the cue minus its mean score at the "
        "other tokens; all heads of a layer are one part",
        as_elsewhere(*HEAD, "part_query", "part_key", "score"),
        from_parts(_scores),
    ),
    "qk_interventions": Table(
        "losses if one part of the word's or of the cue's stream is replaced by that of the other "
        f"tokens, or the word's by that of unambiguous nouns in its place ({BY_NOUNS})",
        {
            **as_elsewhere(*HEAD, "side", "part", "attributed", "score", "attention"),
            "p": Column(f"p of the loss of score: {TESTED}"),
        },
        from_parts(_interventions),
    ),
    "ov_attribution": Table(
        "a head's write from the cue, by parts of the cue's stream",
        {
            **as_elsewhere(*HEAD),
            "part_key": Column("the part of the cue's stream that the write comes from"),
            **as_elsewhere("write"),
        },
        from_parts(_writes),
    ),
}


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
    of_nouns = _noun_traces(run, [*rows])
    attributions = [
        _of_head(run, prepared, sampled_pairs, head, traces, of_nouns) for head in run.top_heads
    ]
    return tuple(each for each in attributions if each is not None)


def _noun_traces(run: Run, rows: Sequence[int]) -> dict[int, list[Trace]]:
    """The traces of sentences with unambiguous nouns in the word's place; each noun in a part of
    them.

    A noun fits where it agrees with the article and has as many tokens as the word.
    """
    material = run.observation.material
    fitting = candidates(run.model, material, run.options.nouns)
    nouns = list(fitting.nouns)[:NOUNS]
    rows_of = {noun: set(rows_for(fitting, noun)) for noun in nouns}
    traces: dict[int, list[Trace]] = {}
    for number, row in enumerate(rows):
        sentence = material.sentences[row]
        # Another noun comes first in each sentence.
        shift = number * NOUNS_PER_SENTENCE % max(len(nouns), 1)
        in_turn = [noun for noun in [*nouns[shift:], *nouns[:shift]] if row in rows_of[noun]]
        traces[row] = [
            trace(run.model, sentence.text[: sentence.start] + noun + sentence.text[sentence.end :])
            for noun in in_turn[:NOUNS_PER_SENTENCE]
        ]
    return traces


class OfNouns(NamedTuple):
    """One head in one sentence with nouns in the word's place, mean over the nouns.

    terms: the contrast by pairs of parts, in a single row
    replaced: the losses if the word's part is replaced by that of a noun
    """

    terms: qk.Terms
    replaced: Replaced


class Sentence(NamedTuple):
    """The attribution of one head in one sentence.

    cue: the cue word
    frame: the frame
    cue_first: whether no other token has a larger score than the cue
    terms: the contrast by pairs of parts, in a single row
    nouns: with nouns in the word's place; None if none fits
    replaced: the losses by side
    write_terms: the write from the cue toward the sentence's sense, by parts, in a single row
    """

    cue: str
    frame: str | None
    cue_first: bool
    terms: qk.Terms
    nouns: OfNouns | None
    replaced: dict[Side, Replaced]
    write_terms: qk.Terms


def _of_head(
    run: Run,
    prepared: Prepared,
    pairs: Pairs,
    head: HeadIndex,
    traces: Mapping[int, Trace],
    of_nouns: Mapping[int, Sequence[Trace]],
) -> CueAttribution | None:
    """The attribution of one head in the sentences of some pairs; None if the head can read fewer
    than two different cues.
    """
    in_sentences = [
        _in_sentence(run, prepared, head, row, traced, of_nouns[row])
        for row, traced in traces.items()
    ]
    sentences = [sentence for sentence in in_sentences if sentence is not None]
    if len({sentence.cue for sentence in sentences}) < 2:
        return None
    pair_labels = sentences[0].terms.labels
    scores = _stacked([sentence.terms for sentence in sentences])
    # The largest of many pairs is too large in the sentences in which it was chosen. It is one of
    # single parts; only the tables join the heads of a layer.
    cues = tuple(sentence.cue for sentence in sentences)
    chosen, reported = resampling.folds(cues, 2, seed=pairs.seed)[0]
    largest = int(scores[chosen].mean(0).argmax())
    part_query, part_key = pair_labels[largest]
    query_parts, key_parts, by_layer = _by_layer(pair_labels, scores.mean(0))
    mean_write = _stacked([sentence.write_terms for sentence in sentences]).mean(0)
    # A write has a single part: an empty second one makes it a table with one column.
    written_parts, _, writes = _by_layer(
        [(*label, "") for label in sentences[0].write_terms.labels], mean_write
    )
    replaced: dict[str, PartsReplaced] = {
        side: _replaced([sentence.replaced[side] for sentence in sentences]) for side in SIDES
    }
    nouns = [sentence.nouns for sentence in sentences]
    with_nouns = [each for each in nouns if each is not None]
    noun_scores = np.full_like(scores, np.nan)
    if with_nouns:
        fitting = [number for number, each in enumerate(nouns) if each is not None]
        noun_scores[fitting] = _stacked([each.terms for each in with_nouns])
        replaced[BY_NOUNS] = _replaced([each.replaced for each in with_nouns])
    return CueAttribution(
        layer=head[0],
        head=head[1],
        senses=prepared.sense.senses,
        pairs=len(pairs),
        cues=cues,
        frames=tuple(sentence.frame for sentence in sentences),
        seed=pairs.seed,
        contrast=scores.sum(1),
        cue_first=np.array([float(sentence.cue_first) for sentence in sentences]),
        query_parts=query_parts,
        key_parts=key_parts,
        scores=by_layer,
        largest=(part_query, part_key),
        reported=tuple(reported),
        largest_score=scores[:, largest],
        noun_contrast=noun_scores.sum(1),
        noun_score=noun_scores[:, largest],
        replaced=replaced,
        written_parts=written_parts,
        writes=writes[:, 0],
    )


def _in_sentence(
    run: Run,
    prepared: Prepared,
    head: HeadIndex,
    row: int,
    traced: Trace,
    noun_traces: Sequence[Trace],
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
    scores = qk.score_terms(view._replace(sources=[*weights]))
    by_token = scores.values.sum(1)
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
        frame=material.sentences[row].frame,
        cue_first=bool(by_token[0] >= by_token.max()),
        terms=_contrast(scores, weights),
        nouns=_of_nouns(view, weights, noun_traces),
        replaced=replaced,
        write_terms=qk.write_terms(view, direction),
    )


def _contrast(scores: qk.Terms, weights: Mapping[int, float]) -> qk.Terms:
    """A weighted sum of scores, by pairs of parts, in a single row."""
    weighted = torch.tensor([*weights.values()], dtype=torch.float64) @ scores.values
    return qk.Terms(scores.labels, weighted[None])


def _of_nouns(
    view: qk.View, weights: Mapping[int, float], noun_traces: Sequence[Trace]
) -> OfNouns | None:
    """A head in one sentence with nouns in the word's place; None without a noun.

    weights: of the scores in the contrast, by token
    """
    assert isinstance(view.trace, Trace)
    terms, losses = [], []
    for noun_trace in noun_traces:
        of_noun = view._replace(trace=noun_trace, sources=[*weights])
        terms.append(_contrast(qk.score_terms(of_noun), weights))
        donor = Donor(noun_trace, [view.at])
        losses.append(
            replace_parts(
                view.trace, view.layer, view.head, donor, side="query", at=view.at, weights=weights
            )
        )
    if not terms:
        return None
    mean_terms = torch.stack([each.values for each in terms]).mean(0)
    columns = [
        torch.stack([getattr(loss, name) for loss in losses]).mean(0)
        for name in ("attributed", "score", "attention")
    ]
    return OfNouns(qk.Terms(terms[0].labels, mean_terms), Replaced(losses[0].labels, *columns))


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
