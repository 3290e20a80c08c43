"""README and chapters are correct: commands and code run in the order of the page, links lead
somewhere, and numbers come from the tables.

A text block after a Python block is its output. A block with a title is a file that the reader
saves, for this page and others. A block with `needs` runs only if that package is installed.
"""

import base64
import importlib.util
import json
import os
import pydoc
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import typer.main
from browser import until
from inside import FAMILIES, WRAPPERS, app, main
from packaged import need_smollm2

import probe

ROOT = Path(__file__).parents[2]
REPORTS = ROOT / "reports"
DOCS = REPORTS / "docs"
README, CHANGELOG = ROOT / "README.md", DOCS / "pages" / "changelog.md"
CHAPTERS = sorted((DOCS / "pages").glob("*.md"))
PAGES = [README, *CHAPTERS]
QUICK = ("README", "architectures", "models", "sentences", "tools")  # whose code takes seconds
FENCE = re.compile(r"^```(?:\{ \.)?(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
# These need a network or a file of the reader, or are a server that runs until it is stopped.
ELSEWHERE = re.compile("path/to|probe explore (?!--save)")
SHELL = ("probe", "make", "pip", "source")
NUMBER = re.compile(r"-?\d+(?:\.\d+)?")
READY = "Type to start searching"  # the message of the site's search when it is ready

spec = importlib.util.spec_from_file_location("docs_hooks", DOCS / "hooks.py")
hooks = importlib.util.module_from_spec(spec)
spec.loader.exec_module(hooks)


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
        console = self.language == "console"
        return re.findall(r"^\$ (.+)$", self.text, re.MULTILINE) if console else []


def blocks(page: Path) -> list[Block]:
    return [Block(*groups) for groups in FENCE.findall(page.read_text(encoding="utf-8"))]


COMMANDS = [(page, line) for page in PAGES for block in blocks(page) for line in block.commands]
by_name = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def require_printed(printed: str, expected: str) -> None:
    """Require that a block prints the text of the page, except for white space and one unit in a
    number's last decimal."""
    assert NUMBER.sub("0", printed).split() == NUMBER.sub("0", expected).split(), printed
    for value, documented in zip(NUMBER.findall(printed), NUMBER.findall(expected), strict=True):
        last = 10.0 ** -len(documented.partition(".")[2]) if "." in documented else 0.0
        assert float(value) == pytest.approx(float(documented), abs=1.01 * last), printed


def test_printed_numbers_may_differ_by_one_in_the_last_decimal():
    require_printed("fluffy 0.57  of 4\n", "fluffy 0.58 of 4\n")
    for changed in ("fluffy 0.59 of 4", "fluffy 0.57 of 5", "blue 0.57 of 4", "fluffy 0.57"):
        with pytest.raises(AssertionError):
            require_printed("fluffy 0.57 of 4", changed)


def follow(page: Path, folder: Path, monkeypatch, *, with_commands: bool) -> None:
    """Follow the instructions of the page in `folder`, which has the files that pages mention."""
    monkeypatch.chdir(folder)
    (folder / "analyses").mkdir()
    shutil.copy(ROOT / "analyses" / "cell.csv", folder / "analyses")
    for saved in (block for source in PAGES for block in blocks(source) if block.says("title")):
        Path(saved.says("title")).write_text(saved.text, encoding="utf-8")
    names: dict[str, object] = {}
    for block, following in pairwise([*blocks(page), Block("", "", "")]):
        needs = block.says("needs")
        if block.language == "python" and (not needs or importlib.util.find_spec(needs)):
            with redirect_stdout(StringIO()) as printed:
                exec(block.text, names)  # noqa: S102 - the page's own lines
            if following.language == "text":
                require_printed(printed.getvalue(), following.text)
        for command in block.commands if with_commands else ():
            if command.startswith("probe ") and not ELSEWHERE.search(command):
                monkeypatch.setattr(sys, "argv", shlex.split(command))
                with pytest.raises(SystemExit) as stop:
                    main()
                assert not stop.value.code, command


@pytest.fixture
def one_table():
    """The table of architectures, in which a page creates a row again."""
    rows = dict(FAMILIES)
    yield
    FAMILIES.clear()
    FAMILIES.update(rows)


@pytest.mark.parametrize("page", [page for page in PAGES if page.stem in QUICK], ids=QUICK)
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch, one_table):
    follow(page, tmp_path, monkeypatch, with_commands=False)


@pytest.mark.campaign
@by_name
def test_a_page_can_be_followed(page, tmp_path, monkeypatch, one_table):
    if any("smollm2" in command for source, command in COMMANDS if source == page):
        need_smollm2()
    follow(page, tmp_path, monkeypatch, with_commands=True)
    if page.stem == "first_hour":  # its last report is about the reader's word
        text = " ".join(page.read_text(encoding="utf-8").split())
        for _, row in (
            pd.read_csv(tmp_path / "out" / "word_heads.csv").nsmallest(3, "rank").iterrows()
        ):
            assert f"{percent(row, 'net')}" in text


@pytest.mark.parametrize("command", sorted({line for _, line in COMMANDS if line[:6] == "probe "}))
def test_every_command_parses(command):
    name, *arguments = shlex.split(command)[1:]
    group = typer.main.get_command(app)
    assert name in group.commands, f"no such command: {command}"
    assert group.commands[name].make_context(name, arguments).command.name == name


def test_other_commands_are_known_and_their_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert [line for _, line in COMMANDS][:2] == ["make report", "make test"]
    for page, command in COMMANDS:
        program, *arguments = command.split()
        assert program in SHELL, f"{page.name}: {command}"
        assert program != "make" or f"\n{arguments[0]}: " in makefile, f"{page.name}: {command}"


def test_no_text_installs_the_bare_name():
    """`probe` on the package index is another project."""
    for page in (*PAGES, ROOT / "Makefile", *(ROOT / "probe").rglob("*.py")):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"['\"`]probe\[[a-z]+\]", text), page.name
        for line in re.findall(r"pip install ([^`\n]*)", text):
            assert not re.search(r"(^| )['\"]?probe['\"]?( |$)", line), f"{page.name}: {line}"


def test_the_version_is_the_same_everywhere():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    assert f"\nversion: {version}\n" in (ROOT / "CITATION.cff").read_text("utf-8")
    assert f"\n## {version}\n" in CHANGELOG.read_text("utf-8")


def percent(row: pd.Series, column: str) -> str:
    """A number and its interval, as "93 % [79, 110]"."""
    value, low, high = (100 * row[f"{column}{end}"] for end in ("", "_low", "_high"))
    return f"{value:.0f} % [{low:.0f}, {high:.0f}]"


def test_the_findings_of_the_readme_come_from_the_stored_tables():
    def stored(name: str, rows: str = "word == 'bank'") -> pd.DataFrame:
        return pd.read_csv(REPORTS / "real" / f"{name}.csv").query(rows)

    heads = stored("word_heads").set_index(["layer", "head"])
    first, second, third = (100 * heads.loc[head, "net"] for head in ((4, 1), (4, 2), (5, 1)))
    mlps = 100 * stored("mlps").set_index("layer")["net"]
    trio = stored("curves").set_index("size").loc[3]
    random = 100 * stored("random_sets", "word == 'bank' and size == 3")["faithfulness"]
    nouns = stored("words")["nouns_compared"].item()
    found = stored("which_shortcut_finds_the_heads", "model == 'smollm2'").set_index("method")
    text = " ".join(README.read_text(encoding="utf-8").split())
    for finding in (
        f"three of the {6 * 9} heads in the first six layers keep {100 * trio['faithfulness']:.0f} % of",
        f"L4H1 by {first:.0f} % of the gap, L4H2 by {second:.0f} %, L5H1 by {third:.0f} %.",
        f"moves it about as far as the strongest head, by {mlps[5]:.0f} %.",
        f"they keep {percent(trio, 'faithfulness')} of the gap",
        f"Random trios keep {random.mean():.0f} % on average,",
        f"the best of {len(random)} {random.max():.0f} %.",
        f"*Bank* comes before all {nouns} unambiguous nouns",
        f"{percent(heads.loc[4, 1], 'more').replace(' %', ' points')} farther.",
        f"include {percent(found.loc['attention'], 'recall')} of those",
        f"finds {percent(found.loc['attribution'], 'recall')}.",
    ):
        assert finding in text
    seeds = pd.read_csv(REPORTS / "is_it_the_seed.csv")
    assert (
        len(seeds) == 3 * 5 and seeds["resolvers"].min() > 0 and "all five have such heads" in text
    )
    assert mlps[5] > 100 * heads["net"].max() and set(trio["added"].split()) == {"L5H1"}


def test_the_plan_without_code_quotes_the_saved_pages():
    pages = REPORTS / "pages"
    html = (pages / "explorer.html").read_text(encoding="utf-8")
    recorded, data = (
        json.loads(
            re.search(f'<script type="application/json" id="{name}">(.*?)</script>', html)[1]
        )
        for name in ("recorded", "walk-data")
    )
    swaps = {
        tuple(swap[:2]): entry["answer"]["result"]
        for entry in recorded["swap"]
        for swap in entry["swaps"]
    }
    swapped = swaps[4, 2]
    robbed, *_ = zip(*swapped["next"]["probabilities"], strict=True)
    first = recorded["sentence"][0]["next"]
    likely = zip(first["pieces"], first["probabilities"][0], strict=True)
    apart = np.frombuffer(base64.b64decode(data["arrays"]["apart"]["data"]), "<f4")[1:]  # by depth
    values = pd.read_csv(pages / "walk" / "values.csv").set_index("label")
    heads = pd.read_csv(pages / "walk" / "heads.csv").set_index(["layer", "head"])
    text = " ".join((DOCS / "pages" / "lesson.md").read_text(encoding="utf-8").split())
    for quoted in (
        ", ".join(f"*{piece.strip()}* ({100 * share:.1f} %)" for piece, share in [*likely][:3]),
        f"Entering layer 4 they are {100 * apart[4]:.0f} % of their length apart",
        f"entering layer 6 it is {100 * apart[6]:.0f} %, as at the end.",
        f"L4H2: {100 * swapped['coordinates'][1]:.0f} %;",
        f"*robbed* rises from {100 * robbed[0]:.1f} to {100 * robbed[1]:.0f} %.",
        f"Entering layer 5 it is at {100 * swapped['way'][5]:.0f} %.",
        f"L4H1: {100 * swaps[4, 1]['coordinates'][1]:.0f} %.",
        f"How many tokens? {len(data['tokens'])}.",
        f"*river*, with {100 * values.loc['3·river', 'weight']:.0f} % of the attention.",
        f"What does the head add? {100 * heads.loc[(4, 2), 'moved']:.0f} % of the vector's length.",
    ):
        assert quoted in text
    assert swapped["next"]["pieces"][0].strip() == "robbed" and apart[0] == 0
    assert round(100 * apart[-1]) == round(100 * apart[6])


@pytest.mark.campaign
def test_the_next_word_of_the_lesson_rises_as_quoted():
    need_smollm2()
    model = probe.load("smollm2")
    river, savings = (f"They said the {cue} bank had been" for cue in ("river", "savings"))
    swap = probe.patch_hooks(model, savings, against=river, at="bank", heads=[(4, 2)])
    ids = torch.tensor([probe.tokenize(model, river).ids])
    robbed = probe.tokenize(model, "robbed robbed").ids[-1]
    with torch.inference_mode():
        runs = model.bridge(ids), model.bridge.run_with_hooks(ids, fwd_hooks=swap)
    before, after = (100 * float(run[0, -1].softmax(-1)[robbed]) for run in runs)
    text = " ".join((DOCS / "pages" / "lesson.md").read_text(encoding="utf-8").split())
    assert f"*robbed*, from {before:.1f} to {after:.0f} %" in text


def anchors(page: Path) -> set[str]:
    """A heading in an address: lower case, words and hyphens."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {
        re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", one).strip().lower()) for one in headings
    }


@pytest.mark.parametrize("page", [*PAGES, REPORTS / "README.md"], ids=lambda page: page.stem)
def test_every_link_leads_to_a_file_and_a_heading(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        file, _, anchor = link.partition("#")
        target = (page.parent / file).resolve() if file else page
        if "://" not in link:
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors(target), f"{page.name}: {link}"


@pytest.mark.parametrize("page", CHAPTERS, ids=lambda page: page.stem)
def test_the_generated_parts_of_a_page_are_up_to_date(page):
    text = page.read_text(encoding="utf-8")
    assert hooks.as_text(text) == text, "run python reports/docs/hooks.py"


def texts() -> dict[Path, str]:
    """Chapters and the package's files; not the changelog, which has the names of the past."""
    kinds = ("probe/**/*.py", "probe/**/*.j2", "probe/**/*.md", "probe/**/*.toml", "analyses/*.py")
    files = [*PAGES, REPORTS / "README.md", *(path for kind in kinds for path in ROOT.glob(kind))]
    return {file: file.read_text(encoding="utf-8") for file in files if file != CHANGELOG}


def test_every_path_in_a_text_exists():
    stored = re.compile(
        r"(?<![\w./{-])((?:probe|analyses|reports|tests)/[\w./*-]*[\w*])(?![\w{/-])"
    )
    written = re.compile(r"reports/(site|ambiguity\.html|walk|survey|cues)|.*NAME")  # by commands
    missing = [
        f"{file.relative_to(ROOT)}: {path}"
        for file, text in texts().items()
        for path in stored.findall(text)
        if not written.match(path) and not any(ROOT.glob(path))
    ]
    assert missing == []


def test_every_name_of_the_package_in_a_text_exists():
    named = re.compile(r"(?:`|<code>)(probe(?:\.\w+)+)(?:`|\(|</code>)")
    names = {name for text in texts().values() for name in named.findall(text)}
    assert {"probe.cross.swap_heads", "probe.study"} <= names
    assert [
        one for one in sorted(names) if not (pydoc.locate(one) or importlib.util.find_spec(one))
    ] == []


def test_the_page_about_python_lists_every_public_name_once():
    _, listed = (DOCS / "pages" / "python.md").read_text("utf-8").split("## All names")
    lines = re.findall(r"^(?:\* |  )`probe.*", listed, re.MULTILINE)
    assert sorted(re.findall(r"`probe\.(\w+)`", "".join(lines))) == sorted(probe.__all__)


def test_every_adapter_of_transformer_lens_has_a_row_or_a_reason():
    from transformer_lens.factories.architecture_adapter_factory import SUPPORTED_ARCHITECTURES

    rows = {name for family in FAMILIES.values() for name in family.architectures}
    rows |= {wrapper.architecture for wrapper in WRAPPERS.values()}
    listed = tomllib.loads((DOCS / "adapters.toml").read_text(encoding="utf-8"))["reason"]
    reasons = [name for reason in listed for name in reason["classes"]]
    assert sorted(reasons) == sorted(SUPPORTED_ARCHITECTURES.keys() - rows)


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """The chapters built as pages; a warning of the builder is a failure."""
    pytest.importorskip("material", reason="mkdocs-material is not installed")
    folder = tmp_path_factory.mktemp("site")
    options = ["--strict", "--quiet", "-f", DOCS / "mkdocs.yml", "-d", folder]
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", *options],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.campaign
def test_the_site_is_complete_and_needs_no_network(site):
    loaded = r'<(?:script|img|iframe|link)[^>]*(?:src|href)="?(?:https?:)?//[^">\s]+'
    for page in site.glob("[!4]*.html"):  # addresses of the page 404 are for a server
        text = page.read_text(encoding="utf-8")
        assert re.findall(loaded, text) == [], page.name
        for link in re.findall(r'(?:href|src)="?([^"\s>#]+)', text):
            elsewhere = "://" in link or link.startswith(("data:", "mailto:"))
            assert elsewhere or (site / link).exists(), (page.name, link)


@pytest.mark.campaign
def test_the_site_can_be_searched_without_a_server_and_fits_a_phone(site, open_page):
    opened = open_page(site / "index.html", ready=False, viewport={"width": 1280, "height": 900})
    page = opened.page
    field = page.locator("input.md-search__input")
    field.focus()
    # The index is read when the field gets the focus; text typed before that is never looked up.
    until(page, f"document.querySelector('.md-search-result__meta').innerText === '{READY}'")
    field.press_sequentially("faithfulness")
    until(page, "document.querySelector('.md-search-result__list').innerText.includes('Methods')")
    assert opened.trouble == [] and all(request.startswith("file:") for request in opened.requests)
    wider = """() => [document.documentElement, ...document.querySelectorAll("pre > code")]
        .map(element => element.scrollWidth - element.clientWidth).filter(more => more > 1)"""
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 900})
        for path in site.glob("[!4]*.html"):
            page.goto(path.as_uri())
            assert page.evaluate(wider) == [], (width, path.name)
