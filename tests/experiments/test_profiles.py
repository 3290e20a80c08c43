"""Profiles of heads: hand-built heads have the numbers that they were built for, every measure is
its definition, and TransformerLens' detector agrees.
"""

import html
import json
import math
import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from families import each_family, family_model
from handmade import random_model, write_checkpoint
from inside import REPORT, Axis, attention, blocks, hooks, percent, qk
from packaged import need_smollm2
from stored_study import stored_study
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from torch.utils.flop_counter import FlopCounterMode
from transformer_lens import head_detector
from transformers import GPT2Config, PreTrainedTokenizerFast

import probe
from probe import charts, load
from probe.charts.maps import in_general
from probe.experiments import directions
from probe.experiments import profiles as room

# --- heads built by hand --------------------------------------------------------------------------

WORDS, POSITIONS, HEADS, D_HEAD = 30, 40, 4, 80
D_MODEL = HEADS * D_HEAD
SHARP = 3.0  # scores of about 150 for a match
# Coordinates of the stream: one for each token, position, and previous token.
TOKEN, PLACE, BEFORE = range(WORDS), range(WORDS, WORDS + POSITIONS), range(70, 70 + WORDS)
BUILT = {
    (0, 0): "previous",
    (0, 1): "duplicate",
    (0, 2): "uniform",
    (0, 3): "first",
    (1, 0): "induction",
    (1, 1): "itself",
}


@cache
def built() -> "probe.Model":
    """A GPT-2 whose heads are those of BUILT; all others are uniform, and MLPs write nothing."""
    names = ("<bos>", "<unk>", *(f"word{number}" for number in range(2, WORDS)))
    cut = Tokenizer(WordLevel({name: n for n, name in enumerate(names)}, unk_token="<unk>"))
    cut.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=cut, bos_token="<bos>", eos_token="<bos>", unk_token="<unk>"
    )
    eye = np.eye(D_MODEL)
    tensors = {"wte.weight": eye[list(TOKEN)], "wpe.weight": eye[list(PLACE)]}
    for layer in range(2):
        q, k, v = (np.zeros((HEADS, D_MODEL, D_HEAD)) for _ in range(3))
        o, bias = np.zeros((HEADS, D_HEAD, D_MODEL)), np.zeros((3, HEADS, D_HEAD))
        if layer == 0:
            q[0, PLACE[1:], range(POSITIONS - 1)] = k[0, PLACE[:-1], range(POSITIONS - 1)] = SHARP
            v[0, TOKEN, range(WORDS)] = 1
            o[0, range(WORDS), BEFORE] = 0.1
            q[1, TOKEN, range(WORDS)] = k[1, TOKEN, range(WORDS)] = SHARP
            # The query's own position matches its token, too, so it is made unattractive.
            q[1, PLACE, range(WORDS, 70)] = SHARP
            k[1, PLACE, range(WORDS, 70)] = -2 * SHARP
            bias[0, 3, 0], k[3, PLACE[0], 0] = 10 * SHARP, SHARP
        else:
            q[0, TOKEN, range(WORDS)] = SHARP
            k[0, BEFORE, range(WORDS)] = SHARP
            q[1, PLACE, range(POSITIONS)] = k[1, PLACE, range(POSITIONS)] = SHARP
        flat = [part.transpose(1, 0, 2).reshape(D_MODEL, -1) for part in (q, k, v)]
        to = f"h.{layer}."
        tensors |= {f"{to}attn.c_attn.weight": np.concatenate(flat, axis=1)}
        tensors |= {f"{to}attn.c_attn.bias": bias.reshape(-1)}
        tensors |= {f"{to}attn.c_proj.weight": o.reshape(D_MODEL, D_MODEL)}
        shapes = {"attn.c_proj.bias": D_MODEL, "mlp.c_fc.weight": (D_MODEL, 8), "mlp.c_fc.bias": 8}
        shapes |= {"mlp.c_proj.weight": (8, D_MODEL), "mlp.c_proj.bias": D_MODEL}
        tensors |= {to + name: np.zeros(shape) for name, shape in shapes.items()}
        for norm in ("ln_1", "ln_2"):
            tensors |= {f"{to}{norm}.weight": np.ones(D_MODEL), f"{to}{norm}.bias": eye[0] * 0}
    tensors |= {"ln_f.weight": np.ones(D_MODEL), "ln_f.bias": np.zeros(D_MODEL)}
    config = GPT2Config(
        n_layer=2,
        n_head=HEADS,
        n_embd=D_MODEL,
        n_inner=8,
        n_positions=POSITIONS,
        vocab_size=WORDS,
        bos_token_id=0,
        eos_token_id=0,
    )
    config.architectures = ["GPT2LMHeadModel"]
    named = {f"transformer.{name}": values for name, values in tensors.items()}
    with TemporaryDirectory() as folder:
        return load(write_checkpoint(Path(folder) / "built", config, tokenizer, named))


def of_head(frame, head, texts):
    [row] = frame[
        (frame["texts"] == texts) & (frame["layer"] == head[0]) & (frame["head"] == head[1])
    ].to_dict("records")
    return row


def rows_of(texts):
    """The query positions of all texts whose rows count in a causal model."""
    return np.array([pos for text in texts for pos in range(3, len(text.ids))])


@pytest.mark.parametrize(
    ("name", "texts"),
    [(name, texts) for name in ("previous", "first", "itself") for texts in ("natural", "repeated")]
    + [("duplicate", "repeated"), ("induction", "repeated")],
)
def test_a_hand_built_head_gives_all_its_attention_to_its_token(name, texts):
    [head] = [head for head, kind in BUILT.items() if kind == name]
    row = of_head(probe.profiles(built()), head, texts)
    assert row[name] == pytest.approx(1, abs=1e-6)
    if name in ("previous", "first", "itself"):
        assert row["entropy"] == pytest.approx(0, abs=1e-6)
        back = {"previous": 1, "first": None, "itself": 0}[name]
        model = built()
        of_kind = (
            room.natural_texts(model)
            if texts == "natural"
            else room.random_texts(model, seed=0).texts
        )
        expected = rows_of(of_kind).mean() if back is None else back
        assert row["distance"] == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("head", [(0, 2), (1, 2), (1, 3)])
def test_a_uniform_head_has_the_profile_of_equal_attention(head):
    model = built()
    frame = probe.profiles(model)
    natural, repeated = room.natural_texts(model), room.random_texts(model, seed=0)
    assert len(natural) > 200 and repeated.period == 19 and len(repeated.texts) == 40
    for name, texts in (("natural", natural), ("repeated", repeated.texts)):
        row = of_head(frame, head, name)
        seen = rows_of(texts) + 1  # tokens that each query can see, and itself
        for measure in ("previous", "first", "itself"):
            assert row[measure] == pytest.approx((1 / seen).mean(), abs=1e-6)
        assert row["entropy"] == pytest.approx(1, abs=1e-6)
        assert row["distance"] == pytest.approx(((seen - 1) / 2).mean(), abs=1e-5)
        assert math.isnan(row["next"])
    second = 1 / (np.arange(1 + 19, 1 + 2 * 19) + 1)
    for measure in ("induction", "duplicate"):
        assert row[measure] == pytest.approx(second.mean(), abs=1e-6)
        assert math.isnan(of_head(frame, head, "natural")[measure])
    on_cue = sum(len(text.cue) / (text.word + 1) for text in natural)
    content = [len(text.content) / (text.word + 1) for text in natural]
    even = sum(each / text.words for each, text in zip(content, natural, strict=True))
    row = of_head(frame, head, "natural")
    assert row["cue_share"] == pytest.approx(on_cue / sum(content), abs=1e-6)
    assert row["even_share"] == pytest.approx(even / sum(content), abs=1e-6)


def test_cues_and_content_words_are_those_of_the_sentence():
    shown = "She had left the oar at the bank and had to go all the way back."
    [sentence] = [
        row for row in probe.lexicon.expand_natural("bank").sentences if row.text == shown
    ]
    text = room.natural_text(built(), sentence)
    words = text.tokens.text.replace(".", " .").split()
    assert [words[pos - 1] for pos in (text.word, *text.cue)] == ["bank", "oar"]  # after BOS
    assert [words[pos - 1] for pos in text.content] == ["left", "oar"] and text.words == 2


# --- definitions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["causal", "both ways", "window"])
def test_every_measure_is_its_definition_row_by_row(kind):
    lead, period, n = 2, 3, 9
    visible = torch.ones(n, n, dtype=torch.bool)
    if kind != "both ways":
        visible = visible.tril()
    if kind == "window":
        visible = visible.triu(-4)
    scores = torch.randn(2, 3, n, n, generator=torch.Generator().manual_seed(0))
    pattern = scores.masked_fill(~visible, -math.inf).softmax(-1)
    values = room.measures(pattern, visible, lead=lead, period=period)
    assert values.shape == (len(room.MEASURES), 2, 3, n)
    for text, head, query in np.ndindex(2, 3, n):
        row = pattern[text, head, query].double().tolist()
        expected = dict.fromkeys(room.MEASURES, math.nan)
        if visible[query].sum() >= 4:
            expected["first"], expected["itself"] = row[0], row[query]
            if query:
                expected["previous"] = row[query - 1]
            if kind == "both ways" and query < n - 1:
                expected["next"] = row[query + 1]
            if lead + period <= query < lead + 2 * period:
                expected["duplicate"] = row[query - period]
                expected["induction"] = row[query - period + 1]
            bits = -sum(share * math.log(share) for share in row if share)
            expected["entropy"] = bits / math.log(int(visible[query].sum()))
            expected["distance"] = sum(share * abs(query - key) for key, share in enumerate(row))
        for number, name in enumerate(room.MEASURES):
            assert float(values[number, text, head, query]) == pytest.approx(
                expected[name], abs=1e-9, nan_ok=True
            ), name


def bridge_patterns(model, ids):
    """TransformerLens' patterns of one text, from its own cache. `layer head query_pos key_pos`"""
    _, stored = model.bridge.run_with_cache(torch.tensor([ids]), remove_batch_dim=True)
    return torch.stack([stored["pattern", layer] for layer in range(model.config.n_layers)])


def assert_detector_agrees(model, texts):
    """Compare a profile in some random texts with TransformerLens' scores of them."""
    everything = room.random_texts(model, seed=0)
    repeated = everything._replace(texts=everything.texts[:texts])
    ours = room.profile_of(room.stack_of(model), [], repeated).sel(texts="repeated")
    detected = {"previous": "previous_token", "duplicate": "duplicate_token"}
    detected["induction"] = "induction"
    scores = {name: [] for name in detected}
    for text in repeated.texts:
        ids = torch.tensor([text.ids])
        patterns = bridge_patterns(model, text.ids)
        for name, function in detected.items():
            wanted = getattr(head_detector, f"get_{function}_head_detection_pattern")(ids)
            # The detector divides by all rows. A profile has the rows that can show the measure.
            rows = len(text.ids) - 3 if name == "previous" else repeated.period
            wanted[: 3 if name == "previous" else 0] = 0
            of_heads = [
                head_detector.compute_head_attention_similarity_score(
                    pattern,
                    wanted,
                    exclude_bos=False,
                    exclude_current_token=False,
                    error_measure="mul",
                )
                for pattern in patterns.flatten(0, 1)
            ]
            scores[name].append(np.array(of_heads) * len(text.ids) / rows)
    for name, of_texts in scores.items():
        found = ours[name].values.ravel()
        np.testing.assert_allclose(found, np.mean(of_texts, axis=0), atol=1e-5)
        assert np.ptp(found) > 1e-3  # heads differ


def test_scores_equal_those_of_transformer_lens():
    assert_detector_agrees(random_model(), texts=40)


@pytest.mark.campaign  # a random model of the same shape is compared above
def test_scores_of_smollm2_equal_those_of_transformer_lens():
    need_smollm2()
    assert_detector_agrees(probe.load("smollm2"), texts=2)


def test_a_profile_costs_less_than_ten_bare_forwards(tiny):
    natural, repeated = room.natural_texts(tiny)[::6], room.random_texts(tiny, seed=0)
    repeated = repeated._replace(texts=repeated.texts[::6])
    with FlopCounterMode(display=False) as bare:
        for text in [*natural, *repeated.texts]:
            hooks.run(tiny, [text.ids])
    with FlopCounterMode(display=False) as ours:
        room.profile_of(room.stack_of(tiny), natural, repeated)
    assert 0.1 < ours.get_total_flops() / bare.get_total_flops() < 2


# --- models ---------------------------------------------------------------------------------------


def test_random_texts_repeat_different_tokens_between_the_special_tokens_of_the_model():
    model = family_model("bert")
    texts, lead, period = room.random_texts(model, seed=3)
    ends = (probe.tokenize(model, "a").ids[0], probe.tokenize(model, "a").ids[-1])
    special = {*ends, *model.tokenizer.all_special_ids}
    assert lead == 1 and len(texts) == 40 and texts[0] != texts[1]
    for text in texts:
        first, *inside, last = text.ids
        assert (first, last) == ends and special.isdisjoint(inside)
        assert inside[:period] == inside[period:] and len({*inside}) == period
    assert room.random_texts(model, seed=3).texts == texts != room.random_texts(model, seed=4).texts


@pytest.mark.parametrize("kind", each_family())
def test_every_family_has_a_profile_or_that_of_its_encoder(kind):
    model = family_model(kind)
    frame = probe.profiles(model)
    weights = room.stack_of(model)
    layers, heads, *_ = weights.shape
    assert len(frame) == 2 * layers * heads
    natural = frame[frame["texts"] == "natural"]
    assert natural["next"].notna().all() != weights.causal
    shares = frame[["previous", "first", "itself", "entropy"]]
    assert ((shares >= 0) & (shares <= 1 + 1e-6)).all(axis=None)
    repeated = frame[frame["texts"] == "repeated"]
    assert repeated[["induction", "duplicate"]].notna().all(axis=None)


def test_layers_of_a_hybrid_without_heads_have_no_profile():
    model = family_model("lfm2")
    has_heads = room.stack_of(model).has_heads
    assert not has_heads.all()
    frame = probe.profiles(model)
    assert sorted(frame["layer"].unique()) == has_heads.nonzero().flatten().tolist()


def test_a_profile_follows_the_model_and_not_its_name():
    first = probe.profiles(random_model(seed=5))
    second = probe.profiles(random_model(seed=6))
    assert not np.allclose(first["previous"], second["previous"])
    assert first.equals(probe.profiles(random_model(seed=5)))


# --- where heads write, and what they can read ----------------------------------------------------


def axis_after(model, depth):
    u = torch.randn(model.config.d_model, generator=torch.Generator().manual_seed(depth)).double()
    return Axis("a", "b", depth, u / u.norm(), torch.zeros_like(u), gap=0.7)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "gemma2", "bert"])
def test_writes_are_those_of_a_trace_after_the_norms_of_the_family(kind):
    model = family_model(kind)
    weights = room.stack_of(model)
    last = model.config.n_layers - 1
    axes = {(0, 1): axis_after(model, last + 1), (last, 0): axis_after(model, last + 1)}
    texts = room.natural_texts(model)[:40]
    writes = room.HeadWrites(weights, axes)
    writes.run(texts)
    for (layer, head), axis in axes.items():
        for number in (0, 7, 39):
            traced = probe.trace(model, texts[number].tokens.text)
            of_text = writes.of_texts[layer, head][number]
            torch.testing.assert_close(
                of_text.pattern, traced.pattern[layer, head], rtol=1e-4, atol=1e-5
            )
            for at in range(4, len(traced.tokens), 3):
                write = traced.delta_e(layer, head, at).double()
                along = qk.before_norms(traced, layer, at, axis.u / axis.gap, axis.depth)
                assert float(of_text.along[at]) == pytest.approx(
                    float(write @ along), rel=1e-3, abs=1e-6
                )
                if not weights.config.family.norm_after_write:
                    size = write.norm() / traced.resid_pre[layer, at].double().norm()
                    assert float(of_text.length[at]) == pytest.approx(float(size), rel=1e-3)


def test_events_are_the_positions_with_the_largest_writes_one_in_each_text():
    model = random_model()
    axes = {(1, 2): axis_after(model, 2)}
    texts = room.natural_texts(model)
    writes = room.HeadWrites(room.stack_of(model), axes)
    writes.run(texts)
    of_texts = writes.of_texts[1, 2]
    chosen = [*room.events(texts, of_texts)]
    for kind in (room.LENGTH, room.ALONG):
        sizes = {
            (number, pos): float(getattr(written, name)[pos].abs())
            for number, written in of_texts.items()
            for name in ["length" if kind == room.LENGTH else "along"]
            for pos in range(3, len(texts[number].ids))
            if texts[number].tokens.spans[pos] != (0, 0)
        }
        best = sorted({max((sizes[at], at) for at in sizes if at[0] == n) for n in of_texts})[::-1]
        listed = [(number, pos) for how, _, number, pos in chosen if how == kind]
        assert len(listed) == room.SHOWN
        assert [sizes[at] for at in listed] == pytest.approx(
            [size for size, _ in best[: room.SHOWN]], rel=1e-5
        )


def test_leading_directions_are_singular_vectors_with_their_share_of_the_squared_norm():
    generator = torch.Generator().manual_seed(0)
    first, second = (torch.randn(20, 6, generator=generator).double() for _ in range(2))
    product = first @ second.T
    found = directions.leading_directions(first, second.T)
    sizes = torch.linalg.svdvals(product)
    torch.testing.assert_close(found.shares, (sizes.square() / product.square().sum())[:3])
    torch.testing.assert_close(product.T @ found.reads, found.writes * sizes[:3])
    torch.testing.assert_close(product @ found.writes, found.reads * sizes[:3])
    assert (found.reads.gather(0, found.reads.abs().argmax(0, keepdim=True)) > 0).all()


@pytest.mark.parametrize("kind", ["gpt2", "llama", "bert"])
def test_the_stream_of_a_token_is_its_embedding_and_the_write_of_mlp_0(kind):
    model = family_model(kind)
    weights = room.stack_of(model)
    block, config = weights.blocks[0], weights.config
    ids = torch.tensor([5, 9])
    entering, after = directions.streams_of_tokens(weights, ids)
    table = weights.raw[config.family.embed + ".weight"][ids]
    if kind != "bert":
        torch.testing.assert_close(entering, table * config.embed_scale)
        bias = 0 if block.b_o is None else block.b_o
        hidden = blocks.activate(weights, block, entering + bias)
        mlp = hidden @ block.w_out + (0 if block.b_out is None else block.b_out)
        torch.testing.assert_close(after, entering + bias + mlp)
    else:
        # Without attention and without positions, which no text is: the norms are those of BERT.
        types = weights.raw[config.family.type_table + ".weight"][0]
        weight, bias = weights.norm(config.family.embedding_norm, torch.float32)
        normed = attention.layer_norm(table + types, weight, bias, config.epsilon)
        torch.testing.assert_close(entering, normed)


# --- the page -------------------------------------------------------------------------------------


def test_a_kind_is_named_from_half_of_the_attention_on():
    frame = probe.profiles(built())
    names = {}
    for (layer, head), rows in frame.groupby(["layer", "head"]):
        names[layer, head] = [kind for kind, *_ in room.kinds_in_general(rows)]
    assert names == {
        **{(layer, head): [] for layer in range(2) for head in range(HEADS)},
        (0, 0): ["a previous-token"],
        (0, 1): ["a duplicate-token"],
        (1, 0): ["an induction"],
    }


def card_of(page, name):
    """The text of the card of a head of the first word."""
    card = page.partition(f'id="head-0-{name}"')[2].partition("</dialog>")[0]
    return " ".join(html.unescape(re.sub("<[^>]+>", " ", card)).split(" ")).replace("\n", " ")


def study_with_profiles(*words):
    """The stored study with other profiles of L3H2, so that it has two names and no head another."""
    frame = stored_study(*words).frames["profiles"].copy()
    columns = [column for _, column, *_ in room.KINDS]
    frame[columns] = frame[columns].clip(upper=0.4)
    here = frame["layer"].eq(3) & frame["head"].eq(2)
    frame.loc[here & frame["texts"].eq("natural"), "previous"] = 0.61
    frame.loc[here & frame["texts"].eq("repeated"), "induction"] = 0.72
    return stored_study(*words, profiles=frame)


def test_the_sentences_of_a_card_name_kinds_and_the_share_of_the_cue(tmp_path):
    study = study_with_profiles("bank")
    probe.write(study, tmp_path)
    page = re.sub(r"</?(b|bdi|button|span)\b[^>]*>", "", (tmp_path / REPORT).read_text("utf-8"))
    card = card_of(page, "L3H2")
    for kind, share, texts in (
        ("a previous-token", 0.61, "natural sentences"),
        ("an induction", 0.72, "repeated random tokens"),
    ):
        assert (
            f"L3H2 is {kind} head in general: {percent(share)} of its attention in {texts} goes "
            f"there (limit: {percent(0.5)})."
        ) in card
    assert card.count("head in general") == 2
    bank = study.profiles[study.profiles["word"] == "bank"]
    row = of_head(bank, (3, 2), "natural")
    every = bank[bank["texts"] == "natural"]["cue_share"]
    layer = bank[(bank["texts"] == "natural") & (bank["layer"] == 3)]
    assert (
        f"{percent(row['cue_share'])} goes to the cue. Divided evenly, it would be "
        f"{percent(row['even_share'])}; the median head of layer 3 gives the cue "
        f"{percent(layer['cue_share'].median())}. "
        f"Of all {len(every)} heads, {(every > row['cue_share']).sum()} give it more."
    ) in card
    first = study.directions.query("word == 'bank' and layer == 3 and head == 2").iloc[0]
    assert f"{percent(first['share'])} ({percent(first['share_random'])})" in card
    assert "in brackets, that of a random matrix" in card
    assert f"first token  {percent(row['first'])} ({percent(layer['first'].median())})" in card


def test_the_tooltip_of_the_map_has_a_line_on_every_head():
    study = study_with_profiles()
    lines = in_general(study.profiles)
    assert len(lines) == 16 * study.words["word"].nunique()
    row = of_head(study.profiles[study.profiles["word"] == "mole"], (3, 2), "natural")
    [line] = lines.query("word == 'mole' and layer == 3 and head == 2")["in_general"]
    assert line == (
        f"first token {percent(row['first'])}, previous {percent(row['previous'])}, "
        f"induction {percent(0.72)}"
    )
    chart = charts.head_map(study.word_heads, "bank", profiles=study.profiles)
    spec = json.dumps(chart.to_dict(), ensure_ascii=False)
    assert f"induction {percent(0.72)}" in spec and '"in general"' in spec
    assert "in general" not in json.dumps(charts.head_map(study.word_heads, "bank").to_dict())


def test_a_card_says_what_its_head_does_in_general(tiny, tmp_path):
    study = probe.study(
        tiny,
        "bank",
        sentences=probe.lexicon.expand("bank").sentences[:96],
        experiments=["profiles"],
        permutations=99,
        max_pairs=4,
    )
    assert len(study.profiles) == 2 * 4 * 4
    top = study.elsewhere.groupby(["layer", "head"]).ngroups
    tokens = study.elsewhere.groupby(["layer", "head", "chosen", "number"])
    assert tokens.ngroups == top * 2 * room.SHOWN
    assert np.allclose(tokens["attention"].sum(), 1, atol=1e-4)
    assert len(study.directions) == top * 2 * 2 * 2 * directions.DIRECTIONS * directions.ENDS
    probe.write(study, tmp_path)
    page = (tmp_path / REPORT).read_text(encoding="utf-8")
    assert page.count("<h3>In general</h3>") == top
    layer, head = study.elsewhere[["layer", "head"]].iloc[0]
    row = of_head(study.profiles, (layer, head), "natural")
    card = page.partition(f'id="head-0-L{layer}H{head}"')[2].partition("</dialog>")[0]
    assert f"<dt>first token</dt><dd>{100 * row['first']:.0f}" in card
    assert "goes to the" in card and "Its longest writes" in card
    assert "in general" in page.partition("</figure>")[0]  # a line of the map's tooltip
