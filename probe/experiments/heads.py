"""How far does each head move the word, and does its write separate the senses?

Every head is swapped at the word, exactly, and is read at every depth after it and in the logits of
the next token (`probe.experiments.swaps`). The separation is the held-out AUROC of the head's write
along its own direction, as measured and with the senses reassigned to cue words.

Each kind of test (separation, swap, opposes, next token, continuation) is one family over all heads
and all pairs of senses of the word, corrected by step-down max-T (`probe.stats.separation`).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from probe.experiments.columns import (
    KEYS,
    Column,
    Table,
    as_elsewhere,
    dataset,
    key_of,
    listed,
    rows,
    with_ends,
)
from probe.experiments.design import (
    Pairs,
    Readout,
    bootstrap_each,
    interval_over_senses,
    pairs_of,
    widen_draws,
)
from probe.experiments.prepare import Prepared
from probe.experiments.record import WordRecord, by_number
from probe.experiments.run import WordRun
from probe.experiments.swaps import (
    NUMERATORS,
    Effects,
    Shifts,
    drawn_effects,
    effects_at,
    effects_of,
    has_effects,
    net_by_pair,
    ratio,
    run_measured,
    run_swaps,
    swap_effect,
)
from probe.model import decomposition
from probe.model.decomposition import head_contributions
from probe.model.records import TargetStates
from probe.model.weights import Weights
from probe.patching.heads import swap_heads
from probe.patching.inputs import Rows
from probe.patching.mlps import swap_mixers
from probe.stats import resampling
from probe.stats.axes import HeldOutAxes
from probe.stats.limits import GATE, LEVEL
from probe.stats.resampling import Array
from probe.stats.separation import Separation, Tests, corrected_tests, measure_separation
from probe.tidy import by_head, stacked, with_key
from probe.verdicts import (
    PARTS,
    REASONS,
    WRITES,
    best_verdicts,
    comparisons,
    does_it_itself,
    passes_gate,
    verdicts,
)

if TYPE_CHECKING:
    import xarray as xr

ORDER = 10
NEEDS = ()
ANSWERS = True
SECONDS = 42.0
SEPARATION = ("auroc", "auroc_low", "auroc_high", "hedges_g")
SWAP_COLUMNS = (
    *("direct", "direct_low", "direct_high", "denoise", "noise", "swap", "swap_low", "swap_high"),
    *("same_sense", "added_after", "net", "net_low", "net_high"),
)
RANKS = ("rank", "rank_low", "rank_high")
TESTED = (
    *("p_auroc", "q_auroc", "p_swap", "q_swap", "p_opposes"),
    *("next_token", "p_next_token", "continuation", "p_continuation"),
)
ATTENTION = ("attention_cue", "attention_previous", "attention_itself")
NEAR_AND_FAR = ("net_near", "net_far")
BACKUPS = ("stands_in", "p_stands_in", "stands_in_layer", "stands_in_head")
# The columns that other experiments measure, by experiment.
ELSEWHERE = {"nouns": (*PARTS, *WRITES), "backups": BACKUPS}
MIXERS = ("denoise", "noise", "swap", "same_sense", "net")
ALL = "all"  # the dataset over all pairs of senses with a gap
MIXED = "layers without heads"  # the dataset of mixers


@lru_cache(maxsize=1)  # three tables of a word read it, one after the other
def every_head(record: WordRecord) -> pd.DataFrame:
    """A row for every head and pair of senses of a word, with the verdict and all numbers that it
    depends on.
    """
    parts = []
    others = {name: record.of_pairs(name) for name in ELSEWHERE}
    for number, (senses, data) in enumerate(
        zip(record.senses, record.of_pairs("heads"), strict=True)
    ):
        assert data is not None  # every pair of senses has a dataset
        results = {name: results[number] for name, results in others.items()}
        frame = _frame(data, (*SEPARATION, *SWAP_COLUMNS, *RANKS, *TESTED, *NEAR_AND_FAR), results)
        nouns = results["nouns"]
        frame["read_depth"] = senses.read_depth.values[frame["layer"]]
        frame["ambiguity_p"] = np.nan if nouns is None else nouns.ambiguity_p.item()
        frame["nouns_compared"] = 0 if nouns is None else nouns.nouns_compared.item()
        frame["misplaced"] = float(senses.nuisance_p.item() < LEVEL)
        frame["untrained"] = float(senses.untrained_p.item() < GATE)
        frame["comparison"] = comparisons(frame)
        frame["verdict"] = verdicts(frame)
        parts.append(with_key(frame, key_of(record, senses)))
    return pd.concat(parts, ignore_index=True)


def _frame(
    data: "xr.Dataset", columns: Sequence[str], others: "Mapping[str, xr.Dataset | None]"
) -> pd.DataFrame:
    """A row for each head, with the columns of this experiment, attention, and those of the others;
    NaN where nothing was measured.
    """
    attention = [str(name) for name in data if str(name).startswith("attention_")]
    sources: list[tuple[xr.Dataset | None, tuple[str, ...]]] = [(data, (*columns, *attention))]
    sources += [(others[name], wanted) for name, wanted in ELSEWHERE.items()]
    missing = np.full(data.attention_itself.shape, np.nan)
    arrays = {
        name: missing if source is None or name not in source else source[name].values
        for source, names in sources
        for name in names
    }
    return by_head(arrays).astype(dict.fromkeys(RANKS, "Int64"))


def over_senses(record: WordRecord, data: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each head, with means over the word's pairs of senses with a significant gap.

    verdict: the strongest one over these pairs. A resolver of the word is a mover that passes in
        the mean over the pairs. One that passes for single pairs only is a mover of the word.
    resolves: in how many of these pairs the head is a resolver
    of: the number of these pairs
    """
    if ALL not in data:
        return pd.DataFrame()
    nouns = record.measured.get("nouns") or {}
    frame = _frame(
        data[ALL], ("auroc", *SWAP_COLUMNS, *RANKS), {"nouns": nouns.get(ALL), "backups": None}
    )
    rows = every_head(record)
    frame = frame.merge(best_verdicts(rows[rows["net"].notna()]), on=["layer", "head"])
    frame["comparison"] = comparisons(frame)
    gates = [
        {name: each[name].item() for name in ("ambiguity_p", "nouns_compared")}
        for each in record.of_pairs("nouns")
        if each is not None
    ]
    moves = frame["verdict"].isin(("mover", "resolver"))
    frame.loc[moves, "verdict"] = "mover"
    if any(map(passes_gate, gates)):
        frame.loc[moves & does_it_itself(frame), "verdict"] = "resolver"
    return with_key(frame, {"word": record.word})


def by_distance(record: WordRecord, data: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each head and distance from the cue to the word: its net effect."""
    parts = []
    for senses, each in _with_effects(record):
        pairs = pairs_of(senses)
        effects = effects_of(each)
        for distance in sorted({here for here in pairs.distances if here is not None}):
            frame = by_head({"net": net_where(effects, pairs.distances, distance.__eq__)})
            parts.append(with_key(frame, key_of(record, senses) | {"distance": distance}))
    return stacked(parts, [])


def by_depth(record: WordRecord, data: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each head and depth after it at which the senses are separated: its net effect."""
    parts = []
    for senses, each in _with_effects(record):
        profile = each.net_by_depth.values
        for depth in range(senses.write_depth.values.min(), profile.shape[-1]):
            frame = by_head({"net": profile[..., depth]})
            # A head changes the stream only at depths after its layer.
            before = frame[frame["layer"] < depth].reset_index(drop=True)
            parts.append(with_key(before, key_of(record, senses) | {"depth": depth}))
    return stacked(parts, [])


def _with_effects(record: WordRecord) -> "list[tuple[xr.Dataset, xr.Dataset]]":
    """The pairs of senses whose heads have effects, each with its result."""
    both = zip(record.senses, record.of_pairs("heads"), strict=True)
    return [(senses, each) for senses, each in both if each is not None and has_effects(each)]


def of_mixers(record: WordRecord, data: "Mapping[str, xr.Dataset]") -> pd.DataFrame:
    """A row for each mixer that replaces attention in a layer of a hybrid."""
    return rows(record, data[MIXED]) if MIXED in data else pd.DataFrame()


# What the columns mean that only the tables of this experiment have.
COLUMNS = {
    "auroc_low": Column("lower end of the 95 % bootstrap interval of auroc", "0 to 1"),
    "auroc_high": Column("upper end of the 95 % bootstrap interval of auroc", "0 to 1"),
    "hedges_g": Column("the same separation in pooled standard deviations", "standard deviations"),
    **with_ends(
        "direct",
        Column("D, the head's direct write along the sense axis", "fraction of the sense gap"),
    ),
    "denoise": Column(
        "R_dn, the part of the gap that is restored when B takes A's head output",
        "fraction of the sense gap",
    ),
    "noise": Column(
        "R_ns, the part of the gap that is lost when A takes B's head output",
        "fraction of the sense gap",
    ),
    **with_ends("swap", Column("(R_dn + R_ns) / 2, the swap effect", "fraction of the sense gap")),
    "same_sense": Column(
        "effect of a donor of the same sense, which net subtracts from swap",
        "fraction of the sense gap",
    ),
    "added_after": Column(
        "swap - direct: the change that later layers add to the head's write. Negative if they "
        "remove it or compensate for it.",
        "fraction of the sense gap",
    ),
    "p_auroc": Column(
        "max-T p of the separation, corrected for every head and pair of senses of the word",
        "0 to 1",
    ),
    "q_auroc": Column("false discovery rate of the separation (Benjamini-Hochberg)", "0 to 1"),
    "p_swap": Column(
        "max-T p of the swap effect minus the effect of a same-sense donor, corrected for every "
        "head and pair of senses of the word",
        "0 to 1",
    ),
    "q_swap": Column("false discovery rate of the swap effect (Benjamini-Hochberg)", "0 to 1"),
    "attention_cue": Column("mean attention of the head from the word to its cue", "0 to 1"),
    "attention_previous": Column(
        "mean attention of the head from the word to the token before it. This token is the cue "
        "if the cue directly precedes the word; attention_cue and attention_previous can then sum "
        "to more than 1.",
        "0 to 1",
    ),
    "verdict": Column(
        "the verdict on the head: resolver, mover, position-explained, confounded, opposes, "
        "backup, erased, unread, suggestive, separates or none"
    ),
    "rank": Column(
        "rank by swap - same_sense. 1 is the largest. Missing if there is no significant gap."
    ),
    "rank_low": Column("best rank within the 95 % bootstrap interval"),
    "rank_high": Column("worst rank within the 95 % bootstrap interval"),
    "net_low": Column(
        "lower end of the 95 % bootstrap interval of net", "fraction of the sense gap"
    ),
    "net_high": Column(
        "upper end of the 95 % bootstrap interval of net", "fraction of the sense gap"
    ),
    "next_token": Column(
        "net effect of the swap on the logits of the next token, as a fraction of their "
        "difference between the senses",
        "fraction of the gap in the next token",
    ),
    "p_next_token": Column(
        "max-T p of next_token, corrected for every head and pair of senses of the word", "0 to 1"
    ),
    "continuation": Column(
        "net effect of the swap on the lexicon's continuations, right after the word: the mean "
        "logit of the continuations of the first sense minus that of the second, as a fraction of "
        "its difference between the senses",
        "fraction of the gap in the continuations",
    ),
    "p_continuation": Column(
        "max-T p of continuation, corrected for every head and pair of senses of the word. "
        "Missing without a significant difference between the senses.",
        "0 to 1",
    ),
    "read_depth": Column("number of blocks after which the head's effect is read", "blocks"),
    "write_nouns": Column(
        "how far the head's own write moves nouns in the word's place, right after the head's "
        "layer",
        "fraction of the word's gap",
    ),
    **with_ends(
        "write_more",
        Column(
            "how far the head's own write moves the word minus nouns, right after the head's layer",
            "fraction of the word's gap",
        ),
    ),
    "p_more_write": Column("p of write_more, like p_more. A resolver needs both.", "0 to 1"),
    "write_more_word_axis": Column(
        "write_more, with the nouns read along the word's axis", "fraction of the word's gap"
    ),
    "write_more_length": Column(
        "write_more, with lengths of the head's writes in place of movements along an axis",
        "fraction of the word's gap",
    ),
    "p_opposes": Column(
        "max-T p of a swap effect in the wrong direction, corrected for every head and pair of "
        "senses of the word",
        "0 to 1",
    ),
    "net_near": Column(
        "net over the sentences with the cue next to the word", "fraction of the sense gap"
    ),
    "net_far": Column(
        "net over the sentences with the cue further away", "fraction of the sense gap"
    ),
    "attention_next": Column(
        "mean attention from the word to the token after it; 0 in a causal model", "0 to 1"
    ),
    "stands_in": Column(
        "extra effect of swapping the head together with the head that it backs up: the joint "
        "effect minus the two separate effects",
        "fraction of the sense gap",
    ),
    "p_stands_in": Column("max-T p of stands_in", "0 to 1"),
    "stands_in_layer": Column("layer of the head that it backs up"),
    "stands_in_head": Column("number of the head that it backs up"),
    "misplaced": Column(
        "1 if the position of the word or its cue, or the text's length, also separates the "
        "senses, otherwise 0"
    ),
    "untrained": Column("1 if an untrained model also separates the senses, otherwise 0"),
    "attention_itself": Column(
        "mean attention of the head from the word to the word itself, i.e. to what its position "
        "already holds",
        "0 to 1",
    ),
    "resolves": Column(
        "number of the word's pairs of senses in which the head is a resolver", "count"
    ),
    "of": Column("number of measured pairs of senses", "count"),
}
TABLES = {
    "heads": Table(
        "every head for every pair of senses: separation, effects, attention, rank",
        {
            **as_elsewhere(*KEYS, "layer", "head", *SEPARATION, "direct", "denoise", "noise"),
            **as_elsewhere(
                "swap",
                "swap_low",
                "swap_high",
                "same_sense",
                "added_after",
                *TESTED[:4],
                *ATTENTION[:2],
                "verdict",
            ),
            **as_elsewhere(*RANKS, "net", "net_low", "net_high", *TESTED[5:], "read_depth"),
            **as_elsewhere(*PARTS, "comparison", *WRITES),
        },
        lambda record, data: every_head(record),
    ),
    "verdicts": Table(
        "the verdict on every head, and the numbers that led to it",
        as_elsewhere(*KEYS, "layer", "head", "verdict", *REASONS),
        lambda record, data: every_head(record),
    ),
    "word_heads": Table(
        "every head for every word, mean over its pairs of senses",
        {
            **as_elsewhere("word", "layer", "head", "auroc", *SWAP_COLUMNS, *RANKS, *ATTENTION),
            **as_elsewhere(*PARTS, "comparison", "verdict", "resolves", "of", *WRITES),
        },
        over_senses,
        missing=RANKS,
    ),
    "distances": Table(
        "net effects by the distance from the cue to the word",
        as_elsewhere(*KEYS, "distance", "layer", "head", "net"),
        by_distance,
    ),
    "by_depth": Table(
        "the net effect of every head at every depth after it",
        as_elsewhere(*KEYS, "depth", "layer", "head", "net"),
        by_depth,
    ),
    "mixers": Table(
        "the mixers that replace attention in some layers of a hybrid: effects of their swaps at "
        "the word. Empty for other models.",
        {
            **as_elsewhere(*KEYS, "layer", *MIXERS, "swap_low", "swap_high", "net_low"),
            **as_elsewhere("net_high", "read_depth"),
        },
        of_mixers,
    ),
}
GAP = "fraction of the sense gap"
STREAM = "residual stream"
MORE = {
    "gap_by_pair": Column("G of each pair of sentences, where the heads of a layer are read", GAP),
    "denoise_by_pair": Column("numerator of denoise in each pair of sentences", GAP),
    "noise_by_pair": Column("numerator of noise", GAP),
    "same_sense_by_pair": Column("numerator of same_sense", GAP),
    "direct_by_pair": Column("numerator of direct", GAP),
    "direct_gap_by_pair": Column("G of each pair, where the writes of a layer are read", GAP),
    "net_by_depth": Column("net at every depth; 0 before the head's layer", GAP),
    "moved": Column("net in each pair of sentences, along the axis and as a length", STREAM),
    "moved_by_depth": Column("the same at every depth, mean over the pairs", STREAM),
    "permutations": Column("how many times senses are reassigned, and signs flipped", "count"),
    "null": Column("AUROC with the senses reassigned to cue words; the first is the true one"),
}


# --- the measurement ----------------------------------------------------------------------------


def measure(run: WordRun) -> "dict[str, xr.Dataset]":
    """The swaps and the separation of every head, for each pair of senses by its number, and over
    all pairs of senses with a gap. `sentence_pair layer head depth measure`

    Without a gap, heads are not swapped, unless the word is one of a sample of words; its effects
    are then in units of the residual stream alone.
    """
    swapped = [_swapped(run, each) for each in run.prepared]
    effects = [
        each if run.is_ranked(prepared) else {}
        for prepared, each in zip(run.prepared, swapped, strict=True)
    ]
    separations = _separations(run) if run.options.permutations else []
    tests = _tests(run, separations, effects) if separations else {}
    has_heads = run.weights.has_heads.cpu().numpy()
    results = []
    for number, prepared in enumerate(run.prepared):
        variables = _in_layers(_attention(run, prepared.pairs))
        variables |= _raw(swapped[number])
        if effects[number]:
            variables |= _by_pair(effects[number])
            variables |= _in_layers(
                swap_columns([effects[number]], [prepared.pairs], has_heads)
                | {
                    name: net_where(effects[number]["word"], prepared.pairs.distances, included)
                    for name, included in zip(NEAR_AND_FAR, (_is_near, _is_far), strict=True)
                }
            )
        if separations:
            separation = separations[number]
            variables |= _in_layers({name: getattr(separation, name) for name in SEPARATION})
            variables["null"] = ("permutation layer head", separation.null)
            variables["permutations"] = ("", run.options.permutations)
        if number in tests:
            variables |= _in_layers(_tested_columns(tests[number], prepared, effects[number]))
        results.append(_dataset(variables, prepared.sense.senses))
    both = by_number(results)
    with_gap = [number for number, each in enumerate(effects) if each]
    if with_gap and separations:
        both[ALL] = _over_senses(run, with_gap, results, effects, has_heads)
        mixers = _mixers(run, with_gap, swapped)
        if mixers is not None:
            both[MIXED] = mixers
    return both


def net_where(
    effects: Effects, distances: Sequence[int | None], included: Callable[[int], bool]
) -> Array:
    """The net effect of every head over the pairs of sentences whose distance from cue to word is
    included; NaN if there is no such pair. `layer head`

    included: whether a distance counts

    The unit is the mean gap of these pairs, or the mean gap of all pairs if that is larger. At a
    distance from which a model does not read the cue, the gap is about 0, and a fraction of it
    would be noise divided by noise.
    """
    pairs = [
        n for n, distance in enumerate(distances) if distance is not None and included(distance)
    ]
    if not pairs:
        return np.full(effects["noise"].shape[1:], np.nan)
    # net E = mean[(denoise + noise) / 2 - same_sense] / max(mean gap here, mean gap).
    # `pair layer head`
    both_ways = (effects["denoise"][pairs] + effects["noise"][pairs]) / 2
    numerator = both_ways - effects["same_sense"][pairs]
    gap = np.maximum(effects["gap"][pairs].mean(0), effects["gap"].mean(0))
    return np.asarray(numerator.mean(0) / gap[:, None])


def _is_near(distance: int) -> bool:
    return distance == 1


def _is_far(distance: int) -> bool:
    return distance > 1


Swaps = Mapping[str, Any]  # what `swap_every_head` returns; empty without swaps


def _swapped(run: WordRun, each: Prepared) -> Swaps:
    """The swaps of every head for two senses; empty if there is no gap to explain."""
    # An effect is a fraction of the gap, which has no meaning without a gap. A word that is one of
    # many is still swapped, because shifts in units of the residual stream are compared over words.
    if not run.is_ranked(each) and not run.options.one_of_many:
        return {}
    observation = run.observation
    return swap_every_head(
        run.weights,
        observation.texts,
        observation.states,
        each.sense.axes,
        each.pairs,
        gap=each.gap,
        readout=each.readout,
    )


def swap_every_head(
    weights: Weights,
    texts: Rows,
    states: TargetStates,
    axes: HeldOutAxes,
    pairs: Pairs,
    *,
    gap: Array,
    readout: Readout,
) -> dict[str, Any]:
    """The swaps of every head.

    texts: row by row as in `states`
    states: of the unchanged runs; their z are the donors
    axes: fitted at every stage, by holdout
    gap: G of each pair. `pair stage`
    readout: the stages at which heads are read

    Returns effects (`probe.experiments.swaps`) on the word (`word`), on the prediction of the next
    token and on the logits of known continuations (`next_token`, `continuation`, or None), and of
    the mixers that replace attention in a hybrid, `pair mixer 1` (`mixers`, or None); and

        direct          the numerator of the direct effect, the head's write. `pair layer head`
        direct_gap      G of each pair, where the write is read. `pair layer`
        net_by_depth    net at every depth; 0 before the head's layer, NaN where the pairs have no
                        gap. `layer head depth`
        moved           how far each head moves the word, minus the effect of same-sense donors, in
                        units of the residual stream, at the depth at which the head is read: along
                        the word's axis, and as the length of the change. `pair layer head measure`
        moved_by_depth  the same at every depth, mean over the pairs. `layer head depth measure`
    """
    swap = partial(swap_heads, weights, length=True)
    (raw,), lengths = run_measured(swap, texts, states.z, [axes], pairs)
    shifts = raw.in_gaps(axes, pairs)

    def at_stage(stage: int | None) -> Effects | None:
        """The effects of all heads at one stage."""
        return None if stage is None else effects_at(shifts, gap, [stage] * len(readout.at))

    depths = states.resid.shape[1]
    # net = Σ net / Σ G over pairs, at every depth.
    net = shifts.net[..., :depths].sum(0)  # layer head depth
    whole_gap = gap[:, :depths].sum(0)  # depth
    rows = [*pairs.a, *pairs.b]
    # direct = <write, u / gap> of A minus that of B, at the stage `readout.direct` of the layer.
    directions = axes.directions(rows)[:, list(readout.direct)]
    along_axis = head_contributions(weights, states, rows, directions, readout.direct)
    measured = np.stack([raw.net, lengths.net_length], axis=-1)[..., :depths, :]
    at = np.asarray(readout.at)[None, :, None, None, None]
    return {
        "word": effects_at(shifts, gap, readout.at),
        "next_token": at_stage(readout.next_token),
        "continuation": at_stage(readout.continuation),
        "mixers": _swap_mixers(weights, texts, states, axes, pairs, readout=readout, gap=gap),
        "direct": (along_axis[: len(pairs)] - along_axis[len(pairs) :]).numpy(),
        "direct_gap": gap[:, list(readout.direct)],
        "net_by_depth": np.divide(
            net, whole_gap, out=np.full_like(net, np.nan), where=whole_gap != 0
        ),
        "moved": np.take_along_axis(measured, at, axis=-2)[..., 0, :],
        "moved_by_depth": measured.mean(0),
    }


def _swap_mixers(
    weights: Weights,
    texts: Rows,
    states: TargetStates,
    axes: HeldOutAxes,
    pairs: Pairs,
    *,
    readout: Readout,
    gap: Array,
) -> Effects | None:
    """The effects of swapping the mixers that replace attention, read at the stage of their layer.

    Shape: -> pair mixer 1

    gap: `pair stage`

    None if every layer has attention.
    """
    if states.attn_out is None:
        return None
    swap = partial(swap_mixers, weights)
    shifts = run_swaps(swap, texts, states.attn_out, axes, pairs).in_gaps(axes, pairs)
    # A mixer counts as a layer with a single head.
    of_one_head = Shifts(*(part[:, :, None] for part in shifts))  # pair mixer 1 stage each
    has_heads = weights.has_heads.tolist()
    stages = [at for at, of_heads in zip(readout.at, has_heads, strict=True) if not of_heads]
    return effects_at(of_one_head, gap, stages)


def _attention(run: WordRun, pairs: Pairs) -> dict[str, Array]:
    """Mean attention from the word to its cue (NaN without a cue), to its neighbours and to itself,
    over the sentences of the pairs. `layer head` each
    """
    # A sentence that is in several pairs counts once.
    used = sorted({*pairs.a, *pairs.b})
    to_token = run.observation.states.attention_to(run.observation.material.cues)
    return {
        f"attention_{name}": attention[used].double().nanmean(0).numpy()
        for name, attention in to_token.items()
    }


# --- separation and tests -----------------------------------------------------------------------


def _separations(run: WordRun) -> list[Separation]:
    """The separation of each pair of senses."""
    # Coordinates in the directions that a head can write: d_head numbers instead of d_model, with
    # the same lengths and angles.
    writes = decomposition.write_coordinates(run.observation.states.z, run.weights)
    return [
        measure_separation(
            writes[:, :, list(each.sense.split.rows)],  # layer head row d_head
            each.sense.split,
            permutations=run.options.permutations,
            seed=run.options.seed,
        )
        for each in run.prepared
    ]


def _tests(
    run: WordRun, separations: Sequence[Separation], effects: Sequence[Swaps]
) -> dict[int, Tests]:
    """Corrected tests of the pairs of senses with effects, by number."""
    with_gap = [number for number, each in enumerate(effects) if each]
    if not with_gap:
        return {}

    def net(name: str) -> list[Array | None]:
        found = [effects[number][name] for number in with_gap]
        return [None if each is None else net_by_pair(each) for each in found]

    tests = corrected_tests(
        [separations[number] for number in with_gap],
        {"swap": net("word"), "next_token": net("next_token"), "continuation": net("continuation")},
        [run.prepared[number].pairs.units for number in with_gap],
        permutations=run.options.permutations,
        seed=run.options.seed,
        has_heads=run.weights.has_heads.cpu().numpy(),
    )
    return dict(zip(with_gap, tests, strict=True))


def _tested_columns(tests: Tests, prepared: Prepared, effects: Swaps) -> dict[str, Array]:
    """Corrected p and false discovery rate of separation and swap; and the effects on the next
    token and on continuations, with their p, if the senses have a significant gap in them.
    """
    arrays = {
        "p_auroc": tests.separation.p,
        "q_auroc": tests.separation.q,
        "p_swap": tests.swap.p,
        "q_swap": tests.swap.q,
        "p_opposes": tests.opposes.p,
    }
    for name in ("next_token", "continuation"):
        test = getattr(tests, name)
        # A ratio over a gap that does not exist is noise divided by noise.
        if test is not None and prepared.gates[f"{name}_p"] < GATE:
            arrays |= {name: net_by_pair(effects[name]).mean(0), f"p_{name}": test.p}
    return arrays


# --- means over pairs of sentences and pairs of senses ------------------------------------------


def swap_columns(
    swapped: Sequence[Swaps], groups: Sequence[Pairs], has_heads: Array
) -> dict[str, Array]:
    """SWAP_COLUMNS and RANKS: means over these pairs of senses, with intervals and ranks.

    swap = (denoise + noise) / 2
    added_after = swap - direct
    net = swap - same_sense

    groups: the pairs of sentences of each pair of senses
    """

    def mean(values: Sequence[Array]) -> Array:
        return np.asarray(np.mean(values, axis=0))

    columns = {name: mean([ratio(each["word"], name) for each in swapped]) for name in NUMERATORS}
    columns["direct"] = mean(
        [each["direct"].sum(0) / each["direct_gap"].sum(0)[:, None] for each in swapped]
    )
    columns["swap"] = (columns["denoise"] + columns["noise"]) / 2
    columns["added_after"] = columns["swap"] - columns["direct"]
    net = columns["swap"] - columns["same_sense"]
    columns["net"] = net
    draws_of_pairs = [
        drawn_effects(each["word"], weights)
        | {"direct": resampling.bootstrap_ratio(each["direct"], each["direct_gap"], weights)}
        for each, weights in zip(swapped, bootstrap_each(groups), strict=True)
    ]
    word_units = [of_pair.word_units for of_pair in groups]
    draws = {}
    for name in draws_of_pairs[0]:
        draws[name] = mean([each[name] for each in draws_of_pairs])
        low, high = interval_over_senses(draws[name], columns[name], word_units)
        columns[f"{name}_low"] = low
        columns[f"{name}_high"] = high
    # Some layers of a hybrid have no heads.
    ranked = net[has_heads]
    ranks = resampling.ranks(ranked.ravel()).reshape(ranked.shape)
    ends = resampling.rank_intervals(widen_draws(draws["net"], net, word_units)[:, has_heads])
    for name, numbers in zip(RANKS, (ranks, *ends), strict=True):
        columns[name] = np.full(net.shape, np.nan)
        columns[name][has_heads] = numbers
    return {name: columns[name] for name in (*SWAP_COLUMNS, *RANKS)}


def _over_senses(
    run: WordRun,
    with_gap: Sequence[int],
    results: "Sequence[xr.Dataset]",
    effects: Sequence[Swaps],
    has_heads: Array,
) -> "xr.Dataset":
    """The columns of heads, means over the pairs of senses with a gap."""
    columns = swap_columns(
        [effects[number] for number in with_gap],
        [run.prepared[number].pairs for number in with_gap],
        has_heads,
    )
    for name in ("auroc", *ATTENTION):
        columns[name] = np.mean([results[number][name].values for number in with_gap], axis=0)
    return _dataset(_in_layers(columns))


def _mixers(run: WordRun, with_gap: Sequence[int], swapped: Sequence[Swaps]) -> "xr.Dataset | None":
    """The rows of the table `mixers`; None if every layer has heads."""
    parts = []
    layers = np.flatnonzero(~run.weights.has_heads.cpu().numpy())
    for number in with_gap:
        effects = swapped[number]["mixers"]
        if effects is None:
            return None
        prepared = run.prepared[number]
        draws = drawn_effects(effects, prepared.pairs.bootstrap())
        units = len(set(prepared.pairs.units))
        values = {name: ratio(effects, name) for name in NUMERATORS}
        values["swap"] = swap_effect(effects)
        values["net"] = values["swap"] - values["same_sense"]
        columns: dict[str, Any] = dict(zip(KEYS[1:], prepared.sense.senses, strict=True))
        columns["layer"] = layers
        # A mixer is swapped as a whole, so the head axis has a single entry.
        for name in MIXERS:
            columns[name] = values[name][:, 0]
            if name in draws:
                low, high = resampling.interval(draws[name], values[name], units=units)
                columns |= {f"{name}_low": low[:, 0], f"{name}_high": high[:, 0]}
        columns["read_depth"] = [prepared.readout.at[layer] for layer in layers]
        parts.append(pd.DataFrame(columns))
    return listed(TABLES, pd.concat(parts, ignore_index=True), "row")


# --- variables of the datasets ------------------------------------------------------------------


def _in_layers(arrays: Mapping[str, Array]) -> dict[str, tuple[str, Any]]:
    return {name: ("layer head", values) for name, values in arrays.items()}


def _raw(swapped: Swaps) -> dict[str, tuple[str, Any]]:
    """What has a meaning without a gap, too."""
    if not swapped:
        return {}
    return {
        "moved": ("sentence_pair layer head measure", swapped["moved"]),
        "moved_by_depth": ("layer head depth measure", swapped["moved_by_depth"]),
    }


def _by_pair(effects: Swaps) -> dict[str, tuple[str, Any]]:
    """The effects in each pair of sentences, and at each depth."""
    by_head = {f"{name}_by_pair": effects["word"][name] for name in NUMERATORS}
    by_head["direct_by_pair"] = effects["direct"]
    by_layer = {"gap_by_pair": effects["word"]["gap"], "direct_gap_by_pair": effects["direct_gap"]}
    variables: dict[str, tuple[str, Any]] = {
        name: ("sentence_pair layer head", values) for name, values in by_head.items()
    }
    variables |= {name: ("sentence_pair layer", values) for name, values in by_layer.items()}
    return {**variables, "net_by_depth": ("layer head depth", effects["net_by_depth"])}


def _dataset(variables: Mapping[str, tuple[str, Any]], senses: Sequence[str] = ()) -> "xr.Dataset":
    coordinates = {name: ("", sense) for name, sense in zip(KEYS[1:], senses)}
    return dataset(TABLES, variables, coordinates=coordinates, more=MORE | COLUMNS)
