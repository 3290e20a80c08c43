"""README and chapters are correct: commands and code run in the order of the page, and every link
works.

A text block after a Python block is its output. A block with a title is a file that the reader
saves, for this page and others. A block with `needs` runs only if that package is installed.
Reports are only planned (`--dry-run`), and commands on a real model are only parsed; the campaign
runs both in full.
"""

import importlib.util
import json
import os
import pydoc
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path

import pandas as pd
import pytest
import transformers
import typer.main
from browser import until
from packaged import need_smollm2

import probe.cli
from probe.experiments.table import every_experiment
from probe.model.architectures import FAMILIES, WRAPPERS
from probe.stats import limits

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "reports" / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted((DOCS / "pages").glob("*.md"))]
FENCE = re.compile(r"^```(?:\{ \.)?(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands with these need a network or a file of the reader, or are a server that runs until it is
# stopped.
ELSEWHERE = ("gpt2", "EleutherAI/pythia-160m", "path/to", "probe explore")
SHORT = ("architectures",)  # pages that take seconds
READY = "Type to start searching"  # the message of the site's search when it is ready
KNOWN = ("probe", "make", "pip", "python3 -m venv", "source")


@dataclass(frozen=True)
class Block:
    """One fenced block: its language, the text after it, its lines."""

    language: str
    about: str
    text: str

    def says(self, name: str) -> str:
        """The value of `name="..."` after the language; empty without one."""
        match = re.search(rf'{name}="([^"]+)"', self.about)
        return match[1] if match else ""

    @property
    def commands(self) -> list[str]:
        return (
            re.findall(r"^\$ (.+)$", self.text, re.MULTILINE) if self.language == "console" else []
        )


def blocks(page: Path) -> list[Block]:
    return [Block(*groups) for groups in FENCE.findall(page.read_text(encoding="utf-8"))]


def commands(page: Path) -> Iterator[str]:
    return (command for block in blocks(page) for command in block.commands)


COMMANDS = [(page, command) for page in PAGES for command in commands(page)]
PROBE = [
    pytest.param(command, id=f"{page.stem}: {command}")
    for page, command in COMMANDS
    if command[:6] == "probe " and not command.endswith("--help")
]
hooks_place = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
hooks = importlib.util.module_from_spec(hooks_place)
hooks_place.loader.exec_module(hooks)


def pages(select=lambda page: [page]) -> list[object]:
    return [pytest.param(page, id=page.stem) for page in PAGES if any(select(page))]


def runs_here(command: str) -> bool:
    return not any(name in command for name in ELSEWHERE)


def run(command: str, monkeypatch, *, planned: bool) -> None:
    arguments = shlex.split(command)
    if (
        planned
        and arguments[1] == "report"
        and "--from" not in arguments
        and "--dry-run" not in arguments
    ):
        arguments.append("--dry-run")
        monkeypatch.setattr("probe.studies.study.preview_gates", lambda *_: [])
    monkeypatch.setattr(sys, "argv", arguments)
    with pytest.raises(SystemExit) as stop:
        probe.cli.main()
    assert not stop.value.code, command


STUDIES: dict[str, object] = {}


def studied_once(study):
    """`probe.study` for the lines of a page. The same request to the embedded model on two pages
    runs only once."""

    def studied(model, words=None, **options):
        key = repr((words, options))
        if model.origin.kind != "embedded" or model.name != "tiny-senses":
            return study(model, words, **options)
        if key not in STUDIES:
            STUDIES[key] = study(model, words, **options)
        return STUDIES[key]

    return studied


NUMBER = re.compile(r"-?\d+(?:\.\d+)?")


def require_printed(printed: str, expected: str) -> None:
    """Require that a block prints the text of the page, except for white space and one unit in a
    number's last decimal."""
    assert NUMBER.sub("0", printed).split() == NUMBER.sub("0", expected).split(), printed
    for value, documented in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        last = 10.0 ** -len(documented.partition(".")[2]) if "." in documented else 0.0
        assert float(value) == pytest.approx(float(documented), abs=1.01 * last), printed


def follow(
    page: Path, folder: Path, monkeypatch, select, *, code: bool = True, planned: bool = True
) -> None:
    """Follow the instructions of the page in `folder`, running only the selected commands."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(probe, "study", studied_once(probe.study))
    names: dict[str, object] = {}
    rows = dict(FAMILIES)
    for saved in (block for source in PAGES for block in blocks(source) if block.says("title")):
        Path(saved.says("title")).write_text(saved.text, encoding="utf-8")
    for block, following in pairwise([*blocks(page), Block("", "", "")]):
        if block.language == "python" and not block.says("needs") and code:
            with redirect_stdout(StringIO()) as printed:
                exec(block.text, names)  # noqa: S102 - the page's own lines
            if following.language == "text":
                require_printed(printed.getvalue(), following.text)
        for command in block.commands:
            if command.startswith("probe ") and runs_here(command) and select(command):
                run(command, monkeypatch, planned=planned)
    FAMILIES.update(rows)  # the page creates one row of the table again
    for added in set(FAMILIES) - set(rows):
        del FAMILIES[added]


def test_printed_numbers_may_differ_by_one_in_the_last_decimal():
    require_printed("fluffy 0.57  of 4\n", "fluffy 0.58 of 4\n")
    for changed in ("fluffy 0.59 of 4", "fluffy 0.57 of 5", "blue 0.57 of 4", "fluffy 0.57"):
        with pytest.raises(AssertionError):
            require_printed("fluffy 0.57 of 4", changed)


def test_the_lesson_shows_the_output_of_every_block():
    pairs = pairwise(blocks(DOCS / "pages" / "lesson.md"))
    languages = [after.language for block, after in pairs if block.language == "python"]
    assert len(languages) == 15 and set(languages) == {"text"}


@pytest.mark.real_model
@pytest.mark.parametrize("page", pages(lambda page: [page.stem in SHORT]))
def test_a_short_page_can_be_followed(page, tmp_path, monkeypatch):
    follow(page, tmp_path, monkeypatch, lambda command: "smollm2" not in command)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "page",
    pages(
        lambda page: (
            page.stem not in SHORT and block.language in ("python", "console")
            for block in blocks(page)
        )
    ),
)
def test_a_page_can_be_followed(page, tmp_path, monkeypatch):
    follow(page, tmp_path, monkeypatch, lambda command: "smollm2" not in command)


@pytest.mark.campaign
@pytest.mark.parametrize(
    "page",
    pages(
        lambda page: (
            command
            for command in commands(page)
            if command.startswith("probe report") and "--help" not in command
        )
    ),
)
def test_a_page_can_be_followed_unchanged(page, tmp_path, monkeypatch):
    if any("smollm2" in command for command in commands(page)):
        need_smollm2()
    follow(page, tmp_path, monkeypatch, lambda command: True, code=False, planned=False)
    assert all(path.stat().st_size > 10_000 for path in (tmp_path / "out").glob("*.html"))
    assert {path.name for path in (tmp_path / "out").glob("*.html")} & {
        "ambiguity.html",
        "survey.html",
    }
    if page.stem == "first_hour":  # its last report is about the reader's word
        heads = pd.read_csv(tmp_path / "out" / "word_heads.csv").set_index("rank")
        assert [(heads.at[rank, "layer"], heads.at[rank, "head"]) for rank in (1, 2, 3)] == [
            (4, 1),
            (5, 1),
            (4, 2),
        ]
        assert heads.at[1, "net"] == pytest.approx(0.34, abs=0.01)


TOOLS = DOCS / "pages" / "tools.md"
NEEDED = sorted({block.says("needs") for page in PAGES for block in blocks(page)} - {""})


@pytest.fixture(scope="module")
def of_tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, object]:
    """The names that the chapter on other tools defines, without the blocks that need a package."""
    names: dict[str, object] = {}
    with chdir(tmp_path_factory.mktemp("tools")):  # the chapter writes a submission
        for block in blocks(TOOLS):
            if block.language == "python" and not block.says("needs"):
                exec(block.text, names)  # noqa: S102 - the page's own lines
    return names


@pytest.mark.real_model
def test_the_results_of_the_chapter_on_other_tools_are_correct(of_tools):
    heads, terms, logits = (of_tools[name] for name in ("heads", "terms", "logits"))
    assert list(heads) == ["layer", "head", "denoise", "noise", "swap", "gap"]
    assert of_tools["cache"]["z", 2].shape == (1, len(of_tools["trace"].tokens), 4, 32)
    assert logits.shape[1] == of_tools["ids"].shape[1]
    whole = of_tools["trace"].logits[-1]
    first, second = (of_tools["tokenizer"](word)["input_ids"][0] for word in (" and", " with"))
    assert terms["logit"].sum() == pytest.approx(float(whole[first] - whole[second]), abs=1e-4)
    assert [block.says("needs") for block in blocks(TOOLS) if block.says("needs")] == [
        "peft",
        "nnsight",
        "bertviz",
        "circuitsvis",
    ]


@pytest.mark.real_model
@pytest.mark.parametrize("package", NEEDED)
def test_a_block_that_needs_a_package_runs_if_the_package_is_installed(package, of_tools):
    pytest.importorskip(package, reason=f"{package} is not installed")
    (block,) = [block for block in blocks(TOOLS) if block.says("needs") == package]
    exec(block.text, dict(of_tools))  # noqa: S102 - the page's own lines


def test_the_first_hour_names_the_sections_that_a_report_has():
    templates = (ROOT / "probe" / "pages" / "templates" / "report").glob("*.j2")
    headings = {
        name
        for path in templates
        for name in re.findall(r'fold\("\w+", "(.+?)"', path.read_text("utf-8"))
    } | {room.TITLE for room in every_experiment().values() if hasattr(room, "TITLE")}
    sections = re.findall(
        r"^\* \*\*(.+?)\*\*", (DOCS / "pages" / "first_hour.md").read_text("utf-8"), re.MULTILINE
    )
    assert len(sections) > 5 and set(sections) - headings == set()


@pytest.mark.parametrize("command", PROBE)
def test_every_command_parses(command):
    name, *arguments = shlex.split(command)[1:]
    group = typer.main.get_command(probe.cli.app)
    if name.startswith("--"):
        assert name in {option for parameter in group.params for option in parameter.opts}
        return
    assert name in group.commands, f"no such command: {command}"
    assert group.commands[name].make_context(name, arguments).command.name == name


def test_other_commands_are_known_and_their_make_targets_exist():
    assert list(commands(README))[:2] == ["make report", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for page, command in COMMANDS:
        assert command.startswith(KNOWN), f"{page.name}: {command}"
        if command.startswith("make "):
            assert f"\n{command.split()[1]}: " in makefile, f"{page.name}: {command}"


def test_no_text_installs_the_bare_name():
    """`probe` on the package index is another project."""
    for page in (*PAGES, ROOT / "Makefile", *(ROOT / "probe").rglob("*.py")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"['\"`]probe\[[a-z]+\]", text), (
            f"{page.name}: an extra of the bare name"
        )
        for line in re.findall(r"pip install ([^`\n]*)", text):
            assert not re.search(r"(^| )['\"]?probe['\"]?( |$)", line), (
                f"{page.name}: pip install {line}"
            )


def test_the_version_is_the_same_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version, wheel = project["version"], project["name"].replace("-", "_")
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## {version}\n" in (DOCS / "pages" / "changelog.md").read_text(encoding="utf-8")
    assert f"{wheel}-{version}-py3-none-any.whl" in (DOCS / "pages" / "first_hour.md").read_text(
        encoding="utf-8"
    )


def test_the_example_row_on_the_page_on_sentences_is_valid(tmp_path):
    rows = [
        block.text for block in blocks(DOCS / "pages" / "sentences.md") if block.language == "json"
    ]
    (tmp_path / "row.jsonl").write_text(json.dumps(json.loads(rows[0])))
    sentence = probe.read_sentences(tmp_path / "row.jsonl").sentences[0]
    assert sentence.text[sentence.start : sentence.end] == "bank"
    assert sentence.text[sentence.cue_start : sentence.cue_end] == "river"


def test_the_examples_of_public_data_sets_give_rows_that_are_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = blocks(DOCS / "pages" / "sentences.md")
    for block in page:
        if block.says("title"):
            Path(block.says("title")).write_text(block.text, encoding="utf-8")
    names: dict[str, object] = {}
    for block in page:
        if block.language == "python" and ("raw-c.csv" in block.text or "semcor.xml" in block.text):
            exec(block.text, names)  # noqa: S102 - the page's own lines
    pairs = probe.read_sentences("rawc.csv").sentences
    assert [(row.sense, row.form) for row in pairs] == [
        *(("M1", "band"), ("M2", "band"), ("M1", "bailed")),
        *(("M1", "band"), ("M2", "band"), ("M2", "bailed")),
    ]
    [note] = probe.read_sentences(names["notes"]).sentences
    assert (note.word, note.sense) == ("note", "note%1:10:00::")
    assert (note.text, note.form) == ("He wrote Notes", "Notes")


def without_code(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """A heading in an address: lower case, words and hyphens."""
    headings = re.findall(r"^#+ (.+)$", without_code(page), re.MULTILINE)
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())
        for heading in headings
    }


@pytest.mark.parametrize("page", pages())
def test_every_link_leads_to_a_file_and_a_heading(page):
    links = re.findall(r"\]\(([^)\s]+)\)", without_code(page))
    for link in (link for link in links if "://" not in link):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


def test_every_page_is_in_the_contents():
    contents = (DOCS / "mkdocs.yml").read_text(encoding="utf-8")
    assert [page.name for page in PAGES[1:] if f": {page.name}\n" not in contents] == []


def test_every_adapter_of_transformer_lens_has_a_row_or_a_reason():
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    rows = {name for family in FAMILIES.values() for name in family.architectures}
    rows |= {wrapper.architecture for wrapper in WRAPPERS.values()}
    listed = tomllib.loads((DOCS / "adapters.toml").read_text(encoding="utf-8"))["reason"]
    reasons = [name for reason in listed for name in reason["classes"]]
    assert sorted(reasons) == sorted(SUPPORTED_ARCHITECTURES.keys() - rows)
    own_code = {
        name for reason in listed for name in reason["classes"] if reason["kind"] == "custom code"
    }
    assert not any(hasattr(transformers, name) for name in own_code)
    adapters, families = hooks.filled("<!-- adapters -->"), hooks.filled("<!-- rows -->")
    assert all(f"| `{name}` | " in adapters for name in (*reasons, *rows))
    assert all(f"| {family.name} | `{kind}` | " in families for kind, family in FAMILIES.items())


def test_every_command_and_option_is_described():
    chapter = hooks.filled("<!-- commands -->")
    for name, command in typer.main.get_command(probe.cli.app).commands.items():
        assert f"## probe {name}\n" in chapter
        assert all(
            option in chapter
            for parameter in command.params
            for option in parameter.opts
            if option[0] == "-"
        )


@pytest.mark.parametrize("page", [page for page in PAGES if page != README], ids=lambda p: p.stem)
def test_the_generated_parts_of_a_page_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert hooks.as_text(text) == text, "run python reports/docs/hooks.py"


def test_an_outdated_page_is_updated_and_the_site_has_the_part_once():
    outdated = "before\n<!-- gguf -->\n\nGPT-1.\n\n<!-- end of gguf -->\nafter\n"
    assert hooks.as_text(outdated) == hooks.as_text("before\n<!-- gguf -->\nafter\n") != outdated
    assert hooks.filled(outdated) == f"before\n{hooks.gguf()}\nafter\n"


def test_a_constant_on_a_page_is_taken_from_the_code():
    name = "probe.stats.limits.SMALLEST"
    outdated = f"at least <!-- {name}% -->7<!-- . --> % or <!-- {name} -->1<!-- . -->"
    percent = 100 * limits.SMALLEST
    expected = f"at least <!-- {name}% -->{percent:g}<!-- . --> % or <!-- {name} -->.02<!-- . -->"
    assert hooks.as_text(outdated) == hooks.filled(outdated) == expected
    with pytest.raises(AttributeError, match="NO_SUCH"):
        hooks.as_text("<!-- probe.verdicts.NO_SUCH -->7<!-- . -->")


def test_commands_are_displayed_without_a_prompt():
    typed, printed = (
        "$ probe check\n$ echo $HOME\n",
        "```console\n$ probe --version\nprobe 1\n```\n",
    )
    markdown = hooks.pasted(f"```console\n{typed}```\n\n{printed}")
    assert markdown == f"```sh\nprobe check\necho $HOME\n```\n\n{printed}"


def test_a_picture_has_its_display_width():
    picture = "![all heads](../../head_map.png)"
    wide = hooks.pictures.width(ROOT / "reports" / "head_map.png")
    assert hooks.sized(f"see {picture}\n") == f"see {picture}{{ width={wide} }}\n"
    assert hooks.sized("[heads](../../head_map.csv)") == "[heads](../../head_map.csv)"


def test_the_gallery_of_the_site_shows_every_picture_and_the_animation_first():
    paths = re.findall(r'<img src="([^"]+)"', hooks.filled("<!-- gallery -->"))
    assert paths[0] == "real/a_word_in_motion.svg"
    assert paths == [path for analysis in hooks.pictures.analyses() for path in analysis.pictures]
    site_pictures = {path for pattern in hooks.PICTURES for path in hooks.REPORTS.glob(pattern)}
    assert {hooks.REPORTS / path for path in paths} <= site_pictures


def test_an_unknown_mark_stops_the_build():
    with pytest.raises(KeyError, match="colums"):
        hooks.filled("<!-- colums -->")


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The chapters built as pages; a warning of the builder is a failure."""
    for package in ("mkdocs", "material", "mkdocstrings"):
        pytest.importorskip(package, reason=f"{package} is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "-f",
        DOCS / "mkdocs.yml",
        "-d",
        folder,
    ]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, check=False, capture_output=True, text=True, cwd=ROOT, env=quiet
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.campaign
def test_the_site_is_complete_and_needs_no_network(site):
    for page in site.glob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(script|img|iframe)[^>]*src="?(https?:)?//', text), page.name
        assert not re.search(
            r'<link[^>]*rel="?(stylesheet|preconnect)[^>]*href="?(https?:)?//', text
        ), page.name
        if page.name == "404.html":  # its addresses are for a server
            continue
        for link in re.findall(r'(?:href|src)="?([^"\s>#]+)', text):
            assert (
                "://" in link or link.startswith(("data:", "mailto:")) or (site / link).exists()
            ), (page.name, link)


def test_a_docstring_becomes_a_list_of_parameters_and_a_code_example():
    pytest.importorskip("griffe", reason="griffe is not installed")
    spec = importlib.util.spec_from_file_location("docstrings", DOCS / "docstrings.py")
    docstrings = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(docstrings)
    markdown = docstrings.as_markdown(
        "A sum.\n\nfirst, second: numbers,\n    or texts\n\nExample:\n    >>> add(1, 2)\n    3\n"
    )
    assert markdown == (
        "A sum.\n\n* `first`, `second`: numbers,\n    or texts\n\n```pycon\n>>> add(1, 2)\n3\n```\n"
    )


@pytest.mark.campaign
def test_the_site_defines_every_column_and_every_public_name(site):
    tables = (site / "tables.html").read_text(encoding="utf-8")
    assert [name for name in hooks.COLUMNS if f'<code id="{name}">' not in tables] == []
    names = (site / "names.html").read_text(encoding="utf-8")
    assert [name for name in probe.__all__ if f"probe.{name}" not in names] == []


@pytest.mark.campaign
def test_the_search_of_the_site_works_without_a_server(site, open_page):
    opened = open_page(site / "index.html", ready=False)
    field = opened.page.locator("input.md-search__input")
    field.focus()
    # The index is read when the field gets the focus; text typed before that is never looked up.
    until(opened.page, f"document.querySelector('.md-search-result__meta').innerText === '{READY}'")
    field.press_sequentially("faithfulness")
    until(
        opened.page,
        "document.querySelector('.md-search-result__list').innerText.includes('Methods')",
    )
    assert opened.trouble == [] and all(request.startswith("file:") for request in opened.requests)


# How much wider the page, and its code, are than the visible part.
RUNS_OFF = """() => [document.documentElement, ...document.querySelectorAll("pre > code")]
    .map(element => element.scrollWidth - element.clientWidth).filter(more => more > 1)"""


@pytest.mark.campaign
@pytest.mark.parametrize("width", [1280, 390])
def test_no_element_is_wider_than_a_page_of_the_site(width, site, open_page):
    page = open_page(
        site / "index.html", ready=False, viewport={"width": width, "height": 900}
    ).page
    for path in site.glob("*.html"):
        page.goto(path.as_uri())
        assert page.evaluate(RUNS_OFF) == [], path.name


IN_THE_REPOSITORY = re.compile(
    r"(?<![\w./{-])((?:probe|analyses|reports|tests)/[\w./*-]*[\w*])(?![\w{/-])"
)
MADE = (
    "reports/site",
    "reports/ambiguity.html",
    "reports/walk",
    "reports/survey",
    "reports/cues",
)  # created by make, and not stored


def paths_named(text: str) -> set[str]:
    """Files and folders of the repository that a text names, with `*` for any; without files that
    commands create, and patterns with a NAME to fill in."""
    paths = set(IN_THE_REPOSITORY.findall(text))
    return {path for path in paths if not path.startswith(MADE) and "NAME" not in path}


def test_every_path_in_a_text_exists():
    kinds = (*WRITTEN, "probe/**/*.md", "probe/**/*.toml", "analyses/**/*.toml", "reports/*.md")
    files = [path for kind in kinds for path in ROOT.glob(kind) if path != CHANGELOG]
    paths_by_file = {path: paths_named(path.read_text(encoding="utf-8")) for path in files}
    assert {"probe/model/attention.py", "analyses/training/grammar_*.toml"} <= set.union(
        *paths_by_file.values()
    )
    missing = [
        f"{path.relative_to(ROOT)}: {name}"
        for path, names in paths_by_file.items()
        for name in sorted(names)
        if not any(ROOT.glob(name))
    ]
    assert missing == []


def test_only_paths_of_the_repository_are_checked():
    text = "tables of `probe/embedded/grammar*.toml`, reports/NAME.csv, reports/site/index.html"
    assert paths_named(text) == {"probe/embedded/grammar*.toml"}


NAMED = re.compile(r"(?:`|<code>)(probe(?:\.\w+)+)(?:`|\(|</code>)")
WRITTEN = (
    "probe/**/*.py",
    "probe/**/*.j2",
    "analyses/**/*.py",
    "reports/docs/pages/*.md",
    "README.md",
)


CHANGELOG = DOCS / "pages" / "changelog.md"


def newest_names(changelog: str) -> str:
    """The newest version's section without its list of removals and without the first column of its
    tables, which have the old names."""
    newest = changelog.split("\n## ")[1]
    newest = re.sub(r"^Removed:\n\n(?:.+\n)+", "", newest, flags=re.MULTILINE)
    return re.sub(r"^\|[^|]*\|", "|", newest, flags=re.MULTILINE)


def test_every_name_of_the_package_in_a_text_exists():
    paths = [path for kind in WRITTEN for path in ROOT.glob(kind) if path != CHANGELOG]
    texts = [path.read_text(encoding="utf-8") for path in paths]
    texts.append(newest_names(CHANGELOG.read_text(encoding="utf-8")))
    names = sorted({name for text in texts for name in NAMED.findall(text)})
    assert {"probe.cross.swap_heads", "probe.study", "probe.model.blocks"} <= set(names)
    assert [
        name for name in names if not (pydoc.locate(name) or importlib.util.find_spec(name))
    ] == []
