"""The output of commands: tables or JSON on standard output, progress on standard error."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from operator import attrgetter
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

from probe.stats.limits import FEWEST_WORDS, GATE, LEVEL
from probe.stats.numbers import bare, counted, decimal, interval, listed, p_value

MINUTE = 60.0  # seconds
LOADING = "loading the model"
LONG_LOADING = 5.0  # seconds before the message
FIRST_ESTIMATE = 0.2  # of the work: what is done before says little of the rest
# The replacement of a head that is taken out, by the kind of the table.
REPLACED = {
    "mean": "their mean",
    "swap": "a random sentence's",
    "same_sense": "one of the same sense",
}
RISE = " (a minus is a rise)"
DIFFERENCES_SHOWN = 4  # differences within the pairs of a word
EVALUATION_WIDTH = 100  # columns of its tables
OTHERWISE = 10  # sentences read otherwise that are listed
LONGEST = 200  # characters of such a sentence
REASONS = 5  # why sentences were left out, that are listed one by one

Columns = dict[str, Callable[[Any], str]]

if TYPE_CHECKING:
    import pandas as pd

    from probe.model.check import Certificate
    from probe.model.parameters import Count
    from probe.studies.evaluation import Evaluation
    from probe.studies.plan import SensePairSize, StudyPlan
    from probe.studies.study import GatePreview
    from probe.studies.survey import SurveyPlan


def print_certificate(certificate: "Certificate", *, as_json: bool) -> None:
    """Every row, and the worst."""
    if as_json:
        parts = [asdict(row) | {"ok": row.ok} for row in certificate.rows]
        about = {"model": certificate.model_name, "dtype": certificate.dtype, "ok": certificate.ok}
        typer.echo(json.dumps(about | {"rows": parts}))
        return
    columns: Columns = {
        "layer": lambda row: "all" if row.layer is None else f"{row.stack} {row.layer}".strip(),
        "quantity": attrgetter("quantity"),
        "formula": attrgetter("formula"),
        "error": lambda row: f"{row.error:.1e}",
        "scale": lambda row: f"{row.scale:.2g}",
        "tolerance": lambda row: f"{row.tolerance:.0e}",
        "": lambda row: ("ok" if row.ok else "FELL SHORT") + (f" ({row.note})" if row.note else ""),
    }
    print_table(certificate.rows, columns)
    typer.echo(f"{certificate.summary}.")


def print_parameters(counted: "Count", *, as_json: bool) -> None:
    """Every part with its shape and number, and what they come to."""
    if as_json:
        parts = [asdict(part) | {"total": part.total} for part in counted.parts]
        totals = {
            name: getattr(counted, name) for name in ("per_head", "per_block", "attention", "total")
        }
        more = {"square_value": counted.square_value, "tensors": counted.tensors}
        typer.echo(json.dumps({"sizes": asdict(counted.sizes), "parts": parts} | totals | more))
        return
    from probe.pages.parameters import parameter_sentences

    columns: Columns = {
        "part": attrgetter("name"),
        "shape": attrgetter("shape"),
        f"{'each':>11}": lambda part: f"{part.each:>11,}",
        f"{'of them':>7}": lambda part: f"{part.number:>7,}",
        f"{'in all':>14}": lambda part: f"{part.total:>14,}",
    }
    print_table([part for part in counted.parts if part.number], columns)
    for line in parameter_sentences(counted):
        typer.echo(line)


def print_evaluation(evaluation: "Evaluation") -> None:
    """Every word at its chosen depth, the mean by depth, both with heads taken out where they were,
    the sentences that are read otherwise, and why sentences were left out."""
    from probe.experiments.senses import depth_label
    from probe.studies.evaluation import CHOSEN, METHODS

    words = evaluation.words
    mean_over = f"mean over {counted(len(words), 'word')}"
    scores = {"accuracy": _in_percent("accuracy"), "macro-F1": _in_percent("macro_f1")}
    of_words: Columns = {"word": attrgetter("word"), "senses": text_of("senses")}
    of_words |= {"sentences": text_of("sentences"), "tested": text_of("tested")}
    # Each fold is read at the depth that its training sentences chose; the most frequent is named.
    of_words |= {
        "left out": text_of("left_out"),
        "mostly read": lambda row: depth_label(row.depth),
    }
    baselines = {name: label for name, label in METHODS.items() if name != "nearest"}
    means: Columns = {
        mean_over: attrgetter("method"),
        "read": lambda row: row.label if isinstance(row.label, str) else "",
        **scores,
        "angle (°)": lambda row: "" if math.isnan(row.angle) else decimal(row.angle),
    }
    tables: list[tuple[Any, Columns]] = [
        (words, of_words | scores),
        (
            words,
            {"accuracy / macro-F1": attrgetter("word")}
            | {label: _both_scores(name) for name, label in baselines.items()},
        ),
        (evaluation.mean, means),
    ]
    if evaluation.without is not None:
        rows = evaluation.without
        of_word = rows["word"].notna()
        tables += _without_tables(rows[~of_word], {mean_over: attrgetter("label")})
        if len(words) > 1:
            chosen = rows[of_word & (rows["label"] == CHOSEN)]
            tables += _without_tables(chosen, {CHOSEN: attrgetter("word")})
    for frame, columns in tables:
        print_table(frame.itertuples(), columns, EVALUATION_WIDTH)
        typer.echo()
    if evaluation.without is not None:
        for line in without_sentences(evaluation, evaluation.without):
            typer.echo(line)
        typer.echo()
    print_otherwise(evaluation)
    for line in (*reasons_of(evaluation), *evaluation.cautions):
        typer.echo(line)


def text_of(name: str) -> Callable[[Any], str]:
    """A value as it is."""
    return lambda row: str(getattr(row, name))


def _in_percent(name: str) -> Callable[[Any], str]:
    """A score in percent."""
    return lambda row: f"{100 * getattr(row, name):.1f}"


def _both_scores(method: str) -> Callable[[Any], str]:
    """Accuracy and macro-F1 of a baseline."""
    scores = [_in_percent(f"{method}_{score}") for score in ("accuracy", "macro_f1")]
    return lambda row: " / ".join(score(row) for score in scores)


def _without_tables(rows: "pd.DataFrame", first: "Columns") -> "list[tuple[Any, Columns]]":
    """Accuracy and how far it falls with heads taken out, in percent and percentage points, with p
    over random sets: a table for each replacement."""
    return [
        (
            rows[rows["kind"] == kind],
            first
            | {
                "accuracy": _in_percent("accuracy"),
                f"with {replacement}": _in_percent("accuracy_without"),
                "falls by": _points,
                "p": lambda row: p_value(row.p).removeprefix("p = "),
            },
        )
        for kind, replacement in REPLACED.items()
    ]


def print_otherwise(evaluation: "Evaluation") -> None:
    """How many tested sentences are read otherwise than labelled, and the clearest of them."""
    sentences = evaluation.sentences
    if sentences is None:
        return
    wrong = sentences[~sentences["right"].astype(bool)]
    clearest = wrong.sort_values("coordinate", kind="stable").head(OTHERWISE)
    columns: Columns = {
        "word": attrgetter("word"),
        "sense": attrgetter("sense"),
        "read as": attrgetter("predicted"),
        "coordinate": lambda row: decimal(row.coordinate),
        "sentence": lambda row: f"{row.text[:LONGEST]}{'…' if len(row.text) > LONGEST else ''}",
    }
    if len(clearest):
        print_table(clearest.itertuples(), columns, EVALUATION_WIDTH)
        typer.echo()
    typer.echo(
        f"{len(wrong)} of {len(sentences)} tested sentences are read otherwise than labelled; "
        "with --out, evaluation_sentences.csv has every one."
    )


def without_sentences(evaluation: "Evaluation", without: "pd.DataFrame") -> list[str]:
    """What taking the heads out costs at the depth chosen in training, a sentence for each way."""
    from probe.studies.evaluation import CHOSEN
    from probe.studies.heads_given import head_index

    names = listed(evaluation.heads_out)
    sentences = []
    chosen = without[without["word"].isna() & (without["label"] == CHOSEN)]
    rows: Iterable[Any] = chosen.itertuples()
    for row in rows:
        fall = _points(row)
        rise = RISE if min(row.fall, row.macro_f1_fall) < 0 else ""
        sentences.append(
            f"Without {names} at the word ({REPLACED[row.kind]} instead), accuracy at the "
            f"{row.label} is {100 * row.accuracy_without:.1f} %, with them "
            f"{100 * row.accuracy:.1f} % (macro-F1 {100 * row.macro_f1_without:.1f} % and "
            f"{100 * row.macro_f1:.1f} %): a fall of {fall} percentage points, of macro-F1 "
            f"{_points(row, 'macro_f1_fall')}{rise}. Without random sets of as many other heads a "
            f"layer ({row.random_sets} sets) accuracy {_falls(row.random_fall)} on average, "
            f"{_at_most(row.random_most)} ({p_value(row.p)} over the sets)."
        )
    depths = evaluation.words["depth"]
    late = {name: int((depths <= head_index(name)[0]).sum()) for name in evaluation.heads_out}
    if any(late.values()):
        behind = [name for name, words in late.items() if words]
        sentences.append(
            f"For {counted(max(late.values()), 'word')} of {len(evaluation.words)} the depth "
            f"chosen in training lies before {listed(behind)}, which can change nothing there."
        )
    return sentences


def _falls(points: float) -> str:
    """“falls by 1.1”, “rises by 0.3”, in percentage points."""
    return f"{'falls' if points >= 0 else 'rises'} by {decimal(100 * abs(points), 1)}"


def _at_most(points: float) -> str:
    """How far the worst random set lowers accuracy."""
    if points <= 0:
        return "and no set lowers it"
    return f"and {_falls(points)} at most"


def _points(row: Any, fall: str = "fall") -> str:
    """The fall of a score in percentage points, with its interval."""
    value, low, high = (100 * getattr(row, f"{fall}{end}") for end in ("", "_low", "_high"))
    return f"{decimal(value, 1)} {interval(low, high, 1)}"


def reasons_of(evaluation: "Evaluation") -> list[str]:
    """How many sentences were left out and why, a line per reason, the rare reasons together."""
    counts = evaluation.left_out["reason"].value_counts()
    lines = [f"{count} left out: {reason}" for reason, count in counts.head(REASONS).items()]
    further = counts.iloc[REASONS:]
    if len(further):
        lines.append(f"{further.sum()} left out for {len(further)} other reasons")
    return lines


def sentences_suffice(cost: "StudyPlan") -> list[str]:
    """What the sentences of a study are enough for, a line per pair of senses; then the words
    without a marked cue, nouns that cannot be compared with, and what is left out."""

    lines = [_pair_suffices(size) for size in cost.sizes]
    lines += [_without_cues(word, cost.inferred_cues.get(word, ())) for word in cost.without_cues]
    lines += [
        f"{word}: {counted(alike, 'sentence')} differ from one of another sense in a single word, "
        "and no pair says so; name such sentences in a column pair, or one may be learned from "
        "while the other is tested."
        for word, alike in cost.unmarked_pairs.items()
    ]
    lines += [
        f"{noun} is not put in the place of {word}: {reason}."
        for word, noun, reason in cost.unusable_nouns
    ]
    lines += [
        f"{word}: {counted(number, 'sentence')} left out: {reason}."
        for word, reason, number in cost.left_out
    ]
    if cost.repeated:
        repeat = "row repeats another" if cost.repeated == 1 else "rows repeat others"
        lines.append(f"{cost.repeated} {repeat}; each sentence is read once.")
    return lines


def survey_suffices(plan: "SurveyPlan") -> list[str]:
    """What the sentences of a survey are enough for; then which words are not measured, and
    what is left out of the others, a line a reason."""
    from probe.studies.survey import SURVEY_WITH_PAGES

    measured = [word for word in plan.words if word.pairs]
    sentences = sum(word.sentences for word in measured)
    pairs = sum(word.pairs for word in measured)
    first = f"{len(measured)} of {counted(len(plan.words), 'word')} can be measured"
    if len(measured) < FEWEST_WORDS:
        first += (
            f"; with fewer than {FEWEST_WORDS} no test of the gap between meanings can pass, "
            "however clear it is: give more words with two sentences of each of two senses."
        )
    else:
        first += (
            f", on {counted(sentences, 'sentence')}; heads are swapped in {counted(pairs, 'pair')} "
            "of them."
        )
    reasons = Counter(plan.unread)
    without: dict[str, list[str]] = {}
    for word in plan.words:
        if word.reason:
            without.setdefault(word.reason, []).append(word.word)
        reasons.update({name: number for name, number in word.left_out.items() if not word.reason})
    lines = [first]
    all_pairs = sum(word.pairs_in_all for word in measured)
    if pairs < all_pairs:
        limit = max(word.limit for word in measured)
        with_pages = SURVEY_WITH_PAGES.pairs
        more = f" ({with_pages} with --pages)" if limit < with_pages else ""
        lines.append(
            f"{all_pairs - pairs} of {all_pairs} pairs of sentences are not swapped: heads are "
            f"swapped in at most {limit} pairs for two senses of a word{more}."
        )
    lines += [f"not measured: {listed(words)}: {reason}." for reason, words in without.items()]
    return lines + [
        f"{counted(number, 'sentence')} left out: {reason}."
        for reason, number in reasons.most_common()
    ]


def _without_cues(word: str, inferred: Sequence[tuple[str, ...]]) -> str:
    """The cues that are assumed for a word whose sentences mark none: the differences within its
    pairs, or every sentence by itself."""
    if not inferred:
        return (
            f"{word}: no cue is marked and no pair differs in just a few words, so "
            "every sentence, or pair of them, counts as a separate cue word. Mark the cues in "
            "a column `cue`."
        )
    differences = ", ".join(" / ".join(cues) for cues in inferred[:DIFFERENCES_SHOWN])
    if len(inferred) > DIFFERENCES_SHOWN:
        differences += f" and {len(inferred) - DIFFERENCES_SHOWN} more"
    return (
        f"{word}: no cue is marked, so the words in which a pair differs are used as their "
        f"cues: {differences}. Mark others in a column `cue`."
    )


def likely(gates: "GatePreview") -> str:
    """The likely outcome of a study of two senses, from its cheap gates, and the next step where it
    is poor."""
    from probe.experiments.beside_nouns import TOO_FEW_NOUNS
    from probe.verdicts import rank_among_nouns

    sense_a, sense_b = gates.senses
    start = f"{gates.word}, {sense_a} / {sense_b}: "
    if gates.gap_p >= GATE:
        return start + (
            "this model has no significant gap between the senses at the word "
            f"({p_value(gates.gap_p, GATE)}), so no head will be swapped; give more different cue "
            "words "
            "before the word, or take another model."
        )
    apart = start + f"the senses are apart at the word ({p_value(gates.gap_p)})"
    rank = rank_among_nouns(gates.ambiguity_p, gates.nouns)
    if rank == 1:
        return apart + (
            f", and the word changes further than the {gates.nouns} unambiguous nouns in its "
            "place, so resolvers can be found."
        )
    reasons = []
    if gates.untrained_p < GATE:
        reasons.append(f"even random weights separate them ({p_value(gates.untrained_p)})")
    if gates.nuisance_p < LEVEL:
        told_by = "the word's position or the text's length separates them"
        reasons.append(f"{told_by} ({p_value(gates.nuisance_p)})")
    verdict = "confounded" if reasons else "movers"
    if not math.isnan(gates.ambiguity_p):
        as_far = f"{rank - 1:.0f} of {gates.nouns}"
        nouns = f"{as_far} unambiguous nouns change as far in its place"
        step = "give sentences whose cue says more about this word than about other nouns"
    elif gates.not_compared:
        nouns = f"it cannot be compared with unambiguous nouns ({gates.not_compared})"
        step = f"give more pairs of sentences in which “{gates.word}” is a noun in just this form"
        if gates.not_compared.startswith(TOO_FEW_NOUNS):
            step = "give more nouns with --controls; without it the nouns that ship are used"
    else:
        nouns = "it is not compared with unambiguous nouns"
        step = "leave --controls away"
    if reasons:
        step += "; let the two sentences of a pair differ in the cue alone"
    return f"{apart}, but {', '.join([*reasons, nouns])}, so heads are *{verdict}* at best; {step}."


def _pair_suffices(size: "SensePairSize") -> str:
    """How many sentences, pairs and cue words two senses have, and what they are enough for."""
    from probe.stats.limits import FEW, FEW_CUES

    missing = []
    if min(size.sentences) < FEW:
        missing.append(f"{FEW} sentences per sense")
    if size.cue_words < FEW_CUES:
        missing.append(f"{FEW_CUES} different cue words")
    if size.smallest_gap_p >= GATE:
        answer = (
            f"the test of the gap cannot come below p = {bare(round(size.smallest_gap_p, 3))} "
            f"(limit {bare(GATE)}), so no head can be ranked: give more different cue words"
        )
    elif size.smallest_p >= LEVEL:
        answer = f"no test can come below p = {size.smallest_p:.2g}: give more different cue words"
    elif missing:
        answer = f"exploratory; for a firmer answer give {' with '.join(missing)}"
    else:
        answer = "enough for tests corrected for every head"
    sense_a, sense_b = size.senses
    of_a, of_b = size.sentences
    design = f"in {size.pairs} pairs with {size.cue_words} pairs of cue words"
    if not size.aligned:
        design = f"without pairs, so {size.pairs} pairs are drawn at random"
        if size.in_pair:
            design = (
                f"of which {size.in_pair} are in pairs, too few, so {size.pairs} pairs "
                "are drawn at random from all of them"
            )
    if size.swapped_pairs < size.pairs:
        design += f" (heads are swapped in {size.swapped_pairs} of them)"
    if 0 < size.without_cue < sum(size.sentences):
        design += (
            f" ({counted(size.without_cue, 'sentence')} without a cue: each, or its pair, counts "
            "as a separate cue word)"
        )
    return f"{size.word}, {sense_a} / {sense_b}: {of_a} and {of_b} sentences {design}; {answer}."


def print_table(rows: Iterable[Any], columns: "Columns", width: int = 160) -> None:
    """A table on standard output, as wide as the terminal; `width` columns without a terminal.

    rows: such as those of a frame
    columns: by header the text of a row's cell
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(text(row) for text in columns.values()))
    Console(
        width=None if sys.stdout.isatty() else width, highlight=False, markup=False, emoji=False
    ).print(table)


def say_loading() -> None:
    """Print on standard error that the model is being loaded."""
    typer.echo(f"probe: {LOADING}.", err=True)


@contextmanager
def progress_bar() -> Iterator[Callable[[str, float], None]]:
    """A bar on standard error if it is a terminal, otherwise a line a minute, both with an estimate
    of the time left; a message if loading the model takes long."""
    if not sys.stderr.isatty():
        loading = Timer(LONG_LOADING, say_loading)
        loading.daemon = True
        loading.start()
        try:
            yield _line_a_minute(loading.cancel)
        finally:
            loading.cancel()
        return
    from rich.console import Console
    from rich.progress import Progress

    started = monotonic()
    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(LOADING, total=1.0)

        def tell(step: str, share: float) -> None:
            remaining = time_left(monotonic() - started, share)
            bar.update(task, description=f"{step}{remaining}", completed=share)

        yield tell


def time_left(elapsed: float, share: float) -> str:
    """ ", about 3 min left", if the rest goes as the work did so far; nothing before FIRST_ESTIMATE
    of it is done."""
    if not FIRST_ESTIMATE <= share < 1:
        return ""
    return f", {about_time(elapsed * (1 - share) / share)} left"


def about_time(seconds: float) -> str:
    """A time in whole minutes."""
    minutes = round(seconds / MINUTE)
    return f"about {minutes} min" if minutes else "less than a minute"


def _line_a_minute(begun: Callable[[], None]) -> Callable[[str, float], None]:
    """Says a line at most once a minute; `begun` is called when the first stage is told."""
    started = last_message = monotonic()

    def tell(step: str, share: float) -> None:
        nonlocal last_message
        begun()
        if monotonic() - last_message >= MINUTE:
            last_message = monotonic()
            passed = f"{share:.0%} after {(last_message - started) / MINUTE:.0f} min"
            typer.echo(f"{step}: {passed}{time_left(last_message - started, share)}", err=True)

    return tell
