"""The check of every newly loaded model against its library: on one text, the formulas and the
hooked model must compute what transformers' own forward computes from the same weights and config.

It detects a setting in a config that the library reads and the formulas do not, such as a decoder's
`is_causal: false`. `probe.model.check` shows where such a model differs.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from probe.model import blocks, forward, variants
from probe.model.bridge import plain_model
from probe.model.model import ONE_THREAD, Config, Model, refuse
from probe.model.objects import SAME, difference_of, numbers, positions_at_ends
from probe.model.weights import read_stacks

SHORT_TEXT = "The mole dug under the river bank."
# Tokens of the text of a comparison.
FEWEST = 32
MOST = 512
# Parts of the names of settings that state a number of tokens from which a model computes
# differently: windows, T5's furthest offset, the length from which rotary positions are scaled.
THRESHOLDS = ("window", "max_distance", "chunk_size", "original_max_position_embeddings")
ROUNDING = 2**-8  # relative error of a bfloat16 number
STEPS = 8  # roundings between two neighbouring quantities, at most
COARSE = torch.bfloat16

# The keys of the models that agree with their library. Loading the same one again is free.
_AGREEING: set[str] = set()


def rounded_through(blocks: int) -> float:
    """The relative tolerance of a bfloat16 tensor after this number of blocks: each block rounds
    the stream twice.
    """
    return (2 * blocks + STEPS) * ROUNDING


def text_ids(tokenizer: Any, config: Config, settings: Any) -> list[int]:
    """The tokens of a short text, and after these as many of them in random order as make it longer
    than every window and scaling threshold in the library's config `settings`; at most MOST, and at
    most the model's context.
    """
    longest = max(_thresholds(settings.to_dict()), default=0)
    return _ids(tokenizer, config, longest + 1)


def _ids(tokenizer: Any, config: Config, length: int) -> list[int]:
    ids = tokenizer(SHORT_TEXT, add_special_tokens=config.adds_special_tokens)["input_ids"]
    plain = tokenizer(SHORT_TEXT, add_special_tokens=False)["input_ids"]
    n = min(max(length, FEWEST), MOST, config.n_ctx)
    return [*ids, *random.Random(0).choices(plain, k=n)][:n]


def _thresholds(settings: Mapping[str, Any]) -> Iterator[int]:
    """The numbers of tokens from which a model with these settings computes differently."""
    for name, value in settings.items():
        if isinstance(value, Mapping):
            yield from _thresholds(value)
        elif isinstance(value, int) and any(part in str(name) for part in THRESHOLDS):
            yield value


def require_agreement(model: Model) -> None:
    """Raises ModelError if the formulas or the hooked model compute other logits from the weights
    of a model than transformers' forward; without a language-model head, other last vectors.

    In bfloat16 only the hooked model is compared, which rounds where transformers does: after other
    roundings a router may choose other experts.
    """
    key = model.key
    if key in _AGREEING:
        return
    config = model.config
    plain: Any = plain_model(model)
    # A longer text than MOST would be needed beyond the other thresholds.
    short = [each for each in _thresholds(plain.config.to_dict()) if each < MOST]
    ids = _ids(model.tokenizer, config, max(short, default=0) + 1)
    library = numbers(plain, config, ids)
    with ONE_THREAD:
        hooked = numbers(model.bridge.original_model, config, ids)
    computed = {"hooked model": hooked}
    # In float64, too, some families' code computes a softmax or a recurrence in float32.
    tolerance = SAME[torch.float32]
    if model.dtype == COARSE:
        tolerance = rounded_through(config.n_layers + config.n_decoder_layers)
    elif config.start_token is None or config.has_lm_head:
        computed["formulas"] = _from_weights(model, ids)
    for name, result in computed.items():
        error = difference_of(result.double().cpu(), library)
        if not error <= tolerance:
            problem = (
                f"transformers computes other numbers from its weights and config than the {name} "
                f"of {config.family.name} (off by {error:.0e} of the scale on {len(ids)} tokens)"
            )
            step = "correct its config, or run `probe check` on it to see what differs"
            raise refuse(model.name, problem, step)
    _AGREEING.add(key)


@torch.inference_mode()
def _from_weights(model: Model, ids: Sequence[int]) -> Tensor:
    """The logits, or last vectors, of the formulas at the ends of a text.

    Shape: `pos d_vocab` or `pos d_model`
    """
    config = model.config
    positions = positions_at_ends(len(ids))
    stacks = read_stacks(model.weights, config, model.modules)
    if config.start_token is not None:
        target = [config.start_token, *ids]
        memory = variants.encode(stacks, ids)
        decoded = [variants.decode(stacks, target[: at + 1], memory) for at in positions]
        return torch.cat([each.logits for each in decoded])
    (weights,) = stacks.values()
    terms = blocks.position_terms(weights, len(ids))
    for step in variants.run_texts(weights, [ids], len(weights.blocks), terms):
        last = step
    [resid] = last.everywhere(last.resid_post)
    final = forward.final_norm(weights, resid[positions])
    return forward.logits(weights, final) if config.has_lm_head else final
