"""Every page in headless Chromium: it asks for nothing, fits, is accessible, and runs only its own scripts."""

import re

import pytest
from browser import MARKS, serious_findings, settled, sharing, unfold
from example_study import make_study
from families import family_model

import probe

pytestmark = MARKS

SOURCE, TARGET = "He sat by the river near the bank", "a fluffy river roamed"
LOOKS = [("light", 1280), ("dark", 390), ("light", 320)]


def report(model, out):
    return probe.write_report(make_study(), out, command="probe report")


def walk(model, out):
    text = "The mole dug a tunnel under the river bank after the flood."
    return probe.write_walk(probe.walk(model, text, word="bank", head=(1, 2)), out, command="probe walk")


def walk_across_two_texts(model, out):
    walked = probe.walk(family_model("bart"), SOURCE, target=TARGET, word="river", head=(1, 2))
    return probe.write_walk(walked, out, command="probe walk")


@pytest.fixture(scope="module", params=[report, walk, walk_across_two_texts], ids=lambda page: page.__name__)
def page_path(request, model, tmp_path_factory):
    return request.param(model, tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def shown(browser, page_path):
    """The page with everything unfolded and every grid turned once; opened once per scheme and width."""
    with sharing(browser) as opened:

        def at(scheme, width, **options):
            found = opened(page_path, color_scheme=scheme, viewport={"width": width, "height": 844}, **options)
            unfold(found.page)
            for way in ("columns", "rows") if found.page.locator('[name="queries"]').count() else ():
                found.page.locator(f'[name="queries"][value="{way}"]').check(force=True)
                settled(found.page)
            return found

        yield at


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_nothing_is_complained_of_and_nothing_is_asked_for(shown, page_path, scheme, width):
    opened = shown(scheme, width)
    assert opened.trouble == []
    assert opened.requests == [page_path.as_uri()]


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_nothing_overflows_sideways(shown, scheme, width):
    page = shown(scheme, width).page
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    widths = "all => all.filter(box => box.offsetParent).map(box => box.clientWidth)"
    assert min(page.eval_on_selector_all(".chart.drawn", widths)) > 200


@pytest.mark.parametrize(("scheme", "width"), LOOKS[:2])
def test_an_accessibility_scan_finds_nothing_serious(shown, scheme, width):
    pytest.importorskip("axe_playwright_python")
    assert serious_findings(shown(scheme, width, bypass_csp=True).page) == []


def test_links_are_relative_and_lead_to_files_that_are_there(shown, page_path):
    page = shown(*LOOKS[0]).page
    links = page.eval_on_selector_all("a[href]", "all => all.map(link => link.getAttribute('href'))")
    files = {link for link in links if not link.startswith("#")}
    assert "manifest.json" in files and files & {"heads.parquet", "values.parquet"}
    assert all((page_path.parent / name).is_file() for name in files)
    targets = {link[1:] for link in links if link.startswith("#")}
    assert targets <= set(page.eval_on_selector_all("[id]", "all => all.map(item => item.id)"))


def test_the_policy_allows_only_the_pages_own_scripts(open_page, page_path, tmp_path):
    text = page_path.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)[1]
    assert "default-src &#39;none&#39;" in policy and "unsafe" not in policy and "http" not in policy
    assert policy.count("sha256-") == 3 and len(text) < 3_000_000  # one bundle, one script, one style sheet
    tampered = tmp_path / "tampered.html"
    tampered.write_text(text.replace("<noscript>", "<script>window.canary = 1</script><noscript>"), encoding="utf-8")
    opened = open_page(tampered)
    assert opened.page.evaluate("window.canary") is None
    assert any("Content Security Policy" in message for message in opened.trouble)


def test_the_accessibility_scan_can_fail(open_page, tmp_path):
    pytest.importorskip("axe_playwright_python")
    (tmp_path / "page.html").write_text('<html lang="en"><title>t</title><button></button><img src="x">')
    page = open_page(tmp_path / "page.html", ready=False).page
    assert {line.split(":")[0] for line in serious_findings(page)} >= {"button-name", "image-alt"}
