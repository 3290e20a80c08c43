"""The ambiguity report as one HTML file: no network, no eval, every text escaped, the same bytes from the same study.

The Vega bundle stands in the file once and draws every chart from its specification; without scripts the answers, the tokens
and the tables are still there. The content security policy names the hashes of the scripts and of the style sheet, so a text
that got past the escaping would still run nothing.
"""

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probe import charts
from probe.charts import palette, themed
from probe.numerals import decimal, percent, scientific
from probe.report import answers, appendix, evidence, excerpts, sections
from probe.verdicts import ORDER

if TYPE_CHECKING:
    from probe.study import Study

PAGE = "ambiguity.html"


def render(study: "Study", manifest: Mapping[str, Any]) -> str:
    """The page of a study; `manifest` says what made it (everything but the time is shown)."""
    frames = study.frames
    environment = _environment()
    pictures = _Charts()
    environment.globals["chart"] = pictures.place
    style, script, vega = _style(environment), Markup(environment.get_template("page.js").render()), _vega()
    return environment.get_template("ambiguity.html.j2").render(
        all_verdicts=[(name, charts.MARKS[name], charts.MEANINGS[name]) for name in ORDER],
        heading=sections.heading(frames, study.model_name),
        cards=sections.cards(frames),
        maps=sections.maps(frames),
        readings=excerpts.readings(frames),
        bar_limit=percent(excerpts.bar_limit(frames)),
        shares=sections.shares(frames),
        every_head=sections.every_head(frames),
        showcase=excerpts.showcase(frames),
        together=evidence.together(frames),
        believe=evidence.believe(frames),
        comes_about=evidence.comes_about(frames),
        supplied=evidence.supplied(frames),
        certificate=appendix.certificate(frames["certificate"]),
        data=appendix.data_used(frames),
        downloads=appendix.downloads(frames),
        manifest=manifest,
        style=style,
        script=script,
        vega=vega,
        policy=_policy(style, [vega, script]),
    )


class _Charts:
    """Numbers the charts of a page as the template places them."""

    def __init__(self) -> None:
        self.count = 0

    def place(self, chart: Any) -> Markup:
        """A box to draw in, and the chart's specification as JSON that no markup can leave."""
        self.count += 1
        spec = themed(chart.to_dict())
        text = json.dumps(spec, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
        safe = Markup(text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029"))
        box = Markup('<div class="chart" id="chart-{0}" role="img" aria-label="{1}"></div>').format(
            self.count, spec["description"]
        )
        return box + Markup('<script type="application/json" data-for="chart-{0}">{1}</script>').format(
            self.count, safe
        )


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("probe.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"percent": percent, "decimal": decimal, "scientific": scientific}
    return made


def _style(environment: Environment) -> Markup:
    """The style sheet with the colours that the charts use."""
    names = ("INK", "MUTED", "LINE", "WITH", "AGAINST", "SENSES", "FONT")
    colours = {name: getattr(palette, name) for name in names}
    tint = " ".join(str(int(palette.WITH[place : place + 2], 16)) for place in (1, 3, 5))
    made = environment.get_template("style.css.j2").render(
        colours, tint=tint, tints=excerpts.TINTS, bar=excerpts.BAR, leaders=answers.LEADERS
    )
    return Markup(made)


@cache
def _vega() -> Markup:
    return Markup(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;").replace("</script", "<\\/script"))


def _policy(style: str, scripts: list[Markup]) -> str:
    """Nothing from anywhere; only the page's own scripts and style sheet, by their hashes."""
    allowed = " ".join(_hash(script) for script in scripts)
    return f"default-src 'none'; script-src {allowed}; style-src {_hash(style)}; base-uri 'none'; form-action 'none'"


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
