"""What a result is written as: one self-contained HTML file, every frame as CSV and Parquet, and
the manifest.

The page: no network, no eval, every text escaped, the same bytes from the same values (with one set
of versions of Vega and of the templates' engine). The Vega bundle stands in the file once and draws
every chart from its specification. The content security policy names the hashes of the scripts and
of the style sheet, so a text that got past the escaping would still run nothing.

The folder: everything is made in memory first and written file by file under temporary names, so a
reader never sees half a file, and what cannot be made leaves nothing behind. Times of day live only
in the manifest.
"""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from html import unescape
from itertools import count
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Any, BinaryIO

import pandas as pd
import pyarrow
import pyarrow.parquet
import vl_convert
from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

from probe.charts import palette, themed
from probe.charts.ablation import accuracy_without
from probe.errors import InputError
from probe.experiments.run import LEADERS
from probe.inference.verdicts import ORDER
from probe.pages.sentences import BAR, TINTS
from probe.provenance import (
    manifest,
    sha256_of_bytes,
    sha256_of_file,
    write_atomically,
    write_parts_atomically,
)
from probe.results.columns import TABLES, dictionary
from probe.stats.limits import SMALLEST
from probe.stats.numbers import (
    counted,
    decimal,
    distance_percent,
    grouped,
    interval,
    listed,
    measured,
    ordinal,
    p_value,
    percent,
    scientific,
)
from probe.walkthrough.frames import TABLES as TABLES_OF_WALK

if TYPE_CHECKING:
    from probe.results.evaluation import Evaluation
    from probe.studies.study import Study
    from probe.studies.survey import Survey
    from probe.walkthrough.walk import Walk
TEMPLATES = Path(__file__).parent / "templates"
REPORT = "ambiguity.html"
WALK = "walk.html"
SURVEY = "survey.html"
EVALUATION = "evaluation_words.csv"
PAGES = (REPORT, WALK, SURVEY)
MANIFEST = "manifest.json"
# What may lie in one folder: the page of a survey shows the evaluation beside it.
TOGETHER = {SURVEY, EVALUATION}
GENERATOR = '<meta name="generator" content="probe">'  # stands in every page
_CODE = re.compile("<code>(probe .*?)</code>")


class _Compiled(BytecodeCache):
    """What templates were compiled to, while the process lives: every page has an environment of
    its own, which counts its charts, and would compile them again."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self.kept:
            bucket.bytecode_from_string(self.kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.kept[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def environment(*folders: str | Path) -> Environment:
    """The templates of these folders of `TEMPLATES`, earlier ones first.

    They have the numbers as text for filters; `chart` places a chart.
    """
    made = Environment(
        loader=FileSystemLoader([TEMPLATES / folder for folder in folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_COMPILED,
    )
    made.filters |= {function.__name__: function for function in FILTERS}
    made.filters["listed"] = lambda items: listed(list(items))
    made.tests["measured"] = pd.notna
    made.globals |= {"LEADERS": LEADERS, "SMALLEST": SMALLEST, "VERDICTS": ORDER}
    made.globals["chart"] = partial(_placed, count(1))
    return made


def with_interval(record: object, name: str) -> str:
    """A share of the gap in per cent with the interval that stands beside it: 41 % [35, 47]."""
    low = getattr(record, f"{name}_low")
    high = getattr(record, f"{name}_high")
    return measured(getattr(record, name), low, high)


def _placed(numbers: "count[int]", chart: Any) -> Markup:
    """A chart of one page: a box to draw in, and the specification as JSON."""
    # Altair would hold every chart of every page against its schema, slowly; the tests do it.
    spec = themed(chart.to_dict(validate=False))
    number = next(numbers)
    box = '<div class="chart" id="chart-{0}" role="img" aria-label="{1}"></div>'
    data = '<script type="application/json" data-for="chart-{0}">{2}</script>'
    return Markup(box + data).format(number, spec["description"], as_json(spec))


def as_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no markup can leave it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(
        text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def together(tokens: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Tokens that no line may break between: punctuation goes with what stands before it."""
    groups: list[list[Mapping[str, Any]]] = []
    for token in tokens:
        follows = not token["lead"] and not any(map(str.isalnum, token["text"]))
        if follows and groups and len(groups[-1]) < 4:
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


FILTERS = (
    counted,
    decimal,
    distance_percent,
    grouped,
    interval,
    ordinal,
    p_value,
    percent,
    scientific,
    together,
    with_interval,
)


def assets(
    templates: Environment,
    sheet: str,
    script: str,
    *,
    leaders: int = 0,
    tints: int = TINTS,
    bar: int = BAR,
) -> dict[str, Markup | str]:
    """By the names that every template has for them: style, script, vega, and the policy, which
    allows just these.

    The style sheet has the colours of the charts, `tints` of a token, bars of up to `bar` pixels,
    and tabs for as many `leaders`.
    """
    looks: dict[str, object] = {
        name: getattr(palette, name)
        for name in ("INK", "MUTED", "LINE", "WITH", "AGAINST", "SENSES", "FONT")
    }
    looks |= {"tint": " ".join(rgb(palette.WITH)), "against": " ".join(rgb(palette.AGAINST))}
    looks |= {"tints": tints, "bar": bar, "leaders": leaders}
    style = Markup(templates.get_template(sheet).render(looks))
    code = Markup(templates.get_template(script).render())
    sources = (
        f"default-src 'none'; script-src {_hash(vega())} {_hash(code)}; style-src {_hash(style)}"
    )
    policy = f"{sources}; base-uri 'none'; form-action 'none'"
    return {"style": style, "script": code, "vega": vega(), "policy": policy}


def rgb(colour: str) -> list[str]:
    """Red, green and blue of #rrggbb, each from 0 to 255."""
    return [str(part) for part in bytes.fromhex(colour.removeprefix("#"))]


@cache
def vega() -> Markup:
    """Everything that draws a chart, as one script."""
    return Markup(
        vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace(
            "</script", "<\\/script"
        )
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def write_folder(
    out: str | os.PathLike[str],
    pages: Mapping[str, str],
    *,
    frames: Mapping[str, pd.DataFrame],
    made: dict[str, Any],
    streams: Mapping[str, Iterable[pd.DataFrame]] | None = None,
) -> Path:
    """Write the pages, by file name, the tables and the manifest `made` (the files' hashes are
    added).

    `streams`: tables that are never held as a whole, part by part, as Parquet alone. What the
    manifest there says of the page that is replaced, and is not made again, is removed: it would
    stand beside a page that it is not of. Returns the folder. Raises InputError when it cannot be
    written.
    """
    check_folder(out)
    before = _manifest_of(Path(out)).get("files", {})
    files = {name: page.encode() for name, page in pages.items()} | tables(frames)
    hashes = {name: sha256_of_bytes(content) for name, content in files.items()}
    # The longest first: a page that is there finds its tables beside it.
    for name, parts in (streams or {}).items():
        path = write_parts_atomically(Path(out) / f"{name}.parquet", partial(_write_parts, parts))
        hashes[f"{name}.parquet"] = sha256_of_file(path)
    for name, content in files.items():
        write_atomically(Path(out) / name, content)
    listed = made | {"files": dict(sorted(hashes.items()))}
    write_atomically(Path(out) / MANIFEST, json.dumps(listed, indent=2, ensure_ascii=False) + "\n")
    if not before.keys().isdisjoint(pages):
        for name in before.keys() - hashes.keys():
            path = Path(out) / name
            # What its user has changed since is theirs.
            if path.is_file() and sha256_of_file(path) == before[name]:
                path.unlink()
    return Path(out)


def _write_parts(parts: Iterable[pd.DataFrame], opened: BinaryIO) -> None:
    """The parts, of which there are some, one after the other as groups of rows of one Parquet
    file."""
    writer = None
    for part in parts:
        table = pyarrow.Table.from_pandas(part, preserve_index=False)
        writer = writer or pyarrow.parquet.ParquetWriter(opened, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()


def to_be_replaced(out: str | os.PathLike[str], file: str, command: str) -> str:
    """What `command` replaces by writing this file of a result into `out`, in a sentence; empty
    where the file is not there, or the same command made it."""
    path = Path(out) / file
    if not path.is_file():
        return ""
    made = _manifest_of(Path(out))
    before = made.get("command", "") if file in made.get("files", {}) else ""
    # A page says itself what made it.
    shown = _CODE.findall(path.read_text("utf-8", "replace"))
    if command in (before, *map(unescape, shown)):
        return ""
    earlier = f"the one of `{before}`" if before else "an earlier one"
    return f"{path} replaces {earlier}; another place keeps both."


def made_by(result: "Study | Survey | Walk", command: str) -> dict[str, Any]:
    """The manifest of a study, a survey or a walk."""
    return manifest(
        result.model_name,
        result.origin,
        seed=result.options.get("seed"),
        command=command,
        data_sha256=result.data_sha256,
        dtype=result.certificate.dtype,
        options=result.options,
    )


def write_evaluation(
    evaluation: "Evaluation", out: str | os.PathLike[str], *, command: str = ""
) -> Path:
    """The tables of an evaluation (`evaluation_words.csv`, ...) and what their columns say, as
    `probe.write` says; with heads taken out, a picture of `evaluation_without.csv`."""
    check_folder(out, EVALUATION)
    frames = {f"evaluation_{name}": frame for name, frame in evaluation.frames.items()}
    frames["evaluation_columns"] = dictionary(frames, name="evaluation_columns")
    files = {}
    if evaluation.without is not None:
        files["evaluation_without.svg"] = palette.svg(
            accuracy_without(evaluation.without, evaluation.heads_out, bag=evaluation.bag_accuracy)
        )
    return write_folder(out, files, frames=frames, made=evaluation.manifest | {"command": command})


def tables(frames: Mapping[str, pd.DataFrame]) -> dict[str, bytes]:
    """Every frame as CSV and as Parquet, by file name."""
    files = {}
    for name, frame in frames.items():
        files[f"{name}.csv"] = frame.to_csv(index=False, lineterminator="\n").encode()
        files[f"{name}.parquet"] = frame.to_parquet(index=False)
    return files


def check_folder(
    out: str | os.PathLike[str],
    page: str = "",
    *,
    inputs: Sequence[Path] = (),
    option: str = "--out",
) -> None:
    """Raises InputError when a result could not be written into `out`, or would destroy what its
    user wants to keep; leaves nothing behind, so ask it early.

    `page`: the file that the result is known by, which no result of another kind shares a folder
    with. `inputs`: files that it is made from. `option`: of the command line, that names `out`.
    """
    if not isinstance(out, str | os.PathLike) or not str(out):
        raise InputError(
            f"Writing a result: got {out!r} as the folder, expected its name or its path; give one "
            'such as "out".'
        )
    folder = Path(out)
    existing = next(
        (part for part in (folder, *folder.absolute().parents) if part.exists()), Path("/")
    )
    expected = "a folder that can be written"
    reason = None
    if not existing.is_dir():
        reason = f"{existing} is a file"
    elif not os.access(existing, os.W_OK | os.X_OK):
        reason = f"{existing} may not be written"
    elif taken := [name for name in (*PAGES, MANIFEST) if page and (folder / name).is_dir()]:
        reason = f"{taken[0]} in it is a folder"
    elif reason := page and _would_be_lost(folder, page, inputs):
        expected = "a folder for this result alone"
    else:
        reason = _trial(folder, existing)
    if reason:
        raise InputError(
            f"Writing into {folder}: {reason}, expected {expected}; choose another (on the command "
            f"line {option})."
        )


def _would_be_lost(folder: Path, page: str, inputs: Sequence[Path]) -> str:
    """What in `folder` a result with this page would destroy: another kind of result, a file that
    it is made from, a file that probe did not make. Empty where there is none.

    What is there and was made by the same kind of command may be replaced.
    """
    for other in (*PAGES, EVALUATION):
        if other != page and {other, page} != TOGETHER and (folder / other).is_file():
            return f"{other} of another result is in it, and files of both have the same names"
    names = _names_of(page)
    here = folder.resolve()
    for file in inputs:
        if file.name in names and file.resolve().parent == here:
            return f"{file.name} is read from it, and a table of that name is written there"
    known = _manifest_of(folder).get("files", {})
    if page in PAGES and (folder / page).is_file():
        own = page in known or GENERATOR in (folder / page).read_text("utf-8", "replace")
        return "" if own else f"{page} in it was not made by probe"
    strange = [name for name in names if name not in known and (folder / name).is_file()]
    return f"{strange[0]} in it was not made by probe" if strange else ""


def _names_of(page: str) -> list[str]:
    """Names of the tables of a report or a walk, which other people's files may have, too."""
    tables = {REPORT: TABLES, WALK: TABLES_OF_WALK}.get(page, {})
    return [f"{name}.{ending}" for name in tables for ending in ("csv", "parquet")]


def _manifest_of(folder: Path) -> dict[str, Any]:
    """The manifest in a folder, which is of what was written last; empty where there is none that
    can be read as one of ours."""
    with suppress(OSError, ValueError):
        made = json.loads((folder / MANIFEST).read_bytes())
        if isinstance(made, dict) and isinstance(made.get("files"), dict):
            return made
    return {}


def _trial(folder: Path, existing: Path) -> str | None:
    """Why no file can be made in `folder` (None: it can), found out by making one; what was made is
    removed again."""
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            return None
    except OSError:
        return f"{existing} may not be written"
    finally:
        for part in made:
            with suppress(OSError):
                part.rmdir()
