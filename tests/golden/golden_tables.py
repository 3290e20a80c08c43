"""Golden tables: what the main commands write now, compared with what is stored.

    PYTHONPATH=tests python tests/golden/golden_tables.py [--update] [CASE ...]
    PYTHONPATH=tests python tests/golden/golden_tables.py --real FOLDER

A case runs commands of `probe`, or public functions, on the embedded models. Its tables, the
visible text of its pages, its output and the names of its files are compared. `--update` stores
what differs.

A number may differ by 1e-6 of the largest value in its column, and by one in its sixth digit, to
which `probe` rounds tables. Texts and whole numbers must be equal. Sums are rounded differently on
another processor, in another version of torch or with another number of threads. There, the limit
is 1e-4, and .2 for numbers that change in steps: whole numbers, p, AUROC. Numbers in texts are not
compared there. `stored/machine.json` names the machine that the stored tables come from.

`--real` compares a folder that was made again, such as reports/real after `make real`, with the
tables of reports/real in the last commit, within 1e-4.
"""

import argparse
import base64
import difflib
import html
import io
import json
import platform
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from inside import main as probe_command

import probe

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
STORED = HERE / "stored"
SAME_MACHINE = 1e-6  # of the largest value in the column
OTHER_MACHINE = 1e-4
SHOWN = 5  # rows of one kind that are printed
LONGEST = 40  # lines of a text's differences that are printed
SMALLEST = 1e-9  # a column of smaller numbers holds nothing but rounding

# Numbers that change in steps: a last digit decides whether two values are in order. Also numbers
# along an axis that is fitted to rounding, where a head writes the same for both senses.
STEPS = re.compile(r"\.[pq](_|$)|_p$|auroc|hedges_g|agreement$|separation_controls\.(low|high)$")
STEP = 0.2
# Columns and leaves of pages that hold nothing but rounding: distances between two computations of
# one number, and the scale of the largest of them.
ROUNDING = re.compile(
    r"(certificate\.(error|scale)|agreement\.error|arrays\.(missed\w*|agreement)"
    r"|decomposition\.closing|showcase\.difference)$"
)
# Tags that begin a line of a page's text; other tags are inside a line.
LINES = "p|div|li|tr|h[1-6]|section|details|summary|table|pre|dt|dd|title|label|button|svg|text"
NUMBER = re.compile(r"[−+-]?\d[\d.,\u202f]*|(?<!\w)\.\d+")

EIGHT = ["--sentences", "sentences/eight_words.csv"]
SEVEN = ["apple", "bank", "bark", "bat", "crane", "match", "mole"]
ENCODER = ["--model", "tiny-senses-bidirectional"]
FEW = ["--permutations", "199", "--out", "out"]
RIVER = "The river near the old bank"
MONEY = "The money near the old bank"
ENGLISH = "Nobody knew why the bank was near the river."
FRENCH = "Personne ne savait pourquoi la"


def run_functions() -> None:
    """Write the tables of the functions that no command shows."""
    model = probe.load("tiny-senses")
    place = {"layer": 1, "head": 2, "at": "bank", "source": "river"}
    pair = {"against": MONEY, "at": "bank"}
    tables = {
        "patch": probe.patch(model, RIVER, **pair),
        "patch_positions": probe.patch(model, RIVER, **pair, parts="positions"),
        "patch_mlps": probe.patch(model, RIVER, **pair, parts="mlp", metric=(" was", " and")),
        "patch_encoder": probe.patch("tiny-senses-bidirectional", RIVER, **pair),
        "qk_attribution": probe.qk_attribution(model, RIVER, **place, contrast="mean"),
        "qk_interventions": probe.qk_interventions(model, RIVER, **place),
        "ov_attribution": probe.ov_attribution(model, RIVER, **place, along=(" and", " with")),
        "decompose": probe.decompose(model, RIVER, at="bank", tokens=(" and", " with")),
    }
    for name, table in tables.items():
        table.to_parquet(f"{name}.parquet")


CASES: dict[str, list[list[str]] | Callable[[], None]] = {
    "report": [["report", "bank", "apple", *FEW]],
    "report_seven": [["report", *SEVEN, *EIGHT, *FEW]],
    "report_no_gap": [["report", "window", "--sentences", "sentences/no_gap.csv", *FEW]],
    "report_encoder": [
        ["report", "bank", "--sentences", "sentences/both_sides.csv", *ENCODER, *FEW]
    ],
    "survey": [["survey", *EIGHT, "--out", "out"]],
    "survey_two_models": [
        ["survey", *EIGHT, "--model", "tiny-senses", *ENCODER, "--out", "out", "--controls", "none"]
    ],
    "cues": [["cues", "bank", *EIGHT, "--cues", "sentences/cues.txt", "--out", "out"]],
    "evaluate": [["evaluate", "bank", "mole", *EIGHT, "--without", "L0H0,L3H2", "--out", "out"]],
    "walk": [["walk", RIVER, "--word", "bank", "--out", "out"]],
    "walk_others": [
        ["walk", RIVER, "--against", MONEY, "--word", "bank", "--head", "L1H2", "--out", "two"],
        ["walk", RIVER, "--word", "bank", *ENCODER, "--out", "encoder"],
        ["walk", ENGLISH, "--target", FRENCH, "--model", "tiny-translator", "--out", "translator"],
    ],
    "explore": [["explore", "--save", "page.html", RIVER, MONEY]],
    "check": [
        ["check"],
        ["check", *ENCODER],
        ["check", "--model", "tiny-translator"],
        ["models", "tiny-senses"],
    ],
    "functions": run_functions,
}


@dataclass(frozen=True)
class Output:
    """Tables and texts by name."""

    tables: dict[str, pa.Table] = field(default_factory=dict)
    texts: dict[str, str] = field(default_factory=dict)


def run(name: str, folder: Path) -> Output:
    """Run a case in an empty folder and return what it wrote there."""
    shutil.copytree(HERE / "sentences", folder / "sentences")
    commands = CASES[name]
    with chdir(folder), redirect_stdout(io.StringIO()) as printed:
        if callable(commands):
            commands()
        else:
            for command in commands:
                print(f"$ probe {' '.join(command)}")
                print(f"exit code {exit_code(command)}")
    shutil.rmtree(folder / "sentences")
    tables = {}
    texts = {"printed": steady(printed.getvalue())}
    for path in sorted(folder.rglob("*")):
        stem = ".".join(path.relative_to(folder).with_suffix("").parts)
        if path.suffix == ".parquet":
            tables[stem] = steady_table(path.stem, pq.read_table(path))
        if path.suffix == ".zip":
            tables |= in_archive(path, folder)
        if path.suffix == ".html":
            page = path.read_text(encoding="utf-8")
            texts[stem] = steady(visible(page))
            tables |= {f"{stem}.{key}": table for key, table in data_of(page).items()}
    files = [path for path in folder.rglob("*") if path.is_file()]
    texts["files"] = "".join(
        f"{line}\n" for line in sorted(described(path, folder) for path in files)
    )
    return Output(tables, texts)


def in_archive(path: Path, folder: Path) -> dict[str, pa.Table]:
    """The tables of a result's archive, by folder and name."""
    tables = {}
    with ZipFile(path) as archive:
        for member in archive.namelist():
            name = Path(member)
            stem = ".".join((path.parent / name).relative_to(folder).with_suffix("").parts)
            table = pq.read_table(io.BytesIO(archive.read(member)))
            tables[stem] = steady_table(name.stem, table)
    return tables


def described(path: Path, folder: Path) -> str:
    """The name of a file, and of a CSV file the number of its lines."""
    name = path.relative_to(folder).as_posix()
    if path.suffix != ".csv":
        return name
    return f"{name}: {len(path.read_text(encoding='utf-8').splitlines())} lines"


def exit_code(command: list[str]) -> int:
    """Run `probe COMMAND` in this process and return its exit code."""
    sys.argv = ["probe", *command]
    try:
        probe_command()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def steady_table(name: str, table: pa.Table) -> pa.Table:
    """A table without rounding and pandas' notes. float32 is enough for the limit and half the
    size."""
    table = table.select(
        [key for key in table.column_names if not ROUNDING.search(f"{name}.{key}")]
    )
    kinds = {pa.float64(): pa.float32(), pa.int32(): pa.int64(), pa.large_string(): pa.string()}
    fields = [(column.name, kinds.get(column.type, column.type)) for column in table.schema]
    return table.replace_schema_metadata(None).cast(pa.schema(fields))


def visible(page: str) -> str:
    """The text of a page, a line for each paragraph or row, and the texts of its charts."""

    def titles(chart: re.Match[str]) -> str:
        wanted = re.compile(r"(?!\.config)(.*\.|\.)(title|description|field)")
        parts = leaves({**json.loads(chart[1]), "datasets": {}})
        lines = (
            f"chart{key}: {html.escape(text)}"
            for key, text, _ in parts
            if text is not None and wanted.fullmatch(key)
        )
        return "\n" + "\n".join(lines) + "\n"

    page = re.sub(r'<script[^>]*data-for="[^"]*">(.*?)</script>', titles, page, flags=re.DOTALL)
    page = re.sub(r"<(script|style)\b.*?</\1>|<!--.*?-->", " ", page, flags=re.DOTALL)
    page = re.sub(rf"</?({LINES})\b[^>]*>", "\n", page)
    lines = html.unescape(re.sub(r"<[^>]*>", " ", page)).splitlines()
    return "\n".join(line for line in (" ".join(text.split()) for text in lines) if line)


def data_of(page: str) -> dict[str, pa.Table]:
    """The data that a page's script reads, by id: a row for each text and number."""
    blocks = re.findall(
        r'<script type="application/json" id="([^"]+)">(.*?)</script>', page, re.DOTALL
    )
    types = [("leaf", pa.string()), ("text", pa.string()), ("number", pa.float32())]
    tables = {}
    for name, data in blocks:
        rows = [row for row in leaves(json.loads(data)) if not ROUNDING.search(row[0])]
        tables[name] = pa.table(list(zip(*rows, strict=True)), pa.schema(types))
    return tables


def leaves(value: Any, key: str = "") -> Iterator[tuple[str, str | None, float | None]]:
    """The path, text and number of each leaf of JSON. Arrays are packed as float32."""
    if isinstance(value, dict) and {"shape", "data"} <= set(value):
        value = np.frombuffer(base64.b64decode(value["data"]), "<f4").tolist()
    if isinstance(value, dict):
        for name, part in value.items():
            yield from leaves(part, f"{key}.{name}")
    elif isinstance(value, list):
        for part in value:
            yield from leaves(part, key)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield key, None, value
    else:
        yield key, None if value is None else str(value), None


def steady(text: str) -> str:
    """A text without dates, versions, times and rounding: neighbouring lines with a rounding error
    are sorted, as pages order them by it."""
    text = re.sub(r"\d{4}-\d\d-\d\d(T[\d:+]+)?|\b\d+\.\d+\.\d+(\+\w+)?", "#", text)
    text = re.sub(r"[\d.]+( × 10[⁻⁰-⁹]+|e-\d+)", "# × 10", text)
    groups = groupby(text.splitlines(), key=lambda line: "# × 10" in line)
    lines = []
    for is_rounding, group in groups:
        lines += sorted(map(without_numbers, group)) if is_rounding else group
    return "\n".join(lines) + "\n"


def without_numbers(line: str) -> str:
    """A line with a rounding error, without numbers, widths and the place of the largest error."""
    line = re.sub(r"difference is of [^;]*|scale \([^)]*\)", "#", line)
    return " ".join(NUMBER.sub("#", line).split())


def compare(stored: Output, new: Output, limit: float) -> list[str]:
    """What differs, a line for each finding."""
    if stored == Output():
        return [f"is new: {len(new.tables)} tables and {len(new.texts)} texts"]
    found = [f"table {name} is lost" for name in stored.tables if name not in new.tables]
    found += [f"table {name} is new" for name in new.tables if name not in stored.tables]
    for name in stored.tables:
        if name in new.tables:
            findings = compare_tables(name, stored.tables[name], new.tables[name], limit)
            found += [f"table {name}: {finding}" for finding in findings]
    for name in sorted({*stored.texts, *new.texts}):
        texts = (stored.texts.get(name, ""), new.texts.get(name, ""))
        found += [f"text {name}: {line}" for line in compare_texts(*texts, limit)]
    return found


def compare_texts(stored: str, new: str, limit: float) -> list[str]:
    """The lines that are lost or new, marked - and +. Numbers count on the same machine only."""
    if limit > SAME_MACHINE:
        stored, new = (NUMBER.sub("#", text) for text in (stored, new))
    lines = difflib.unified_diff(stored.splitlines(), new.splitlines(), n=0, lineterm="")
    lines = [line for line in lines if not line.startswith(("---", "+++", "@@"))]
    more = len(lines) - LONGEST
    return [*lines[:LONGEST], f"... and {more} more lines"] if more > 0 else lines


def compare_tables(table: str, stored: pa.Table, new: pa.Table, limit: float) -> list[str]:
    """What differs between two tables. Rows are matched by their texts and whole numbers."""
    shared = [name for name in stored.column_names if name in new.column_names]
    found = [f"column {name} is lost" for name in stored.column_names if name not in shared]
    found += [f"column {name} is new" for name in new.column_names if name not in shared]
    if shared != [name for name in new.column_names if name in shared]:
        found.append("columns are in another order")
    numbers = []
    limits: dict[str, float] = {}
    for name in shared:
        was, now = (rows.schema.field(name).type for rows in (stored, new))
        if was != now:
            found.append(f"column {name} is {now} instead of {was}")
        is_whole = {was, now} == {pa.int64()}
        if {was, now} <= {pa.float32(), pa.int64()} and not (is_whole and limit == SAME_MACHINE):
            numbers.append(name)
            if is_whole or (limit > SAME_MACHINE and STEPS.search(f"{table}.{name}")):
                limits[name] = STEP
    labels = [name for name in shared if name not in numbers]
    masked = limit > SAME_MACHINE
    old, fresh = (by_labels(rows, labels, numbers, masked=masked) for rows in (stored, new))
    lost = old.index.difference(fresh.index, sort=False)
    added = fresh.index.difference(old.index, sort=False)
    found += [
        f"{len(rows)} rows are {what}: {first(rows)}"
        for what, rows in (("lost", lost), ("new", added))
        if len(rows)
    ]
    old, fresh = old.drop(lost), fresh.drop(added)
    if list(old.index) != list(fresh.index):
        found.append("rows are in another order")
    # Numbers of one leaf of a page's data have one unit, as those of a column have.
    groups = [row.partition(" ")[0] if "leaf" in labels else "" for row in old.index]
    for name in numbers:
        found += compare_numbers(
            old[name], fresh[name].loc[old.index], groups, limits.get(name, limit)
        )
    return found


def by_labels(
    table: pa.Table, labels: list[str], numbers: list[str], *, masked: bool
) -> pd.DataFrame:
    """The numbers of a table, by its other columns as one text. Equal texts are counted."""
    columns = [table[name].to_pylist() for name in labels]
    seen: Counter[str] = Counter()
    rows = []
    for number in range(table.num_rows):
        cells = zip(labels, columns, strict=True)
        row = " ".join(f"{name}={column[number]}" for name, column in cells)
        row = NUMBER.sub("#", row) if masked else row
        seen[row] += 1
        rows.append(row if seen[row] == 1 else f"{row} ({seen[row]})")
    return table.select(numbers).to_pandas().astype(float).set_axis(rows)


def compare_numbers(
    stored: pd.Series, new: pd.Series, groups: list[str], limit: float
) -> list[str]:
    """The largest difference of a column, if it is above the limit, in the largest value."""
    finite = stored.abs().replace(np.inf, np.nan)
    largest = finite.groupby(groups).transform("max").fillna(0).clip(lower=SMALLEST)
    sixth_digit = 10 ** np.floor(np.log10(finite.fillna(0).clip(lower=SMALLEST)) - 5)
    equal = (stored == new) | (stored.isna() & new.isna())
    apart = (stored - new).abs().fillna(np.inf).mask(equal, 0.0)
    beyond = apart / (limit * largest + sixth_digit)
    if not (beyond > 1).any():
        return []
    at = beyond.idxmax()
    count = f"{(beyond > 1).sum()} of {len(stored)} numbers differ"
    values = f"{stored[at]:.8g} is now {new[at]:.8g}"
    most = f"most by {apart[at] / largest[at]:.1e} of the largest: {values} in row {at}"
    return [f"column {stored.name}: {count}, {most}"]


def first(lines: Iterable[str]) -> str:
    """The first few lines, shortened."""
    lines = list(lines)
    return "; ".join(line[:200] for line in lines[:SHOWN]) + (" ..." if len(lines) > SHOWN else "")


def load(folder: Path) -> Output:
    """The stored tables and texts of a case."""
    return Output(
        {path.stem: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))},
        {path.stem: path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.txt"))},
    )


def store(output: Output, folder: Path) -> None:
    """Write the tables and texts of a case in place of the stored ones."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, table in output.tables.items():
        path = folder / f"{name}.parquet"
        pq.write_table(table, path, compression="zstd", write_statistics=False, store_schema=False)
    for name, text in output.texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


def machine() -> dict[str, object]:
    """What the last digits of a sum depend on."""
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text().splitlines() if cpuinfo.exists() else []
    wanted = ("vendor_id", "cpu family", "model", "model name")
    named = [line.partition(":") for line in lines]
    processor = {key.strip(): value.strip() for key, _, value in named if key.strip() in wanted}
    return {
        "processor": processor or platform.processor() or platform.machine(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def limit_here() -> float:
    """The limit for numbers on this machine."""
    path = STORED / "machine.json"
    same = path.exists() and json.loads(path.read_text()) == machine()
    return SAME_MACHINE if same else OTHER_MACHINE


def check(name: str, *, update: bool = False, limit: float) -> list[str]:
    """Run a case and return what differs from the stored tables, or store it."""
    with TemporaryDirectory() as folder:
        new = run(name, Path(folder))
    found = compare(load(STORED / name), new, limit)
    if update and (found or limit > SAME_MACHINE):
        store(new, STORED / name)
    return found


def real(folder: Path) -> list[str]:
    """What differs between a new folder of reports and the tables of reports/real in git."""
    home = "reports/real/"
    listed = git("ls-files", home).decode().splitlines()
    names = [name.removeprefix(home) for name in listed if name.endswith((".csv", ".parquet"))]
    stored = {name: table_of(name, git("show", f"HEAD:{home}{name}")) for name in names}
    new = {
        name: table_of(name, (folder / name).read_bytes())
        for name in names
        if (folder / name).exists()
    }
    return compare(Output(stored), Output(new), OTHER_MACHINE)


def table_of(name: str, data: bytes) -> pa.Table:
    """A CSV or Parquet file as a table."""
    read = pd.read_parquet if name.endswith(".parquet") else pd.read_csv
    return steady_table(Path(name).stem, pa.Table.from_pandas(read(io.BytesIO(data))))


def git(*arguments: str) -> bytes:
    return subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True).stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)}")
    parser.add_argument("--update", action="store_true", help="store what differs")
    parser.add_argument("--real", type=Path, metavar="FOLDER", help="compare with reports/real")
    options = parser.parse_args()
    if options.real:
        found = real(options.real)
        print("\n".join(found) or "all tables agree")
        return bool(found)
    limit = limit_here()
    if limit > SAME_MACHINE and options.update and options.cases:
        parser.error(
            "cannot update some cases only: the others are of another machine. Update all."
        )
    if limit > SAME_MACHINE:
        print(f"The stored tables are of another machine, so the limit is {limit:.0e}.")
    failed = []
    for name in options.cases or CASES:
        begin = time.perf_counter()
        found = check(name, update=options.update, limit=limit)
        print(f"{name}: {len(found)} differences, {time.perf_counter() - begin:.0f} s", flush=True)
        print("".join(f"  {line}\n" for line in found), end="")
        failed += [name] if found else []
    if options.update and not options.cases:
        (STORED / "machine.json").write_text(json.dumps(machine(), indent=1) + "\n")
    return bool(failed) and not options.update


if __name__ == "__main__":
    sys.exit(main())
