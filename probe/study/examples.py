"""Example sentences: what the leading heads read and write on them, and the word's vector on them as a sum.

`readings`: attention of the word over real report sentences, and ΔE by source token on the sense axis, of the leading
heads of each word. `ledgers`: on the same sentences, every term of the vector at the word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np
import pandas as pd
from torch import Tensor

from probe.model import ledger
from probe.model.model import Model
from probe.model.records import Trace
from probe.model.trace import trace
from probe.model.weights import read_weights
from probe.study.columns import rounded, stacked, with_key
from probe.study.controls import clearest
from probe.study.material import Material
from probe.study.suppliers import SENTENCE
from probe.study.word import PairResult, WordResult

LEADERS = 3
PER_SENSE = 2


def readings(model: Model, results: Sequence[WordResult], word_heads: pd.DataFrame, *, seed: int) -> pd.DataFrame:
    """Attention from the word (0 to 1) and `contribution` of every token, per word, leading head and example sentence.

    `contribution` is <ΔE[t←j], u> / gap, what came from that token along the sense axis right behind the head's layer,
    in fractions of the gap there.
    """
    parts = []
    for result in results:
        leaders = word_heads[word_heads["word"] == result.material.word].sort_values("rank").head(LEADERS)
        heads = leaders[["layer", "head"]].astype(int).to_numpy().tolist()
        for row in _example_rows(result, seed) if heads else []:
            shown = trace(model, result.material.sentences[row].text)
            parts += [_reading(result, row, shown, layer, head) for layer, head in heads]
    return rounded(stacked(parts, [*_HEAD, "pos", "piece", "label", "attention", "contribution", "role"]))


_HEAD = (*SENTENCE[:3], "text", *SENTENCE[3:], "layer", "head")


def _example_rows(result: WordResult, seed: int) -> list[int]:
    """Sentences to show: for each sense PER_SENSE of them, of different cue distances where there are any."""
    chosen = []
    for sense in dict.fromkeys(result.material.labels):
        rows = _pair_of(result, sense).rows(sense)
        rows = [rows[index] for index in np.random.default_rng(seed).permutation(len(rows))]
        distances = [result.material.distances[row] for row in rows]
        fresh = [row for place, row in enumerate(rows) if distances[place] not in distances[:place]]
        chosen += sorted((fresh + rows)[:PER_SENSE] if len(fresh) < PER_SENSE else fresh[:PER_SENSE])
    return list(dict.fromkeys(chosen))


def _reading(result: WordResult, row: int, shown: Trace, layer: int, head: int) -> pd.DataFrame:
    material, sentence = result.material, result.material.sentences[row]
    pair, target = _pair_of(result, sentence.sense), material.targets[row]
    axis = pair.axes.at(row, pair.reading.direct[layer])  # right behind the head's own layer
    key = (sentence.word, sentence.sense, row, sentence.text, axis.sense_a, axis.sense_b, layer, head)
    tokens = pd.DataFrame(
        {
            "pos": range(len(shown.tokens.pieces)),
            "piece": shown.tokens.pieces,
            "label": shown.tokens.labels,
            "attention": shown.pattern[layer, head, target].tolist(),
            "contribution": axis.effect(shown.delta_e_by_source(layer, head, target)).tolist(),
        }
    )
    tokens["role"] = [_role(material, row, pos) for pos in tokens["pos"]]
    return with_key(tokens, dict(zip(_HEAD, key, strict=True)))


def _role(material: Material, row: int, pos: int) -> str:
    return "word" if pos in material.words[row] else "cue" if pos in (material.cues[row] or ()) else "context"


def _pair_of(result: WordResult, sense: str) -> PairResult:
    """The clearest pair of senses that holds this one."""
    return clearest([pair for pair in result.pairs if sense in pair.senses])


def ledgers(model: Model, results: Sequence[WordResult], *, seed: int) -> pd.DataFrame:
    """Every term of the vector at the word, by component and, for a head, source token, on the sentences of `readings`.

    `contribution` (fraction of the gap) is counted from what the component writes halfway between the two senses of the
    row, where its axis was fitted: a sentence's rows sum to its `total`. Only senses that are apart from another; see
    `probe.model.ledger`.
    """
    parts = []
    for result in results:
        rows = [(row, _pair_of(result, result.material.labels[row])) for row in _example_rows(result, seed)]
        apart = {pair.senses: pair for _, pair in rows if pair.effects is not None}
        averages: dict[tuple[object, ...], Mapping[str, Tensor]] = {}
        for row, pair in rows:
            if pair.senses in apart:
                held_out = (*pair.senses, int(pair.axes.cell[row]))
                if held_out not in averages:
                    averages[held_out] = _average(model, result, pair, row)
                parts.append(_ledger(model, result, row, pair, averages[held_out]))
    return rounded(stacked(parts, _LEDGER)[_LEDGER].astype(dict.fromkeys(("layer", "head", "pos"), "Int64")))


_LEDGER = [*SENTENCE, "component", "layer", "head", "pos", "token", "role", "norm", "contribution", "total", "closing"]


def _average(model: Model, result: WordResult, pair: PairResult, row: int) -> Mapping[str, Tensor]:
    """What every component writes halfway between the two senses, where the axis of this row was fitted."""
    split = pair.split
    train = split.holdouts[int(pair.axes.cell[row])].train
    sides = ([split.rows[place] for place in train if split.is_a[place] == side] for side in (True, False))
    return ledger.average(read_weights(model), result.states, *sides, depth=result.depth)


def _ledger(
    model: Model, result: WordResult, row: int, pair: PairResult, average: Mapping[str, Tensor]
) -> pd.DataFrame:
    material, axis = result.material, pair.axes.at(row, result.depth)
    shown, target = trace(model, material.sentences[row].text), material.targets[row]
    entries = ledger.ledger(shown, axis.depth, at=target, axis=axis, average=average)
    rows = [
        asdict(entry) | {"role": None if entry.pos is None else _role(material, row, entry.pos)} for entry in entries
    ]
    return pd.DataFrame(rows).assign(
        word=material.word,
        sense=material.labels[row],
        sentence=row,
        sense_a=axis.sense_a,
        sense_b=axis.sense_b,
        total=axis.coordinate(shown.resid_post[axis.depth - 1, target]).item(),
        closing=ledger.close(shown, axis.depth, at=target),
    )
