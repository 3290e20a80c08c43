"""The command line: parse, call one library function, write.

Heavy imports wait inside the commands, so `--help` is instant. Results go to standard output,
progress (on a terminal only) and errors to standard error. Exit 0; 1 when a check fell short; 2 for
bad input or a model that cannot be trusted, in one sentence; 130 when interrupted.
"""

import errno
import json
import os
import shlex
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, cast

import typer
from typer import Argument, Option
from typer.exceptions import TyperException

import probe
from probe.errors import InputError, ProbeError
from probe.pages.terminal import (
    REASONS,
    cost_sentence,
    likely,
    print_certificate,
    print_evaluation,
    print_parameters,
    print_table,
    progress_bar,
    sentences_suffice,
    survey_suffices,
)
from probe.provenance import command_line
from probe.stats.limits import FEWEST_WORDS

if TYPE_CHECKING:
    from probe.explorer.page import Question
    from probe.model.model import Model
    from probe.studies.cost import StudyCost
    from probe.studies.study import Foreseen
    from probe.text.sentences import Corpus
    from probe.walkthrough.walk import Walk
INTERRUPTED = 130  # what a shell gives a program that Ctrl-C ended
PERMUTATIONS = 1000
DEFAULT_MODEL = "tiny-senses"
# Which model reads, beside which, the sentences whose cue comes after the word.
COMPANION = {DEFAULT_MODEL: "tiny-senses-bidirectional"}
FORMS = "JSONL, CSV, TSV, Parquet, CoarseWSD-20 word folders, or a folder of these."
# How long a waiting thread of torch spins before it sleeps: about as long as Python takes from one
# product to the next, and no longer. By default it is hundreds of times as long, and beside another
# busy process a waiting thread keeps from its processor the very thread that it waits for. Read
# when torch is loaded, by GNU's OpenMP (in iterations) and by LLVM's and Intel's (in milliseconds).
WAITING = {"GOMP_SPINCOUNT": "500", "KMP_BLOCKTIME": "1"}
CPU: Final = "cpu"
SINGLE: Final = "float32"
REPORTS = Path("reports")
TEXT = "TEXT"  # how help calls an argument that is a text
# Typer's words: how a sentence of its begins, and one that says nothing to a person.
TOO_MANY = "Got unexpected extra argument"
NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


def _typed(text: str) -> str:
    """A text of the command line; its bytes are UTF-8 where Python took them for ASCII."""
    if any("\udc80" <= character <= "\udcff" for character in text):
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    return text


ModelOption = Annotated[
    str,
    Option(
        "--model",
        help="A name (probe models lists them), a hub name (owner/name@revision for a checkpoint "
        "of its training), a folder or a GGUF file.",
    ),
]
DeviceOption = Annotated[str, Option("--device", help="Where the model runs, as cpu or cuda.")]
DtypeOption = Annotated[
    Literal["float32", "float64", "bfloat16"],
    Option(
        "--dtype",
        help="What is computed in, whatever the file holds; bfloat16 takes half the memory.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
ControlsOption = Annotated[
    str | None,
    Option(
        help="Nouns with one meaning to put in the word's place, as window,fence; those that ship "
        "by default, 'none' for no comparison."
    ),
]
OutOption = Annotated[Path, Option(help="The folder to write into.")]
Labelled = Option(help=f"Labelled sentences: {FORMS}")

app = typer.Typer(
    name="probe",
    help="Which attention heads move the meaning of an ambiguous word, from which cue, at which "
    "depth, and how we know.",
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def bare(
    context: typer.Context,
    version: Annotated[bool, Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"probe {probe.__version__}")
        raise typer.Exit
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command()
def report(
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[WORD]...",
            parser=_typed,
            help="Words to study; bank, mole and apple by default.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    sentences: Annotated[Path | None, Option(help=f"Your own sentences: {FORMS}")] = None,
    out: OutOption = REPORTS,
    seed: Annotated[
        int, Option(min=0, help="Decides splits, pairs, donors, permutations and bootstrap draws.")
    ] = 0,
    permutations: Annotated[
        int, Option(min=99, help="How often senses are reassigned to cue words.")
    ] = PERMUTATIONS,
    controls: ControlsOption = None,
    only: Annotated[
        str | None,
        Option(
            metavar="EXPERIMENTS",
            help="Run these experiments and what they need, as heads,nouns; an unknown name lists "
            "all. The page has their sections.",
        ),
    ] = None,
    without: Annotated[
        str | None,
        Option(
            metavar="EXPERIMENTS",
            help="Leave out these experiments, as circuit, and those that need them.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        Option(
            help="A model that reads both ways, for the lesson's sentences whose cue comes after "
            "the word ('' for none)."
        ),
    ] = None,
    max_memory: Annotated[
        str | None,
        Option(help="Refuse before the work what would take more, as 4GB; else what is not free."),
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Say what the sentences are enough for, what is likely to come out, minutes and "
            "memory; swap nothing, write nothing.",
        ),
    ] = False,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """Which heads move the words' meaning: a page, its tables and a manifest."""
    from probe.pages.folder import REPORT, check_folder

    check_folder(out, REPORT, inputs=[sentences] if sentences else [])
    from probe.experiments.table import choose
    from probe.studies.cost import parse_memory
    from probe.text.sentences import as_corpus

    experiments = choose(only, without or ())

    limit = None if max_memory is None else parse_memory(max_memory)
    corpus = None if sentences is None else as_corpus(sentences, words)
    second = COMPANION.get(model) if beside is None else beside or None

    def command(words: Sequence[str]) -> str:
        return _command(
            words,
            model,
            second,
            sentences,
            permutations=None if permutations == PERMUTATIONS else permutations,
            controls=controls,
            only=only,
            without=without,
            seed=seed,
            **_compute_options(device, dtype),
        )

    def planned(cost: "StudyCost") -> None:
        if corpus is not None:
            _say_cautions(corpus, loaded, keeps_columns=len(cost.words) >= FEWEST_WORDS)
        typer.echo(cost_sentence(cost), err=True)
        cost.require(limit)
        if dry_run:
            typer.echo("\n".join(sentences_suffice(cost)))
        else:
            _say_what_is_replaced(out, REPORT, command(cost.words))

    def foreseen(gates: "list[Foreseen]") -> None:
        typer.echo("\n".join(likely(one) for one in gates))
        raise typer.Exit

    with progress_bar() as progress:
        from probe.pages.write import write
        from probe.studies.study import HALFWAY, Study, study

        def write_page(result: Study) -> Path:
            progress("writing", HALFWAY if result.unfinished else 0.98)
            return write(result, out, command=command(cast("list[str]", result.options["words"])))

        loaded = _load(model, device, dtype)
        result = study(
            loaded,
            words,
            sentences=corpus,
            seed=seed,
            permutations=permutations,
            controls=controls,
            experiments=experiments,
            second=_load(second, device, dtype) if second else None,
            progress=progress,
            planned=planned,
            foreseen=foreseen if dry_run else None,
            answered=write_page,
            out=out,
        )
        page = write_page(result)
    typer.echo(page)


def _print_survey_plan(
    model: "Model",
    corpus: "Corpus | None",
    *,
    controls: str | None,
    seed: int,
    pages: bool,
    workers: int,
    as_json: bool,
) -> None:
    from probe.studies.survey import plan_survey

    plan = plan_survey(model, corpus, controls=controls, seed=seed, pages=pages)
    if as_json:
        typer.echo(plan.to_json())
    else:
        typer.echo("\n".join(survey_suffices(plan, workers)))


def _say_cautions(corpus: "Corpus", model: "Model", *, keeps_columns: bool = False) -> None:
    """On standard error, before the work: what nothing reads, and cues that come too late."""
    from probe.text.cautions import cautions

    for caution in cautions(corpus, causal=model.config.causal, keeps_columns=keeps_columns):
        typer.echo(f"probe: {caution}", err=True)


def _say_what_is_replaced(out: Path, file: str, command: str) -> None:
    """On standard error, where another command made the file that stands in the folder."""
    from probe.pages.folder import to_be_replaced

    if said := to_be_replaced(out, file, command):
        typer.echo(f"probe: {said}", err=True)


@app.command()
def walk(
    text: Annotated[str, Argument(metavar=TEXT, parser=_typed, help="The sentence to follow.")],
    target: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="For an encoder-decoder: the translation of TEXT so far; what it reads is shown.",
        ),
    ] = None,
    word: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="The word to follow; one that the lexicon has, or else the last, by default.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="Another text with the same word; one that ships by default.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="Another text with the same word, shown side by side: what differs first.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    layer: Annotated[
        int | None, Option(help="Follow a head of this layer, counted from 0.")
    ] = None,
    head: Annotated[
        str | None,
        Option(
            help="Follow this head, as L4H2, or as 2 with --layer 4; by default one is chosen, and "
            "the page says by what."
        ),
    ] = None,
    out: OutOption = REPORTS / "walk",
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """One sentence, every step of attention with its real numbers: a page, its tables and a
    manifest."""
    from probe.pages.folder import WALK, check_folder

    check_folder(out, WALK)
    followed = _followed(layer, head)
    with progress_bar() as progress:
        from probe.pages.write import write
        from probe.walkthrough.walk import walk

        loaded = _load(model, device, dtype)
        progress("walking", 0.4)
        walked = walk(loaded, text, target, at=word, head=followed, beside=beside, against=against)
        progress("writing", 0.9)
        command = _walk_command(model, walked, _compute_options(device, dtype))
        _say_what_is_replaced(out, WALK, command)
        page = write(walked, out, command=command)
    typer.echo(page)


def _followed(layer: int | None, head: str | None) -> tuple[int | None, int | None]:
    """The layer and the head that a walk follows, None for one that is to be chosen."""
    from probe.studies.heads_given import NAME, head_index

    if head is None or head.isdecimal():
        return layer, head if head is None else int(head)
    if layer is None and NAME.fullmatch(head.strip().upper()):
        return head_index(head)
    given = "" if layer is None else f" and --layer {layer}"
    raise InputError(
        f"Following a head: got --head {head}{given}, expected its name, as --head L4H2, or its "
        "number in a layer, as --layer 4 --head 2; give one of these."
    )


@app.command()
def explore(
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...",
            parser=_typed,
            help="The sentence to open with, and a second one with the same word in another "
            "meaning.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        Option(
            metavar="PAGE.html",
            help="Write the page of the two sentences, with every swap of one head, into this "
            "file, and start no server: anybody can open it.",
        ),
    ] = None,
    word: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="The word to follow; chosen by default, and it stands in both.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on; a free one by default.")
    ] = 0,
    host: Annotated[
        str, Option(help="The address to listen on; others than this machine's let others in.")
    ] = ("127.0.0.1"),
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """Your own sentences live: type, swap heads, see what changes; a server on this machine, until
    Ctrl-C. With --save a page that needs no server."""
    texts = texts or []
    _check_explored(texts, save, word)

    def load() -> "Model":
        typer.echo(f"probe: loading {model}.", err=True)
        return _load(model, device, dtype)

    if save is not None:
        _save_explored(load(), texts, save, word=word, compute=_compute_options(device, dtype))
        return
    try:
        from probe.explorer.saved import address
        from probe.explorer.server import LOCAL_NAMES, serve
    except ModuleNotFoundError as error:
        raise InputError(
            f"Exploring: the package {error.name} is missing; install it with pip install "
            "starlette uvicorn."
        ) from error
    if host not in LOCAL_NAMES:
        typer.echo(
            f"probe: listening on {host}: whoever reaches this machine and has the address can "
            "use the model.",
            err=True,
        )

    fragment = ""
    if texts:
        fragment = address(_explored(texts, word))
    try:
        serve(load, host=host, port=port, browser=browser, fragment=fragment, say=typer.echo)
    except KeyboardInterrupt:
        # How it is meant to end: no files are involved.
        typer.echo("probe: the explorer has stopped.", err=True)
        sys.exit(INTERRUPTED)


@app.command()
def check(
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...", parser=_typed, help="Texts to run; two short ones by default."
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """The certificate: the hooked model against the numbers from the raw weights; exit 1 when a row
    falls short."""
    from probe.model.check import DEFAULT_TEXTS, certify

    certificate = certify(_load(model, device, dtype), texts or DEFAULT_TEXTS)
    print_certificate(certificate, as_json=as_json)
    certificate.require()


@app.command()
def evaluate(
    sentences: Annotated[Path, Labelled],
    words: Annotated[
        list[str] | None,
        Argument(
            metavar="[WORD]...",
            parser=_typed,
            help="Words to evaluate; by default all that are there.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    without: Annotated[
        str | None,
        Option(
            help="Heads to take out at the word, as L4H1,L4H2, or a CSV or Parquet file with the "
            "columns layer and head; random sets of other heads stand beside them."
        ),
    ] = None,
    top: Annotated[
        int | None,
        Option(min=1, help="Of the file of --without the heads with the largest effect."),
    ] = None,
    out: Annotated[
        Path | None, Option(help="A folder to write the tables and a manifest into.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Decides the folds, random sets and donors.")] = 0,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """How well each layer tells the senses apart at the word, beside baselines that need no
    model."""
    from probe.pages.folder import EVALUATION, check_folder
    from probe.studies.evaluation import evaluate
    from probe.text.sentences import as_corpus

    if out is not None:
        check_folder(out, EVALUATION)
    corpus = as_corpus(sentences, words)
    with progress_bar() as progress:
        loaded = _load(model, device, dtype)
        result = evaluate(
            loaded,
            sentences=corpus,
            words=words,
            without=without,
            top=top,
            seed=seed,
            progress=progress,
            planned=lambda: _say_cautions(corpus, loaded),
        )
    if out is not None:
        from probe.pages.write import write

        command = command_line(
            "evaluate",
            *(words or ()),
            sentences=sentences.name,
            model=Path(model).name,
            without=without and Path(without).name,
            top=top,
            seed=seed,
            **_compute_options(device, dtype),
        )
        _say_what_is_replaced(out, EVALUATION, command)
        write(result, out, command=command)
    if as_json:
        typer.echo(result.to_json())
        return
    print_evaluation(result)


@app.command()
def convert(
    source: Annotated[
        Path,
        Argument(
            help="A folder or file of WiC, pairs as JSONL or CSV (SuperGLUE, RAW-C), or XML of "
            "Senseval, UFSAC or the unified evaluation framework."
        ),
    ],
    words: Annotated[
        list[str] | None,
        Argument(metavar="[WORD]...", parser=_typed, help="Words to keep; by default all."),
    ] = None,
    out: Annotated[
        Path, Option(help="The file to write: CSV, or JSONL where its name ends so.")
    ] = Path("sentences.csv"),
) -> None:
    """A public data set as sentences that every command reads."""
    from probe.text.convert import convert, write_sentences

    corpus = convert(source, words or ())
    typer.echo(write_sentences(corpus, out))
    of_word = corpus.by_word().values()
    usable = sum(len({row.sense for row in rows}) > 1 for rows in of_word)
    typer.echo(
        f"probe: {len(corpus.sentences)} sentences of {len(of_word)} words, {usable} of them with "
        "two senses or more.",
        err=True,
    )
    for reason, number in Counter(item.reason for item in corpus.left_out).most_common(REASONS):
        typer.echo(f"probe: {number} left out: {reason}.", err=True)


@app.command()
def survey(
    more: Annotated[
        list[Path] | None, Argument(metavar="[PATH]...", help="More sentences, after --sentences.")
    ] = None,
    sentences: Annotated[
        list[Path] | None,
        Option(
            help="Your own sentences, two a sense or more, for seven different words or more: "
            f"{FORMS} Else those that ship."
        ),
    ] = None,
    model: Annotated[
        list[str] | None,
        Option("--model", help="As in report; several for the same words beside each other."),
    ] = None,
    out: OutOption = REPORTS / "survey",
    controls: ControlsOption = None,
    engine: Annotated[
        str, Option(help="local: in this process; dask: on workers (needs dask and distributed).")
    ] = "local",
    scheduler: Annotated[
        str | None,
        Option(metavar="ADDRESS", help="A running Dask scheduler, such as tcp://127.0.0.1:8786."),
    ] = None,
    workers: Annotated[
        int | None,
        Option(min=1, help="Dask workers on this machine, without --scheduler; one per processor."),
    ] = None,
    pages: Annotated[
        bool,
        Option(
            "--pages", help="Measure every word as report does, and write a separate page for it."
        ),
    ] = False,
    seed: Annotated[int, Option(min=0, help="Decides pairs, nouns, donors and draws.")] = 0,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Say which words can be measured, which not and why, and minutes; measure one "
            "word for the time, write nothing.",
        ),
    ] = False,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """Which heads move the meaning of words in general: words are the sample; what is finished in
    the folder is kept."""
    from probe.pages.folder import SURVEY, check_folder

    check_folder(out, SURVEY)
    from probe.text.sentences import as_corpus

    files = [*(sentences or []), *(more or [])]
    corpus = as_corpus(files) if files else None
    names = model or [DEFAULT_MODEL]
    if dry_run:
        number = 1 if engine == "local" else workers or os.cpu_count() or 1
        for name in names:
            _print_survey_plan(
                _load(name, device, dtype),
                corpus,
                controls=controls,
                seed=seed,
                pages=pages,
                workers=number,
                as_json=as_json,
            )
        return
    with progress_bar() as progress:
        from probe.pages.write import write_surveys
        from probe.studies.survey import survey
        from probe.studies.workers import Workers

        surveys = []
        for name in names:
            loaded = _load(name, device, dtype)
            if corpus is not None:
                _say_cautions(corpus, loaded, keeps_columns=True)
            surveyed = survey(
                loaded,
                sentences=corpus,
                out=out,
                controls=controls,
                seed=seed,
                workers=Workers(engine, scheduler, workers, model=name),
                pages=pages,
                progress=progress,
            )
            surveys.append(surveyed)
        command = command_line(
            "survey",
            sentences=[file.name for file in files] or None,
            model=[Path(name).name for name in names],
            controls=controls,
            seed=seed,
            **_compute_options(device, dtype),
        )
        command += " --pages" if pages else ""
        _say_what_is_replaced(out, SURVEY, command)
        page = write_surveys(surveys, out, command=command)
    for sentence in dict.fromkeys(line for each in surveys for line in each.said):
        typer.echo(f"probe: {sentence}", err=True)
    if not as_json:
        typer.echo(page)
        return
    for each in surveys:
        typer.echo(each.to_json())


@app.command()
def cues(
    word: Annotated[
        str, Argument(metavar="WORD", parser=_typed, help="The ambiguous word to scan.")
    ],
    sentences: Annotated[
        Path | None,
        Option(help=f"Sentences that the axis is fitted on: {FORMS} Else those that ship."),
    ] = None,
    texts: Annotated[
        tuple[str, str] | None,
        Option(
            metavar="TEXT TEXT",
            help="Two texts with the word, one for each meaning, instead of sentences.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    cues: Annotated[
        Path | None,
        Option(help="Words to try, one in each line; by default every word of the vocabulary."),
    ] = None,
    frames: Annotated[
        Path | None,
        Option(help="Short texts with the word and a slot _ for the cue, one in each line."),
    ] = None,
    out: OutOption = REPORTS / "cues",
    seed: Annotated[int, Option(min=0, help="Decides the sample of cues and its draws.")] = 0,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """Every word of the vocabulary as the cue: which words move the ambiguous word, and which heads
    do it."""
    from probe.pages.folder import CUES, check_folder

    check_folder(out, CUES)
    with progress_bar() as progress:
        from probe.pages.write import write
        from probe.studies.cues import cues as scan

        result = scan(
            _load(model, device, dtype),
            word,
            sentences=sentences,
            texts=None if texts is None else [_typed(text) for text in texts],
            cues=cues,
            frames=frames,
            seed=seed,
            progress=progress,
        )
        progress("writing", 0.98)
        options = {
            "model": Path(model).name,
            "sentences": sentences and sentences.name,
            "cues": cues and cues.name,
            "frames": frames and frames.name,
            "seed": seed or None,
        }
        command = command_line("cues", word, **options, **_compute_options(device, dtype))
        if texts is not None:
            command += shlex.join(["", "--texts", *texts]).removeprefix("''")
        _say_what_is_replaced(out, CUES, command)
        page = write(result, out, command=command)
    typer.echo(page)


@app.command()
def params(
    name: Annotated[
        str,
        Argument(
            metavar="[NAME|MODEL]", help="gpt3 (by formula), or a model: its tensors are counted."
        ),
    ] = DEFAULT_MODEL,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """How many parameters a model has, and where: gpt3 by formula, a loaded model from its
    tensors."""
    from probe.model.parameters import PUBLISHED, count_tensors, published

    counted = published(name) if name in PUBLISHED else count_tensors(_load(name, device, dtype))
    print_parameters(counted, as_json=as_json)


@app.command()
def models(as_json: JsonOption = False) -> None:
    """What can be loaded, and what is already on this machine."""
    from probe.model.find import available

    rows = [asdict(row) for row in available()]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    print_table(list(rows[0]), [[str(value) for value in row.values()] for row in rows])


# In the list of commands a description is one whole sentence: Typer would cut it to one line.
for registered in app.registered_commands:
    registered.short_help = " ".join((registered.callback.__doc__ or "").split())


def main() -> None:
    """The `probe` program: every failure a user can mend is one sentence on standard error."""
    _wait_briefly()
    _replace_what_a_stream_cannot_encode()
    try:
        code = app(prog_name="probe", standalone_mode=False)
        if code == INTERRUPTED:  # Typer turns Ctrl-C into its exit code without a word
            raise KeyboardInterrupt
        sys.exit(code)
    except ProbeError as error:
        typer.echo(f"probe: {error}", err=True)
        sys.exit(error.exit_code)
    except TyperException as error:
        context = getattr(error, "ctx", None)  # a wrong option carries the command it was given to
        command = context.command_path if context else "probe"
        message = error.format_message().rstrip(".").replace(NO_INTEGER, "expected a whole number")
        if context and message.startswith(TOO_MANY) and _takes_text(context):
            message += "; put a text of several words into quotation marks"
        typer.echo(f"probe: {message} (see `{command} --help`).", err=True)
        sys.exit(2)
    except OSError as error:  # of standard output: files are written by the library, which says so
        if error.errno != errno.ENOSPC:
            raise
        typer.echo(f"probe: standard output: {error.strerror}.", err=True)
        sys.exit(2)
    except SystemExit as stop:
        # Typer and Rich answer a closed pipe with exit code 1, which says here that a check failed.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        typer.echo("probe: standard output: the reader has closed the pipe.", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(
            "probe: interrupted; finished files are kept, unfinished ones were not written.",
            err=True,
        )
        sys.exit(INTERRUPTED)


def _takes_text(context: typer.Context) -> bool:
    """Whether an argument of the command is a text."""
    return any(TEXT in str(parameter.metavar) for parameter in context.command.params)


def _replace_what_a_stream_cannot_encode() -> None:
    """Streams write "?" for a character outside their encoding, as Windows' cp1252 has few."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _wait_briefly() -> None:
    """Puts WAITING into the environment, where it does not say how threads wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)


def _command(
    words: Sequence[str],
    model: str,
    second: str | None,
    sentences: Path | None,
    **options: object,
) -> str:
    """The `probe report` that makes the same page again, with all options and without this
    machine's folders."""
    model = Path(model).name
    beside = None
    if second:
        beside = Path(second).name
    elif model in COMPANION:
        beside = ""  # without it the companion would be taken again
    files = {"model": model, "sentences": sentences and sentences.name, "beside": beside}
    return command_line("report", *words, **files, **options)


def _walk_command(model: str, walked: "Walk", compute: Mapping[str, str | None]) -> str:
    """The `probe walk` that makes the same page again, without this machine's folders."""
    options = walked.options
    text = str(options.pop("text"))
    texts = {}
    for name in ("target", "word", "beside", "against"):
        if name in options:
            texts[name] = options.pop(name)
    return command_line("walk", text, **texts, model=Path(model).name, **options, **compute)


def _check_explored(texts: list[str], save: Path | None, word: str | None) -> None:
    """Raises InputError for more than two sentences, none where a page is saved or a word named,
    and a file that cannot be one."""
    if len(texts) > 2:
        raise InputError(
            f"Exploring: got {len(texts)} sentences, expected one or two with the same word; put "
            "each into quotation marks."
        )
    if save is None and (word is None or texts):
        return
    if not texts:
        option = "--word" if save is None else "--save"
        raise InputError(
            f"Exploring with {option}: got no sentence; give one or two with the same word, each "
            "in quotation marks."
        )
    if save is not None:
        from probe.explorer.saved import check_file

        check_file(save)


def _explored(texts: list[str], word: str | None) -> "Question":
    from probe.explorer.page import Question

    other = texts[1] if len(texts) > 1 else None
    return Question(what="save", text=texts[0], other=other, word=word)


def _save_explored(
    model: "Model",
    texts: list[str],
    save: Path,
    *,
    word: str | None,
    compute: Mapping[str, str | None],
) -> None:
    """Write the explorer's page of the sentences into a file."""
    from probe.explorer.saved import page_steps
    from probe.explorer.session import Explorer
    from probe.provenance import write_atomically

    options = {"save": save.name, "word": word, "model": Path(model.name).name}
    command = command_line("explore", *texts, **options, **compute)
    question = _explored(texts, word)
    html = ""
    with progress_bar() as progress:
        for share, html in page_steps(model, Explorer(model).answer, question, command):
            progress("swapping every head", share)
    _say_what_is_replaced(save.parent, save.name, command)
    # A token may decode to half of a surrogate pair, which UTF-8 has no bytes for.
    typer.echo(write_atomically(save, html.encode("utf-8", "replace")))


def _compute_options(device: str, dtype: str) -> dict[str, str | None]:
    """--device and --dtype where they are not the usual ones."""
    return {
        "device": None if device == CPU else device,
        "dtype": None if dtype == SINGLE else dtype,
    }


def _load(name: str, device: str, dtype: str) -> "Model":
    from probe.model.load import load

    return load(name, device=device, dtype=dtype)
