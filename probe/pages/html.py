"""One self-contained HTML file: no network, no eval, every text escaped, the same bytes from the same values.

The same bytes: with one set of versions of Vega and of the templates' engine. The Vega bundle stands in the file once
and draws every chart from its specification. The content security policy names the hashes of the scripts and of the
style sheet, so a text that got past the escaping would still run nothing.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import vl_convert
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from probe.charts import palette, themed
from probe.stats.numbers import decimal, percent, scientific


def chart_placer() -> Callable[[Any], Markup]:
    """What places the charts of one page: a box to draw in, and the specification as JSON that no markup can leave."""
    numbers = count(1)

    def place(chart: Any) -> Markup:
        spec, number = themed(chart.to_dict()), next(numbers)
        box = '<div class="chart" id="chart-{0}" role="img" aria-label="{1}"></div>'
        data = '<script type="application/json" data-for="chart-{0}">{2}</script>'
        return Markup(box + data).format(number, spec["description"], as_json(spec))

    return place


def as_json(value: Any) -> Markup:
    """JSON that can stand inside a script element: no markup can leave it."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))


TEMPLATES = Path(__file__).parent / "templates"


def environment(*folders: str | Path) -> Environment:
    """The templates of these folders of `TEMPLATES`, earlier ones first; `chart` places a chart."""
    made = Environment(
        loader=FileSystemLoader([TEMPLATES / folder for folder in folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": percent, "decimal": decimal, "scientific": scientific, "together": together}
    made.globals["chart"] = chart_placer()
    return made


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


def style(templates: Environment, name: str, values: Mapping[str, object]) -> Markup:
    """The style sheet `name` with the colours that the charts use and these values."""
    colours = {name: getattr(palette, name) for name in ("INK", "MUTED", "LINE", "WITH", "AGAINST", "SENSES", "FONT")}
    tint, against = (
        " ".join(str(int(colour[place : place + 2], 16)) for place in (1, 3, 5))
        for colour in (palette.WITH, palette.AGAINST)
    )
    return Markup(templates.get_template(name).render(colours, tint=tint, against=against, **values))


def assets(templates: Environment, *, sheet: str, script: str, values: Mapping[str, object]) -> dict[str, Markup | str]:
    """Style, script, vega and the policy that allows just these, by the names that every template has for them."""
    made, code, drawing = style(templates, sheet, values), Markup(templates.get_template(script).render()), vega()
    return {"style": made, "script": code, "vega": drawing, "policy": policy(made, [drawing, code])}


@cache
def vega() -> Markup:
    """Everything that draws a chart, as one script."""
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script"))


def policy(style: str, scripts: list[Markup]) -> str:
    """Nothing from anywhere; only the page's own scripts and style sheet, by their hashes."""
    allowed = " ".join(_hash(script) for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
