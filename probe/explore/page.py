"""The explorer's page: the walk's template with its own sentences typed, so that steps, scripts and charts are shared.

It is rendered once per model, from the walk of a pair of sentences that ship; every other text comes as an answer to a
question.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment
from markupsafe import Markup

from probe.model.model import Model
from probe.pages import html
from probe.pages.walk import page as walk_page
from probe.pages.walk.walk import Walk, walk
from probe.patching import live, positions
from probe.stats.axes import Axis

FORMULAS = (  # of numbers that the walk does not have
    Axis.coordinate,
    live.swapped,
    positions.donated_heads,
)
TEMPLATES = Path(__file__).parent / "templates"
HOSTS = {"server": "; connect-src 'self'", "notebook": ""}  # what else the page of each may reach
EXAMPLES = (  # a word in two meanings, with as many tokens before it in both
    ("The river rose, so he went to the bank", "The money came, so he went to the bank"),
    ("They saw the river from the bank", "They took the money from the bank"),
    ("In the garden they found a mole", "In the agency they found a mole"),
    ("She baked a pie with the apple", "She sold the shares of the apple"),
)


def opened(model: Model) -> Walk:
    """The walk that the page opens with. Raises as `probe.walk`."""
    text, other = EXAMPLES[0]
    return walk(model, text, against=other, traced=False)


def render(opened: Walk, *, host: str = "server") -> tuple[str, str]:
    """The page for a host of HOSTS and its content security policy, which lets it ask its host and nobody else."""
    templates = _templates()
    assets = html.assets(templates, sheet="explore.css.j2", script="explore.js", values=walk_page.LOOKS)
    assets["policy"] = f"{assets['policy']}{HOSTS[host]}"
    values = walk_page.values(replace(opened, later=None, caution=None))
    values["formulas"] |= walk_page.formulas(*FORMULAS)
    page = templates.get_template("explore.html.j2").render(values, examples=EXAMPLES, host=host, **assets)
    return page, str(assets["policy"])


def choices(tokens: Sequence[Mapping[str, Any]]) -> Markup:
    """The tokens of a text to choose from, as the walk has them above its steps."""
    parts: Any = _templates().get_template("parts.html.j2").module
    return Markup(parts.choices(walk_page.chips(pd.DataFrame(list(tokens)))))


@cache
def _templates() -> Environment:
    return walk_page.environment(TEMPLATES)
