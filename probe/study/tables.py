"""The border between tensors and tables: results in, tidy pandas frames out. To its right there is no torch.

One frame per question, one row per observation, column names with their meaning and unit in `probe.study.columns`.
Numbers that were not measured are missing (NaN), never zero. Numbers are rounded to DIGITS significant digits, far
below their uncertainty, so that the same command writes the same bytes on one machine with one set of versions;
elsewhere the last may differ.
"""

from collections.abc import Sequence
from dataclasses import asdict
from html import escape

import pandas as pd

from probe.model import ledger
from probe.model.check import Certificate
from probe.model.model import Model
from probe.model.weights import read_weights
from probe.stats import axes, permutation, resampling
from probe.study.columns import HEADS, KEYS, by_head, key_of, rounded, sense_pairs_of, with_key
from probe.study.controls import Controls
from probe.study.head_tables import curves, distances, evidence, random_sets, routes, word_heads
from probe.study.word import WordResult
from probe.text.sentences import LeftOut
from probe.text.splits import FIT, GIVEN, GIVEN_PARTS, REPORT, cue_words

FEW = 50  # sentences per sense: with fewer, a result is called exploratory


def frames(
    model: Model, results: Sequence[WordResult], certificate: Certificate, unread: Sequence[LeftOut] = ()
) -> dict[str, pd.DataFrame]:
    """Every frame that is made from the measurements alone, rounded."""
    shown = evidence(results)
    made = {
        "words": words(results),
        "heads": shown[list(HEADS)],
        "verdicts": shown[[*KEYS, "layer", "head", "verdict", "because"]],
        "word_heads": word_heads(results, shown),
        "distances": distances(results),
        "routes": routes(results),
        "curves": curves(results),
        "random_sets": random_sets(results),
        "depth": depth_profile(results),
        "shares": shares(model, results),
        "sentences": sentences(results),
        "left_out": left_out(results, unread),
        "certificate": certificate_rows(certificate),
    }
    return {name: rounded(frame) for name, frame in made.items()}


def words(results: Sequence[WordResult]) -> pd.DataFrame:
    """One row per word and pair of senses: how much material, where it was read, whether the gap is there."""
    rows = []
    for result, pair in sense_pairs_of(results):
        weights = pair.pairs.bootstrap()
        low, high = map(float, resampling.interval(weights @ pair.gap / weights.sum(1)))
        fit, report = ([result.part(part, sense) for sense in pair.senses] for part in (FIT, REPORT))
        tests = pair.separation.auroc.size
        scored = [[result.sentences[row] for row in [*a, *b]] for a, b in zip(fit, report, strict=True)]
        units = min(len(set(cue_words(sentences))) for sentences in scored)
        auroc = resampling.auroc(*(pair.axis.coordinate(result.resid[rows]).numpy() for rows in report))
        rows.append(
            key_of(result, pair)
            | {
                "sentences_fit": sum(map(len, fit)),
                "sentences_report": sum(map(len, report)),
                "pairs": len(pair.pairs),
                "pair_design": pair.pairs.design,
                "split_design": result.split.design,
                "tokens_of_word": max(len(result.material.words[row]) for row in result.rows),
                "causal": result.causal,
                "depth": result.depth,
                "auroc": float(auroc),
                "gap": float(pair.gap.mean()),
                "gap_low": low,
                "gap_high": high,
                "gap_p": pair.gate_p,
                "negative_gaps": int((pair.gap <= 0).sum()),
                "cue_words": units,
                "visible_d": permutation.smallest_effect(units, tests=tests, paired=False),
                "visible_d_pairs": permutation.smallest_effect(len(set(pair.pairs.cues)), tests=tests, paired=True),
                "exploratory": min(map(len, report)) < FEW,
                "ranked": pair.effects is not None,
            }
        )
    return pd.DataFrame(rows)


def depth_profile(results: Sequence[WordResult]) -> pd.DataFrame:
    """Mean sense coordinates and AUROC at every depth, on the report part; see `probe.stats.axes.profile`."""
    rows = []
    for result, pair in sense_pairs_of(results):
        stages = [result.states.token_embedding, *result.states.resid.unbind(1)]
        parts = [[result.part(part, sense) for sense in pair.senses] for part in (FIT, REPORT)]
        for here in axes.profile(stages, pair.axis, *parts):
            rows.append(key_of(result, pair) | {"label": depth_label(here.depth)} | asdict(here))
    return pd.DataFrame(rows)


def controls(measured: Sequence[Controls]) -> pd.DataFrame:
    """Held-out AUROC of every head under every condition, for the clearest pair of senses of each word."""
    parts = []
    for control in measured:
        key = key_of(control.word, control.pair)
        for name, auroc in control.auroc.items():
            parts.append(
                with_key(by_head({"auroc": auroc}), key | {"condition": name, "untrained_p": control.untrained_p})
            )
    return rounded(pd.concat(parts, ignore_index=True))


def depth_label(depth: int) -> str:
    return {-1: "token", 0: "token + position"}.get(depth, f"after layer {depth - 1}")


def shares(model: Model, results: Sequence[WordResult]) -> pd.DataFrame:
    """Direct share of every component in the difference of sense means at the read-out; a pair's shares sum to 1."""
    rows = []
    for result, pair in sense_pairs_of(results):
        a, b = (result.part(REPORT, sense) for sense in pair.senses)
        parts = ledger.shares(read_weights(model), result.states, pair.axis, a, b)
        rows += [key_of(result, pair) | asdict(share) for share in parts]
    return pd.DataFrame(rows).astype({"layer": "Int64", "head": "Int64"})


def sentences(results: Sequence[WordResult]) -> pd.DataFrame:
    """Every usable sentence, the part it was used in, and where its word was read."""
    rows = []
    for result in results:
        material = result.material
        for row, sentence in enumerate(material.sentences):
            positions = material.words[row]
            read = {"position": positions[-1], "tokens_of_word": len(positions)}
            used = {"part": result.split.parts[row] or "neither"}
            rows.append({name: getattr(sentence, name) for name in _SENTENCE} | read | used)
    return pd.DataFrame(rows).astype(dict.fromkeys(("cue_start", "cue_end", "distance"), "Int64"))


_SENTENCE = ("word", "sense", "text", "start", "end", "frame", "pair", "cue_start", "cue_end", "distance")


def left_out(results: Sequence[WordResult], unread: Sequence[LeftOut]) -> pd.DataFrame:
    """What was given and not used, with the reason; `unread` was left out while reading the file, before any word."""
    rows: list[tuple[str | None, str, str]] = [(None, item.where, item.reason) for item in unread]
    for result in results:
        word = result.material.word
        rows += [(word, item.where, item.reason) for item in result.material.left_out]
        crossing = "its frame is on one side of the split and its cue on the other"
        given = result.split.design == GIVEN
        for sentence, part in zip(result.material.sentences, result.split.parts, strict=True):
            reason = f"its split is {sentence.split!r}, expected one of {', '.join(GIVEN_PARTS)}" if given else crossing
            rows += [(word, sentence.text, reason)] if part is None else []
    return pd.DataFrame(rows, columns=["word", "where", "reason"])


def certificate_rows(certificate: Certificate) -> pd.DataFrame:
    """The certificate as a frame; layer is missing for rows about the whole model."""
    columns = ["layer", "quantity", "formula", "error", "scale", "tolerance", "ok"]
    rows = [[getattr(row, name) for name in columns] for row in certificate.rows]
    return pd.DataFrame(rows, columns=columns).astype({"layer": "Int64"})


def summary_html(model_name: str, made: dict[str, pd.DataFrame]) -> str:
    """What a notebook shows of a study: the words with their gap, and the leading heads of each."""
    leaders = made["word_heads"].query("rank <= 3").sort_values(["word", "rank"])
    columns = ["word", "layer", "head", "net", "net_low", "net_high", "attention_cue", "rank_low", "rank_high"]
    gaps = made["words"][["word", "sense_a", "sense_b", "depth", "gap", "gap_p", "ranked"]]
    shown = (gaps, leaders.reindex(columns=columns))
    tables = [frame.to_html(index=False, float_format="{:.2f}".format) for frame in shown]
    return f"<div><p><b>Study</b> of {escape(model_name)}</p>{''.join(tables)}<p>frames: {', '.join(made)}</p></div>"
