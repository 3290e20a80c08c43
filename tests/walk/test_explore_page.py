"""The explorer's page in headless Chromium: typing, choosing, swapping, undoing, the address, and
accessibility."""

import re
import threading
from urllib.request import urlopen

import pytest
from browser import number, serious_findings
from embedded import embedded
from seeds import mostly_campaign

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: probe-heads[explore]")

from inside import server

TOKEN = "secret"
PATIENCE = 60_000
GRAMMAR = "tiny-senses learned from a grammar: it shows how the method works, not how English is"
LEXICON = "text=They+saw+the+river+bank&other=They+took+the+money+to+the+bank&axis=lexicon"
HOSTILE = "</script><script>window.canary=1</script> <img src=x onerror=canary=1> bank"


@pytest.fixture(scope="module")
def address():
    """A running explorer of tiny-senses."""
    listener = server.listening("127.0.0.1", 0)
    explorer = server.Explorer(embedded())
    page = server.render(server.opening_walk(explorer.model))
    app = server.application(explorer, page, token=TOKEN)
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=running.run, args=([listener],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/?token={TOKEN}"
    with urlopen(url, timeout=300) as answer:  # waits until it is served
        assert answer.status == 200
    yield url
    running.should_exit = True
    thread.join()


class Address(str):
    """The part of a path that `Opened` needs."""

    def as_uri(self):
        return str(self)


@pytest.fixture
def opened(open_page, address):
    """Open the explorer and wait for its first answer; at the end no page has reported an error."""
    views = []

    def open_explorer(fragment="", **options):
        views.append(open_page(Address(address + fragment), **options))
        answered(views[-1].page)
        return views[-1]

    yield open_explorer
    assert [view.trouble for view in views] == [[]] * len(views)


@pytest.fixture(scope="module")
def explorer(shared_page, address):
    """The explorer's page for all tests that start from its first answer, and the address of that."""
    view = shared_page(Address(address))
    answered(view.page)
    return view, view.page.url


@pytest.fixture
def page(explorer):
    """The page with its first answer and without open folds; its address restores it."""
    view, first = explorer
    view.page.eval_on_selector_all("details", "all => all.forEach(item => item.open = false)")
    if view.page.url != first:
        go(view.page, first.split("#", 1)[1])
    yield view.page
    assert view.trouble == []


def go(page, fragment):
    answered(page, lambda: page.evaluate("fragment => (location.hash = fragment)", fragment))


def answered(page, action=None):
    """Do `action`, then wait until the page has answered it and nothing is being computed."""
    before = page.evaluate("document.documentElement.dataset.answered ?? 0")
    if action is not None:
        action()
    else:
        before = -1
    page.wait_for_function(
        "before => Number(document.documentElement.dataset.answered ?? -1) > Number(before)"
        " && !document.querySelector('[data-status]').textContent",
        arg=before,
        timeout=PATIENCE,
    )


def outcome(page):
    return page.locator('[data-slot="outcome"]').inner_text()


def head(page, layer, number, name="swap"):
    return page.locator(f'[name="map-{name}"][value="{layer}.{number}"]')


def swap(page, kind):
    answered(page, lambda: page.locator(f'[name="swap"][value="{kind}"]').check(force=True))


def click(page, layer, number, **options):
    """Swap a head on the map, or undo its swap."""
    answered(page, lambda: head(page, layer, number).click(force=True, **options))


UNSWAPPED = r"L\dH\d alone moves “bank” \d+\u202f% of the way from “river” to “money”\."


def test_the_page_opens_with_an_answer_and_requests_nothing_from_other_servers(opened, address):
    view = opened()
    page = view.page
    assert re.fullmatch(UNSWAPPED, outcome(page))
    assert GRAMMAR in page.locator("header").inner_text()
    only = "One pair of sentences only. The mean over many: probe report bank --model tiny-senses"
    assert only in page.locator("header").inner_text()
    assert page.locator('[data-rows="next"] tr').count() == 8
    assert page.locator('[data-map="swap"] .cell').count() >= 16
    assert page.locator('[data-map="swap"]').is_visible()
    assert page.locator('[data-map="direct"]').is_hidden()
    bottom = page.evaluate("document.querySelector('.stage').getBoundingClientRect().bottom")
    assert bottom <= 800  # sentences, map, dots and next words on one screen
    assert page.locator(".written dd").first.inner_text().strip()
    origin = address.split("/?")[0]
    assert all(url.startswith((origin, "blob:", "data:")) for url in view.requests), view.requests
    answered(page, lambda: page.locator('[name="example"]').select_option("2"))
    assert "mole" in outcome(page)
    assert "bank" not in page.locator("main").inner_text().split("Is it true?")[0]


def test_typing_changes_tokens_head_pictures_and_the_address(page):
    answered(
        page, lambda: page.locator('[name="text"]').fill("In the wet garden they found a mole")
    )
    trouble = page.locator("[data-trouble]").inner_text()
    assert "the two sentences share only “the”, expected an ambiguous word" in trouble
    answered(page, lambda: page.locator('[name="other"]').fill("In the agency they found a mole"))
    assert page.locator("[data-trouble]").is_hidden()
    assert [chip.strip() for chip in page.locator(".strip .chip").all_inner_texts()][-1].endswith(
        "mole"
    )
    assert "“mole”" in outcome(page)
    grid = page.locator('.matching > figure [data-queries="rows"] .chart')
    assert grid.locator(".mark-symbol.role-mark path").count() > 0
    labels = grid.locator(".role-axis-label text").all_text_contents()
    assert any(label.endswith("·mole") for label in labels) and not any(
        label.endswith("·bank") for label in labels
    )
    page.wait_for_function("() => location.hash.includes('garden')", timeout=PATIENCE)


def test_every_key_is_answered_and_the_last_answer_remains(page):
    box = page.locator('[name="text"]')
    box.press("End")
    box.press_sequentially(" today", delay=20)
    typed = (
        "() => [...document.querySelectorAll('.strip .chip')].at(-1)?.textContent.endsWith('today')"
    )
    page.wait_for_function(typed, timeout=PATIENCE)
    answered(page)
    assert page.locator("[data-trouble]").is_hidden()


def test_a_click_swaps_a_head_and_a_second_click_undoes_it(page):
    before = outcome(page)
    click(page, 0, 0)
    size = head(page, 0, 0).get_attribute("aria-label").removeprefix("L0H0: ")
    sentence = f"With L0H0 swapped, “bank” moves {size} of the way from “river” to “money”."
    assert outcome(page).startswith(sentence)
    rows = page.locator('[data-rows="next"] tr')
    word = rows.first.locator("th").inner_text()
    shares = rows.first.locator("td.n").all_inner_texts()
    assert outcome(page) == f"{sentence} {word} goes from {shares[0]} to {shares[1]}."
    assert rows.first.locator("rect").count() == 2 and rows.count() == 8
    label = page.locator(".axis-line").get_attribute("aria-label")
    assert label == (
        f"“bank” at 0\u202f%, swapped at {size}; the other sentence's at 100\u202f%, from “river” to "
        "“money”"
    )
    click(page, 1, 2)  # one head at a time
    assert outcome(page).startswith("With L1H2 swapped") and "swap=L1H2-other" in page.url
    click(page, 1, 2)
    assert outcome(page) == before and "swap=" not in page.url


@pytest.mark.parametrize("width", [390, 1280])
def test_a_swap_does_not_move_the_map(opened, width):
    page = opened(viewport={"width": width, "height": 844}).page
    top = (
        "document.querySelector('[data-map=\"swap\"] .cell').getBoundingClientRect().top + scrollY"
    )
    before = page.evaluate(top)
    click(page, 0, 0)
    assert " goes from " in outcome(page) and page.evaluate(top) == before


def test_the_strip_begins_with_the_first_token_where_the_text_fits_up_to_the_chosen_one(opened):
    text = "They+saw+the+bank+in+the+old+garden"
    page = opened(f"#text={text}&other=&word=bank", viewport={"width": 390, "height": 844}).page
    chips = "document.querySelector('.strip .chips')"
    assert page.evaluate(f"{chips}.scrollWidth > {chips}.clientWidth")
    assert page.evaluate(f"{chips}.scrollLeft") == 0
    page.locator('.strip [name="at"]').last.check(force=True)
    assert page.evaluate(f"{chips}.scrollLeft") > 0


def arrays_apart(page, depth):
    """The distance of the word's two vectors, divided by their mean length."""
    return page.evaluate("depth => get('apart', depth + 1)", depth)


def test_the_dots_move_apart_over_the_layers_on_request(page):
    at = "document.querySelector('.axis-line').getAttribute('aria-label')"
    apart = page.evaluate(at)
    page.locator('[name="depth"]').fill("0")
    assert "“bank” at 50\u202f%; the other sentence's at 50\u202f%" in page.evaluate(at)
    assert page.locator('[data-slot="depth"]').inner_text() == "entering layer 0 of 4"
    assert page.locator('[data-slot="apart"]').inner_text() == "0\u202f%"
    # On the scale of the layer: as far apart as at the end, times the ratio of the two distances.
    page.locator('[name="depth"]').fill("1")
    first, last = (arrays_apart(page, depth) for depth in (1, 4))
    assert f"“bank” at {50 - 50 * first / last:.0f}\u202f%;" in page.evaluate(at)
    assert page.locator('[data-slot="apart"]').inner_text() == f"{100 * first:.0f}\u202f%"
    page.locator("[data-play]").click()
    page.wait_for_selector("[data-play][aria-pressed=false]", timeout=PATIENCE)
    assert page.evaluate(at) == apart
    page.emulate_media(reduced_motion="reduce")
    assert page.locator("[data-play]").is_hidden() and page.locator('[name="depth"]').is_visible()
    page.emulate_media(reduced_motion="no-preference")


def test_several_heads_are_swapped_at_once_and_undone(page):
    before = outcome(page)
    click(page, 0, 0)
    assert page.locator("[data-with-swap]").is_visible()
    click(page, 3, 2, modifiers=["Shift"])
    swap(page, "off")
    assert outcome(page).startswith("With L0H0 swapped and L3H2 set to nothing, “bank” moves ")
    assert page.locator('[data-map="swap"] .cell.swapped').count() == 2
    assert "swap=L0H0-other.L3H2-off" in page.url
    answered(page, lambda: page.get_by_role("button", name="Undo").click())
    with_one_swap = outcome(page)
    assert with_one_swap.startswith("With L0H0 swapped")
    second = page.locator('[name="other"]')
    text = second.input_value()
    answered(page, lambda: second.fill(""))
    assert outcome(page).endswith("Waiting for a second sentence: L0H0.")
    assert page.locator(".waiting").inner_text() == "L0H0: the other sentence's ×"
    assert page.locator('[data-map="swap"] .cell.swapped').count() == 0
    answered(page, lambda: second.fill(text))
    assert outcome(page) == with_one_swap and page.locator(".waiting").count() == 0
    page.locator("h1").click()
    answered(page, lambda: page.keyboard.press("Control+z"))
    assert outcome(page) == before and "swap=" not in page.url
    assert page.locator('[data-map="swap"] .cell.swapped').count() == 0


def test_every_kind_of_change_has_its_own_phrase(page):
    note = page.locator("[data-unchanged]")
    assert note.is_hidden()
    click(page, 3, 2)
    for kind, phrase, change in (
        ("off", "set to nothing", "change"),
        ("mean", "set to its mean", "change"),
        ("other", "swapped", "swap"),
    ):
        swap(page, kind)
        assert outcome(page).startswith(f"With L3H2 {phrase}, “bank” moves ")
        assert ("swap" in outcome(page)) == (kind == "other")
        assert note.inner_text() == (
            f"From here on the page shows your sentences as they are, without the {change}."
        )
    no_effect = page.locator('[name="map-swap"][aria-label$=": 0\u202f%"]').first
    name = no_effect.get_attribute("aria-label").split(":")[0]
    answered(page, lambda: no_effect.click(force=True))
    sentence = f"With {name} swapped, “bank” moves less than half a percent of the way from “river”"
    assert outcome(page).startswith(sentence)


def test_everything_is_measured_along_the_axis_that_the_field_shows(page):
    axis, second = page.locator('[name="axis"]'), page.locator('[name="other"]')
    text = second.input_value()

    def axis_texts():
        """The value of the field, the description of the axis, the headline, and the step of the head."""
        selectors = ['[data-slot="axis"]', '[data-slot="outcome"]', '[data-slot="contrast"]']
        return [
            axis.input_value(),
            *(page.locator(selector).text_content() for selector in selectors),
        ]

    between = axis_texts()
    assert between[0] == "sentences" and "the axis of these two sentences" in between[1]
    assert "whether or not the word means the same in them" in between[1]
    answered(page, lambda: second.fill(""))
    assert axis.is_disabled() and axis.input_value() == "lexicon"
    assert re.match(
        "L0H0 alone moves “bank” .* of the way from “river” to “money”", axis_texts()[2]
    )
    answered(page, lambda: second.fill(text))
    assert axis_texts() == between and axis.is_enabled()
    answered(page, lambda: axis.select_option("lexicon"))
    lexicon = axis_texts()
    assert lexicon[0] == "lexicon" and "The word is read entering layer 1." in lexicon[1]
    assert re.fullmatch(UNSWAPPED, lexicon[2])
    answered(page, lambda: second.fill(""))
    answered(page, lambda: second.fill(text))
    assert axis_texts() == lexicon
    assert "864 sentences of the lexicon" in page.locator('[data-slot="mean-of"]').text_content()
    click(page, 3, 2)
    assert "of the way from “river” to “money”, read after the last layer." in axis_texts()[3]
    click(page, 3, 2)
    answered(page, lambda: page.locator('[name="text"]').fill("Plants bank on a light"))
    answered(page, lambda: page.locator('[name="other"]').fill("Feathers have a light"))
    assert axis.is_disabled() and axis.input_value() == "sentences"
    assert "the axis of these two sentences" in axis_texts()[1] and "“light”" in axis_texts()[2]
    assert page.locator("[data-guessed]").inner_text() == (
        "“light” is followed because it is the last word that both sentences have. To follow "
        "another, write it into “word”."
    )


def test_an_outdated_answer_is_dimmed(opened):
    view = opened()
    page = view.page
    dimmed = "() => document.querySelectorAll('main.stale, .strip.stale, .stage.stale, .answer.stale, .ask .stale').length"
    answered(page, lambda: page.locator('[name="other"]').fill("Nothing of it"))
    assert page.locator("[data-trouble]").is_visible() and page.evaluate(dimmed) == 7
    answered(page, lambda: page.locator('[name="other"]').fill("The money on the bank"))
    assert page.locator("[data-trouble]").is_hidden() and page.evaluate(dimmed) == 0
    requests = []
    page.route("**/ask", lambda route: requests.append(route), times=1)
    head(page, 0, 1).click(force=True)
    assert page.evaluate(dimmed) == 7
    assert page.locator("[data-status]").inner_text() == "swapping …"
    answered(page, requests.pop().continue_)
    assert "With L0H1 swapped" in outcome(page) and page.evaluate(dimmed) == 0
    page.route("**/ask", lambda route: requests.append(route), times=1)
    page.locator('[name="other"]').fill("The mortgage on the bank")
    swap(page, "own")  # before the new sentence is answered
    assert "mortgage" in page.locator('[data-reading="there"]').inner_text()
    assert re.match(r"L\dH\d alone moves", outcome(page)) and page.evaluate(dimmed) == 0
    requests.pop().continue_()
    page.route("**/ask", lambda route: route.abort())
    click(page, 0, 0)
    assert page.locator("[data-trouble]").inner_text() == (
        "Cannot reach the explorer: it has stopped. Start `probe explore` again."
    )
    assert page.evaluate(dimmed) == 7
    view.trouble.clear()  # the browser reports that the server is gone


def test_the_address_restores_everything_and_the_back_button_goes_back(page, opened):
    page.locator('[name="layer"]').select_option("1")
    page.locator('[name="head"]').select_option("2")
    swap(page, "mean")
    headline, url = outcome(page), page.url
    again = opened("#" + url.split("#", 1)[1]).page
    assert outcome(again) == headline
    assert again.locator('[name="layer"]').input_value() == "1" and head(again, 1, 2).is_checked()
    assert again.locator('[name="swap"][value="mean"]').is_checked()
    answered(page, lambda: page.go_back())
    assert re.fullmatch(UNSWAPPED, outcome(page)) and head(page, 1, 2).is_checked()
    answered(page, lambda: page.go_back())
    assert not head(page, 1, 2).is_checked()


def test_the_keyboard_reaches_heads_swaps_and_the_trace(page):
    head(page, 0, 0).focus()
    answered(page, lambda: page.keyboard.press("ArrowRight"))
    assert page.locator('[data-slot="head"]').first.inner_text() == "L0H1"
    assert "With L0H1 swapped" in outcome(page)
    page.locator('[name="swap"]:checked').focus()
    answered(page, lambda: page.keyboard.press("ArrowRight"))
    assert "With L0H1 set to its mean" in outcome(page)
    page.locator("[data-tracing] > summary").focus()
    page.keyboard.press("Enter")
    page.wait_for_selector("[data-rows=trace] button", timeout=PATIENCE)
    cells = page.locator("[data-rows=trace] tr")
    assert cells.count() == 4
    assert (
        page.locator("[data-rows=trace] button")
        .first.get_attribute("aria-label")
        .startswith("L0, “river”: ")
    )
    page.locator("[data-rows=trace] button").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_function(
        "() => document.querySelector('[data-slot=following]').textContent.includes('river')"
    )


def test_movers_are_listed_by_token_and_a_click_follows_a_cell(page):
    page.locator("#movers > details > summary").click()
    page.locator('[name="map"][value="sources"]').check(force=True)
    rows = page.locator('[data-rows="sources"] tr')
    assert rows.count() == 1 + 4 and page.locator('[data-map="direct"]').is_hidden()
    tokens = [chip.strip() for chip in page.locator(".strip .chip").all_inner_texts()]
    assert [token.lstrip("·") for token in tokens] == page.locator(
        "#movers thead th"
    ).all_inner_texts()[: len(tokens)]

    def numbers(cells):
        titles = cells.evaluate_all("all => all.map(cell => cell.title)")
        return [
            float(title.split(": ")[-1].removesuffix(" %").replace("−", "-")) for title in titles
        ]

    for layer in range(4):
        heads = page.locator(f'[data-map="direct"] .cell:has([value^="{layer}."])')
        assert sum(numbers(rows.nth(layer + 1).locator("button"))) == pytest.approx(
            sum(numbers(heads)), abs=1e-4
        )
    page.locator("#movers").get_by_label("L3, “river”").click()
    name = page.locator('[data-slot="head"]').first.inner_text()
    assert name.startswith("L3H") and rows.first.locator("th").inner_text() == name
    head_cell = page.locator(f'[data-map="direct"] .cell:has([value="{name[1]}.{name[3]}"])')
    assert sum(numbers(rows.first.locator("button"))) == pytest.approx(
        *numbers(head_cell), abs=1e-4
    )
    page.locator('[name="map"][value="direct"]').check(force=True)


def test_a_score_is_split_on_request(page):
    page.locator("[data-score] > summary").click()
    assert page.locator("[data-score-shown]").is_hidden()
    page.get_by_role("button", name="Split this score").click()
    page.wait_for_selector("[data-score-shown]:not([hidden])", timeout=PATIENCE)
    rows = page.locator('[data-rows="score"] tr')
    values = [number(text) for text in rows.locator("td.n").all_inner_texts()]
    assert sum(values[:-1]) == pytest.approx(values[-1], abs=0.005 * len(values))
    click(page, 3, 1)  # the score of another head was not requested
    page.wait_for_selector("[data-split]:visible", timeout=PATIENCE)
    page.locator('[name="scored"]').select_option("0")
    page.wait_for_selector("[data-score-shown]:not([hidden])", timeout=PATIENCE)


def test_hostile_text_is_displayed_and_never_executed(page):
    answered(page, lambda: page.locator('[name="other"]').fill(""))
    answered(page, lambda: page.locator('[name="text"]').fill(HOSTILE))
    assert page.evaluate("window.canary") is None and page.locator("img").count() == 0
    assert "</" in page.locator(".strip .chips").inner_text().replace("\n", "")
    answered(page, lambda: page.locator('[name="text"]').fill("bank " * 3000))
    assert "the context window of tiny-senses" in page.locator("[data-trouble]").inner_text()
    answered(page, lambda: page.locator('[name="text"]').fill("The river bank"))
    assert page.locator("[data-trouble]").is_hidden()


def test_the_page_saves_a_page_that_opens_without_a_server(page, open_page, tmp_path):
    go(page, LEXICON)
    click(page, 0, 1)
    with page.expect_download(timeout=2 * PATIENCE) as waiting:
        page.get_by_role("button", name="Save this page").click()
    assert waiting.value.suggested_filename == "explore.html"
    waiting.value.save_as(tmp_path / "explore.html")
    saved = open_page(tmp_path / "explore.html")
    answered(saved.page)
    assert outcome(saved.page) == outcome(page) and "With L0H1 swapped" in outcome(page)
    assert saved.trouble == []
    for name in ("axis", "own", "swapped-text", "depth"):
        texts = [tab.locator(f'[data-slot="{name}"]').text_content() for tab in (page, saved.page)]
        assert texts[0] == texts[1]
    # The saved page has every swap of one head, with its next words.
    click(saved.page, 2, 3)
    click(page, 2, 3)
    assert outcome(saved.page) == outcome(page)
    for tab in (page, saved.page):
        assert tab.locator('[data-rows="next"] rect').count() == 16


@pytest.mark.parametrize(("width", "scheme"), mostly_campaign([(390, "dark"), (1280, "light")]))
def test_the_page_is_accessible(opened, width, scheme):
    page = opened(
        viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
    ).page
    click(page, 0, 0)
    page.locator("[data-tracing] > summary").click()
    page.wait_for_selector("[data-rows=trace] button", timeout=PATIENCE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    durations = (
        "[...document.querySelectorAll('*')].map(one => getComputedStyle(one).transitionDuration)"
    )
    assert set(page.evaluate(durations)) == {"0s"}
    assert serious_findings(page) == []
