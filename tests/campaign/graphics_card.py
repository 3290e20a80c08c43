"""The same numbers on a graphics card: `make campaign`, or `PYTHONPATH=tests python
tests/campaign/graphics_card.py --out reports`. If torch finds no card, it reports that and measures
nothing.

For every family of the table its model with random weights is moved to the card, and

    rows, held        the rows of its certificate there, and how many hold
    largest           the largest difference in them, relative to the scale of the compared numbers
    from_cpu          the largest difference between its tensors in a trace there and on the
                      processor, relative to the scale of the tensor

For each embedded model a study of "bank" runs on both, and `alike` states whether every head has
the same verdict and, as a resolver, the same rank. All results are written to `graphics_card.csv`.
The exit status is 1 if a row fails or a verdict differs.
"""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd
import torch
from campaign.any_processor import REPORTED, ROOT, verdicts
from families import HYBRIDS, KINDS, PAIRED, make_family

import probe

TEXT = "The boat left the river bank"
TARGET = "He opened a bank account"
STACKS = ("encoder", "decoder", "cross")
TENSORS = ("q", "k", "v", "pattern", "z", "attn_out")
CUDA = "cuda"


def measured() -> Iterator[dict[str, object]]:
    """The findings for each model, the families first."""
    with TemporaryDirectory() as folder:
        for kind in (*KINDS, *HYBRIDS):
            path = make_family(Path(folder) / kind, kind)
            model = probe.load(path, device=CUDA)
            texts = [TEXT, TARGET] if kind in PAIRED else [TEXT]
            rows = probe.certify(model, texts[:1]).rows
            yield {
                "model": kind,
                "rows": len(rows),
                "held": sum(row.ok for row in rows),
                "largest": f"{max(row.error for row in rows):.0e}",
                "from_cpu": f"{from_cpu(model, probe.load(path), texts):.0e}",
            }
    for name in REPORTED:
        results = [list(verdicts(heads_of(name, device))) for device in (CUDA, "cpu")]
        yield {"model": f"{name}: bank", "alike": results[0] == results[1]}


def from_cpu(there: probe.Model, here: probe.Model, texts: list[str]) -> float:
    """The largest difference between the tensors of one trace on both, relative to the scale of
    each."""
    pair = [probe.trace(model, *texts) for model in (there, here)]
    traces = [pair]
    if len(texts) == 2:
        traces = [[getattr(trace, stack) for trace in pair] for stack in STACKS]
    return max(
        float(
            (getattr(a, name).cpu() - getattr(b, name)).abs().max() / getattr(b, name).abs().max()
        )
        for a, b in traces
        for name in TENSORS
    )


def heads_of(name: str, device: str) -> pd.DataFrame:
    return probe.study(probe.load(name, device=device), "bank").frames["heads"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports")
    out = parser.parse_args().out
    if not torch.cuda.is_available():
        print("torch finds no graphics card here: nothing was measured, and nothing written")
        return 0
    frame = pd.DataFrame(measured())
    frame.insert(0, "card", f"{torch.cuda.get_device_name(0)}, torch {torch.__version__}")
    frame = frame.astype({"rows": "Int64", "held": "Int64"})
    out.mkdir(parents=True, exist_ok=True)
    frame.to_csv(out / "graphics_card.csv", index=False)
    print(frame.to_string())
    short = frame["rows"] != frame["held"]
    return int(short.any() or not frame["alike"].dropna().all())


if __name__ == "__main__":
    sys.exit(main())
