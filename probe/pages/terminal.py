"""What a terminal is shown: tables on standard output, progress on standard error."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import TYPE_CHECKING

import typer

MINUTE = 60.0

if TYPE_CHECKING:
    from probe.model.check import Certificate


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
    hold = f"{sum(row.ok for row in certificate.rows)} of {len(certificate.rows)} rows hold"
    typer.echo(
        f"{certificate.model_name} ({certificate.dtype}): {hold}; "
        f"the largest difference is {worst.error:.1e} of its scale ({worst.quantity})."
    )


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
    """A bar on standard error when it is a terminal, a line a minute otherwise."""
    if not sys.stderr.isatty():
        yield _line_a_minute()
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("loading the model", total=1.0)
        yield lambda stage, share: bar.update(task, description=stage, completed=share)


def _line_a_minute() -> Callable[[str, float], None]:
    started = said = monotonic()

    def tell(stage: str, share: float) -> None:
        nonlocal said
        if monotonic() - said >= MINUTE:
            said = monotonic()
            typer.echo(f"{stage}: {share:.0%} after {(said - started) / MINUTE:.0f} min", err=True)

    return tell
