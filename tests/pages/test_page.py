"""The page in headless Chromium: it draws, sends no requests, fits, works by keyboard, and never
executes text."""

import re
from itertools import pairwise

import pandas as pd
import pytest
from browser import (
    check_look,
    check_meanings,
    check_policy,
    check_saved,
    serious_findings,
    sharing,
    unfold,
    until,
)
from inside import decimal, measured, p_value, percent
from seeds import mostly_campaign
from stored_study import stored_study

import probe

HOSTILE = (
    "<script>window.canary = 1</script>",
    "</script><script>window.canary = 1</script>",
    "<img src=x onerror='window.canary = 1'>",
    "<svg/onload=window.canary=1>",
    "<!--<script>",
    '"><a href="javascript:window.canary=1">click</a>',
    '\'" onmouseover="window.canary=1',
    "{{ 7 * 7 }} {% raw %} ${7*7}",
    "a & b &amp; &lt;b&gt;",
    "a mole 🦔 and a river bank 🏞️",
    "البنك على النهر",
    "\u202eevil\u202c",
    "line\u2028separator\u2029end",
    "datum['x'] #1c2430 ]]>",
)
NAMED = {"bank": HOSTILE[1], "river": HOSTILE[2], "money": HOSTILE[5]}
NAMES_IN = ("word", "noun", "sense", "sense_a", "sense_b", "reads_as")
FRAMES = stored_study().frames
BANK = FRAMES["word_heads"].query("word == 'bank'")
FIRST = BANK.iloc[0]  # L0H0
NAMES = [f"L{layer}H{head}" for layer, head in zip(BANK["layer"], BANK["head"], strict=True)]
PHONE = {"width": 390, "height": 844}
LIMITS = {1280: 6000, 390: 9000}  # pixels from top to bottom, before anything is opened


@pytest.fixture(scope="module")
def unfolded(browser, report_page):
    """The page with everything unfolded, opened once per width and scheme. A test that changes it
    changes it back."""
    with sharing(browser) as opened:

        def at(width=1280, scheme="light"):
            viewport = {"width": width, "height": 844}
            options = {"color_scheme": scheme, "has_touch": width == 390}
            view = opened(report_page, viewport=viewport, **options)
            unfold(view.page)
            return view

        yield at


@pytest.fixture
def page(unfolded):
    return unfolded().page


@pytest.fixture
def folded(shared_page, report_page):
    """The page as it is after opening, opened once: what a test unfolds or opens is closed again."""
    page = shared_page(report_page).page
    yield page
    page.evaluate("""() => {
      document.querySelector("dialog[open]")?.close();
      document.querySelectorAll("details[open]").forEach((item) => (item.open = false));
      history.replaceState(null, "", location.pathname);
      scrollTo(0, 0);
    }""")


def closed(page):
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('dialog[open]')")


def test_every_chart_is_drawn_with_marks(page):
    marks = page.eval_on_selector_all(
        ".chart",
        """boxes => boxes.map(box => [...box.querySelectorAll(
        '.mark-rect path, .mark-symbol path, .mark-line path, .mark-area path, .mark-text text, .mark-rule line'
        )].filter(mark => !mark.closest('.role-axis, .role-legend') &&
        mark.getBBox().width + mark.getBBox().height > 0).length)""",
    )
    # A circuit of one edge has a line, two parts and a name.
    assert len(marks) > 30 and min(marks) >= 4, marks
    sizes = page.eval_on_selector_all(
        ".chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(sizes) == len(marks) and min(sizes) > 200


def test_the_map_has_every_head_numbers_in_clear_cells_and_marks_of_verdicts(folded):
    first = folded.locator(".map .chart").first
    assert first.locator("[role=button]").count() >= len(BANK)
    marked = BANK[~BANK["verdict"].isin(["separates", "none"])]
    assert first.locator(".mark-symbol.role-mark path").count() == len(marked) == 4
    key = folded.locator(".map ul.key").first.locator("li").all_inner_texts()
    # The marks on this map and no others.
    names = ["more than for unambiguous nouns", "resolver", "mover", "position-explained"]
    assert [" ".join(text.split()) for text in key[1:]] == names


def test_every_picture_can_be_saved_and_follows_the_theme(unfolded, tmp_path):
    opened = unfolded()
    page = opened.page
    page.emulate_media(color_scheme="dark")
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    assert page.locator(".saving").count() == page.locator(".chart").count()
    picture = page.locator(".map .chart").first
    assert check_saved(page, picture.locator("+ .saving button"), tmp_path, "[a-z0-9-]{8,60}") >= 16
    assert opened.trouble == []
    colour = "() => getComputedStyle(document.querySelector('.role-axis-label text')).fill"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) != dark  # a chart follows the theme without being drawn again


@pytest.fixture(scope="module")
def deep_path(tmp_path_factory):
    """The page of a model of 32 layers; the added layers have small effects."""
    rows = FRAMES["word_heads"]
    added = [
        rows.assign(layer=rows["layer"] + 4 * copy, net=rows["net"] / 10, verdict="none")
        .assign(**{name: rows[name] + 16 * copy for name in ("rank", "rank_low", "rank_high")})
        for copy in range(1, 8)
    ]  # fmt: skip
    study = stored_study(word_heads=pd.concat([rows, *added], ignore_index=True))
    return probe.write(study, tmp_path_factory.mktemp("deep"), command="probe report")


@pytest.mark.campaign
@pytest.mark.parametrize("width", sorted(LIMITS))
def test_the_page_of_a_deep_model_is_short_and_its_maps_have_numbers_above_and_below(
    open_page, deep_path, width
):
    page = open_page(deep_path, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollHeight") <= LIMITS[width]
    labels = page.locator(".map .chart").first.locator(".role-axis-label text")
    label_texts = labels.all_text_contents()
    # Every fifth layer on the left, every head above and below.
    assert label_texts.count("30") == 1 and label_texts.count("3") == 2
    positions = labels.evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.x, box.y])"
    )
    left_edge = sorted(y for x, y in positions if x == min(x for x, _ in positions))
    assert all(b - a >= 10 for a, b in pairwise(left_edge))


def test_terms_are_explained_by_touch_and_by_keyboard(unfolded):
    page = unfolded(390, "dark").page
    check_meanings(page, {"head", "gap", "ΔE", "AUROC", "F"}, within=":not(dialog *)")
    page.evaluate("location.hash = 'head-0-L0H0'")
    terms = {"effect", "unambiguous nouns", "more for this word", "added after it", "contrast"}
    check_meanings(page, terms, within="dialog[open] *")
    page.evaluate("location.hash = ''")
    until(page, "!document.querySelector('dialog[open]')")


def test_copying_the_result_is_confirmed(folded):
    folded.context.grant_permissions(["clipboard-write"])
    folded.locator("details.result > summary").click()
    status = folded.locator("[data-copied]")
    folded.wait_for_function("() => document.querySelector('[data-copied]').textContent")
    assert status.inner_text() == "Copied." and status.get_attribute("role") == "status"


def test_the_first_screen_has_the_answer_and_everything_else_is_folded(shared_page, report_page):
    page = shared_page(report_page, viewport=PHONE).page
    assert page.evaluate("document.documentElement.scrollHeight") <= LIMITS[390]
    first = page.locator("#answer, header").all_inner_texts()
    assert not re.search(r"\bp [<=≥≤]|max-T|standard deviation|AUROC", " ".join(first))
    lead = page.locator(".lead").evaluate(
        "one => one.getBoundingClientRect().height / parseFloat(getComputedStyle(one).lineHeight)"
    )
    assert lead <= 4.05
    picture = page.locator(".top-heads").first.bounding_box()
    assert picture["y"] + picture["height"] <= 844
    assert page.locator("details.fold[open]").count() == 0
    linked = page.locator("nav a").evaluate_all("all => all.map(link => link.hash.slice(1))")
    assert linked == ["answer", "heads", "cue_sample", "travels", "believe", "done"]
    headings = page.locator("main > section.under > h2").all_inner_texts()
    assert headings == ["How the meaning travels", "Whether to believe it", "How it was done"]
    page.mouse.wheel(0, 5000)
    until(page, "scrollY > 300")
    nav = page.locator("nav")
    assert nav.evaluate("nav => nav.getBoundingClientRect().top") == 0  # it stays in sight
    # One line in a wide window, two on a phone, with every part in sight.
    wide = shared_page(report_page).page.locator("nav")
    assert nav.evaluate("nav => nav.clientHeight") <= 60
    assert wide.evaluate("nav => nav.clientHeight") <= 45
    for each in (nav, wide):
        assert each.evaluate("nav => nav.scrollWidth <= nav.clientWidth")


MARKS = """rows => rows.map((row) => {
  const place = (mark, name) => parseFloat(row.querySelector(mark)?.getAttribute(name));
  const zero = place(".zero", "x1"), one = place(".zero + .zero", "x1");
  const share = (x) => (x - zero) / (one - zero);
  const middle = place(".dot", "cx") || parseFloat(row.querySelector("svg:has(> .random)")?.getAttribute("x"));
  const noun = parseFloat(row.querySelector("svg:has(> .noun)")?.getAttribute("x"));
  return [middle, place(".ends", "x1"), place(".ends", "x2"), noun].map(share);
})"""


def test_each_word_lies_between_its_meanings_as_far_as_its_top_heads_move_it(folded):
    bank, mole, _ = folded.locator(".of-word").all()
    rows = bank.locator(".top-heads tr:has(.dot, .random)")
    columns = ["net", "net_low", "net_high", "nouns"]
    expected = BANK.set_index(pd.Index(NAMES)).loc[["L0H0", "L3H2", "L1H2"], columns]
    *heads, kept, random = rows.evaluate_all(MARKS)
    assert heads == [pytest.approx(row, abs=0.002) for row in expected.to_numpy().tolist()]
    curve = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    columns = ["faithfulness", "faithfulness_low", "faithfulness_high"]
    assert kept[:3] == pytest.approx(curve[columns].tolist(), abs=0.002)
    sets = FRAMES["random_sets"].query("word == 'bank' and size == 1")["faithfulness"]
    assert random[0] == pytest.approx(sets.max(), abs=0.002)
    numbers = [text.partition(" ")[0] for text in rows.locator(".n").all_inner_texts()]
    best = curve["faithfulness"], sets.max()
    assert numbers == [percent(share) for share in (*expected["net"], *best)]
    ends = bank.locator(".top-heads .between text").all_text_contents()
    left, right = ["0 % as it is", "● river", "● money"], ["the other 100 %", "money ●", "river ●"]
    assert ends == [*left, *right]
    assert mole.locator(".top-heads .side").count() == 0  # it has four meanings


def test_each_word_has_its_top_heads_its_facts_and_a_sentence_of_each_meaning(folded):
    bank, _, window = folded.locator(".of-word").all()
    assert bank.locator(".top-heads a").all_inner_texts() == ["L0H0", "L3H2", "L1H2"]
    first = bank.locator(".top-heads tr:has(.dot)").first.inner_text()
    effect = measured(FIRST["net"], FIRST["net_low"], FIRST["net_high"])
    assert "".join(first.split()) == "".join(f"L0H0 {effect}".split())
    assert bank.locator(".arcs text.word").all_text_contents() == ["bank", "bank"]
    assert bank.locator(".senses").all_inner_texts() == ["river", "money"]
    assert bank.locator(".arcs rect").count() == 2  # the cues
    assert window.locator(".top-heads, .arcs").count() == 0
    assert "so no head is ranked" in window.inner_text()


def test_a_link_opens_the_fold_or_card_of_its_target(folded):
    page = folded
    page.evaluate("location.hash = 'together'")
    until(page, "document.querySelector('#together > details').open")
    opened_folds = page.locator("section:has(> details.fold[open])")
    assert opened_folds.evaluate_all("all => all.map(section => section.id)") == ["together"]
    page.locator(".of-word").nth(1).locator(".top-heads a").nth(1).click()
    card = page.locator("dialog[open]")
    card_id = page.url.partition("#")[2]
    assert card.get_attribute("id") == card_id and card_id.startswith("head-1-")
    page.reload()  # the address restores it
    page.wait_for_selector("html.ready", state="attached")
    assert card.get_attribute("id") == card_id
    card.locator("[data-close]").click()
    until(page, "!document.querySelector('dialog[open]')")
    until(page, "!location.hash")


def nothing_is_folded(page):
    for name in ("parting", "facts", "together", "power", "method", "tables"):
        assert page.locator(f"#{name} :is(p, li)").first.is_visible(), name
    assert page.locator("[aria-label='Columns of the tables'] tbody tr").first.is_visible()


def test_without_scripts_nothing_is_folded(open_page, report_page):
    nothing_is_folded(open_page(report_page, ready=False, java_script_enabled=False).page)


def test_a_printed_page_has_no_folds_and_every_picture_and_card(shared_page, report_page):
    """Folded pictures are drawn while the page is idle, so that printing never waits for them."""
    page = shared_page(report_page, viewport=PHONE).page
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    page.emulate_media(media="print")
    widths = page.eval_on_selector_all(
        "details .chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    maps = page.locator(".map .chart").count()
    assert len(widths) == page.locator(".chart").count() - maps and min(widths) > 200
    cards = page.locator("dialog.card:not(#any-head)")
    assert cards.count() == 6 and all(card.is_visible() for card in cards.all())
    assert not page.locator("#any-head").is_visible()
    nothing_is_folded(page)
    page.emulate_media(media="screen")


def test_the_keyboard_moves_through_a_circuit_and_each_part_has_a_label(page):
    stops = page.locator("[data-circuit] [tabindex='0']")
    first = page.locator("[data-circuit]").first
    parts, label = first.locator("path[role=graphics-symbol]"), first.locator(".told")
    count = parts.count()
    assert count >= 3 and stops.count() == page.locator("[data-circuit]").count()
    first.locator("[tabindex='0']").focus()
    names = []
    for _ in range(count):
        names.append(label.inner_text())
        assert names[-1] == page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("ArrowRight")
    assert len(set(names)) == count
    assert label.inner_text() == names[0] == parts.first.get_attribute("aria-label")
    assert stops.count() == page.locator("[data-circuit]").count()


def test_a_click_on_a_cell_opens_the_card_of_the_head_without_scrolling(folded):
    page, card = folded, folded.locator("dialog[open]")

    def click(name):  # at the middle of the cell, even under another mark
        cell = page.locator(f'.map .chart >> nth=0 >> [role=button][aria-label^="{name},"]')
        cell.scroll_into_view_if_needed()
        box = cell.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    click("L0H0")
    assert card.locator("h2").inner_text() == "L0H0 on bank"
    assert card.locator(".arcs path").count() >= 2 and card.locator(".dots circle").count() == 1
    assert page.evaluate("scrollY") < 300
    closed(page)
    click(NAMES[1])
    assert card.get_attribute("id") == "any-head"
    assert card.locator("h2").inner_text() == f"{NAMES[1]} on bank"
    assert card.locator("[data-field=net]").inner_text().startswith(percent(BANK["net"].iloc[1]))
    assert card.locator("[data-field=auroc]").inner_text() == decimal(BANK["auroc"].iloc[1])


def test_the_keyboard_moves_from_cell_to_cell_and_enter_opens_the_card(folded):
    page = folded
    stops = page.locator(".map .chart").first.locator("[tabindex='0']")
    assert stops.count() == 1
    stops.focus()
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused).startswith("L0H0, ")
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowUp"):  # no cell above the first row
        page.keyboard.press(key)
    assert page.evaluate(focused).startswith("L0H1, ") and stops.count() == 1
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert page.locator("dialog[open] h2").inner_text() == "L0H0 on bank"
    closed(page)
    assert page.evaluate(focused).startswith("L0H0, ")  # the focus is back on the cell


def test_the_cards_of_the_top_heads_form_a_gallery_and_have_sentences_effects_and_a_reason(folded):
    page = folded
    ids = "all => all.map(one => one.id || one.hash.slice(1))"
    cards = page.locator("dialog.card:not(#any-head)").evaluate_all(ids)
    assert page.locator(".gallery .tile").evaluate_all(ids) == cards
    assert cards[:3] == ["head-0-L0H0", "head-0-L3H2", "head-0-L1H2"]
    page.evaluate("location.hash = 'head-0-L0H0'")
    card = page.locator("dialog[open]")
    card.wait_for()
    assert card.locator("header .verdict-name").text_content() == "resolver"
    assert card.locator(".senses .sense").all_inner_texts()[:2] == ["river", "money"]
    assert card.locator(".arcs").first.locator("text.word").text_content() == "bank"
    effects = card.locator(".effects").inner_text()
    assert measured(FIRST["net"], FIRST["net_low"], FIRST["net_high"]) in effects
    assert percent(FIRST["nouns"]) in effects
    assert re.match("(No r|R)eason: ", card.locator(".reason").inner_text())


def test_a_study_without_significant_effects_has_a_note_and_draws_no_effect(open_page, tmp_path):
    page = open_page(probe.write(stored_study("window"), tmp_path)).page
    assert "No head is ranked." in page.inner_text("main")
    effects = [f"#{name} .chart" for name in ("answer", "together", "supplies")]
    assert page.locator(", ".join([*effects, "dialog", "svg.mark", ".verdict-name"])).count() == 0
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    assert page.locator(".chart").count() == page.locator(".chart svg").count() >= 2


def test_tables_are_stacked_on_a_phone_and_charts_are_wide_enough(unfolded):
    page = unfolded(390, "dark").page
    fits = "all => all.every(table => table.scrollWidth <= table.closest('.scroll').clientWidth)"
    assert page.locator("table.stack").evaluate_all(fits)
    labels = page.locator("table.stack td.n").evaluate_all(
        "all => all.map(cell => cell.dataset.label || '')"
    )
    assert labels and all(labels)
    widths = page.eval_on_selector_all(
        ".chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert min(widths) > 200


def test_gate_power_controls_and_nouns_are_listed_for_every_word(page):
    rows = page.locator("#power [aria-label='Gate and power'] tbody tr").all_inner_texts()
    assert [row.split("\t")[:2] for row in rows] == [
        ["bank", "1 of 1"],
        ["mole", "6 of 6"],
        ["window", "0 of 1"],
    ]
    p_of_bank = FRAMES["words"]["untrained_p"].iloc[0]
    assert rows[0].split("\t")[2:5] == ["p < .001", p_value(p_of_bank), "18"]
    strips = page.locator("#controls .chart")
    labels = strips.first.locator(".role-axis-label text").all_text_contents()
    assert [label for label in labels if label[0].isalpha()] == [
        *FRAMES["separation_controls"]["condition"].unique()
    ]
    heads = page.locator("#nouns table").nth(1).locator("tbody tr").all_inner_texts()
    row = heads[0].split("\t")
    assert row[:2] == ["L0H0", "bank"] and row[-1] == "more than for other nouns"
    assert row[2:5] == [
        measured(FIRST["net"], FIRST["net_low"], FIRST["net_high"]),
        percent(FIRST["nouns"]),
        measured(FIRST["more"], FIRST["more_low"], FIRST["more_high"]),
    ]


@pytest.fixture(scope="module")
def hostile_path(tmp_path_factory):
    """A page on which hostile texts are a word, its senses, sentences and tokens."""
    study = stored_study("bank")
    study.frames["left_out"] = pd.DataFrame({"word": "bank", "where": HOSTILE, "reason": HOSTILE})
    for name, frame in study.frames.items():
        named = [column for column in NAMES_IN if column in frame]
        study.frames[name] = frame.assign(**{each: frame[each].replace(NAMED) for each in named})
    for column in ("text", "piece", "label"):
        frame = study.frames["readings"]
        texts = [HOSTILE[row % len(HOSTILE)] for row in range(len(frame))]
        study.frames["readings"] = frame.assign(**{column: texts})
    folder = tmp_path_factory.mktemp("hostile")
    return probe.write(study, folder, command=f"probe report '{HOSTILE[1]}'")


def test_hostile_text_is_displayed_and_never_executed(open_page, hostile_path):
    opened = open_page(hostile_path)
    page = opened.page
    unfold(page)
    for card in page.locator("dialog.card:not(#any-head)").all():
        page.evaluate("id => (location.hash = id)", card.get_attribute("id"))
        card.locator("summary").last.wait_for()
        closed(page)
    page.locator(".map .chart [aria-label^=L0H1]").first.hover()
    assert page.evaluate("window.canary") is None
    assert opened.trouble == [] and opened.requests == [hostile_path.as_uri()]
    visible_text = page.evaluate("document.querySelector('main').textContent")
    for text in HOSTILE:
        assert text in visible_text or text.strip() in visible_text, text
    assert page.locator("main a:text('click'), main img").count() == 0
    assert page.locator("h2 bdi").first.inner_text() == HOSTILE[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_links_work_and_the_page_runs_only_its_scripts(page, report_page, open_page, tmp_path):
    check_policy(page, report_page, open_page, tmp_path)


@pytest.mark.parametrize(
    ("width", "scheme"), mostly_campaign([(390, "dark"), (1280, "light"), (320, "light")])
)
def test_the_page_sends_no_requests_fits_and_is_accessible(unfolded, report_page, width, scheme):
    # The last tests, because they change the shared pages.
    check_look(unfolded(width, scheme), report_page)


def test_the_accessibility_scan_can_fail(open_page, tmp_path):
    (tmp_path / "page.html").write_text(
        '<html lang="en"><title>t</title><button></button><img src="x">'
    )
    page = open_page(tmp_path / "page.html", ready=False).page
    assert {line.split(":")[0] for line in serious_findings(page)} >= {"button-name", "image-alt"}
