"""The report of a study: a folder with one page, its tables and graphs, and what made them; and what a notebook shows.

Without scripts the answers, the tokens and the tables of the page are still there. A notebook shows HTML without
scripts, its pictures inside, so that it stays when the notebook is saved, sent and opened where nothing runs.
"""

import os
from collections.abc import Mapping
from functools import singledispatch
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from probe import charts
from probe.charts import grid, heads
from probe.charts.palette import image
from probe.model.records import Trace
from probe.pages import excerpts, output, remarks, sections, ways
from probe.pages.output import REPORT
from probe.pages.rows import Frames
from probe.provenance import manifest
from probe.stats.verdicts import ORDER
from probe.study.columns import LEADERS, dictionary
from probe.study.study import Study


def write_report(study: Study, out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write the page, its tables and the manifest into the folder `out`, and return the path of the page.

    `command` is printed on the page as what made it. Raises InputError when the folder cannot be written.
    """
    output.check_folder(out)
    made = manifest(
        study.model_name,
        study.origin,
        seed=study.options["seed"],
        command=command,
        data_sha256=study.data_sha256,
        dtype=study.certificate.dtype,
        options=study.options,
    )
    frames = study.frames | {"columns": dictionary(study.frames)}
    files = {REPORT: render(frames, made)} | ways.graphs(frames, study.model_name)
    return output.write_folder(out, files, frames=frames, made=made) / REPORT


def render(frames: Frames, made: Mapping[str, Any]) -> str:
    """The page of a study's frames; `made` is the manifest (everything but the time is shown)."""
    templates = output.environment("report")
    return templates.get_template("ambiguity.html.j2").render(
        all_verdicts=[(name, charts.MEANINGS[name]) for name in ORDER],
        causal=bool(frames["words"]["causal"].all()),
        predicts=bool(frames["heads"]["p_said"].notna().any()),
        model_name=made["model"],
        opening=excerpts.opening(frames, made["model"], made["origin"]["kind"]),
        scope=remarks.scope(frames),
        cards=sections.cards(frames),
        maps=sections.maps(frames),
        readings=excerpts.readings(frames),
        shares=sections.shares(frames),
        every_head=sections.every_head(frames),
        showcase=excerpts.showcase(frames),
        ways=ways.section(frames),
        together=sections.together(frames),
        believe=sections.controls_and_power(frames),
        comes_about=sections.distances_and_routes(frames),
        supplied=excerpts.ledgers(frames),
        certificate=sections.certificate(frames["certificate"]),
        data=sections.data_used(frames),
        downloads=sections.downloads(frames),
        dictionary=frames["columns"].to_dict("records"),
        manifest=made,
        **output.assets(templates, "style.css.j2", "page.js", leaders=LEADERS),
    )


HUES = ("#e8f0fe", "#fef3e0", "#e6f4ea", "#fce8f3")
LOOK = "background:{};color:#222;border-radius:4px;padding:2px 5px;margin:1px;display:inline-block"
CHIP = f'<span style="{LOOK}">{{}}</span>'
READ = (
    "Attention of every head, layers down and heads across. In a square the tokens that look go down and those looked "
    "at go across, both from 0 at the top left."
)


@singledispatch
def html_of(result: object) -> str:
    """The HTML of a result; TypeError for what has none."""
    raise TypeError(f"no picture of a {type(result).__name__}")


@html_of.register
def _trace(trace: Trace) -> str:
    """Tokens, the attention of every head, and what the trace holds."""
    layers, head_count, d_model, d_head = trace.stack.shape
    n = len(trace.tokens)
    chips = "".join(CHIP.format(HUES[pos % 4], escape(label)) for pos, label in enumerate(trace.tokens.labels))
    shapes = {
        "q k v z": f"{layers} layer × {head_count} head × {n} pos × {d_head} d_head",
        "scores pattern": f"{layers} layer × {head_count} head × {n} query_pos × {n} key_pos",
        "x resid_pre attn_out resid_mid mlp_out resid_post": f"{layers} layer × {n} pos × {d_model} d_model",
    }
    rows = "".join(f"<tr><td><code>{names}</code></td><td>{shape}</td></tr>" for names, shape in shapes.items())
    return (
        f"<div><p><b>Trace</b> of {n} tokens through {escape(trace.model_name)}</p><p>{chips}</p>"
        f"{image(grid.head_grids(_weights(trace), tokens=n))}<p>{READ}</p><table>{rows}</table></div>"
    )


def _weights(trace: Trace) -> pd.DataFrame:
    """Every attention weight of the trace."""
    names = ["layer", "head", "query_pos", "key_pos"]
    index = pd.MultiIndex.from_product([*map(range, trace.pattern.shape)], names=names)
    return pd.Series(trace.pattern.flatten().double().numpy(), index, name="weight").reset_index()


@html_of.register
def _study(study: Study) -> str:
    """The first screen of its report: the answer, the maps, and a line for each word."""
    frames = study.frames
    shown = excerpts.opening(frames, study.model_name, study.origin.kind)
    lines = "".join(
        f"<tr><th>{escape(line['word'])}</th><td>{_heads(line['heads'])}</td><td>{escape(line['sure'])}</td></tr>"
        for line in shown["lines"]
    )
    notes = "".join(f"<p>{escape(caution)}</p>" for caution in shown["cautions"])
    maps = image(heads.head_maps(frames["word_heads"])) if len(frames["word_heads"]) else ""
    head = "<tr><th>word</th><th>first heads: per cent of the way between two meanings</th><th>how sure</th></tr>"
    return (
        f"<div><p><b>Study</b> of {escape(study.model_name)}: {escape(shown['question'])}</p>"
        f"<p><b>{escape(shown['across'])}</b></p>{notes}{maps}"
        f"<table><thead>{head}</thead><tbody>{lines}</tbody></table><p>frames: {', '.join(frames)}</p></div>"
    )


def _heads(shown: list[dict[str, str]]) -> str:
    return ", ".join(f"{head['name']} {head['effect']} {head['interval']}" for head in shown) or "none"
