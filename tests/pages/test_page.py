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
from example_study import make_study, of_bank
from page_text import facts
from seeds import mostly_campaign

import probe
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
    study = of_bank(make_study(HOSTILE))
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
        hostile_names = {"bank": HOSTILE[1], "river": HOSTILE[2], "money": HOSTILE[5]}
        text_columns = [
            column
            for column in ("word", "noun", "sense", "sense_a", "sense_b", "reads_as")
            if column in frame
        ]
        study.frames[name] = frame.assign(
            **{column: frame[column].replace(hostile_names) for column in text_columns}
        )
    return probe.write(
        study, tmp_path_factory.mktemp("hostile"), command=f"probe report '{HOSTILE[1]}'"
    )


@pytest.fixture(scope="module")
def unfolded(browser, report_page):
    """The page with everything unfolded, opened once per width and scheme. A test that changes it
    changes it back."""
    with sharing(browser) as opened:

        def at(width=1280, scheme="light"):
            view = opened(
                report_page,
                viewport={"width": width, "height": 844},
                color_scheme=scheme,
                has_touch=width == 390,
            )
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


def test_every_chart_is_drawn_with_marks(page):
    boxes = page.locator(".chart").count()
    # 1 + 6 + 1 depth profiles, 3 control strips; for each of the two ranked words a map, the word
    # next to other nouns, shares, a scatter, sets of heads, effects by distance and by part, three
    # traces and a circuit from cue to word; an account of each of 4 + 8
    assert boxes == 8 + 3 + 2 * 11 + 12
    marks = page.eval_on_selector_all(
        ".chart",
        """boxes => boxes.map(box => [...box.querySelectorAll(
        '.mark-rect path, .mark-symbol path, .mark-line path, .mark-area path, .mark-text text, .mark-rule line'
        )].filter(mark => !mark.closest('.role-axis, .role-legend') &&
        mark.getBBox().width + mark.getBBox().height > 0).length)""",
    )
    # A circuit of two edges has two lines, three parts and two names. One picture has a single
    # head, the only one of bank that leads, and six marks.
    assert min(marks) == 6 and sorted(marks)[1] >= 7, marks
    sizes = page.eval_on_selector_all(
        ".chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(sizes) == boxes and min(sizes) > 200


def test_a_map_has_a_cell_for_every_head_and_a_number_in_clear_cells(folded):
    page = folded
    first = page.locator(".map .chart").first
    mlps = FRAMES["mlps"].query("word == 'bank'")
    framed = (BANK["comparison"] == "more").sum() + (mlps["comparison"] == "more").sum()
    assert first.locator(".mark-rect.role-mark path").count() == 16 + len(mlps) + framed
    clear = int(((BANK["net_low"] > 0) | (BANK["net_high"] < 0)).sum())
    assert clear > 1 and first.locator(".mark-text.role-mark text").count() == clear + len(mlps)


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


PHONE = {"width": 390, "height": 844}
LIMITS = {1280: 6000, 390: 9000}  # pixels from top to bottom, before anything is opened


@pytest.fixture(scope="module")
def deep_path(tmp_path_factory):
    """The page of a model of 32 layers; the added layers have small effects."""
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
    page.evaluate("location.hash = 'head-0-L0H2'")
    terms = {"effect", "unambiguous nouns", "more for this word", "added after it", "contrast"}
    check_meanings(page, terms, within="dialog[open] *")
    page.evaluate("location.hash = ''")
    until(page, "!document.querySelector('dialog[open]')")


def test_copying_the_result_is_confirmed(folded):
    page = folded
    page.context.grant_permissions(["clipboard-write"])
    page.locator("details.result > summary").click()
    status = page.locator("[data-copied]")
    page.wait_for_function("() => document.querySelector('[data-copied]').textContent")
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
    cells = page.locator(".map .chart svg").first.bounding_box()
    assert cells["y"] + cells["height"] <= 844
    assert page.locator("details[open]").count() == 0
    linked = page.locator("nav a").evaluate_all("all => all.map(link => link.hash.slice(1))")
    assert linked == ["answer", "heads", "travels", "believe", "done"]
    headings = page.locator("main > section.under > h2").all_inner_texts()
    assert headings == ["How the meaning travels", "Whether to believe it", "How it was done"]
    page.mouse.wheel(0, 5000)
    until(page, "scrollY > 300")
    assert (
        page.locator("nav").evaluate("nav => nav.getBoundingClientRect().top") == 0
    )  # the contents stay in sight


@pytest.mark.parametrize("options", [{}, {"viewport": PHONE}], ids=["wide", "narrow"])
def test_the_contents_fit(shared_page, report_page, options):
    nav = shared_page(report_page, **options).page.locator("nav")
    assert nav.evaluate("nav => nav.scrollWidth <= nav.clientWidth && nav.clientHeight <= 90")


def test_not_decided_occurs_once(report_page):
    text = report_page.read_text(encoding="utf-8").lower()
    assert text.count("the data decide neither") == 1


def test_each_word_has_its_top_heads_and_the_best_sentence(folded):
    page = folded
    bank, _, apple = page.locator(".of-word").all()
    assert bank.locator(".top-heads a").all_inner_texts() == ["L0H2"]
    first = " ".join(bank.locator(".top-heads tr").first.inner_text().split())
    assert first == "L0H2 41 % [36, 46]"
    assert bank.locator(".top-heads circle").count() == 1
    values = bank.locator(".facts dd").all_inner_texts()
    assert values == [facts(FRAMES, "bank")[label] for label in ("resolvers", "gap kept")]
    assert (
        bank.locator(".text .word").inner_text() == "bank"
        and bank.locator(".text .cue").count() == 1
    )
    assert apple.locator(".top-heads, .text").count() == 0
    assert "so no head is ranked" in apple.inner_text()


def test_the_facts_of_all_words_are_in_one_table(page):
    rows = page.locator("[aria-label='Facts of every word'] tbody tr")
    table = {row[0]: row[1:] for row in (text.split("\t") for text in rows.all_inner_texts())}
    bank = facts(FRAMES, "bank")
    assert {label: values[0] for label, values in table.items() if label in bank} == bank
    assert all(len(values) == 3 for values in table.values())


def opened_folds(page):
    """The sections that are open."""
    return page.locator("section:has(> details.fold[open])").evaluate_all(
        "all => all.map(section => section.id)"
    )


def test_a_link_opens_the_fold_or_card_of_its_target(folded):
    page = folded
    page.evaluate("location.hash = 'together'")
    until(page, "document.querySelector('#together > details').open")
    assert opened_folds(page) == ["together"]
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


def test_without_scripts_nothing_is_folded(open_page, report_page):
    nothing_is_folded(open_page(report_page, ready=False, java_script_enabled=False).page)


def test_a_printed_page_has_no_folds_and_every_picture_and_card(shared_page, report_page):
    """Folded pictures are drawn while the page is idle, so that printing never waits for them."""
    page = shared_page(report_page, viewport=PHONE).page
    folded = page.locator("details:not([open]) .chart")
    assert folded.count() == page.locator(".chart").count() - 2  # the two maps
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    page.emulate_media(media="print")
    widths = page.eval_on_selector_all(
        "details .chart svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(widths) == folded.count() and min(widths) > 200
    cards = page.locator("dialog.card:not(#any-head)")
    assert cards.count() == 3 and all(card.is_visible() for card in cards.all())
    assert not page.locator("#any-head").is_visible()
    nothing_is_folded(page)
    page.emulate_media(media="screen")


def nothing_is_folded(page):
    for name in ("parting", "facts", "together", "every", "power", "method", "tables"):
        assert page.locator(f"#{name} p").first.is_visible(), name
    assert page.locator("[aria-label='Columns of the tables'] tbody tr").first.is_visible()


def test_the_keyboard_moves_through_a_circuit_and_each_part_has_a_label(page):
    parts = page.locator("[data-circuit] path[role=graphics-symbol]")
    stops = page.locator("[data-circuit] [tabindex='0']")
    first = page.locator("[data-circuit]").first
    count, label = first.locator("path[role=graphics-symbol]").count(), first.locator(".told")
    assert (
        count >= 3 and stops.count() == page.locator("[data-circuit]").count()
    )  # one stop for every picture
    first.locator("[tabindex='0']").focus()
    names = []
    for _ in range(count):
        names.append(label.inner_text())
        assert names[-1] == page.evaluate("document.activeElement.getAttribute('aria-label')")
        page.keyboard.press("ArrowRight")
    assert len(set(names)) == count and label.inner_text() == names[0] == parts.first.get_attribute(
        "aria-label"
    )
    assert stops.count() == page.locator("[data-circuit]").count()


def test_a_click_on_a_cell_opens_the_card_of_the_head_without_scrolling(folded):
    page = folded
    top_heads = page.locator(".of-word").first.locator(".top-heads a").all_inner_texts()
    other_index = next(index for index, name in enumerate(NAMES) if name not in top_heads)

    def click(index):  # at the middle of the cell, even under another mark
        cell = page.locator(f'.map .chart >> nth=0 >> [role=button][aria-label^="{NAMES[index]},"]')
        cell.scroll_into_view_if_needed()
        box = cell.bounding_box()
        page.mouse.click(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)

    click(NAMES.index(top_heads[0]))
    card = page.locator("dialog[open]")
    assert card.locator("h2").inner_text() == f"{top_heads[0]} on bank"
    assert card.locator(".arcs path").count() >= 2 and card.locator(".dots circle").count() == 1
    assert page.evaluate("scrollY") < 300
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('dialog[open]')")
    click(other_index)
    assert card.get_attribute("id") == "any-head"
    assert card.locator("h2").inner_text() == f"{NAMES[other_index]} on bank"
    row = BANK.iloc[other_index]
    assert card.locator("[data-field=net]").inner_text().startswith(percent(row["net"]))
    assert card.locator("[data-field=auroc]").inner_text() == decimal(row["auroc"])


def test_the_keyboard_moves_from_cell_to_cell_and_enter_opens_the_card(folded):
    page = folded
    box = page.locator(".map .chart").first
    stops = box.locator("[tabindex='0']")
    assert stops.count() == 1
    stops.focus()
    focused = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(focused).startswith("L0H0, ")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("ArrowUp")  # no cell above
    assert page.evaluate(focused).startswith("L0H1, ") and stops.count() == 1
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Enter")
    card = page.locator("dialog[open]")
    assert card.locator("h2").inner_text() == "L0H2 on bank"
    page.keyboard.press("Escape")
    until(page, "!document.querySelector('dialog[open]')")
    assert page.evaluate(focused).startswith("L0H2, ")  # the focus is back on the cell


def test_the_cards_of_the_top_heads_form_a_gallery(folded):
    page = folded
    tiles = page.locator(".gallery .tile").evaluate_all("all => all.map(one => one.hash.slice(1))")
    cards = page.locator("dialog.card:not(#any-head)").evaluate_all("all => all.map(one => one.id)")
    assert tiles == cards == ["head-0-L0H2", "head-1-L0H1", "head-1-L0H2"]


def test_a_card_has_sentences_of_both_meanings_effect_nouns_and_a_reason(folded):
    page = folded
    page.evaluate("location.hash = 'head-0-L0H2'")
    card = page.locator("dialog[open]")
    card.wait_for()
    assert card.locator(".senses .sense").all_inner_texts()[:2] == ["river", "money"]
    rows = FRAMES["readings"].query("word == 'bank' and layer == 0 and head == 2")
    on_cue = rows[(rows["role"] == "cue") & (rows["sense"] == "river")]["attention"].max()
    shares = card.locator(".arcs").first.locator("text.share").all_text_contents()
    assert percent(on_cue) in shares
    assert card.locator(".arcs").first.locator("text.word").text_content() == "bank"
    bank = BANK.query("layer == 0 and head == 2").iloc[0]
    effects = card.locator(".effects").inner_text()
    assert measured(bank["net"], bank["net_low"], bank["net_high"]) in effects
    assert percent(bank["nouns"]) in effects
    assert card.locator(".reason").inner_text().startswith("Reason: ")


def test_a_study_without_significant_effects_has_a_note_and_draws_no_effect(open_page, tmp_path):
    page = open_page(probe.write(make_study(apart=False), tmp_path)).page
    assert "No head is ranked." in page.inner_text("main")
    effects = [
        f"#{section} .chart" for section in ("answer", "shares", "every", "together", "supplies")
    ]
    assert page.locator(", ".join([*effects, "dialog", "svg.mark", ".verdict-name"])).count() == 0
    sections = page.locator("main section[id]").evaluate_all("all => all.map(one => one.id)")
    believe = [
        "believe",
        "facts",
        "nouns",
        "power",
        "controls",
        "otherwise",
        "cannot",
        "certificate",
    ]
    assert sections == ["answer", "travels", "parting", *believe, "done", "method", "tables"]
    until(page, "!document.querySelector('.chart:not(.drawn)')")
    # depth profiles, controls, and the distances of the nouns
    assert page.locator(".chart").count() == page.locator(".chart svg").count() >= 8 + 3


def test_the_verdict_is_in_the_map_the_card_and_the_table(page):
    first = page.locator(".map .chart").first
    marked = BANK[~BANK["verdict"].isin(["separates", "none"])]
    assert first.locator(".mark-symbol.role-mark path").count() == len(marked) >= 2
    assert "separates" in set(BANK["verdict"])
    key = [
        "".join(text.split("\n")).strip()
        for text in page.locator("#answer ul.key li").all_inner_texts()
    ]
    assert key[2:] == [
        "does more for the word than for them",
        "resolver: a mover with a frame; the word itself moves farther than nouns",
        "opposes: moves it the wrong way",
    ]
    scales = page.locator("#answer .legend").all_inner_texts()
    assert len(scales) == 2 and "lower panel and *: read after the last layer" in scales[1]
    card = page.locator("#head-0-L0H2")
    assert card.locator("header .verdict-name").text_content() == "resolver"
    because = card.locator(".because").first.text_content()
    assert because.startswith("resolver: it separates the senses held out with AUROC 0.")
    cells = page.locator("#every table").first.locator("tbody td:nth-child(2)")
    assert [text.strip() for text in cells.all_text_contents()] == BANK.sort_values("rank")[
        "verdict"
    ].tolist()


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
    assert min(widths) > 200


def test_the_page_lists_lone_pairs_excluded_sentences_columns_and_suppliers(page):
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
    assert page.locator("#supplies .supply").count() == 12


def test_together_names_the_smallest_set_and_the_best_random_set(page):
    captions = page.locator("#together figcaption").all_inner_texts()
    row = FRAMES["curves"].query("word == 'bank' and size == smallest").iloc[0]
    faithfulness = measured(*row[["faithfulness", "faithfulness_low", "faithfulness_high"]])
    assert captions[0].startswith(
        f"Smallest set above 90\u202f%: L0H2 and L1H0. Kept (F): {faithfulness}. Lost when these alone"
    )
    assert "Best of 11 random sets of 3 heads: 10" in captions[0]


def test_gate_power_and_controls_are_listed_for_every_word(page):
    table = page.locator("#power [aria-label='Gate and power']")
    rows = table.locator("tbody tr").all_inner_texts()
    assert [row.split("\t") for row in rows] == [
        ["bank", "1 of 1", "p < .001", "p = .31", "240", "192", "14", "64", "p = .002", "0.45"],
        ["mole", "5 of 6", "p ≤ .4", "p ≥ .31", "240", "192", "14", "64", "p ≤ .6", "0.45"],
        ["apple", "0 of 1", "p = .4", "p = .31", "240", "192", "14", "64", "p = .6", "0.45"],
    ]
    strips = page.locator("#controls .chart")
    assert strips.count() == 3
    labels = strips.first.locator(".role-axis-label text").all_text_contents()
    assert [label for label in labels if label[0].isalpha()] == [
        *FRAMES["separation_controls"]["condition"].unique()
    ]


def test_the_word_and_its_heads_are_compared_with_unambiguous_nouns(page):
    first, second = page.locator("#nouns table").all()[:2]
    rows = [row.split("\t") for row in first.locator("tbody tr").all_inner_texts()]
    assert rows[:2] == [
        ["bank", "48", "50\u202f%", "80\u202f%", "first of 49", "yes"],
        ["mole animal / unit", "48", "50\u202f%", "80\u202f%", "first of 49", "yes"],
    ]
    assert len(rows) == 1 + 5  # the pairs with a gap
    rule = "The word passes the ambiguity gate if it is first: no noun changes as far."
    assert rule in page.locator("#nouns").inner_text()
    heads = [row.split("\t") for row in second.locator("tbody tr").all_inner_texts()]
    assert [head[:2] for head in heads] == [["L0H2", "bank"], ["L0H1", "mole"], ["L0H2", "mole"]]
    bank = BANK.query("layer == 0 and head == 2").iloc[0]
    assert heads[0][2:] == [
        measured(bank["net"], bank["net_low"], bank["net_high"]),
        percent(bank["nouns"]),
        measured(bank["more"], bank["more_low"], bank["more_high"]),
        "p = .004",
        "more than for other nouns",
    ]


def test_hostile_text_is_displayed_and_never_executed(open_page, hostile_path):
    opened = open_page(hostile_path)
    page = opened.page
    unfold(page)
    for card in page.locator("dialog.card:not(#any-head)").all()[:6]:
        page.evaluate("id => (location.hash = id)", card.get_attribute("id"))
        card.locator("summary").last.wait_for()
        page.keyboard.press("Escape")
        until(page, "!document.querySelector('dialog[open]')")
    page.locator(".map .chart .mark-rect path").first.hover()
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
