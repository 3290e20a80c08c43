"""The command line: parse, call one library function, write.

Heavy imports are inside the commands, so `--help` is instant. Results go to standard output;
progress (on a terminal only) and errors go to standard error. Exit codes: 0; 1 for a failed check;
2 for bad input or a model that cannot be trusted; 130 after Ctrl-C.
"""

import errno
import json
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import cache
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from typer import Argument, Option
from typer.exceptions import TyperException

import probe
from probe.errors import InputError, ProbeError
from probe.pages.terminal import (
    about_time,
    likely,
    print_certificate,
    print_evaluation,
    print_parameters,
    print_table,
    progress_bar,
    say_loading,
    sentences_suffice,
    survey_suffices,
    text_of,
)
from probe.provenance import command_line
from probe.stats.limits import FEWEST_WORDS

if TYPE_CHECKING:
    from probe.model.model import Model
    from probe.text.sentences import Corpus
    from probe.walks.questions import Question
    from probe.walks.walk import Walk
INTERRUPTED = 130  # the exit code of a program that Ctrl-C ended
PERMUTATIONS = 1000
DEFAULT_MODEL = "tiny-senses"
FORMS = "JSONL, CSV, TSV, Parquet, CoarseWSD-20 word folders, or a folder of these."
# How long a waiting thread of torch spins before it sleeps: about as long as Python needs from one
# matrix product to the next. The default is hundreds of times longer. On a busy machine, a spinning
# thread then occupies the processor that the thread it waits for needs. The values are read when
# torch is loaded, by GNU's OpenMP (in iterations) and by LLVM's and Intel's (in milliseconds).
WAITING = {"GOMP_SPINCOUNT": "500", "KMP_BLOCKTIME": "1"}
CPU: Final = "cpu"
SINGLE: Final = "float32"
REPORTS = Path("reports")
TEXT = "TEXT"  # the name in --help of an argument that is a text
# Parts of Typer's messages: the beginning of one, and one that users would not understand.
TOO_MANY = "Got unexpected extra argument"
NO_INTEGER = "Input should be a valid integer, unable to parse string as an integer"


def _typed(text: str) -> str:
    """A text of the command line, decoded as UTF-8 even where Python decoded its bytes as
    ASCII."""
    if any("\udc80" <= character <= "\udcff" for character in text):
        return os.fsencode(text).decode("utf-8", "surrogateescape")
    return text


ModelOption = Annotated[
    str,
    Option(
        "--model",
        help="A name (probe models lists them), a name on the hub, a folder or a GGUF file. "
        "owner/name@revision is a checkpoint of the training.",
    ),
]
DeviceOption = Annotated[str, Option("--device", help="Where the model runs, e.g. cpu or cuda.")]
DtypeOption = Annotated[
    Literal["float32", "float64", "bfloat16"],
    Option(
        "--dtype",
        help="The type of all computations, for any type in the file. bfloat16 needs half the "
        "memory.",
    ),
]
JsonOption = Annotated[bool, Option("--json", help="Print JSON instead of a table.")]
ControlsOption = Annotated[
    str | None,
    Option(
        help="Unambiguous nouns that replace the word, e.g. window,fence. By default the nouns "
        "that ship. 'none' for no comparison."
    ),
]
OutOption = Annotated[Path, Option(help="The folder to write into.")]
Labelled = Option(help=f"Labelled sentences: {FORMS}")
Utf16Option = Annotated[
    bool,
    Option(
        "--utf16",
        help="The spans of the sentences count UTF-16 units, as JavaScript does.",
    ),
]

app = typer.Typer(
    name="probe",
    help="Which attention heads move the meaning of an ambiguous word, from which cue, in which "
    "layer, and how we know.",
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
            help="Words to study. By default bank, mole and apple.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    sentences: Annotated[Path | None, Option(help=f"Your own sentences: {FORMS}")] = None,
    utf16: Utf16Option = False,
    out: OutOption = REPORTS,
    seed: Annotated[
        int, Option(min=0, help="Seed of splits, pairs, donors, permutations and bootstrap draws.")
    ] = 0,
    permutations: Annotated[
        int, Option(min=99, help="How often senses are reassigned to cue words.")
    ] = PERMUTATIONS,
    controls: ControlsOption = None,
    only: Annotated[
        str | None,
        Option(
            metavar="EXPERIMENTS",
            help="Run these experiments, e.g. heads,nouns, and what they need. The page has "
            "their sections only. An unknown name lists all.",
        ),
    ] = None,
    without: Annotated[
        str | None,
        Option(
            metavar="EXPERIMENTS",
            help="Leave out these experiments, e.g. circuit, and whatever needs them.",
        ),
    ] = None,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Print what the sentences are enough for and the likely outcome. Swap nothing and "
            "write nothing.",
        ),
    ] = False,
    tables: Annotated[
        bool,
        Option(
            "--tables",
            help="Write every table as CSV, not just the main five. All are in tables.zip.",
        ),
    ] = False,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """Which heads move the meaning of words. Writes a page, its tables and a manifest."""
    from probe.pages.folder import REPORT, check_folder

    # Checked before the heavy imports, so that a wrong folder is reported at once.
    check_folder(out, REPORT, inputs=[sentences] if sentences else [])
    from probe.experiments.candidates import as_nouns
    from probe.experiments.table import choose
    from probe.text.sentences import as_corpus

    experiments = choose(only, without or ())
    corpus = None if sentences is None else as_corpus(sentences, words, utf16=utf16)
    with progress_bar() as progress:
        from probe.pages.sections import titles_of
        from probe.pages.write import write
        from probe.studies.study import (
            StudyOptions,
            plan_study,
            preview_gates,
            studies,
            study_inputs,
        )

        options = StudyOptions(seed, permutations=permutations, controls=as_nouns(controls))
        inputs = study_inputs(_load(model, device, dtype), words, corpus, options, experiments)
        plan = plan_study(inputs)
        if corpus is not None:
            _say_cautions(corpus, inputs.model, keeps_columns=len(plan.words) >= FEWEST_WORDS)
        if dry_run:
            typer.echo("\n".join(sentences_suffice(plan)))
            progress("certificate", 0.01)
            typer.echo("\n".join(map(likely, preview_gates(inputs))))
            return
        command = _command(
            plan.words,
            model,
            sentences,
            utf16=utf16,
            permutations=None if permutations == PERMUTATIONS else permutations,
            controls=controls,
            only=only,
            without=without,
            seed=seed,
            tables=tables,
            **_compute_options(device, dtype),
        )
        _say_what_is_replaced(out, REPORT, command)
        for result in studies(inputs, progress, out=out, answer_first=True):
            if not result.unfinished:
                progress("writing", 0.98)
            page = write(result, out, command=command, tables=tables)
            if result.unfinished:
                to_come = "; ".join(titles_of(result.unfinished))
                typer.echo(f"The answer is in {page}. Still to come: {to_come}.", err=True)
    typer.echo(page)


def _print_survey_plan(
    model: "Model",
    corpus: "Corpus | None",
    *,
    controls: str | None,
    seed: int,
    pages: bool,
    as_json: bool,
) -> None:
    from probe.studies.survey import plan_survey

    plan = plan_survey(model, corpus, controls=controls, seed=seed, pages=pages)
    if as_json:
        typer.echo(plan.to_json())
    else:
        typer.echo("\n".join(survey_suffices(plan)))


def _say_cautions(corpus: "Corpus", model: "Model", *, keeps_columns: bool = False) -> None:
    """Print cautions before the work, on standard error: unread columns, special tokens in
    letters, and late cues."""
    from probe.model.tokens import special_in_letters
    from probe.text.cautions import cautions

    in_letters = (special_in_letters(model, sentence.text) for sentence in corpus.sentences)
    specials = [name for name in in_letters if name]
    for caution in cautions(
        corpus, causal=model.config.causal, specials=specials, keeps_columns=keeps_columns
    ):
        typer.echo(f"probe: {caution}", err=True)


def _say_what_is_replaced(out: Path, file: str, command: str) -> None:
    """Print on standard error that a file of another command will be replaced, if there is one."""
    from probe.pages.folder import to_be_replaced

    if caution := to_be_replaced(out, file, command):
        typer.echo(f"probe: {caution}", err=True)


@app.command()
def walk(
    text: Annotated[str, Argument(metavar=TEXT, parser=_typed, help="The sentence to follow.")],
    target: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="For an encoder-decoder: the translation of TEXT so far. The page shows what it "
            "reads.",
        ),
    ] = None,
    word: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="The word to follow. By default a word of the lexicon, or else the last one.",
        ),
    ] = None,
    beside: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="Another text with the same word. By default one that ships.",
        ),
    ] = None,
    against: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="Another text with the same word, shown side by side. The differences come first.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    layer: Annotated[
        int | None, Option(help="Follow a head of this layer, counted from 0.")
    ] = None,
    head: Annotated[
        str | None,
        Option(
            help="Follow this head, e.g. L4H2, or 2 with --layer 4. By default one is chosen, and "
            "the page gives the reason."
        ),
    ] = None,
    out: OutOption = REPORTS / "walk",
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """One sentence, every step of attention with its real numbers. Writes a page, its tables and a
    manifest."""
    from probe.pages.folder import WALK, check_folder
    from probe.walks.frames import TABLES

    check_folder(out, WALK, tables=TABLES)
    followed = _followed(layer, head)
    with progress_bar() as progress:
        from probe.pages.write import write
        from probe.walks.walk import walk

        loaded = _load(model, device, dtype)
        progress("walking", 0.4)
        walked = walk(loaded, text, target, at=word, head=followed, beside=beside, against=against)
        progress("writing", 0.9)
        command = _walk_command(model, walked, _compute_options(device, dtype))
        _say_what_is_replaced(out, WALK, command)
        page = write(walked, out, command=command)
    typer.echo(page)


def _followed(layer: int | None, head: str | None) -> tuple[int | None, int | None]:
    """The layer and the head that a walk follows; None for one that the walk chooses."""
    from probe.studies.heads_given import NAME, head_index

    if head is None or head.isdecimal():
        return layer, head if head is None else int(head)
    if layer is None and NAME.fullmatch(head.strip().upper()):
        return head_index(head)
    with_layer = "" if layer is None else f" and --layer {layer}"
    raise InputError(
        f"Cannot follow a head: got --head {head}{with_layer}, expected its name or its number in "
        "a layer. Give --head L4H2 or --layer 4 --head 2, say."
    )


@app.command()
def explore(
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...",
            parser=_typed,
            help="The sentence to begin with, and a second one with the same word in another "
            "meaning.",
        ),
    ] = None,
    save: Annotated[
        Path | None,
        Option(
            metavar="PAGE.html",
            help="Write the page of the two sentences, with every swap of one head, to this file. "
            "It needs no server: anybody can open it.",
        ),
    ] = None,
    word: Annotated[
        str | None,
        Option(
            metavar=TEXT,
            parser=_typed,
            help="The word to follow, which both sentences must contain. By default one is chosen.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    port: Annotated[
        int, Option(min=0, max=65535, help="The port to listen on. By default a free one.")
    ] = 0,
    host: Annotated[
        str,
        Option(help="The address to listen on. An address of the network lets other users in."),
    ] = "127.0.0.1",
    browser: Annotated[
        bool, Option("--browser/--no-browser", help="Open the page in the browser.")
    ] = True,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """Your own sentences, live: type, swap heads, see what changes. Runs a server on this machine
    until Ctrl-C. With --save, writes a page that needs no server."""
    texts = texts or []
    _check_explored(texts, save, word)

    def load() -> "Model":
        say_loading()
        return _load(model, device, dtype)

    if save is not None:
        _save_explored(load(), texts, save, word=word, compute=_compute_options(device, dtype))
        return
    try:
        from probe.walks.explore import address
        from probe.walks.server import LOCAL_NAMES, serve
    except ModuleNotFoundError as error:
        raise InputError(
            f"Cannot start the explorer: the package {error.name} is missing. Install it with pip "
            "install starlette uvicorn."
        ) from error
    if host not in LOCAL_NAMES:
        typer.echo(
            f"probe: listening on {host}. Anybody who can reach this machine and has the address "
            "can use the model.",
            err=True,
        )

    fragment = ""
    if texts:
        fragment = address(_explored(texts, word))
    try:
        serve(load, host=host, port=port, browser=browser, fragment=fragment, say=typer.echo)
    except KeyboardInterrupt:
        # The usual end of the explorer. It writes no files to report on.
        typer.echo("probe: the explorer has stopped.", err=True)
        sys.exit(INTERRUPTED)


@app.command()
def check(
    texts: Annotated[
        list[str] | None,
        Argument(
            metavar="[TEXT]...", parser=_typed, help="Texts to run. By default two short ones."
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """The certificate: compares the hooked model with numbers from the raw weights. Exit code 1 if
    a row fails."""
    from probe.model.check import DEFAULT_TEXTS, certify
    from probe.model.load import as_model

    certificate = certify(as_model(model, device=device, dtype=dtype), texts or DEFAULT_TEXTS)
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
            help="Words to evaluate. By default all words of the sentences.",
        ),
    ] = None,
    utf16: Utf16Option = False,
    model: ModelOption = DEFAULT_MODEL,
    without: Annotated[
        str | None,
        Option(
            help="Heads to ablate at the word, e.g. L4H1,L4H2, or a CSV or Parquet file with the "
            "columns layer and head. They are compared with random sets of other heads."
        ),
    ] = None,
    top: Annotated[
        int | None,
        Option(
            min=1,
            help="Use only this many heads of the --without file, those with the largest effect.",
        ),
    ] = None,
    out: Annotated[
        Path | None, Option(help="A folder to write the tables and a manifest into.")
    ] = None,
    seed: Annotated[int, Option(min=0, help="Seed of folds, random sets and donors.")] = 0,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """How well each layer separates the senses at the word, compared with baselines without a
    model."""
    from probe.pages.folder import EVALUATION, check_folder
    from probe.studies.evaluation import evaluate
    from probe.text.sentences import as_corpus

    if out is not None:
        check_folder(out, EVALUATION)
    corpus = as_corpus(sentences, words, utf16=utf16)
    with progress_bar() as progress:
        loaded = _load(model, device, dtype)

        @cache
        def say_cautions() -> None:
            _say_cautions(corpus, loaded)

        def tell(stage: str, share: float) -> None:
            say_cautions()  # at the first stage, when every argument has been checked
            progress(stage, share)

        result = evaluate(
            loaded,
            sentences=corpus,
            words=words,
            without=without,
            top=top,
            seed=seed,
            progress=tell,
        )
    if out is not None:
        from probe.pages.write import write

        command = command_line(
            "evaluate",
            *(words or ()),
            sentences=sentences.name,
            utf16=utf16,
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
def survey(
    more: Annotated[
        list[Path] | None, Argument(metavar="[PATH]...", help="More sentences, after --sentences.")
    ] = None,
    sentences: Annotated[
        list[Path] | None,
        Option(
            help="Your own sentences, at least two for each sense, for at least seven words: "
            f"{FORMS} By default the sentences that ship."
        ),
    ] = None,
    utf16: Utf16Option = False,
    model: Annotated[
        list[str] | None,
        Option("--model", help="As in report. Repeat it to compare models on the same words."),
    ] = None,
    out: OutOption = REPORTS / "survey",
    controls: ControlsOption = None,
    workers: Annotated[
        int | None,
        Option(
            min=1,
            help="Measure words at the same time, with this many workers of Dask on this machine "
            "(needs dask and distributed). By default one word after the other.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        Option(
            metavar="ADDRESS",
            help="Measure words with the workers of a running Dask scheduler, e.g. "
            "tcp://127.0.0.1:8786.",
        ),
    ] = None,
    pages: Annotated[
        bool,
        Option("--pages", help="Measure every word as report does, and write a page for each."),
    ] = False,
    seed: Annotated[int, Option(min=0, help="Seed of pairs, nouns, donors and draws.")] = 0,
    dry_run: Annotated[
        bool,
        Option(
            "--dry-run",
            help="Print which words can be measured, and why others cannot. Runs and writes "
            "nothing.",
        ),
    ] = False,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """Which heads move the meaning of words in general. Words are the sample. A survey continues
    from the words that are finished in the folder."""
    from probe.pages.folder import SURVEY, check_folder

    check_folder(out, SURVEY)
    from probe.text.sentences import as_corpus

    files = [*(sentences or []), *(more or [])]
    corpus = as_corpus(files, utf16=utf16) if files else None
    names = model or [DEFAULT_MODEL]
    if dry_run:
        for name in names:
            _print_survey_plan(
                _load(name, device, dtype),
                corpus,
                controls=controls,
                seed=seed,
                pages=pages,
                as_json=as_json,
            )
        return
    with progress_bar() as progress:
        from probe.pages.write import write_surveys
        from probe.studies.survey import survey

        surveys = []
        for name in names:
            loaded = _load(name, device, dtype)
            if corpus is not None:
                _say_cautions(corpus, loaded, keeps_columns=True)
            surveyed = survey(
                name if scheduler else loaded,
                sentences=corpus,
                out=out,
                controls=controls,
                seed=seed,
                workers=workers,
                scheduler=scheduler,
                pages=pages,
                progress=progress,
            )
            surveys.append(surveyed)
        command = command_line(
            "survey",
            sentences=[file.name for file in files] or None,
            utf16=utf16,
            model=[Path(name).name for name in names],
            controls=controls,
            seed=seed,
            **_compute_options(device, dtype),
        )
        command += " --pages" if pages else ""
        _say_what_is_replaced(out, SURVEY, command)
        page = write_surveys(surveys, out, command=command)
    for sentence in dict.fromkeys(line for each in surveys for line in each.cautions):
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
        Option(
            help=f"Sentences that the axis is fitted on: {FORMS} By default the sentences that "
            "ship."
        ),
    ] = None,
    utf16: Utf16Option = False,
    texts: Annotated[
        tuple[str, str] | None,
        Option(
            metavar="TEXT TEXT",
            help="Two texts with the word, one for each meaning, instead of sentences.",
        ),
    ] = None,
    names: Annotated[
        tuple[str, str] | None,
        Option(
            metavar="NAME NAME",
            help="Names of the meanings of the two texts. By default the page quotes the texts.",
        ),
    ] = None,
    model: ModelOption = DEFAULT_MODEL,
    cues: Annotated[
        Path | None,
        Option(help="Words to try, one in each line. By default every word of the vocabulary."),
    ] = None,
    frames: Annotated[
        Path | None,
        Option(help="Short texts with the word and a slot _ for the cue, one in each line."),
    ] = None,
    out: OutOption = REPORTS / "cues",
    seed: Annotated[int, Option(min=0, help="Seed of the sample of cues and its draws.")] = 0,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
) -> None:
    """Every word of the vocabulary as the cue: which words move the ambiguous word, and through
    which heads."""
    from probe.pages.cues import terminal_lines
    from probe.pages.folder import CUES, check_folder

    check_folder(out, CUES)
    with progress_bar() as progress:
        from probe.pages.write import write
        from probe.stats.numbers import counted
        from probe.studies.cues import expected_seconds, scan_cues, scan_inputs
        from probe.text.sentences import as_corpus

        inputs = scan_inputs(
            _load(model, device, dtype),
            word,
            sentences=None if sentences is None else as_corpus(sentences, word, utf16=utf16),
            texts=None if texts is None else [_typed(text) for text in texts],
            names=None if names is None else [_typed(name) for name in names],
            cues=cues,
            frames=frames,
            seed=seed,
            progress=progress,
        )
        tried = counted(len(inputs.slots.cues), "word")
        time = about_time(expected_seconds(inputs))
        typer.echo(f"probe: {tried} to try as the cue, {time}.", err=True)
        result = scan_cues(inputs, progress)
        progress("writing", 0.98)
        options = {
            "model": Path(model).name,
            "sentences": sentences and sentences.name,
            "utf16": utf16,
            "cues": cues and cues.name,
            "frames": frames and frames.name,
            "seed": seed or None,
        }
        command = command_line("cues", word, **options, **_compute_options(device, dtype))
        # These options take two values, which `command_line` cannot write.
        for option, values in (("--texts", texts), ("--names", names)):
            if values is not None:
                command += shlex.join(["", option, *values]).removeprefix("''")
        _say_what_is_replaced(out, CUES, command)
        page = write(result, out, command=command)
    for line in terminal_lines(result):
        typer.echo(line, err=True)
    typer.echo(page)


@app.command()
def models(
    name: Annotated[
        str | None,
        Argument(
            metavar="[NAME|MODEL]",
            help="Count the parameters of a model, or of gpt3 by formula. By default every model "
            "that can be loaded is listed.",
        ),
    ] = None,
    device: DeviceOption = CPU,
    dtype: DtypeOption = SINGLE,
    as_json: JsonOption = False,
) -> None:
    """The models that can be loaded; or how many parameters one has, and where they are."""
    if name is not None:
        from probe.model.parameters import PUBLISHED, count_tensors, published

        known = name in PUBLISHED
        counted = published(name) if known else count_tensors(_load(name, device, dtype))
        print_parameters(counted, as_json=as_json)
        return
    from probe.model.find import available

    rows = available()
    if as_json:
        typer.echo(json.dumps([asdict(row) for row in rows]))
        return
    print_table(rows, {field.name: text_of(field.name) for field in fields(rows[0])})


# The whole description in the list of commands: Typer would cut it to one line.
for registered in app.registered_commands:
    registered.short_help = " ".join((registered.callback.__doc__ or "").split())


def main() -> None:
    """The `probe` program. Every failure that a user can fix is a message on standard error."""
    _wait_briefly()
    _replace_what_a_stream_cannot_encode()
    try:
        code = app(prog_name="probe", standalone_mode=False)
        if code == INTERRUPTED:  # Typer turns Ctrl-C into its exit code without a message
            raise KeyboardInterrupt
        sys.exit(code)
    except ProbeError as error:
        typer.echo(f"probe: {error}", err=True)
        sys.exit(error.exit_code)
    except TyperException as error:
        context = getattr(error, "ctx", None)  # a wrong option knows the command that it was for
        command = context.command_path if context else "probe"
        message = error.format_message().rstrip(".").replace(NO_INTEGER, "expected a whole number")
        if context and message.startswith(TOO_MANY) and _takes_text(context):
            message += ". Put a text of several words in quotation marks"
        typer.echo(f"probe: {message} (see `{command} --help`).", err=True)
        sys.exit(2)
    except OSError as error:  # of standard output: errors of files are InputErrors of the library
        if error.errno != errno.ENOSPC:
            raise
        typer.echo(f"probe: standard output: {error.strerror}.", err=True)
        sys.exit(2)
    except SystemExit as stop:
        # Typer and Rich exit with 1 after a closed pipe, which means a failed check here.
        if not isinstance(stop.__context__, BrokenPipeError):
            raise
        typer.echo("probe: standard output: the reader has closed the pipe.", err=True)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo(
            "probe: interrupted. Finished files are kept, unfinished ones were not written.",
            err=True,
        )
        sys.exit(INTERRUPTED)


def _takes_text(context: typer.Context) -> bool:
    """Whether an argument of the command is a text."""
    return any(TEXT in str(parameter.metavar) for parameter in context.command.params)


def _replace_what_a_stream_cannot_encode() -> None:
    """Make streams write "?" for a character outside their encoding, such as Windows' cp1252."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _wait_briefly() -> None:
    """Put WAITING into the environment, unless it already sets how threads wait."""
    if "OMP_WAIT_POLICY" not in os.environ:
        for name, value in WAITING.items():
            os.environ.setdefault(name, value)


def _command(
    words: Sequence[str],
    model: str,
    sentences: Path | None,
    **options: object,
) -> str:
    """The `probe report` command that reproduces the page, with all options and without folders of
    this machine.
    """
    files = {"model": Path(model).name, "sentences": sentences and sentences.name}
    return command_line("report", *words, **files, **options)


def _walk_command(model: str, walked: "Walk", compute: Mapping[str, str | None]) -> str:
    """The `probe walk` command that reproduces the page, without folders of this machine."""
    options = walked.options
    text = str(options.pop("text"))
    texts = {}
    for name in ("target", "word", "beside", "against"):
        if name in options:
            texts[name] = options.pop(name)
    return command_line("walk", text, **texts, model=Path(model).name, **options, **compute)


def _check_explored(texts: list[str], save: Path | None, word: str | None) -> None:
    """Raises InputError for more than two sentences, for --save or --word without a sentence, and
    for a path that cannot be a file."""
    if len(texts) > 2:
        raise InputError(
            f"Cannot explore {len(texts)} sentences: expected one or two with the same word. Put "
            "each in quotation marks."
        )
    if save is None and (word is None or texts):
        return
    if not texts:
        option = "--word" if save is None else "--save"
        raise InputError(
            f"Cannot explore with {option}: got no sentence. Give one or two with the same word, "
            "each in quotation marks."
        )
    if save is not None:
        from probe.walks.explore import check_file

        check_file(save)


def _explored(texts: list[str], word: str | None) -> "Question":
    from probe.walks.questions import Question

    second = texts[1] if len(texts) > 1 else None
    return Question(what="save", text=texts[0], against=second, word=word)


def _save_explored(
    model: "Model",
    texts: list[str],
    save: Path,
    *,
    word: str | None,
    compute: Mapping[str, str | None],
) -> None:
    """Write the explorer's page of the sentences to a file."""
    from probe.provenance import write_atomically
    from probe.walks.explore import saved_page
    from probe.walks.explorer import Explorer

    options = {"save": save.name, "word": word, "model": Path(model.name).name}
    command = command_line("explore", *texts, **options, **compute)
    question = _explored(texts, word)
    html = ""
    with progress_bar() as progress:
        for share, html in saved_page(Explorer(model), question, command):
            progress("swapping every head", share)
    _say_what_is_replaced(save.parent, save.name, command)
    # A token may decode to half of a surrogate pair, which UTF-8 has no bytes for.
    typer.echo(write_atomically(save, html.encode("utf-8", "replace")))


def _compute_options(device: str, dtype: str) -> dict[str, str | None]:
    """--device and --dtype unless they are the defaults."""
    return {
        "device": None if device == CPU else device,
        "dtype": None if dtype == SINGLE else dtype,
    }


def _load(name: str, device: str, dtype: str) -> "Model":
    from probe.model.load import load

    return load(name, device=device, dtype=dtype)
