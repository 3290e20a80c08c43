"""The cost of waiting threads, alone and next to one busy process: `PYTHONPATH=analyses python -m timing.waiting`.

A thread of torch that waits for another thread spins, by default for milliseconds, on a processor
that others may need, including the thread that it waits for. Head swaps on random weights run for
some seconds in a separate process under every setting, in turns, so that a slow minute of the
machine affects all of them. The median of the rounds is reported. "alone" means nothing on a
machine with other work: every line reports the load.
"""

import argparse
import os
import subprocess
import sys
import time
from statistics import median

from probe.cli import WAITING

# By name: the environment variables that are set before torch is loaded.
SETTINGS: dict[str, dict[str, str]] = {
    "torch's own": {},
    "as the command line": WAITING,
    "asleep at once": {"OMP_WAIT_POLICY": "PASSIVE"},
    "one thread": {"OMP_NUM_THREADS": "1"},
}
VARIABLES = {name for setting in SETTINGS.values() for name in setting}
BUSY = "while True: pass"


def swaps_per_second(shape: str, seconds: float) -> float:
    """Swapped runs per second of every head of two pairs, in both directions, at a word after a dozen tokens."""
    import torch

    from probe.model.load import read_weights
    from probe.patching.heads import swap_pairs
    from timing.work import aligned_pairs, shaped

    model = shaped(shape)
    weights = read_weights(model)
    layers, heads, d_model, _ = weights.shape
    a, b = aligned_pairs(model, 2, 13)
    direction = torch.full((1, d_model), d_model**-0.5)
    swap_pairs(weights, a, b, direction, depth=layers)  # loads what is loaded at first use
    rounds = 0
    started = time.monotonic()
    while (elapsed := time.monotonic() - started) < seconds:
        swap_pairs(weights, a, b, direction, depth=layers)
        rounds += 1
    return 4 * layers * heads * rounds / elapsed


def measure(setting: dict[str, str], shape: str, seconds: float) -> float:
    """`swaps_per_second` in a separate process under a setting."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    command = [sys.executable, "-m", "timing.waiting", "--shape", shape]
    process = subprocess.run(
        [*command, "--child", str(seconds)],
        env=environment | setting,
        capture_output=True,
        text=True,
        check=True,
    )
    return float(process.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", default="llama-135m")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--where", choices=("alone", "next to a loop", "both"), default="both")
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(swaps_per_second(options.shape, options.child))
        return
    for where in ("alone", "next to a loop"):
        if options.where not in (where, "both"):
            continue
        loop = None
        if where == "next to a loop":
            loop = subprocess.Popen([sys.executable, "-c", BUSY])
        try:
            rates_by_name: dict[str, list[float]] = {name: [] for name in SETTINGS}
            for _ in range(options.rounds):
                for name, setting in SETTINGS.items():
                    rates_by_name[name].append(measure(setting, options.shape, options.seconds))
        finally:
            if loop is not None:
                loop.kill()
                loop.wait()
        for name, rates in rates_by_name.items():
            spread = f"{min(rates):,.0f} to {max(rates):,.0f}"
            load = f"load {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors"
            print(f"{where}, {name}: {median(rates):,.0f} swaps per second ({spread}); {load}")


if __name__ == "__main__":
    main()
