"""The cost of a study, said before the work: forward passes, swaps, memory; and a refusal where memory is short.

Forwards and swaps are upper bounds: where the gap between two senses is not there nothing is swapped, and a read-out
below the last block leaves out the heads above it. Memory is what is held now and what will come on top: every word's
states, an untrained model of the same shape, and the largest single step.
"""

import os
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import thread_time

import numpy as np
import torch

from probe.errors import InputError
from probe.model.architectures import FAMILIES
from probe.model.model import Model
from probe.model.trace import target_states
from probe.model.weights import read_weights
from probe.patching import routes
from probe.patching import sets as head_sets
from probe.patching.paths import EDGE
from probe.patching.swaps import NUMBERS, swap_heads
from probe.stats.axes import sense_pairs
from probe.stats.numbers import counted
from probe.stats.resampling import smallest_p
from probe.stats.verdicts import LEVEL
from probe.study import ways
from probe.study.material import Material, unused
from probe.study.word import CURVE_PAIRS, JOINT_HEADS, JOINT_PAIRS, StudyOptions
from probe.text.splits import CrossFit, cross_fit

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FEW = 50  # sentences per sense: with fewer, a result is called exploratory
FEW_CUES = 12  # pairs of cue words: with fewer, no p of a swap comes below 2^-12 however clear the effect
FRAMES = 150 * 10**6  # tables, permutations and the page
READ, SWAPPED = 16, 512  # sentences read and swaps run to see how long a study will take
LIVE = 4  # tensors as wide as the MLP's activations that are held at once
STATUS, SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")


@dataclass(frozen=True)
class StudyCost:
    """The most a study of these words takes; `held` and `extra` in bytes, `held` 0 where the system does not tell.

    `seconds`: processor time as a study usually goes, from a measured batch of forwards and of swaps · `enough`: what
    the sentences of each pair of senses are enough for.
    """

    words: tuple[str, ...]
    forwards: int
    swaps: int
    held: int
    extra: int
    seconds: float | None = None
    enough: tuple[str, ...] = ()

    def __str__(self) -> str:
        minutes = "" if self.seconds is None else f"about {max(1, round(self.seconds / 60))} min on this machine, "
        return (
            f"{', '.join(self.words)}: at most {self.forwards:,} forward passes and {self.swaps:,} swaps, "
            f"{minutes}about {_amount(self.held + self.extra)} of memory."
        )

    def require(self, limit: int | None = None) -> "StudyCost":
        """Itself; raises InputError when it needs more memory than is free, or more in all than `limit` bytes."""
        free = available()
        if limit is not None and self.held + self.extra > limit:
            needs, there = self.held + self.extra, f"--max-memory allows {_amount(limit)}; allow more"
        elif free is not None and self.extra > free:
            needs, there = self.extra, f"{_amount(free)} are free; close other programs"
        else:
            return self
        raise InputError(
            f"Planning the study of {', '.join(self.words)}: it would take about {_amount(needs)} of memory and "
            f"{there}, or take fewer words, fewer sentences or a smaller model."
        )


def plan(
    model: Model,
    materials: Sequence[Material],
    options: StudyOptions,
    *,
    second: Sequence[tuple[Model, Material]] = (),
    timed: bool = False,
) -> StudyCost:
    """The cost of a study of these words; deals out their sentences as the study will.

    `second`: a second model with the sentences of each word that its axes are fitted on · `timed`: with the seconds,
    for which a few sentences are run.
    """
    c = model.config
    heads = c.n_layers * c.n_heads
    parted = {
        material.word: [cross_fit(material.sentences, pair, seed=options.seed) for pair in sense_pairs(material.labels)]
        for material in materials
    }
    used = [len(material.sentences) for material in materials]
    held_by_second = max((_state(other, [late]) * len(late.sentences) for other, late in second), default=0)
    size = next(iter(model.weights.values())).element_size()
    weights = sum(tensor.numel() * size for tensor in model.weights.values())
    untrained = weights + 3 * size * c.n_layers * c.d_model**2  # its bridge holds queries, keys and values apart
    certificate = 2 * 8 * model.weights[FAMILIES[c.architecture].embed + ".weight"].numel()
    forwards = 3 * sum(used) + 3 * len(materials) + sum(len(late.sentences) for _, late in second)
    swaps = sum(_swaps(splits, heads, options) for splits in parted.values())
    usual = swaps + sum(_usual_ways(model, material) for material in materials)
    edges = [_edges(model, material) for material in materials]
    swaps += sum(ways.most_runs(c.n_layers, c.n_heads, *counts) for counts in edges if counts[1])
    return StudyCost(
        words=tuple(parted),
        forwards=forwards,
        swaps=swaps,
        held=resident() or 0,
        extra=_state(model, materials) * (sum(used) + max(used))
        + max(certificate, untrained, held_by_second)
        + size * LIVE * NUMBERS
        + max(count for _, count in edges) * (EDGE.itemsize + 8 * size * ways.PAIRS)
        + FRAMES,
        seconds=_seconds(model, max(materials, key=len), forwards, usual) if timed else None,
        enough=tuple(
            _enough(material.word, pair, split, options.permutations)
            for material in materials
            for pair, split in zip(sense_pairs(material.labels), parted[material.word], strict=True)
        )
        + tuple(line for material in materials for line in _left_out(material, parted[material.word])),
    )


def _state(model: Model, materials: Sequence[Material]) -> int:
    """Bytes of what is kept of one sentence, of a word read in a text as long as the longest."""
    c, width = model.config, max(max(map(len, material.tokens)) for material in materials)
    size = next(iter(model.weights.values())).element_size()
    return size * (c.n_layers * (6 * c.d_model + c.n_heads * width) + 3 * c.d_model)


def _apart(material: Material) -> list[int]:
    """Tokens from the beginning of the cue to the word, of the sentences whose cue stands before it."""
    return [at - cue[0] for at, cue in zip(material.targets, material.cues, strict=True) if cue and cue[0] < at]


def _edges(model: Model, material: Material) -> tuple[int, int]:
    """The most positions from the cue to the word, and how many edges lie between; none in an encoder."""
    positions, c = 1 + max(_apart(material), default=max(material.targets)), model.config
    edges = ways.count_edges(c.n_layers, c.n_heads, positions) if c.causal else 0
    return positions, min(edges, ways.MOST_EDGES)


def _usual_ways(model: Model, material: Material) -> int:
    """Partial forwards of a word's traces when it is read halfway up and its cue is as far away as in the mean.

    Without the totals of edges: how many could reach enough is seen in the traces only, and seldom many.
    """
    c = model.config
    positions = 1 + round(float(np.mean(_apart(material) or material.targets)))
    return ways.most_runs(max(1, c.n_layers // 2), c.n_heads, positions, 0) if c.causal else 0


def _seconds(model: Model, material: Material, forwards: int, swaps: int) -> float:
    """How long so many forwards and swaps take, from a few of each, in batches as a study runs them.

    A sentence that is read alone takes several times as long as one of a batch. Processor seconds of one thread, shared
    out to all that torch uses: by the clock, and with several threads, a busy machine would make it far too long.
    """
    heads = model.config.n_layers * model.config.n_heads
    order = sorted(range(len(material)), key=material.targets.__getitem__)
    rows = [order[place * len(order) // READ] for place in range(READ)]
    weights, zero = read_weights(model), torch.zeros(1, model.config.d_model)
    tokens, targets = [material.tokens[row] for row in rows], [material.targets[row] for row in rows]
    few = min(READ, max(1, SWAPPED // heads))
    middle = slice((READ - few) // 2, (READ + few) // 2)
    texts = [material.placed[row] for row in rows[middle]]
    read, swapped, threads = [], [], torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for _ in range(2):  # the first run also loads and allocates
            started = thread_time()
            states = target_states(model, tokens, targets)
            read.append((thread_time() - started) / len(rows))
            started = thread_time()
            swap_heads(weights, texts, states.z[middle], zero)
            swapped.append((thread_time() - started) / (len(texts) * heads))
    finally:
        torch.set_num_threads(threads)
    return (forwards * min(read) + swaps * min(swapped)) / threads


def _enough(word: str, pair: tuple[str, str], split: CrossFit, permutations: int) -> str:
    """What the sentences of two senses are enough for: the pairs of cue words, and the smallest p they can give."""
    units, per_sense = len(set(split.units)), [sum(split.is_a), len(split.rows) - sum(split.is_a)]
    least = smallest_p(units, draws=permutations)
    if least >= LEVEL:
        what = f"no test can come below p = {least:.2g}: give more different cue words"
    elif min(per_sense) < FEW or units < FEW_CUES:
        what = f"exploratory; for a firmer answer give {FEW} sentences per sense with {FEW_CUES} different cue words"
    else:
        what = "enough for tests corrected for every head"
    return (
        f"{word}, {pair[0]} / {pair[1]}: {per_sense[0]} and {per_sense[1]} sentences in {len(split.pairs)} pairs with "
        f"{units} pairs of cue words; {what}."
    )


def _left_out(material: Material, splits: Sequence[CrossFit]) -> list[str]:
    """How many sentences of a word will not be used, by the reason."""
    reasons = Counter(item.reason for item in unused(material, splits))
    return [f"{material.word}: {counted(number, 'sentence')} left out: {reason}." for reason, number in reasons.items()]


def _swaps(parted: Sequence[CrossFit], heads: int, options: StudyOptions) -> int:
    """Swapped runs of one word: four donors a pair of sentences, five routes, stand-ins, sets of the curve."""
    swaps = 0
    for split in parted:
        pairs = min(options.max_pairs, len(split.pairs))
        routed, joint = min(pairs, routes.MOST_PAIRS), min(pairs, JOINT_PAIRS)
        swaps += heads * (4 * pairs + 2 * JOINT_HEADS * joint)
        swaps += min(heads, routes.MOST_HEADS) * 2 * len(routes.KINDS) * routed
    sets = 2 * len(head_sets.curve_sizes(heads)) + head_sets.SIZES * head_sets.RANDOM_SETS
    return swaps + 2 * CURVE_PAIRS * sets


def parse_memory(text: str) -> int:
    """Bytes from "4GB", "500 MB" or a plain number of bytes; raises InputError for anything else."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?\s*", text, re.IGNORECASE)
    if not match or float(match[1]) == 0:
        raise InputError(
            f"Reading --max-memory: got {text!r}, expected an amount of memory; give one such as 4GB or 500MB."
        )
    return int(float(match[1]) * UNITS[match[2].lower()])


def resident() -> int | None:
    """Bytes that this process holds, None where the system does not tell."""
    return _read(STATUS, "VmRSS")


def available() -> int | None:
    """Bytes that can be had without swapping, None where the system does not tell."""
    return _read(SYSTEM, "MemAvailable")


def _read(table: Path, name: str) -> int | None:
    """An amount in kB from one of Linux's tables, in bytes."""
    if not os.access(table, os.R_OK):
        return None
    match = re.search(rf"^{name}:\s+(\d+) kB$", table.read_text(encoding="ascii"), re.MULTILINE)
    return int(match[1]) * 1024 if match else None


def _amount(amount: int) -> str:
    return f"{amount / 1e9:.1f} GB" if amount >= 10**8 else f"{amount / 1e6:.0f} MB"
