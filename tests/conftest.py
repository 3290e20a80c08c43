"""Shared fixtures: a small seeded GPT-2 folder, the model in it, and copies to damage.

Slow imports are inside the functions that need them: the process that distributes tests to workers
needs none of them, and the workers wait for it.
"""

import asyncio
import gc
import os
import re
import shutil
import socket
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browser import CHROMIUM, NO_CHROMIUM, chromium, opening, sharing
from embedded import embedded

if TYPE_CHECKING:
    from probe import Model

# Two workers on two cores: torch's own threads would only get in the way of each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# No garbage collection while everything is loaded; see `pytest_collection_finish`.
gc.disable()
SELDOM = 50_000  # new objects between two collections; the usual 700 cost a tenth of all time


# A file stays with one worker, so the longest come first: a long file at the end would keep the
# other workers waiting.
LONGEST = (
    "walk/test_walk_page.py",
    "studies/test_study.py",
    "walk/test_explore_page.py",
    "model/test_families.py",
    "pages/test_page.py",
    "studies/test_survey.py",
    "known_answers/test_planted.py",
    "experiments/test_nouns.py",
    "pages/test_report.py",
    "model/test_check.py",
    "charts/test_charts.py",
    "model/test_objects.py",
    "model/test_family_loading.py",
    "walk/test_walk_senses.py",
    "pages/test_cues_page.py",
    "experiments/test_profiles.py",
    "studies/test_ablation.py",
    "experiments/test_cues.py",
    "golden/test_golden.py",
    "pages/test_sections.py",
    "known_answers/test_hostile_models.py",
    "walk/test_saved.py",
    "patching/test_edges.py",
    "studies/test_attribution.py",
    "model/test_gguf.py",
    "package/test_examples.py",
    "package/test_cli.py",
    "studies/test_report_and_survey.py",
    "walk/test_walk_families.py",
    "pages/test_survey_page.py",
    "studies/test_kept_words.py",
    "walk/test_explorer.py",
    "known_answers/test_known_answers.py",
    "experiments/test_store.py",
    "experiments/test_circuit.py",
    "pages/test_facts.py",
    "studies/test_survey_word.py",
    "model/test_bfloat16.py",
    "stats/test_chance.py",
    "studies/test_plan.py",
    "patching/test_replacements.py",
    "walk/test_walk.py",
    "model/test_library_modules.py",
    "analyses/test_analyses.py",
    "model/test_load.py",
)


# `make test-fast` leaves out tests with the mark `slow`. Those in these folders, in files with these
# helpers and with these fixtures have it: they make whole studies, walks and pages, or run commands.
WHOLE = {"analyses", "golden", "known_answers", "studies", "walk"}
HELPERS = {"handmade", "measured", "packaged", "planted"}
COMMANDS = {"embedded_once", "report_page", "run"}


@cache
def imported(path: Path) -> set[str]:
    """The modules that a file imports, up to the first dot."""
    return {*re.findall(r"^(?:from|import) (\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)}


def is_slow(item: pytest.Item) -> bool:
    """Whether a test needs more than a formula, or a family that is not among the few on which
    every formula is tested."""
    helpers = imported(item.path)
    if item.path.parent.name in WHOLE or helpers & HELPERS:
        return True
    if not COMMANDS.isdisjoint(getattr(item, "fixturenames", ())):
        return True
    if "families" not in helpers or not hasattr(item, "callspec"):
        return False
    from families import FAMILIES, REPRESENTATIVES, SETTINGS

    others = {*FAMILIES, *SETTINGS} - {*REPRESENTATIVES}
    return any(
        isinstance(value, str) and value in others for value in item.callspec.params.values()
    )


# The collected tests with the mark `campaign`, and the others.
CAMPAIGN: set[str] = set()
OTHERS: set[str] = set()


@pytest.hookimpl(tryfirst=True)  # before `-m` chooses by the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests that open a browser and slow ones, note tests that are left to the campaign, and
    put the longest files first."""
    for item in items:
        if "browser" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.browser)
        elif is_slow(item):
            item.add_marker(pytest.mark.slow)
        (CAMPAIGN if item.get_closest_marker("campaign") else OTHERS).add(item.nodeid)
    order = {name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get("/".join(item.path.parts[-2:]), len(order)))


TRIED: list[object] = []  # addresses of other machines that this process tried to reach


@pytest.fixture(scope="session", autouse=True)
def _this_machine_alone() -> Iterator[None]:
    """Every connection to another machine fails, and is recorded in TRIED."""
    connect = socket.socket.connect

    def here_alone(self: socket.socket, address: object) -> None:
        # A connected datagram socket sends nothing: Dask uses one to find its address.
        inet = self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM
        if inet and not str(address[0]).startswith(("127.", "::1", "localhost")):  # type: ignore[index]
            TRIED.append(address)
            raise OSError(f"tests have no network, and {address} was tried")
        connect(self, address)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", here_alone)
        yield


@pytest.fixture(autouse=True)
def _no_network() -> Iterator[None]:
    """Fail a test that tried to reach another machine, even if the failure was swallowed."""
    TRIED.clear()
    yield
    assert TRIED == []


@pytest.fixture
def no_rows_of_a_table() -> Iterator[None]:
    """Altair refuses any table, as it refuses one with more than 5,000 rows by default."""
    import altair as alt

    with alt.data_transformers.enable("default", max_rows=0):
        yield


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete GPT-2 folder with random weights; tests that change it take `copy` instead."""
    from checkpoints import make_checkpoint

    return make_checkpoint(tmp_path_factory.mktemp("models") / "small-random")


@pytest.fixture(scope="session")
def model(checkpoint: Path) -> "Model":
    """The loaded `checkpoint`, float32 on the CPU. It is shared, so no test may leave a hook or a
    changed weight in it."""
    import probe

    return probe.load(checkpoint)


@pytest.fixture(scope="session")
def tiny() -> "Model":
    """The embedded model; shared like `model`."""
    return embedded()


@pytest.fixture(scope="session")
def launched():
    """Headless Chromium, one for all files of a worker, and its event loop; tests that request it
    are skipped without Chromium or Playwright."""
    if not CHROMIUM.exists():
        pytest.skip(NO_CHROMIUM)
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with chromium(sync_api) as browser:
        loop = asyncio.get_running_loop()
        asyncio._set_running_loop(None)
        yield browser, loop
        asyncio._set_running_loop(loop)


@pytest.fixture(scope="module")
def browser(launched):
    """The Chromium of the worker. Its loop is the thread's loop for the tests of one file: other
    files, such as the notebook tests, run separate loops."""
    instance, loop = launched
    asyncio._set_running_loop(loop)
    yield instance
    asyncio._set_running_loop(None)


@pytest.fixture
def open_page(browser):
    """Open pages, and return their messages, errors and requests afterwards."""
    with opening(browser) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared_page(browser):
    """Open a page once for the tests of a file that only read it. A test that clicks or unfolds
    uses `open_page`."""
    with sharing(browser) as opened:
        yield opened


@pytest.fixture(scope="session")
def report_page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of the stored study, in a new folder. Tests do not change it."""
    from stored_study import stored_study

    import probe

    # As if it had enough sentences, so that the headline is short.
    words = stored_study().words.assign(exploratory=False)
    out = tmp_path_factory.mktemp("report") / "new" / "folder"
    return probe.write(stored_study(words=words), out, command="probe report")


# By name and options; see `embedded_once`.
LOADED: dict[tuple[object, ...], "Model"] = {}


@pytest.fixture
def embedded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Load each embedded model once in this process: for commands and examples, which do not
    change a model."""
    from inside import EMBEDDED
    from inside import loading as load

    # Private, because every way to load a model by its name passes here, and nothing public does.
    from_name = load._from_name

    def once(source: object, **options: object) -> "Model":
        if source not in EMBEDDED:
            return from_name(source, **options)  # type: ignore[arg-type]
        key = source, *options.values()
        if key not in LOADED:
            LOADED[key] = from_name(source, **options)  # type: ignore[arg-type]
        return LOADED[key]

    monkeypatch.setattr(load, "_from_name", once)


@pytest.fixture
def run(
    embedded_once: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """Run `probe ARGS` in this process; return exit code, standard output, standard error."""
    from inside import main

    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["probe", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main()
        output = capsys.readouterr()
        return int(stop.value.code or 0), output.out, output.err

    return run


@pytest.fixture
def copy(checkpoint: Path, tmp_path: Path) -> Path:
    """A copy of `checkpoint` for one test to damage."""
    return Path(shutil.copytree(checkpoint, tmp_path / "copied"))


def pytest_collection_finish() -> None:
    """Freeze what is loaded before the first test, so that no garbage collection scans it again,
    and collect rarely.

    Altair validates a finished chart against its schema in `to_dict`, as tests/charts do for every
    chart; its parts need no validation while they are created.
    """
    from altair.utils import schemapi

    schemapi.DEBUG_MODE = False
    gc.collect()
    gc.freeze()
    gc.set_threshold(SELDOM)
    gc.enable()


def pytest_sessionfinish() -> None:
    """Freeze what the tests left: pytest and the interpreter would scan it several times before
    they end."""
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    """End with the skipped tests and how to run them: one line for each reason, browser tests
    last."""
    terminal = config.pluginmanager.get_plugin("terminalreporter")
    if terminal is None:  # in a worker
        return
    reasons = Counter(
        ("browser" in report.keywords, report.longrepr[2].removeprefix("Skipped: "))
        for report in terminal.stats.get("skipped", ())
    )
    for (opens_browser, reason), count in sorted(reasons.items()):
        kind = "browser test" if opens_browser else "test"
        terminal.write_line(f"{count} {kind}{'s' if count > 1 else ''} skipped: {reason}")
