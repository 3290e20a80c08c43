"""Models with known internals: random ones with an odd shape, and ones built by hand so that the
answer is known.

A hand-built model is a real GPT-2 checkpoint, including LayerNorm, composed of named features. A
feature is a pair of coordinates with the values (+value, -value): its mean is 0, so LayerNorm only
divides, and by nearly the same number everywhere, because every token has a large `anchor`. A
`Head` is described by the features that it asks for, finds, takes and gives. A `Unit` is one
neuron of an MLP. All other heads and neurons have random weights: they are active, read words,
positions and other heads, but never the sense, and write only to coordinates that nothing planted
reads.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from checkpoints import change_tensors, make_checkpoint
from inside import Corpus, Sentence, Tokens, resampling
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import WordLevel
from transformers import BertConfig, GPT2Config, PretrainedConfig, PreTrainedTokenizerFast

from probe import Model, lexicon, load

# --- random models --------------------------------------------------------------------------------

# No two sizes are equal, so that axes cannot be confused: 3 layers, 4 heads of 7, 28, 36, 40, 400.
ODD = {"n_layer": 3, "n_head": 4, "n_embd": 28, "n_inner": 36, "n_positions": 40}
# wte, wpe, per layer c_attn, c_proj, c_fc, mlp.c_proj with their biases and two norms, the last
# norm. By hand: 400*28 + 40*28 + 3*((28*84 + 84) + (28*28 + 28) + (28*36 + 36) + (36*28 + 28) +
# 4*28) + 2*28
ODD_PARAMETERS = 11200 + 1120 + 3 * (2436 + 812 + 1044 + 1036 + 112) + 56
SHARPER = 2.5


@cache
def random_model(dtype: torch.dtype = torch.float32, *, seed: int = 5, tied: bool = True) -> Model:
    """A random GPT-2 of odd shape with random biases and norms, whose attention is far from
    uniform.

    Shared: do not change it.
    """
    with TemporaryDirectory() as folder:
        return load(make_random(Path(folder) / "odd", seed=seed, tied=tied), dtype=dtype)


def make_random(folder: Path, *, seed: int = 5, tied: bool = True) -> Path:
    """Write the checkpoint of `random_model`. Its queries are scaled up, because random queries
    attend to everything equally."""
    make_checkpoint(folder, seed=seed, tied=tied, **ODD)
    tensors = load_file(folder / "model.safetensors")
    if tied:
        assert sum(tensor.numel() for tensor in tensors.values()) == ODD_PARAMETERS
    sharper = {}
    for layer in range(ODD["n_layer"]):
        name = f"transformer.h.{layer}.attn.c_attn.weight"
        scale = torch.ones(3 * ODD["n_embd"])
        scale[: ODD["n_embd"]] = SHARPER
        sharper[name] = tensors[name] * scale
    return change_tensors(folder, sharper)


def tokens_of(ids: Sequence[int]) -> Tokens:
    """Ids as a Tokens record, one character each, for tests that only need ids."""
    n = len(ids)
    return Tokens("·" * n, tuple(ids), ("·",) * n, tuple((pos, pos + 1) for pos in range(n)), False)


# --- sentences ------------------------------------------------------------------------------------

WORD = "lock"
SENSES = ("door", "canal")
CUES = {sense: tuple(f"{sense}{number}" for number in range(40)) for sense in SENSES}
PLAIN = ("the", "a", "near", "saw", "they", "behind", "old", "grey", "small", "once", "again", "we")
PLAIN += ("passed", "and", "it")
BOS, UNKNOWN = "<bos>", "<unk>"
# Unambiguous nouns with both articles. They have only the features of every word, so a planted head
# that looks for `is_target` acts on the word alone.
NOUNS = lexicon.one_meaning_nouns()[:24]
# Words that go with a sense and have the feature "second".
FUNCTION = {"door": "this", "canal": "that"}


def make_sentences(
    *,
    frames: int = 8,
    distances: Sequence[int] = (1, 2, 3),
    cues: int = 10,
    cue_after: bool = False,
    seed: int = 0,
) -> tuple[Sentence, ...]:
    """Aligned pairs: every frame at every distance with every cue, with the sentences of a pair
    next to each other.

    A distance that is given twice means two positions in the frame, with other words around them.
    """
    rng = np.random.default_rng(seed)
    sentences = []
    for frame in range(frames):
        before, after = (
            " ".join(rng.choice(PLAIN, size=1 + int(rng.integers(3)))) for _ in range(2)
        )
        for turn, distance in enumerate(distances):
            name = f"frame {frame}" + "+" * distances[:turn].count(distance)
            between = " ".join(rng.choice(PLAIN, size=distance - 1))
            parts = (
                (before, WORD, between, "{cue}", after)
                if cue_after
                else (before, "{cue}", between, WORD, after)
            )
            for number in range(cues):
                for sense in SENSES:
                    text = " ".join(part for part in parts if part).format(cue=CUES[sense][number])
                    fields = {
                        "frame": name,
                        "distance": distance,
                        "pair": f"{name}/{distance}/{number}",
                    }
                    sentences.append(_sentence(text, sense, CUES[sense][number], fields))
    return tuple(sentences)


def _sentence(text: str, sense: str, cue: str, fields: Mapping[str, object]) -> Sentence:
    start, cue_start = (f" {text} ".index(f" {part} ") for part in (WORD, cue))
    spans = {
        "start": start,
        "end": start + len(WORD),
        "cue_start": cue_start,
        "cue_end": cue_start + len(cue),
    }
    return Sentence(word=WORD, sense=sense, text=text, **spans, **fields)


def make_crossed(first: int, second: int, *, frames: int = 6, seed: int = 0) -> list[Sentence]:
    """Pairs of every cue word of one sense with every cue word of the other, in every frame."""
    grid = make_sentences(frames=frames, distances=(1,), cues=max(first, second), seed=seed)
    by_cue = {(row.frame, row.cue_word): row for row in grid}
    return [
        replace(by_cue[frame, CUES[sense][number]], pair=f"{frame}/{a}/{b}")
        for frame in dict.fromkeys(row.frame for row in grid)
        for a in range(first)
        for b in range(second)
        for sense, number in zip(SENSES, (a, b), strict=True)
    ]


def corpus_of(sentences: Sequence[Sentence]) -> Corpus:
    return Corpus(tuple(sentences), (), "sentences made by hand", "0" * 64)


def without(sentences: Sequence[Sentence], *names: str) -> tuple[Sentence, ...]:
    """The sentences without some of their optional fields."""
    return tuple(replace(sentence, **dict.fromkeys(names)) for sentence in sentences)


# --- models said in features ----------------------------------------------------------------------

Reading = Mapping[str, float]
PLANTED = ("anchor", "is_bos", "is_cue", "is_target", "sense", "resolved", "decoy", "second")
PLANTED += ("accent", "marker")
PLACES = ("place_cos", "place_sin")
OPEN = (*(f"word{number}" for number in range(4)), *(f"noise{number}" for number in range(4)))
FEATURES = (*PLANTED, *PLACES, *OPEN)
# Not is_bos: only heads that look nowhere else ask for it.
READ_BY_ANY = ("is_cue", "is_target", *PLACES, *OPEN)
WRITTEN_BY_ANY = tuple(name for name in OPEN if name.startswith("noise"))
LAYERS, HEADS, D_HEAD, D_MLP, POSITIONS = 3, 4, 10, 24, 32
D_MODEL = HEADS * D_HEAD
TURN = 0.4  # radians from one position to the next
assert 2 * len(FEATURES) == D_MODEL != D_MLP


@dataclass(frozen=True)
class Head:
    """score = Σ (asks · x_query)(finds · x_key) over `looks`; ΔE = Σ A (takes · x_key) gives over
    `carries`."""

    layer: int
    head: int
    looks: tuple[tuple[Reading, Reading], ...]
    carries: tuple[tuple[Reading, Reading], ...]


@dataclass(frozen=True)
class Unit:
    """One neuron: gives · gelu(asks · x + bias)."""

    layer: int
    asks: Reading
    bias: float
    gives: Reading


# Where a head attends if it finds nothing that it asks for.
TO_BOS = ({"anchor": 1.0}, {"is_bos": 3.0})
SENSE: Reading = {"sense": 1.0}
TO_CUE = ({"is_target": 8.0}, {"is_cue": 6.0})


def resolver(
    layer: int, head: int, *, takes: Reading = SENSE, gives: str = "resolved", size: float = 3.0
) -> Head:
    """A head that attends from the word to the cue, reads its sense and writes it to the word."""
    return Head(layer, head, (TO_CUE, TO_BOS), ((takes, {gives: size}),))


def make_handmade(
    folder: Path,
    heads: Sequence[Head],
    *,
    units: Sequence[Unit] = (),
    seed: int = 0,
    spread: float = 0.02,
    more_words: Sequence[str] = (),
) -> Path:
    """Write config.json, model.safetensors and a word-level tokenizer of a model with these heads
    and neurons.

    spread: the standard deviation of the weights of a random model of the same shape (`untrained`)
    more_words: words of the vocabulary that nothing planted reads
    """
    rng = np.random.default_rng(seed)
    tokenizer = _tokenizer(more_words)
    norms = [(layer, norm) for layer in range(LAYERS) for norm in (1, 2)]
    gains = {norm: rng.uniform(0.7, 1.4, len(FEATURES)) for norm in norms}
    tensors = _tensors(tokenizer, heads, units, gains, rng)
    state_dict = {f"transformer.{name}": values for name, values in tensors.items()}
    state_dict["lm_head.weight"] = _unembedding(tensors["wte.weight"], seed)
    return write_checkpoint(folder, _config(len(tokenizer), spread), tokenizer, state_dict)


def make_handmade_encoder(
    folder: Path, heads: Sequence[Head], *, units: Sequence[Unit] = (), seed: int = 0
) -> Path:
    """The same as a BERT that reads both ways and applies its norms to writes; its norms keep every
    feature.

    Each norm divides by nearly the same number everywhere, as in `make_handmade`. There is no
    language-model head.
    """
    rng = np.random.default_rng(seed)
    cut = _tokenizer().backend_tokenizer
    first = {"single": f"{BOS} $A", "special_tokens": [(BOS, 0)]}
    cut.post_processor = processors.TemplateProcessing(**first)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=cut, cls_token=BOS, pad_token=UNKNOWN, unk_token=UNKNOWN
    )
    even = {(layer, norm): np.ones(len(FEATURES)) for layer in range(LAYERS) for norm in (1, 2)}
    state_dict = _as_bert(_tensors(tokenizer, heads, units, even, rng))
    sizes = {"vocab_size": len(tokenizer), "hidden_size": D_MODEL, "num_hidden_layers": LAYERS}
    sizes |= {"intermediate_size": D_MLP, "num_attention_heads": HEADS, "type_vocab_size": 1}
    config = BertConfig(**sizes, max_position_embeddings=POSITIONS, hidden_act="gelu_new")
    config.architectures = ["BertModel"]
    return write_checkpoint(folder, config, tokenizer, state_dict)


def _as_bert(gpt2: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """GPT-2's tensors under BERT's names: queries, keys and values separated, matrices transposed,
    norms after the sums."""
    bert = {
        "embeddings.word_embeddings.weight": gpt2["wte.weight"],
        "embeddings.position_embeddings.weight": gpt2["wpe.weight"],
        "embeddings.token_type_embeddings.weight": np.zeros((1, D_MODEL)),
        "embeddings.LayerNorm.weight": np.ones(D_MODEL),
        "embeddings.LayerNorm.bias": np.zeros(D_MODEL),
    }
    for layer in range(LAYERS):
        of, to = f"h.{layer}.", f"encoder.layer.{layer}."
        for number, role in enumerate(("query", "key", "value")):
            columns, name = (
                slice(number * D_MODEL, (number + 1) * D_MODEL),
                f"attention.self.{role}",
            )
            bert[f"{to}{name}.weight"] = gpt2[f"{of}attn.c_attn.weight"][:, columns].T
            bert[f"{to}{name}.bias"] = gpt2[f"{of}attn.c_attn.bias"][columns]
        matrices = {"attn.c_proj": "attention.output.dense", "mlp.c_fc": "intermediate.dense"}
        for old, new in (matrices | {"mlp.c_proj": "output.dense"}).items():
            bert[f"{to}{new}.weight"] = gpt2[f"{of}{old}.weight"].T
            bert[f"{to}{new}.bias"] = gpt2[f"{of}{old}.bias"]
        for old, new in {"ln_1": "attention.output.LayerNorm", "ln_2": "output.LayerNorm"}.items():
            bert |= {f"{to}{new}.{part}": gpt2[f"{of}{old}.{part}"] for part in ("weight", "bias")}
    return bert


def _tensors(
    tokenizer: PreTrainedTokenizerFast,
    heads: Sequence[Head],
    units: Sequence[Unit],
    gains: Mapping[tuple[int, int], np.ndarray],
    rng: np.random.Generator,
) -> dict[str, np.ndarray]:
    """Every tensor under GPT-2's names."""
    tensors = {"wte.weight": _token_vectors(tokenizer, rng), "wpe.weight": _position_vectors(rng)}
    for layer in range(LAYERS):
        here = {head.head: head for head in heads if head.layer == layer}
        layer_heads = [here.get(number) or _any_head(layer, number, rng) for number in range(HEADS)]
        tensors |= _attention(layer_heads, gains[layer, 1], rng)
        layer_units = [unit for unit in units if unit.layer == layer]
        tensors |= _mlp(
            [*layer_units, *(_any_unit(layer, rng) for _ in range(D_MLP - len(layer_units)))],
            gains[layer, 2],
        )
        for norm in (1, 2):  # the same bias on both coordinates of a pair: no reader sees it
            tensors[f"h.{layer}.ln_{norm}.weight"] = np.repeat(gains[layer, norm], 2)
            tensors[f"h.{layer}.ln_{norm}.bias"] = np.repeat(rng.normal(0, 0.1, len(FEATURES)), 2)
    tensors |= {
        "ln_f.weight": rng.uniform(0.7, 1.4, D_MODEL),
        "ln_f.bias": rng.normal(0, 0.1, D_MODEL),
    }
    return tensors


def _unembedding(tokens: np.ndarray, seed: int) -> np.ndarray:
    """W_U: the token vectors, with only `resolved` of the senses."""
    says = np.random.default_rng([seed, 1]).normal(0, 1, len(tokens))
    return tokens + np.outer(says, write_vector({"resolved": 1.0}))


def write_checkpoint(
    folder: Path,
    config: PretrainedConfig,
    tokenizer: PreTrainedTokenizerFast,
    tensors: Mapping[str, np.ndarray],
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    exact = {
        name: torch.tensor(values, dtype=torch.float32).contiguous()
        for name, values in tensors.items()
    }
    save_file(exact, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def resolver_place(seed: int) -> tuple[int, int]:
    return divmod(int(np.random.default_rng(7).permutation(LAYERS * HEADS)[seed]), HEADS)


@cache
def resolver_model(seed: int) -> tuple[Model, tuple[int, int]]:
    """A model in which exactly one head, at a position that depends on the seed, resolves the word.

    Shared: do not change it.
    """
    return _resolving(make_handmade, seed)


@cache
def resolver_encoder(seed: int) -> tuple[Model, tuple[int, int]]:
    """`resolver_model` as an encoder that reads both ways. Shared: do not change it."""
    return _resolving(make_handmade_encoder, seed)


def _resolving(make: Callable[..., Path], seed: int) -> tuple[Model, tuple[int, int]]:
    head_index = resolver_place(seed)
    with TemporaryDirectory() as folder:
        made = make(Path(folder) / "handmade", [resolver(*head_index)], seed=seed)
        return load(made), head_index


def _config(vocabulary: int, spread: float) -> GPT2Config:
    sizes = {"n_layer": LAYERS, "n_head": HEADS, "n_embd": D_MODEL, "n_inner": D_MLP}
    sizes |= {"n_positions": POSITIONS, "vocab_size": vocabulary, "initializer_range": spread}
    config = GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, tie_word_embeddings=False)
    config.architectures = ["GPT2LMHeadModel"]
    return config


def _tokenizer(more_words: Sequence[str] = ()) -> PreTrainedTokenizerFast:
    cues = [cue for sense in SENSES for cue in CUES[sense]]
    words = (BOS, UNKNOWN, WORD, *cues, *PLAIN, *FUNCTION.values(), *NOUNS, *more_words)
    numbers = {word: number for number, word in enumerate(words)}
    cut = Tokenizer(WordLevel(numbers, unk_token=UNKNOWN))
    cut.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=cut, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN
    )


def _token_vectors(tokenizer: PreTrainedTokenizerFast, rng: np.random.Generator) -> np.ndarray:
    rows = []
    nouns = np.random.default_rng(len(NOUNS))  # the same nouns in every model
    for word in tokenizer.convert_ids_to_tokens(range(len(tokenizer))):
        generator = nouns if word in NOUNS else rng
        # The anchor alone makes the variance 1: 2 anchor² / d_model.
        features = {"anchor": np.sqrt(D_MODEL / 2)} | {
            f"word{number}": generator.normal(0, 0.5) for number in range(4)
        }
        features |= {"is_bos": float(word == BOS), "is_target": float(word == WORD)}
        for sign, sense in zip((1, -1), SENSES, strict=True):
            if word == FUNCTION[sense]:
                features |= {"marker": 1.0, "second": sign}
            if word in CUES[sense]:
                size = rng.uniform(0.8, 1.2)  # a cue's sense and accent add up to 2
                features |= {"is_cue": 1.0, "sense": sign * size, "accent": sign * (2 - size)}
        rows.append(write_vector(features))
    return np.stack(rows)


def _position_vectors(rng: np.random.Generator) -> np.ndarray:
    rows = []
    for pos in range(POSITIONS):
        features = {"place_cos": np.cos(TURN * pos), "place_sin": np.sin(TURN * pos)}
        rows.append(write_vector(features | {name: rng.normal(0, 0.05) for name in WRITTEN_BY_ANY}))
    return np.stack(rows)


def write_vector(features: Reading) -> np.ndarray:
    """The vector, `d_model`, with these values in these features."""
    vector = np.zeros(D_MODEL)
    for name, value in features.items():
        at = 2 * FEATURES.index(name)
        vector[at : at + 2] = value, -value
    return vector


def read_vector(features: Reading, gains: np.ndarray) -> np.ndarray:
    """The weights, `d_model`, that read Σ weight · value of these features from the output of
    LayerNorm with these gains."""
    vector = np.zeros(D_MODEL)
    for name, weight in features.items():
        number = FEATURES.index(name)
        vector[2 * number : 2 * number + 2] = np.array([weight, -weight]) / (2 * gains[number])
    return vector


def _any_reading(rng: np.random.Generator, size: float) -> Reading:
    return {name: rng.normal(0, size) for name in READ_BY_ANY}


def _any_head(layer: int, head: int, rng: np.random.Generator) -> Head:
    looks = tuple((_any_reading(rng, 0.7), _any_reading(rng, 0.7)) for _ in range(4))
    carries = tuple(
        (_any_reading(rng, 0.5), {name: rng.normal(0, 0.2) for name in WRITTEN_BY_ANY})
        for _ in range(6)
    )
    return Head(layer, head, looks, carries)


def _any_unit(layer: int, rng: np.random.Generator) -> Unit:
    asks, bias = _any_reading(rng, 0.5), rng.normal(0, 0.3)
    return Unit(layer, asks, bias, {name: rng.normal(0, 0.05) for name in WRITTEN_BY_ANY})


def _attention(
    heads: Sequence[Head], gains: np.ndarray, rng: np.random.Generator
) -> dict[str, np.ndarray]:
    parts = {part: np.zeros((HEADS, D_HEAD, D_MODEL)) for part in ("q", "k", "v", "o")}
    for number, head in enumerate(heads):
        for row, (asks, finds) in enumerate(head.looks):
            parts["q"][number, row] = read_vector(asks, gains) * np.sqrt(D_HEAD)
            parts["k"][number, row] = read_vector(finds, gains)
        for row, (takes, gives) in enumerate(head.carries):
            parts["v"][number, row] = read_vector(takes, gains)
            parts["o"][number, row] = write_vector(gives)
    c_attn = np.concatenate(
        [parts[part].reshape(D_MODEL, D_MODEL).T for part in ("q", "k", "v")], axis=1
    )
    bias = np.zeros(3 * D_MODEL)
    bias[2 * D_MODEL :] = rng.normal(
        0, 0.1, D_MODEL
    )  # a constant in every z, as trained models have
    prefix = f"h.{heads[0].layer}.attn"
    constant = write_vector({name: rng.normal(0, 0.1) for name in WRITTEN_BY_ANY})
    tensors = {"c_attn.weight": c_attn, "c_attn.bias": bias}
    tensors |= {"c_proj.weight": parts["o"].reshape(D_MODEL, D_MODEL), "c_proj.bias": constant}
    return {f"{prefix}.{name}": values for name, values in tensors.items()}


def _mlp(units: Sequence[Unit], gains: np.ndarray) -> dict[str, np.ndarray]:
    prefix = f"h.{units[0].layer}.mlp"
    return {
        f"{prefix}.c_fc.weight": np.stack(
            [read_vector(unit.asks, gains) for unit in units], axis=1
        ),
        f"{prefix}.c_fc.bias": np.array([unit.bias for unit in units]),
        f"{prefix}.c_proj.weight": np.stack([write_vector(unit.gives) for unit in units]),
        f"{prefix}.c_proj.bias": np.zeros(D_MODEL),
    }


def without_intervals(patch):
    """Intervals do not matter for these counts, and would take time."""
    whole = resampling.bootstrap_weights
    patch.setattr(
        resampling, "bootstrap_weights", lambda crossed, seed: whole(crossed, seed=seed, draws=2)
    )
