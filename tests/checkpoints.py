"""Small seeded checkpoints: real files in the real formats, with random or hand-set weights.

`n_inner` differs from `n_embd` on purpose: TransformerLens is wrong for models of that shape in
compatibility mode.
"""

from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GPT2Config, GPT2LMHeadModel, GPT2Tokenizer, PreTrainedTokenizerFast

END = "<|endoftext|>"
SENTENCES = (
    "The mole dug a tunnel under the river bank after the flood.",
    "The bank raised the interest on every loan in the town.",
    "A red apple fell from the old tree into the garden.",
    "The spy was a mole inside the agency for many years.",
    "She photographed the muddy bank, and he sold the apple stock.",
)
VOCABULARY = 400
SMALL = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 48}

# Derived by hand for SMALL: wte 400*32, wpe 48*32, per layer 4*32*32 + 2*32*128 weights, 9*32 + 128
# biases and 4*32 norms (the 9 biases are 3 + 1 + 4 of c_attn, c_proj, c_fc plus 1 of mlp.c_proj),
# and 2*32 of the last norm.
SMALL_PARAMETERS = (
    400 * 32 + 48 * 32 + 2 * (12 * 32 * 32 + 3 * 32 + 32 + 128 + 32 + 4 * 32) + 2 * 32
)


def make_tokenizer(vocabulary: int = VOCABULARY) -> PreTrainedTokenizerFast:
    """A byte-level BPE like GPT-2's, trained on a few sentences: with every byte, no added space,
    and one special token."""
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    bpe.train_from_iterator(SENTENCES, trainer)
    return GPT2Tokenizer(tokenizer_object=bpe, bos_token=END, eos_token=END, unk_token=END)


def make_model(*, seed: int = 0, tied: bool = True, **sizes: int) -> GPT2LMHeadModel:
    """A random GPT-2 with random biases and norms, so that no term of the formulas is zero by
    accident."""
    shape = SMALL | {"vocab_size": VOCABULARY} | sizes
    config = GPT2Config(**shape, bos_token_id=0, eos_token_id=0, tie_word_embeddings=tied)
    config.architectures = ["GPT2LMHeadModel"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config).eval()
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                spread, gain = (
                    0.2 if parameter.dim() > 1 else 0.1,
                    ".ln_" in name and "weight" in name,
                )
                parameter.copy_(torch.randn_like(parameter) * spread + gain)
    return model


def make_checkpoint(folder: Path, *, seed: int = 0, tied: bool = True, **sizes: int) -> Path:
    """Write config.json, model.safetensors and the tokenizer of `make_model` to `folder`; return
    the folder."""
    model = make_model(seed=seed, tied=tied, **sizes)
    if not sizes and tied:
        count = sum(parameter.numel() for parameter in model.parameters())
        assert count == SMALL_PARAMETERS, (
            f"{count} parameters where {SMALL_PARAMETERS} were derived"
        )
    folder.mkdir(parents=True, exist_ok=True)
    model.config.save_pretrained(folder)
    tensors = {
        name: value
        for name, value in model.state_dict().items()
        if name != "lm_head.weight" or not tied
    }
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    make_tokenizer().save_pretrained(folder)
    return folder


def change_tensors(folder: Path, changes: dict[str, torch.Tensor | None]) -> Path:
    """Rewrite model.safetensors with some tensors replaced, added, or (None) removed; names begin
    with "transformer."."""
    file = folder / "model.safetensors"
    tensors = load_file(file) | {
        name: value for name, value in changes.items() if value is not None
    }
    new_tensors = {
        name: value.contiguous()
        for name, value in tensors.items()
        if changes.get(name, value) is not None
    }
    save_file(new_tensors, file, metadata={"format": "pt"})
    return folder
