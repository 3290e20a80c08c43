"""The explorer's page as one file, and in a notebook: its contents, no requests, and refused
arguments."""

import json
import re
import sys

import pytest
from inside import Explorer, ExplorerPage, HeadSwap, Question, explore, scene

import probe
from probe import InputError

THIS, THAT = "They saw the river from the bank", "They took all of the money from the bank"
NEAR = "They saw the money from the bank"
HEAD = '<!doctype html><meta charset="utf-8"><title>t</title>'
LOADING = "probe: loading the model.\n"


def recorded(html):
    """The record in a saved page."""
    (text,) = re.findall('<script type="application/json" id="recorded">(.*?)</script>', html)
    return json.loads(text)


def saved_page(model, folder, text, second):
    *_, (_, html) = explore.saved_page(Explorer(model), Question("save", text, second))
    path = folder / "saved.html"
    path.write_text(html, encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def page_path(tmp_path_factory, tiny):
    path = tmp_path_factory.mktemp("saved") / "page.html"
    question = Question("save", THIS, THAT)
    command = "probe explore --save page.html"
    *_, (_, html) = explore.saved_page(Explorer(tiny), question, command)
    path.write_text(html, encoding="utf-8")
    return path


def _swaps(entry):
    return tuple(HeadSwap(*swap) for swap in entry["swaps"])


def _moved(entry):
    before, after = entry["answer"]["result"]["coordinates"]
    return abs(after - before)


def test_every_swap_of_one_head_is_stored_as_the_explorer_answers_it(page_path, tiny):
    page_data = recorded(page_path.read_text(encoding="utf-8"))
    assert [entry["swaps"] for entry in page_data["swap"]] == [
        [[layer, head, "other"]] for layer in range(4) for head in range(4)
    ]
    explorer = Explorer(tiny)
    for entry in page_data["swap"][::7]:
        *_, last = explorer.answer(Question("swap", THIS, THAT, swaps=_swaps(entry)))
        assert entry["answer"]["result"]["coordinates"] == pytest.approx(
            last["result"]["coordinates"], abs=1e-6
        )
        assert entry["answer"]["result"]["next"] == last["result"]["next"]
    # The text after the swaps that move the word furthest.
    strongest = sorted(page_data["swap"], key=lambda entry: -_moved(entry))[:3]
    assert [entry["swaps"] for entry in page_data["write"]] == [
        [],
        *(entry["swaps"] for entry in strongest),
    ]
    *_, last = explorer.answer(Question("write", THIS, THAT, swaps=_swaps(strongest[0])))
    assert page_data["write"][1]["answer"]["result"] == last["result"]
    assert page_data["command"] == "probe explore --save page.html"
    assert page_data["state"].startswith(
        "text=They%20saw%20the%20river%20from%20the%20bank&other=They"
    )


def test_every_head_can_be_followed_if_an_answer_contains_one_layer_at_a_time(tiny, monkeypatch):
    monkeypatch.setattr(scene, "MAX_CELLS", 1)
    answers = explore.answers_of_sentences(Explorer(tiny), Question("save", THIS, THAT))
    layers = [layer for answer in answers for layer, _ in answer["block"]["heads"]]
    assert sorted(layers) == [layer for layer in range(4) for _ in range(4)]


def test_the_command_writes_one_file_without_a_server(run, tmp_path, monkeypatch):
    path = tmp_path / "new" / "page.html"
    code, out, err = run("explore", "--save", path, THIS, THAT)
    assert (code, out, err) == (0, f"{path}\n", LOADING)
    html = path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["page.html"]
    assert f"probe explore &#39;{THIS}&#39; &#39;{THAT}&#39; --save page.html" in html
    assert "connect-src" not in html.split("</head>")[0]
    assert str(tmp_path) not in html
    again = tmp_path / "again" / "page.html"
    run("explore", "--save", again, THIS, THAT)
    assert again.read_bytes() == path.read_bytes()


def test_one_sentence_is_saved_along_the_axis_of_the_lexicon(tiny):
    question = Question("save", "The mole dug a tunnel.")
    *_, (_, html) = explore.saved_page(Explorer(tiny), question)
    page_data = recorded(html)
    assert {entry["swaps"][0][2] for entry in page_data["swap"]} == {"mean"}
    assert page_data["sentence"][0]["block"] is None  # it is in the page once


REFUSED = {
    "three": (
        ["a bank", "b bank", "c bank"],
        (
            "Cannot explore 3 sentences: expected one or two with the same word. Put each in "
            "quotation marks."
        ),
    ),
    "none": (
        ["--save", "page.html"],
        (
            "Cannot explore with --save: got no sentence. Give one or two with the same word, each in "
            "quotation marks."
        ),
    ),
    "word": (
        ["--word", "bank"],
        (
            "Cannot explore with --word: got no sentence. Give one or two with the same word, each in "
            "quotation marks."
        ),
    ),
    "folder": (
        ["--save", ".", "The river bank", "The money bank"],
        "Cannot save the explorer's page: . is a folder. Give --save a file that ends in .html.",
    ),
    "no page": (
        ["--save", "page.pdf", "The river bank", "The money bank"],
        "Cannot save the explorer's page: 'page.pdf' does not end in .html. Give --save a file that does.",
    ),
    "forgotten": (
        ["--save", "The river bank", "The mortgage bank"],
        "Cannot save the explorer's page: 'The river bank' does not end in .html. Give --save a file that does.",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_invalid_arguments_are_refused_before_the_model_is_loaded(run, name):
    arguments, sentence = REFUSED[name]
    assert run("explore", *arguments) == (2, "", f"probe: {sentence}\n")


@pytest.mark.parametrize("name", ["notes.html", "notes.html/page.html"])
def test_a_file_that_is_not_a_saved_page_is_never_overwritten(run, tmp_path, name):
    notes = tmp_path / "notes.html"
    notes.write_text("my lecture notes")
    refused = {
        "notes.html": (
            f"Cannot save the explorer's page: {notes} exists and is not a page that the explorer saved. "
            "Give --save another file."
        ),
        "notes.html/page.html": (
            f"Cannot write into {notes}: {notes} is a file, expected a folder that can be written. "
            "Choose another (on the command line --save)."
        ),
    }
    code, out, err = run("explore", "--save", tmp_path / name, "The river bank", "The loan bank")
    assert (code, out, err) == (2, "", f"probe: {refused[name]}\n")
    assert notes.read_text() == "my lecture notes" and list(tmp_path.iterdir()) == [notes]


# The headline without a swap.
UNSWAPPED = r"^L\d+H\d+ alone moves “bank” \d+\u202f% of the way from “\w+” to “\w+”\.$"


def wait_for_outcome(page, pattern):
    """Wait until the headline matches a pattern, and return it."""
    page.wait_for_function(
        "pattern => RegExp(pattern).test(document.querySelector('[data-slot=outcome]').textContent)",
        arg=pattern,
    )
    return page.locator('[data-slot="outcome"]').inner_text()


@pytest.fixture
def opened(shared_page, page_path):
    """The saved page, opened once; its address restores the first answer."""
    opened = shared_page(page_path)
    opened.page.evaluate("location.hash = ''")
    wait_for_outcome(opened.page, UNSWAPPED)
    yield opened
    assert opened.trouble == []


class TestPage:
    def test_it_opens_from_a_file_and_swaps_without_a_model(self, opened, tiny):
        page = opened.page
        page.wait_for_selector("[data-map=swap] .cell[title]")
        assert page.locator('[name="text"]').input_value() == THIS
        assert page.locator('[name="other"]').get_attribute("readonly") is not None
        assert page.locator('[name="save"]').is_hidden() and page.locator("#trace").is_hidden()
        followed = page.locator('[data-slot="head"]').first.inner_text()
        walked = probe.walk(tiny, THIS, against=THAT, causal_trace=False)
        assert followed == f"L{walked.layer}H{walked.head}"
        for layer, head in ((walked.layer, walked.head), (1, 2)):
            cell = page.locator(f'[name="map-swap"][value="{layer}.{head}"]')
            cell.click(force=True)
            name = f"L{layer}H{head}"
            outcome = wait_for_outcome(page, f"^With {name} swapped, ")
            assert page.locator('[name="swap"][value="other"]').is_checked()
            effect = cell.get_attribute("aria-label").removeprefix(f"{name}: ")
            assert f"moves {effect} of the way" in outcome
            text = page.locator('[data-slot="swapped-text"]').inner_text()
            is_written = (layer, head) == (walked.layer, walked.head)
            assert (text == "(not in this saved page: run probe explore)") != is_written
        assert page.locator('[name="swap"][value="off"]').is_disabled()
        assert page.locator("[data-trouble]").is_hidden()

    def test_unknown_parts_of_an_address_are_ignored(self, opened, page_path):
        page = opened.page
        first = page.locator('[data-slot="following"]').inner_text()
        own_text = page.locator('[data-slot="own"]').inner_text()
        with_swap = "^With L0H0 swapped, "
        page.goto("about:blank")
        page.goto(f"{page_path.as_uri()}#follow=L9H9%409")
        for state, outcome, followed in (
            ("follow=L9H9%409", UNSWAPPED, first),
            ("follow=L1H1%403&swap=L9H9-other", UNSWAPPED, "L1H1 at “the”, token 3"),
            ("follow=L1H1%407&swap=L0H0-off", UNSWAPPED, "L1H1 at “bank”, token 7"),
            ("follow=L0H0%407&swap=L0H0-other", with_swap, "L0H0 at “bank”, token 7"),
        ):
            page.evaluate("state => (location.hash = state)", state)
            wait_for_outcome(page, outcome)
            page.wait_for_function(
                "text => document.querySelector('[data-slot=own]').textContent === text",
                arg=own_text,
            )
            assert page.locator('[data-slot="following"]').inner_text() == followed
            assert page.locator("[data-with-swap]").is_hidden() == (outcome == UNSWAPPED)

    @pytest.mark.campaign
    def test_equal_vectors_have_no_map_and_a_swap_repeats_the_reason(
        self, open_page, tiny, tmp_path
    ):
        path = saved_page(tiny, tmp_path, "The bank by the river", "The bank of gold")
        opened = open_page(path)
        page = opened.page
        same = (
            "Cannot move “bank” toward another meaning: its vector is the same in both sentences, "
            "because the words that differ come after it. Put them before it."
        )
        assert wait_for_outcome(page, "^Cannot move “bank”") == same
        assert page.locator("#movers").is_hidden()
        assert page.locator("[data-map=swap]").is_hidden() and page.locator(".swapping").is_hidden()
        assert "of the way" not in page.locator("body").inner_text() + page.title()
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}#follow=L0H0@2&swap=L0H0-other")
        assert wait_for_outcome(page, r"swapped\.$") == f"{same} L0H0 swapped."
        assert opened.trouble == []


@pytest.fixture(scope="module")
def explored(tiny):
    return probe.explore(tiny, THIS, against=NEAR)


def test_a_text_that_cannot_be_explored_is_refused(tiny):
    with pytest.raises(InputError, match="it is empty"):
        probe.explore(tiny, " ")
    with pytest.raises(InputError, match="the two sentences share no word"):
        probe.explore(tiny, THIS, against="Nothing here.")


def test_a_word_without_an_axis_is_explored_without_a_map(tiny):
    page = probe.explore(tiny, "He walked to the garden", at="garden")
    assert recorded(page.html)["swap"] == []


def test_the_repr_names_the_model_and_the_sentences(explored):
    assert repr(explored) == f"<ExplorerPage of tiny-senses: {THIS!r} against {NEAR!r}>"
    assert repr(ExplorerPage("m", (THIS,), "")) == f"<ExplorerPage of m: {THIS!r}>"


def test_it_needs_no_server(tiny, monkeypatch):
    monkeypatch.setitem(sys.modules, "starlette", None)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert "connect-src" not in probe.explore(tiny, THIS).html.split("</head>")[0]


def test_the_explorer_behaves_like_the_saved_page(explored, open_page, tmp_path):
    path = tmp_path / "notebook.html"
    path.write_text(f"{HEAD}<main>{explored._repr_html_()}</main>", encoding="utf-8")
    opened = open_page(path, ready=False)
    page = opened.page
    frame = page.frame_locator("iframe")
    outcome = frame.locator('[data-slot="outcome"]')
    head = frame.locator('[name="map-swap"][value="0.0"]')
    outcome.filter(has_text="L0H0 alone moves “bank” ").wait_for()
    assert frame.locator('[name="text"]').input_value() == THIS
    assert frame.locator('[data-map="swap"] .cell').count() >= 16
    head.click(force=True)
    outcome.filter(has_text="With L0H0 swapped, “bank” moves ").wait_for()
    page.evaluate("history.back()")  # back in the frame's own states
    outcome.filter(has_text="L0H0 alone moves “bank” ").wait_for()
    assert page.url == path.as_uri()
    head.click(force=True)
    frame.get_by_role("button", name="Undo").click()
    outcome.filter(has_text="L0H0 alone moves “bank” ").wait_for()
    requests = [url for url in opened.requests if not url.startswith(("blob:", "data:"))]
    assert requests == [path.as_uri()] and opened.trouble == []
