"""The command line: parse, call one library function, write. Heavy imports wait inside the commands, so `--help` is instant.

Results go to standard output, progress (on a terminal only) and errors to standard error. Exit 0; 1 when a check fell short;
2 for bad input or a model that cannot be trusted, in one sentence; 130 when interrupted.
"""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from probe.errors import ProbeError
from probe.sweep.command import sweep

if TYPE_CHECKING:
    from probe.check import Certificate
    from probe.evaluation.evaluate import Evaluation
    from probe.parameters import Count
    from probe.walk.record import Walk

DEFAULT_MODEL = "tiny-senses"
INTERRUPTED = 130
PERMUTATIONS = 1000

app = typer.Typer(
    name="probe",
    help="Which attention heads move the meaning of an ambiguous word, from which cue, at which depth, and how we know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

ModelOption = Annotated[str, typer.Option("--model", help="An embedded name, a hub name or a folder.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


@app.command()
def report(
    words: Annotated[
        list[str] | None, typer.Argument(metavar="[WORD]...", help="Words to study; bank, mole and apple by default.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    sentences: Annotated[
        Path | None, typer.Option(help="Your own sentences: JSONL, CSV, TSV, Parquet or a CoarseWSD-20 word folder.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("reports"),
    seed: Annotated[
        int, typer.Option(min=0, help="Decides splits, pairs, donors, permutations and bootstrap draws.")
    ] = 0,
    permutations: Annotated[
        int, typer.Option(min=99, help="How often senses are reassigned to cue words.")
    ] = PERMUTATIONS,
    shards: Annotated[
        Path | None,
        typer.Option("--from", help="A finished sweep: its page, from its shards alone, without the model."),
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Refuse before the work what would take more, as 4GB; else what is not free.")
    ] = None,
) -> None:
    """Which heads move the words' meaning: a page, its tables and a manifest."""
    from probe.report import check_folder, write_report

    check_folder(out)
    if shards is not None:
        from probe.sweep.page import write_page

        typer.echo(write_page(shards, out, words=words))
        return
    from probe.cost import parse_memory

    limit = None if max_memory is None else parse_memory(max_memory)
    corpus = None
    if sentences is not None:
        from probe.lexicon import read_sentences

        corpus = read_sentences(sentences)
    with _progress() as progress:
        progress("loading the model", 0.0)
        from probe.models import load
        from probe.study import plan, study

        loaded = load(model)
        planned = plan(loaded, words, corpus=corpus, seed=seed)
        typer.echo(planned, err=True)
        planned.require(limit)
        result = study(loaded, words, corpus=corpus, seed=seed, permutations=permutations, progress=progress)
        progress("writing", 0.98)
        pages = write_report(result, out, command=_command(model, sentences, result.options))
    typer.echo(pages)


@app.command()
def walk(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The sentence to follow.")],
    word: Annotated[str | None, typer.Option(help="The word to follow; the last one by default.")] = None,
    beside: Annotated[
        str | None, typer.Option(help="Another text with the same word; one that ships by default.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    layer: Annotated[int | None, typer.Option(help="Follow a head of this layer, counted from 0.")] = None,
    head: Annotated[
        int | None, typer.Option(help="Follow this head of --layer; the one that moves the word most by default.")
    ] = None,
    out: Annotated[Path, typer.Option(help="The folder to write into.")] = Path("reports"),
) -> None:
    """One sentence, every step of attention with its real numbers: a page, its tables and a manifest."""
    from probe.pages.folder import check_folder

    check_folder(out)
    with _progress() as progress:
        progress("loading the model", 0.0)
        from probe.models import load
        from probe.walk import walk, write_walk

        loaded = load(model)
        progress("walking", 0.4)
        walked = walk(loaded, text, word=word, head=(layer, head), beside=beside)
        progress("writing", 0.9)
        page = write_walk(walked, out, command=_walk_command(model, walked))
    typer.echo(page)


@app.command()
def check(
    texts: Annotated[
        list[str] | None, typer.Argument(metavar="[TEXT]...", help="Texts to run; two short ones by default.")
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    as_json: JsonOption = False,
) -> None:
    """The certificate: the hooked model against the same numbers from the raw weights; exit 1 when a row falls short."""
    from probe.check import DEFAULT_TEXTS, certify
    from probe.models import load

    certificate = certify(load(model), texts or DEFAULT_TEXTS)
    if as_json:
        rows = [asdict(row) | {"ok": row.ok} for row in certificate.rows]
        typer.echo(
            json.dumps(
                {"model": certificate.model_name, "dtype": certificate.dtype, "ok": certificate.ok, "rows": rows}
            )
        )
    else:
        _print_certificate(certificate)
    certificate.require()


@app.command()
def evaluate(
    sentences: Annotated[
        Path,
        typer.Option(help="Labelled sentences: JSONL, CSV, TSV, Parquet, or one or several CoarseWSD-20 word folders."),
    ],
    model: ModelOption = DEFAULT_MODEL,
    out: Annotated[Path | None, typer.Option(help="A folder to write the tables and a manifest into.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Decides the folds.")] = 0,
    as_json: JsonOption = False,
) -> None:
    """How well each layer tells the senses apart at the word, beside baselines that need no model."""
    from probe.evaluation.evaluate import evaluate, write_evaluation
    from probe.lexicon import read_sentences
    from probe.models import load
    from probe.report import check_folder

    if out is not None:
        check_folder(out)
    corpus = read_sentences(sentences)
    with _progress() as progress:
        progress("loading the model", 0.0)
        result = evaluate(load(model), corpus, seed=seed, progress=progress)
    if out is not None:
        command = ["probe", "evaluate", "--sentences", sentences.name, "--model", Path(model).name, "--seed", str(seed)]
        write_evaluation(result, out, command=command)
    if as_json:
        typer.echo(result.to_json())
    else:
        _print_evaluation(result)


app.command()(sweep)


@app.command()
def params(
    name: Annotated[
        str, typer.Argument(metavar="[NAME|MODEL]", help="gpt3 (by formula), or a model: its tensors are counted.")
    ] = DEFAULT_MODEL,
    as_json: JsonOption = False,
) -> None:
    """How many parameters a model has, and where: gpt3 by formula, a loaded model from its tensors."""
    from probe.parameters import PUBLISHED, count_tensors, published

    if name in PUBLISHED:
        counted = published(name)
    else:
        from probe.models import load

        counted = count_tensors(load(name))
    _print_count(counted, as_json)


@app.command()
def models(as_json: JsonOption = False) -> None:
    """What can be loaded, and what is already on this machine."""
    from probe.models import available

    rows = [asdict(row) for row in available()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    _print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


def main() -> None:
    """The `probe` program: every failure a user can mend is one sentence on standard error."""
    try:
        code = app(prog_name="probe", standalone_mode=False)
        if code == INTERRUPTED:  # Typer turns Ctrl-C into its exit code without a word
            raise KeyboardInterrupt
        sys.exit(code)
    except ProbeError as error:
        typer.echo(f"probe: {error}", err=True)
        sys.exit(error.exit_code)
    except TyperException as error:
        place = getattr(error, "ctx", None)  # a wrong option carries the command it was given to
        command = place.command_path if place else "probe"
        typer.echo(f"probe: {error.format_message().rstrip('.')} (see `{command} --help`).", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("probe: interrupted; finished files are kept, unfinished ones were not written.", err=True)
        sys.exit(INTERRUPTED)


def _command(model: str, sentences: Path | None, options: Mapping[str, Any]) -> str:
    """The command that makes the same page again, whatever the defaults will be then, without this machine's folders."""
    parts = ["probe", "report", *options["words"], "--model", Path(model).name]
    parts += ["--sentences", sentences.name] if sentences else []
    parts += ["--permutations", str(options["permutations"])] if options["permutations"] != PERMUTATIONS else []
    return shlex.join([*parts, "--seed", str(options["seed"])])


def _walk_command(model: str, walked: "Walk") -> str:
    """The command that makes the same page again, without this machine's folders."""
    parts = [
        "probe",
        "walk",
        walked.text,
        "--word",
        walked.word,
        "--beside",
        walked.beside,
        "--model",
        Path(model).name,
    ]
    return shlex.join([*parts, "--layer", str(walked.layer), "--head", str(walked.head)])


def _print_certificate(certificate: "Certificate") -> None:
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
    _print_table(header, rows)
    worst = certificate.worst
    typer.echo(
        f"{certificate.model_name} ({certificate.dtype}): {sum(row.ok for row in certificate.rows)} of {len(certificate.rows)} rows hold; "
        f"the largest difference is {worst.error:.1e} of its scale ({worst.quantity})."
    )


def _print_evaluation(result: "Evaluation") -> None:
    for header, rows in result.text_tables():
        _print_table(header, rows)
        typer.echo()
    for line in result.reasons():
        typer.echo(line)


def _print_count(counted: "Count", as_json: bool) -> None:
    from probe.parameters import told

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
    _print_table(["part", "shape", f"{'each':>11}", f"{'of them':>7}", f"{'in all':>14}"], rows)
    for line in told(counted):
        typer.echo(line)


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
    width = None if sys.stdout.isatty() else 160
    Console(width=width, highlight=False, markup=False, emoji=False).print(table)


@contextmanager
def _progress() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error when it is a terminal, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda stage, share: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, share: bar.update(task, description=stage, completed=share)
