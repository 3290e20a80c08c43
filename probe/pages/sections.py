"""The sections of a report, in the order of the page.

A section is a row: its template, the values that the template needs, and the heading that it is
under. The sentences of a section are in its template.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from probe import charts
from probe.experiments.table import every_experiment
from probe.pages import cards, checks, heads, predictions, sentences, words
from probe.results.findings import Frames, WordFindings
from probe.results.survey_findings import survey_findings


class Page(NamedTuple):
    """The input of a report.

    findings: by word.
    frames: the tables; a table of an experiment that was not run has no rows.
    tables: the names of the tables that were measured.
    manifest: model, options and versions.
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
    def is_general(self) -> bool:
        """Whether there are enough words for what holds in general."""
        return "survey_model" in self.frames


Values = Mapping[str, Any]


class Heading(NamedTuple):
    """A heading with sections under it.

    id: of the element, to which the table of contents links; empty for the sections before the
    headings, which the contents list themselves.
    title: on the page.
    link: in the table of contents.
    """

    id: str = ""
    title: str = ""
    link: str = ""


ROWS = "rows.html.j2"  # the rows of a section's table
FIRST = Heading()
TRAVELS = Heading("travels", "How the meaning travels", "How it travels")
BELIEVE = Heading("believe", "Whether to believe it", "Believe it?")
DONE = Heading("done", "How it was done", "Method")
HEADINGS = {heading.id: heading for heading in (FIRST, TRAVELS, BELIEVE, DONE)}


class Section(NamedTuple):
    """One section of a report.

    id: of the element.
    template: in the folder `report`; by default the rows of `table`.
    values: the values that its template needs, by name.
    heading: the heading that it is under.
    title: in the table of contents, of a section before the headings; above the rows of `table`.
    applies: whether the section is on a page.
    table: what it shows; without this table it is absent, because its experiment was not run.
    order: its place under the heading.
    """

    id: str
    template: str = ROWS
    values: Callable[[Page], Values] = lambda page: {}
    heading: Heading = FIRST
    title: str = ""
    applies: Callable[[Page], bool] = lambda page: True
    table: str = "words"
    order: int = 0


def sections_of(page: Page) -> list[Section]:
    """The sections of a page."""
    return [
        section
        for section in every_section()
        if section.table in page.tables and section.applies(page)
    ]


def under_headings(sections: Sequence[Section]) -> list[tuple[Heading, list[Section]]]:
    """The headings with the sections under each."""
    return [
        (heading, [section for section in sections if section.heading == heading])
        for heading in (TRAVELS, BELIEVE, DONE)
    ]


def _answer(page: Page) -> Values:
    return {
        "maps": heads.maps(page.findings, page.frames),
        "axis": heads.effect_axis(page.findings),
        "examples": sentences.examples(page.findings),
    }


def _general(page: Page) -> Values:
    """The findings over all words, and a map of the heads."""
    findings = survey_findings(page.manifest["model"], page.frames)
    table = page.frames["survey_heads"]
    limits = charts.survey_limits(table)
    return {
        "general": findings,
        "general_map": charts.survey_map(table, limits=limits) if findings.ranked else None,
    }


def _otherwise(page: Page) -> Values:
    return {
        "read_otherwise": predictions.read_otherwise(page.findings),
        "most_listed": predictions.MOST_LISTED,
    }


def _nouns(page: Page) -> Values:
    return {
        "compared": checks.compared_with_nouns(page.findings),
        "by_depth_of_nouns": words.compared_with_nouns(page.findings),
    }


def _downloads(page: Page) -> Values:
    return {
        "downloads": checks.downloads(page.frames),
        "dictionary": page.frames["columns"].to_dict("records"),
    }


RANKED = attrgetter("ranks_heads")
OWN_SECTIONS = (
    Section("answer", "answer.html.j2", _answer, title="Answer", order=1),
    Section(
        "heads",
        "cards.html.j2",
        lambda p: {"cards": cards.cards(p.findings, p.frames["verdicts"])},
        title="Heads",
        applies=RANKED,
        order=2,
    ),
    Section(
        "general",
        "general.html.j2",
        _general,
        title="In general",
        applies=lambda p: p.is_general,
        order=45,
    ),
    Section(
        "parting",
        "parting.html.j2",
        lambda p: {"partings": words.partings(p.findings)},
        TRAVELS,
        order=46,
    ),
    Section(
        "facts",
        "facts.html.j2",
        lambda p: {"facts": words.fact_table(p.findings)},
        BELIEVE,
        order=5,
    ),
    Section("nouns", "nouns.html.j2", _nouns, BELIEVE, table="controls", order=20),
    Section(
        "power",
        "power.html.j2",
        lambda p: {"controls": checks.controls_and_power(p.findings)},
        BELIEVE,
        order=95,
    ),
    Section(
        "every",
        "every.html.j2",
        lambda p: {"every_head": heads.every_head(p.findings, p.frames)},
        BELIEVE,
        applies=RANKED,
        order=105,
    ),
    Section(
        "otherwise",
        "otherwise.html.j2",
        _otherwise,
        BELIEVE,
        applies=lambda p: "predictions" in p.frames,
        order=110,
    ),
    Section(
        "certificate",
        "certificate.html.j2",
        lambda p: {"certificate": checks.certificate(p.frames["certificate"])},
        BELIEVE,
        order=140,
    ),
    Section(
        "method",
        "method.html.j2",
        lambda p: {"data": checks.data_used(p.findings, p.frames["left_out"])},
        DONE,
        order=150,
    ),
    Section("tables", "downloads.html.j2", _downloads, DONE, order=160),
)


def every_section() -> list[Section]:
    """The sections in their order. An experiment with a title has one, which shows its tables with
    the template next to it, or else the rows of its first table.
    """
    of_experiments = [
        Section(
            name,
            f"{name}.html.j2" if Path(room.__file__).with_suffix(".html.j2").exists() else ROWS,
            heading=HEADINGS[room.HEADING],
            title=room.TITLE,
            table=next(iter(room.TABLES)),
            order=room.ORDER,
        )
        for name, room in every_experiment().items()
        if hasattr(room, "TITLE")
    ]
    return sorted([*OWN_SECTIONS, *of_experiments], key=attrgetter("order"))
