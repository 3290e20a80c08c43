"""Ablation of heads at the word: the choice of heads, the predictions without them, known answers,
and the command."""

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd
import pytest
from checkpoints import make_checkpoint
from handmade import (
    HEADS,
    LAYERS,
    corpus_of,
    make_sentences,
    random_model,
    resolver_encoder,
    resolver_model,
    without,
)
from hooked_runs import run_with_swaps
from inside import (
    CHOSEN,
    OTHER_WORD,
    Material,
    Sentence,
    compare,
    dictionary,
    mask_of,
    p_value,
    read_weights,
    rows_without,
    target_states,
)
from inside import EVALUATION_COLUMNS as COLUMNS
from inside import EVALUATION_KINDS as KINDS
from inside import evaluation as ablation
from seeds import mostly_campaign
from sklearn.metrics import f1_score

import probe
from probe import InputError
from probe.studies.heads_given import heads_of


def masks_of(heads):
    """The set of these heads and random sets of others."""
    return ablation.with_random_sets(mask_of(heads, (LAYERS, HEADS)), seed=0)


ROWS = make_sentences(frames=6, distances=(1, 2))
NATURAL = tuple(replace(row, frame=None) for row in without(ROWS, "cue_start", "cue_end", "pair"))


def with_other_heads(head):
    """The head and one head of every other layer. There are 27 sets of other heads, more than are
    drawn."""
    layer, number = head
    other_heads = [
        (other_layer, (number + 1) % HEADS) for other_layer in range(LAYERS) if other_layer != layer
    ]
    return [head, *other_heads]


def means(evaluation, kind="mean"):
    """The rows of the mean over words, by depth. The last is the depth chosen on training
    sentences."""
    rows = evaluation.without[
        evaluation.without["word"].isna() & (evaluation.without["kind"] == kind)
    ]
    return rows.reset_index(drop=True)


# --- known answers --------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [resolver_model, resolver_encoder])
@pytest.mark.parametrize("seed", mostly_campaign(range(6)))
def test_without_the_resolver_accuracy_falls_to_the_bag_of_words_and_without_random_sets_it_does_not(
    make, seed
):
    model, head = make(seed)
    evaluation = probe.evaluate(
        model, sentences=corpus_of(ROWS), without=with_other_heads(head), seed=seed
    )
    assert set(evaluation.without["random_sets"]) == {(HEADS - 1) ** 3}  # one head of three layers
    bag = evaluation.words["bag_accuracy"].item()
    for kind in ("mean", "swap"):
        rows = means(evaluation, kind)
        after = rows.index > head[0]
        assert (rows["accuracy"][after] == 1).all() and rows["label"].iloc[-1] == CHOSEN
        assert (rows["accuracy_without"][after] < bag + 0.1).all() and bag < 0.75
        assert (rows["beyond_random_low"][after] > 0.1).all()
        assert (rows["random_most"][after] < 0.02).all()
        assert np.allclose(rows["p"][after], 1 / ((HEADS - 1) ** 3 + 1))
    # A donor of the same sense carries the same sense.
    assert (means(evaluation, "same_sense")["fall"][head[0] + 1 :] == 0).all()


def test_before_the_first_layer_with_a_head_out_nothing_changes_at_all():
    model, _ = resolver_model(0)
    evaluation = probe.evaluate(model, sentences=corpus_of(ROWS), without=[(2, 0)])
    for kind in KINDS:
        rows = means(evaluation, kind)
        early = rows[["fall", "fall_low", "fall_high", "random_least", "random_most"]][:3]
        assert (early == 0).all(axis=None)
        assert rows["accuracy"][:4].tolist() == evaluation.depths["accuracy"].tolist()


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["mean", "swap"])
def test_of_forty_random_sets_between_one_and_four_are_significant(kind, wide_p_values):
    p_values = wide_p_values[kind]
    assert len(p_values) == 40 and 0.02 <= (p_values < 0.05).mean() <= 0.1


@pytest.fixture(scope="module")
def wide_p_values():
    """The p of forty random sets of six heads in a model with random weights, by kind."""
    with TemporaryDirectory() as folder:
        model = probe.load(make_checkpoint(Path(folder), n_layer=4, n_head=12, n_embd=96))
    sentences = probe.lexicon.expand_natural("bank")
    p_values = {"mean": [], "swap": []}
    for seed in range(40):
        numbers = np.random.default_rng(seed).choice(4 * 12, 6, replace=False)
        heads = [divmod(int(number), 12) for number in numbers]
        evaluation = probe.evaluate(model, sentences=sentences, without=heads, seed=seed)
        for kind, values in p_values.items():
            values.append(means(evaluation, kind)["p"].iloc[-1])
    return {kind: np.array(values) for kind, values in p_values.items()}


# --- what is computed -----------------------------------------------------------------------------

RIVER = "the river {}|a muddy {} by the water|she saw the {} of the old river|the flood over the {}"
MONEY = (
    "the {} raised the interest|a loan of the {}|every {} in the town|he sold the stock at the {}"
)


def natural(word="bank"):
    """Sentences without any marks, half of them for training."""
    rows = []
    for sense, texts in (("a", RIVER), ("b", MONEY)):
        for number, text in enumerate(texts.split("|")):
            start = text.index("{")
            span = {"start": start, "end": start + len(word)}
            part = "train" if number % 2 else "test"
            rows.append(Sentence(word, sense, text.format(word), split=part, **span))
    return rows


@pytest.mark.parametrize("kind", ["random weights", "encoder"])
def test_every_prediction_equals_a_whole_hooked_run_with_the_heads_replaced(kind):
    if kind == "encoder":
        model, planted_head = resolver_encoder(1)
        rows = make_sentences(frames=3, distances=(1, 2), cues=4)
        masks = masks_of(with_other_heads(planted_head))
    else:
        model, rows = random_model(), natural()
        masks = masks_of([(0, 1), (2, 3)])
    (task,) = ablation.prepare_tasks(model, corpus_of(rows), seed=0)
    ((_, states),) = ablation.read_tasks(model, [task], ablation.layers_of(masks))
    labels = ablation.numbered(task.material.sentences)
    holdouts = task.plan.holdouts
    predictions = ablation.predict_without(read_weights(model), task, states, masks, seed=3)
    assert predictions.shape == (3, len(masks), len(labels), model.config.n_layers + 1)
    z = target_states(model, task.material.tokens, task.material.targets).z
    rng = np.random.default_rng(3)
    drawn = [ablation.draw_donors(labels, holdout, rng) for holdout in holdouts]
    changed = 0
    for holdout, (any_sense, same_sense) in zip(holdouts, drawn, strict=True):
        train = list(holdout.train)
        assert {*any_sense, *same_sense} <= set(train)
        assert (labels[list(holdout.test)] == labels[same_sense]).all()
        resid = states.resid.double().numpy()
        centroids = np.stack([resid[train][labels[train] == sense].mean(0) for sense in (0, 1)])
        for row, donor, alike in list(zip(holdout.test, any_sense, same_sense, strict=True))[:2]:
            donors = (z[train].mean(0), z[donor], z[alike])
            for number, new_z in enumerate(donors):
                swaps = [
                    {(layer, head): new_z[layer, head] for layer, head in np.argwhere(mask)}
                    for mask in masks
                ]
                streams, _ = run_with_swaps(model, task.material.texts[row], swaps)
                vectors = streams.double().numpy()  # layer set d_model
                cosine = [
                    (vectors * means[1:, None]).sum(-1)
                    / np.linalg.norm(vectors, axis=-1)
                    / np.linalg.norm(means[1:, None], axis=-1)
                    for means in centroids
                ]
                expected = np.argmax(cosine, axis=0).T  # set layer
                clear = np.abs(cosine[0] - cosine[1]).T > 1e-6
                assert clear.mean() > 0.9
                assert (predictions[number, :, row, 1:] == expected)[clear].all()
                changed += (expected != expected[0]).sum()
    assert changed > 0  # the predictions of the sets differ, so sets cannot be confused


def test_the_intervals_are_of_paired_differences_over_sentences():
    sentences, sets, depths = 400, 4, 3
    rng = np.random.default_rng(0)
    gold = rng.integers(0, 2, sentences)
    intact = np.where(rng.random((depths, sentences)) < 0.8, gold, 1 - gold)
    lost = rng.random((3, sets, sentences, depths)) < np.array([0.3, *[0.1] * 3])[:, None, None]
    wrong = np.where(lost, 1 - gold[:, None], intact.T)
    row = Sentence("bank", "a", "bank", 0, 4)
    material = Material("bank", (row,) * sentences, (), (), (), ())
    depth_of_row = rng.integers(0, depths, sentences)
    comparison = compare(material, gold, intact, wrong, depth_of_row, seed=0)
    right = (intact == gold).T.astype(float)
    difference = right - (wrong[0] == gold[:, None])  # set sentence depth
    beyond = difference[0] - difference[1:].mean(0)
    table = rows_without("bank", comparison).query("kind == 'mean'")
    assert table["accuracy"].iloc[-1] == right[np.arange(sentences), depth_of_row].mean()
    for name, per_sentence in (("fall", difference[0]), ("beyond_random", beyond)):
        error = per_sentence.std(0) / np.sqrt(sentences)
        here = table.iloc[:depths]
        assert np.allclose(here[name], per_sentence.mean(0))
        assert np.allclose(here[f"{name}_low"], here[name] - 1.96 * error, atol=0.2 * error.min())
        assert np.allclose(here[f"{name}_high"], here[name] + 1.96 * error, atol=0.2 * error.min())
    scores = [f1_score(gold, wrong[0, 0, :, depth], average="macro") for depth in range(depths)]
    assert np.allclose(table["macro_f1_without"].iloc[:depths], scores)
    assert np.isclose(
        table["macro_f1"].iloc[-1],
        f1_score(gold, intact[depth_of_row, np.arange(sentences)], average="macro"),
    )
    rows_drawn = rng.integers(0, sentences, (400, sentences))
    falls = [
        f1_score(gold[row], intact[1][row], average="macro")
        - f1_score(gold[row], wrong[0, 0, row, 1], average="macro")
        for row in rows_drawn
    ]
    assert np.isclose(table["macro_f1_fall"].iloc[1], table["macro_f1"].iloc[1] - scores[1])
    assert np.allclose(
        table[["macro_f1_fall_low", "macro_f1_fall_high"]].iloc[1],
        np.quantile(falls, [0.025, 0.975]),
        atol=0.25 * np.std(falls),
    )
    assert np.allclose(table["random_most"].iloc[:depths], difference[1:].mean(1).max(0))
    for depth in range(depths):
        as_much = (difference[1:].mean(1)[:, depth] >= difference[0].mean(0)[depth]).sum()
        assert table["p"].iloc[depth] == (1 + as_much) / sets
    assert np.allclose(table["random_least"].iloc[:depths], difference[1:].mean(1).min(0))


def test_intervals_resample_whole_cue_words_and_frames_if_the_file_marks_them():
    model, head = resolver_model(0)
    marked, bare = (
        means(probe.evaluate(model, sentences=corpus_of(rows), without=[head]))
        for rows in (ROWS, NATURAL)
    )
    width = [rows["fall_high"].iloc[-1] - rows["fall_low"].iloc[-1] for rows in (marked, bare)]
    assert width[0] > 1.5 * width[1] > 0


def test_the_mean_counts_each_word_once_and_words_are_independent():
    model = random_model()
    bank, mole = natural(), natural("mole")[:6]
    both = probe.evaluate(model, sentences=corpus_of([*bank, *mole]), without="L0H1,L2H3")
    only_mole = probe.evaluate(
        model, sentences=corpus_of([*bank, *mole]), words="mole", without="L0H1,L2H3"
    )
    rows = both.without.set_index(["kind", "label"])
    by_word = dict(list(rows.groupby("word")))
    mean = rows[rows["word"].isna()]
    for column in ("accuracy", "accuracy_without", "fall", "random_fall", "beyond_random"):
        expected = (by_word["bank"][column] + by_word["mole"][column]) / 2
        assert np.allclose(mean[column], expected, atol=1e-5)
    assert set(mean["tested"]) == {7} and set(by_word["mole"]["tested"]) == {3}
    assert by_word["mole"].equals(
        only_mole.without[only_mole.without["word"] == "mole"].set_index(["kind", "label"])
    )
    assert (
        both.words["word"].tolist() == ["bank", "mole"] and only_mole.words["word"].item() == "mole"
    )
    assert only_mole.left_out["reason"].tolist() == [OTHER_WORD] * len(bank)


# --- which heads ----------------------------------------------------------------------------------

SURVEY = pd.DataFrame(
    {"layer": [0, 1, 1, 2], "head": [1, 0, 2, 3], "effect": [0.1, 0.4, -0.9, 0.2], "p": 0.01}
)
# Two rows per head, as in the table of a report with several words or pairs of senses.
REPORT = pd.DataFrame(
    {
        "word": [*["bank"] * 3, *["mole"] * 3],
        "layer": [0, 1, 2] * 2,
        "head": [3, 2, 1] * 2,
        "swap": [0.5, 0.3, None, 0.1, 0.4, None],
    }
)


@pytest.mark.parametrize(
    ("heads", "top", "expected"),
    [
        ("L1H2", None, [(1, 2)]),
        (" l1h2 , L0H0,L1H2", None, [(1, 2), (0, 0)]),
        (["L1H2", (0, 0)], None, [(1, 2), (0, 0)]),
        (SURVEY, 2, [(1, 0), (2, 3)]),
        (SURVEY[["layer", "head"]][:2], None, [(0, 1), (1, 0)]),
        (REPORT, 2, [(1, 2), (0, 3)]),
        (SURVEY.assign(effect=0.0), 3, [(0, 1), (1, 0), (1, 2)]),
    ],
)
def test_heads_are_named_or_taken_from_a_table_by_their_effect(tmp_path, heads, top, expected):
    forms = [heads]
    if isinstance(heads, pd.DataFrame):
        heads.to_csv(tmp_path / "heads.csv", index=False)
        heads.to_parquet(tmp_path / "heads.parquet")
        forms += [str(tmp_path / "heads.csv"), tmp_path / "heads.parquet"]
    for form in forms:
        assert heads_of(form, top, random_model()) == expected
    masks = masks_of(expected)
    assert np.argwhere(masks[0]).tolist() == sorted(map(list, expected))
    assert not (masks[1:] & masks[0]).any() and (masks.sum(2) == masks[0].sum(1)).all()


LIST = "is not a head, expected names such as L4H1,L4H2, or a CSV or Parquet file"
NO_EFFECT = "none of the columns layer, head, rank is the effect of a head, expected effect, net or"


@pytest.mark.parametrize(
    ("heads", "top", "message"),
    [
        ("L4X", None, f"Cannot ablate heads: 'L4X' {LIST}"),
        ("L1H0,,L1H1", None, f"Cannot ablate heads: '' {LIST}"),
        ((1, 2), None, f"Cannot ablate heads: 1 {LIST}"),
        (7, None, f"Cannot ablate heads: 7 {LIST}"),
        ("L1H0,L9H1", None, "layer is 9, expected 0 to 2"),
        ("L1H0,L2H1", 3, "got the list L1H0,L2H1, and no effects. Omit top"),
        ("L1H0,L1H1,L1H2", None, "of the 4 heads of layer 1, 3 are ablated and 1 remain"),
        ("heads.csv", None, "Cannot read heads from heads.csv: there is no such file"),
        (b"", None, "it is not a readable table .No columns to parse from file."),
        (b"layer,effect\n1,.2\n", 1, "the column head is missing, got layer, effect"),
        (b"layer,head\n1,H2\n", None, "got 1 and H2 for layer and head, expected whole numbers"),
        (b"layer,head\n1,\n", None, "got no row with both for layer and head"),
        (b"layer,head,rank\n1,2,1\n", 1, NO_EFFECT),
        (b"layer,head,effect\n1,2,.1\n1,3,\n", 2, "got top = 2, expected 1 to 1"),
    ],
)
def test_heads_that_cannot_be_ablated_are_refused(tmp_path, monkeypatch, heads, top, message):
    monkeypatch.chdir(tmp_path)
    if isinstance(heads, bytes):
        Path("heads.csv").write_bytes(heads)
        heads = "heads.csv"
    with pytest.raises(InputError, match=message):
        heads_of(heads, top, random_model())


# --- the command ----------------------------------------------------------------------------------


@pytest.fixture
def run(run, monkeypatch, tmp_path, checkpoint):
    """Run `probe evaluate ARGS` with the small random model in an empty folder; return exit code,
    output and errors."""
    monkeypatch.chdir(tmp_path)
    rows = [{"sense": row.sense, "text": row.text, "split": row.split} for row in natural()]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return partial(run, "evaluate", "--model", checkpoint)


def test_the_command_prints_and_writes_what_python_gives(run, tmp_path, model):
    options = ("bank", "--sentences", "rows.jsonl", "--without", "L0H1,L1H2", "--seed", 4)
    code, out, err = run(*options, "--out", "one")
    assert code == 0 and err.startswith("probe: In 4 of 8 sentences, at most two words precede")
    corpus = probe.read_sentences("rows.jsonl", word="bank")
    evaluation = probe.evaluate(model, sentences=corpus, without="L0H1,L1H2", seed=4)
    last = means(evaluation, "swap").iloc[-1]
    sentence = next(line for line in out.splitlines() if "a random sentence's instead" in line)
    assert sentence.startswith("Without L0H1 and L1H2 at the word")
    assert f"is {100 * last['accuracy_without']:.1f} %, with them" in sentence
    assert f"(macro-F1 {100 * last['macro_f1_without']:.1f} % and" in sentence
    at_most = "and no set lowers it"
    if last["random_most"] > 0:
        at_most = f"and falls by {100 * last['random_most']:.1f} at most"
    falls = "falls" if last["random_fall"] >= 0 else "rises"
    points = f"{100 * abs(last['random_fall']):.1f}"
    assert sentence.endswith(
        f" (9 sets) accuracy {falls} by {points} on average, {at_most} ({p_value(last['p'])} over the sets)."
    )
    assert "before these heads" not in out
    table = next(line for line in out.splitlines() if line.startswith("after layer 1"))
    assert f"{100 * means(evaluation)['accuracy_without'][2]:.1f}" in table

    assert run(*options, "--out", "two")[0] == 0
    first, second = (tmp_path / name for name in ("one", "two"))
    files = {path.name for path in first.iterdir()}
    assert {f"evaluation_without.{end}" for end in ("csv", "svg")} <= files
    for name in files - {"manifest.json"}:
        assert (first / name).read_bytes() == (second / name).read_bytes()
    assert (first / "evaluation_without.svg").read_text().startswith("<svg")
    stored = pd.read_csv(first / "evaluation_without.csv")
    assert list(stored) == list(COLUMNS) and len(stored) == 2 * 3 * (3 + 1)
    assert dictionary({"evaluation_without": stored})["meaning"].str.len().min() > 5
    manifest = json.loads((first / "manifest.json").read_text())
    assert manifest["without"] == ["L0H1", "L1H2"] and "--without L0H1,L1H2" in manifest["command"]
    assert manifest["command"].startswith("probe evaluate bank --sentences rows.jsonl")


def test_json_and_the_notebook_hold_the_rows(run, model):
    code, out, _ = run("bank", "--sentences", "rows.jsonl", "--without", "L0H1", "--json")
    printed = json.loads(out, parse_constant=pytest.fail)
    assert code == 0 and printed["heads_out"] == ["L0H1"]
    assert [row["word"] for row in printed["without"]] == ["bank"] * 12 + [None] * 12
    corpus = corpus_of(natural())
    page = probe.evaluate(model, sentences=corpus, without="L0H1")._repr_html_()
    assert page.count("<table") == 2 and page.count("<img") == 1 and "accuracy_without" in page
    assert probe.evaluate(model, sentences=corpus)._repr_html_().count("<table") == 1


def test_top_without_a_file_is_refused(run):
    code, _, err = run("bank", "--sentences", "rows.jsonl", "--top", "2")
    assert code == 2 and err == (
        "probe: Cannot ablate the top 2 heads: got no file of heads. Give one with the columns layer, "
        "head and effect as without.\n"
    )
