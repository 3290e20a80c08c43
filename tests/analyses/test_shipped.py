"""The requirements for every model that ships; a separate file tests the accuracy of each."""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest
import torch
import transformers
from safetensors.torch import load_file
from shipping import require_command_makes, require_complete
from training import grammar
from training.bidirectional import after
from training.bidirectional import train as bidirectional
from training.causal import train as causal
from training.translator import parallel
from training.translator import train as translator
from transformers import AutoTokenizer

from probe.model.find import EMBEDDED_FOLDER

pytestmark = pytest.mark.real_model

ATTENTION, NORM = 4 * (128 * 128 + 128), 2 * 128
BLOCK = ATTENTION + 2 * 128 * 256 + 256 + 128 + 2 * NORM


class Shipped(NamedTuple):
    """A model that ships.

    sizes: in config.json
    parameters: their number, by hand, for a vocabulary of that size
    units: its training text, of which two seeds share fewer than `alike` texts in 200
    """

    name: str
    auto_name: str
    architecture: str
    sizes: dict[str, int]
    parameters: Callable[[int], int]
    train: ModuleType
    units: Callable[..., Iterable[object]]
    alike: int

    @property
    def folder(self) -> Path:
        return EMBEDDED_FOLDER / self.name

    @property
    def auto(self) -> type:
        return getattr(transformers, self.auto_name)


GPT2 = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_inner": 256, "n_positions": 256}
BERT = {
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "hidden_size": 128,
    "intermediate_size": 256,
}
BERT |= {"max_position_embeddings": 128}
BART = {
    f"{side}_{size}": n
    for side in ("encoder", "decoder")
    for size, n in (("layers", 2), ("attention_heads", 4))
}
BART |= {"d_model": 128}
MODELS = [
    Shipped(
        *("tiny-senses", "AutoModelForCausalLM", "GPT2LMHeadModel", GPT2),
        lambda vocabulary: (vocabulary + 256) * 128 + 4 * BLOCK + NORM,
        *(causal, grammar.units, 10),
    ),
    # Tokens, positions and segments with a norm; blocks; a transform with a norm, and a bias for
    # each token
    Shipped(
        *("tiny-senses-bidirectional", "AutoModelForMaskedLM", "BertForMaskedLM", BERT),
        lambda vocabulary: (
            (vocabulary + 128 + 2) * 128 + NORM + 4 * BLOCK + 128 * 128 + 128 + NORM + vocabulary
        ),
        *(bidirectional, after.units, 10),
    ),
    # A bias for each token; positions from the third on with a norm, in both stacks; a decoder
    # attends twice
    Shipped(
        *("tiny-translator", "AutoModelForSeq2SeqLM", "BartForConditionalGeneration", BART),
        lambda vocabulary: (
            129 * vocabulary + 2 * ((64 + 2) * 128 + NORM) + 4 * BLOCK + 2 * (ATTENTION + NORM)
        ),
        *(translator, parallel.units, 20),
    ),
]
each = pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)


@each
def test_the_files_are_small_and_plain_transformers_loads_them_completely(
    model: Shipped,
) -> None:
    assert (model.folder / "model.safetensors").stat().st_size <= 4_000_000
    config = json.loads((model.folder / "config.json").read_text("utf-8"))
    assert config["architectures"] == [model.architecture] and config.items() >= model.sizes.items()
    tensors = load_file(model.folder / "model.safetensors").values()
    assert all(tensor.dtype == torch.float32 and tensor.isfinite().all() for tensor in tensors)
    assert sum(tensor.numel() for tensor in tensors) == model.parameters(config["vocab_size"])
    kind = getattr(transformers, model.architecture)
    require_complete(model.folder, model.auto, kind, AutoTokenizer.from_pretrained(model.folder))


@each
def test_a_seed_determines_the_training_text(model: Shipped) -> None:
    once, again, different = (list(model.units(200, seed=seed)) for seed in (3, 3, 4))
    assert once == again
    assert len(set(once) & set(different)) < model.alike


@pytest.mark.campaign
@each
def test_a_seed_determines_the_trained_model(model: Shipped) -> None:
    tokenizer, train = AutoTokenizer.from_pretrained(model.folder), model.train
    runs = [
        list(train.fit(train.new_model(tokenizer, seed=seed), tokenizer, steps=3, seed=seed))
        for seed in (5, 5, 6)
    ]
    assert runs[0] == runs[1] != runs[2]


@pytest.mark.campaign
@each
def test_the_training_command_writes_a_folder_that_loads(model: Shipped, tmp_path: Path) -> None:
    require_command_makes(
        model.folder, model.train.__name__.split(".")[1], model.auto, tmp_path / "made"
    )
