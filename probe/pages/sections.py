"""The sections of a report, in the order of the page.

A section is a row: where it is linked, its template, and the values that the template needs. The
sentences of a section stand in its template.
"""

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Any, NamedTuple

from probe import charts
from probe.pages import checks, cues, heads, paths, predictions, sentences, why, words
from probe.results.findings import Frames, WordFindings
from probe.results.survey_findings import survey_findings


class Page(NamedTuple):
    """What a report is about.

    findings: by word.
    frames: the tables; those of experiments that were not run have no rows.
    tables: the names of those that were measured.
    manifest: what made them.
    """

    findings: Mapping[str, WordFindings]
    frames: Frames
    tables: Collection[str]
    manifest: Mapping[str, Any]

    @property
    def ranks_heads(self) -> bool:
        """Whether heads of any word were ranked."""
        return any(word.heads for word in self.findings.values())

    @property
    def has_cue_samples(self) -> bool:
        """Whether other words were tried as the cue of any word."""
        return len(self.frames.get("cue_samples", ())) > 0

    @property
    def is_general(self) -> bool:
        """Whether there are enough words for what holds in general."""
        return "survey_model" in self.frames


Values = Mapping[str, Any]


class Section(NamedTuple):
    """One section of a report.

    id: of the element, to which the table of contents links.
    title: in the table of contents.
    template: in the folder `report`.
    values: those that its template needs, by name.
    shown: whether the section is on a page.
    table: what it shows; without this table it is absent, because its experiment was not run.
    """

    id: str
    title: str
    template: str
    values: Callable[[Page], Values]
    shown: Callable[[Page], bool] = lambda page: True
    table: str = "words"


def shown(page: Page) -> list[Section]:
    """The sections of a page."""
    return [section for section in SECTIONS if section.table in page.tables and section.shown(page)]


def _answer(page: Page) -> Values:
    return {
        "maps": heads.maps(page.findings, page.frames),
        "examples": sentences.examples(page.findings),
    }


def _general(page: Page) -> Values:
    """What holds over all words, and a map of the heads."""
    found = survey_findings(page.manifest["model"], page.frames)
    table = page.frames["survey_heads"]
    limit = charts.effect_limit(table.rename(columns={"effect": "net"}))
    return {
        "general": found,
        "general_map": charts.survey_map(table, limit=limit) if found.ranked else None,
    }


def _words(page: Page) -> Values:
    return {"cards": words.cards(page.findings), "scope": words.scope(page.findings)}


def _otherwise(page: Page) -> Values:
    return {
        "read_otherwise": predictions.read_otherwise(page.findings),
        "most_listed": predictions.MOST_LISTED,
    }


def _heads(page: Page) -> Values:
    return {
        "leading_heads": heads.leading_heads(page.findings, page.frames["verdicts"]),
        "readings": sentences.readings(page.findings),
    }


def _believe(page: Page) -> Values:
    return {
        "nouns_asked": "controls" in page.tables,
        "beside_nouns": checks.beside_nouns(page.findings),
        "believe": checks.controls_and_power(page.findings),
    }


def _downloads(page: Page) -> Values:
    return {
        "downloads": checks.downloads(page.frames),
        "dictionary": page.frames["columns"].to_dict("records"),
    }


RANKED = attrgetter("ranks_heads")
SECTIONS = (
    Section("answer", "Answer", "answer.html.j2", _answer),
    Section(
        "cues",
        "Other cues",
        "cue_sample.html.j2",
        lambda p: {"cue_samples": cues.samples(p.findings, p.frames)},
        shown=lambda p: p.has_cue_samples,
        table="cue_sample",
    ),
    Section("general", "In general", "general.html.j2", _general, shown=lambda p: p.is_general),
    Section("words", "Word by word", "words.html.j2", _words),
    Section(
        "otherwise",
        "Read otherwise",
        "otherwise.html.j2",
        _otherwise,
        shown=lambda p: "predictions" in p.frames,
    ),
    Section("heads", "Leading heads", "heads.html.j2", _heads, shown=RANKED, table="readings"),
    Section(
        "why",
        "Why the cue",
        "why.html.j2",
        lambda p: {"why": why.section(p.findings)},
        shown=lambda p: len(p.frames["why_it_attends"]) > 0,
        table="why_it_attends",
    ),
    Section(
        "path",
        "From cue to word",
        "path.html.j2",
        lambda p: {"paths": paths.section(p.findings, p.frames)},
        shown=RANKED,
        table="positions",
    ),
    Section(
        "together",
        "Together",
        "together.html.j2",
        lambda p: {"together": heads.together(p.findings, p.frames)},
        shown=RANKED,
        table="curves",
    ),
    Section(
        "supplies",
        "Which words",
        "supplied.html.j2",
        lambda p: {"supplied": sentences.supplied(p.findings, p.frames)},
        shown=RANKED,
        table="decomposition",
    ),
    Section(
        "shares",
        "Shares",
        "shares.html.j2",
        lambda p: {"shares": heads.shares(p.frames)},
        shown=RANKED,
        table="shares",
    ),
    Section(
        "every",
        "Every head",
        "every.html.j2",
        lambda p: {"every_head": heads.every_head(p.findings, p.frames)},
        shown=RANKED,
    ),
    Section("believe", "Believe it?", "believe.html.j2", _believe),
    Section(
        "cannot",
        "Where it cannot",
        "cannot.html.j2",
        lambda p: {"showcase": sentences.showcase(p.findings, p.frames)},
        table="showcase",
    ),
    Section(
        "certificate",
        "Certificate",
        "certificate.html.j2",
        lambda p: {"certificate": checks.certificate(p.frames["certificate"])},
    ),
    Section(
        "method",
        "Method",
        "method.html.j2",
        lambda p: {"data": checks.data_used(p.findings, p.frames["left_out"])},
    ),
    Section("tables", "Tables", "downloads.html.j2", _downloads),
)
