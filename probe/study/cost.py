"""The cost of a study, said before the work: forward passes, swaps, memory; and a refusal where memory is short.

Forwards and swaps are upper bounds: where the gap between two senses is not there nothing is swapped, and a read-out
below the last block leaves out the heads above it. Memory is what is held now and what will come on top: every word's
states, an untrained model of the same shape, and the largest single step.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

from probe.errors import InputError
from probe.model.architectures import FAMILIES
from probe.model.model import Model
from probe.patching import routes
from probe.patching import sets as head_sets
from probe.patching.swaps import NUMBERS
from probe.study.material import Material
from probe.study.word import CURVE_PAIRS, StudyOptions
from probe.text import splits
from probe.text.splits import FIT, PARTS, REPORT, SELECT

UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
FRAMES = 150 * 10**6  # tables, permutations and the page
LIVE = 4  # tensors as wide as the MLP's activations that are held at once
STATUS, SYSTEM = Path("/proc/self/status"), Path("/proc/meminfo")


@dataclass(frozen=True)
class StudyCost:
    """The most a study of these words takes; `held` and `extra` in bytes, `held` 0 where the system does not tell."""

    words: tuple[str, ...]
    forwards: int
    swaps: int
    held: int
    extra: int

    def __str__(self) -> str:
        return (
            f"{', '.join(self.words)}: at most {self.forwards:,} forward passes and {self.swaps:,} swaps, "
            f"about {_amount(self.held + self.extra)} of memory."
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
    model: Model, materials: Sequence[Material], options: StudyOptions, *, beside: Sequence[tuple[Model, Material]] = ()
) -> StudyCost:
    """The cost of a study of these words; deals out their sentences as the study will, and runs nothing.

    `beside`: a second model with the sentences of each word that its axes are fitted on.
    """
    c = model.config
    heads = c.n_layers * c.n_heads
    rows = {material.word: splits.split(material.sentences, seed=options.seed) for material in materials}
    used = [sum(len(split.rows(part)) for part in PARTS) for split in rows.values()]
    compared = [len(split.rows(FIT)) + len(split.rows(REPORT)) for split in rows.values()]
    held_beside = max((_state(other, [late]) * len(late.sentences) for other, late in beside), default=0)
    size = next(iter(model.weights.values())).element_size()
    weights = sum(tensor.numel() * size for tensor in model.weights.values())
    untrained = weights + 3 * size * c.n_layers * c.d_model**2  # its bridge holds queries, keys and values apart
    certificate = 2 * 8 * model.weights[FAMILIES[c.architecture].embed + ".weight"].numel()
    return StudyCost(
        words=tuple(rows),
        forwards=sum(used) + 2 * sum(compared) + 3 * len(materials) + sum(len(late.sentences) for _, late in beside),
        swaps=sum(_swaps(material, rows[material.word], heads, options) for material in materials),
        held=resident() or 0,
        extra=_state(model, materials) * (sum(used) + max(compared))
        + max(certificate, untrained, held_beside)
        + size * LIVE * NUMBERS
        + FRAMES,
    )


def _state(model: Model, materials: Sequence[Material]) -> int:
    """Bytes of what is kept of one sentence, of a word read in a text as long as the longest."""
    c, width = model.config, max(max(map(len, material.tokens)) for material in materials)
    size = next(iter(model.weights.values())).element_size()
    return size * (c.n_layers * (6 * c.d_model + c.n_heads * width) + 3 * c.d_model)


def _swaps(material: Material, split: splits.Split, heads: int, options: StudyOptions) -> int:
    """Swapped runs of one word: four donors a pair of sentences, three routes, every head alone, sets of the curve."""

    def pairs(part: str, senses: tuple[str, str]) -> int:
        labels = [material.labels[row] for row in split.rows(part)]
        return min(options.max_pairs, *(labels.count(sense) for sense in senses))

    swaps = 0
    for senses in combinations(sorted(set(material.labels)), 2):
        report, select = (pairs(part, senses) for part in (REPORT, SELECT))
        swaps += heads * (
            4 * (report + select) + 6 * min(report, routes.MOST_PAIRS) + 2 * min(report, head_sets.MOST_PAIRS)
        )
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
