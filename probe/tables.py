"""The border between tensors and tables: results in, tidy pandas frames out. To its right there is no torch.

One frame per question, one row per observation, column names with their meaning and unit in `probe.columns`. Numbers that were not
measured are missing (NaN), never zero. Numbers are rounded to DIGITS significant digits, far below their uncertainty, so
that the same command writes the same bytes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from html import escape

import numpy as np
import pandas as pd

from probe import effects, ledger, senses, statistics
from probe.check import Certificate
from probe.columns import CAUSAL, KEYS, RANKS
from probe.experiment import PairResult, WordResult
from probe.lexicon import LeftOut
from probe.models import Model
from probe.replay import read_weights
from probe.statistics import Array

DIGITS = 6


def frames(
    model: Model, results: Sequence[WordResult], certificate: Certificate, unread: Sequence[LeftOut] = ()
) -> dict[str, pd.DataFrame]:
    """Every frame that is made from the measurements alone, rounded."""
    made = {
        "words": words(results),
        "heads": heads(results),
        "word_heads": word_heads(results),
        "depth": depth_profile(results),
        "shares": shares(model, results),
        "sentences": sentences(results),
        "left_out": left_out(results, unread),
        "certificate": certificate_rows(certificate),
    }
    return {name: rounded(frame) for name, frame in made.items()}


def rounded(frame: pd.DataFrame) -> pd.DataFrame:
    """The frame with floats at DIGITS significant digits."""
    return frame.apply(lambda column: _significant(column) if column.dtype.kind == "f" else column)


def _significant(column: pd.Series) -> pd.Series:
    values = column.to_numpy(dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        magnitude = np.where(values == 0, 0, np.floor(np.log10(np.abs(values))))
        scale = 10.0 ** (DIGITS - 1 - np.nan_to_num(magnitude, posinf=0, neginf=0))
    return pd.Series(np.round(values * scale) / scale, index=column.index)


def words(results: Sequence[WordResult]) -> pd.DataFrame:
    """One row per word and pair of senses: how much material, where it was read, whether the gap is there."""
    rows = []
    for result, pair in _pairs(results):
        low, high = _interval_of_mean(pair)
        a, b = (result.part("report", sense) for sense in _senses(pair))
        resid = result.states.resid[:, result.depth]
        auroc = statistics.auroc(*(pair.axis.coordinate(resid[part]).numpy() for part in (a, b)))
        rows.append(
            _key(result, pair)
            | {
                "sentences_fit": sum(len(result.part("fit", sense)) for sense in _senses(pair)),
                "sentences_report": len(a) + len(b),
                "pairs": len(pair.pairs),
                "pair_design": pair.pairs.design,
                "split_design": result.split.design,
                "tokens_of_word": max(len(result.material.words[row]) for row in result.rows),
                "depth": result.depth,
                "auroc": float(auroc),
                "gap": float(pair.gap.mean()),
                "gap_low": low,
                "gap_high": high,
                "gap_p": pair.gate_p,
                "negative_gaps": int((pair.gap <= 0).sum()),
                "ranked": pair.effects is not None,
            }
        )
    return pd.DataFrame(rows)


def _interval_of_mean(pair: PairResult) -> tuple[float, float]:
    weights = pair.pairs.bootstrap()
    low, high = statistics.interval(weights @ pair.gap / weights.sum(1))
    return float(low), float(high)


def heads(results: Sequence[WordResult]) -> pd.DataFrame:
    """The heads table: one row per word, pair of senses, layer and head."""
    return pd.concat([_heads_of_pair(result, pair) for result, pair in _pairs(results)], ignore_index=True)


def _heads_of_pair(result: WordResult, pair: PairResult) -> pd.DataFrame:
    cue, previous = _attention(result, pair)
    arrays = {"auroc": pair.auroc, "hedges_g": pair.hedges_g} | _causal([pair])
    arrays |= {"attention_cue": cue, "attention_previous": previous}
    frame = _by_head(arrays).drop(columns=["net", "net_low", "net_high"]).astype(RANKS)
    return _with_key(frame, _key(result, pair))


def _causal(pairs: Sequence[PairResult]) -> dict[str, Array]:
    """The causal columns, mean over these pairs of senses with intervals of that mean; all missing where there is no gap."""
    measured = [(pair.effects, pair.pairs.bootstrap()) for pair in pairs if pair.effects is not None]
    if not measured:
        return dict.fromkeys(CAUSAL, np.full(pairs[0].auroc.shape, np.nan))

    def mean(values: Iterable[Array]) -> Array:
        return np.asarray(np.mean(list(values), axis=0))

    found = {
        name: mean(effect.ratio(name) for effect, _ in measured)
        for name in ("direct", "denoise", "noise", "same_sense")
    }
    swap_draws, net_draws = (
        mean(draws) for draws in zip(*(effect.draws(weights) for effect, weights in measured), strict=True)
    )
    found["swap"] = (found["denoise"] + found["noise"]) / 2
    found["swap_low"], found["swap_high"] = statistics.interval(swap_draws)
    found["self_repair"] = found["swap"] - found["direct"]
    found["net"] = found["swap"] - found["same_sense"]
    found["net_low"], found["net_high"] = statistics.interval(net_draws)
    found["rank"] = _ranks(found["net"])
    found["rank_low"], found["rank_high"] = effects.rank_intervals(net_draws)
    return {name: found[name] for name in CAUSAL}


def word_heads(results: Sequence[WordResult]) -> pd.DataFrame:
    """One row per word, layer and head: the mean over the word's pairs of senses whose gap is there."""
    parts = []
    for result in results:
        passed = [pair for pair in result.pairs if pair.effects is not None]
        if passed:
            cue, previous = (
                np.mean(kind, axis=0) for kind in zip(*(_attention(result, pair) for pair in passed), strict=True)
            )
            arrays = {"auroc": np.mean([pair.auroc for pair in passed], axis=0)} | _causal(passed)
            frame = _by_head(arrays | {"attention_cue": cue, "attention_previous": previous})
            parts.append(_with_key(frame.astype(RANKS), {"word": result.material.word}))
    columns = ["word", "layer", "head", "auroc", *CAUSAL, "attention_cue", "attention_previous"]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns).astype(RANKS)


def _ranks(net: Array) -> Array:
    order = (-net.ravel()).argsort(kind="stable")
    return np.asarray(order.argsort().reshape(net.shape) + 1)


def _attention(result: WordResult, pair: PairResult) -> tuple[Array, Array]:
    """Mean attention from the word to its cue (NaN without cue spans) and to the token before it, over the pairs' sentences."""
    to_cue, to_previous = [], []
    for index in sorted({*pair.pairs.a, *pair.pairs.b}):
        row, target = result.states.pattern[index].numpy(), int(result.states.target[index])
        cue = result.material.cues[result.rows[index]]
        to_cue += [] if cue is None else [row[..., cue.start : cue.stop].sum(-1)]
        to_previous += [row[..., target - 1]] if target else []
    shape = result.states.pattern.shape[1:3]
    return tuple(np.mean(rows, axis=0) if rows else np.full(shape, np.nan) for rows in (to_cue, to_previous))  # type: ignore[return-value]


def depth_profile(results: Sequence[WordResult]) -> pd.DataFrame:
    """How far apart the senses are at every depth, on the report part; see `probe.senses.profile`."""
    rows = []
    for result, pair in _pairs(results):
        stages = [result.states.token_embedding, *result.states.resid.unbind(1)]
        parts = [[result.part(part, sense) for sense in _senses(pair)] for part in statistics.PARTS]
        for place in senses.profile(stages, pair.axis, *parts):
            rows.append(_key(result, pair) | {"label": depth_label(place.depth)} | asdict(place))
    return pd.DataFrame(rows)


def depth_label(depth: int) -> str:
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def shares(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """S of every component: its part of the difference of the sense means at the read-out; each pair's shares sum to 1."""
    rows = []
    for result, pair in _pairs(results):
        a, b = (result.part("report", sense) for sense in _senses(pair))
        found = ledger.shares(read_weights(model), result.states, pair.axis, a, b)
        rows += [_key(result, pair) | asdict(share) for share in found]
    return pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64"})


def sentences(results: Sequence[WordResult]) -> pd.DataFrame:
    """Every usable sentence, the part it was used in, and where its word was read."""
    rows = []
    for result in results:
        material = result.material
        for row, sentence in enumerate(material.sentences):
            positions = material.words[row]
            place = {
                "position": positions[-1],
                "tokens_of_word": len(positions),
                "part": result.split.parts[row] or "neither",
            }
            rows.append({**{name: getattr(sentence, name) for name in _SENTENCE}, **place})
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


_SENTENCE = ("word", "sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end", "distance")


def left_out(results: Sequence[WordResult], unread: Sequence[LeftOut]) -> pd.DataFrame:
    """What was given and not used, with the reason; `unread` was left out while reading the file, before any word was known."""
    rows = [{"word": None, "where": item.where, "reason": item.reason} for item in unread]
    for result in results:
        word = result.material.word
        rows += [{"word": word, "where": item.where, "reason": item.reason} for item in result.material.left_out]
        crossing = "its frame is on one side of the split and its cue on the other"
        for sentence, part in zip(result.material.sentences, result.split.parts, strict=True):
            rows += [{"word": word, "where": sentence.text, "reason": crossing}] if part is None else []
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The certificate as a frame; layer is missing for rows about the whole model."""
    columns = ["layer", "quantity", "formula", "error", "scale", "tolerance", "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})


def _pairs(results: Sequence[WordResult]) -> Iterable[tuple[WordResult, PairResult]]:
    return ((result, pair) for result in results for pair in result.pairs)


def _senses(pair: PairResult) -> tuple[str, str]:
    return pair.axis.sense_a, pair.axis.sense_b


def _key(result: WordResult, pair: PairResult) -> dict[str, object]:
    return dict(zip(KEYS, (result.material.word, *_senses(pair)), strict=True))


def _with_key(frame: pd.DataFrame, key: dict[str, object]) -> pd.DataFrame:
    return pd.concat([pd.DataFrame({name: [value] * len(frame) for name, value in key.items()}), frame], axis=1)


def _by_head(arrays: dict[str, Array]) -> pd.DataFrame:
    layers, heads = next(iter(arrays.values())).shape
    layer, head = np.divmod(np.arange(layers * heads), heads)
    return pd.DataFrame({"layer": layer, "head": head} | {name: values.ravel() for name, values in arrays.items()})


def summary_html(model_name: str, made: dict[str, pd.DataFrame]) -> str:
    """What a notebook shows of a study: the words with their gap, and the leading heads of each."""
    leaders = made["word_heads"].query("rank <= 3").sort_values(["word", "rank"])
    columns = ["word", "layer", "head", "net", "net_low", "net_high", "attention_cue", "rank_low", "rank_high"]
    gaps = made["words"][["word", "sense_a", "sense_b", "depth", "gap", "gap_p", "ranked"]]
    tables = [
        frame.to_html(index=False, float_format="{:.2f}".format) for frame in (gaps, leaders.reindex(columns=columns))
    ]
    return f"<div><p><b>Study</b> of {escape(model_name)}</p>{''.join(tables)}<p>frames: {', '.join(made)}</p></div>"
