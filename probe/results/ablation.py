"""Accuracy with heads taken out at the word: what heads that were found on prepared sentences are
worth on sentences that nobody prepared.

A head is taken out at the word only, in two ways: its z there becomes its mean over the training
part ("mean", a mean ablation), or that of a random sentence of the training part ("swap", a
resample ablation). Everything behind it responds. The same happens on the same sentences, with the
same donors, for random sets of other heads, as many in every layer: what any heads of these layers
would cost.

The centroids are those of the intact model and are not fitted again without the heads. What is
asked is whether the word still says its sense where everything that reads its vector, the later
layers of the trained model first of all, looks for it; every swap of this package is read along
axes of unchanged runs for the same reason. Centroids that are fitted again would ask whether any
trace of the context is left that a new reader could learn, such as a copy that nothing reads: a
head whose effect nothing makes up for would then seem to do nothing. So with the heads' mean
accuracy falls to what the other heads bring to the word, as a bag of words at best, and to the most
frequent sense at worst; with a random sentence's z it can fall further, because the donor's sense
comes with it. It follows that each tested sentence is run once for each set, however many folds
learn from it.

Sources: Wang et al. 2022 (mean ablation over a reference distribution); Chan et al. 2022 (resample
ablation).
"""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from probe.errors import InputError
from probe.experiments.centroids import (
    SMALLEST_NORM,
    TIE_DECIMALS,
    Centroids,
    Senses,
    cosines,
    fit_centroids,
    macro_f1,
    macro_f1_of_draws,
)
from probe.experiments.material import Material
from probe.model.tokens import TargetText
from probe.model.weights import Weights
from probe.patching.heads import swap_sets
from probe.patching.inputs import target_texts
from probe.patching.sets import HeadIndex, Mask, mask_of, other_sets
from probe.results import frames as tables
from probe.stats import resampling
from probe.stats.resampling import Array
from probe.text.splits import Holdout, cue_words

RANDOM_SETS = 20  # a set that costs more than all of them has p = 1/21
KINDS = ("mean", "swap")
# The column of a file that its heads are ordered by, the first that it has: a report's pages go by
# `net`, too.
EFFECTS = ("effect", "net", "swap")
SENTENCES = 64  # that are run together: the directions of each are as large as its stream
CHOSEN = "depth chosen in training"
NAME = re.compile(r"L(\d{1,6})H(\d{1,6})")
EXAMPLE = "L4H1,L4H2"
COLUMNS = (
    *("word", "kind", "depth", "label", "tested", "accuracy", "accuracy_without"),
    *("fall", "fall_low", "fall_high", "random_sets", "random_fall", "random_least"),
    *("random_most", "beyond_random", "beyond_random_low", "beyond_random_high"),
    *("macro_f1", "macro_f1_without", "macro_f1_fall", "macro_f1_fall_low", "macro_f1_fall_high"),
    "random_macro_f1",
)

# What heads to take out can be given as: names, a file or a table with the columns layer and head.
HeadsSource: TypeAlias = str | os.PathLike[str] | pd.DataFrame | Iterable[str | HeadIndex]


# --- which heads ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class HeadsOut:
    """Heads to take out, and the random sets beside them. `masks: 1 + random layer head`, True
    where a head is taken out, the set that was asked for first."""

    heads: tuple[HeadIndex, ...]
    masks: Mask

    @property
    def layers(self) -> list[int]:
        """The layers that a head is taken out of, the same for every set."""
        layers: list[int] = np.flatnonzero(self.masks[0].any(1)).tolist()
        return layers

    @property
    def names(self) -> list[str]:
        return [_name(head) for head in self.heads]


def heads_out(
    given: HeadsSource, top: int | None, *, model: str, shape: tuple[int, int], seed: int
) -> HeadsOut:
    """The heads that are `given`, or the `top` of a file or table by their effect, and RANDOM_SETS
    sets of other heads (all there are, where these are fewer). `shape`: layers and heads of the
    model.

    Raises InputError for what names no heads, for heads that the model does not have, and where a
    layer has too few others for a random set.
    """
    if isinstance(given, pd.DataFrame):
        heads = _heads_of_table(given, top, "a table made in Python")
    elif path := _file(given):
        heads = _heads_of_table(_read_table(path), top, path.name)
    else:
        heads = _named(given, top)
    heads = list(dict.fromkeys(heads))
    _require_in_model(heads, model, shape)
    mask = mask_of(heads, shape)
    _require_others(mask)
    others = other_sets(mask, RANDOM_SETS, np.random.default_rng(seed))
    return HeadsOut(tuple(heads), np.concatenate([mask[None], others]))


def _name(head: HeadIndex) -> str:
    return f"L{head[0]}H{head[1]}"


def _file(given: object) -> Path | None:
    """The path that is meant, None where heads are named."""
    if isinstance(given, str) and not given.lower().endswith((".csv", ".parquet")):
        return None
    return Path(given) if isinstance(given, str | os.PathLike) else None


def _named(given: Any, top: int | None) -> list[HeadIndex]:
    """Heads that are named one by one: "L4H1,L4H2", or a sequence of such names or of (layer,
    head)."""
    if isinstance(given, str):
        parts = given.split(",")
    else:
        parts = list(given) if isinstance(given, Iterable) else [given]
    heads = [_head(part) for part in parts]
    if None in heads or not heads:
        wrong = parts[heads.index(None)] if heads else ""
        raise InputError(
            f"Taking out heads: {wrong!r} names none, expected names such as {EXAMPLE}, or a CSV "
            "or Parquet file with the columns layer and head; correct the list."
        )
    found = [head for head in heads if head is not None]
    if top is not None:
        raise InputError(
            f"Taking out the first {top} heads: got the list {','.join(map(_name, found))}, "
            "expected a file whose heads have an effect; leave top out or give such a file."
        )
    return found


def _head(part: Any) -> HeadIndex | None:
    """One head from its name or from (layer, head), None for anything else."""
    if isinstance(part, str):
        return head_index(part) if NAME.fullmatch(part.strip().upper()) else None
    try:
        layer, head = part
        return int(layer), int(head)
    except (TypeError, ValueError):
        return None


def head_index(name: str) -> HeadIndex:
    """(4, 1) of "L4H1"."""
    layer, head = name.strip().upper().removeprefix("L").split("H")
    return int(layer), int(head)


def _read_table(path: Path) -> pd.DataFrame:
    if not path.is_file():
        raise InputError(
            f"Reading heads from {path}: there is no such file; give the path of a CSV or Parquet "
            f"file with the columns layer and head, or a list such as {EXAMPLE}."
        )
    try:
        return pd.read_parquet(path) if path.suffix.lower() == ".parquet" else pd.read_csv(path)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0].rstrip(".")
        raise InputError(
            f"Reading heads from {path}: it cannot be read as a table ({reason}); write it again "
            "or give another."
        ) from error


def _heads_of_table(table: pd.DataFrame, top: int | None, source: str) -> list[HeadIndex]:
    """The heads of a table in its order; with `top`, those with the largest effect, averaged where
    a head has several rows."""
    doing = f"Reading heads from {source}:"
    if missing := [column for column in ("layer", "head") if column not in table]:
        raise InputError(
            f"{doing} the column {missing[0]} is missing, got {', '.join(map(str, table))}, "
            f"expected layer and head; add it or give a list such as {EXAMPLE}."
        )
    # A row without a head is of an MLP, of an attention as a whole, or of an embedding.
    rows = table.dropna(subset=["layer", "head"])
    numbers = rows[["layer", "head"]].apply(pd.to_numeric, errors="coerce")
    wrong = (numbers.isna() | (numbers % 1 != 0) | (numbers < 0)).any(axis=1)
    if wrong.any() or rows.empty:
        got = "no row with both"
        if wrong.any():
            first = rows.loc[wrong, ["layer", "head"]].iloc[0]
            got = " and ".join(map(str, first.tolist()))
        raise InputError(
            f"{doing} got {got} for layer and head, expected whole numbers from 0; correct the "
            "file."
        )
    numbers = numbers.astype(int)
    if top is not None:
        numbers = _first_by_effect(numbers, rows, top, doing)
    return [(int(layer), int(head)) for layer, head in numbers.to_numpy()]


def _first_by_effect(
    numbers: pd.DataFrame, rows: pd.DataFrame, top: int, doing: str
) -> pd.DataFrame:
    """The `top` heads with the largest mean effect; of equals the lower layer, then the lower
    head."""
    column = next((name for name in EFFECTS if name in rows), None)
    if column is None:
        raise InputError(
            f"{doing} none of the columns {', '.join(map(str, rows))} says how large the effect of "
            f"a head is, expected {', '.join(EFFECTS[:-1])} or {EFFECTS[-1]}; add it or leave top "
            "out."
        )
    effects = numbers.assign(effect=pd.to_numeric(rows[column], errors="coerce"))
    ordered = effects.groupby(["layer", "head"])["effect"].mean().dropna()
    if not 1 <= top <= len(ordered):
        raise InputError(
            f"{doing} got top = {top}, expected 1 to {len(ordered)}, the number of heads with an "
            "effect; take as many as there are."
        )
    return ordered.sort_values(ascending=False, kind="stable").head(top).index.to_frame()


def _require_in_model(heads: Sequence[HeadIndex], model: str, shape: tuple[int, int]) -> None:
    layers, count = shape
    for head in heads:
        if not (0 <= head[0] < layers and 0 <= head[1] < count):
            raise InputError(
                f"Taking out {_name(head)}: {model} has no such head, expected layers 0 to "
                f"{layers - 1} and heads 0 to {count - 1}; name heads of this model."
            )


def _require_others(mask: Mask) -> None:
    """Raises InputError where a layer has fewer heads outside the set than in it."""
    for layer, heads in enumerate(mask):
        taken = int(heads.sum())
        left = len(heads) - taken
        if taken > left:
            raise InputError(
                f"Drawing random sets beside the heads taken out: layer {layer} has {len(heads)} "
                f"heads, of which {taken} are taken out and {left} left, expected at least as many "
                "left as taken out; take out fewer heads of this layer."
            )


# --- the sentences of one word --------------------------------------------------------------------


class WordStates(NamedTuple):
    """What was read at a word in unchanged runs: the stream, `resid: sentence depth d_model`, and z
    of the layers that heads are taken out of, `z: sentence layer head d_head`."""

    resid: Tensor
    z: Tensor


class Accuracies(NamedTuple):
    """What taking sets of heads out costs at one word, or on average over words. The last depth is
    the one chosen in training.

    `intact: depth` and `fall: kind 1 + random depth`, the accuracy and what is lost of it ·
    `intact_f1: depth` and `f1: kind 1 + random depth`, macro-F1 · `draws: 3 draw kind depth`,
    bootstrap draws of the fall of the set asked for, of what it is beyond the mean random set, and
    of the fall in macro-F1 · `tested` sentences, `units` of them that are drawn as a whole, `words`
    added up.
    """

    intact: Array
    fall: Array
    intact_f1: Array
    f1: Array
    draws: Array
    tested: int
    units: int
    words: int = 1


def predict_without(
    weights: Weights,
    material: Material,
    states: WordStates,
    labels: Senses,
    holdouts: Sequence[Holdout],
    out: HeadsOut,
    *,
    seed: int,
) -> Senses:
    """The nearest intact centroid of every tested sentence with each set of heads taken out. `->
    kind 1 + random sentence depth`; sentences that are not tested have 0.
    """
    rng = np.random.default_rng(seed)
    learned = [learn(states, labels, holdout, rng) for holdout in holdouts]
    from_holdout = {row: one for one in learned for row in one.donors}
    texts = target_texts(weights, material.texts, "Taking heads out")
    # Sentences of one length are run together, and what they share is run once.
    order = sorted(from_holdout, key=lambda row: (len(texts[row].ids), row))
    predicted = np.zeros((len(KINDS), len(out.masks), *states.resid.shape[:2]), dtype=np.int64)
    for start in range(0, len(order), SENTENCES):
        here = order[start : start + SENTENCES]
        training = [from_holdout[row] for row in here]
        z = torch.stack(
            [
                torch.stack([one.mean_z for one in training]),
                states.z[[one.donors[row] for one, row in zip(training, here, strict=True)]],
            ]
        )
        centroids = [one.centroids for one in training]
        nearest = _nearest(
            weights, [texts[row] for row in here], states.resid[here], z, centroids, out
        )
        senses = np.stack([one.senses for one in centroids])  # sentence sense
        sentence = np.arange(len(here))[:, None]
        predicted[:, :, here] = senses[sentence, nearest]
    return predicted


class Learned(NamedTuple):
    """What is taken from the training part of a holdout: the centroids, `mean_z: layer head
    d_head`, and a sentence at random for each that is tested, `donors`."""

    centroids: Centroids
    mean_z: Tensor
    donors: dict[int, int]


def learn(
    states: WordStates, labels: Senses, holdout: Holdout, rng: np.random.Generator
) -> Learned:
    """The training part of a holdout, with donors drawn for the sentences that are tested."""
    train = list(holdout.train)
    drawn = rng.choice(train, len(holdout.test)).tolist()
    donors = dict(zip(holdout.test, drawn, strict=True))
    return Learned(fit_centroids(states.resid, labels, holdout), states.z[train].mean(0), donors)


def _nearest(
    weights: Weights,
    texts: Sequence[TargetText],
    resid: Tensor,
    z: Tensor,
    centroids: Sequence[Centroids],
    out: HeadsOut,
) -> NDArray[np.intp]:
    """Which of its centroids each sentence is nearest to when each set of heads has another z at
    the word. `z: kind sentence layer head d_head` -> `kind set sentence depth`

    All kinds and sets are variants of one run. Only what tells a centroid from the first one is
    read, so that equal centroids stay a tie however the sums are rounded.
    """
    # The unchanged run, as `predict` has it; behind the first block, what changes.
    cosine = np.concatenate(
        [cosines(row[None], own) for row, own in zip(resid, centroids, strict=True)]
    )
    apart = torch.stack([own.unit[1:, 1:] - own.unit[1:, :1] for own in centroids])
    # A change of the projection as a change of the cosine, but for the length of the vector.
    apart = apart / resid[:, 1:].double().norm(dim=-1).clamp_min(SMALLEST_NORM)[..., None, None]
    donor_z = z.new_zeros(len(KINDS) * len(texts), *out.masks.shape[1:], z.shape[-1])
    donor_z[:, out.layers] = z.flatten(0, 1)
    moved = swap_sets(
        weights,
        [*texts] * len(KINDS),
        donor_z,
        torch.from_numpy(~out.masks),
        apart.to(resid.dtype).repeat(len(KINDS), 1, 1, 1),  # row stage sense d_model
    )
    by_kind = moved.double().unflatten(0, (len(KINDS), -1)).numpy()  # kind sentence set depth sense
    ahead = (cosine - cosine[..., :1])[None, :, None]
    ahead = np.broadcast_to(ahead, (*by_kind.shape[:3], *ahead.shape[3:])).copy()
    ahead[..., 1:, 1:] += by_kind
    nearest: NDArray[np.intp] = np.round(ahead, TIE_DECIMALS).argmax(-1).swapaxes(1, 2)
    return nearest


def compare(
    material: Material,
    gold: Senses,
    intact: Senses,
    without: Senses,
    depths: Senses,
    *,
    seed: int,
) -> Accuracies:
    """The accuracy that each set of heads costs the tested sentences of one word. `gold depths:
    sentence` · `intact: depth sentence` · `without: kind set sentence depth`; `depths`: the depth
    chosen for each sentence. `material` holds the tested sentences alone.

    The same sentences are drawn for every set, so differences are paired. Frames and cue words are
    drawn as a whole where the file has them, sentences where it does not.
    """
    predicted = _with_chosen(intact.T, depths)  # sentence depth
    predicted_without = _with_chosen(without, depths)  # kind set sentence depth
    right = predicted == gold[:, None]
    lost = right.astype(float) - (predicted_without == gold[:, None])
    units = cue_words(material.sentences)
    factors = resampling.crossed_factors([row.frame for row in material.sentences], units)
    drawn = resampling.bootstrap_weights(factors, seed=seed)
    drawn /= drawn.sum(1, keepdims=True)
    compared = np.stack([lost[:, 0], lost[:, 0] - lost[:, 1:].mean(1)])  # 2 kind sentence depth
    draws = np.einsum("wn,cknd->cwkd", drawn, compared, optimize=True)
    intact_f1 = macro_f1_of_draws(gold, predicted.T, drawn)  # draw depth
    f1 = macro_f1_of_draws(gold, predicted_without[:, 0].swapaxes(-1, -2), drawn)
    return Accuracies(
        intact=right.mean(0),
        fall=lost.mean(2),
        intact_f1=macro_f1(gold, predicted.T),
        f1=macro_f1(gold, predicted_without.swapaxes(-1, -2)),
        draws=np.concatenate([draws, (intact_f1[:, None] - f1)[None]]),
        tested=len(gold),
        units=len(set(units)),
    )


def _with_chosen(predicted: Senses, depths: Senses) -> Senses:
    """With one more depth behind the last, that of each sentence. `... sentence depth -> ...
    sentence depth + 1`"""
    at = np.broadcast_to(depths[:, None], (*predicted.shape[:-1], 1))
    return np.concatenate([predicted, np.take_along_axis(predicted, at, -1)], axis=-1)


# --- tables ---------------------------------------------------------------------------------------


def add(total: Accuracies | None, one: Accuracies) -> Accuracies:
    """Sums over words, so that no word's draws are kept."""
    if total is None:
        return one
    return Accuracies(
        total.intact + one.intact,
        total.fall + one.fall,
        total.intact_f1 + one.intact_f1,
        total.f1 + one.f1,
        total.draws + one.draws,
        total.tested + one.tested,
        total.units + one.units,
        total.words + one.words,
    )


def mean(total: Accuracies) -> Accuracies:
    """The average over words from their sums, each counting once."""
    return total._replace(
        intact=total.intact / total.words,
        fall=total.fall / total.words,
        intact_f1=total.intact_f1 / total.words,
        f1=total.f1 / total.words,
        draws=total.draws / total.words,
    )


def rows(word: str | None, accuracies: Accuracies) -> list[Mapping[str, object]]:
    """A row per kind and depth; `word` is None for the mean over words."""
    fall = accuracies.fall
    f1_fall = accuracies.intact_f1 - accuracies.f1[:, 0]
    estimate = np.stack([fall[:, 0], fall[:, 0] - fall[:, 1:].mean(1), f1_fall])  # 3 kind depth
    low, high = resampling.interval(
        accuracies.draws.swapaxes(0, 1), estimate, units=accuracies.units
    )
    last = len(accuracies.intact) - 1
    made: list[Mapping[str, object]] = []
    for number, kind in enumerate(KINDS):
        for depth, intact in enumerate(accuracies.intact):
            here = (number, depth)
            random = fall[number, 1:, depth]
            f1 = accuracies.f1[number, :, depth]
            values = (
                *(word, kind, None if depth == last else depth),
                *(CHOSEN if depth == last else tables.depth_label(depth), accuracies.tested),
                *(intact, intact - estimate[0][here]),
                *(estimate[0][here], low[0][here], high[0][here]),
                *(len(random), random.mean(), random.min(), random.max()),
                *(estimate[1][here], low[1][here], high[1][here]),
                *(accuracies.intact_f1[depth], f1[0]),
                *(estimate[2][here], low[2][here], high[2][here], f1[1:].mean()),
            )
            made.append(dict(zip(COLUMNS, values, strict=True)))
    return made


def frame(by_word: Sequence[Mapping[str, object]], total: Accuracies) -> pd.DataFrame:
    """The rows of all words, and behind them those of their mean."""
    made = pd.DataFrame([*by_word, *rows(None, mean(total))], columns=list(COLUMNS))
    return made.astype({"depth": "Int64"})
