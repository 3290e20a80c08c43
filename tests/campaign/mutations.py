"""Faults that the tests must notice: `make campaign`, or `python tests/campaign/mutations.py`.

Every row of FAULTS puts one fault into a copy of `probe/`: a sign, a mask, a scale, a position off
by one, swapped labels, a missing bias, a wrong donor, a wrong fold. The script runs the tests
of the fault's file on that copy, which should notice it first, then the tests of its package, then
all tests of `make test` but those in a browser, each until the first failure. `mutations.csv` names the test that caught each fault. The exit status is 1
if a fault was not caught, or if tests fail without a fault.
"""

import argparse
import importlib
import multiprocessing
import os
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import pandas as pd
import pytest

ROOT = Path(__file__).parent.parent.parent
COLUMNS = ("file", "breaks", "caught", "by")
LONGEST = 1800  # seconds: a fault may also cause an endless loop
MARKS = "not (campaign or browser)"
TABLE = "tests/package/test_mutations.py"  # the test of the faults themselves, which fails for any of them
LIBRARIES = (
    "torch",
    "transformers",
    "transformer_lens",
    "scipy.stats",
    "pandas",
    "altair",
    "hypothesis",
)


class Fault(NamedTuple):
    """The text `old`, which occurs once in `probe/`, becomes `new`; `breaks` describes the
    fault."""

    breaks: str
    old: str
    new: str

    @property
    def file(self) -> str:
        """The file below `probe/` that has the text. Raises ValueError unless it occurs there
        exactly once."""
        counts = {file: text.count(self.old) for file, text in sources().items()}
        if sum(counts.values()) != 1:
            raise ValueError(f"{self.old!r} occurs {sum(counts.values())} times, expected once")
        return max(counts, key=counts.__getitem__)


@cache
def sources() -> dict[str, str]:
    """The text of every module, by its path below `probe/`."""
    package = ROOT / "probe"
    return {
        path.relative_to(package).as_posix(): path.read_text(encoding="utf-8")
        for path in sorted(package.rglob("*.py"))
    }


# A row for each: what breaks, the text, and what it becomes.
FAULTS = tuple(
    Fault(*row)
    for row in (
        # text and tokens
        ("the token behind the word belongs to it", "if low < end and", "if low <= end and"),
        ("a fold is fitted on the cue words it tests", "if all(a != b for", "if any(a != b for"),
        ("a partner of the same sense", "for row in of_sense[1] if", "for row in of_sense[0] if"),
        # the formulas
        ("the mask shows one token ahead", "key_pos - query_pos + 1)", "key_pos - query_pos + 2)"),
        ("a window one token too long", "everywhere.tril(diagonal - window)", "everywhere.tril(diagonal - window - 1)"),
        ("scores over d_head", "/ math.sqrt(q.shape[-1])", "/ q.shape[-1]"),
        ("shares of 1 over queries", "/ exponentials.sum(-1,", "/ exponentials.sum(-2,"),
        ("a wrong rotary base", "(slower * base**exponents)", "(slower * (2 * base) ** exponents)"),
        ("rotary turns backwards", "torch.cat([-second, first]", "torch.cat([second, -first]"),
        ("later keys are taken for earlier ones", "(offsets > 0) *", "(offsets < 0) *"),
        ("a norm without epsilon", "torch.sqrt(variance + epsilon)", "torch.sqrt(variance)"),
        ("embeddings not scaled", ".to(dtype) * config.embed_scale", ".to(dtype)"),
        ("positions from the first row", "config.positions.first + positions", "positions"),
        ("b_O left out", "block.w_o.flatten(0, 1), block.b_o)", "block.w_o.flatten(0, 1), None)"),
        ("a matrix not transposed", "family.transposed else stored.T", "family.transposed else stored"),
        ("queries and keys swapped", 'in zip("qkv", matrices, biases', 'in zip("kqv", matrices, biases'),
        ("an epsilon ten times as large", "return number_from(settings.get(name), name, settings.where, below=1)", "return 10 * number_from(settings.get(name), name, settings.where, below=1)"),
        # observation
        ("a head's write misses its norm", "self.behind(1 + 2 * layer)", "self.behind(2 + 2 * layer)"),
        ("shares of the wrong sign", "mean() - along[len(a) :]", "mean() + along[len(a) :]"),
        ("a stream without its last depth", "trace.resid_post[-1:, at]", "trace.resid_pre[-1:, at]"),
        # the engine
        ("a bias left out", "rows + writer.bias", "rows + 0"),
        ("the word's rotary position one short", "arange(start, end", "arange(start - 1, end - 1"),
        ("variants of another parent", "return x[:, self.branch.parent] if", "return x[:, self.branch.parent - 1] if"),
        ("the MLP reads in front of the attention", "if not self.run.weights.config.family.parallel_attn_mlp:", "if False:"),
        ("scores scaled that are not", "if not self.family.divides_scores:", "if False:"),
        ("the bias of another query", "bias[:, pos, None, keys]", "bias[:, pos - 1, None, keys]"),
        ("a wrong donor", "unchanged.roll(len(members), 0)", "unchanged.roll(1, 0)"),
        ("the swapped heads are the kept ones", "return ~torch.eye(count", "return torch.eye(count"),
        ("a change at the next position", "variants[:, :, index] =", "variants[:, :, index - 1] ="),
        # effects
        ("noising of the wrong sign", "-self.a_with_b", "self.a_with_b"),
        ("the donor most unlike", "best = max(likeness_of", "best = min(likeness_of"),
        ("same-sense swaps of the wrong sign", "(self.same_b - self.same_a)", "(self.same_b + self.same_a)"),
        ("a stage too late", "np.asarray(stages)[None", "(np.asarray(stages) + 1)[None"),
        ("the ends of an interval flipped", '"necessity_low": 1 - high_without,\n        "necessity_high": 1 - low_without', '"necessity_low": 1 - low_without,\n        "necessity_high": 1 - high_without'),
        ("the heads of a set counted from the end", "mask[layer, head] = True", "mask[layer, -head] = True"),
        ("pattern and values swapped", '["pattern_only"] = _mix(donor.pattern, recipient.v)\n        parts["values_only"]', '["values_only"] = _mix(donor.pattern, recipient.v)\n        parts["pattern_only"]'),
        ("the own cue stays", "z - removed + added", "z + added"),
        ("a change misses the norms", "if family.adds_plainly:", "if True:"),
        ("a key too few", "slice(pos + 1 if", "slice(pos if"),
        ("both ways of the wrong sign", "asarray((denoise - noise)", "asarray((denoise + noise)"),
        ("query and key swapped", 'QUERY: ("w_q", "w_k"),\n    KEY: ("w_k", "w_q")', 'QUERY: ("w_k", "w_q"),\n    KEY: ("w_q", "w_k")'),
        # statistics
        ("an axis that points backwards", "(mean_a - mean_b) / gap if gap", "(mean_b - mean_a) / gap if gap"),
        ("axes fitted on what they are tested on", "fitted = [np.asarray(holdout.train)", "fitted = [np.asarray(holdout.test)"),
        ("a depth too early", "abs(threshold))[0]) + 1", "abs(threshold))[0])"),
        ("p of 0", "(1 + reached(bar, t[order]).sum(0))", "reached(bar, t[order]).sum(0)"),
        ("no correction for the other heads", "flat[:, order[::-1]], axis=1)", "flat[:, order[::-1]], axis=0)"),
        ("units not turned as a whole", "return member, np.vstack([np.zeros", "return rng.permutation(member), np.vstack([np.zeros"),
        ("an interval of 90 %", "np.quantile(draws, ENDS, axis=0)\n    if", "np.quantile(draws, [0.05, 0.95], axis=0)\n    if"),
        ("ties all to one side", "np.concatenate([a, b]), axis=0)", 'np.concatenate([a, b]), axis=0, method="max")'),
        ("what is drawn counts for other rows", "size=draws)[:, member]", "size=draws)[:, member[::-1]]"),
        ("opposes tested the right way", 'add_family("opposes", [*measured], -null)', 'add_family("opposes", [*measured], null)'),
        ("whoever opposes resolves", 'row["net"] <= -SMALLEST', 'row["net"] >= SMALLEST'),
        # tables and surveys
        ("p of the swap in the column of separation", '"p_auroc": tests.separation.p,', '"p_auroc": tests.swap.p,'),
        ("near and far swapped", "zip(NEAR_AND_FAR, (_is_near, _is_far), strict=True)", "zip(NEAR_AND_FAR, (_is_far, _is_near), strict=True)"),
        ("tested on what it learned", "train, test = list(holdout.train), list(holdout.test)\n        depth", "train, test = list(holdout.test), list(holdout.test)\n        depth"),
        ("a same-sense donor that the axis was fitted on", "if member not in fitted.get(row, ())]", "if member != row]"),
        ("heads of nouns measured along the axes of the word", "noun_axes = raw_axes(resid, part, word.axes.senses)", "noun_axes = word.axes.in_units()"),
        ("a noun in a pair that its axis was fitted on", "if pairs.a[number] in tested and pairs.b[number] in tested", "if pairs.a[number] in rows"),
        ("a noun's share measured in the gap of the word", "own_gap = nouns.noun_gap.values[noun_of[with_gap]][:, at]", "own_gap = raw_gap.mean(0)[at]"),
        # what was rewritten last
        ("the bias of the first positions", "bias[:, size - n : size, :size]", "bias[:, :n, :size]"),
        ("the keys of the first row for all", "part[index : index + 1].clone()", "part[:1].clone()"),
        ("prefixes that only end alike are one", "number_of.setdefault((shorter, token)", "number_of.setdefault((-1, token)"),
        ("the best of all texts is certified", "return max(rows, key", "return min(rows, key"),
        ("keys unfolded by the number of queries", 'heads = config.n_heads if ".q_proj." in name else config.n_kv_heads', "heads = config.n_heads"),
        ("a new model is not compared with its library", "if not isinstance(source, Model):", "if isinstance(source, Model):"),
        ("coordinates are read as variables", 'dataset.set_coords(described["coords"])', "dataset"),
        ("an experiment without what it needs", "names |= _with_needs(name)", "names |= {name}"),
        ("a gate that the word itself does not count in", "(1 + np.sum(of_noun >= of_word)) / (1 + len(nouns))", "np.sum(of_noun >= of_word) / len(nouns)"),
        ("a nested factor counted twice", "            kept = others", "            kept = list(kept)"),
    )
)  # fmt: skip


def spoiled(fault: Fault) -> str:
    """The file with the fault in it."""
    return sources()[fault.file].replace(fault.old, fault.new)


@contextmanager
def copied(fault: Fault | None) -> Iterator[Path]:
    """A checkout whose `probe/` is a copy with the fault in it; everything else is linked."""
    with TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for entry in ROOT.iterdir():
            if entry.name == "probe":
                shutil.copytree(entry, folder / "probe")
            elif entry.name == ".ci" or not entry.name.startswith("."):
                (folder / entry.name).symlink_to(entry)
        if fault is not None:
            (folder / "probe" / fault.file).write_text(spoiled(fault), encoding="utf-8")
        yield folder


class First:
    """Record the first test, or file of tests, that fails."""

    name = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        if report.failed:
            self.name = self.name or report.nodeid

    pytest_collectreport = pytest_runtest_logreport


def first_failure(fault: Fault | None, tests: str) -> str:
    """The first of the tests in a folder that fails with the fault; "" if all pass. Changes the
    process."""
    with copied(fault) as folder, open(os.devnull, "w") as nowhere:
        os.chdir(folder)
        sys.path.insert(0, str(folder))
        os.environ |= {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        signal.signal(
            signal.SIGALRM, signal.default_int_handler
        )  # which ends the run, and counts as a failure
        signal.alarm(LONGEST)
        first = First()
        quiet = ["-x", "-q", "-p", "no:cacheprovider", f"--ignore={TABLE}"]
        status = pytest.main([*quiet, "-m", MARKS, tests], [first])
        os.chdir(ROOT)
        return first.name or (
            "" if status in (0, pytest.ExitCode.NO_TESTS_COLLECTED) else f"{tests}: {status!r}"
        )


def try_out(faults: Sequence[Fault | None], workers: int) -> list[str]:
    """The test that caught each fault, or "": from the tests of its file, of its package, or from
    any.

    Every run is a new process that starts with the libraries loaded.
    """
    for library in LIBRARIES:
        importlib.import_module(library)
    caught = [""] * len(faults)
    with multiprocessing.get_context("fork").Pool(workers, maxtasksperchild=1) as pool:
        for near in range(3):
            runs = {
                index: pool.apply_async(first_failure, (fault, where[near]))
                for index, fault in enumerate(faults)
                if not caught[index] and len(where := paths_to_run(fault)) > near
            }
            for index, run in runs.items():
                caught[index] = run.get()
                print(f"{faults[index]}: {caught[index] or 'not yet caught'}", flush=True)
    return caught


def paths_to_run(fault: Fault | None) -> list[str]:
    """The tests to run, the nearest first: the tests of the fault's file and of its package (if
    any), and all tests."""
    if fault is None:
        return ["tests"]
    package = Path(fault.file).parts[0]
    name = Path(fault.file).stem
    nearest = (f"tests/{package}/test_{name}.py", f"tests/{package}")
    return [*(path for path in nearest if (ROOT / path).exists()), "tests"]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path(__file__).parent)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument(
        "--only", nargs="*", help="faults whose file or description has one of these in it"
    )
    options = parser.parse_args()
    faults = [
        fault
        for fault in FAULTS
        if any(part in f"{fault.file} {fault.breaks}" for part in options.only or [""])
    ]
    if not options.only and (fails := try_out([None], 1)[0]):
        print(f"without a fault {fails} fails")
        return 1
    caught = try_out(faults, options.workers)
    rows = [
        dict(zip(COLUMNS, (fault.file, fault.breaks, "yes" if name else "no", name), strict=True))
        for fault, name in zip(faults, caught, strict=True)
    ]
    options.out.mkdir(parents=True, exist_ok=True)
    pd.DataFrame(rows, columns=COLUMNS).to_csv(options.out / "mutations.csv", index=False)
    missed = [row for row in rows if row["caught"] == "no"]
    print(f"{len(rows) - len(missed)} of {len(rows)} faults are caught")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
