"""A survey from sentences to tables: the same bytes with any workers and after any interruption,
and every word and sentence counted."""

import json
import re
import weakref
from dataclasses import replace

import pytest
import torch
from inside import (
    NO_ENGLISH,
    NO_NOUN,
    SURVEY,
    counted,
    not_swapped,
    plan_survey,
    survey_run,
    survey_suffices,
    words,
    workers,
)
from seeds import mostly_campaign

import probe
from probe import InputError

SHIPPED = probe.lexicon.words()
WORDS = SHIPPED[:7]  # the fewest with a test of the gap


def some_of(word, pairs=3):
    """A few pairs of a word with the cue next to the word, each pair in a separate frame."""
    rows = [row for row in probe.lexicon.expand(word).sentences if row.distance == 1]
    frames = list(dict.fromkeys(row.frame for row in rows))
    return [
        row
        for number, frame in enumerate(frames[:pairs])
        for row in rows
        if row.frame == frame and row.pair.endswith(f"/{number}")
    ]


SENTENCES = [row for word in WORDS for row in some_of(word)]


def files_of(survey):
    return contents(survey.files[0].parent)


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tiny, tmp_path_factory):
    return probe.survey(tiny, sentences=SENTENCES, out=tmp_path_factory.mktemp("survey"))


def test_every_word_has_a_record_and_every_word_with_a_clear_gap_its_sets(whole):
    assert [record.word for record in whole.records()] == list(WORDS)
    words = whole.frames["survey_words"]
    assert list(words["word"]) == list(WORDS) and set(words["pairs"]) == {3, 6}
    assert set(whole.frames["survey_sets"]["word"]) == set(words["word"][words["clear"]])
    assert len(files_of(whole)) == len(WORDS) + words["clear"].sum() > len(WORDS)
    # Six pairs of four senses with three pairs of sentences each, and at least one is swapped.
    [unused] = whole.frames["survey_left_out"].values.tolist()
    assert unused == ["mole", not_swapped(18, 1), 12] and whole.cautions == ()
    assert all(
        re.fullmatch(r"words/\w+-[0-9a-f]{16}\.word", "/".join(file.parts[-2:]))
        for file in whole.files
    )
    assert len(whole.frames["survey_heads"]) == 16 and whole.depth == words["depth"].iloc[0]


@pytest.mark.parametrize("number", mostly_campaign([2, 1]))
def test_the_workers_of_dask_write_the_same_bytes(whole, tmp_path, number):
    pytest.importorskip("distributed")
    model = probe.load("tiny-senses")  # whose untrained model the workers make
    again = probe.survey(model, sentences=SENTENCES, out=tmp_path, workers=number)
    assert files_of(again) == files_of(whole)


def test_only_missing_and_truncated_files_are_measured_again(whole, tiny, tmp_path, monkeypatch):
    expected = files_of(whole)
    folder = tmp_path / "words"
    folder.mkdir()
    names = [file.name for file in whole.files]
    for name, content in expected.items():
        (folder / name).write_bytes(content)
    (folder / f".{names[0]}.0123.part").write_bytes(b"half")
    (folder / names[1]).unlink()
    (folder / names[2]).write_bytes(expected[names[2]][:-100])
    cut = next(name for name in expected if name.endswith(".sets"))
    (folder / cut).write_bytes(b"")
    measured = []
    for name in ("measure_word", "measure_sets"):
        function = getattr(survey_run, name)

        def counted(model, sentences, *arguments, function=function, **options):
            measured.append((function.__name__, sentences[0].word))
            return function(model, sentences, *arguments, **options)

        monkeypatch.setattr(survey_run, name, counted)
    again = probe.survey(tiny, sentences=SENTENCES, out=tmp_path)
    assert files_of(again) == expected
    assert measured == [
        ("measure_word", WORDS[1]),
        ("measure_word", WORDS[2]),
        ("measure_sets", cut.split("-")[0]),
    ]


def test_a_stop_in_the_middle_keeps_what_is_finished(whole, tiny, tmp_path):
    class Stop(Exception):
        pass

    def stop(part, share):
        if part == "words" and share > 0.3:
            raise Stop

    with pytest.raises(Stop):
        probe.survey(tiny, sentences=SENTENCES, out=tmp_path, progress=stop)
    half = contents(tmp_path / "words")
    assert 0 < len(half) < len(WORDS) and half.items() <= files_of(whole).items()
    assert files_of(probe.survey(tiny, sentences=SENTENCES, out=tmp_path)) == files_of(whole)


def test_words_that_cannot_be_measured_are_counted_and_every_sentence_with_them(tiny):
    one_sense = [row for row in some_of(WORDS[0]) if row.sense == some_of(WORDS[0])[0].sense]
    late = [
        replace(row, cue_start=row.start, cue_end=row.end, start=row.cue_start, end=row.cue_end)
        for row in some_of(WORDS[1])
    ]
    late = [replace(row, word=row.text[row.start : row.end]) for row in late[:1]]
    long = replace(SENTENCES[-1], word="pages", text=SENTENCES[-1].text + " pages" * 400)
    rows = [long, *one_sense, *late, *SENTENCES[12:36]]
    survey = probe.survey(tiny, sentences=rows, controls=())
    words = survey.frames["survey_words"].set_index("word")
    assert len(words) == len({row.word for row in rows})
    assert words.loc[WORDS[0], "reason"] == "the word has no other sense left"
    assert words.loc[late[0].word, "reason"].startswith("the cue comes after the word")
    left_out = survey.frames["survey_left_out"]
    sentences = left_out["count"][~left_out["reason"].str.startswith("heads are swapped")]
    assert words["sentences"].sum() + sentences.sum() == len(rows)


def test_sentences_of_another_language_get_no_english_nouns(tiny):
    shifted = []
    sentences = [row for word in WORDS[:2] for row in some_of(word)]
    for row in sentences:
        text = f"Quer durch {row.cue} {row.word}"
        spans = {"start": text.rindex(row.word), "end": len(text), "cue_start": 11}
        spans["cue_end"] = 11 + len(row.cue)
        shifted.append(replace(row, text=text, **spans))
    survey = probe.survey(tiny, sentences=shifted)
    assert survey.cautions == (NO_ENGLISH,) and survey.options["controls"] == []
    assert all(record.measured["nouns"] is None for record in survey.records())
    with_noun = probe.survey(tiny, sentences=shifted, controls=["piano"])
    measured = [each for record in with_noun.records() for each in record.of_pairs("nouns")]
    assert with_noun.cautions == () and {
        noun for each in measured for noun in each.noun.values
    } == {"piano"}
    long = probe.survey(tiny, sentences=sentences, controls=["notaword"])
    assert long.cautions == (NO_NOUN,)


def test_the_shipped_words_are_surveyed_by_default(tiny, monkeypatch):
    corpus = survey_run.corpus_for(tiny, None)
    assert {row.word for row in corpus.sentences} == set(SHIPPED)
    outside = replace(tiny, origin=replace(tiny.origin, kind="folder"))
    natural = survey_run.corpus_for(outside, None)
    assert {row.word for row in natural.sentences} == set(probe.lexicon.natural_words())
    assert (
        natural.source == "sentences in natural English composed for probe"
        and len(natural.sha256) == 64
    )


def test_unusable_workers_are_refused_in_a_sentence(tiny, tmp_path, monkeypatch):
    def refused(message, **options):
        with pytest.raises(InputError) as error:
            probe.survey(tiny, sentences=SENTENCES, out=tmp_path, **options)
        assert str(error.value) == message

    refused(
        "Cannot survey words with the workers of tcp://127.0.0.1:1: the model was given as an object, "
        "expected a name or a folder that every worker can load. Give the name as the model.",
        scheduler="tcp://127.0.0.1:1",
    )
    refused(
        "Cannot survey words: got workers = 'dask', expected a whole number from 1 on. Omit it for one "
        "after the other.",
        workers="dask",
    )
    pytest.importorskip("distributed")
    monkeypatch.setattr(workers, "PATIENCE", "200ms")
    with pytest.raises(InputError) as error:
        probe.survey("tiny-senses", sentences=SENTENCES, scheduler="tcp://127.0.0.1:1")
    assert str(error.value).startswith(
        "Cannot reach Dask at tcp://127.0.0.1:1: no scheduler answers ("
    ) and str(error.value).endswith(
        "Start one with `dask scheduler`, or omit --scheduler to use this machine."
    )


def test_a_dry_run_says_which_words_can_be_measured_and_writes_nothing(run, tmp_path):
    rows = [f"{row.word};{row.sense};{row.text}" for row in SENTENCES if row.word in WORDS[:2]]
    rows += ["bat;animal;The furry bat slept", "bat;club;The wooden bat broke"]
    file = tmp_path / "words.csv"
    file.write_text("\n".join(["word;sense;text", *rows, rows[-1]]), encoding="utf-8")
    options = ["--sentences", file, "--out", tmp_path / "out", "--controls", "none", "--dry-run"]
    code, out, err = run("survey", *options)
    assert (code, err) == (0, "") and not (tmp_path / "out").exists()
    enough, unmeasured, *left_out = out.splitlines()
    assert enough.startswith("2 of 3 words can be measured; with fewer than 7 no test of the gap")
    assert unmeasured == (
        "not measured: bat: no two of its senses have two sentences each with cue words that can "
        "be split."
    )
    survey = probe.survey("tiny-senses", sentences=file, controls=())
    counts = survey.frames["survey_left_out"].query("word != 'bat'").groupby("reason")["count"]
    assert set(left_out) == {
        f"{counted(count, 'sentence')} left out: {reason}."
        for reason, count in counts.sum().items()
    }
    planned = json.loads(run("survey", *options, "--json")[1])
    words = survey.frames["survey_words"].query("pairs > 0")
    assert {row["word"]: row["pairs"] for row in planned["words"] if row["pairs"]} == dict(
        zip(words["word"], words["pairs"], strict=True)
    )


@pytest.mark.parametrize(("pages", "limit"), [(False, "8"), (True, "24")])
def test_a_dry_run_counts_the_pairs_in_which_no_head_is_swapped(tiny, pages, limit):
    plan = plan_survey(tiny, probe.lexicon.expand("bank"), controls=(), pages=pages)
    [word] = plan.words
    more = "" if pages else " (24 with --pages)"
    assert word.pairs == int(limit) < word.pairs_in_all
    assert survey_suffices(plan)[1] == (
        f"{word.pairs_in_all - word.pairs} of {word.pairs_in_all} pairs of sentences are not "
        f"swapped: heads are swapped in at most {limit} pairs for two senses of a word{more}."
    )


def test_the_command_surveys_files_with_several_models_and_prints_the_results(run, tmp_path):
    file = tmp_path / "words.jsonl"
    lines = [json.dumps(row_of_file(row)) for row in SENTENCES if row.word in WORDS[:3]]
    file.write_text("\n".join(lines), encoding="utf-8")
    options = ["--sentences", file, "--out", tmp_path / "out", "--controls", "none"]
    models = ["--model", "tiny-senses", "--model", "tiny-senses-bidirectional"]
    code, out, _ = run("survey", *options, *models, "--json")
    surveys = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [survey["model"] for survey in surveys] == [*models[1::2]]
    for survey in surveys:
        assert [row["word"] for row in survey["survey_words"]] == list(WORDS[:3])
        assert survey["options"] == {"seed": 0, "controls": []}
    page = (tmp_path / "out" / "survey.html").read_text(encoding="utf-8")
    assert "tiny-senses-bidirectional" in page
    assert len(list((tmp_path / "out" / "words").glob("*.word"))) == 6
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8"))
    assert "probe survey --sentences words.jsonl --model tiny-senses --model" in str(manifest)

    file.write_text("\n".join(lines[:1]), encoding="utf-8")
    code, out, err = run("survey", *options)
    assert (code, out) == (2, "") and err.count("\n") == 1
    assert "0 of its 1 words were measured (no two of its senses have two sentences" in err


def row_of_file(row):
    """A sentence as a row of a file."""
    return {name: value for name, value in vars(row).items() if name not in ("where", "more")}


def test_the_job_of_a_study_does_not_keep_its_model_in_memory(tiny):
    model = replace(tiny)
    reference = weakref.ref(model)
    words.job_of(model, SURVEY)
    del model
    assert reference() is None


def test_workers_tokenize_texts_like_the_model_of_the_survey(tiny):
    model = probe.load("tiny-senses", prepend_bos=False, split_special_tokens=False)
    job = words.job_of(model, SURVEY, "tiny-senses")
    words.keep_loaded(words.job_of(tiny, SURVEY), tiny)  # in place of the survey's own
    loaded = words.model_of(job)
    assert loaded is not model and loaded.config == model.config
    assert job.model_key != words.job_of(tiny, SURVEY).model_key


@pytest.mark.parametrize("number", [None, 2])
def test_torch_uses_one_thread_for_words_and_the_previous_number_afterwards(number):
    pytest.importorskip("distributed")
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with workers.running(number, None) as run:
            assert set(run(torch.get_num_threads, [()] * 6)) == {1}
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_other_options_and_other_sentences_are_kept_apart(whole, tiny, tmp_path):
    same = [row for word in WORDS[:2] for row in some_of(word)]
    fewer = [row for word in WORDS[:2] for row in some_of(word, pairs=2)]
    for sentences, options in ((fewer, {}), (same, {"seed": 1}), (same, {"controls": ()})):
        changed = probe.survey(tiny, sentences=sentences, out=tmp_path, **options)
        assert not set(files_of(changed)) & set(files_of(whole))
