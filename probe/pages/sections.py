"""The sections of a report, in the order of the page.

A section is a row: its template, and the heading that it is under. Its sentences are in the
template, which reads the tables of the page.
"""

from collections.abc import Collection, Sequence
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from probe.experiments.table import every_experiment


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
    template: in the folder `report` or next to the experiment; by default the rows of `table`.
    heading: the heading that it is under.
    title: in the table of contents, of a section before the headings; above the rows of `table`.
    table: what it shows; without this table it is absent, because its experiment was not run.
    order: its place under the heading.
    """

    id: str
    template: str = ROWS
    heading: Heading = FIRST
    title: str = ""
    table: str = "words"
    order: int = 0


def sections_of(tables: Collection[str]) -> list[Section]:
    """The sections of a page with these tables."""
    return [section for section in every_section() if section.table in tables]


def titles_of(experiments: Collection[str]) -> list[str]:
    """The titles of the sections of some experiments, in the order of the page."""
    return [section.title for section in every_section() if section.id in experiments]


def under_headings(sections: Sequence[Section]) -> list[tuple[Heading, list[Section]]]:
    """The headings with the sections under each."""
    return [
        (heading, [section for section in sections if section.heading == heading])
        for heading in (TRAVELS, BELIEVE, DONE)
    ]


OWN_SECTIONS = (
    Section("answer", "answer.html.j2", title="Answer", order=1),
    Section("heads", "cards.html.j2", title="Heads", table="word_heads", order=2),
    Section("general", "general.html.j2", title="In general", table="survey_model", order=45),
    Section("parting", "parting.html.j2", TRAVELS, order=46),
    Section("facts", "facts.html.j2", BELIEVE, order=5),
    Section("nouns", "nouns.html.j2", BELIEVE, table="controls", order=20),
    Section("power", "power.html.j2", BELIEVE, order=95),
    Section("otherwise", "otherwise.html.j2", BELIEVE, table="predictions", order=110),
    Section("certificate", "certificate.html.j2", BELIEVE, order=140),
    Section("method", "method.html.j2", DONE, order=150),
    Section("tables", "downloads.html.j2", DONE, order=160),
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
