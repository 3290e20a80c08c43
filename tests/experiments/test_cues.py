"""The cue scan, compared with hooked forwards of plain transformers and with planted answers."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from embedded import embedded
from handmade import (
    CUES,
    NOUNS,
    SENSES,
    TO_BOS,
    make_handmade,
    make_sentences,
    random_model,
    resolver,
)
from inside import (
    cross_fit,
    frames_for,
    ids_after,
    prepare,
    read_frames,
    read_weights,
    resampling,
    whole_words,
)
from inside import cue_study as study
from measured import studied
from transformers import GPT2LMHeadModel

import probe
from probe import InputError, lexicon, load
from probe.experiments import cues
from probe.experiments.cue_sample import POSITIONS
from probe.experiments.cues import ScanAxes, ask, without_beginnings

DEPTH = 3
FORWARD = 1e-5  # of the largest value: batched forward and plain transformers, both in float32


@pytest.fixture(scope="module")
def plain():
    folder = Path(str(probe.__file__)).parent / "model" / "embedded" / "tiny-senses"
    return GPT2LMHeadModel.from_pretrained(folder, attn_implementation="eager").eval()


@pytest.fixture(scope="module")
def axes(tiny):
    generator = torch.Generator().manual_seed(3)
    d_model = tiny.config.d_model
    u = torch.randn(1, DEPTH + 1, d_model, generator=generator, dtype=torch.float64)
    midpoint = torch.randn(1, d_model, generator=generator, dtype=torch.float64)
    return ScanAxes(("a", "b"), u, midpoint)


@pytest.fixture(scope="module")
def slots(tiny):
    """The frames with fifty words of the vocabulary."""
    return ask(tiny, "bank", cues=whole_words(tiny)[::50][:50])


def close(ours, theirs):
    return np.abs(np.asarray(ours) - np.asarray(theirs)).max() <= FORWARD * np.abs(theirs).max()


def hooked(plain, texts, at, fixed=None):
    """Streams, patterns and z of a plain forward of texts of equal length, read at position `at`.

    fixed: (layer, head, values) puts values into one head's z there
    """
    z = {}

    def keep(layer):
        def hook(module, inputs):
            heads = inputs[0].unflatten(-1, (plain.config.n_head, -1)).clone()
            if fixed is not None and fixed[0] == layer:
                heads[:, at, fixed[1]] = fixed[2].to(heads.dtype)
            z[layer] = heads[:, at]
            return (heads.flatten(-2),)

        return hook

    blocks = plain.transformer.h
    handles = [
        block.attn.c_proj.register_forward_pre_hook(keep(n)) for n, block in enumerate(blocks)
    ]
    try:
        with torch.inference_mode():
            out = plain(torch.tensor(texts), output_hidden_states=True, output_attentions=True)
    finally:
        for handle in handles:
            handle.remove()
    return out.hidden_states[DEPTH][:, at], [p[:, :, at] for p in out.attentions], z


def plain_coordinate(axes, resid):
    return ((resid.double() - axes.midpoint) @ axes.u[0, -1]).numpy()


@pytest.fixture(scope="module")
def sampled(tiny):
    """The record of a word with a sample of cues."""
    material = prepare(tiny, "bank", lexicon.expand("bank").sentences)
    return studied(tiny, material, pairs=4, experiments=("cue_sample",))


# --- against plain transformers -------------------------------------------------------------------


def test_fifty_cues_are_read_as_in_hooked_forwards_of_plain_transformers(tiny, plain, axes, slots):
    """Coordinate, attention and write of every head up to the read-out layer, in every frame."""
    heads = [(layer, head) for layer in (2, 0, 1) for head in range(4)]
    scan = cues.scan(read_weights(tiny), slots.templates, slots.ids, axes, heads)
    for frame, template in enumerate(slots.templates):
        texts = [template.filled(cue) for cue in slots.ids]
        resid, patterns, z = hooked(plain, [text.ids for text in texts], texts[0].at)
        assert close(scan.coordinate[:, frame], plain_coordinate(axes, resid))
        for number, (layer, head) in enumerate(heads):
            attention = patterns[layer][:, head, len(template.before)]
            assert close(scan.attention[:, frame, number], attention.numpy())
            d_head = z[layer].shape[-1]
            w_o = plain.transformer.h[layer].attn.c_proj.weight.detach()
            write = z[layer][:, head] @ w_o[head * d_head : (head + 1) * d_head]
            along = write.double() @ axes.u[0, layer + 1]
            assert close(scan.write[:, frame, number], along.numpy())


def test_a_share_is_the_variance_lost_when_hooks_fix_a_head_at_its_mean(tiny, plain, axes, slots):
    """Every head up to the read-out layer; means and variances are within a frame."""
    sample = study.draw_sample(slots, seed=0, max_texts=50)
    shares, _ = study.measure_shares(read_weights(tiny), sample, axes, slots.word, {}, seed=0)
    within = np.zeros(2)
    lost = {head: 0.0 for head in zip(shares["layer"], shares["head"], strict=True)}
    for frame in range(len(slots.templates)):
        here = np.flatnonzero(sample.frames == frame)
        texts = [sample.rows.texts[row] for row in here]
        rows = [text.ids for text in texts]
        resid, _, z = hooked(plain, rows, texts[0].at)
        whole = plain_coordinate(axes, resid)
        within += ((whole - whole.mean()) ** 2).sum()
        for layer, head in lost:
            fixed = (layer, head, z[layer][:, head].mean(0))
            resid, _, _ = hooked(plain, rows, texts[0].at, fixed)
            values = plain_coordinate(axes, resid)
            lost[layer, head] += ((values - values.mean()) ** 2).sum()
    expected = [1 - each / within[0] for each in lost.values()]
    assert np.abs(shares["share"] - expected).max() < 1e-5
    assert (shares["share_low"] <= shares["share"] + 1e-9).all()
    assert (shares["share"] <= shares["share_high"] + 1e-9).all()


def test_a_cue_of_several_tokens_is_read_as_a_whole(tiny, axes, slots):
    """Attention is summed over its tokens; the score is the largest of its tokens."""
    word = "riverbanks"
    [ids] = ids_after(tiny, "The", [word])
    assert len(ids) > 1
    scan = cues.scan(read_weights(tiny), slots.templates, [ids], axes, [(1, 2)])
    whole = probe.trace(tiny, f"The {word} and the bank")
    # The space before the word is a separate token here, and belongs to the cue.
    first = len(slots.templates[2].before)
    cue = list(range(first, first + len(ids)))
    assert cue[1:] == list(whole.tokens.positions_of(word))
    assert scan.attention[0, 2, 0] == pytest.approx(
        float(whole.pattern[1, 2, -1, cue].sum()), rel=1e-5
    )
    assert scan.score[0, 2, 0] == pytest.approx(float(whole.scores[1, 2, -1, cue].max()), rel=1e-5)
    resid = whole.resid_post[DEPTH - 1, -1]
    assert scan.coordinate[0, 2] == pytest.approx(plain_coordinate(axes, resid).item(), rel=1e-4)


# --- chunks ---------------------------------------------------------------------------------------


def test_chunks_of_another_size_give_the_same_numbers(tiny, axes, slots):
    weights = read_weights(tiny)
    heads = [(0, 1), (2, 3)]
    whole, parts = (
        cues.scan(weights, slots.templates, slots.ids, axes, heads, chunk=chunk)
        for chunk in (512, 12)
    )
    for of_whole, of_parts in zip(whole, parts, strict=True):
        assert np.allclose(of_whole, of_parts, rtol=1e-4, atol=1e-5)
    sample = study.draw_sample(slots, seed=1)
    assert np.bincount(sample.frames).tolist() == [50] * 4
    nouns = {"ladder": ids_after(tiny, "The", ["ladder"])[0]}
    whole, parts = (
        study.measure_shares(weights, sample, axes, slots.word, nouns, seed=0, chunk=chunk)
        for chunk in (256, 14)
    )
    for of_whole, of_parts in zip(whole, parts, strict=True):
        pd.testing.assert_frame_equal(of_whole, of_parts, rtol=1e-4, atol=1e-5)


# --- planted answers ------------------------------------------------------------------------------

FITTED = 20  # cue words of each sense that the axis is fitted on; the other 20 are scanned
OTHERS = [f"{a}{b}x" for a in "abcdefghijklmnopqr" for b in "abcdefghijklmnopqrst"]
HAND_FRAMES = (
    "the _ lock",
    "near _ the lock",
    "the _ and the lock",
    "the _ once again the lock",
)


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A scan of a model in which one head resolves the word. 40 of the 400 words are cues, and the
    axis was fitted on none of them.
    """
    folder = tmp_path_factory.mktemp("planted") / "model"
    model = load(make_handmade(folder, [resolver(1, 2)], more_words=OTHERS))
    held_out = {sense: words[FITTED:] for sense, words in CUES.items()}
    words = [*held_out["door"], *held_out["canal"], *OTHERS]
    assert len(words) == 400
    sentences = make_sentences(cues=FITTED, frames=4)
    scan = probe.cues(model, "lock", sentences=sentences, cues=words, frames=HAND_FRAMES)
    return scan, held_out


def test_forty_planted_cues_are_separated_from_each_other_and_from_360_other_words(planted):
    scan, held_out = planted
    each = scan.cues.drop_duplicates("cue").set_index("cue")["coordinate"]
    door = each[list(held_out["door"])].to_numpy()
    canal = each[list(held_out["canal"])].to_numpy()
    other_words = each[OTHERS].to_numpy()
    middle = np.median(other_words)
    planted_size = np.abs(np.concatenate([door, canal]) - middle)
    assert resampling.auroc(door, canal) == 1
    assert resampling.auroc(planted_size, np.abs(other_words - middle)) == 1
    assert scan.summary["auroc"] == 1 and scan.summary["held_out"] == 2 * FITTED


def test_all_of_the_variance_passes_through_the_planted_head_and_only_at_the_word(planted):
    scan, _ = planted
    first, *other_heads = scan.heads.to_dict("records")
    assert (first["layer"], first["head"]) == (1, 2)
    assert first["share"] == pytest.approx(1, abs=0.02)
    assert max(abs(head["share"]) for head in other_heads) < 0.02
    assert set(zip(scan.cues["layer"], scan.cues["head"], strict=True)) == {(1, 2)}
    here = scan.frames["cues_nouns"].query("layer == 1 and head == 2")
    assert list(here["noun"]) == list(NOUNS[: study.NOUNS])
    assert here["slope"].abs().max() < 0.05


def test_the_baseline_at_nouns_shows_whether_the_head_reads_only_from_the_word(planted, tmp_path):
    """One head acts at the word alone, the other at any noun. The cue words of both are separated
    at the word. The embeddings of the cues contain the sense.
    """
    words, _ = planted
    any_noun = replace(resolver(1, 2), looks=(({"anchor": 2.0}, {"is_cue": 6.0}), TO_BOS))
    model = load(make_handmade(tmp_path / "any", [any_noun]))
    sentences = make_sentences(cues=FITTED, frames=4)
    cue_words = [cue for of_sense in CUES.values() for cue in of_sense[FITTED:]]
    options = {"sentences": sentences, "cues": cue_words, "frames": HAND_FRAMES}
    nouns = probe.cues(model, "lock", **options)
    assert words.summary["auroc"] == nouns.summary["auroc"] == 1
    assert 0.2 < words.summary["auroc_nouns"] < 0.8
    assert nouns.summary["auroc_nouns_min"] == 1
    for scan in (words, nouns):
        assert scan.summary["auroc_embedding"] == scan.summary["auroc_whitened"] == 1


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("word", "texts"),
    [
        ("apple", ("The orchard apple", "The software apple")),
        ("bank", ("The river bank", "The loan bank")),
        ("seal", ("The ocean seal", "The wax seal")),
    ],
)
def test_two_texts_are_enough_to_separate_the_cues_of_the_grammar(tiny, word, texts):
    """Uses cue words of the lexicon that are not in the two texts. The model saw some of them in
    training only in topics, never next to the word.
    """
    first, second = lexicon.entry(word).senses[:2]
    scan = probe.cues(tiny, word, texts=texts)
    each = scan.cues[~scan.cues["seen"]].drop_duplicates("cue").set_index("cue")["coordinate"]
    values = [
        each[[cue for cue in sense.cues if cue in each.index]].to_numpy()
        for sense in (first, second)
    ]
    assert min(map(len, values)) >= 8
    auroc = float(resampling.auroc(*values))
    assert max(auroc, 1 - auroc) >= 0.99
    assert auroc > 0.5, "the first text is positive"


# --- arithmetic -----------------------------------------------------------------------------------


def test_the_share_is_one_if_everything_is_fixed_and_zero_if_nothing_changes():
    rng = np.random.default_rng(0)
    frames = np.arange(40) % 4
    whole = rng.normal(size=40) + 5 * frames
    level = 3.0 * frames
    fixed = np.stack([whole, level, whole / 2], axis=1)
    share, low, high = study.lost_variance(whole, fixed, frames, list("abcdefgh") * 5, seed=0)
    assert share == pytest.approx([0, 1, 0.75])
    assert low == pytest.approx([0, 1, 0.75]) and high == pytest.approx([0, 1, 0.75])


def test_intervals_are_wider_if_the_cues_are_forms_of_few_words():
    rng = np.random.default_rng(1)
    of_word = rng.normal(size=10).repeat(20)
    whole = of_word + 0.1 * rng.normal(size=200)
    fixed = (whole - np.abs(of_word) * of_word)[:, None]
    frames = np.zeros(200, dtype=int)
    clusters = [str(row // 20) for row in range(200)]
    separate = [str(row) for row in range(200)]
    wide = study.lost_variance(whole, fixed, frames, clusters, seed=0)
    narrow = study.lost_variance(whole, fixed, frames, separate, seed=0)
    assert (wide[2] - wide[1]) > 2 * (narrow[2] - narrow[1])


def test_reliability_follows_from_the_correlation_of_halves():
    """With four columns of signal plus noise of equal variance, the means of two columns correlate
    with r = 2 / 3, so all four have a reliability of 4 / 5 (Spearman-Brown).
    """
    rng = np.random.default_rng(2)
    values = rng.normal(size=(200_000, 1)) + rng.normal(size=(200_000, 4))
    assert cues.split_half(values) == pytest.approx(0.8, abs=0.005)
    assert cues.split_half(np.repeat(values[:, :1], 4, axis=1)) == pytest.approx(1)


@pytest.mark.parametrize(
    ("reliability", "depth"),
    [
        ([0.99, 0.8, 0.7, 0.95, 0.955, 0.9], 3),  # within a standard error of the best
        ([0.99, 0.8, 0.7, 0.9, 0.955, 0.9], 4),  # 0.9 is not, so the best itself
        ([0.99, 0.98, 0.97], 0),  # never rises again
        ([0.99, 0.98, 0.97, 0.9701], 0),  # rises by less than a standard error
        ([0.7, 0.9, 0.8], 1),  # rises at once
    ],
)
def test_the_layer_is_the_first_after_the_fall_where_frames_agree_as_well_as_in_later_layers(
    reliability, depth
):
    assert study.first_reliable(np.array(reliability), 200) == depth


def test_random_embeddings_separate_no_held_out_cues():
    """28 random numbers for each of 40 cue words: in sample they separate the senses, held out they
    do not, on average over eight models.
    """
    sentences = make_sentences(cues=20, frames=4)
    split = cross_fit(sentences, SENSES, seed=0)
    number_of = {cue: number for number, cue in enumerate(dict.fromkeys(s.cue for s in sentences))}
    cue_of = {
        row: (sentence.cue, (number_of[sentence.cue],)) for row, sentence in enumerate(sentences)
    }
    weights = [read_weights(random_model(seed=seed)) for seed in range(8)]
    plain, whitened = np.mean(
        [study.embedding_aurocs(each, split, cue_of) for each in weights], axis=0
    )
    assert 0.35 < plain < 0.65 and 0.35 < whitened < 0.65


def test_whitened_embeddings_have_a_covariance_of_one(tiny, plain):
    weights = read_weights(tiny)
    table = plain.transformer.wte.weight.detach().double()
    covariance = np.cov((table @ study.whitening(weights)).numpy().T, bias=True)
    np.testing.assert_allclose(covariance, np.eye(len(covariance)), atol=1e-6)


# --- frames, words and invalid input --------------------------------------------------------------


def test_a_token_is_a_beginning_if_a_plain_model_continues_it(tiny, plain):
    """The probability of all tokens that continue a word, after each of 200 tokens."""
    slots = ask(tiny, "bank")
    first = replace(slots, cues=dict(list(slots.cues.items())[:200]))
    whole = without_beginnings(tiny, first)
    vocabulary = tiny.tokenizer.get_vocab()
    continues = [not name.startswith("Ġ") and name[0].isalpha() for name in vocabulary]
    continuations = torch.tensor(
        [token for token, is_part in zip(vocabulary.values(), continues, strict=True) if is_part]
    )
    before = slots.templates[0].before
    with torch.inference_mode():
        logits = plain(torch.tensor([[*before, *ids] for ids in first.ids])).logits[:, -1]
    p = logits.softmax(-1)[:, continuations].sum(-1)
    expected = [cue for cue, more in zip(first.cues, p, strict=True) if more <= 0.5]
    assert whole.words == expected and 0 < whole.beginnings == 200 - len(expected)
    encoder = ask(embedded("tiny-senses-bidirectional"), "bank")
    assert without_beginnings(embedded("tiny-senses-bidirectional"), encoder) is encoder


# --- the sample of a report -----------------------------------------------------------------------


def test_a_report_tries_a_sample_along_the_axis_of_the_whole_scan(tiny, sampled):
    """The words have the same coordinates as in `probe.cues`."""
    sample = sampled.measured["cue_sample"].squeeze("pair")
    words = sample.cue.values.tolist()
    assert len(words) == sample.cues == sample.drawn - sample.beginnings < sample.vocabulary
    whole = probe.cues(tiny, "bank", cues=words)
    each = whole.cues.drop_duplicates("cue")
    assert list(each["cue"]) == words
    assert np.allclose(each["coordinate"], sample.coordinate, atol=1e-5)
    assert np.array_equal(each["seen"], sample.seen)
    assert whole.senses == (sample.sense_a, sample.sense_b)
    assert whole.summary["reliability"] == pytest.approx(float(sample.reliability), abs=1e-5)
    assert whole.summary["without_cue"] == pytest.approx(float(sample.without_cue), abs=1e-5)


def test_cues_of_the_fitted_texts_are_marked_in_any_form(tiny):
    words = ["river", "rivers", "Loan", "lake", "pond", "money", "shore", "cash", "fish", "boat"]
    scan = probe.cues(tiny, "bank", texts=("The river bank", "The loan bank"), cues=words)
    assert list(scan.cues["cue"].unique()) == words and scan.summary["beginnings"] == 0
    each = scan.cues.drop_duplicates("cue").set_index("cue")["seen"]
    assert [word for word in words if each[word]] == ["river", "rivers", "Loan"]


def test_the_word_without_a_cue_is_read_in_the_frames_with_an_empty_slot(tiny):
    texts = ("The river bank", "The loan bank")
    words = ["sea", "cash", "shore", "debt", "boat", "money", "lake", "credit", "fish", "coin"]
    options = {"cues": words, "frames": ["The _ bank", "Near the _ by the bank"]}
    scan = probe.cues(tiny, "bank", texts=texts, **options)

    def word_in(text):
        stream = probe.decomposition.residual_stream(probe.trace(tiny, text), "bank")
        return stream[scan.summary["depth"]].double()

    river, loan = map(word_in, texts)
    way = river - loan
    expected = [
        float((word_in(text) - (river + loan) / 2) @ way / way.square().sum())
        for text in ("The bank", "Near the by the bank")
    ]
    assert scan.summary["without_cue"] == pytest.approx(np.mean(expected), abs=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frames": ["The _ bank"]}, "got 1 frames, expected at least 2"),
        ({"frames": ["The _ bank", "The bank"]}, "got 0 slots and 'bank' 1 times"),
        ({"frames": ["The _ bank", "_ bank"]}, "got 0 slots"),
        ({"frames": ["The _ bank", "The bank and the _"]}, "its slot comes after 'bank'"),
        ({"cues": ["lake", "loan"]}, "got 2 cues that its vocabulary has"),
        ({"cues": []}, "got 0 cues that its vocabulary has"),
        ({"texts": ("The river bank",)}, "expected two texts, one for each meaning"),
        ({"texts": ("The bank by a river", "The bank of money")}, "has the same vector"),
        ({"texts": ("a", "b"), "sentences": []}, "got both sentences and texts"),
        ({"cues": "no_such_file.txt"}, "no_such_file.txt cannot be read as a text file"),
    ],
)
def test_input_that_cannot_be_scanned_is_refused_in_a_sentence(tiny, options, message):
    with pytest.raises(InputError, match=message):
        probe.cues(tiny, "bank", **options)


@pytest.mark.parametrize(
    ("word", "options"),
    [("zither", {}), ("bank", {"texts": ("The river bank", "The cat")})],
)
def test_a_word_that_cannot_be_read_is_refused_before_the_vocabulary_is(tiny, word, options):
    stages = []
    with pytest.raises(InputError, match=f"'{word}'"):
        probe.cues(tiny, word, progress=lambda stage, _: stages.append(stage), **options)
    assert stages == ["axis"]


def test_an_encoder_also_reads_cues_after_the_word(axes):
    model = embedded("tiny-senses-bidirectional")
    texts = frames_for("bank", both_sides=True)
    slotted = read_frames(texts, "bank", both_sides=True)
    filled = [cues.template(model, frame, "lake") for frame in slotted]
    [ids] = ids_after(model, "The", ["shore"])
    scan = cues.scan(read_weights(model), filled, [ids], axes, [(0, 1)])
    for number, text in enumerate(texts):
        whole = probe.trace(model, text.replace("_", "shore"))
        word = whole.tokens.positions_of("bank")[-1]
        [cue] = whole.tokens.positions_of("shore")
        assert scan.attention[0, number, 0] == pytest.approx(
            float(whole.pattern[0, 1, word, cue]), rel=1e-4
        )
        resid = whole.resid_post[DEPTH - 1, word]
        assert scan.coordinate[0, number] == pytest.approx(
            plain_coordinate(axes, resid).item(), rel=1e-4
        )


def test_a_cue_that_is_drawn_twice_counts_twice():
    rng = np.random.default_rng(4)
    both = rng.normal(size=(12, 3))
    frames = np.arange(12) % 2
    times = rng.integers(0, 4, size=12)
    [weighted] = study.lost_shares(both, frames, times[None].astype(float))
    squares = np.zeros(3)
    for frame in (0, 1):
        rows = np.repeat(both[frames == frame], times[frames == frame], axis=0)
        squares += ((rows - rows.mean(0)) ** 2).sum(0)
    assert weighted == pytest.approx(1 - squares[1:] / squares[0])


def test_the_embedding_of_a_cue_is_the_mean_over_its_tokens(tiny, plain):
    weights = read_weights(tiny)
    table = plain.transformer.wte.weight.detach().double()
    embeddings = study.token_embeddings(weights, [(3,), (5, 8)])
    torch.testing.assert_close(embeddings, torch.stack([table[3], (table[5] + table[8]) / 2]))


def test_a_sample_costs_the_allowed_number_of_token_positions(tiny, sampled):
    sample = sampled.measured["cue_sample"]
    slots = ask(tiny, "bank", cues=sample.cue.values.tolist())
    positions = sum(t.at + 2 - len(t.before) for t in slots.templates)  # from the cue to the word
    depth = sampled.depth / tiny.config.n_layers
    cost = sample.drawn.item() * (positions * depth + 1)
    assert cost == pytest.approx(POSITIONS, rel=0.01)


def test_the_tokens_of_a_frame_do_not_depend_on_the_cue_that_finds_them(tiny):
    """One of the cues has several tokens, of which the first is only a space."""
    slotted = read_frames(frames_for("bank", both_sides=False), "bank", both_sides=False)
    for frame in slotted:
        assert cues.template(tiny, frame, "riverbanks") == cues.template(tiny, frame, "lake")


def test_a_word_without_shipped_sentences_may_be_given_in_two_texts(tiny):
    message = r"Give one of these, or give two texts with the word \(texts=, on the command line"
    with pytest.raises(InputError, match=message):
        probe.cues(tiny, "wug")
