"""What the commands share on a terminal: the options that several take, the tables they print, a progress bar.

Heavy imports wait inside, as in `probe.cli`.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from probe.model.check import Certificate
    from probe.model.parameters import Count
    from probe.study.evaluation import Evaluation
DEFAULT_MODEL = "tiny-senses"
# Who reads beside whom the sentences whose cue comes after the word.
COMPANION = {DEFAULT_MODEL: "tiny-senses-bidirectional"}

ModelOption = Annotated[str, typer.Option("--model", help="An embedded name, a hub name or a folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def print_certificate(certificate: "Certificate") -> None:
    header = ["layer", "quantity", "formula", "error", "scale", "tolerance", ""]
    rows = [
        [
            "all" if row.layer is None else f"{row.stack} {row.layer}".strip(),
            row.quantity,
            row.formula,
            f"{row.error:.1e}",
            f"{row.scale:.2g}",
            f"{row.tolerance:.0e}",
            ("ok" if row.ok else "FELL SHORT") + (f" ({row.note})" if row.note else ""),
        ]
        for row in certificate.rows
    ]
    print_table(header, rows)
    worst = certificate.worst
    typer.echo(
        f"{certificate.model_name} ({certificate.dtype}): {sum(row.ok for row in certificate.rows)} of {len(certificate.rows)} rows hold; "
        f"the largest difference is {worst.error:.1e} of its scale ({worst.quantity})."
    )


def print_evaluation(result: "Evaluation") -> None:
    for header, rows in result.text_tables():
        print_table(header, rows)
        typer.echo()
    for line in result.reasons():
        typer.echo(line)


def print_count(counted: "Count", as_json: bool) -> None:
    from probe.model.parameters import told

    if as_json:
        parts = [asdict(part) | {"total": part.total} for part in counted.parts]
        totals = {name: getattr(counted, name) for name in ("per_head", "per_block", "attention", "total")}
        more = {"square_value": counted.square_value, "tensors": counted.tensors}
        typer.echo(json.dumps({"sizes": asdict(counted.sizes), "parts": parts} | totals | more))
        return
    rows = [
        [part.name, part.shape, f"{part.each:>11,}", f"{part.number:>7,}", f"{part.total:>14,}"]
        for part in counted.parts
        if part.number
    ]
    print_table(["part", "shape", f"{'each':>11}", f"{'of them':>7}", f"{'in all':>14}"], rows)
    for line in told(counted):
        typer.echo(line)


def print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error when it is a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda stage, share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, share: bar.update(task, description=stage, completed=share)
