"""The page of a survey of many words, with one model or several next to each other.

Each section is a view of `SurveyFindings`; the sentences are in the templates. With several models,
the tables of each are in a folder of its name. Models are compared in shares and counts of heads,
never by the numbers of heads.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from probe import charts
from probe.charts.palette import image
from probe.claims import worst_first
from probe.inference.across import CLEAR, WORD_HEADS, WORDS, word_heads
from probe.pages import html
from probe.pages.folder import download
from probe.results import frames as tables
from probe.results.columns import TABLES, dictionary
from probe.results.survey_findings import (
    OUTLIER,
    HeadAcrossWords,
    SurveyFindings,
    survey_findings,
)
from probe.stats import resampling
from probe.stats.limits import GATE, LEVEL
from probe.stats.numbers import counted, decimal, grouped, listed, measured, p_value, percent
from probe.studies.survey import Survey

MOST_WORDS = 500  # in the pictures of words; the tables have all
MOST_ROWS = 500  # of words in the table on the page
MOST_NUMBERS = 3  # of the file's columns in the table of words
CERTIFICATE = "survey_certificate"
NATURAL_TEXT = "evaluation_without.csv"  # the table of `probe evaluate --without`
Section = dict[str, Any]


def folders(surveys: Sequence[Survey]) -> list[str]:
    """The folder of each model's tables, relative to the page's folder: "" for a single model."""
    if len(surveys) == 1:
        return [""]
    names = [re.sub(r"[^\w.-]+", "-", survey.model_name).strip(".-") for survey in surveys]
    return [
        f"{name}/" if names.count(name) == 1 else f"{name}-{number}/"
        for number, name in enumerate(names, start=1)
    ]


def tables_of(survey: Survey) -> dict[str, pd.DataFrame]:
    """The tables of one model by name, and a dictionary of their columns, without the columns that
    come from the user's file.
    """
    frames = dict(survey.frames)
    frames[CERTIFICATE] = tables.certificate_rows(survey.certificate)
    described = frames | {
        "survey_words": frames["survey_words"][list(WORDS)],
        "survey_word_heads": pd.DataFrame(columns=list(WORD_HEADS)),
    }
    frames["survey_columns"] = dictionary(described, name="survey_columns")
    return frames


def made_together(manifests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """One manifest of several models: values that differ between models are listed per model."""
    keys = (
        "model",
        "origin",
        "weights_sha256",
        "weights_stored_as",
        "weights_read_from",
        "described",
        "quantised",
        "dtype",
    )
    models = [{key: manifest[key] for key in keys} for manifest in manifests]
    return {key: value for key, value in manifests[0].items() if key not in keys} | {
        "models": models
    }


def natural_text(folder: Path) -> Section | None:
    """Accuracy on natural text with heads of a model taken out: the mean over words, each at its
    read-out layer, and the values of random sets; None if the folder has no such table.
    """
    path = folder / NATURAL_TEXT
    if not path.is_file():
        return None
    frame = pd.read_csv(path)
    # The depth chosen on training sentences differs between words, so its column is empty.
    rows = frame[frame["word"].isna() & frame["depth"].isna()].to_dict("records")
    by_word = frame[frame["word"].notna() & frame["depth"].isna()].to_dict("records")
    return {
        "rows": rows or by_word,
        "by_word": by_word if rows else [],
        "words": frame["word"].nunique(),
        "heads": _heads_taken_out(folder),
    }


def _heads_taken_out(folder: Path) -> list[str]:
    """The heads in the manifest of the evaluation, or of a page that was written after it; empty if
    the folder has none.
    """
    try:
        return list(json.loads((folder / "manifest.json").read_bytes()).get("without", []))
    except (OSError, ValueError, AttributeError):
        return []


@html.without_validation
def render(
    surveys: Sequence[Survey],
    manifest: Mapping[str, Any],
    folders: Sequence[str],
    *,
    natural_texts: Sequence[Section | None] | None = None,
    pages: Sequence[Mapping[str, str]] | None = None,
) -> str:
    """The page as one self-contained HTML file.

    made: the manifest; everything but the time is shown
    folders: of each model's tables, relative to the page's folder
    natural_texts: for each model the result of `natural_text`
    pages: for each model the address of each word's page, by word
    """
    by_model = [survey_findings(survey.model_name, survey.frames) for survey in surveys]
    limits = _limits(by_model)
    words = _word_pictures(by_model, surveys)
    models = [
        _model(number, findings, survey, folder, limits)
        | words[number]
        | {"natural": natural_text, "pages": of_words, "facts": facts(findings, natural_text)}
        for number, (findings, survey, folder, natural_text, of_words) in enumerate(
            zip(
                by_model,
                surveys,
                folders,
                natural_texts or [None] * len(by_model),
                pages or [{}] * len(by_model),
                strict=True,
            )
        )
    ]
    templates = html.environment("survey", "report")
    return templates.get_template("survey.html.j2").render(
        models=models,
        made=manifest,
        limits=[percent(limit) for limit in limits],
        fact_names=[name for name in models[0]["facts"] if any(m["facts"][name] for m in models)],
        marks=charts.MARKS,
        verdicts=_verdicts(by_model),
        framed=any(
            head.comparison == "more" and head.effect > 0
            for findings in by_model
            for head in findings.heads
        ),
        dictionary=tables_of(surveys[0])["survey_columns"].to_dict("records"),
        downloads=[row for model in models for row in model["downloads"]],
        clear=percent(CLEAR),
        gate=decimal(GATE).lstrip("0"),
        outlier=f"{OUTLIER:g}",
        most_words=MOST_WORDS,
        **html.assets(templates, "survey.css.j2", "page.js"),
    )


def _limits(by_model: Sequence[SurveyFindings]) -> charts.EffectLimits:
    """The ends of the maps' scales, the same for all models, as fractions of the gap."""
    limits = [charts.survey_limits(findings.frames["survey_heads"]) for findings in by_model]
    return charts.EffectLimits(*(max(ends) for ends in zip(*limits, strict=True)))


def _verdicts(by_model: Sequence[SurveyFindings]) -> list[str]:
    """The verdicts with a mark in one of the maps."""
    maps = [
        charts.survey_verdicts(findings.frames["survey_heads"])
        for findings in by_model
        if findings.ranked
    ]
    return charts.marked(pd.DataFrame({"verdict": pd.concat(maps)})) if maps else []


# --- one model ------------------------------------------------------------------------------------


def _model(
    number: int,
    findings: SurveyFindings,
    survey: Survey,
    folder: str,
    limits: charts.EffectLimits,
) -> Section:
    """The sections of one model."""
    frames = findings.frames
    heads = frames["survey_heads"]
    section: Section = {
        "id": number,
        "found": findings,
        "folder": folder,
        "name": survey.model_name,
        "origin": survey.origin,
        "source": survey.source,
        "said": survey.cautions,
        "two_panels": bool((heads["layer"] >= findings.depth).any()),
        "map": charts.survey_map(heads, limits=limits) if findings.ranked else None,
        "lines": lines(findings),
        "carry": None,
        "distances": None,
        "numbers": frames["survey_numbers"].to_dict("records"),
        "visible": decimal(resampling.smallest_effect(findings.words, tests=1, paired=True)),
        "heads": [_head_row(head) for head in findings.heads],
        "left_out": frames["survey_left_out"].to_dict("records"),
        "certificate": worst_first(tables.certificate_rows(survey.certificate)),
        "downloads": _downloads(tables_of(survey), findings, folder),
    }
    section["every_word"] = _every_word(findings, survey, number)
    if findings.carry_over:
        section["carry"] = charts.carried_over(frames["survey_carry_over"])
    if findings.words_compared and findings.general_share > 0:
        section["distances"] = charts.distances_by_depth(
            frames["survey_depths"], read_at=findings.depth
        )
    return section


def lines(findings: SurveyFindings) -> Section:
    """A line for each leading head: its numbers as text, and their positions on an axis that all
    lines share, in % of its width.
    """
    top_heads = findings.top_heads
    if not top_heads:
        return {"rows": [], "ticks": [], "zero": ""}
    ends = [0.0]
    for head in top_heads:
        ends += [head.effect_low, head.effect_high, *_spread_ends(head)]
        ends += [head.nouns] if head.comparison else []
    low = min(ends)
    high = max(ends)
    margin = 0.04 * (high - low)

    def at(value: float) -> str:
        position = (value - low + margin) / (high - low + 2 * margin)
        return f"{100 * min(max(position, 0.0), 1.0):.2f}"

    rows = []
    for head in top_heads:
        spread_low, spread_high = _spread_ends(head)
        positions = {
            "effect": at(head.effect),
            "low": at(head.effect_low),
            "high": at(head.effect_high),
        }
        positions |= {"from": at(spread_low), "to": at(spread_high)}
        positions["width"] = f"{float(positions['to']) - float(positions['from']):.2f}"
        positions["nouns"] = at(head.nouns) if head.comparison else ""
        rows.append(_head_row(head) | {"drawn": positions})
    step = _tick_step(high - low)
    ticks = [step * number for number in range(int(np.ceil(low / step)), int(high / step) + 1)]
    return {"rows": rows, "ticks": [(at(tick), percent(tick)) for tick in ticks], "zero": at(0.0)}


def _tick_step(width: float) -> float:
    """The distance between two ticks, for an axis with about four numbers."""
    return next((step for step in (0.05, 0.1, 0.2, 0.5, 1.0) if width / step <= 4.5), 2.0)


def _spread_ends(head: HeadAcrossWords) -> tuple[float, float]:
    """One standard deviation between words below and above the effect."""
    return head.effect - head.between_words, head.effect + head.between_words


def _head_row(head: HeadAcrossWords) -> Section:
    """A head's numbers as text."""
    compared = bool(head.comparison)
    more = ""
    if compared:
        more = measured(head.more, head.more_low, head.more_high)
    return {
        "name": head.name,
        "significant": head.significant,
        "effect": measured(head.effect, head.effect_low, head.effect_high),
        "p": p_value(head.p),
        "between": percent(head.between_words),
        "forward": f"{head.words_positive} of {head.words_clear}",
        "attention": "" if math.isnan(head.attention_cue) else percent(head.attention_cue),
        "nouns": percent(head.nouns) if compared else "",
        "more": more,
        "p_more": p_value(head.p_more) if compared else "",
        "comparison": head.comparison,
        "than_nouns": charts.BESIDE_NOUNS[head.comparison],
        "rank": f"{head.rank} [{head.rank_low}, {head.rank_high}]",
        "read": head.read_depth,
    }


# --- words ----------------------------------------------------------------------------------------


def _cells(findings: SurveyFindings, survey: Survey, number: int) -> pd.DataFrame:
    """The effect of each leading head on each measured word.

    `effect` is missing if the word's gap is not clear; `outlier` marks an effect far from the
    effect over all words.
    """
    leading = pd.DataFrame(
        [
            {"layer": head.layer, "head": head.head, "name": head.name}
            | {"over_words": head.effect, "between": head.between_words}
            for head in findings.top_heads
        ]
    )
    parts = [
        part.merge(leading, on=["layer", "head"])
        for part in word_heads(survey.records, findings.depth)
    ]
    cells = pd.concat(parts, ignore_index=True)
    # The mean gap over words, at the depth where the head is read.
    mean_gap = cells.groupby("name")["gap"].transform("mean")
    words = findings.frames["survey_words"].reset_index(names="row").set_index("word")
    cells["share"] = cells["gap"] / mean_gap
    cells["effect"] = cells["effect"].where(cells["share"] >= CLEAR)
    far = (cells["effect"] - cells["over_words"]).abs() / cells["between"]
    cells["outlier"] = far > OUTLIER
    cells["kind"] = cells["word"].map(words["kind"])
    cells["target"] = [f"word-{number}-{row}" for row in cells["word"].map(words["row"])]
    return cells


def _words_shown(findings: SurveyFindings) -> list[str]:
    """The words of the pictures: of more than MOST_WORDS those with the largest gaps."""
    words = findings.frames["survey_words"]
    measured_words = words[words["reason"] == ""].nlargest(MOST_WORDS, "gap")
    return [str(word) for word in measured_words["word"]]


def _word_pictures(by_model: Sequence[SurveyFindings], surveys: Sequence[Survey]) -> list[Section]:
    """For each model a picture for each leading head, all on one scale, and the number of words
    that are not drawn.
    """
    cells: list[pd.DataFrame | None] = []
    ends = [0.0]
    for number, (findings, survey) in enumerate(zip(by_model, surveys, strict=True)):
        if not findings.top_heads:
            cells.append(None)
            continue
        rows = _cells(findings, survey, number)
        rows_of_words = rows[rows["word"].isin(_words_shown(findings))]
        cells.append(rows_of_words)
        ends += rows_of_words["effect"].dropna().tolist()
    limits = (min(ends), max(ends))

    def pictures(findings: SurveyFindings, rows: pd.DataFrame | None) -> Section:
        if rows is None:
            return {"words": [], "not_drawn": 0}
        by_head = [rows[rows["name"] == head.name] for head in findings.top_heads]
        return {
            "words": [charts.words_of_head(words, limits=limits) for words in by_head],
            "not_drawn": findings.words - rows["word"].nunique(),
        }

    return [pictures(*pair) for pair in zip(by_model, cells, strict=True)]


def _every_word(findings: SurveyFindings, survey: Survey, number: int) -> Section:
    """A line for each word: its gap and that of unambiguous nouns in its place, or why it was not
    measured, and its values in the user's file.

    Gaps are divided by the mean gap over words if heads are ranked; otherwise they are in units of
    the residual stream.
    """
    words = findings.frames["survey_words"].reset_index(names="row")
    unit = words["gap"].mean() if findings.ranked else 1.0
    further = [str(name) for name in words.columns.difference(["row", *WORDS], sort=False)]
    further = further[:MOST_NUMBERS]
    rows = []
    for row in words.head(MOST_ROWS).to_dict("records"):
        rows.append(
            {
                "id": f"word-{number}-{row['row']}",
                "word": row["word"],
                "kind": row["kind"],
                "pairs": row["pairs"],
                "reason": row["reason"],
                "nouns": row["nouns"],
                "clear": row["clear"],
                "gap": "" if row["reason"] else decimal(row["gap"] / unit),
                "general": ""
                if pd.isna(row["general_gap"])
                else decimal(row["general_gap"] / unit),
                "further": [_plain(row[name]) for name in further],
            }
        )
    return {"rows": rows, "further": further, "all": len(words)}


def _plain(value: Any) -> str:
    """A value of the user's file as text: whole numbers without a decimal point."""
    if pd.isna(value):
        return ""
    return f"{value:.6g}" if isinstance(value, float) else str(value)


# --- the table of facts ---------------------------------------------------------------------------

KEPT = "heads of other words keep, of a word's gap [95 %]"
KEPT_BY_RANDOM = "random heads of these layers keep"
COMPARISONS = {
    "more": "more for ambiguous words than for unambiguous nouns",
    "same": "about as much for both",
    "less": "less for ambiguous words",
    "undecided": "undecided",
}
FEW_NAMES = 6  # heads that a cell of the table names; of more it gives the number


def facts(findings: SurveyFindings, natural: Section | None) -> dict[str, str]:
    """The value of each row of the table of facts; empty if it was not measured.

    Every model has the same rows, so that models can be read next to each other.
    """
    movers = findings.movers
    largest = movers[0] if movers else None
    carry_over = findings.carried_set if movers else None
    by_attention = findings.movers_by_attention if movers else None
    rows = {
        "words": str(findings.words),
        "sentences, pairs swapped": f"{grouped(findings.sentences)}, {grouped(findings.pairs)}",
        "heads in layers": f"{findings.number_of_heads} in {findings.layers}",
        "words are read after layer": f"{findings.depth - 1} of {findings.layers}",
        "heads that move words": "",
        "largest effect [95 %], ± between words": "",
        "of these, among as many that attend to the cue most": "",
        "words change, compared with unambiguous nouns": _compared_with_nouns(findings),
    }
    if findings.ranked:
        share = percent(len(movers) / findings.number_of_heads, 1)
        rows["heads that move words"] = f"{len(movers)} ({share})"
    if largest is not None:
        effect = measured(largest.effect, largest.effect_low, largest.effect_high)
        spread = percent(largest.between_words)
        rows["largest effect [95 %], ± between words"] = f"{largest.name}: {effect}, ±{spread}"
    if by_attention is not None:
        rows["of these, among as many that attend to the cue most"] = str(by_attention)
    for comparison, name in COMPARISONS.items():
        rows[name] = _names(findings.by_comparison(comparison))
    rows |= dict.fromkeys((KEPT, KEPT_BY_RANDOM), "")
    if carry_over is not None:
        value = measured(carry_over.others, carry_over.others_low, carry_over.others_high)
        rows[KEPT] = f"{value} with {counted(carry_over.k, 'head')}"
        rows[KEPT_BY_RANDOM] = percent(carry_over.random)
    return rows | _natural_facts(natural)


def _names(heads: Sequence[HeadAcrossWords]) -> str:
    if len(heads) > FEW_NAMES:
        return counted(len(heads), "head")
    return ", ".join(head.name for head in heads)


def _compared_with_nouns(findings: SurveyFindings) -> str:
    """How far words change, compared with unambiguous nouns in their place."""
    if not findings.words_compared:
        return ""
    p = p_value(findings.ambiguity_p, LEVEL)
    if findings.ranked and not findings.is_ambiguity:
        return f"no difference found ({p})"
    times = (
        "further"
        if math.isinf(findings.times_as_far)
        else f"{decimal(findings.times_as_far, 1)} times as far"
    )
    return f"{times}, over {counted(findings.words_compared, 'word')} ({p})"


def _natural_facts(natural: Section | None) -> dict[str, str]:
    """Accuracy on natural text, with all heads and with some of them taken out."""
    names = {
        "mean": "accuracy without these heads (their mean)",
        "swap": "accuracy without these heads (another sentence's)",
    }
    first = "accuracy on natural text"
    last = "random sets of these layers cost at most"
    rows = dict.fromkeys((first, *names.values(), last), "")
    if natural is None:
        return rows
    rows[first] = percent(natural["rows"][0]["accuracy"], 1)
    for row in natural["rows"]:
        heads = listed(natural["heads"]) if natural["heads"] else "the heads taken out"
        rows[names[row["kind"]]] = f"{percent(row['accuracy_without'], 1)} ({heads})"
    largest = max(row["random_most"] for row in natural["rows"])
    rows[last] = f"{decimal(100 * largest, 1)} points"
    return rows


def _downloads(
    frames: Mapping[str, pd.DataFrame], findings: SurveyFindings, folder: str
) -> list[Section]:
    """The tables of one model. The table of all words and heads exists as Parquet only."""
    rows = [
        download(f"{folder}{name}", len(frame), TABLES.get(name, ""))
        for name, frame in frames.items()
    ]
    number = findings.words * findings.number_of_heads
    name = "survey_word_heads"
    rows.append(download(f"{folder}{name}", number, TABLES[name], ["Parquet"]))
    return rows


def notebook_html(survey: Survey) -> str:
    """The HTML of a survey in a notebook: its answer, the map, and a line for each leading head."""
    findings = survey_findings(survey.model_name, survey.frames)
    picture = ""
    if findings.ranked:
        map_of_heads = charts.survey_map(
            findings.frames["survey_heads"], limits=_limits([findings])
        )
        picture = Markup(image(map_of_heads))
    return (
        html.environment("notebook", "survey", "report")
        .get_template("survey.html.j2")
        .render(
            found=findings,
            frames=survey.frames,
            rows=[_head_row(head) for head in findings.top_heads],
            picture=picture,
        )
    )
