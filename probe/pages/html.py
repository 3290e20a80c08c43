"""A page as one self-contained HTML file: no network, no eval, every text escaped, the same bytes
from the same values (with one set of versions of Vega and of the templates' engine).

The Vega bundle is in the file once and draws every chart from its specification. The content
security policy lists the hashes of the scripts and of the style sheet, so even text that is not
escaped cannot run.
"""

import base64
import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from inspect import getmembers, isfunction
from itertools import chain, count
from pathlib import Path
from typing import Any

import pandas as pd
import vl_convert
from altair.utils.schemapi import debug_mode
from jinja2 import BytecodeCache, Environment, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket
from markupsafe import Markup

import probe.experiments
from probe import charts
from probe.charts import palette, themed
from probe.claims import Frames, cues, heads, senses, sentences, sets, survey
from probe.experiments.beside_nouns import TOO_FEW_NOUNS
from probe.experiments.material import LATE
from probe.experiments.run import LEADERS
from probe.experiments.senses import NOT_ASKED_FOR
from probe.experiments.table import every_experiment
from probe.pages.folder import downloads
from probe.pages.heads import axis_of_lines, columns_besides_heads, effect_axis, place
from probe.pages.sentences import (
    TINTS,
    arcs,
    left_out_by_rule,
    marked,
    readings_of_first_head,
)
from probe.stats.limits import FEW, FEW_CUES, FEWEST_NOUNS, FEWEST_WORDS, GATE, LEVEL, SMALLEST
from probe.stats.numbers import (
    bare,
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
from probe.stats.resampling import smallest_effect
from probe.text.splits import ALIGNED, DRAWN

Macro = Callable[..., str]

TEMPLATES = Path(__file__).parent / "templates"

# A decorator. Altair would validate every part of a chart against its schema, which takes up to
# half of the time of a page; the tests do it.
without_validation = debug_mode(False)


class _Compiled(BytecodeCache):
    """Compiled templates, for the life of the process. Every page has a new environment, which
    counts its charts and would otherwise compile them again."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        if bucket.key in self.kept:
            bucket.bytecode_from_string(self.kept[bucket.key])

    def dump_bytecode(self, bucket: Bucket) -> None:
        self.kept[bucket.key] = bucket.bytecode_to_string()


_COMPILED = _Compiled()


def environment(*folders: str | Path) -> Environment:
    """The templates of these folders of `TEMPLATES`, earlier ones first, and those of experiments.

    They have the numbers as text for filters; `chart` places a chart.
    """
    templates = Environment(
        loader=FileSystemLoader(
            [
                *(TEMPLATES / folder for folder in folders),
                *probe.experiments.__path__,  # each experiment has its template next to it
            ]
        ),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        bytecode_cache=_COMPILED,
    )
    of_experiments = [getattr(room, "FILTERS", ()) for room in every_experiment().values()]
    for rules in (cues, heads, senses, sentences, sets, survey):
        templates.filters |= dict(getmembers(rules, isfunction))
    templates.filters |= {each.__name__: each for each in chain(FILTERS, *of_experiments)}
    templates.filters["listed"] = lambda items: listed(list(items))
    templates.tests["measured"] = pd.notna
    templates.globals |= CONSTANTS
    templates.globals["charts"] = charts
    templates.globals["chart"] = partial(_chart_box, count(1))
    return templates


def facts_of(
    by_word: Mapping[str, Frames], macros: Mapping[bool, Mapping[str, Macro]]
) -> dict[str, dict[str, Markup]]:
    """By word its facts: labels and values in one line, without those that do not apply.

    by_word: the rows of each word, by table
    macros: of the values by label, for words without and with a gap
    """
    all_texts = {
        word: texts(rows, macros[bool(rows["words"]["ranked"].any())])
        for word, rows in by_word.items()
    }
    return {
        word: {label: value for label, value in of_word.items() if value}
        for word, of_word in all_texts.items()
    }


def with_further(
    facts: Mapping[str, Mapping[str, Markup]],
    by_word: Mapping[str, Frames],
    macros: Mapping[str, Macro],
) -> list[dict[str, Markup]]:
    """The facts of each word, followed by further ones, empty where they do not apply."""
    return [{**facts[word], **texts(rows, macros)} for word, rows in by_word.items()]


def texts(argument: object, macros: Mapping[str, Macro]) -> dict[str, Markup]:
    """The text of each macro for an argument, in one line, by label."""
    return {label: _line(macro(argument)) for label, macro in macros.items()}


def plain(value: Any) -> str:
    """A value of the user's file as text: whole numbers without a decimal point."""
    if pd.isna(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _line(text: str) -> Markup:
    """The output of a macro without line breaks; narrow spaces stay."""
    return Markup(re.sub(r"[ \n]+", " ", text).strip(" "))


def in_rows(columns: Iterable[Mapping[str, str]]) -> dict[str, list[str]]:
    """The values of each label in every column, without labels that have none."""
    columns = list(columns)
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = {label: [column.get(label, "") for column in columns] for label in labels}
    return {label: values for label, values in rows.items() if any(values)}


def worst_first(certificate: pd.DataFrame) -> pd.DataFrame:
    """The comparisons of a certificate, the one with the largest error first."""
    return certificate.sort_values("error", ascending=False, kind="stable")


def where(rows: pd.DataFrame, **values: object) -> pd.DataFrame:
    """The rows with these values in these columns; no rows of a table that is absent."""
    if rows.empty:
        return rows
    for column, value in values.items():
        rows = rows[rows[column] == value]
    return rows


def with_interval(record: object, name: str) -> str:
    """A share of the gap in percent with the interval from the same record: 41 % [35, 47]."""
    low = getattr(record, f"{name}_low")
    high = getattr(record, f"{name}_high")
    return measured(getattr(record, name), low, high)


def _chart_box(numbers: "count[int]", chart: Any) -> Markup:
    """A chart of one page: a box to draw in, and the specification as JSON."""
    spec = themed(chart.to_dict(validate=False))
    number = next(numbers)
    box = '<div class="chart" id="chart-{0}" role="img" aria-label="{1}"></div>'
    data = '<script type="application/json" data-for="chart-{0}">{2}</script>'
    return Markup(box + data).format(number, spec["description"], as_json(spec))


def as_json(value: Any) -> Markup:
    """JSON for the inside of a script element: no markup can leave it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(
        text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    )


def together(tokens: Sequence[Mapping[str, Any]]) -> list[list[Mapping[str, Any]]]:
    """Groups of tokens that stay on one line: punctuation with the token before it."""
    groups: list[list[Mapping[str, Any]]] = []
    for token in tokens:
        follows = not token["lead"] and not any(map(str.isalnum, token["text"]))
        if follows and groups and len(groups[-1]) < 4:
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


CONSTANTS = {
    "ALIGNED": ALIGNED,
    "DRAWN": DRAWN,
    "FEW": FEW,
    "FEW_CUES": FEW_CUES,
    "FEWEST_NOUNS": FEWEST_NOUNS,
    "FEWEST_WORDS": FEWEST_WORDS,
    "GATE": GATE,
    "LATE": LATE,
    "LEADERS": LEADERS,
    "LEVEL": LEVEL,
    "NOT_ASKED_FOR": NOT_ASKED_FOR,
    "SMALLEST": SMALLEST,
    "TINTS": TINTS,
    "TOO_FEW_NOUNS": TOO_FEW_NOUNS,
}
FILTERS = (
    arcs,
    axis_of_lines,
    bare,
    columns_besides_heads,
    counted,
    decimal,
    distance_percent,
    downloads,
    effect_axis,
    facts_of,
    grouped,
    in_rows,
    interval,
    left_out_by_rule,
    marked,
    measured,
    ordinal,
    p_value,
    percent,
    place,
    plain,
    readings_of_first_head,
    scientific,
    smallest_effect,
    texts,
    together,
    where,
    worst_first,
    with_further,
    with_interval,
)


@without_validation
def page(template: str, sheet: str, *folders: str, **values: Any) -> str:
    """A page as one self-contained HTML file.

    template: extends `shell.html.j2`
    sheet: its style sheet
    folders: of `TEMPLATES`, in which both are looked for
    values: what the template reads
    """
    templates = environment(*folders)
    return templates.get_template(template).render(**values, **assets(templates, sheet, "page.js"))


def assets(templates: Environment, sheet: str, script: str) -> dict[str, Markup | str]:
    """Style, script, vega and the policy that allows only these, by their names in the templates.

    The style sheet has the colours of the charts and TINTS tints of a cell.
    """
    looks: dict[str, object] = {
        name: getattr(palette, name)
        for name in ("INK", "MUTED", "LINE", "WITH", "AGAINST", "SENSES", "SENSES_DARK", "FONT")
    }
    looks |= {"tint": " ".join(rgb(palette.WITH)), "against": " ".join(rgb(palette.AGAINST))}
    looks |= {"tints": TINTS}
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
