"""`probe sweep` on the command line; heavy imports wait inside, so that the help of `probe` is instant."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from probe.terminal import DEFAULT_MODEL, ModelOption

if TYPE_CHECKING:
    from probe.sweep.run import Sweep


def sweep(
    sentences: Annotated[
        list[Path],
        typer.Option(help="Labelled sentences: JSONL, CSV, TSV, Parquet, CoarseWSD-20 folders, or folders of files."),
    ],
    out: Annotated[Path, typer.Option(help="The folder of the shards; what is finished there is kept.")],
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[PATH]...", help="More of them, after the first.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    engine: Annotated[str, typer.Option(help="local: in this process; dask: on workers (probe[cluster]).")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A running Dask scheduler, such as tcp://127.0.0.1:8786.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Dask workers on this machine, without --scheduler; one per processor.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides the split and the donors.")] = 0,
    block: Annotated[int, typer.Option(min=1, help="Sentences per shard: what a kill can lose.")] = 1024,
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what is finished; this is what happens without it, too.")
    ] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Progress and result as JSON lines.")] = False,
) -> None:
    """The measurements of a study over a large corpus, as Parquet shards that survive whatever stops it."""
    from probe.sweep import progress
    from probe.sweep.deal import Options
    from probe.sweep.run import Workers, sweep

    with progress.shown(as_json=as_json) as step:
        result = sweep(
            model,
            [*sentences, *(more or [])],
            out,
            options=Options(seed=seed, block=block),
            workers=Workers(engine, scheduler, workers),
            step=step,
        )
    _tell(result, as_json)


def _tell(result: "Sweep", as_json: bool) -> None:
    """What became of the sentences."""
    if result.said:
        typer.echo(f"probe: {result.said}", err=True)
    counts = result.manifest["counts"]
    if as_json:
        typer.echo(json.dumps({"folder": str(result.folder), "counts": counts}))
        return
    typer.echo(result.folder)
    typer.echo(
        f"{counts['in']:,} sentences: {counts['measured']:,} measured, {counts['fitted_on']:,} fitted on, "
        f"{counts['left_out']:,} left out; {counts['shards']:,} shards, {counts['rows_of_heads']:,} rows of heads."
    )
