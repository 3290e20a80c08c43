"""Headless Chromium for tests that open a page: what it needs to start, and what a page said, threw and asked for."""

import json
import os
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path

import pytest

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
MARKS = [
    pytest.mark.browser,
    pytest.mark.skipif(not CHROMIUM.exists(), reason="chromium is not installed at /usr/bin/chromium"),
]


class Opened:
    """A page with what it said, threw and asked for."""

    def __init__(self, page, path, *, ready=True):
        self.page, self.trouble, self.requests = page, [], []
        page.on(
            "console",
            lambda message: self.trouble.append(message.text) if message.type in {"error", "warning"} else None,
        )
        page.on("pageerror", lambda error: self.trouble.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(path.as_uri())
        if ready:
            page.wait_for_selector("html.ready", timeout=60_000, state="attached")


def unfold(page):
    """Opens everything that is folded and waits for its pictures; one that is hidden waits to be turned to."""
    page.eval_on_selector_all("details", "all => all.forEach(item => item.open = true)")
    until(page, "[...document.querySelectorAll('.chart')].every(box => !box.offsetParent || box.matches('.drawn'))")


def until(page, condition):
    """Waits until the expression holds; Playwright's own way asks the page's policy for eval after the first time."""
    for _ in range(2000):
        if page.evaluate(condition):
            return
        page.wait_for_timeout(30)
    raise TimeoutError(condition)


def settled(page):
    """Waits until the pictures have followed the last change."""
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 80)))")


def serious_findings(page):
    """What axe-core, vendored by a package for tests, finds serious or critical; the page must bypass its policy.

    axe is asked to spell out violations only: it runs every rule all the same, and describing the thousands of
    elements that pass would take ten times as long.
    """
    page.evaluate((files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8"))
    found = page.evaluate("() => axe.run({resultTypes: ['violations']})")["violations"]
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]}" for each in found if each["impact"] in {"serious", "critical"}
    ]


@contextmanager
def chromium(sync_api):
    """A running browser; `sync_api` is playwright's."""
    os.environ.setdefault("PLAYWRIGHT_SKIP_BROWSER_DOWNLOAD", "1")
    with sync_api.sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS)
        yield launched
        launched.close()


@contextmanager
def sharing(browser):
    """`opened(path, **options of the context)`, once per path and options, for tests that only look at the page."""
    with opening(browser) as opened:
        kept = {}

        def once(path, **options):
            key = path, json.dumps(options, sort_keys=True)
            if key not in kept:
                kept[key] = opened(path, **options)
            return kept[key]

        yield once


@contextmanager
def opening(browser):
    """A function that opens a page in a context of its own: `opened(path, **options of the context)`."""
    contexts = []

    def opened(path, *, ready=True, **options):
        contexts.append(browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options)))
        return Opened(contexts[-1].new_page(), path, ready=ready)

    yield opened
    for context in contexts:
        context.close()
