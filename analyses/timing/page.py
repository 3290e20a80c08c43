"""The measurements as one page, with their tables in the same folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import drawing
import pandas as pd
from drawing import Panel

from probe.pages import folder, html
from probe.stats.numbers import decimal

PAGE = "speed.html"
AXES = {
    "sentences": "sentences read",
    "pairs": "pairs swapped, all heads both ways",
    "tokens": "tokens of one text",
}
QUANTITIES = {"seconds": "seconds", "megabytes": "extra MiB"}


def write_page(
    frames: Mapping[str, pd.DataFrame],
    machine: Mapping[str, str],
    out: str | os.PathLike[str],
    *,
    date: str,
) -> Path:
    """Write speed.html, the frames as tables, and the machine as the manifest. Return the path of the page.

    frames: by name:
        targets: `work against target holds ratio ratio_low ratio_high seconds against_seconds unit`
        scaling: `shape axis size seconds megabytes`
        exponents: `shape axis quantity exponent square_share square_from`
    """
    templates, scaling = (
        html.environment(Path(__file__).parent / "templates", "report"),
        frames["scaling"],
    )
    page = templates.get_template("speed.html.j2").render(
        rows=[_row(row) for row in frames["targets"].to_dict("records")],
        pictures=[
            (title, _picture(scaling[scaling["axis"] == axis], axis))
            for axis, title in AXES.items()
        ],
        exponents=[_exponent(row) for row in frames["exponents"].to_dict("records")],
        machine=dict(machine) | {"date": date},
        **html.assets(templates, "style.css.j2", "page.js"),
    )
    return (
        folder.write_folder(
            out, {PAGE: page}, frames=frames, manifest={"machine": dict(machine), "date": date}
        )
        / PAGE
    )


def _row(row: Mapping[Any, Any]) -> dict[str, Any]:
    value, low, high = (f"{row[name]:.3g}" for name in ("ratio", "ratio_low", "ratio_high"))
    spread = "" if low == high else f"{low} to {high}"
    return dict(row) | {"measured": f"{value} {row['unit']}", "spread": spread}


def _exponent(row: Mapping[Any, Any]) -> dict[str, Any]:
    share = f"{row['square_share']:.0%} of it at the longest, a tenth from {row['square_from']:,.0f} tokens"
    square = share if row["axis"] == "tokens" and row["square_share"] > 0 else ""
    return dict(row) | {
        "exponent": decimal(row["exponent"]),
        "square": square,
        "of": QUANTITIES[row["quantity"]],
    }


def _picture(rows: pd.DataFrame, axis: str) -> Any:
    long = rows.melt(["shape", "size"], list(QUANTITIES), "quantity", "value").dropna()
    long = long[long["value"] > 0]
    long = long.rename(columns={"shape": "variant", "size": "x"}).assign(
        panel=long["quantity"].map(QUANTITIES)
    )
    panels: Sequence[Panel] = [
        Panel(title, axis, title, log="xy") for title in long["panel"].drop_duplicates()
    ]
    return drawing.line_panels(long, panels, width=300)
