"""The explorer's page in headless Chromium: typing, choosing, swapping, undoing, the address, and
who can use it."""

import re
import threading
from urllib.request import urlopen

import pytest
from browser import number, serious_findings
from seeds import mostly_campaign

import probe

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed: probe-heads[explore]")

from probe.explorer import server

pytestmark = pytest.mark.real_model

TOKEN = "secret"
PATIENCE = 60_000
GRAMMAR = "tiny-senses learned from a grammar: it shows how the method works, not how English is"
LEXICON = "text=They+saw+the+river+bank&other=They+took+the+money+to+the+bank&axis=lexicon"
HOSTILE = "</script><script>window.canary=1</script> <img src=x onerror=canary=1> bank"


@pytest.fixture(scope="module")
def address():
    """A running explorer of tiny-senses."""
    door = server.listening("127.0.0.1", 0)
    app = server.application(probe.load("tiny-senses"), token=TOKEN)
    running = uvicorn.Server(uvicorn.Config(app, log_level="warning"))
    thread = threading.Thread(target=running.run, args=([door],), daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{door.getsockname()[1]}/?token={TOKEN}"
    with urlopen(url, timeout=300) as page:  # made when it is first asked for
        assert page.status == 200
    yield url
    running.should_exit = True
    thread.join()


class Address(str):
    """What `Opened` asks of a path."""

    def as_uri(self):
        return str(self)


@pytest.fixture
def opened(open_page, address):
    """Opens the explorer and waits for its first answer; at the end no page has complained."""
    every = []

    def made(fragment="", **options):
        every.append(open_page(Address(address + fragment), **options))
        answered(every[-1].page)
        return every[-1]

    yield made
    assert [shown.trouble for shown in every] == [[]] * len(every)


def answered(page, what=None):
    """Does `what`, then waits until the page has answered it and nothing is being computed."""
    before = page.evaluate("document.documentElement.dataset.answered ?? 0")
    if what is not None:
        what()
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


def test_the_first_sight_is_an_answer_and_asks_its_own_server_only(opened, address):
    shown = opened()
    page = shown.page
    assert outcome(page).startswith(
        "Your two sentences define 0\u202f% and 100\u202f%. Swap a head to move the dot."
    )
    assert GRAMMAR in page.locator("header").inner_text()
    assert page.locator('[data-rows="next"] tr').count() == 10
    assert page.locator('[data-map="swap"] .cell').count() >= 16
    assert page.locator('[data-map="swap"]').is_visible()
    assert page.locator('[data-map="direct"]').is_hidden()
    assert page.locator(".written dd").first.inner_text().strip()
    assert page.locator(".formula:visible").count() >= 1
    origin = address.split("/?")[0]
    assert all(url.startswith((origin, "blob:", "data:")) for url in shown.requests), shown.requests
    named = {
        section: {
            name.split("(")[0]
            for name in page.locator(f"#{section} .formula code").all_text_contents()
        }
        for section in ("outcome", "movers", "trace")
    }
    assert {"axes.coordinate", "variants.patch", "forward.unembed", "attention.softmax"} <= named[
        "outcome"
    ]
    assert {"axes.effect", "attention.write_by_source", "variants.patch"} <= named["movers"]
    assert {
        "positions.donated_stream",
        "positions.donated_attention",
        "positions.donated_neurons",
    } <= named["trace"]
    answered(page, lambda: page.locator('[name="example"]').select_option("2"))
    assert "mole" in page.locator("#outcome h2").inner_text()
    assert "bank" not in page.locator("main").inner_text().split("Is it true?")[0]


def test_typing_changes_tokens_head_pictures_and_the_address(opened):
    page = opened().page
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
    assert "“mole”" in page.locator("#outcome h2").inner_text()
    grid = page.locator('#softmax [data-queries="rows"] .chart')
    assert grid.locator(".mark-symbol.role-mark path").count() > 0
    labels = grid.locator(".role-axis-label text").all_text_contents()
    assert any(label.endswith("·mole") for label in labels) and not any(
        label.endswith("·bank") for label in labels
    )
    page.wait_for_function("() => location.hash.includes('garden')", timeout=PATIENCE)


def test_each_key_is_answered_and_the_last_one_stands(opened):
    page = opened().page
    box = page.locator('[name="text"]')
    box.press("End")
    box.press_sequentially(" today", delay=20)
    typed = (
        "() => [...document.querySelectorAll('.strip .chip')].at(-1)?.textContent.endsWith('today')"
    )
    page.wait_for_function(typed, timeout=PATIENCE)
    answered(page)
    assert page.locator("[data-trouble]").is_hidden()


def test_heads_are_swapped_several_at_once_and_undone(opened):
    page = opened().page
    own = outcome(page)
    head(page, 0, 0).check(force=True)
    swap(page, "other")
    told = re.match(
        "With L0H0 swapped, “bank” moves (.*)\u202f% of the way from “this meaning” to “that meaning”",
        outcome(page),
    )
    shown = head(page, 0, 0).get_attribute("aria-label")
    assert shown == f"L0H0: {told[1]}\u202f%"
    assert (
        page.locator(".axis-line")
        .get_attribute("aria-label")
        .startswith(
            f"“bank” at 0\u202f%, swapped at {told[1]}\u202f%; the other sentence's at 100\u202f%"
        )
    )
    assert page.locator('[data-rows="next"] th').count() >= 10
    assert page.locator("[data-with-swap]").is_visible()
    head(page, 3, 2).check(force=True)
    swap(page, "off")
    assert outcome(page).startswith("With L0H0 swapped and L3H2 set to nothing, “bank” moves ")
    assert page.locator('[data-map="swap"] .cell.swapped').count() == 2
    assert "swap=L0H0-other.L3H2-off" in page.url
    answered(page, lambda: page.get_by_role("button", name="Undo").click())
    swapped = outcome(page)
    assert swapped.startswith("With L0H0 swapped")
    second = page.locator('[name="other"]')
    text = second.input_value()
    answered(page, lambda: second.fill(""))
    assert "L0H0 is swapped again as soon as there is a second sentence." in outcome(page)
    assert page.locator(".waiting").inner_text() == "L0H0: the other sentence's ×"
    assert page.locator('[data-map="swap"] .cell.swapped').count() == 0
    answered(page, lambda: second.fill(text))
    assert outcome(page) == swapped and page.locator(".waiting").count() == 0
    page.locator("h1").click()
    answered(page, lambda: page.keyboard.press("Control+z"))
    assert outcome(page) == own and "swap=" not in page.url
    assert page.locator('[data-map="swap"] .cell.swapped').count() == 0


def test_a_change_is_named_for_what_it_is_and_leaves_no_gap_in_the_list(opened):
    page = opened().page
    rows = page.locator('[data-rows="next"] tr')
    tokens = rows.locator("th").all_inner_texts()
    note = page.locator("[data-unchanged]")
    assert note.is_hidden()
    head(page, 3, 2).check(force=True)
    for kind, named, change in (
        ("off", "set to nothing", "change"),
        ("mean", "set to its mean", "change"),
        ("other", "swapped", "swap"),
    ):
        swap(page, kind)
        assert outcome(page).startswith(f"With L3H2 {named}, “bank” moves ")
        assert ("swap" in outcome(page)) == (kind == "other")
        assert note.inner_text() == (
            f"From here on the page shows your sentences as they are, without the {change}."
        )
    head(page, 0, 0).check(force=True)
    swap(page, "other")
    assert len(tokens) == 10 < rows.count()
    for _ in range(2):
        answered(page, lambda: page.locator("h1").press("Control+z"))
    assert rows.locator("th").all_inner_texts() == tokens and note.is_hidden()
    assert "its mean, halfway between what it writes in the two sentences; or" in (
        page.locator("#outcome > .caption").first.inner_text()
    )
    nothing = page.locator('[name="map-swap"][aria-label$=": 0\u202f%"]').first
    nothing.check(force=True)
    swap(page, "other")
    name = nothing.get_attribute("aria-label").split(":")[0]
    assert outcome(page).startswith(
        f"With {name} swapped, “bank” moves less than half a per cent of the way from "
        "“this meaning” to “that meaning”."
    )
    assert (
        page.locator('[data-slot="contrast"]')
        .inner_text()
        .startswith(
            f"Given what it computes in the other sentence, {name} alone moves “bank” less than "
            "half a per cent of the way to its vector in the other sentence, read after the last "
            "layer."
        )
    )


def test_everything_is_measured_along_the_axis_that_the_field_shows(opened):
    page = opened().page
    axis, second = page.locator('[name="axis"]'), page.locator('[name="other"]')
    text = second.input_value()

    def shown():
        """The field, where it says that the word is read, the headline, the step of the head."""
        told = ['[data-slot="axis"]', "[data-answer]", '[data-slot="contrast"]']
        return [axis.input_value(), *(page.locator(one).inner_text() for one in told)]

    between = shown()
    assert between[0] == "sentences" and "which these two sentences give" in between[1]
    answered(page, lambda: second.fill(""))
    assert axis.is_disabled() and axis.input_value() == "lexicon"
    assert re.match(
        "If only L0H0 gets the mean of what it writes in both meanings, “bank” moves furthest "
        "toward “money”: ",
        shown()[2],
    )
    answered(page, lambda: second.fill(text))
    assert shown() == between and axis.is_enabled()
    answered(page, lambda: axis.select_option("lexicon"))
    lexicon = shown()
    assert lexicon[0] == "lexicon" and lexicon[1].startswith("Read entering layer 1, on the axis")
    moved = re.search(r"“money”: (.*\u202f%) of the way from “river”", lexicon[2])[1]
    assert lexicon[3].startswith(
        f"Given what it computes in the other sentence, L0H0 alone moves “bank” {moved} of the "
        "way from “river” to “money”, read entering layer 1. "
    )
    answered(page, lambda: second.fill(""))
    answered(page, lambda: second.fill(text))
    assert shown() == lexicon
    assert (
        "halfway between what it writes on average in each of the two senses (864 sentences of the"
        in page.locator("#outcome > .caption").first.inner_text()
    )
    head(page, 3, 2).check(force=True)
    assert "of the way from “river” to “money”, read after the last layer. " in shown()[3]
    answered(page, lambda: page.locator('[name="text"]').fill("Plants bank on a light"))
    answered(page, lambda: page.locator('[name="other"]').fill("Feathers have a light"))
    assert axis.is_disabled() and axis.input_value() == "sentences"
    assert "which these two sentences give" in page.locator('[data-slot="axis"]').inner_text()
    assert (
        "“light”" in shown()[3] and "of the way to its vector in the other sentence" in shown()[3]
    )
    assert page.locator("[data-guessed]").inner_text() == (
        "“light” was chosen only because it is the last word that both sentences have. To follow "
        "another, write it into “word”."
    )


def test_an_answer_that_is_no_longer_true_is_dimmed(opened):
    shown = opened()
    page = shown.page
    dimmed = "() => document.querySelectorAll('main.stale, .strip.stale, .answer.stale, .ask .stale').length"
    answered(page, lambda: page.locator('[name="other"]').fill("Nothing of it"))
    assert page.locator("[data-trouble]").is_visible() and page.evaluate(dimmed) == 7
    answered(page, lambda: page.locator('[name="other"]').fill("The money on the bank"))
    assert page.locator("[data-trouble]").is_hidden() and page.evaluate(dimmed) == 0
    held = []
    page.route("**/ask", lambda route: held.append(route), times=1)
    head(page, 0, 1).check(force=True)
    page.locator('[name="swap"][value="other"]').check(force=True)
    assert page.evaluate(dimmed) == 7
    assert page.locator("[data-status]").inner_text() == "swapping …"
    answered(page, held.pop().continue_)
    assert "With L0H1 swapped" in outcome(page) and page.evaluate(dimmed) == 0
    page.route("**/ask", lambda route: held.append(route), times=1)
    page.locator('[name="other"]').fill("The mortgage on the bank")
    swap(page, "own")  # before the new sentence is answered
    assert "mortgage" in page.locator('[data-reading="there"]').inner_text()
    assert outcome(page).startswith("Your two sentences") and page.evaluate(dimmed) == 0
    held.pop().continue_()
    page.route("**/ask", lambda route: route.abort())
    head(page, 0, 0).check(force=True)
    swap(page, "other")
    assert page.locator("[data-trouble]").inner_text() == (
        "The explorer has stopped; start `probe explore` again."
    )
    assert page.evaluate(dimmed) == 7
    shown.trouble.clear()  # the browser says that the server is gone


def test_a_head_that_the_model_does_not_have_is_left_out_of_the_address(opened):
    two = "text=The+river+bank&other=The+money+bank"
    page = opened(f"#{two}&follow=L9H9%409&swap=L9H0-other").page
    assert page.locator("[data-trouble]").is_hidden()
    assert outcome(page).startswith("Your two sentences define")
    (first,) = re.findall(r"L\dH\d", page.locator("[data-answer]").inner_text())
    assert page.locator('[data-slot="following"]').inner_text() == f"{first} at “bank”, token 3"


def test_the_address_brings_everything_back_and_the_back_button_goes_back(opened):
    page = opened().page
    head(page, 1, 2).check(force=True)
    swap(page, "mean")
    told, url = outcome(page), page.url
    again = opened("#" + url.split("#", 1)[1]).page
    assert outcome(again) == told
    assert again.locator('[name="layer"]').input_value() == "1" and head(again, 1, 2).is_checked()
    assert again.locator('[name="swap"][value="mean"]').is_checked()
    answered(page, lambda: page.go_back())
    assert outcome(page).startswith("Your two sentences") and head(page, 1, 2).is_checked()
    answered(page, lambda: page.go_back())
    assert not head(page, 1, 2).is_checked()


def test_the_keyboard_reaches_heads_swaps_and_the_trace(opened):
    page = opened().page
    head(page, 0, 0).focus()
    page.keyboard.press("ArrowRight")
    assert page.locator('[data-slot="head"]').first.inner_text() == "L0H1"
    page.locator('[name="swap"][value="own"]').focus()
    answered(page, lambda: page.keyboard.press("ArrowRight"))
    assert "With L0H1 swapped" in outcome(page)
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


def test_what_a_head_writes_directly_is_a_map_of_its_own(opened):
    page = opened().page
    page.locator('[name="map"][value="direct"]').check(force=True)
    assert page.locator('[data-map="swap"]').is_hidden()
    titles = page.locator('[data-map="direct"] label.cell').evaluate_all(
        "all => all.map(one => one.title)"
    )
    assert len(titles) == 16 and all(re.fullmatch(r"L\dH\d: .* %", title) for title in titles)
    assert page.locator('[data-map="direct"] .against').count() > 0


def test_what_moves_the_word_is_shown_by_token_and_a_cell_is_followed(opened):
    page = opened().page
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
    own = page.locator(f'[data-map="direct"] .cell:has([value="{name[1]}.{name[3]}"])')
    assert sum(numbers(rows.first.locator("button"))) == pytest.approx(*numbers(own), abs=1e-4)


def test_a_score_is_split_when_it_is_asked_for(opened):
    page = opened().page
    assert page.locator("[data-score-shown]").is_hidden()
    page.get_by_role("button", name="Split this score").click()
    page.wait_for_selector("[data-score-shown]:not([hidden])", timeout=PATIENCE)
    rows = page.locator('[data-rows="score"] tr')
    shown = [number(text) for text in rows.locator("td.n").all_inner_texts()]
    assert sum(shown[:-1]) == pytest.approx(shown[-1], abs=0.005 * len(shown))
    head(page, 3, 1).check(force=True)  # another head has not been asked for
    page.wait_for_selector("[data-split]:visible", timeout=PATIENCE)
    page.locator('[name="scored"]').select_option("0")
    page.wait_for_selector("[data-score-shown]:not([hidden])", timeout=PATIENCE)


def test_hostile_text_runs_nothing_and_stands_there(opened):
    page = opened().page
    answered(page, lambda: page.locator('[name="other"]').fill(""))
    answered(page, lambda: page.locator('[name="text"]').fill(HOSTILE))
    assert page.evaluate("window.canary") is None and page.locator("img").count() == 0
    assert "</" in page.locator(".strip .chips").inner_text().replace("\n", "")
    answered(page, lambda: page.locator('[name="text"]').fill("bank " * 3000))
    assert "the context window of tiny-senses" in page.locator("[data-trouble]").inner_text()
    answered(page, lambda: page.locator('[name="text"]').fill("The river bank"))
    assert page.locator("[data-trouble]").is_hidden()


def test_the_page_saves_a_page_that_anybody_opens(opened, open_page, tmp_path):
    page = opened("#" + LEXICON).page
    head(page, 0, 1).check(force=True)
    swap(page, "other")
    with page.expect_download(timeout=2 * PATIENCE) as waiting:
        page.get_by_role("button", name="Save this page").click()
    assert waiting.value.suggested_filename == "explore.html"
    waiting.value.save_as(tmp_path / "explore.html")
    saved = open_page(tmp_path / "explore.html")
    answered(saved.page)
    assert outcome(saved.page) == outcome(page) and "With L0H1 swapped" in outcome(page)
    assert saved.trouble == []
    assert (
        "of the way from “river” to “money”, read" in saved.page.locator("#contrast").inner_text()
    )
    for name in ("furthest-size", "axis", "contrast", "own", "swapped-text"):
        shown = [one.locator(f'[data-slot="{name}"]').inner_text() for one in (page, saved.page)]
        assert shown[0] == shown[1]


@pytest.mark.parametrize(("width", "scheme"), mostly_campaign([(390, "dark"), (1280, "light")]))
def test_anybody_can_use_it(opened, width, scheme):
    page = opened(
        viewport={"width": width, "height": 844}, color_scheme=scheme, reduced_motion="reduce"
    ).page
    head(page, 0, 0).check(force=True)
    swap(page, "other")
    page.locator("[data-tracing] > summary").click()
    page.wait_for_selector("[data-rows=trace] button", timeout=PATIENCE)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    durations = (
        "[...document.querySelectorAll('*')].map(one => getComputedStyle(one).transitionDuration)"
    )
    assert set(page.evaluate(durations)) == {"0s"}
    assert serious_findings(page) == []
