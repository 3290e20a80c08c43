"""The page of a cue scan: two columns of words, the scatter, the heads. The sentences are in the
template."""

import math
from collections.abc import Mapping
from typing import Any

import pandas as pd
from markupsafe import Markup

from probe import charts
from probe.charts.palette import image
from probe.claims.cues import strongest_cues
from probe.claims.heads import name_of
from probe.pages import html
from probe.pages.folder import downloads
from probe.pages.html import worst_first
from probe.results import frames as tables
from probe.results.columns import dictionary
from probe.stats.numbers import decimal, interval, listed, measured
from probe.studies.cues import SAMPLE, VOCABULARY, Cues
from probe.tidy import rounded

CERTIFICATE = "cues_certificate"
ONLY_ARCHIVED = ("cues",)  # a table that is too large for a CSV
WORDS = 24  # of each column
HEADLINE_WORDS = 2  # of each side
Section = dict[str, Any]


def tables_of(cues: Cues) -> dict[str, pd.DataFrame]:
    """The tables of a scan, and what their columns mean."""
    frames = dict(cues.frames)
    frames["cues_words"] = strongest_words(cues)
    frames[CERTIFICATE] = tables.certificate_rows(cues.certificate)
    frames["cues_columns"] = dictionary(frames, name="cues_columns")
    return frames


def strongest_words(cues: Cues) -> pd.DataFrame:
    """The two columns of words as a table."""
    zero = cues.summary["without_cue"]
    sides = zip(cues.senses, strongest_cues(cues.cues, WORDS, zero=zero), strict=True)
    rows = [(sense, each["word"], each["value"] + zero) for sense, words in sides for each in words]
    return rounded(pd.DataFrame(rows, columns=["sense", "cue", "coordinate"]))


def render(cues: Cues, manifest: Mapping[str, Any]) -> str:
    """The page as one self-contained HTML file; of the manifest everything but the time is on
    it."""
    summary = cues.summary
    senses = list(cues.senses)
    frames = tables_of(cues)
    return html.page(
        "cues.html.j2",
        "cues.css.j2",
        *("cues", "report"),
        summary=summary,
        senses=senses,
        model=cues.model_name,
        origin=cues.origin,
        options=cues.options,
        cues=cues.cues,
        heads=cues.heads,
        WORDS=WORDS,
        HEADLINE_WORDS=HEADLINE_WORDS,
        held_out=held_out_sentences(summary),
        sample=SAMPLE,
        not_found=(
            "not in the vocabulary" if cues.options["cues"] == VOCABULARY else "not among the cues"
        ),
        certificate=worst_first(frames[CERTIFICATE]),
        manifest=manifest,
        dictionary=frames["cues_columns"].to_dict("records"),
        downloads=downloads(frames, only_archived=ONLY_ARCHIVED),
    )


def held_out_sentences(summary: Section) -> str:
    """How well held-out cue words are separated, and how well without the ambiguous word; "" if
    there are no such words.

    summary: the row of `cues_summary`
    """
    if math.isnan(summary["auroc"]):
        return ""
    of_word = decimal(summary["auroc"], 3)
    ends = interval(summary["auroc_low"], summary["auroc_high"], 3)
    at_nouns = ""
    if not math.isnan(summary["auroc_nouns"]):
        least, largest = (decimal(summary[f"auroc_nouns_{end}"], 3) for end in ("min", "max"))
        at_nouns = (
            "at unambiguous nouns in the word's place, each along its own axis, "
            f"{decimal(summary['auroc_nouns'], 3)} ({least} to {largest}); "
        )
    return (
        f"AUROC of {summary['held_out']} held-out cue words: {of_word} {ends}; {at_nouns}"
        f"by the cue's token embedding alone {decimal(summary['auroc_embedding'], 3)} "
        f"({decimal(summary['auroc_whitened'], 3)} whitened over the vocabulary). Only what "
        "exceeds these baselines could be due to ambiguity. A scan shows which words move the "
        "word, how far, and through which heads."
    )


def terminal_lines(cues: Cues) -> list[str]:
    """The words and the head that move the word most, then the held-out cue words."""
    sides = strongest_cues(cues.cues, WORDS, zero=cues.summary["without_cue"])
    toward = [
        f"{listed([str(each['word']) for each in words[:HEADLINE_WORDS]])} toward {sense}"
        for sense, words in zip(cues.senses, sides, strict=True)
        if words
    ]
    first = f"{cues.summary['word']}: moved farthest by {'; by '.join(toward)}."
    if len(cues.heads):
        head: Any = next(cues.heads.itertuples())
        share = measured(head.share, head.share_low, head.share_high)
        first += f" {name_of(head)} carries {share} of what the words do to it."
    return [line for line in (first, held_out_sentences(cues.summary)) if line]


def notebook_html(cues: Cues) -> str:
    """What a notebook shows of a scan: the two columns of words and the picture."""
    summary = cues.summary
    senses = list(cues.senses)
    has_heads = bool(cues.cues["head"].notna().any())
    picture = ""
    if has_heads:
        picture = Markup(
            image(charts.cue_scatter(cues.cues, senses, without_cue=summary["without_cue"]))
        )
    return (
        html.environment("notebook")
        .get_template("cue_scan.html.j2")
        .render(
            summary=summary,
            senses=senses,
            model=cues.model_name,
            cues=cues.cues,
            WORDS=WORDS,
            picture=picture,
            held_out=held_out_sentences(summary),
            frames=list(cues.frames),
        )
    )
