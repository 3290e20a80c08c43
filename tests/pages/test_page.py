"""The page opened in headless Chromium: it draws, asks for nothing, fits, works by keyboard, and
runs no text."""

import re
from itertools import pairwise

import pandas as pd
import pytest
from browser import (
    TOUCH,
    check_look,
    check_meanings,
    check_policy,
    check_saved,
    serious_findings,
    sharing,
    unfold,
    until,
)
from example_study import make_study
from page_text import facts, scope
from seeds import mostly_campaign

import probe
from probe.pages import heads
from probe.pages.sentences import BAR
from probe.pages.sources import sources_in_words
from probe.pages.verdicts import with_reasons
from probe.results.columns import dictionary
from probe.stats.numbers import decimal, measured, percent

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
EVIDENCE = (
    "verdicts",
    "distances",
    "head_parts",
    "by_depth",
    "curves",
    "random_sets",
    "controls",
    "mlps",
    "separation_controls",
    "decomposition",
)
FRAMES = make_study().frames
BANK = FRAMES["word_heads"].query("word == 'bank'")
NAMES = [f"L{layer}H{head}" for layer, head in zip(BANK["layer"], BANK["head"], strict=True)]


@pytest.fixture(scope="module")
def hostile_path(tmp_path_factory):
    study = make_study(HOSTILE)
    for name in (
        "words",
        "heads",
        "word_heads",
        "depth",
        "shares",
        "readings",
        "showcase",
        "sentences",
        *EVIDENCE,
    ):
        frame = study.frames[name]
        swapped = {"bank": HOSTILE[1], "river": HOSTILE[2], "money": HOSTILE[5]}
        places = [
            column
            for column in ("word", "noun", "sense", "sense_a", "sense_b", "reads_as")
            if column in frame
        ]
        study.frames[name] = frame.assign(
            **{column: frame[column].replace(swapped) for column in places}
        )
    return probe.write(
        study, tmp_path_factory.mktemp("hostile"), command=f"probe report '{HOSTILE[1]}'"
    )


@pytest.fixture(scope="module")
def unfolded(browser, report_page):
    """The page with everything unfolded, opened once per width and scheme, for tests that only look
    at it."""
    with sharing(browser) as opened:

        def at(width=1280, scheme="light"):
            found = opened(
                report_page, viewport={"width": width, "height": 844}, color_scheme=scheme
            )
            unfold(found.page)
            return found

        yield at


@pytest.fixture
def page(unfolded):
    return unfolded().page


def test_every_chart_is_drawn_with_marks(page):
    boxes = page.locator(".chart").count()
    # 1 + 6 + 1 depth profiles, 3 control strips; for each of the two ranked words a map, the word
    # beside other nouns, shares, a scatter, sets of heads, effects by distance and by part, three
    # traces and a circuit from cue to word; an account of each of 4 + 8
    assert boxes == 8 + 3 + 2 * 11 + 12
    marks = page.eval_on_selector_all(
        ".chart",
        """boxes => boxes.map(box => [...box.querySelectorAll(
        '.mark-rect path, .mark-symbol path, .mark-line path, .mark-area path, .mark-text text, .mark-rule line'
        )].filter(mark => !mark.closest('.role-axis, .role-legend') &&
        mark.getBBox().width + mark.getBBox().height > 0).length)""",
    )
    assert all(count >= 7 for count in marks), (
        marks
    )  # a circuit of two edges has two lines, three parts and two names
    sizes = page.eval_on_selector_all(
        ".chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(sizes) == boxes and min(sizes) > 200


def test_a_map_has_a_cell_for_every_head_and_a_number_in_the_clear_ones(shared_page, report_page):
    page = shared_page(report_page).page
    first = page.locator("#map .chart").first
    mlps = FRAMES["mlps"].query("word == 'bank'")
    framed = (BANK["comparison"] == "more").sum() + (mlps["comparison"] == "more").sum()
    assert first.locator(".mark-rect.role-mark path").count() == 16 + len(mlps) + framed
    clear = int(((BANK["net_low"] > 0) | (BANK["net_high"] < 0)).sum())
    assert clear > 1 and first.locator(".mark-text.role-mark text").count() == clear + len(mlps)


def test_every_picture_can_be_saved_and_follows_the_theme(open_page, report_page, tmp_path):
    opened = open_page(report_page, color_scheme="dark")
    page = opened.page
    unfold(page)
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    assert page.locator(".saving").count() == page.locator(".chart").count()
    picture = page.locator("#map .chart").first
    assert check_saved(page, picture.locator("+ .saving button"), tmp_path, "[a-z0-9-]{8,60}") >= 16
    assert opened.trouble == []
    colour = "() => getComputedStyle(document.querySelector('.role-axis-label text')).fill"
    dark = page.evaluate(colour)
    page.emulate_media(color_scheme="light")
    assert page.evaluate(colour) != dark  # a chart follows the theme without being drawn again


LIMITS = {1280: 6000, 390: 9000}  # pixels from top to bottom, before anything is opened


@pytest.fixture(scope="module")
def deep_path(tmp_path_factory):
    """The page of a model of 32 layers, of which the added ones do little."""
    study = make_study()
    rows, size = study.frames["word_heads"], 16
    parts = [rows]
    for copy in range(1, 8):
        further = {name: rows[name] + copy * size for name in ("rank", "rank_low", "rank_high")}
        parts.append(
            rows.assign(
                layer=rows["layer"] + 4 * copy, net=rows["net"] / 10, verdict="none", **further
            )
        )
    study.frames["word_heads"] = pd.concat(parts, ignore_index=True)
    return probe.write(study, tmp_path_factory.mktemp("deep"), command="probe report")


@pytest.mark.campaign
@pytest.mark.parametrize("width", sorted(LIMITS))
def test_a_deep_model_keeps_to_the_limits_and_its_maps_have_numbers_on_all_sides(
    open_page, deep_path, width
):
    page = open_page(deep_path, viewport={"width": width, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollHeight") <= LIMITS[width]
    labels = page.locator("#map .chart").first.locator(".role-axis-label text")
    shown = labels.all_text_contents()
    assert (
        shown.count("31") == 2 and shown.count("3") == 4
    )  # layers left and right, heads above and below
    places = labels.evaluate_all(
        "all => all.map(one => one.getBoundingClientRect()).map(box => [box.x, box.y])"
    )
    left = sorted(y for x, y in places if x == min(x for x, _ in places))
    assert all(b - a >= 10 for a, b in pairwise(left))


def test_terms_are_explained_to_a_finger_and_to_the_keyboard(open_page, report_page):
    terms = {"head", "sense gap", "ΔE", "AUROC", "F", "for other nouns", "added after it"}
    check_meanings(open_page(report_page, **TOUCH).page, terms)


def test_that_the_result_was_copied_is_said(open_page, report_page):
    page = open_page(report_page, permissions=["clipboard-write"]).page
    page.locator("details.result > summary").click()
    told = page.locator("[data-copied]")
    page.wait_for_function("() => document.querySelector('[data-copied]').textContent")
    assert told.inner_text() == "Copied." and told.get_attribute("role") == "status"


def test_one_screen_answers_and_all_else_is_folded_but_there(open_page, report_page):
    page = open_page(report_page, viewport={"width": 390, "height": 900}).page
    assert page.evaluate("document.documentElement.scrollHeight") <= LIMITS[390]
    first = page.locator("#answers, #map, header").all_inner_texts()
    assert not re.search(r"\bp [<=≥≤]|max-T|standard deviation|AUROC", " ".join(first))
    assert page.locator("details[open]").count() == 0
    closed = page.locator("main > section:has(> details.fold)").evaluate_all(
        "all => all.map(section => section.id)"
    )
    linked = page.locator("nav a").evaluate_all("all => all.map(link => link.hash.slice(1))")
    assert linked == ["answer", *closed] and len(closed) >= 11
    page.mouse.wheel(0, 5000)
    until(page, "scrollY > 300")
    assert (
        page.locator("nav").evaluate("nav => nav.getBoundingClientRect().top") == 0
    )  # the contents stay in sight


def test_each_word_has_a_line_with_its_heads_the_best_sentence_and_how_sure(
    shared_page, report_page
):
    page = shared_page(report_page).page
    bank, mole, apple = page.locator(".line").all()
    assert bank.locator(".leaders b").all_inner_texts() == [
        NAMES[place] for place in BANK["rank"].argsort()[:3]
    ]
    shown = [" ".join(text.split()) for text in bank.locator(".leaders li").all_inner_texts()]
    assert shown[0] == "L0H2 41 % [36, 46] more than for other nouns"
    assert shown[2].endswith("]")  # not decided
    values = bank.locator(".facts dd").all_inner_texts()
    assert values == list(facts(FRAMES, "bank").values())
    assert (
        bank.locator(".text .word").inner_text() == "bank"
        and bank.locator(".text .cue").count() == 1
    )
    assert "64 held-out pairs of sentences, 14 pairs of cue words" in values
    assert "for each pair of meanings" in mole.inner_text()
    assert apple.locator(".leaders li, .text").count() == 0
    assert "so no head is ranked" in apple.inner_text()


def opened_folds(page):
    """The sections that are open."""
    return page.locator("section:has(> details.fold[open])").evaluate_all(
        "all => all.map(section => section.id)"
    )


def test_whatever_leads_to_a_place_opens_the_fold_that_holds_it(open_page, report_page):
    page = open_page(report_page).page
    page.locator("nav a", has_text="Together").click()
    assert opened_folds(page) == ["together"] and page.url.endswith("#together")
    page.locator(".line").first.locator(".leaders a").nth(
        2
    ).click()  # a head without an effect: in the table
    assert opened_folds(page) == ["together", "every"] and page.locator("tr:target").is_visible()
    page.locator(".line").nth(1).locator(".leaders a").nth(1).click()
    assert opened_folds(page) == ["heads", "together", "every"]
    chosen = page.url.partition("#")[2]
    assert page.locator(f"[id='{chosen}']").is_checked() and chosen.startswith("word-1-")
    again = open_page(report_page).page  # the address brings it back
    again.goto(page.url)
    again.wait_for_selector("html.ready", state="attached")
    until(again, f"document.getElementById('{chosen}').closest('details').open")
    assert opened_folds(again) == ["heads"] and again.locator(f"[id='{chosen}']").is_checked()
    again.locator("section#heads > details > summary").click()
    again.locator(
        "nav a", has_text="Leading heads"
    ).click()  # where the address was before, and opens again
    assert opened_folds(again) == ["heads"]


def test_without_scripts_nothing_is_folded(open_page, report_page):
    nothing_is_folded(open_page(report_page, ready=False, java_script_enabled=False).page)


def test_on_paper_nothing_is_folded_and_every_picture_and_head_is_there(open_page, report_page):
    """Folded pictures are drawn while the page is idle: on paper nothing waits for them."""
    page = open_page(report_page).page
    folded = page.locator("details:not([open]) .chart")
    assert folded.count() == page.locator(".chart").count() - 2  # the two maps
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    page.emulate_media(media="print")
    widths = page.eval_on_selector_all(
        "details .chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(widths) == folded.count() and min(widths) > 200
    assert all(panel.is_visible() for panel in page.locator(".panel").all())
    assert not page.locator(".tabs label").first.is_visible()
    nothing_is_folded(page)


def nothing_is_folded(page):
    for name in ("words", "heads", "together", "every", "believe", "method", "tables"):
        assert page.locator(f"#{name} p").first.is_visible(), name
    assert page.locator("[aria-label='Columns of the tables'] tbody tr").first.is_visible()


def test_tabs_change_the_head_by_keyboard_and_only_one_is_shown(open_page, report_page):
    page = open_page(report_page).page
    page.locator("#heads summary").first.click()
    tabs = page.locator(".tabs").first
    panels = tabs.locator(".panel")
    assert [panels.nth(place).is_visible() for place in range(panels.count())] == [True, False]
    tabs.locator("input").first.focus()
    page.keyboard.press("ArrowRight")
    assert [panels.nth(place).is_visible() for place in range(panels.count())] == [False, True]
    assert tabs.locator("input").nth(1).is_checked()
    assert page.url.endswith(tabs.locator("input").nth(1).get_attribute("id"))


def test_a_circuit_is_gone_through_by_keyboard_and_each_part_says_what_it_is(
    open_page, report_page
):
    page = open_page(report_page).page
    unfold(page)
    parts = page.locator("[data-circuit] path[role=graphics-symbol]")
    stops = page.locator("[data-circuit] [tabindex='0']")
    first = page.locator("[data-circuit]").first
    count, told = first.locator("path[role=graphics-symbol]").count(), first.locator(".told")
    assert (
        count >= 3 and stops.count() == page.locator("[data-circuit]").count()
    )  # one stop for every picture
    first.locator("[tabindex='0']").focus()
    names = []
    for _ in range(count):
        names.append(told.inner_text())
        assert names[-1] == page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("ArrowRight")
    assert len(set(names)) == count and told.inner_text() == names[0] == parts.first.get_attribute(
        "aria-label"
    )
    assert stops.count() == page.locator("[data-circuit]").count()


def test_a_click_on_the_map_goes_to_the_head(open_page, report_page):
    """To its tab where it leads, to its row in the table of every head where it does not."""
    page = open_page(report_page).page
    cells = page.locator("#map .chart").first.locator(".mark-rect.role-mark path")
    tabs = page.locator(".tabs").first
    names = tabs.locator("label b").all_text_contents()
    other = next(place for place, name in enumerate(NAMES) if name not in names)

    def click(place):  # where the middle of the cell is, whatever stands on top of it
        cells.nth(place).scroll_into_view_if_needed()
        box = cells.nth(place).bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    click(NAMES.index(names[1]))
    assert tabs.locator("input").nth(1).is_checked() and tabs.locator(".panel").nth(1).is_visible()
    click(other)
    row = page.locator("tr:target")
    assert row.locator("th").inner_text() == NAMES[other] and row.is_visible()
    assert tabs.locator("input").nth(1).is_checked()


def test_the_table_of_a_large_model_holds_its_first_heads_and_those_that_the_map_marks(monkeypatch):
    found = make_study().findings
    monkeypatch.setattr(heads, "TABLE_ROWS", 2)
    for section in heads.every_head(found, make_study().frames):
        of_word = found[section["word"]].heads
        names = [row["name"] for row in section["rows"]]
        marked = [head.name for head in of_word if head.verdict not in ("separates", "none")]
        assert set(names) == {*marked, *(head.name for head in of_word[:2])}
        assert len(names) < len(of_word)


def test_tokens_are_tinted_by_attention_and_bars_are_as_long_as_the_contribution(page):
    rows, panel = (
        FRAMES["readings"].query("word == 'bank' and layer == 0 and head == 2"),
        page.locator(".panel").first,
    )
    pieces = panel.locator(".sentence").first.locator(".piece")
    alphas = pieces.evaluate_all(
        "all => all.map(one => Number((getComputedStyle(one).backgroundColor.match(/[\\d.]+(?=\\))/) || [0])[0]))"
    )
    strengths = rows.query("sentence == 0")["attention"]
    assert alphas[:10] == pytest.approx((0.75 * strengths).tolist(), abs=0.02)
    shown = rows["contribution"].tolist()
    whole = max(map(abs, shown))
    heights = panel.locator(".bar i").evaluate_all(
        "all => all.map(bar => bar.getBoundingClientRect().height)"
    )
    full = [BAR * abs(value) / whole for value in shown]
    assert (
        heights == pytest.approx(full, abs=1.1) and max(heights) > 0.9 * BAR
    )  # a full bar is a round number
    numbers = panel.locator(".bar b").all_inner_texts()
    assert (
        numbers == [decimal(100 * value, 0) for value in shown if abs(value) >= 0.005]
        and len(numbers) >= 4
    )
    said = panel.locator(".sentences > .quiet").first.inner_text()
    percent = -int(-100 * whole // 1)
    assert re.fullmatch(
        rf"A full bar is {percent}\s% of the sense gap in all sentences of L0H2\.", said
    )


def test_the_word_is_bold_the_cue_outlined_and_a_leading_space_is_a_dot(unfolded):
    sentence = unfolded().page.locator(".panel").first.locator(".sentence").first
    word, cue = (sentence.locator(f".token.{role} .piece") for role in ("word", "cue"))
    assert (word.all_inner_texts(), cue.all_inner_texts()) == (["·bank"], ["·river"])
    assert cue.evaluate("piece => getComputedStyle(piece).outlineStyle") == "solid"
    assert int(word.evaluate("piece => getComputedStyle(piece).fontWeight")) >= 700


def test_a_study_that_shows_nothing_says_so_and_draws_no_effect(open_page, tmp_path):
    page = open_page(probe.write(make_study(apart=False), tmp_path)).page
    assert "No head is ranked." in page.inner_text("main")
    effects = [
        f"#{section} .chart" for section in ("map", "shares", "every", "together", "supplies")
    ]
    assert page.locator(", ".join([*effects, ".panel", "svg.mark", ".verdict-name"])).count() == 0
    said = page.locator(".answer").first.text_content()
    assert said.startswith("This model was not shown to separate the senses of “bank”")
    sections = page.locator("section[id]").evaluate_all("all => all.map(section => section.id)")
    expected = ["answers", "words", "otherwise", "believe", "cannot", "certificate", "method"]
    assert sections == [*expected, "tables"]
    linked = page.locator("nav a").evaluate_all("all => all.map(link => link.hash.slice(1))")
    assert linked == ["answer", *sections[1:]]
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    assert (
        page.locator(".chart").count() == page.locator(".chart svg").count() == 8 + 3
    )  # depth profiles and controls


def test_the_verdict_stands_in_the_map_the_tabs_the_panel_and_the_table(page):
    first = page.locator("#map .chart").first
    marked = BANK[~BANK["verdict"].isin(["separates", "none"])]
    assert first.locator(".mark-symbol.role-mark path").count() == len(marked) >= 2
    assert "separates" in set(BANK["verdict"])
    legend = page.locator("#map .marks dt").all_inner_texts()
    assert [text.strip() for text in legend] == ["resolver", "opposes", "outlined"]
    assert (
        page.locator(".tabs > label").first.locator("svg.mark title").text_content() == "resolver"
    )
    assert (
        page.locator(".panel .because")
        .first.inner_text()
        .startswith("resolver: it separates the senses held out with AUROC 0.")
    )
    cells = page.locator("#every table").first.locator("tbody td:nth-child(2)")
    assert [text.strip() for text in cells.all_text_contents()] == BANK.sort_values("rank")[
        "verdict"
    ].tolist()


def test_answers_are_those_of_the_verdicts(page):
    page.eval_on_selector_all("#words details", "all => all.forEach(item => item.open = true)")
    bank, mole, apple = page.locator(".answer").all_inner_texts()
    assert bank.startswith("One head moves “bank”: L0H2 41") and "no head is ranked" in apple
    assert mole.startswith("Two heads move “mole”: L0H1")
    assert "those of layer 3 do, after the last layer" in page.locator(".card").first.inner_text()
    said = page.locator("#words > details .note").last.inner_text()
    assert said == scope(FRAMES) and "any other position than the word" in said


def test_tables_of_text_are_stacked_on_a_phone_and_charts_are_wide_enough(unfolded):
    page = unfolded(390, "dark").page
    for table in page.locator("table.stack").all():
        box = table.evaluate("item => [item.scrollWidth, item.closest('.scroll').clientWidth]")
        assert box[0] <= box[1], table.inner_text()[:60]
    labels = page.locator("table.stack td.n").evaluate_all(
        "all => all.map(cell => cell.dataset.label || '')"
    )
    assert labels and all(labels)
    widths = page.eval_on_selector_all(
        ".chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert min(widths) > 300


def test_lone_pairs_what_was_left_out_columns_and_suppliers_are_told(page):
    method = page.locator("#method").inner_text()
    assert (
        "bank: 2 sentences name pairs without a partner of another sense; they are used like sentences without a pair."
    ) in method
    assert f"{len(FRAMES['left_out'])} left out, and why" in method
    rows = page.locator("[aria-label='Columns of the tables'] tbody tr").all_inner_texts()
    reasons = with_reasons(FRAMES["verdicts"], FRAMES["heads"], FRAMES["words"])
    assert len(rows) == len(dictionary(FRAMES | {"verdicts": reasons}))
    assert any(
        row.startswith("word_heads.net") and row.endswith("fraction of the sense gap")
        for row in rows
    )
    told = sources_in_words(FRAMES["decomposition"])
    said = page.locator("#supplies .supply > p:nth-of-type(2)").all_inner_texts()
    assert said == list(told.values()) and len(said) == 12


def test_together_names_the_smallest_set_and_its_rivals(unfolded):
    captions = unfolded().page.locator("#together figcaption").all_inner_texts()
    row = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    kept = measured(*row[["faithfulness", "faithfulness_low", "faithfulness_high"]])
    assert captions[0].startswith(
        f"The smallest set above 90\u202f%, L0H2 and L1H0, keeps (F) {kept}; swapping these alone"
    )
    assert "the best of 11 random sets of 3 heads keeps 10" in captions[0]


def test_belief_rests_on_gate_power_and_controls_for_every_word(page):
    table = page.locator("#believe [aria-label='Gate and power']")
    rows = table.locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["bank", "1 of 1", "p < .001", "p = .31", "240", "192", "14", "64", "p = .002", "0.45"],
        ["mole", "5 of 6", "p ≤ .4", "p ≥ .31", "240", "192", "14", "64", "p ≤ .6", "0.45"],
        ["apple", "0 of 1", "p = .4", "p = .31", "240", "192", "14", "64", "p = .6", "0.45"],
    ]
    strips = page.locator("#believe .chart")
    assert strips.count() == 3
    labels = strips.first.locator(".role-axis-label text").all_text_contents()
    assert [label for label in labels if label[0].isalpha()] == [
        *FRAMES["separation_controls"]["condition"].unique()
    ]


def test_belief_begins_with_the_word_and_its_heads_beside_nouns_of_one_meaning(page):
    first, second = page.locator("#believe table").all()[:2]
    rows = [row.split("\t") for row in first.locator("tbody tr").all_inner_texts()]
    assert rows[:2] == [
        ["bank", "48", "50\u202f%", "80\u202f%", "first of 49", "shown"],
        ["mole animal / unit", "48", "50\u202f%", "80\u202f%", "first of 49", "shown"],
    ]
    assert len(rows) == 1 + 5  # the pairs that are apart
    heads = [row.split("\t") for row in second.locator("tbody tr").all_inner_texts()]
    assert [head[:2] for head in heads] == [["L0H2", "bank"], ["L0H1", "mole"], ["L0H2", "mole"]]
    bank = BANK.query("layer == 0 and head == 2").iloc[0]
    assert heads[0][2:] == [
        measured(bank["net"], bank["net_low"], bank["net_high"]),
        percent(bank["general"]),
        measured(bank["specific"], bank["specific_low"], bank["specific_high"]),
        "p = .004",
        "more than for other nouns",
    ]
    panel = page.locator(".panel dl").first.inner_text()
    assert percent(bank["general"]) in panel and "more than for other nouns" in panel


def test_hostile_text_runs_nothing_and_stands_there_as_it_is(open_page, hostile_path):
    opened = open_page(hostile_path)
    page = opened.page
    unfold(page)
    for place in range(min(page.locator(".tabs > label").count(), 6)):
        page.locator(".tabs > label").nth(place).click()
    page.locator("#map .chart .mark-rect path").first.hover()
    assert page.evaluate("window.canary") is None
    assert opened.trouble == [] and opened.requests == [hostile_path.as_uri()]
    shown = page.evaluate("document.querySelector('main').textContent")
    for text in HOSTILE:
        assert text in shown or text.strip() in shown, text
    assert page.locator("main a:text('click'), main img").count() == 0
    assert page.locator("h2 bdi").first.inner_text() == HOSTILE[1]
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


def test_links_lead_to_files_and_only_the_pages_own_scripts_run(open_page, report_page, tmp_path):
    check_policy(open_page, report_page, tmp_path)


@pytest.mark.parametrize(
    ("width", "scheme"), mostly_campaign([(390, "dark"), (1280, "light"), (320, "light")])
)
def test_the_page_asks_for_nothing_fits_and_is_accessible(unfolded, report_page, width, scheme):
    check_look(
        unfolded(width, scheme), report_page, width
    )  # the last tests, because the shared pages are spoilt


def test_the_accessibility_scan_can_fail(open_page, tmp_path):
    (tmp_path / "page.html").write_text(
        '<html lang="en"><title>t</title><button></button><img src="x">'
    )
    page = open_page(tmp_path / "page.html", ready=False).page
    assert {line.split(":")[0] for line in serious_findings(page)} >= {"button-name", "image-alt"}
