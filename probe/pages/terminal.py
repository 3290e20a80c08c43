"""The output of commands: tables or JSON on standard output, progress on standard error."""

import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from threading import Timer
from time import monotonic
from typing import TYPE_CHECKING, Any

import typer

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

if TYPE_CHECKING:
    from probe.model.check import Certificate
    from probe.model.parameters import Count
    from probe.results.evaluation import Evaluation
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

    rows = [
        [part.name, part.shape, f"{part.each:>11,}", f"{part.number:>7,}", f"{part.total:>14,}"]
        for part in counted.parts
        if part.number
    ]
    print_table(["part", "shape", f"{'each':>11}", f"{'of them':>7}", f"{'in all':>14}"], rows)
    for line in parameter_sentences(counted):
        typer.echo(line)


def print_evaluation(evaluation: "Evaluation") -> None:
    """Every word at its chosen depth, the mean by depth, both with heads taken out where they were,
    the sentences that are read otherwise, and why sentences were left out."""
    parts = [words_of(evaluation), baselines_of(evaluation), means_of(evaluation)]
    if evaluation.without is not None:
        parts += without_of(evaluation)
        if len(evaluation.words) > 1:
            parts += without_words_of(evaluation)
    for header, rows in parts:
        print_table(header, rows, width=EVALUATION_WIDTH)
        typer.echo()
    if evaluation.without is not None:
        for line in without_sentences(evaluation):
            typer.echo(line)
        typer.echo()
    print_otherwise(evaluation)
    for line in (*reasons_of(evaluation), *evaluation.cautions):
        typer.echo(line)


Shown = tuple[list[str], list[list[str]]]  # header and rows


def words_of(evaluation: "Evaluation") -> Shown:
    """Every word at its chosen depth. Each fold is read at the depth that its training sentences
    chose; the depth named is the most frequent one."""
    from probe.experiments.senses import depth_label

    header = ["word", "senses", "sentences", "tested", "left out", "mostly read"]
    header += ["accuracy", "macro-F1"]
    rows = []
    for row in evaluation.words.to_dict("records"):
        counts = [str(row[name]) for name in ("senses", "sentences", "tested", "left_out")]
        rows.append([row["word"], *counts, depth_label(row["depth"]), *_scores(row)])
    return header, rows


def baselines_of(evaluation: "Evaluation") -> Shown:
    """Accuracy and macro-F1 of every baseline, word by word."""
    from probe.experiments.accuracy import METHODS

    baselines = [method for method in METHODS if method != "nearest"]
    rows = []
    for row in evaluation.words.to_dict("records"):
        scores = [" / ".join(_scores(row, f"{method}_")) for method in baselines]
        rows.append([row["word"], *scores])
    return ["accuracy / macro-F1", *(METHODS[method] for method in baselines)], rows


def print_otherwise(evaluation: "Evaluation") -> None:
    """How many tested sentences are read otherwise than labelled, and the clearest of them."""
    from probe.stats.numbers import decimal

    sentences = evaluation.sentences
    if sentences is None:
        return
    wrong = sentences[~sentences["right"].astype(bool)]
    clearest = wrong.sort_values("coordinate", kind="stable").head(OTHERWISE)
    rows = []
    for row in clearest.to_dict("records"):
        text = row["text"] if len(row["text"]) <= LONGEST else f"{row['text'][:LONGEST]}…"
        cells = [row["word"], row["sense"], row["predicted"], decimal(row["coordinate"]), text]
        rows.append(cells)
    if rows:
        header = ["word", "sense", "read as", "coordinate", "sentence"]
        print_table(header, rows, width=EVALUATION_WIDTH)
        typer.echo()
    typer.echo(
        f"{len(wrong)} of {len(sentences)} tested sentences are read otherwise than labelled; "
        "with --out, evaluation_sentences.csv has every one."
    )


def means_of(evaluation: "Evaluation") -> Shown:
    """The mean over the words, by depth, then of every baseline."""
    from probe.stats.numbers import counted, decimal

    rows = []
    for row in evaluation.mean.to_dict("records"):
        label = row["label"] if isinstance(row["label"], str) else ""
        angle = "" if math.isnan(row["angle"]) else decimal(row["angle"])
        rows.append([row["method"], label, *_scores(row), angle])
    count = counted(len(evaluation.words), "word")
    return [f"mean over {count}", "read", "accuracy", "macro-F1", "angle (°)"], rows


def without_of(evaluation: "Evaluation") -> list[Shown]:
    """Accuracy by depth, the mean over the words, and how far it falls with heads taken out, in per
    cent and percentage points, with p over random sets: a table for each replacement."""
    from probe.stats.numbers import counted

    lines = [(of_depth[0]["label"], of_depth) for of_depth in _without(evaluation)]
    return _without_tables(f"mean over {counted(len(evaluation.words), 'word')}", lines)


def without_words_of(evaluation: "Evaluation") -> list[Shown]:
    """The same for every word, at the depth chosen in training, which is the last row."""
    from probe.results.ablation import CHOSEN

    lines = [(word, _without(evaluation, word)[-1]) for word in evaluation.words["word"]]
    return _without_tables(CHOSEN, lines)


def _without_tables(
    first: str, lines: Sequence[tuple[str, Sequence[Mapping[str, Any]]]]
) -> list[Shown]:
    """A table for each replacement; of each line its first cell, and a row for each replacement."""
    from probe.stats.numbers import p_value

    tables: list[Shown] = []
    for number, replacement in enumerate(REPLACED.values()):
        cells = []
        for name, of_kinds in lines:
            row = of_kinds[number]
            p = p_value(row["p"]).removeprefix("p = ")
            scores = [f"{100 * row[score]:.1f}" for score in ("accuracy", "accuracy_without")]
            cells.append([name, *scores, _points(row), p])
        tables.append(([first, "accuracy", f"with {replacement}", "falls by", "p"], cells))
    return tables


def without_sentences(evaluation: "Evaluation") -> list[str]:
    """What taking the heads out costs at the depth chosen in training, a sentence for each way."""
    from probe.stats.numbers import counted, listed, p_value
    from probe.studies.heads_given import head_index

    names = listed(evaluation.heads_out)
    sentences = []
    for replacement, row in zip(REPLACED.values(), _without(evaluation)[-1], strict=True):
        sentences.append(
            f"Without {names} at the word ({replacement} instead), accuracy at the {row['label']} "
            f"is {100 * row['accuracy_without']:.1f} %, with them {100 * row['accuracy']:.1f} % "
            f"(macro-F1 {100 * row['macro_f1_without']:.1f} % and {100 * row['macro_f1']:.1f} %): "
            f"a fall of {_points(row)} percentage points, of macro-F1 "
            f"{_points(row, 'macro_f1_fall')}"
            f"{RISE if min(row['fall'], row['macro_f1_fall']) < 0 else ''}. Without random sets of "
            f"as many other heads a layer ({row['random_sets']} sets) accuracy "
            f"{_falls(row['random_fall'])} on average, {_at_most(row['random_most'])} "
            f"({p_value(row['p'])} over the sets)."
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
    from probe.stats.numbers import decimal

    return f"{'falls' if points >= 0 else 'rises'} by {decimal(100 * abs(points), 1)}"


def _at_most(points: float) -> str:
    """How far the worst random set lowers accuracy."""
    if points <= 0:
        return "and no set lowers it"
    return f"and {_falls(points)} at most"


def _without(
    evaluation: "Evaluation", word: str | None = None
) -> list[tuple[Mapping[str, Any], ...]]:
    """The rows of a word, by default of the mean over the words, depth by depth: one of each kind.
    The depth chosen in training is last."""
    frame = evaluation.without
    assert frame is not None
    of_word = frame[frame["word"].isna() if word is None else frame["word"] == word]
    by_kind = [of_word[of_word["kind"] == kind].to_dict("records") for kind in REPLACED]
    return list(zip(*by_kind, strict=True))


def _points(row: Mapping[str, Any], fall: str = "fall") -> str:
    """The fall of a score in percentage points, with its interval."""
    from probe.stats.numbers import decimal, interval

    low, high = (100 * row[f"{fall}_{end}"] for end in ("low", "high"))
    return f"{decimal(100 * row[fall], 1)} {interval(low, high, 1)}"


def _scores(row: Mapping[Any, float], prefix: str = "") -> list[str]:
    """Accuracy and macro-F1 in percent."""
    return [f"{100 * row[f'{prefix}{score}']:.1f}" for score in ("accuracy", "macro_f1")]


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
    from probe.stats.numbers import counted

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
    from probe.stats.limits import FEWEST_WORDS
    from probe.stats.numbers import counted, listed
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
    from probe.inference.verdicts import rank_among_nouns
    from probe.stats.limits import GATE, LEVEL
    from probe.stats.numbers import p_value

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
    from probe.stats.limits import FEW, FEW_CUES, GATE, LEVEL
    from probe.stats.numbers import bare, counted

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


def print_table(header: list[str], rows: list[list[str]], width: int = 160) -> None:
    """A table on standard output, as wide as the terminal; `width` columns without a terminal."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*header, box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*row)
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
    minutes = round(elapsed * (1 - share) / share / MINUTE)
    return f", about {minutes} min left" if minutes else ", less than a minute left"


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
