"""The same findings on any processor: `make campaign`, or `python tests/campaign/any_processor.py
--out reports`.

Sums of floating-point numbers depend on their order, which depends on the instructions of a
processor and on the number of threads. Torch, MKL, oneDNN, OpenBLAS and numpy are limited to three
sets of instructions, with one thread and with two. Under each of the six settings run

    the numeric tests     the formulas, the exact swaps and the statistics
    probe check           of every embedded model: do all rows of its certificate hold?
    probe report          of both embedded models with one stack: every verdict, and the ranks of
                          the resolvers
    the swaps of rive     of the embedded translator: where the choice is read, and by which heads,
                          the largest first

The table `any_processor.csv` lists the findings (setting, what, result). The exit status is 1 if two
settings differ. A processor without the instructions of a setting uses the best that it has: the
rows `instructions` record what torch used.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

ROOT = Path(__file__).parent.parent.parent
COLUMNS = ("setting", "what", "result")
LIBRARIES = (
    "ATEN_CPU_CAPABILITY",
    "MKL_CBWR",
    "ONEDNN_MAX_CPU_ISA",
    "OPENBLAS_CORETYPE",
    "NPY_DISABLE_CPU_FEATURES",
)
INSTRUCTIONS = {
    "default": dict(
        zip(LIBRARIES, ("default", "COMPATIBLE", "SSE41", "Nehalem", "X86_V3 X86_V4"), strict=True)
    ),
    "avx2": dict(zip(LIBRARIES, ("avx2", "AVX2", "AVX2", "Haswell", "X86_V4"), strict=True)),
    "avx512": {"ATEN_CPU_CAPABILITY": "avx512"},
}
THREADS = (1, 2)
# A waiting thread yields its core: on a busy machine two spinning threads take many times as long.
PASSIVE = {"OMP_WAIT_POLICY": "PASSIVE"}
SETTINGS = {
    f"{name}, {threads} thread{'s' if threads > 1 else ''}": variables
    | PASSIVE
    | {"OMP_NUM_THREADS": str(threads)}
    for name, variables in INSTRUCTIONS.items()
    for threads in THREADS
}
TESTS = ["tests/model", "tests/patching", "tests/stats"]
REPORTED = ("tiny-senses", "tiny-senses-bidirectional")
TRANSLATOR = "tiny-translator"
USED = "instructions"
CAPABILITY = "import torch; print(torch.backends.cpu.get_cpu_capability())"
RIVE = "which_source_words_choose_rive"
LEVEL = 0.05


def findings(variables: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Each finding in this environment, with its name."""
    yield USED, _run(variables, "-c", CAPABILITY).strip()
    yield (
        "numeric tests",
        _run(variables, "-m", "pytest", "-q", *TESTS).splitlines()[-1].partition(" in ")[0],
    )
    for model in (*REPORTED, TRANSLATOR):
        certificate = json.loads(
            _run(variables, "-m", "probe", "check", "--model", model, "--json")
        )
        yield (
            f"{model}: check",
            f"{sum(row['ok'] for row in certificate['rows'])} of {len(certificate['rows'])} rows hold",
        )
    with TemporaryDirectory() as folder:
        for model in REPORTED:
            _run(variables, "-m", "probe", "report", "--model", model, "--out", f"{folder}/{model}")
            for name, result in verdicts(pd.read_csv(f"{folder}/{model}/heads.csv")):
                yield f"{model}: {name}", result
        _run(
            variables | {"PROBE_TRANSLATOR": TRANSLATOR, "PROBE_OUT": folder}, f"analyses/{RIVE}.py"
        )
        yield f"{TRANSLATOR}: the choice of rive", choice(pd.read_csv(f"{folder}/{RIVE}.csv"))


def verdicts(heads: pd.DataFrame) -> Iterator[tuple[str, str]]:
    """For each pair of senses the resolvers, by rank, and the heads of every other verdict; all
    other heads are `none`."""
    heads = heads.assign(name=heads.apply(label, axis=1))
    for (word, a, b), rows in heads.groupby(["word", "sense_a", "sense_b"], sort=False):
        by_verdict = [
            f"{verdict} "
            f"{', '.join(group.sort_values('rank' if verdict == 'resolver' else 'name')['name'])}"
            for verdict, group in rows[rows["verdict"] != "none"].groupby("verdict")
        ]
        yield f"{word}, {a} or {b}", "; ".join(by_verdict) or "none"


def label(head: pd.Series) -> str:
    """`L3H2`, and for a resolver with its rank: `L3H2 (2)`."""
    rank = f" ({head['rank']:g})" if head["verdict"] == "resolver" else ""
    return f"L{head['layer']}H{head['head']}{rank}"


def choice(swaps: pd.DataFrame) -> str:
    """The English words and the heads that carry the choice, the largest first: corrected p below
    LEVEL."""
    significant = swaps[swaps["group"].str.startswith("swap") & (swaps["p"] < LEVEL)].sort_values(
        "value", ascending=False
    )
    return "; ".join(
        f"{group}: {', '.join(rows['row'])}"
        for group, rows in significant.groupby("group", sort=False)
    )


def differing(rows: Sequence[dict[str, str]]) -> list[str]:
    """The findings that differ between settings."""
    results: dict[str, dict[str, str]] = {}
    for row in rows:
        results.setdefault(row["what"], {})[row["setting"]] = row["result"]
    settings = {row["setting"] for row in rows}
    alike = [
        name
        for name, by_setting in results.items()
        if len(set(by_setting.values())) == 1 and set(by_setting) == settings
    ]
    return [name for name in results if name not in (USED, *alike)]


def _run(variables: dict[str, str], *command: str) -> str:
    """The output of the command under these settings, with the package of this checkout."""
    options = {"cwd": ROOT, "env": os.environ | {"PYTHONPATH": str(ROOT)} | variables}
    return subprocess.run(
        [sys.executable, *command], stdout=subprocess.PIPE, text=True, check=True, **options
    ).stdout


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=ROOT / "reports")
    out = parser.parse_args().out
    rows = []
    for setting, variables in SETTINGS.items():
        for name, result in findings(variables):
            rows.append(dict(zip(COLUMNS, (setting, name, result), strict=True)))
            print(f"{setting}: {name}: {result}", flush=True)
    out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=COLUMNS).to_csv(out / "any_processor.csv", index=False)
    different = differing(rows)
    print(
        f"different: {', '.join(different)}"
        if different
        else f"alike under all {len(SETTINGS)} settings"
    )
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
