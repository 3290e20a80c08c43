"""An evaluation: holdouts, answers by hand, the choice of sentences, known answers, and the
command."""

import json
from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from handmade import LAYERS, corpus_of, make_sentences, resolver_model
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from inside import (
    COLUMNS,
    EVALUATION_WIDTH,
    METHODS,
    NO_PART,
    NOT_LEARNED,
    ONE_SENSE,
    TOO_FEW,
    Holdout,
    Sentence,
    coordinates,
    macro_f1,
    nearest_mean,
    predict,
    print_otherwise,
    splits,
)
from inside import evaluation as accuracy
from seeds import mostly_campaign
from sklearn.metrics import accuracy_score, f1_score

import probe
from probe import tokenize


def row(text, sense, word="bank", **more):
    """A sentence whose word is its first occurrence; `cue` marks another word."""
    start = text.index(word)
    cue = more.pop("cue", None)
    if cue:
        more |= {"cue_start": text.index(cue), "cue_end": text.index(cue) + len(cue)}
    return Sentence(word=word, sense=sense, text=text, start=start, end=start + len(word), **more)


def numbered(senses, parts=None, **more):
    """A sentence of each sense, in the given parts."""
    return [
        row(f"{n} bank", sense, split=part, **more)
        for n, (sense, part) in enumerate(zip(senses, parts or [None] * len(senses), strict=True))
    ]


@pytest.mark.parametrize(
    ("senses", "parts", "used", "left_out"),
    [
        (
            "abacabb",
            ["train", "train", "test", "test", None, "dev", "test"],
            (0, 1, 2, 6),
            "...LPP.",
        ),
        ("aab", ["train", "test", "test"], (), "OOL"),
        ("aaabbbc", None, (0, 1, 2, 3, 4, 5), "......F"),
        ("aaaab", None, (), "OOOOF"),
        (
            "abababab",
            ["train"] * 8,
            tuple(range(8)),
            "........",
        ),  # without a test part there is no split
    ],
)
def test_sentences_that_cannot_be_learned_or_tested_are_left_out_with_the_reason(
    senses, parts, used, left_out
):
    plan = splits.plan(numbered(senses, parts), seed=0)
    reasons = {"L": NOT_LEARNED, "P": NO_PART, "O": ONE_SENSE, "F": TOO_FEW}
    letters = dict(enumerate(left_out))
    assert plan.left_out == {
        row_number: reasons[letter] for row_number, letter in letters.items() if letter != "."
    }
    assert not plan.holdouts if not used else plan.rows == used
    if parts and used:
        assert (
            plan.holdouts == (Holdout((0, 1), (2, 3)),) if None in parts else len(plan.holdouts) > 1
        )


def test_unmarked_pairs_are_reported(tiny):
    rows = [
        {"word": "bank", "sense": sense, "text": f"{n} {cue}{n} bank"}
        for n in range(6)
        for sense, cue in (("a", "mud"), ("b", "tax"))
    ]
    (note,) = probe.evaluate(tiny, sentences=rows).cautions
    assert note.startswith(
        "12 of 12 sentences with 'bank' differ from one of another sense in a single word, but are "
        "not marked as a pair."
    )
    marked = [sentence | {"pair": sentence["text"][0]} for sentence in rows]
    assert probe.evaluate(tiny, sentences=marked).cautions == ()


@given(
    st.lists(
        st.tuples(*(st.integers(0, largest) for largest in (2, 5, 5))), min_size=4, max_size=40
    ),
    st.integers(0, 3),
)
@settings(deadline=None, max_examples=40)
def test_no_frame_and_no_cue_is_learned_and_tested_and_every_sense_is_learned(cases, seed):
    rows = [
        row(f"{n} cue{cue} bank", f"sense{sense}", frame=f"frame{frame}", cue=f"cue{cue}")
        for n, (sense, frame, cue) in enumerate(cases)
    ]
    assume(len({sentence.frame for sentence in rows}) > 1 and len({cue for _, _, cue in cases}) > 1)
    plan = splits.plan(rows, seed=seed)
    assert sorted([*plan.rows, *plan.left_out]) == list(range(len(rows)))
    tested = [position for holdout in plan.holdouts for position in holdout.test]
    assert sorted(tested) == list(range(len(plan.rows)))
    for holdout in plan.holdouts:
        train, test = (
            [cases[plan.rows[position]] for position in side]
            for side in (holdout.train, holdout.test)
        )
        assert {sense for sense, _, _ in train} == {cases[number][0] for number in plan.rows}
        for column in (1, 2):
            assert {case[column] for case in train}.isdisjoint(case[column] for case in test)


def resid_of(*by_depth):
    """`sentence depth d_model` from one list of vectors per depth."""
    return torch.tensor(by_depth, dtype=torch.float32).transpose(0, 1)


HALF = [np.cos(np.radians(50)), np.sin(np.radians(50))]


@pytest.mark.parametrize(
    ("by_depth", "labels", "predicted"),
    [
        # Means (2, 0) and (0, 1). (1, .9) is nearer to (0, 1), 1.005 against 1.345; its angles are
        # 42 and 48 degrees.
        pytest.param([[[1, 0], [3, 0], [0, 1], [0, 1], [1, 0.9]]], [0, 0, 1, 1, 1], [[0]], id="cosine, not distance"),
        # The mean of (10, 0) and (0, 1) points to 6 degrees, that of their directions to 45; the
        # other sense to 76.
        pytest.param([[[10, 0], [0, 1], [1, 4], [1, 4], HALF]], [0, 0, 1, 1, 0], [[1]], id="vectors as they are"),
        pytest.param([[[1, 0], [0, 1], [1, 0.1]], [[0, 1], [1, 0], [1, 0.1]]], [4, 7, 4], [[4], [7]], id="each depth"),
        pytest.param([[[0.1, 0.1]] * 6], [0, 0, 1, 1, 1, 0], [[1]], id="a tie: the most frequent in training"),
        pytest.param([[[0.1, 0.1]] * 6], [0, 0, 1, 1, 0, 1], [[0]], id="a tie: the most frequent in training"),
        pytest.param([[[0, 0], [0, 1], [0, 0]]], [0, 1, 1], [[0]], id="the vector zero is valid"),
    ],
)  # fmt: skip
def test_the_nearest_centroid_is_nearest_by_cosine(by_depth, labels, predicted):
    last = len(labels) - 1
    assert (
        predict(
            resid_of(*by_depth), np.array(labels), Holdout(tuple(range(last)), (last,))
        ).tolist()
        == predicted
    )


@pytest.mark.parametrize(
    ("numbers", "labels", "predicted"),
    [
        pytest.param([5, 7, 15, 17, 12], [0, 0, 1, 1, 0], [1], id="nearer to 16 than to 6"),
        pytest.param([5, 7, 15, 17, 10], [0, 0, 1, 1, 1], [0], id="nearer to 6 than to 16"),
        pytest.param([6, 6, 6, 16, 11], [3, 3, 3, 8, 8], [3], id="a tie: the most frequent"),
        pytest.param([6, 16, 16, 16, 11], [3, 8, 8, 8, 3], [8], id="a tie: the most frequent"),
    ],
)
def test_the_nearest_mean_of_plain_numbers_is_nearest_by_distance(numbers, labels, predicted):
    last = len(labels) - 1
    holdout = Holdout(tuple(range(last)), (last,))
    assert nearest_mean(np.array(numbers, float), np.array(labels), holdout).tolist() == predicted


LETTERS = "bcdfghjkmnpqrstvwz"


def test_the_position_of_the_word_and_the_length_of_the_text_are_baselines(model):
    """In one sense the word is early, in the other late, in texts of equal length."""
    early = [row(f"the {letter} bank of a river", "early") for letter in LETTERS]
    late = [row(f"the {letter} river of a bank", "late") for letter in LETTERS]
    lengths = [len(tokenize(model, sentence.text)) for sentence in (*early, *late)]
    (usual, _), *_ = Counter(lengths).most_common()
    alike = [
        sentence
        for sentence, length in zip((*early, *late), lengths, strict=True)
        if length == usual
    ]
    scores = probe.evaluate(model, sentences=corpus_of(alike), seed=0).words.iloc[0]
    assert scores["length_accuracy"] == scores["frequent_accuracy"]
    assert scores["position_accuracy"] == scores["position_macro_f1"] == 1


def test_the_angle_is_between_different_senses_minus_within_a_sense(monkeypatch):
    def gap(labels, *degrees):
        vectors = [
            [[3 * np.cos(np.radians(angle)), 3 * np.sin(np.radians(angle))] for angle in at]
            for at in degrees
        ]
        return accuracy.angle_gap(resid_of(*vectors), np.array(labels))

    # Same sense: 10, 30, mean 20. Different: 60, 90, 50, 80, mean 70. The other way round same: 60,
    # 80, other 45.
    at = ((0, 10, 60, 90), (30, 30, 30, 30))
    assert np.allclose(gap([0, 0, 1, 1], *at), [50, 0], atol=1e-4)
    assert np.allclose(gap([0, 1, 0, 1], *at), [45 - 70, 0], atol=1e-4)
    assert np.isnan(
        [gap([0, 0, 0], (0, 10, 60)), gap([0, 1, 2], (0, 10, 60))]
    ).all()  # no pair of either kind
    monkeypatch.setattr(accuracy, "ROWS_PER_BLOCK", 3)
    assert np.allclose(gap([0, 0, 1, 1], *at), [50, 0], atol=1e-4)


def test_macro_f1_by_hand_and_scikit_learns_at_every_depth():
    # Sense 0: 2 hits, 3 in gold, 2 predicted: 4/5. Sense 1: 1 hit, 1 in gold, 2 predicted: 2/3.
    assert np.isclose(macro_f1(np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])), (4 / 5 + 2 / 3) / 2)
    # A sense that is predicted but never tested costs its sentence, and does not count as a sense:
    # 4/5 and 1.
    assert np.isclose(macro_f1(np.array([0, 0, 0, 1]), np.array([0, 0, 2, 1])), 0.9)
    rng = np.random.default_rng(0)
    gold, predicted = rng.integers(0, 4, 60), rng.integers(0, 5, (3, 60))
    f1 = [f1_score(gold, depth, labels=range(4), average="macro") for depth in predicted]
    assert np.allclose(macro_f1(gold, predicted), f1)


AFTER = ["the bank of the river b", "the bank gave a loan a", "the bank of a river b"]
AFTER += ["the bank has one loan a", "the bank near his river b", "the bank wants that loan back a"]
BEFORE = [*["river bank b", "loan bank a"] * 2, "river bank b", "a loan bank a"]
UNKNOWN = ["loan bank a", "river bank b", "shore bank b", "bank a", "wholly new bank a"]


@pytest.mark.parametrize(
    ("bag", "texts", "predicted"),
    [
        (accuracy.whole_bag, AFTER, [0, 1, 0]),
        # Only the right context is informative, and b is more frequent in training.
        (accuracy.left_bag, AFTER, [1, 1, 1]),
        (accuracy.whole_bag, BEFORE, [0, 1, 0]),
        (accuracy.left_bag, BEFORE, [0, 1, 0]),
        # Without a known word, the most frequent sense in training is predicted.
        (accuracy.left_bag, UNKNOWN, [1, 1]),
        (accuracy.left_bag, ("bank a", "bank on b", "bank in b", "new bank a"), [1]),
    ],
)
def test_a_bag_of_words_predicts_the_sense_from_its_words(bag, texts, predicted):
    sentences = [row(*text.rsplit(" ", 1)) for text in texts]
    holdout = Holdout(tuple(range(3)), tuple(range(3, len(texts))))
    labels = accuracy.numbered(sentences)
    assert (
        accuracy.predict_by_bag([bag(sentence) for sentence in sentences], labels, holdout).tolist()
        == predicted
    )


def separated(depths, *, separated_at):
    """`sentence depth d_model` of eight sentences, a and b in turn, which differ by sense at some
    depths only."""
    sign = torch.tensor([1.0, -1.0] * 4)
    noise = torch.randn(
        8, depths, 3, generator=torch.Generator().manual_seed(0)
    ) * 0.01 + torch.tensor([1.0, 0, 0])
    for depth in separated_at:
        noise[:, depth, 1] += sign
    return noise


EIGHT = numbered("ab" * 4)


def test_the_depth_is_the_first_after_a_block_where_the_training_sentences_separate(model):
    for separated_at, expected in (([2], 2), ([0, 2], 2), ([1, 2], 1), ([0, 3], 3)):
        assert (
            accuracy.choose_depth(EIGHT, separated(4, separated_at=separated_at), seed=0)
            == expected
        )
    assert (
        accuracy.choose_depth(EIGHT[:2], separated(4, separated_at=[1])[:2], seed=0) == 3
    )  # too few: the last depth
    rows = [
        replace(sentence, split="train" if n < 8 else "test")
        for n, sentence in enumerate(numbered("ab" * 8))
    ]
    (task,) = accuracy.prepare_tasks(model, corpus_of(rows), seed=0)
    trained, tested = separated(4, separated_at=[1]), separated(4, separated_at=[2])
    tested[:, 1] = tested[
        0, 1
    ]  # at the depth that training prefers, the tested sentences are identical
    answer = accuracy.answer(task, torch.cat([trained, tested]), seed=0)
    assert answer.depth == 1
    assert (
        (answer.gold == answer.predicted["nearest"]).mean()
        == 0.5
        == (answer.gold == answer.by_depth[1]).mean()
    )
    assert accuracy.choose_depth(EIGHT, tested, seed=0) == 2


RIVER = (
    "the river bank|a muddy bank by the water|she saw the bank of the old river|the flood rose "
    "over the bank"
)
MONEY = (
    "the bank raised the interest|a loan of the bank|every bank in the town|he sold the stock at "
    "the bank"
)
ROWS = [
    row(text, sense) for sense, texts in (("a", RIVER), ("b", MONEY)) for text in texts.split("|")
]
MOLES = [
    row(f"{text} mole", sense, word="mole")
    for text, sense in zip(("a", "the", "one", "no"), "xxyy", strict=True)
]


def test_the_residual_stream_at_the_word_is_read_in_the_order_of_the_sentences(model, monkeypatch):
    monkeypatch.setattr(accuracy, "CHUNK", 3)
    monkeypatch.setattr(accuracy, "SENTENCES_PER_LOAD", 5)
    zebras = [row(f"{n} zebra ran", "ab"[n % 2], word="zebra") for n in range(4)]
    assert len(tokenize(model, "zebra")) > 2  # more than BOS and one token
    states_of_tasks = list(
        accuracy.read_tasks(
            model, accuracy.prepare_tasks(model, corpus_of([*ROWS, *MOLES, *zebras]), seed=0)
        )
    )
    assert [task.material.word for task, _ in states_of_tasks] == ["bank", "mole", "zebra"]
    for task, (resid, _) in states_of_tasks:
        for sentence, states in zip(task.material.sentences, resid, strict=True):
            whole = probe.trace(model, sentence.text)
            # The last token of the word is the last one that begins before its end.
            target = max(
                pos for pos, (start, _) in enumerate(whole.tokens.spans) if start < sentence.end
            )
            expected = torch.cat([whole.resid_pre[:1, target], whole.resid_post[:, target]])
            assert torch.allclose(states, expected, atol=1e-5)


@pytest.fixture(scope="module")
def two_words(model):
    rows = [
        replace(sentence, split="test" if n % 4 == 3 else "train")
        for n, sentence in enumerate(ROWS)
    ]
    return probe.evaluate(model, sentences=corpus_of([*rows, *MOLES]), seed=0)


def test_the_scores_equal_an_independent_computation(model, two_words):
    vectors = []
    for sentence in ROWS:
        cut = tokenize(model, sentence.text[: sentence.end])
        hidden = model.bridge.original_model(
            torch.tensor([cut.ids]), output_hidden_states=True
        ).hidden_states
        vectors.append(
            [layer[0, -1].detach().numpy() for layer in hidden[:-1]]
        )  # the last one is after the final norm
    vectors, sense, test = (
        np.array(vectors),
        np.array([s.sense for s in ROWS]),
        np.arange(8) % 4 == 3,
    )
    for depth in range(2):
        means = [vectors[(sense == name) & ~test, depth].mean(0) for name in "ab"]
        cosine = [
            [v @ m / np.linalg.norm(v) / np.linalg.norm(m) for m in means]
            for v in vectors[test, depth]
        ]
        predicted = np.array(list("ab"))[np.argmax(cosine, axis=1)]
        scores = two_words.depths.query("word == 'bank' and depth == @depth").iloc[0]
        assert np.isclose(scores["accuracy"], accuracy_score(sense[test], predicted))
        assert np.isclose(
            scores["macro_f1"], f1_score(sense[test], predicted, average="macro"), atol=1e-5
        )


def test_the_frames_count_every_sentence_and_the_mean_is_over_the_words(two_words):
    mean, words, depths = two_words.mean, two_words.words.set_index("word"), two_words.depths
    counts = words[["senses", "sentences", "tested", "left_out"]]
    assert counts.loc["bank"].tolist() == [2, 8, 2, 0] and counts.loc["mole"].tolist() == [
        2,
        4,
        4,
        0,
    ]
    assert words.loc["bank", "frequent_accuracy"] == 0.5 and words.loc["bank", "depth"] in (1, 2)
    assert len(depths) == 2 * 3 and two_words.left_out.empty
    assert set().union(*two_words.frames.values()) <= set(COLUMNS)
    sentences = two_words.sentences
    right = sentences.groupby("word")["right"].mean()
    assert right.tolist() == pytest.approx([*words.sort_index()["accuracy"]])
    apart = sentences[sentences["coordinate"] != 0]  # a tie goes to the more frequent sense
    assert len(apart) and (apart["right"] == (apart["coordinate"] > 0)).all()
    assert (sentences["other"] != sentences["sense"]).all()
    for score in ("accuracy", "macro_f1", "angle"):
        for depth, part in depths.groupby("depth"):
            assert np.isclose(
                mean.query("depth == @depth")[score].item(), part[score].mean(), atol=1e-5
            )
    without_depth = mean[mean["depth"].isna()].set_index("method")
    assert list(without_depth.index) == list(METHODS.values())
    assert np.isclose(
        without_depth.loc["bag of words", "macro_f1"], words["bag_macro_f1"].mean(), atol=1e-5
    )
    assert np.isclose(
        without_depth.loc["nearest sense centroid", "accuracy"], words["accuracy"].mean(), atol=1e-5
    )
    assert (mean["words"] == 2).all()


@pytest.mark.parametrize("seed", mostly_campaign(range(3)))
def test_the_senses_separate_after_the_layer_of_the_resolver(seed):
    model, (layer, _) = resolver_model(seed)
    evaluation = probe.evaluate(
        model, sentences=corpus_of(make_sentences(frames=6, distances=(1, 2))), seed=seed
    )
    by_depth = evaluation.depths["accuracy"]
    assert len(by_depth) == LAYERS + 1
    assert (by_depth[layer + 1 :] == 1).all() and (by_depth[: layer + 1] < 0.75).all()
    assert (
        evaluation.words["depth"].item() == layer + 1 and evaluation.words["accuracy"].item() == 1
    )
    # The cues of the tested folds do not occur in training, so bags of words are at chance.
    assert evaluation.words[["bag_accuracy", "left_accuracy"]].max(axis=None) < 0.75


@pytest.fixture
def run(run, monkeypatch, tmp_path, checkpoint):
    """Run `probe evaluate ARGS` with the small random model in an empty folder; return exit code,
    output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.jsonl").write_text(
        "\n".join(json.dumps(vars(sentence)) for sentence in (*ROWS, *MOLES))
    )
    return partial(run, "evaluate", "--model", checkpoint)


def test_the_command_prints_every_word_in_percent_and_the_mean_by_depth(run, tmp_path, model):
    file = tmp_path / "rows.jsonl"
    file.write_text(
        file.read_text() + "\n" + json.dumps(vars(row("the only seal", "one", word="seal")))
    )
    code, out, err = run("--sentences", file)
    assert code == 0
    assert "probe: In 9 of 13 sentences, at most two words precede the word, and no cue" in err
    lines = [line.split() for line in out.splitlines()]
    assert ["bank", "2", "8", "8", "0"] in [line[:5] for line in lines]
    assert ["mole", "2", "4", "4", "0"] in [line[:5] for line in lines]
    assert all(
        label in out
        for label in ("token + position", "after layer 0", "after layer 1", *METHODS.values())
    )
    tables = out.partition("tested sentences are read otherwise")[0]
    assert max(map(len, tables.splitlines())) <= EVALUATION_WIDTH
    assert "mean over 2 words" in out and f"1 left out: {ONE_SENSE}" in out
    scores = probe.evaluate(model, sentences=probe.read_sentences(file)).words.iloc[0]
    line, baselines, *_ = (line for line in out.splitlines() if line.startswith("bank  "))
    assert f"{100 * scores['accuracy']:.1f}" in line and f"{100 * scores['macro_f1']:.1f}" in line
    assert f"{100 * scores['bag_accuracy']:.1f} / {100 * scores['bag_macro_f1']:.1f}" in baselines


def test_the_coordinate_is_half_at_the_centroid_of_the_sense_and_minus_half_at_the_other():
    # Two training sentences per sense give the centroids (1, 0) and (0, 1).
    vectors = [[1, 0], [1, 0], [0, 1], [0, 1], [3, 0], [0, 2], [1, 1]]
    labels = np.array([0, 0, 1, 1, 0, 0, 1])
    between, other_senses = coordinates(
        torch.tensor(vectors, dtype=torch.float64), labels, Holdout((0, 1, 2, 3), (4, 5, 6))
    )
    assert between.tolist() == pytest.approx([0.5, -0.5, 0]) and other_senses.tolist() == [1, 1, 0]


def test_the_files_are_complete_described_and_reproducible(run, tmp_path):
    for folder in ("one", "two"):
        assert run("--sentences", "rows.jsonl", "--out", tmp_path / folder)[0] == 0
    frames = ("words", "depths", "mean", "left_out", "sentences", "columns")
    names = {f"evaluation_{frame}.csv" for frame in frames} | {"evaluation_tables.zip"}
    assert {file.name for file in (tmp_path / "one").iterdir()} == names | {"manifest.json"}
    assert all(
        (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
        for name in names
    )
    manifest = json.loads((tmp_path / "one" / "manifest.json").read_text())
    assert set(manifest["files"]) == names and manifest["sentences"] == "rows.jsonl"
    assert manifest["command"].split()[:4] == ["probe", "evaluate", "--sentences", "rows.jsonl"]
    assert str(tmp_path) not in (tmp_path / "one" / "manifest.json").read_text()
    assert list(pd.read_csv(tmp_path / "one" / "evaluation_words.csv")["word"]) == [
        "bank",
        "mole",
    ]
    columns = pd.read_csv(tmp_path / "one" / "evaluation_columns.csv").set_index(
        ["table", "column"]
    )
    assert (
        columns.at[("evaluation_depths", "accuracy"), "unit"] == "0 to 1"
        and columns["meaning"].notna().all()
    )
    for name in frames[:-1]:
        assert [*columns.loc[f"evaluation_{name}"].index] == [
            *pd.read_csv(tmp_path / "one" / f"evaluation_{name}.csv")
        ]


def test_invalid_evaluations_are_refused_in_one_sentence(run, tmp_path):
    def refused(*arguments):
        code, out, err = run(*arguments)
        assert code == 2 and out == ""
        assert err.startswith("probe: ") and err.count("\n") == 1 and err.rstrip().endswith("."), (
            err
        )
        return err

    (tmp_path / "one.jsonl").write_text(
        "\n".join(json.dumps(vars(sentence)) for sentence in ROWS[:4])
    )
    assert refused("--sentences", "one.jsonl", "--out", "out") == (
        "probe: Cannot evaluate the sentences of one.jsonl: none of 4 can be tested (4 left out: "
        f"{ONE_SENSE}), "
        "expected a word with two senses and at least two sentences of each. Give more sentences.\n"
    )
    assert not (tmp_path / "out").exists()
    assert "nowhere.jsonl: there is no such file" in refused("--sentences", "nowhere.jsonl")
    assert "--sentences" in refused() and "seed" in refused(
        "--sentences", "rows.jsonl", "--seed", "-1"
    )
    message = refused("--sentences", "rows.jsonl", "--out", tmp_path / "rows.jsonl" / "out")
    assert "is a file" in message and "--out" in message


@pytest.mark.parametrize("seed", range(4))
def test_pairs_that_share_nothing_are_held_out_whole_so_that_no_sense_is_more_frequent(seed):
    """If sentences are crossed with their cue words, training has more of the sense that is
    tested."""
    pairs = [
        row(f"{number} {cue} bank", sense, cue=cue, pair=str(number))
        for number in range(26)
        for sense, cue in (("a", f"left{number}"), ("b", f"right{number}"))
    ]
    plan = splits.plan(pairs, seed=seed)
    assert len(plan.rows) == 52 and len(plan.holdouts) == 5
    for holdout in plan.holdouts:
        for part in (holdout.train, holdout.test):
            senses = [pairs[plan.rows[position]].sense for position in part]
            assert senses.count("a") == senses.count("b") > 0


def test_sentences_without_frames_and_cues_are_split_by_sense_with_the_seed():
    rows = numbered("a" * 10 + "b" * 5)
    plans = [splits.plan(rows, seed=seed) for seed in range(4)]
    for plan in plans:
        tested = [
            Counter(rows[position].sense for position in holdout.test) for holdout in plan.holdouts
        ]
        assert tested == [{"a": 2, "b": 1}] * 5
        assert all(len(holdout.train) == 12 for holdout in plan.holdouts)
    assert plans[1] == splits.plan(rows, seed=1) != plans[2]


@pytest.mark.parametrize("train, test", [((), (1,)), ((0,), ()), ((0, 1), (1,))])
def test_a_holdout_refuses_to_learn_what_it_tests(train, test):
    with pytest.raises(ValueError, match="holdout: "):
        Holdout(train, test)


def test_cosines_that_differ_in_rounding_only_are_a_tie():
    # At each of 64 depths one centroid is three times the other: the same direction, but not the
    # same rounding.
    vectors = torch.randint(-9, 10, (64, 2, 5), generator=torch.Generator().manual_seed(0)).float()
    resid = torch.stack([3 * vectors[:, 0], vectors[:, 0], vectors[:, 0], vectors[:, 1]])
    assert (predict(resid, np.array([0, 1, 1, 0]), Holdout((0, 1, 2), (3,))) == 1).all()


def test_the_clearest_misread_sentences_are_printed(capsys, two_words):
    frame = two_words.sentences.head(3).assign(
        word="bank",
        sense="river",
        predicted=["river", "money", "money"],
        right=[True, False, False],
    )
    texts = ["A", "B", "C " * 150]
    sentences = frame.assign(coordinate=[0.4, -0.1, -0.3], text=texts)
    print_otherwise(replace(two_words, frames=two_words.frames | {"sentences": sentences}))
    out = capsys.readouterr().out
    header, first, *lines = out.splitlines()
    assert header.split() == ["word", "sense", "read", "as", "coordinate", "sentence"]
    assert first.split()[:4] == ["bank", "river", "money", "−0.30"]
    assert out.count("C") == 100 and "−0.10" in out and "0.40" not in out
    assert lines[-1].startswith("2 of 3 tested sentences are read otherwise than labelled; ")
