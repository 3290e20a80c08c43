"""Timing: works take turns, so that a slow minute of the machine affects all of them, and ratios are computed turn by
turn.
"""

import ctypes
import gc
import os
import platform
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from scipy.optimize import nnls

from probe.provenance import versions

Work = Callable[[], object]
STATUS, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
MEBI = 2**20
LEAST_SQUARE = 1e-6  # a smaller share of the square term is rounding


def interleave(works: Mapping[str, Work], *, runs: int, warm: bool = True) -> pd.DataFrame:
    """Run the works in turn, `runs` times each, after one turn that is not counted. `work run seconds`"""
    for work in works.values() if warm else ():
        work()
    rows = [(name, run, _seconds(work)) for run in range(runs) for name, work in works.items()]
    return pd.DataFrame(rows, columns=["work", "run", "seconds"])


def _seconds(work: Work) -> float:
    start = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - start


def compare(
    timings: pd.DataFrame, work: str, against: str, *, times: float = 1.0
) -> dict[str, float]:
    """Seconds of `work`, of `times` runs of `against`, and their ratio in the same turn: median, lowest and highest."""
    seconds = timings.pivot(index="run", columns="work", values="seconds")
    columns = {"seconds": seconds[work], "against_seconds": seconds[against] * times}
    columns["ratio"] = columns["seconds"] / columns["against_seconds"]
    return {
        name + ending: float(getattr(values, how)())
        for name, values in columns.items()
        for ending, how in (("", "median"), ("_low", "min"), ("_high", "max"))
    }


def single_value(value: float) -> dict[str, float]:
    """A single value in the columns of `compare`."""
    return {"ratio": value, "ratio_low": value, "ratio_high": value}


def extra_memory(work: Work) -> tuple[float, float]:
    """The largest extra memory of `work` in MiB, and its time in seconds. The memory is NaN if it cannot be measured.

    The memory is the resident set of this process. Linux allows us to reset its maximum. Freed memory is returned to the
    system before.
    """
    gc.collect()
    if not RESET.exists():
        return float("nan"), _seconds(work)
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    RESET.write_text("5", encoding="ascii")
    before = _mebibytes("VmRSS")
    seconds = _seconds(work)
    return max(0.0, _mebibytes("VmHWM") - before), seconds


def _mebibytes(name: str) -> float:
    """An amount of memory in STATUS, in MiB."""
    (line,) = (
        line for line in STATUS.read_text(encoding="ascii").splitlines() if line.startswith(name)
    )
    return int(line.split()[1]) * 1024 / MEBI


def exponent(sizes: Sequence[float], values: Sequence[float]) -> float:
    """The slope of log value over log size by least squares: 1 is linear."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def square_part(sizes: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """The share of c n² in value = a + b n + c n² at the largest n, and the n at which the share is a tenth.

    a, b and c are fitted by relative least squares, with none negative. The second number is infinite without a square
    term.
    """
    n, y = np.asarray(sizes, float), np.asarray(values, float)
    terms = np.stack([np.ones_like(n), n, n**2], axis=1)
    (a, b, c), _ = nnls(terms / y[:, None], np.ones_like(y))
    last = n[-1]
    if c * last**2 < LEAST_SQUARE * (a + b * last):
        return 0.0, float("inf")
    tenth = (b + np.sqrt(b**2 + 36 * a * c)) / (18 * c)  # 9 c n² = a + b n
    return float(c * last**2 / (a + b * last + c * last**2)), float(tenth)


def exponents(scaling: pd.DataFrame) -> pd.DataFrame:
    """The growth of time and memory with each axis. `shape axis quantity exponent square_share square_from`

    See `square_part` for the last two columns.
    """
    rows = []
    for (shape, axis), part in scaling.groupby(["shape", "axis"], sort=False):
        for quantity in ("seconds", "megabytes"):
            positive = part[part[quantity] > 0]
            if len(positive) > 1:
                size, value = positive["size"].tolist(), positive[quantity].tolist()
                rows.append(
                    (shape, axis, quantity, exponent(size, value), *square_part(size, value))
                )
    return pd.DataFrame(
        rows, columns=["shape", "axis", "quantity", "exponent", "square_share", "square_from"]
    )


def machine() -> dict[str, str]:
    """The machine: processor, cores, threads, memory, accelerator, versions."""
    cards = [torch.cuda.get_device_name(card) for card in range(torch.cuda.device_count())]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    hardware = {
        "processor": f"{_processor()}, {platform.machine()}, {torch.backends.cpu.get_cpu_capability()}",
        "cores": f"{os.cpu_count()}, torch uses {torch.get_num_threads()} threads",
        "memory": f"{memory:.0f} GiB",
        "accelerator": ", ".join(cards) or "none",
    }
    return hardware | {
        name: number
        for name, number in versions().items()
        if name in ("python", "torch", "transformers", "transformer-lens", "probe")
    }


def _processor() -> str:
    listed = Path("/proc/cpuinfo")
    lines = listed.read_text(encoding="utf-8").splitlines() if listed.exists() else []
    return next(
        (line.split(":")[1].strip() for line in lines if line.startswith("model name")),
        platform.processor(),
    )
