"""The evaluation of tiny-senses-bidirectional: whole sentences, read at the word, with the cue before or after it."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertForMaskedLM, PreTrainedTokenizerFast

from probe.text import lexicon
from probe.text.lexicon import Showcase
from probe.text.sentences import Sentence
from training.bidirectional import after
from training.scoring import Answer, Score, answers, joined, read_word, score_word

BATCH = 256


@dataclass(frozen=True)
class Results:
    """The scores of every word with the cue before and after it, and the answers to the showcase sentences."""

    before: tuple[Score, ...]
    behind: tuple[Score, ...]
    answers: tuple[Answer, ...]


def resid_at_word(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, rows: Sequence[Sentence | Showcase]
) -> Tensor:
    """The residual stream at the last token of the word of every sentence. `sentence depth d_model`

    Depth 0 is the input of the first block, depth d the output of block d. Sentences of one length share a batch, so
    nothing is padded.
    """
    encoded = tokenizer([row.text for row in rows], return_offsets_mapping=True)
    by_length: dict[int, list[int]] = defaultdict(list)
    for i, ids in enumerate(encoded.input_ids):
        by_length[len(ids)].append(i)
    at = [
        max(pos for pos, (start, end) in enumerate(spans) if start < row.end <= end)
        for row, spans in zip(rows, encoded.offset_mapping, strict=True)
    ]
    result = torch.empty(len(rows), model.config.num_hidden_layers + 1, model.config.hidden_size)
    for alike in by_length.values():
        for first in range(0, len(alike), BATCH):
            chunk = alike[first : first + BATCH]
            with torch.no_grad():
                states = model.bert(
                    torch.tensor([encoded.input_ids[i] for i in chunk]), output_hidden_states=True
                )
            stream = torch.stack(states.hidden_states, dim=2)  # sentence pos depth d_model
            result[chunk] = stream[torch.arange(len(chunk)), torch.tensor([at[i] for i in chunk])]
    return result


def evaluate(
    model: BertForMaskedLM, tokenizer: PreTrainedTokenizerFast, words: Sequence[str] | None = None
) -> Results:
    """Accuracy on the lexicon's sentences with the cue before and after the word, and the showcase sentences.

    words: by default all words of the lexicon
    """

    def read(rows: Sequence[Sentence | Showcase]) -> Tensor:
        return resid_at_word(model, tokenizer, rows)

    words = lexicon.words() if words is None else words
    before = [read_word(read, word, lexicon.expand(word).sentences) for word in words]
    behind = [read_word(read, word, after.sentences(word)) for word in words]
    showcase = [answer for both in map(joined, before, behind) for answer in answers(read, both)]
    return Results(tuple(map(score_word, before)), tuple(map(score_word, behind)), tuple(showcase))
