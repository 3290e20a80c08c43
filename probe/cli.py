"""The command line: parse, call one library function, write. Heavy imports wait inside the commands, so `--help` is instant.

Results go to standard output, progress (on a terminal only) and errors to standard error. Exit 0; 1 when a check fell short;
2 for bad input or a model that cannot be trusted, in one sentence; 130 when interrupted.
"""

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.exceptions import TyperException

from probe import terminal
from probe.errors import ProbeError
from probe.sweep.command import sweep
from probe.terminal import COMPANION, DEFAULT_MODEL, JsonOption, ModelOption

if TYPE_CHECKING:
    from probe.pages.walk.walk import Walk
    from probe.study.cost import Plan
INTERRUPTED = 130
PERMUTATIONS = 1000

app = typer.Typer(
    name="probe",
    help="Which attention heads move the meaning of an ambiguous word, from which cue, at which depth, and how we know.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


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
    beside: Annotated[
        str | None,
        typer.Option(
            help="A model that reads both ways, for the lesson's sentences whose cue comes after the word ('' for none)."
        ),
    ] = None,
    max_memory: Annotated[
        str | None, typer.Option(help="Refuse before the work what would take more, as 4GB; else what is not free.")
    ] = None,
) -> None:
    """Which heads move the words' meaning: a page, its tables and a manifest."""
    from probe.pages.folder import check_folder

    check_folder(out)
    if shards is not None:
        from probe.pages.sweep import write_page

        typer.echo(write_page(shards, out, words=words))
    else:
        models = (model, COMPANION.get(model) if beside is None else beside or None)
        typer.echo(_report_study(words, models, sentences, out, (seed, permutations, max_memory)))


def _report_study(
    words: list[str] | None,
    models: tuple[str, str | None],
    sentences: Path | None,
    out: Path,
    options: tuple[int, int, str | None],
) -> Path:
    """Measure and write; `models`: the one that is studied and the one beside it, `options`: seed, permutations, the memory allowed."""
    from probe.study.cost import parse_memory

    (model, beside), (seed, permutations, max_memory) = models, options
    limit = None if max_memory is None else parse_memory(max_memory)
    corpus = None
    if sentences is not None:
        from probe.text.lexicon import read_sentences

        corpus = read_sentences(sentences)

    def planned(plan: "Plan") -> None:
        typer.echo(plan, err=True)
        plan.require(limit)

    with terminal.progress_bar() as progress:
        progress("loading the model", 0.0)
        from probe.model.load import load
        from probe.pages.report import write_report
        from probe.study.study import study

        result = study(
            load(model),
            words,
            corpus=corpus,
            seed=seed,
            permutations=permutations,
            beside=load(beside) if beside else None,
            progress=progress,
            planned=planned,
        )
        progress("writing", 0.98)
        return write_report(result, out, command=_command((model, beside), sentences, result.options))


@app.command()
def walk(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="The sentence to follow.")],
    target: Annotated[
        str | None, typer.Option(help="For an encoder-decoder: the translation of TEXT so far; what it reads is shown.")
    ] = None,
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
    with terminal.progress_bar() as progress:
        progress("loading the model", 0.0)
        from probe.model.load import load
        from probe.pages.walk.page import write_walk
        from probe.pages.walk.walk import walk

        loaded = load(model)
        progress("walking", 0.4)
        walked = walk(loaded, text, target, word=word, head=(layer, head), beside=beside)
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
    from probe.model.check import DEFAULT_TEXTS, certify
    from probe.model.load import load

    certificate = certify(load(model), texts or DEFAULT_TEXTS)
    if as_json:
        rows = [asdict(row) | {"ok": row.ok} for row in certificate.rows]
        typer.echo(
            json.dumps(
                {"model": certificate.model_name, "dtype": certificate.dtype, "ok": certificate.ok, "rows": rows}
            )
        )
    else:
        terminal.print_certificate(certificate)
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
    from probe.model.load import load
    from probe.pages.report import check_folder
    from probe.study.evaluation import evaluate, write_evaluation
    from probe.text.lexicon import read_sentences

    if out is not None:
        check_folder(out)
    corpus = read_sentences(sentences)
    with terminal.progress_bar() as progress:
        progress("loading the model", 0.0)
        result = evaluate(load(model), corpus, seed=seed, progress=progress)
    if out is not None:
        command = _again("evaluate", sentences=sentences.name, model=Path(model).name, seed=seed)
        write_evaluation(result, out, command=command)
    if as_json:
        typer.echo(result.to_json())
    else:
        terminal.print_evaluation(result)


app.command()(sweep)


@app.command()
def params(
    name: Annotated[
        str, typer.Argument(metavar="[NAME|MODEL]", help="gpt3 (by formula), or a model: its tensors are counted.")
    ] = DEFAULT_MODEL,
    as_json: JsonOption = False,
) -> None:
    """How many parameters a model has, and where: gpt3 by formula, a loaded model from its tensors."""
    from probe.model.parameters import PUBLISHED, count_tensors, published

    if name in PUBLISHED:
        counted = published(name)
    else:
        from probe.model.load import load

        counted = count_tensors(load(name))
    terminal.print_count(counted, as_json)


@app.command()
def models(as_json: JsonOption = False) -> None:
    """What can be loaded, and what is already on this machine."""
    from probe.model.load import available

    rows = [asdict(row) for row in available()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    terminal.print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


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


def _command(models: tuple[str, str | None], sentences: Path | None, options: Mapping[str, Any]) -> str:
    """The `probe report` that makes the same page again, whatever the defaults will be then, without this machine's folders."""
    permutations = options["permutations"] if options["permutations"] != PERMUTATIONS else None
    model = Path(models[0]).name
    beside = Path(models[1]).name if models[1] else "" if model in COMPANION else None
    more = {"sentences": sentences and sentences.name, "beside": beside}
    more |= {"permutations": permutations, "seed": options["seed"]}
    return shlex.join(_again("report", *options["words"], model=model, **more))


def _walk_command(model: str, walked: "Walk") -> str:
    """The `probe walk` that makes the same page again, without this machine's folders."""
    asked = walked.options
    text = str(asked.pop("text"))
    first = {name: asked.pop(name) for name in ("target", "word", "beside") if name in asked}
    return shlex.join(_again("walk", text, **first, model=Path(model).name, **asked))


def _again(*given: str, **options: object) -> list[str]:
    """A command's words, its options in the order given; options that are None are left out."""
    named = {name: str(value) for name, value in options.items() if value is not None}
    return ["probe", *given, *(word for name, value in named.items() for word in (f"--{name}", value))]
