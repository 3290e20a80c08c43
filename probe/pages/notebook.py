"""What a notebook shows of a trace and of a study: HTML without scripts, its pictures inside, so that it stays when the
notebook is saved, sent and opened where nothing runs.
"""

from functools import singledispatch
from html import escape

import pandas as pd

from probe.charts import grid, heads
from probe.charts.palette import image
from probe.model.records import Trace
from probe.pages.opening import opening
from probe.study.study import Study

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
    shown = opening(frames, study.model_name, study.origin.kind)
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
