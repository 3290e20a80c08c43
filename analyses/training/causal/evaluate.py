"""The evaluation of tiny-senses: a sentence is cut at the end of the word, because a causal model cannot read further,
and read there.
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from probe.text import lexicon
from probe.text.lexicon import Showcase
from probe.text.sentences import Sentence
from training.scoring import Answer, Score, answers, read_word, score_word

BATCH = 256


def resid_at_end(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]
) -> Tensor:
    """The residual stream at the last token of every text. `text depth d_model`

    Depth 0 is the input of the first block. Texts of one length share a batch, so nothing is padded. BOS is prepended.
    """
    ids = [[tokenizer.bos_token_id, *row] for row in tokenizer(list(texts)).input_ids]
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(ids):
        by_length[len(row)].append(i)
    result = torch.empty(len(ids), model.config.n_layer + 1, model.config.n_embd)
    caught: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: caught.append(_last(out)))
        for block in model.transformer.h
    ]
    hooks.append(
        model.transformer.h[0].register_forward_pre_hook(
            lambda _, args: caught.append(args[0][:, -1])
        )
    )
    try:
        for rows in by_length.values():
            for start in range(0, len(rows), BATCH):
                chunk = rows[start : start + BATCH]
                caught.clear()
                with torch.no_grad():
                    model.transformer(torch.tensor([ids[i] for i in chunk]))
                result[chunk] = torch.stack(caught, dim=1)
    finally:
        for hook in hooks:
            hook.remove()
    return result


def _last(out: Tensor | tuple[Tensor, ...]) -> Tensor:
    return (out[0] if isinstance(out, tuple) else out)[:, -1]


def evaluate(
    model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast
) -> tuple[tuple[Score, ...], tuple[Answer, ...]]:
    """One score per word of the lexicon, and the answers to the showcase sentences."""

    def read(rows: Sequence[Sentence | Showcase]) -> Tensor:
        return resid_at_end(model, tokenizer, [row.text[: row.end] for row in rows])

    readings = [read_word(read, word, lexicon.expand(word).sentences) for word in lexicon.words()]
    showcase = [answer for reading in readings for answer in answers(read, reading)]
    return tuple(map(score_word, readings)), tuple(showcase)
