"""The walk's page in headless Chromium: it draws, sends no requests, fits, and every step follows a
head and a token."""

import pytest
from browser import (
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
from inside import scene
from seeds import mostly_campaign

import probe

TEXT = "The mole dug a tunnel under the river bank after the flood."
LONG = (
    TEXT
    + " She photographed the muddy bank, and he sold its old tree for the interest on every loan."
)
HOSTILE = "</script><script>window.canary=1</script>"
BESIDE = "<img src=x onerror=canary=1> {{ 7*7 }}"
MORE = "${7*7} & &lt; \u202eb\u202c"
SECTIONS = [
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
    "heads",
    "layers",
    "parameters",
    "certificate",
]


@pytest.fixture(scope="module")
def walked(model):
    return probe.walk(model, TEXT, at="bank", head=(1, 2))


@pytest.fixture(scope="module")
def page_path(walked, tmp_path_factory):
    return probe.write(walked, tmp_path_factory.mktemp("walk"), command="probe walk")


@pytest.fixture(scope="module")
def looks(browser):
    """`(path, width, scheme)`: a page with everything unfolded and every grid transposed once; opened
    once per look."""
    with sharing(browser) as opened:

        def at(path, width, scheme):
            view = opened(
                path,
                color_scheme=scheme,
                viewport={"width": width, "height": 844},
                has_touch=width == 390,
            )
            unfold(view.page)
            for way in ("columns", "rows"):
                view.page.locator(f'[name="queries"][value="{way}"]').check(force=True)
                settled(view.page)
            return view

        yield at


@pytest.fixture
def page(shared_page, page_path, walked):
    """One page for all tests that follow heads and tokens, reset to its first view."""
    opened = shared_page(page_path)
    opened.page.emulate_media(media="screen", color_scheme="light")
    unfold(opened.page)
    opened.page.locator('[name="queries"][value="rows"]').check(force=True)
    opened.page.evaluate(f"location.hash = '#L1H2@{walked.at}'")
    settled(opened.page)
    yield opened.page
    assert opened.trouble == []


def test_the_steps_are_in_the_order_of_the_computation_with_questions_as_titles(page):
    assert page.eval_on_selector_all("main section[id]", "all => all.map(part => part.id)") == [
        *SECTIONS,
        "tables",
    ]
    titles = page.locator("main section[id] > h2").all_inner_texts()
    assert all(title.strip().endswith("?") for title in titles[:-1]), titles
    formulas = {text.split("(")[0] for text in page.locator(".formula code").all_inner_texts()}
    of_attention = ("layer_norm", "project", "scores", "mask", "softmax", "mix", "write")
    assert {f"attention.{name}" for name in of_attention} <= formulas
    assert {"attention.write_by_source", "blocks.merge_heads", "forward.embed"} <= formulas


@pytest.mark.campaign
def test_the_page_divides_by_the_number_of_the_layer_like_the_model(open_page, tmp_path):
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


def test_the_mask_of_the_last_token_has_a_note(page, walked):
    last = len(walked.frames["tokens"]) - 1
    page.evaluate(f"location.hash = '#L1H2@{last}'")
    settled(page)
    assert page.locator("#mask .says").inner_text().endswith("is the last token.")
    page.evaluate(f"location.hash = '#L1H2@{last - 1}'")
    settled(page)
    assert "to tokens that come after it" in page.locator("#mask .says").inner_text()


def test_a_mask_that_takes_nothing_from_a_token_is_told_by_the_one_it_takes_most_from(page):
    page.evaluate("location.hash = '#L0H2@12'")
    settled(page)
    later = page.evaluate("queries.map(query => get('later', headIndex(), query))")
    most = max(range(len(later)), key=later.__getitem__)
    assert later[12] < 0.005
    assert (
        page.locator("#mask .says")
        .inner_text()
        .endswith(
            "Without the mask, “flood” would give less than half a percent of its attention to tokens "
            f"that come after it; “{page.evaluate('tokens')[most]['piece'].strip()}” would give the "
            f"most: {100 * later[most]:.0f}\u202f%."
        )
    )


def test_the_key_that_is_looked_at_most_has_its_name_in_the_plane(page):
    page.evaluate("location.hash = '#L0H3@9'")
    settled(page)
    names = page.locator('[data-kind="query key"] .mark-text.role-mark text').all_text_contents()
    assert {"9·bank", "7·the"} <= set(names)  # it gives 81 % of its attention to the second


def test_a_share_that_rounds_to_zero_has_no_sign(page):
    texts = page.evaluate("[-0.004, 0, 0.004, -0.006].map(percent)")
    assert texts == [f"{text}\u202f%" for text in ("0", "0", "0", "−1")]


def test_every_picture_is_drawn_and_has_a_text(page, walked):
    n = len(walked.frames["tokens"])
    boxes = page.locator(".chart.drawn")
    assert (
        boxes.count() == 9 and page.locator(".chart").count() == 11
    )  # two transposed grids are not drawn yet
    widths = page.eval_on_selector_all(
        ".chart.drawn svg", "all => all.map(svg => svg.getBoundingClientRect().width)"
    )
    assert len(widths) == 9 and min(widths) > 200
    texts = page.eval_on_selector_all(
        ".chart", "all => all.map(box => box.getAttribute('aria-label'))"
    )
    assert all(len(text) > 30 for text in texts)
    assert len(dots(page, "open", "rows")) == n * n
    assert len(dots(page, "stage", "rows")) == n * (n + 1) // 2
    assert page.locator("[data-heads] button").count() == 4
    assert page.locator("[data-map] input").count() == 8


def test_tables_show_the_numbers_of_the_frames_rounded_and_in_full_on_hover(page, walked):
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


def test_attention_is_played_from_score_to_weight(page, walked):
    """Each step has its numbers in the row and its dots in the grid; a masked score is minus
    infinity and has no dot; the weights sum to 1."""
    n = len(walked.frames["tokens"])
    mine = walked.frames["attention"].query(f"query_pos == {walked.at}")
    names = page.locator("[data-stages] label").all_inner_texts()
    assert names == ["Q·K", "÷ √d", "mask", "softmax"]
    expected = [mine["dot"], mine["score"], mine["score"].where(mine["allowed"]), mine["pattern"]]
    for step, values in enumerate(expected):
        page.locator("h2 label").nth(step).click()
        settled(page)
        assert page.locator('[name="stage"]').nth(step).is_checked()
        is_masked = names[step] in ("mask", "softmax")
        assert len(dots(page, "stage", "rows")) == (n * (n + 1) // 2 if is_masked else n * n)
        texts = [cell[2] for cell in cells(page, "row")[: len(mine)]]
        allowed = values.notna().tolist()
        assert [text != "−∞" for text, _ in texts] == allowed
        numbers = [number(title) for (_, title), open in zip(texts, allowed, strict=True) if open]
        assert numbers == pytest.approx(values.dropna().tolist(), rel=1e-4, abs=1e-7)
    assert cells(page, "row")[-1][2][0] == "100\u202f%"
    page.locator("[data-play-row]").click()
    assert page.locator('[name="stage"]').first.is_checked()
    until(page, "document.querySelectorAll('[name=\"stage\"]')[3].checked")


def test_a_click_on_a_head_is_followed_by_every_step(page, walked, model):
    before = (
        cells(page, "values"),
        dots(page, "stage", "rows"),
        page.inner_text('[data-slot="delta-length"]'),
    )
    page.locator('[data-heads] [data-head="0"]').click()
    settled(page)
    other_walk = probe.walk(model, TEXT, at="bank", head=(1, 0))
    weights = [number(row[1][1]) for row in cells(page, "values")[:-1]]
    assert weights == pytest.approx(other_walk.frames["values"]["weight"].tolist(), rel=1e-5)
    assert dots(page, "stage", "rows") != before[1]
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
    assert cells(page, "values") == before[0] and dots(page, "stage", "rows") == before[1]


def test_the_keyboard_reaches_heads_of_all_layers_and_tokens(page, walked):
    page.locator('[data-map] [value="1.2"]').focus()
    page.keyboard.press("ArrowRight")
    assert page.inner_text('[data-slot="following"]').startswith("L1H3 at ")
    page.keyboard.press("ArrowRight")
    assert page.inner_text('[data-slot="following"]').startswith("L0H0 at ")
    assert page.locator("[data-heads] button").first.inner_text().startswith("L0H0")
    radio = page.locator('.strip [name="at"]:checked')
    radio.focus()
    page.keyboard.press("ArrowLeft")
    token = walked.frames["tokens"]["piece"][walked.at - 1].strip()
    assert page.inner_text('[data-slot="following"]') == f"L0H0 at “{token}”, token {walked.at - 1}"
    assert page.inner_text("h1") == page.title() == f"What happens to “{token}”?"
    assert len(cells(page, "values")) == walked.at + 1
    assert (
        page.locator("#values [data-slot='token'], #qkv h2 [data-slot='token']").first.inner_text()
        == f"“{token}”"
    )
    page.locator('.strip [name="layer"]').select_option("1")
    assert page.inner_text('[data-slot="following"]') == f"L1H0 at “{token}”, token {walked.at - 1}"


def test_a_token_is_followed_wherever_it_is_clicked_and_the_address_contains_it(page, walked):
    opened = page.inner_text("h1")
    page.locator(".strip .chip").nth(4).click()
    assert page.url.endswith("#L1H2@4") and page.inner_text("h1") == "What happens to “a”?"
    page.locator('[data-queries="rows"] [data-kind="stage"] .mark-rect.role-mark path').nth(
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


def test_a_large_map_has_names_on_both_sides_and_a_scale_instead_of_numbers(open_page, page_path):
    page = open_page(page_path).page
    sides, n_numbers, steps = page.evaluate(
        """() => {
          Object.assign(sizes, { layers: 9, heads: 8 });
          const flat = Float32Array.from({ length: 72 * tokens.length }, (_, index) => index / 1000);
          arrays.moved = { shape: [9, 8, tokens.length], shared_by: 1, flat };
          const map = { box: document.createElement("div"), name: "moved", cells: new Map() };
          makeMap(map);
          drawMap(map);
          const texts = (found) => [...found].map((one) => one.textContent);
          const lines = [...map.box.querySelectorAll(".map-row")];
          return [
            lines.map((line) => [line.firstChild.textContent, line.lastChild.textContent]),
            texts(map.box.querySelectorAll(".map-row .cell")).filter((text) => text).length,
            texts(map.box.querySelectorAll(".map-scale .cell")),
          ];
        }"""
    )
    assert sides == [["", ""], *([f"L{layer}"] * 2 for layer in range(9)), ["", ""]]
    assert n_numbers == 0
    assert len(steps) == 5 and steps[0].startswith("0")


def test_the_tokens_of_a_short_text_are_listed_once_with_their_numbers(page, walked):
    numbers = page.locator(".strip .chip small").all_inner_texts()
    assert numbers == [str(number) for number in walked.frames["tokens"]["id"]]
    assert page.locator("#tokens .chip").count() == 0
    assert f"the {len(numbers)} tokens at the top" in page.inner_text("#tokens .says")


def test_the_switch_transposes_every_grid(page):
    rows = {kind: dots(page, kind, "rows") for kind in ("stage", "open")}
    page.locator('[name="queries"][value="columns"]').check(force=True)
    until(page, "document.querySelectorAll('[data-queries=columns] .chart.drawn').length === 2")
    settled(page)
    assert page.locator('[data-queries="rows"]').first.is_hidden()
    for kind, by_row in rows.items():
        columns = dots(page, kind, "columns")
        assert set(columns) == {(y, x) for x, y in by_row}
        assert all(abs(columns[y, x] - width) < 0.6 for (x, y), width in by_row.items())
    page.locator('[data-heads] [data-head="0"]').click()
    page.locator('[name="queries"][value="rows"]').check(force=True)
    settled(page)
    assert dots(page, "stage", "rows") != rows["stage"]  # the hidden grid has followed, too


def test_the_strip_stays_visible_and_is_not_printed_over_the_text(page):
    page.locator("#layers").scroll_into_view_if_needed()
    page.evaluate("window.scrollTo(0, document.querySelector('#layers').offsetTop)")
    assert page.locator(".strip").bounding_box()["y"] == pytest.approx(0, abs=1)
    page.emulate_media(media="print")
    assert page.locator(".strip").evaluate("strip => getComputedStyle(strip).position") == "static"


def test_a_long_text_is_usable(open_page, model, tmp_path):
    long = probe.walk(model, LONG, at="loan")
    opened = open_page(probe.write(long, tmp_path), viewport={"width": 390, "height": 844})
    page = opened.page
    assert page.locator('.strip [name="at"]').count() == 24
    # No line breaks before a full stop or inside a token.
    chip_tops = (
        "all => all.map(group => [...group.children].map(chip => chip.getBoundingClientRect().top))"
    )
    tops = page.eval_on_selector_all("#tokens .together", chip_tops)
    assert [len(group) for group in tops][-1] == 2  # a word and its full stop
    assert all(len(set(group)) == 1 for group in tops) and len({group[0] for group in tops}) > 1
    assert page.locator(".still .chip").count() == len(long.frames["tokens"])
    rows = cells(page, "values")
    assert rows[-2][0][0] == f"{long.block['n_undrawn']} other tokens" and rows[-1][1][0] == "1.000"
    shares = [number(row[-1][1]) for row in rows[:-1]]
    assert sum(shares) == pytest.approx(1, abs=1e-3)
    assert "the pictures show the 24" in page.inner_text(".note")
    assert opened.trouble == []


def test_heads_outside_the_page_cannot_be_chosen(open_page, model, tmp_path, monkeypatch):
    monkeypatch.setattr(scene, "MAX_CELLS", 10)
    page = open_page(probe.write(probe.walk(model, TEXT, head=(1, 0)), tmp_path)).page
    assert page.locator('.strip [name="layer"] option').all_inner_texts() == ["1"]
    assert page.locator("[data-map] input:disabled").count() == 4
    assert "carries the heads of layer 1 only" in page.inner_text(".note")


def test_hostile_text_is_displayed_and_never_executed(open_page, model, tmp_path):
    walked = probe.walk(model, HOSTILE, at="canary", beside=BESIDE)
    opened = open_page(probe.write(walked, tmp_path, command=f"probe walk '{MORE}'"))
    page = opened.page
    page.locator('.strip [name="at"]').nth(3).check(force=True)
    assert page.evaluate("window.canary") is None
    assert opened.trouble == [] and len(opened.requests) == 1
    body = page.evaluate("document.body.textContent")
    pieces = page.locator("#tokens .chip > span").all_text_contents()
    assert HOSTILE in "".join(pieces).replace("·", " ")
    assert BESIDE in body and MORE in body
    assert page.locator("main img").count() == 0


def test_without_scripts_the_text_remains_and_refers_to_the_tables(open_page, page_path):
    page = open_page(page_path, ready=False, java_script_enabled=False).page
    assert page.locator("main section[id]").count() == len(SECTIONS) + 1
    assert "exactly 0" in page.locator("#embedding").text_content()
    assert "the tables next to it hold the same numbers" in page.inner_text("body")


def test_every_picture_can_be_saved_and_names_its_head(page, tmp_path):
    page.emulate_media(color_scheme="dark")
    assert page.locator(".saving:visible").count() == 9
    page.locator('[data-heads] [data-head="0"]').click()
    settled(page)
    box = page.locator('[data-queries="rows"] [data-kind="stage"]')
    assert ", now of L1H0 at “bank”; the numbers are in the tables" in box.locator(
        ".chart"
    ).get_attribute("aria-label")
    marks = check_saved(page, box.locator(".saving button"), tmp_path, "cells-L1H0")
    assert marks >= len(dots(page, "stage", "rows"))


def test_terms_are_explained_by_touch_and_by_keyboard(looks, page_path):
    terms = {"ΔE", "heads", "residual stream", "LayerNorm", "logit lens", "softmax", "MLP"}
    terms |= {"Cosine"}
    check_meanings(looks(page_path, 390, "dark").page, terms)


def test_attention_can_be_drawn_as_lines_and_every_line_can_be_followed(page):
    page.locator(".switch label", has_text="lines").click()
    boxes = page.locator("[data-lines]")
    assert boxes.count() == 2 and page.locator(".square[data-queries]:visible").count() == 0
    bundle = page.locator('[data-lines="stage"]')
    weights = page.evaluate("() => keys.map((key) => get('pattern', headIndex(), state.at, key))")
    titles = bundle.locator("line").evaluate_all(
        "all => all.map(line => line.querySelector('title').textContent)"
    )
    token = bundle.locator("button.followed").inner_text()
    mine = [text for text in titles if text.startswith(f"{token} → ")]
    assert len(mine) == sum(weight >= 0.005 for weight in weights) > 0
    bundle.locator("button").first.focus()
    page.keyboard.press("Enter")
    settled(page)
    first = bundle.locator("button").first
    assert first.get_attribute("aria-pressed") == "true" and page.url.endswith("@0")
    assert first.evaluate("button => button === document.activeElement")
    line = bundle.locator("line").first
    source = line.locator("title").text_content().split(" → ")[0]
    line.dispatch_event("click")
    settled(page)
    assert bundle.locator("button.followed").inner_text() == source


def test_a_click_on_a_cell_splits_its_score_and_the_bars_sum_to_it(page, walked):
    cells_of = '[data-queries="rows"] [data-kind="stage"] .mark-rect.role-mark path'
    page.locator(cells_of).nth(0).click(force=True)
    settled(page)
    assert page.evaluate("[state.at, state.key]") == [0, 0]
    page.evaluate(f"location.hash = '#L1H2@{walked.at}'")
    settled(page)
    page.locator('[name="scored"]').select_option("2")
    rows = page.locator('[data-rows="score"] tr')
    values = [number(text) for text in rows.locator("td.n").all_inner_texts()]
    score = walked.block["scores"]["rows"][walked.at]["scores"][2]["score"]
    assert values[-1] == round(score, 2)
    assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.005 * len(values))
    assert rows.locator("rect").count() == rows.count() - 1
    page.evaluate(f"location.hash = '#L0H3@{walked.at}'")
    settled(page)
    assert page.locator("[data-score-shown]").is_hidden()
    assert "carries the scores of L1H2" in page.inner_text("[data-score-missing]")


def test_arrow_keys_in_a_grid_follow_the_next_query(page):
    before = page.evaluate("state.at")
    page.locator(".matching > figure .square[data-queries=rows]").focus()
    page.keyboard.press("ArrowUp")
    settled(page)
    assert page.evaluate("state.at") == before - 1 and page.url.endswith(f"@{before - 1}")


def test_links_work_and_the_page_runs_only_its_scripts(page, page_path, open_page, tmp_path):
    check_policy(page, page_path, open_page, tmp_path)


@pytest.mark.parametrize(
    ("width", "scheme"), mostly_campaign([(390, "dark"), (1280, "light"), (320, "light")])
)
def test_the_page_sends_no_requests_fits_and_is_accessible(looks, page_path, width, scheme):
    # Last, because it changes the shared pages.
    check_look(looks(page_path, width, scheme), page_path)
