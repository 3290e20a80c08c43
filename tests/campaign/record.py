"""The whole campaign, part by part, and a record of the last run of each part: `make campaign`.

    PYTHONPATH=tests python tests/campaign/record.py --only tests/package/test_docs.py

A part is a file of tests with the mark `campaign`, or one of SCRIPTS. `campaign.csv` has a row for
each part: the date (UTC), the commit (followed by "+" if there were changes), and the numbers of
tests that ran, passed and were skipped; a script counts as one test. A part that has not run
yet, or that ran with another number of tests, has a row without a date, which `--list` adds. `make
test` fails if a part has no row, or if one failed.
The exit status is 1 if a part failed.
"""

import argparse
import datetime
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

ROOT = Path(__file__).parents[2]
RECORD = Path(__file__).with_name("campaign.csv")
COLUMNS = ("part", "date", "commit", "tests", "passed", "skipped")
# The other parts, with their options. Each part writes a separate table.
SCRIPTS: dict[str, tuple[str, ...]] = {
    "tests/campaign/kill_campaign.py": ("--kills", "36"),
    "tests/fuzzing.py": (),
    "tests/campaign/null_campaign.py": (),
    "tests/campaign/one_meaning_nouns.py": (),
    "tests/campaign/mutations.py": (),
}
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "tests")}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workers", default="2", help="processes that share the tests")
    parser.add_argument("--only", nargs="+", metavar="PART", help="by default all parts")
    parser.add_argument("--list", action="store_true", help="note the parts that have not run")
    options = parser.parse_args()
    if options.list:
        list_parts(RECORD)
        return 0
    # Read first, because the parts write tables into the checkout.
    stamp = {"date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}", "commit": commit()}
    rows = []
    for row in run(options.only, workers=options.workers):
        rows.append(row | stamp)
        write(RECORD, rows, whole=False)
    if not options.only:
        write(RECORD, rows, whole=True)
    failed = [row["part"] for row in rows if row["passed"] + row["skipped"] < row["tests"]]
    print("failed: " + ", ".join(failed) if failed else f"{len(rows)} parts passed")
    return bool(failed)


def run(only: Sequence[str] | None, *, workers: str) -> Iterator[dict[str, object]]:
    """The row of each part, without date and commit, as soon as it is known."""
    files = None if only is None else [part for part in only if part not in SCRIPTS]
    if files is None or files:
        with TemporaryDirectory() as folder:
            report = Path(folder) / "tests.xml"
            command = ["-m", "pytest", "-q", "-m", "campaign", "-n", workers]
            command += ["--dist", "loadfile", "--no-loadscope-reorder"]
            command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
            result = subprocess.run(
                [sys.executable, *command, *(files or [])],
                cwd=ROOT,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
                check=False,
            )
            # All passed, or some failed; otherwise some did not run.
            if result.returncode not in (0, 1):
                sys.exit(result.returncode)
            yield from counted(ET.parse(report).iter("testcase"))
    for script, options in SCRIPTS.items():
        if only is None or script in only:
            result = subprocess.run(
                [sys.executable, script, *options],
                cwd=ROOT,
                env=os.environ | ENVIRONMENT,
                check=False,
            )
            yield {"part": script, "tests": 1, "passed": int(result.returncode == 0), "skipped": 0}


def list_parts(record: Path) -> None:
    """Add a row without a date for every part that has none, or that ran with another number of
    tests."""
    command = [sys.executable, "-m", "pytest", "-q", "-m", "campaign", "--collect-only"]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    names = [line.partition("::")[0] for line in result.stdout.splitlines() if "::" in line]
    parts = Counter(names) | dict.fromkeys(SCRIPTS, 1)
    ran = pd.read_csv(record, index_col="part")["tests"] if record.exists() else pd.Series()
    rows: list[dict[str, object]] = [
        {"part": part}
        for part, tests in parts.items()
        if part not in ran or not pd.isna(ran[part]) and ran[part] != tests
    ]
    if rows:
        write(record, rows, whole=False)


def counted(cases: Iterable[ET.Element]) -> list[dict[str, object]]:
    """The row of each file of tests from pytest's report, in alphabetical order."""
    outcomes: dict[str, Counter[str]] = {}
    for case in cases:
        kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
        outcome = outcomes.setdefault(case.attrib["file"], Counter())
        outcome["tests"] += 1
        outcome["passed"] += not kinds
        outcome["skipped"] += kinds == {"skipped"}
    return [{"part": part, **outcomes[part]} for part in sorted(outcomes)]


def commit() -> str:
    """The commit of the checkout, followed by "+" if there were changes since."""
    command = ["git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty=+"]
    result = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return result.stdout.strip()


def write(record: Path, rows: Sequence[dict[str, object]], *, whole: bool) -> None:
    """Replace the rows of these parts; all others stay, unless `whole`."""
    table = pd.DataFrame(rows, columns=COLUMNS).set_index("part")
    if record.exists() and not whole:
        before = pd.read_csv(record, index_col="part")
        table = pd.concat([table, before.drop(table.index, errors="ignore")])
    record.parent.mkdir(parents=True, exist_ok=True)
    counts = ["tests", "passed", "skipped"]
    table.astype(dict.fromkeys(counts, "Int64")).sort_index().to_csv(record)


if __name__ == "__main__":
    sys.exit(main())
