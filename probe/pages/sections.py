"""The sections of a report, in the order of the page.

A section is a row: where it is linked, its template, and the values that the template needs. The
sentences of a section stand in its template.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from probe import charts
from probe.pages import checks, cues, heads, paths, sentences, words
from probe.results.findings import Frames, WordFindings
from probe.results.survey_findings import survey_findings


class Page(NamedTuple):
    """What a report is about: the findings by word, the frames, and what made them."""

    findings: Mapping[str, WordFindings]
    frames: Frames
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
    """

    id: str
    title: str
    template: str
    values: Callable[[Page], Values]
    shown: Callable[[Page], bool] = lambda page: True


def shown(page: Page) -> list[Section]:
    """The sections of a page."""
    return [section for section in SECTIONS if section.shown(page)]


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


def _heads(page: Page) -> Values:
    return {
        "leading_heads": heads.leading_heads(page.findings, page.frames["verdicts"]),
        "readings": sentences.readings(page.findings),
    }


def _believe(page: Page) -> Values:
    return {
        "beside_nouns": checks.beside_nouns(page.findings),
        "believe": checks.controls_and_power(page.findings),
    }


def _downloads(page: Page) -> Values:
    return {
        "downloads": checks.downloads(page.frames),
        "dictionary": page.frames["columns"].to_dict("records"),
    }


SECTIONS = (
    Section("answer", "Answer", "answer.html.j2", _answer),
    Section(
        "cues",
        "Other cues",
        "cue_sample.html.j2",
        lambda p: {"cue_samples": cues.samples(p.findings, p.frames)},
        shown=lambda p: p.has_cue_samples,
    ),
    Section("general", "In general", "general.html.j2", _general, shown=lambda p: p.is_general),
    Section("words", "Word by word", "words.html.j2", _words),
    Section("heads", "Leading heads", "heads.html.j2", _heads, shown=lambda p: p.ranks_heads),
    Section(
        "path",
        "From cue to word",
        "path.html.j2",
        lambda p: {"paths": paths.section(p.findings, p.frames)},
        shown=lambda p: p.ranks_heads,
    ),
    Section(
        "together",
        "Together",
        "together.html.j2",
        lambda p: {"together": heads.together(p.findings, p.frames)},
        shown=lambda p: p.ranks_heads,
    ),
    Section(
        "supplies",
        "Which words",
        "supplied.html.j2",
        lambda p: {"supplied": sentences.supplied(p.findings, p.frames)},
        shown=lambda p: p.ranks_heads,
    ),
    Section(
        "shares",
        "Shares",
        "shares.html.j2",
        lambda p: {"shares": heads.shares(p.frames)},
        shown=lambda p: p.ranks_heads,
    ),
    Section(
        "every",
        "Every head",
        "every.html.j2",
        lambda p: {"every_head": heads.every_head(p.findings, p.frames)},
        shown=lambda p: p.ranks_heads,
    ),
    Section("believe", "Believe it?", "believe.html.j2", _believe),
    Section(
        "cannot",
        "Where it cannot",
        "cannot.html.j2",
        lambda p: {"showcase": sentences.showcase(p.findings, p.frames)},
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
