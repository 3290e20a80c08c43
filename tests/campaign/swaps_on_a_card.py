"""Head swaps on a graphics card: `make campaign`, or `PYTHONPATH=tests:analyses python
tests/campaign/swaps_on_a_card.py --out reports`. Without a card, `--device cpu --quick` runs a tiny
model, to check that the script works.

A row of `swaps_on_a_card.csv` is a shape (random weights) in one number type:

    pairs, length              pairs of texts, and tokens in each text
    seconds                    all heads swapped in both directions, median of RUNS runs
    swaps_per_second           pairs x 2 x heads / seconds
    loop_per_second            one hooked forward per head with TransformerLens, over a sample
    times_faster               the ratio of the two, in the same turns: median, lowest, highest
    bare_forwards              seconds, in bare Hugging Face forwards of both members
    difference                 largest difference between the swaps and the loop, of the largest swap
                               (bfloat16 keeps 8 bits of the residual stream, and a swap of random
                               weights moves it by little: rounding removes most of it either way)

With `--model` the complete command `probe report bank` runs on the card and on the processor of the
same machine; the last rows have the seconds of both.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from subprocess import run
from tempfile import TemporaryDirectory

import pandas as pd
import timing
import torch

import probe

ROOT = Path(__file__).parent.parent.parent
TABLE = "swaps_on_a_card.csv"
RUNS, PAIRS, LENGTH = 5, 32, 24
SHAPES = ("gpt2-small", "llama-1b")
TYPES = (torch.float32, torch.bfloat16)


def swaps(shape: str, dtype: torch.dtype, device: str, *, pairs: int) -> dict[str, object]:
    """The row of one shape in one number type."""
    model = timing.shaped(shape, device=device, dtype=dtype)
    weights, plain = probe.read_weights(model), timing.plain_model(model)
    layers, heads, d_model, _ = weights.shape
    a, b = timing.aligned_pairs(model, pairs, LENGTH)
    direction = torch.full((d_model,), d_model**-0.5, device=device, dtype=dtype)
    sample = [(layer, layer % heads) for layer in range(0, layers, 3)]
    all_swaps = partial(probe.swap_pairs, weights, a, b, direction[None], depth=layers)
    loop = partial(timing.loop_over_heads, model, (a, b), direction, sample)
    works = {
        "swaps": all_swaps,
        "loop": loop,
        "forward": partial(timing.bare_forward, plain, [*a, *b], batch=2 * pairs),
    }
    timings = timing.interleave(works, runs=RUNS)
    count = 2 * layers * heads
    faster = timing.compare(timings, "loop", "swaps", times=(2 * len(sample) + 2) / (count + 2))
    exact, looped = all_swaps()[..., 0].float().cpu(), loop().float().cpu()
    sampled = exact[:, :, *zip(*sample, strict=True)]
    return {
        "shape": shape,
        "dtype": str(dtype).removeprefix("torch."),
        "pairs": pairs,
        "length": LENGTH,
        "seconds": faster["against_seconds"] * (count + 2) / (2 * len(sample) + 2),
        "swaps_per_second": pairs * count / timings_of(timings, "swaps"),
        "loop_per_second": pairs * 2 * len(sample) / timings_of(timings, "loop"),
        "times_faster": faster["ratio"],
        "times_faster_low": faster["ratio_low"],
        "times_faster_high": faster["ratio_high"],
        "bare_forwards": timing.compare(timings, "swaps", "forward")["ratio"],
        "difference": float((sampled - looped).abs().max() / exact.abs().max()),
    }


def measured(
    shapes: Sequence[str], device: str, pairs: int, model: str | None
) -> Iterator[dict[str, object]]:
    """The rows of the table, one after the other."""
    for shape in shapes:
        for dtype in TYPES:
            yield swaps(shape, dtype, device, pairs=pairs)
    if model:
        yield from reports(model, device)


def timings_of(timings: pd.DataFrame, work: str) -> float:
    """Median seconds of one work."""
    return float(timings.loc[timings["work"] == work, "seconds"].median())


def reports(model: str, device: str) -> Iterator[dict[str, object]]:
    """Seconds of `probe report bank` on the card, then on the processor of the same machine."""
    for name in dict.fromkeys((device, "cpu")):
        with TemporaryDirectory() as out:
            command = ["report", "bank", "--model", model, "--device", name, "--out", out]
            start = time.perf_counter()
            run([sys.executable, "-m", "probe", *command], check=True)
            yield {
                "shape": f"probe report bank --model {Path(model).stem} --device {name}",
                "dtype": "float32",
                "seconds": time.perf_counter() - start,
            }


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--model", help="a trained model for the complete report")
    parser.add_argument("--quick", action="store_true", help="a tiny shape and two pairs")
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        print("torch finds no graphics card here: nothing was measured, and nothing written")
        return 0
    shapes, pairs = (("tiny",), 2) if options.quick else (SHAPES, PAIRS)
    card = torch.cuda.get_device_name(0) if options.device == "cuda" else options.device
    options.out.mkdir(parents=True, exist_ok=True)
    rows: list[dict[str, object]] = []
    for row in measured(shapes, options.device, pairs, options.model):
        rows.append({"device": f"{card}, torch {torch.__version__}"} | row)
        # Written after each row, so that an interrupted run keeps its measurements.
        pd.DataFrame(rows).to_csv(options.out / TABLE, index=False, float_format="%.4g")
    print(pd.DataFrame(rows).to_string())
    return 0


if __name__ == "__main__":
    sys.exit(main())
