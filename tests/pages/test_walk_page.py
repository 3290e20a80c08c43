"""The walk's page in headless Chromium: it draws, asks for nothing, fits, and every step follows a
head and a token."""

import re

import pytest
from browser import (
    TOUCH,
    cells,
    check_look,
    check_meanings,
    check_policy,
    check_saved,
    dots,
    number,
    settled,
    sharing,
    unfold,
    until,
)
from families import family_model
from page_text import one_line
from seeds import mostly_campaign

import probe
from probe.pages import folder
from probe.pages import walk as walk_page
from probe.walkthrough import scene

TEXT = "The mole dug a tunnel under the river bank after the flood."
LONG = (
    TEXT
    + " She photographed the muddy bank, and he sold its old tree for the interest on every loan."
)
HOSTILE = "</script><script>window.canary=1</script>"
BESIDE = "<img src=x onerror=canary=1> {{ 7*7 }}"
MORE = "${7*7} & &lt; \u202eb\u202c"
SECTIONS = [
    *(
        "tokens",
        "embedding",
        "layernorm",
        "qkv",
        "scores",
        "scaling",
        "mask",
        "softmax",
        "values",
        "sum",
    ),
    *("heads", "layers", "parameters", "certificate"),
]


@pytest.fixture(scope="module")
def walked(model):
    return probe.walk(model, TEXT, at="bank", head=(1, 2))


@pytest.fixture(scope="module")
def page_path(walked, tmp_path_factory):
    return probe.write(walked, tmp_path_factory.mktemp("walk"), command="probe walk")


@pytest.fixture(scope="module")
def looks(browser):
    """`(path, width, scheme)`: a page with everything unfolded and every grid turned once; opened
    once per look."""
    with sharing(browser) as opened:

        def at(path, width, scheme):
            found = opened(path, color_scheme=scheme, viewport={"width": width, "height": 844})
            unfold(found.page)
            for way in ("columns", "rows"):
                found.page.locator(f'[name="queries"][value="{way}"]').check(force=True)
                settled(found.page)
            return found

        yield at


@pytest.fixture
def page(shared_page, page_path, walked):
    """One page for all tests that follow heads and tokens, back where it opened."""
    opened = shared_page(page_path)
    opened.page.emulate_media(media="screen", color_scheme="light")
    unfold(opened.page)
    opened.page.locator('[name="queries"][value="rows"]').check(force=True)
    opened.page.evaluate(f"location.hash = '#L1H2@{walked.at}'")
    settled(opened.page)
    yield opened.page
    assert opened.trouble == []


def test_the_steps_stand_in_the_order_of_the_computation_and_ask_questions(page):
    assert page.eval_on_selector_all("main section[id]", "all => all.map(part => part.id)") == [
        *SECTIONS,
        "tables",
    ]
    titles = page.locator("main section[id] > h2").all_inner_texts()
    assert all(title.strip().endswith("?") for title in titles[:-1]), titles
    shown = page.locator(".formula code").all_inner_texts()
    assert {text.split("(")[0] for text in shown} >= {
        *(
            "attention.layer_norm",
            "attention.project",
            "attention.scores",
            "attention.mask",
            "attention.softmax",
        ),
        *(
            "attention.mix",
            "attention.write",
            "attention.write_by_source",
            "forward.merge_heads",
            "forward.embed",
        ),
    }


def test_the_division_is_shown_where_it_is_asked_about_and_not_before(page):
    of_step = {
        step: page.locator(f"#{step} .formula code").all_inner_texts()
        for step in ("scores", "scaling")
    }
    assert of_step == {"scores": ["attention.matches(q, k)"], "scaling": ["attention.scores(q, k)"]}


def test_where_a_layer_divides_by_its_number_the_page_does_as_the_layer_is_followed(
    open_page, tmp_path
):
    walked = probe.walk(family_model("GPT-2 divided by layer"), "the bank", head=(0, 1))
    opened = open_page(probe.write(walked, tmp_path))
    unfold(opened.page)
    for layer in (0, 1):
        opened.page.evaluate(f"location.hash = '#L{layer}H1@{walked.at}'")
        settled(opened.page)
        title = f"√7 ÷ {layer + 1}"
        opened.page.locator('[name="stage"]').nth(1).check(force=True)
        assert title in " ".join(opened.page.locator("#softmax th").all_inner_texts())
        assert f"Q·K ÷ {title}" in opened.page.locator("#scaling table").first.inner_text()


def test_the_last_token_has_nothing_after_it_and_the_mask_says_so(page, walked):
    last = len(walked.frames["tokens"]) - 1
    page.evaluate(f"location.hash = '#L1H2@{last}'")
    settled(page)
    said = page.locator("#mask .says").inner_text()
    assert "nothing comes after it" in said and "click an earlier token" in said
    page.evaluate(f"location.hash = '#L1H2@{last - 1}'")
    settled(page)
    assert "to tokens that come after it" in page.locator("#mask .says").inner_text()


def test_what_rounds_to_no_per_cent_is_written_as_none(page):
    shown = page.evaluate("[-0.004, 0, 0.004, -0.006].map(percent)")
    assert shown == [f"{text}\u202f%" for text in ("0", "0", "0", "−1")]


def test_every_picture_is_drawn_and_has_a_text(page, walked):
    n = len(walked.frames["tokens"])
    boxes = page.locator(".chart.drawn")
    assert (
        boxes.count() == 10 and page.locator(".chart").count() == 13
    )  # three grids wait to be turned
    widths = page.eval_on_selector_all(
        ".chart.drawn svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(widths) == 10 and min(widths) > 200
    texts = page.eval_on_selector_all(
        ".chart", "all => all.map(box => box.getAttribute('aria-label'))"
    )
    assert all(len(text) > 30 for text in texts)
    assert len(dots(page, "dot", "rows")) == n * n
    assert len(dots(page, "pattern", "rows")) == n * (n + 1) // 2
    assert page.locator("[data-heads] button").count() == 4
    assert page.locator("[data-map] input").count() == 8


def test_tables_show_the_numbers_of_the_frames_rounded_and_whole_on_hover(page, walked):
    values = walked.frames["values"]
    rows = cells(page, "values")
    assert [row[0][0] for row in rows] == [*values["label"], "sum"]
    assert [number(row[1][1]) for row in rows[:-1]] == pytest.approx(
        values["weight"].tolist(), rel=1e-5
    )
    assert [row[1][0] for row in rows[:-1]] == [f"{weight:.3f}" for weight in values["weight"]]
    assert rows[-1][1][0] == "1.000"
    sums = cells(page, "sums")
    last, hooked = ([number(cell[1]) for cell in row[1:5]] for row in sums[-2:])
    assert last == pytest.approx(hooked, rel=1e-3, abs=1e-5)


def test_the_row_is_played_from_score_to_weight(page, walked):
    """Each step has its numbers; a masked score is minus infinity; the weights sum to 1."""
    mine = walked.frames["attention"].query(f"query_pos == {walked.at}")
    names = page.locator("[data-stages] label").all_inner_texts()
    assert names == ["Q·K", "÷ √d", "mask", "softmax"]
    wanted = [mine["dot"], mine["score"], mine["score"].where(mine["allowed"]), mine["pattern"]]
    for step, values in enumerate(wanted):
        page.locator('[name="stage"]').nth(step).check(force=True)
        shown = [cell[2] for cell in cells(page, "row")[: len(mine)]]
        allowed = values.notna().tolist()
        assert [text != "−∞" for text, _ in shown] == allowed
        told = [number(title) for (_, title), open in zip(shown, allowed, strict=True) if open]
        assert told == pytest.approx(values.dropna().tolist(), rel=1e-4, abs=1e-7)
    assert cells(page, "row")[-1][2][0] == "100\u202f%"
    page.locator("[data-play-row]").click()
    assert page.locator('[name="stage"]').first.is_checked()
    until(page, "document.querySelectorAll('[name=\"stage\"]')[3].checked")


def test_a_click_on_a_head_is_followed_by_every_step(page, walked, model):
    before = (
        cells(page, "values"),
        dots(page, "pattern", "rows"),
        page.inner_text('[data-slot="delta-length"]'),
    )
    page.locator('[data-heads] [data-head="0"]').click()
    settled(page)
    other = probe.walk(model, TEXT, at="bank", head=(1, 0))
    weights = [number(row[1][1]) for row in cells(page, "values")[:-1]]
    assert weights == pytest.approx(other.frames["values"]["weight"].tolist(), rel=1e-5)
    assert dots(page, "pattern", "rows") != before[1]
    assert page.inner_text('[data-slot="delta-length"]') != before[2]
    assert page.inner_text('[data-slot="following"]').startswith("L1H0 at ")
    assert page.locator('.strip [name="head"]').input_value() == "0"
    assert page.locator('[data-map] [value="1.0"]').is_checked()
    assert (
        page.locator('[data-heads] [aria-pressed="true"]').all_inner_texts()[0].startswith("L1H0")
    )
    assert page.locator('[data-kind="sources"], [data-kind="values"]').first.count() == 1
    page.locator('[data-heads] [data-head="2"]').click()
    settled(page)
    assert cells(page, "values") == before[0] and dots(page, "pattern", "rows") == before[1]


def test_heads_of_all_layers_and_tokens_are_reached_by_keyboard(page, walked):
    page.locator('[data-map] [value="1.2"]').focus()
    page.keyboard.press("ArrowRight")
    assert page.inner_text('[data-slot="following"]').startswith("L1H3 at ")
    page.keyboard.press("ArrowRight")
    assert page.inner_text('[data-slot="following"]').startswith("L0H0 at ")
    assert page.locator("[data-heads] button").first.inner_text().startswith("L0H0")
    chosen = page.locator('.strip [name="at"]:checked')
    chosen.focus()
    page.keyboard.press("ArrowLeft")
    piece = walked.frames["tokens"]["piece"][walked.at - 1].strip()
    assert page.inner_text('[data-slot="following"]') == f"L0H0 at “{piece}”, token {walked.at - 1}"
    assert page.inner_text("h1") == page.title() == f"What happens to “{piece}”?"
    assert len(cells(page, "values")) == walked.at + 1
    assert (
        page.locator("#values [data-slot='token'], #qkv h2 [data-slot='token']").first.inner_text()
        == f"“{piece}”"
    )
    page.locator('.strip [name="layer"]').select_option("1")
    assert page.inner_text('[data-slot="following"]') == f"L1H0 at “{piece}”, token {walked.at - 1}"


def test_a_token_is_followed_from_wherever_it_is_clicked_and_the_address_holds_it(page, walked):
    opened = page.inner_text("h1")
    page.locator(".still [data-pos='4']").click()
    assert page.url.endswith("#L1H2@4") and page.inner_text("h1") == "What happens to “a”?"
    page.locator('[data-queries="rows"] [data-kind="pattern"] .mark-rect.role-mark path').nth(
        0
    ).click(force=True)
    settled(page)
    assert page.url.endswith("@0") and page.inner_text("h1") == "What happens to “<|endoftext|>”?"
    page.evaluate(f"location.hash = '#L0H3@{walked.at}'")
    settled(page)
    assert page.inner_text('[data-slot="following"]') == f"L0H3 at “bank”, token {walked.at}"
    assert page.inner_text("h1") == opened
    page.evaluate("location.hash = '#L9H9@1'")
    assert page.inner_text('[data-slot="following"]').startswith("L0H3 at ")


def test_a_guessed_word_and_a_model_of_a_grammar_are_said_at_the_top(model, tiny):
    def header(found):
        page = walk_page.render(found, manifest=folder.made_by(found, ""))
        return one_line(re.search("<header>(.*?)</header>", page, re.DOTALL)[1])

    pair = ("A light wug", "The light wug"), {"causal_trace": False}
    guessed = header(probe.walk(model, pair[0][0], against=pair[0][1], **pair[1]))
    assert (
        "“wug” was chosen only because it is the last word that both sentences have. "
        "--word light follows another."
    ) in guessed
    grammar = "tiny-senses learned from a grammar: it shows how the method works, not how English is read."
    assert "learned from a grammar" not in guessed
    known = header(probe.walk(tiny, "The bank and the river bank", head=(0, 0)))
    assert grammar in known and "last word" not in known
    assert "“bank” occurs more than once. The first occurrence is followed." in known


def test_one_vector_is_called_the_value_and_one_number_the_push(page, walked):
    assert page.locator('[data-slot="mix"]').inner_text().endswith(") W_O")
    heads = page.locator('[data-rows="values"]').locator("xpath=../thead").locator("th")
    assert "V W_O 0" in heads.all_inner_texts()
    pushes = page.locator('[data-rows="heads"]').locator("xpath=../thead").locator("th")
    assert "pushes" in pushes.all_inner_texts() and "moves" not in pushes.all_inner_texts()
    caption = page.locator("#tokens details .caption").inner_text()
    assert "Click any token to follow it." in caption


def test_the_rule_for_the_head_depends_on_the_question_and_the_page_says_so(model, walked):
    """If a head was asked for, no rule is needed."""

    def said(found):
        page = walk_page.render(found, manifest=folder.made_by(found, ""))
        note = re.search(
            r'<section[^>]*aria-label="What is followed">(.*?)</section>', page, re.DOTALL
        )
        return one_line(note[1])

    def keeps(found):
        return f"and may follow another head; --layer {found.layer} --head {found.head} keeps this one."

    alone = probe.walk(model, "The river bank")
    assert f"A walk with --against goes by swaps {keeps(alone)}" in said(alone)
    pair = probe.walk(model, "The river bank", against="The money bank", causal_trace=False)
    assert f"A walk without --against goes by this sentence alone {keeps(pair)}" in said(pair)
    assert "may follow another head" not in said(walked)
    assert "why L1H2 it was asked for" in said(walked).replace("H2it", "H2 it")


def test_the_map_has_numbers_on_both_sides_and_a_scale(page):
    sides = page.locator("[data-map] .map-row").all_inner_texts()
    assert [text.split()[0] for text in sides] == ["H0", "L0", "L1", "H0"]
    assert [text.split()[-1] for text in sides] == ["H3", "L0", "L1", "H3"]
    steps = page.locator(".map-scale .cell").all_inner_texts()
    assert len(steps) == 5 and steps[0].startswith("0")


def test_where_the_word_is_one_vector_in_both_sentences_there_is_no_map_of_swaps(
    model, open_page, tmp_path
):
    walked = probe.walk(model, "The bank by the river", at="bank", against="The bank by the money")
    page = open_page(probe.write(walked, tmp_path)).page
    assert page.locator('[data-map="swap"]').count() == 0
    said = page.inner_text('[data-slot="contrast"]')
    assert said == "“bank” is the same vector in both sentences, after every layer."
    assert "of the way" not in page.locator("#contrast").inner_text()


def test_no_line_breaks_before_a_full_stop_or_inside_a_token(looks, page_path):
    page = looks(page_path, 390, "dark").page
    places = (
        "all => all.map(group => [...group.children].map(chip => chip.getBoundingClientRect().top))"
    )
    tops = page.eval_on_selector_all("#tokens .together", places)
    assert [len(group) for group in tops][-1] == 2  # flood and its full stop
    assert all(len(set(group)) == 1 for group in tops) and len({group[0] for group in tops}) > 1


def test_the_switch_transposes_every_grid(page):
    kinds = [("dot", 0), ("pattern", 0), ("open", 0)]
    rows = {key: dots(page, key[0], "rows", key[1]) for key in kinds}
    page.locator('[name="queries"][value="columns"]').check(force=True)
    page.wait_for_function(
        "document.querySelectorAll('[data-queries=columns] .chart.drawn').length === 3"
    )
    settled(page)
    assert page.locator('[data-queries="rows"]').first.is_hidden()
    for key in kinds:
        columns = dots(page, key[0], "columns", key[1])
        assert set(columns) == {(y, x) for x, y in rows[key]}
        assert all(abs(columns[y, x] - width) < 0.6 for (x, y), width in rows[key].items())
    page.locator('[data-heads] [data-head="0"]').click()
    page.locator('[name="queries"][value="rows"]').check(force=True)
    settled(page)
    assert dots(page, "pattern", "rows") != rows["pattern", 0]  # what was hidden has followed, too


def test_the_strip_stays_in_sight_and_is_not_printed_over_the_text(page):
    page.locator("#layers").scroll_into_view_if_needed()
    page.evaluate("window.scrollTo(0, document.querySelector('#layers').offsetTop)")
    assert page.locator(".strip").bounding_box()["y"] == pytest.approx(0, abs=1)
    page.emulate_media(media="print")
    assert page.locator(".strip").evaluate("strip => getComputedStyle(strip).position") == "static"


def test_a_long_text_is_usable(open_page, model, tmp_path):
    long = probe.walk(model, LONG, at="loan")
    opened = open_page(probe.write(long, tmp_path))
    page = opened.page
    assert page.locator('.strip [name="at"]').count() == 24
    assert page.locator(".still .chip").count() == len(long.frames["tokens"])
    rows = cells(page, "values")
    assert rows[-2][0][0] == f"{long.block['n_undrawn']} other tokens" and rows[-1][1][0] == "1.000"
    shares = [number(row[-1][1]) for row in rows[:-1]]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert "the pictures show the 24" in page.inner_text(".note")
    assert opened.trouble == []


def test_heads_that_are_not_carried_cannot_be_chosen(open_page, model, tmp_path, monkeypatch):
    monkeypatch.setattr(scene, "MAX_CELLS", 10)
    page = open_page(probe.write(probe.walk(model, TEXT, head=(1, 0)), tmp_path)).page
    assert page.locator('.strip [name="layer"] option').all_inner_texts() == ["1"]
    assert page.locator("[data-map] input:disabled").count() == 4
    assert "carries the heads of layer 1 only" in page.inner_text(".note")


def test_hostile_text_runs_nothing_and_stands_there_as_it_is(open_page, model, tmp_path):
    walked = probe.walk(model, HOSTILE, at="canary", beside=BESIDE)
    opened = open_page(probe.write(walked, tmp_path, command=f"probe walk '{MORE}'"))
    page = opened.page
    page.locator('.strip [name="at"]').nth(3).check(force=True)
    assert page.evaluate("window.canary") is None
    assert opened.trouble == [] and len(opened.requests) == 1
    shown = page.evaluate("document.body.textContent")
    assert HOSTILE in page.evaluate("document.querySelector('header').textContent")
    assert BESIDE in shown and MORE in shown
    assert page.locator("main img").count() == 0


def test_without_scripts_the_text_stays_and_says_where_the_numbers_are(open_page, page_path):
    page = open_page(page_path, ready=False, java_script_enabled=False).page
    assert page.locator("main section[id]").count() == len(SECTIONS) + 1
    assert "exactly 0" in page.inner_text("#embedding")
    assert "the tables beside it hold the same numbers" in page.inner_text("body")


def test_every_picture_can_be_saved_and_says_which_head_it_is_of(page, tmp_path):
    page.emulate_media(color_scheme="dark")
    assert page.locator(".saving:visible").count() == 10
    page.locator('[data-heads] [data-head="0"]').click()
    settled(page)
    box = page.locator('[data-queries="rows"] [data-kind="pattern"]').last
    assert ", now of L1H0 at “bank”; the numbers are in the tables" in box.locator(
        ".chart"
    ).get_attribute("aria-label")
    marks = check_saved(page, box.locator(".saving button"), tmp_path, "cells-L1H0")
    assert marks >= len(dots(page, "pattern", "rows"))


def test_controls_have_names(page):
    unnamed = page.eval_on_selector_all(
        "main input, .strip input, .strip select, button",
        "all => all.filter(item => !(item.getAttribute('aria-label') || item.textContent.trim() || "
        "item.closest('label')?.textContent.trim())).length",
    )
    assert unnamed == 0


def test_terms_are_explained_to_a_finger_and_to_the_keyboard(open_page, page_path):
    terms = {"ΔE", "heads", "residual stream", "LayerNorm", "logit lens", "softmax", "MLP"}
    terms |= {"Cosine"}
    check_meanings(open_page(page_path, **TOUCH).page, terms)


def test_attention_is_drawn_as_lines_when_the_reader_likes_and_every_line_can_be_followed(page):
    page.locator(".switch label", has_text="lines").click()
    boxes = page.locator("[data-lines]")
    assert boxes.count() == 3 and page.locator(".square[data-queries]:visible").count() == 0
    bundle = page.locator("#softmax [data-lines]")
    weights = page.evaluate("() => keys.map((key) => get('pattern', headIndex(), state.at, key))")
    drawn = bundle.locator("line").evaluate_all(
        "all => all.map(line => line.querySelector('title').textContent)"
    )
    chosen = bundle.locator("button.followed").inner_text()
    mine = [text for text in drawn if text.startswith(f"{chosen} → ")]
    assert len(mine) == sum(weight >= 0.005 for weight in weights) > 0
    bundle.locator("button").first.focus()
    page.keyboard.press("Enter")
    settled(page)
    first = bundle.locator("button").first
    assert first.get_attribute("aria-pressed") == "true" and page.url.endswith("@0")
    assert first.evaluate("button => button === document.activeElement")
    line = bundle.locator("line").first
    asked = line.locator("title").text_content().split(" → ")[0]
    line.dispatch_event("click")
    settled(page)
    assert bundle.locator("button.followed").inner_text() == asked


def test_a_cell_that_is_clicked_splits_its_score_and_the_bars_sum_to_it(page, walked):
    cells_of = '[data-queries="rows"] [data-kind="pattern"] .mark-rect.role-mark path'
    page.locator(f"#softmax {cells_of}").nth(0).click(force=True)
    settled(page)
    assert page.evaluate("[state.at, state.key]") == [0, 0]
    page.evaluate(f"location.hash = '#L1H2@{walked.at}'")
    settled(page)
    page.locator('[name="scored"]').select_option("2")
    rows = page.locator('[data-rows="score"] tr')
    shown = [number(text) for text in rows.locator("td.n").all_inner_texts()]
    score = walked.block["scores"]["rows"][walked.at]["scores"][2]["score"]
    assert shown[-1] == round(score, 2)
    assert sum(shown[:-1]) == pytest.approx(shown[-1], abs=0.005 * len(shown))
    assert rows.locator("rect").count() == rows.count() - 1
    page.evaluate(f"location.hash = '#L0H3@{walked.at}'")
    settled(page)
    assert page.locator("[data-score-shown]").is_hidden()
    assert "carries the scores of L1H2" in page.inner_text("[data-score-missing]")


def test_arrow_keys_in_a_grid_follow_the_next_query(page):
    before = page.evaluate("state.at")
    page.locator("#softmax .square[data-queries=rows]").focus()
    page.keyboard.press("ArrowUp")
    settled(page)
    assert page.evaluate("state.at") == before - 1 and page.url.endswith(f"@{before - 1}")


def test_links_lead_to_files_and_only_the_pages_own_scripts_run(open_page, page_path, tmp_path):
    check_policy(open_page, page_path, tmp_path)


@pytest.mark.parametrize(
    ("width", "scheme"), mostly_campaign([(390, "dark"), (1280, "light"), (320, "light")])
)
def test_the_page_asks_for_nothing_fits_and_is_accessible(looks, page_path, width, scheme):
    check_look(
        looks(page_path, width, scheme), page_path, width
    )  # last, because the shared pages are spoilt


@pytest.mark.campaign
@pytest.mark.parametrize(("width", "scheme"), mostly_campaign([(390, "dark"), (320, "light")]))
def test_the_page_of_two_hostile_texts_runs_nothing_fits_and_is_accessible(
    looks, tmp_path, width, scheme
):
    walked = probe.walk(
        family_model("bart"), HOSTILE[:17], "the river <img src=x onerror=canary=1>", at="onerror"
    )
    path = probe.write(walked, tmp_path, command="probe walk")
    opened = looks(path, width, scheme)
    assert opened.page.evaluate("window.canary") is None
    assert (
        HOSTILE[:17] in opened.page.inner_text("header")
        and opened.page.locator("main img").count() == 0
    )
    check_look(opened, path, width)
