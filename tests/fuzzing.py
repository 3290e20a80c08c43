"""Hostile input, generated: every kind of sentence file, with the allowed outcomes.

Each target draws a case and tries it. The outcome is "taken", or "refused" with the message of a
ProbeError. Any other outcome, such as a traceback or a lost row, is a failure.
`tests/text/test_fuzz.py` tries a few dozen cases of each. `python tests/fuzzing.py` tries ten
thousand of each, and records their number.
"""

import argparse
import csv
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import pyarrow
import pyarrow.parquet
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from inside import check_row

from probe import ProbeError, read_sentences
from probe.text.files import FileRow, Source, rows_of

TAKEN, REFUSED = "taken", "refused"
GOOD = {"word": "bank", "sense": "river", "text": "The river bank", "start": 10, "end": 14}
# fmt: off
BLANK = ("", " ", "\x00", "\ud800", "\udfff tail", "\u202eevil\u202c", "\u2028", "\ufeff", "\r", "\r\n", "\t")
MARKUP = ('"', "'", "\\", "<script>x</script>", "{{ 7 * 7 }}", "<!--", "]]>", "&lt;", "javascript:x", "=1+1")
WORDS = ("é", "e\u0301", "🦔", "البنك", "a" * 3000, "bank", "NaN", "null", "-1", "1e400", "9" * 40, "%s%n", "../../x")
# fmt: on
AWKWARD = (*BLANK, *MARKUP, *WORDS)
texts = st.one_of(
    st.sampled_from(AWKWARD), st.text(max_size=30), st.text(st.characters(codec=None), max_size=8)
)
numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from((10**18, -(10**18), 10**400, 2**63, 1.5, 1e308, float("nan"))),
)
values = st.one_of(texts, numbers, st.none(), st.booleans(), st.lists(st.integers(), max_size=2))
fields = st.sampled_from(
    (*GOOD, "frame", "pair", "cue_start", "cue_end", "distance", "split", "other")
)
changes = st.one_of(
    st.just({}), st.just({"frame": "\u202eevil\r\n"}), st.dictionaries(fields, values, max_size=3)
)
rows = changes.map(lambda changed: GOOD | changed)
noise = st.binary(max_size=60)


@dataclass(frozen=True)
class Target:
    """A kind of file: how its cases are drawn and tried."""

    draw: st.SearchStrategy[Any]
    attempt: Callable[[Path, Any], str]


def sentence_of(error: ProbeError) -> str:
    """One message without a traceback, for any content of the file."""
    message = str(error)
    assert message.endswith((".", ")")) and "Traceback" not in message, message
    assert error.exit_code == 2
    return REFUSED


# --- files of sentences ---------------------------------------------------------------------------


def _json_lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode("utf-8", "replace") + b"\n" for row in records)


def _delimited(records: list[dict[str, Any]], delimiter: str, newline: str) -> bytes:
    buffer = io.StringIO()
    form = {"delimiter": delimiter, "lineterminator": newline, "extrasaction": "ignore"}
    writer = csv.DictWriter(buffer, [*GOOD, "frame", "cue_start"], **form)
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue().encode("utf-8", "surrogatepass")


def _parquet(records: list[dict[str, Any]]) -> bytes:
    names = list(GOOD)
    columns = {
        name: [str(row.get(name))[:50].encode("utf-8", "replace").decode() for row in records]
        for name in names
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes unchanged, cut, partly changed, with a mark at the beginning, or arbitrary."""
    how = draw(st.sampled_from(("whole", "whole", "cut", "changed", "marked", "noise", "joined")))
    if how == "noise":
        return draw(noise)
    content = draw(whole)
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    if how == "cut":
        return content[:at]
    if how == "changed":
        return content[:at] + draw(st.binary(min_size=1, max_size=3)) + content[at + 1 :]
    if how == "marked":
        return (
            draw(st.sampled_from((b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\n", b"PAR1"))) + content
        )
    return content + draw(noise) if how == "joined" else content


def _file(name: str, whole: st.SearchStrategy[bytes]) -> Target:
    return Target(
        damaged(whole), lambda folder, content: read_both_ways(_write(folder / name, content))
    )


def _write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def read_both_ways(file: Path) -> str:
    """The rows equal the rows of a plain reader of the whole file, with the same values in the
    same order."""
    try:
        corpus = read_sentences(file)
        rows = rows_of(Source(file, file.name))
    except ProbeError as error:
        return sentence_of(error)
    plain = read_plainly(file)
    assert len(rows) == len(plain), "a row was lost or doubled"
    for row, values in zip(rows, plain, strict=True):
        assert repr(check_row(row)) == repr(check_row(FileRow("", values)))
    assert len(corpus.sentences) + len(corpus.left_out) == len(plain), "a row was lost"
    sentences = iter(corpus.sentences)
    left_out = {item.where for item in corpus.left_out}
    assert [next(sentences).where for row in rows if row.where not in left_out] == [
        s.where for s in corpus.sentences
    ]
    return TAKEN


def read_plainly(file: Path) -> list[dict[str, Any]]:
    """The rows of a valid file, by whole-file readers that share nothing with the reader
    of sentences."""
    if file.is_dir():
        senses = json.loads((file / "classes_map.txt").read_text("utf-8-sig"))
        data, gold = (_plain_lines(file / f"train.{kind}.txt") for kind in ("data", "gold"))
        return [
            _plain_folder_row(line, senses[label]) for line, label in zip(data, gold, strict=True)
        ]
    if file.suffix == ".parquet":
        return pyarrow.parquet.read_table(file).to_pylist()
    text = file.read_bytes().decode("utf-8-sig")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    delimiter = "," if file.suffix == ".csv" else "\t"
    header, *rows = [
        cells for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if cells
    ]
    return [dict(zip(header, cells, strict=True)) for cells in rows]


def _plain_lines(file: Path) -> list[str]:
    return (
        file.read_bytes()
        .decode("utf-8-sig")
        .removesuffix("\n")
        .replace("\r\n", "\n")
        .removesuffix("\r")
        .split("\n")
    )


def _plain_folder_row(line: str, sense: str) -> dict[str, Any]:
    index, text = line.split("\t", 1)
    words = text.split(" ")
    start = len(" ".join(["", *words[: int(index)], ""])) - 1 if int(index) else 0
    end = start + len(words[int(index)])
    return {
        "word": "bank",
        "sense": sense,
        "split": "train",
        "text": text,
        "start": start,
        "end": end,
    }


@st.composite
def word_folders(draw: st.DrawFn) -> dict[str, bytes]:
    lines = draw(st.lists(st.tuples(st.integers(-1, 5), texts), min_size=1, max_size=4))
    data = "\n".join(f"{at}\tthe {text} bank" for at, text in lines).encode(
        "utf-8", "surrogatepass"
    )
    gold = "\n".join(draw(st.sampled_from("0128")) for _ in lines).encode()
    files = {
        "classes_map.txt": b'{"0": "river", "1": "money"}',
        "train.data.txt": data,
        "train.gold.txt": gold,
    }
    victim = draw(st.sampled_from((*files, "none")))
    if victim in files:
        files[victim] = draw(damaged(st.just(files[victim])))
    return files


def read_folder(folder: Path, files: dict[str, bytes]) -> str:
    word_folder = folder / "bank"
    word_folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (word_folder / name).write_bytes(content)
    return read_both_ways(word_folder)


some_rows = st.lists(rows, min_size=1, max_size=4)


def _tables(delimiter: str, *newlines: str) -> st.SearchStrategy[bytes]:
    return st.builds(_delimited, some_rows, st.just(delimiter), st.sampled_from(newlines))


TARGETS = {
    "sentences.jsonl": _file("s.jsonl", some_rows.map(_json_lines)),
    "sentences.csv": _file("s.csv", _tables(",", "\n", "\r\n")),
    "sentences.tsv": _file("s.tsv", _tables("\t", "\n", "\r\n", "\r")),
    "sentences.parquet": _file("s.parquet", some_rows.map(_parquet)),
    "word folder": Target(word_folders(), read_folder),
}


def try_cases(name: str, folder: Path, cases: int, *, start: int = 0) -> Counter[str]:
    """Generate `cases` cases of a target and count their outcomes; raises the error of the first
    bad case."""
    target, counts = TARGETS[name], Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)

    quiet = {"database": None, "suppress_health_check": list(HealthCheck), "print_blob": False}

    @seed(start)
    @settings(max_examples=cases, deadline=None, phases=[Phase.generate], **quiet)
    @given(target.draw)
    def attempt(case: Any) -> None:
        counts[target.attempt(folder, case)] += 1

    attempt()
    return counts


COLUMNS = ("target", "cases", "taken", "refused", "failed", "seconds")


def write_totals(path: Path, rows: Sequence[dict[str, object]], *, order: Sequence[str]) -> None:
    """The table with these rows replaced, in the order of their first column, and their sum."""
    table = pd.DataFrame(rows).set_index(next(iter(rows[0])))
    if path.exists():
        before = pd.read_csv(path, index_col=0)
        table = pd.concat([table, before.drop([*table.index, "all"], errors="ignore")])
    table = table.loc[[name for name in order if name in table.index]]
    table.loc["all"] = table.sum()
    table.to_csv(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "campaign")
    parser.add_argument("--targets", nargs="*", choices=list(TARGETS), default=list(TARGETS))
    arguments = parser.parse_args()
    with TemporaryDirectory() as directory:
        for number, name in enumerate(arguments.targets):
            counts, began, turn = Counter[str](), time.monotonic(), 0
            # A run of hypothesis ends early if it has tried everything.
            while counts.total() < arguments.cases:
                batch = min(2_000, arguments.cases - counts.total())
                counts += try_cases(
                    name, Path(directory) / str(number), batch, start=arguments.seed + turn
                )
                turn += 1
            facts = (
                name,
                counts.total(),
                counts[TAKEN],
                counts[REFUSED],
                0,
                round(time.monotonic() - began),
            )
            row = dict(zip(COLUMNS, facts, strict=True))
            write_totals(arguments.out / "fuzz_campaign.csv", [row], order=[*TARGETS])


if __name__ == "__main__":
    main()
