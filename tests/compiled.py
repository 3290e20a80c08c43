"""Programs that Tracr compiles into causal transformers, as checkpoints that `probe.load` reads,
with their circuits.

A compiled model has learned positions, ReLU and no norm: GPT-2's row of the table except for the
norm, which every class of the table has and which is made to do nothing. One more coordinate
balances the sum of the others, so that the mean is 0. The stream is 2^-20 of Tracr's, so that its
variance is negligible compared with the norm's epsilon (1/4). The gain undoes both, in powers of
two, so that nothing is rounded.

Tracr fills every layer with heads of zeros up to the widest layer. Here every layer has the same
number of heads, at least FEWEST, and some neurons more than the widest. Heads and neurons that do
not belong to the program are random: they read every coordinate and write to coordinates that only
they read.

The circuit is derived from the compiled matrices. A head's query reads a variable if W_Q W_K
differs between two of its values, its key if W_K W_Q does, its value if W_V W_O does, an MLP if
W_in does. A part writes a variable if its W_O or W_out reaches its coordinates. An edge leads from
the writer of a variable that depends on the tokens to a reader of it. The order of the tokens'
positions is the same in every input of a length, so a part that reads only positions has no edge.

Source: Lindner et al. 2023 (Tracr); https://github.com/google-deepmind/tracr
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from handmade import write_checkpoint
from tokenizers import Tokenizer, pre_tokenizers
from tokenizers.models import WordLevel
from transformers import GPT2Config, PreTrainedTokenizerFast

from probe import Model, load

LENGTH = 5
LETTERS, PLACES = ("a", "b", "c"), (0, 1, 2, 3)
BOS, PAD = "compiler_bos", "compiler_pad"
SPARE, FEWEST, NEURONS = (
    8,
    4,
    4,
)  # coordinates that only random parts write; heads per layer; random neurons per layer
SMALL, EPSILON = 2.0**-20, 0.25
CHANNELS = ("query", "key", "value")
EMBEDDING, MLP = -1, -1
Part = tuple[
    int, int
]  # (layer, head); (layer, MLP) for an MLP, and (EMBEDDING, MLP) for the embeddings
Edge = tuple[Part, Part, str]


@dataclass(frozen=True, eq=False)
class Compiled:
    """A program as a model.

    inputs: `input pos`, ids, all of LENGTH tokens after the begin token
    values: of the output, in the order of `outputs`, their ids
    predictions: `input pos output`, the outputs of Tracr's model
    heads, edges: of its circuit
    """

    name: str
    model: Model
    inputs: np.ndarray
    values: tuple[object, ...]
    outputs: tuple[int, ...]
    predictions: np.ndarray
    heads: frozenset[Part]
    edges: frozenset[Edge]

    @property
    def steps(self) -> int:
        """The number of heads on the longest chain of edges."""

        def longest(part: Part) -> int:
            return (part[1] != MLP) + max(
                (longest(sender) for sender, receiver, _ in self.edges if receiver == part),
                default=0,
            )

        return max(map(longest, self.heads))


def programs() -> dict[str, tuple[Callable[[], Any], tuple[Any, ...]]]:
    """Every program by name: its function, and its tokens."""
    from tracr.compiler.lib import detect_pattern, shift_by
    from tracr.rasp import rasp

    tokens, positions, equal = rasp.tokens, rasp.indices, rasp.Comparison.EQ

    def back(steps: int, sequence: Any = tokens) -> Any:
        """The token a number of steps before, with one attention step each."""
        return back(steps - 1, shift_by(1, sequence)) if steps else sequence

    def at(position: Any) -> Any:
        """The token at the given position."""
        return rasp.Aggregate(rasp.Select(positions, position, equal), tokens)

    def follow(steps: int) -> Any:
        return at(follow(steps - 1)) if steps else tokens

    def behind() -> Any:
        """The token after an earlier occurrence of the same token."""
        return rasp.Aggregate(rasp.Select(back(1), tokens, equal), tokens)

    def first() -> Any:
        return rasp.Aggregate(
            rasp.Select(positions, positions, lambda key, query: key == 0), tokens
        )

    def same(a: Any, b: Any) -> Any:
        return rasp.SequenceMap(lambda x, y: x == y, a, b)

    def count(keys: Any = tokens, predicate: Any = equal) -> Any:
        return rasp.SelectorWidth(rasp.Select(keys, tokens, predicate))

    return {
        "token before": (lambda: back(1), LETTERS),
        "two before": (lambda: back(2), LETTERS),
        "three before": (lambda: back(3), LETTERS),
        "same as before": (lambda: same(tokens, back(1)), LETTERS),
        "same as first": (lambda: same(tokens, first()), LETTERS),
        "before is first": (lambda: same(back(1), first()), LETTERS),
        "count of it": (lambda: count(), LETTERS),
        "count of a": (lambda: count(predicate=lambda key, query: key == "a"), LETTERS),
        "behind the same": (lambda: behind(), LETTERS),
        "count of pairs": (lambda: count(back(1)), LETTERS),
        "ends in ab": (lambda: detect_pattern(tokens, "ab"), LETTERS),
        "ends in abc": (lambda: detect_pattern(tokens, "abc"), LETTERS),
        "token at its count": (lambda: at(count()), LETTERS),
        "token it names": (lambda: follow(1), PLACES),
        "names, twice": (lambda: follow(2), PLACES),
        "names, three times": (lambda: follow(3), PLACES),
    }


@cache
def compiled(name: str) -> Compiled:
    """One of `programs`, compiled and loaded. Shared: do not change it."""
    from tracr.compiler.compiling import compile_rasp_to_model

    make, tokens = programs()[name]
    program = make()
    tracr_model = compile_rasp_to_model(
        program, set(tokens), LENGTH, causal=True, compiler_bos=BOS, compiler_pad=PAD
    )
    labels, read = list(tracr_model.residual_labels), tracr_model.input_encoder.encoding_map
    values = tuple(sorted(tracr_model.output_encoder.encoding_map, key=str))
    columns = [labels.index(f"{program.label}:{value}") for value in values]
    ids = [read[BOS], *(read[token] for token in tokens)]
    inputs = np.array([(ids[0], *text) for text in itertools.product(ids[1:], repeat=LENGTH)])
    predictions = np.asarray(
        tracr_model.forward(tracr_model.params, inputs).transformer_output.output
    )[..., columns]
    weights = {
        name: {part: np.asarray(array) for part, array in arrays.items()}
        for name, arrays in tracr_model.params.items()
    }
    layers = [
        _layer(weights, number, tracr_model.model_config)
        for number in range(tracr_model.model_config.num_layers)
    ]
    words = [*map(str, sorted(read, key=read.get)), *(f"={value}" for value in values)]
    with TemporaryDirectory() as folder:
        model = load(_write(Path(folder) / "compiled", words, weights, layers, columns))
    outputs = tuple(range(len(read), len(words)))
    return Compiled(name, model, inputs, values, outputs, predictions, *_circuit(layers, labels))


# --- the model ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Layer:
    """By head `q k v: d_model key_size` and `o: key_size d_model`; `into: d_model d_mlp` and `out:
    d_mlp d_model`."""

    q: Sequence[np.ndarray]
    k: Sequence[np.ndarray]
    v: Sequence[np.ndarray]
    o: Sequence[np.ndarray]
    into: np.ndarray
    bias: np.ndarray
    out: np.ndarray


def _layer(weights: Mapping[str, Mapping[str, np.ndarray]], number: int, config: Any) -> Layer:
    at, heads = f"transformer/layer_{number}", config.num_heads
    q, k, v = (
        np.split(weights[f"{at}/attn/{role}"]["w"], heads, axis=1)
        for role in ("query", "key", "value")
    )
    o = np.split(weights[f"{at}/attn/linear"]["w"], heads)
    into, out = weights[f"{at}/mlp/linear_1"], weights[f"{at}/mlp/linear_2"]
    biases = [weights[f"{at}/attn/{role}"]["b"] for role in ("query", "key", "value", "linear")]
    assert not any(bias.any() for bias in (*biases, out["b"]))
    return Layer(q, k, v, o, into["w"], into["b"], out["w"])


def _write(
    folder: Path,
    words: Sequence[str],
    weights: Mapping[str, Mapping[str, np.ndarray]],
    layers: Sequence[Layer],
    columns: Sequence[int],
) -> Path:
    """The checkpoint: the compiled coordinates, SPARE ones, empty ones up to a round number, and
    the one that balances all."""
    rng = np.random.default_rng(0)
    tokens, positions = weights["token_embed"]["embeddings"], weights["pos_embed"]["embeddings"]
    width, key_size = layers[0].q[0].shape
    heads = max(FEWEST, len(layers[0].q) + 1)
    d_head = max(key_size, -(-(width + SPARE + 1) // heads))
    d_model, d_mlp = heads * d_head, len(layers[0].bias) + NEURONS

    def to_stream(rows: np.ndarray) -> np.ndarray:
        """Rows that are added to the stream: small, and balanced."""
        whole = np.zeros((len(rows), d_model))
        whole[:, : rows.shape[1]] = rows
        whole[:, -1] = -whole.sum(1)
        return whole * SMALL

    def read(columns: np.ndarray, size: int) -> np.ndarray:
        """Columns that read the stream, padded to `size`."""
        whole = np.zeros((d_model, size))
        whole[: len(columns), : columns.shape[1]] = columns
        return whole

    def reading(size: int) -> np.ndarray:
        return rng.normal(0, 0.3, (width + SPARE, size))

    def writing(size: int) -> np.ndarray:
        return np.hstack([np.zeros((size, width)), rng.normal(0, 0.3, (size, SPARE))])

    says = np.zeros((len(words), d_model))
    says[np.arange(len(words) - len(columns), len(words)), columns] = 1
    norm = {"weight": np.full(d_model, EPSILON**0.5 / SMALL), "bias": np.zeros(d_model)}
    unsaid = np.zeros((len(columns), width))
    tensors = {
        "wte.weight": to_stream(np.vstack([tokens, unsaid])),
        "wpe.weight": to_stream(positions),
    }
    tensors |= {f"ln_f.{part}": values for part, values in norm.items()}
    for number, layer in enumerate(layers):
        parts = {role: [read(part, d_head) for part in getattr(layer, role)] for role in "qkv"}
        parts["q"] = [
            part * (d_head / key_size) ** 0.5 for part in parts["q"]
        ]  # scores are divided by its root
        parts["o"] = [
            to_stream(np.vstack([part, np.zeros((d_head - key_size, width))])) for part in layer.o
        ]
        for head in range(heads):
            if head >= len(layer.o) or not layer.o[head].any():
                random_parts = {role: read(reading(d_head), d_head) for role in "qkv"} | {
                    "o": to_stream(writing(d_head))
                }
                for role, matrix in random_parts.items():
                    parts[role][head : head + 1] = [matrix]
        into = np.hstack([read(layer.into, layer.into.shape[1]), read(reading(NEURONS), NEURONS)])
        layer_tensors = {
            "attn.c_attn.bias": np.zeros(3 * d_model),
            "mlp.c_fc.bias": np.append(layer.bias, np.zeros(NEURONS)),
        }
        layer_tensors |= {f"{part}.c_proj.bias": np.zeros(d_model) for part in ("attn", "mlp")}
        layer_tensors["attn.c_attn.weight"] = np.hstack([*parts["q"], *parts["k"], *parts["v"]])
        layer_tensors |= {"attn.c_proj.weight": np.vstack(parts["o"]), "mlp.c_fc.weight": into}
        layer_tensors["mlp.c_proj.weight"] = np.vstack(
            [to_stream(layer.out), to_stream(writing(NEURONS))]
        )
        layer_tensors |= {
            f"ln_{index}.{part}": values for index in (1, 2) for part, values in norm.items()
        }
        tensors |= {f"h.{number}.{name}": values for name, values in layer_tensors.items()}
    state_dict = {f"transformer.{name}": values for name, values in tensors.items()} | {
        "lm_head.weight": says
    }
    sizes = {
        "vocab_size": len(words),
        "n_positions": len(positions),
        "n_layer": len(layers),
        "n_head": heads,
    }
    sizes |= {
        "n_embd": d_model,
        "n_inner": d_mlp,
        "bos_token_id": words.index(BOS),
        "eos_token_id": words.index(BOS),
    }
    how = {
        "activation_function": "relu",
        "layer_norm_epsilon": EPSILON,
        "tie_word_embeddings": False,
    }
    config = GPT2Config(**sizes, **how, architectures=["GPT2LMHeadModel"])
    return write_checkpoint(folder, config, _tokenizer(words), state_dict)


def _tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    cut = Tokenizer(WordLevel({word: number for number, word in enumerate(words)}, unk_token=PAD))
    cut.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=cut, bos_token=BOS, eos_token=BOS, unk_token=PAD
    )


# --- the circuit ----------------------------------------------------------------------------------


def _circuit(
    layers: Sequence[Layer], labels: Sequence[str]
) -> tuple[frozenset[Part], frozenset[Edge]]:
    """The heads and edges of the program, from its matrices and the names of their coordinates."""
    variables: dict[str, list[int]] = {}
    for number, label in enumerate(labels):
        if label not in (f"tokens:{BOS}", f"tokens:{PAD}"):
            variables.setdefault(label.partition(":")[0], []).append(number)
    writers: dict[str, list[Part]] = {
        "tokens": [(EMBEDDING, MLP)]
    }  # of every variable that depends on the tokens
    heads, edges = set(), set()

    def note(part: Part, reads: Mapping[str, np.ndarray], writes: np.ndarray) -> None:
        came = {
            (sender, part, channel)
            for name, senders in writers.items()
            for channel, matrix in reads.items()
            if _distinguishes(matrix[variables[name]], name)
            for sender in senders
        }
        edges.update(came)
        for name, numbers in variables.items():
            if came and writes[:, numbers].any():
                writers.setdefault(name, []).append(part)

    for number, layer in enumerate(layers):
        for head, (q, k, v, o) in enumerate(zip(layer.q, layer.k, layer.v, layer.o, strict=True)):
            if o.any():
                heads.add((number, head))
                note((number, head), {"query": q @ k.T, "key": k @ q.T, "value": v @ o}, o)
        if layer.out.any():
            note((number, MLP), {"input": layer.into}, layer.out)
    return frozenset(heads), frozenset(edges)


def _distinguishes(rows: np.ndarray, name: str) -> bool:
    """Whether a reader of a variable's coordinates distinguishes two of its values. All variables
    but tokens may be absent."""
    return bool(np.ptp(rows, axis=0).any() if name == "tokens" else rows.any())
