"""Headless Chromium for tests that open a page: the conditions to start it, and the messages,
errors and requests of a page."""

import json
import os
import re
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest


def installed() -> Path:
    """The Chromium to run: the shell without windows if it is there, which takes a quarter less
    processor time. The environment may name another, or none: CI hides the browser in this way."""
    named = os.environ.get("PROBE_CHROMIUM")
    shell, whole = Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium")
    if named is not None:
        return Path(named)
    return shell if shell.exists() else whole


CHROMIUM = installed()
NO_CHROMIUM = "Chromium not found; apt-get install chromium-headless-shell, or chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
]
FLAGS += ["--disable-sync", "--no-first-run", "--num-raster-threads=1"]
# Fewer and simpler collections take a twentieth less processor time.
FLAGS += ["--js-flags=--single-threaded-gc --min-semi-space-size=64"]
# Every visible picture is drawn; a hidden one waits until it is shown.
DRAWN = """[...document.querySelectorAll(".chart")]
  .every((box) => !box.offsetParent || box.matches(".drawn"))"""
FRAMES = """() => new Promise((done) =>
  requestAnimationFrame(() => requestAnimationFrame(done)))"""
# A walk keeps its pictures in `views`; running one again waits for the current run.
RUN = """() => typeof views === "undefined"
  ? null : Promise.all([...views.values()].map(({ view }) => view.runAsync())).then(() => null)"""


class Opened:
    """A page with its messages, errors and requests."""

    def __init__(self, page, path, *, ready=True):
        self.page, self.trouble, self.requests = page, [], []
        page.on("console", self._note)
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        if ready:
            page.wait_for_selector("html.ready", timeout=60_000, state="attached")

    def _note(self, message):
        if message.type in {"error", "warning"}:
            self.trouble.append(message.text)


def unfold(page):
    """Unfold everything and wait for its pictures. Hidden pictures wait until they are shown."""
    page.eval_on_selector_all("details", "all => all.forEach(item => item.open = true)")
    until(page, DRAWN)


def until(page, condition):
    """Wait until the expression holds. Playwright's method would need eval, which the page's policy
    forbids after the first time."""
    for _ in range(2000):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(30)
    raise TimeoutError(condition)


def settled(page):
    """Wait until the pictures have followed the last change.

    First two frames for the page to process the change, then until every visible picture is drawn
    and has run on its new rows.
    """
    page.evaluate(FRAMES)
    until(page, DRAWN)
    page.evaluate(RUN)


# An element that differs from an earlier sibling only in texts and numbers, such as the second row
# of a table or the tenth dot.
ALIKE = """() => {
  const blank = / (?!class|style|role|fill)([\\w-]+)="[^"]+"/g;
  const shape = (one) => one.outerHTML.replace(/>[^<>]+</g, ">text<").replace(blank, " $1");
  for (const parent of document.querySelectorAll("body *")) {
    const known = new Set();
    for (const child of [...parent.children]) {
      if (child.tagName !== "LABEL" && known.size === known.add(shape(child)).size) child.remove();
    }
  }
}"""


def serious_findings(page):
    """The serious and critical violations that axe-core finds, vendored by a package for tests; of
    similar elements only the first is checked.

    The others are removed from the page, which cannot be used afterwards: contrasts cost time for
    every element. axe reports violations only. It runs in spite of the page's policy.
    """
    pytest.importorskip("axe_playwright_python")
    page.evaluate(ALIKE)
    devtools = page.context.new_cdp_session(page)
    axe = (files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    devtools.send("Runtime.evaluate", {"expression": axe})
    parameters = {
        "expression": "axe.run({resultTypes: ['violations']})",
        "awaitPromise": True,
        "returnByValue": True,
    }
    violations = devtools.send("Runtime.evaluate", parameters)["result"]["value"]["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}"
        for each in violations
        if each["impact"] in {"serious", "critical"}
    ]


def check_look(opened, path):
    """Require that the page of this file, with everything unfolded, sends no requests, fits its
    window, and, unless it is very narrow, is accessible.

    The page cannot be used afterwards.
    """
    page = opened.page
    unfold(page)
    width = page.viewport_size["width"]
    assert opened.trouble == []
    assert opened.requests == [path.as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widths = "all => all.filter(box => box.offsetParent).map(box => box.clientWidth)"
    assert min(page.eval_on_selector_all(".chart.drawn", widths)) > 200
    assert width < 390 or serious_findings(page) == []


TOUCH = {"viewport": {"width": 390, "height": 844}, "has_touch": True}


MEASURE_MEANINGS = """all => [...new Set(all.map(one => one.popoverTargetElement))].map((meaning) => {
  meaning.showPopover();
  const { left, top, right, bottom } = meaning.getBoundingClientRect();
  const fits = left >= 0 && top >= 0 && right <= innerWidth && bottom <= innerHeight;
  const measured = [meaning.innerText.length, fits];
  meaning.hidePopover();
  return measured;
})"""


def check_meanings(page, terms, *, within="*"):
    """Require that a page opened with TOUCH explains its `terms` within the window, and that a tap
    and the keyboard show an explanation and close it.

    within: a selector of the buttons to check
    """
    meaning = page.locator(":popover-open")
    unfold(page)
    buttons = page.locator(f"button.term:is({within})")
    assert set(buttons.all_inner_texts()) >= terms
    for length, fits in buttons.evaluate_all(MEASURE_MEANINGS):
        assert length > 40 and fits
    button = page.locator(f"button.term:is({within}):visible").first
    button.tap()
    explanation = meaning.inner_text()
    page.keyboard.press("Escape")
    assert meaning.count() == 0
    button.press("Enter")
    assert meaning.inner_text() == explanation
    page.keyboard.press("Escape")
    assert meaning.count() == 0


def check_policy(page, path, opened, folder):
    """Require that links of the page of this file are relative and lead to a target, and that the
    page runs no other scripts: a copy in the folder is opened with one."""
    text = path.read_text(encoding="utf-8")
    links = page.eval_on_selector_all(
        "a[href]", "all => all.map(link => link.getAttribute('href'))"
    )
    names = {link for link in links if not link.startswith("#")}
    assert "manifest.json" in names and names & {"heads.csv", "values.csv"}
    assert all((path.parent / name).is_file() for name in names)
    targets = {link[1:] for link in links if link.startswith("#")}
    assert targets <= set(page.eval_on_selector_all("[id]", "all => all.map(item => item.id)"))
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert (
        "default-src &#39;none&#39;" in policy and "unsafe" not in policy and "http" not in policy
    )
    assert (
        policy.count("sha256-") == 3 and len(text) < 3_000_000
    )  # one bundle, one script, one style sheet
    tampered = folder / "tampered.html"
    tampered.write_text(
        text.replace("<noscript>", "<script>window.canary = 1</script><noscript>"), encoding="utf-8"
    )
    spoilt = opened(tampered, ready=False)
    assert spoilt.page.evaluate("window.canary") is None
    assert any("Content Security Policy" in message for message in spoilt.trouble)


def check_saved(page, buttons, folder, name):
    """Require that a picture's two buttons save it as SVG and PNG under a name of this form, with
    explicit colours.

    Return the number of labelled paths in the SVG.
    """
    buttons.first.evaluate("button => button.closest('details').open = true")
    for index, ending in enumerate(("svg", "png")):
        with page.expect_download() as waiting:
            buttons.nth(index).click()
        assert re.fullmatch(rf"{name}\.{ending}", waiting.value.suggested_filename)
        waiting.value.save_as(folder / f"picture.{ending}")
    svg = (folder / "picture.svg").read_text(encoding="utf-8")
    assert "var(" not in svg and (folder / "picture.png").read_bytes().startswith(b"\x89PNG")
    return svg.count("<path aria-label")


@contextmanager
def chromium(sync_api):
    """A running browser; `sync_api` is Playwright's module."""
    os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield launched
        launched.close()


@contextmanager
def sharing(browser):
    """`opened(path, **options of the context)`, once for each path and options, for tests that only
    read the page."""
    with opening(browser) as opened:
        pages = {}

        def once(path, **options):
            key = path, json.dumps(options, sort_keys=True)
            if key not in pages:
                pages[key] = opened(path, **options)
            return pages[key]

        yield once


@contextmanager
def opening(browser):
    """A function that opens a page in a new context: `opened(path, **options of the context)`."""
    contexts = []

    def opened(path, *, ready=True, **options):
        contexts.append(
            browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        )
        return Opened(contexts[-1].new_page(), path, ready=ready)

    yield opened
    for context in contexts:
        context.close()


# --- what a page shows ---------------------------------------------------------------------------


def cells(page, rows):
    """Text and hover text of every cell of a table that the script fills."""
    filled = "all => all.map(row => [...row.children].map(cell => [cell.textContent, cell.title]))"
    return page.eval_on_selector_all(f'[data-rows="{rows}"] tr', filled)


def dots(page, kind, queries, index=0):
    """(column, row, width) of every dot of a grid, columns and rows counted by position."""
    grid = page.locator(f'[data-queries="{queries}"] [data-kind="{kind}"]').nth(index)
    middles = """all => all.map(one => one.getBoundingClientRect()).map(
        b => [b.x + b.width / 2, b.y + b.height / 2, b.width])"""
    boxes = grid.locator(".mark-symbol.role-mark path").evaluate_all(middles)
    lines = grid.locator(".mark-rect.role-mark").first.locator("path").evaluate_all(middles)
    across, down = (sorted({round(line[axis]) for line in lines}) for axis in (0, 1))

    def nearest(positions, value):
        return min(range(len(positions)), key=lambda index: abs(positions[index] - value))

    return {(nearest(across, x), nearest(down, y)): width for x, y, width in boxes}


def number(text):
    """A number in the format of a page, with its minus sign."""
    return float(text.replace("−", "-"))
