"""The tokenizers of the models that ship: GPT-2's byte-level scheme with other vocabularies.

Text is split into words in the same way as by GPT-2. A word of the vocabulary is one token. Any other word is built
from bytes by merges, so that every text can be encoded and decoded without change.
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from probe.text import lexicon
from training.templates import tables
from training.withheld import plural

END = "<|endoftext|>"
MASK = "[MASK]"
SIZE = 3400
MERGES = 250


@dataclass(frozen=True, eq=False)
class Special:
    """The special tokens of a model.

    tokens: by their role
    around: the template around every text; None without one
    longest: the context window, in tokens
    """

    tokens: Mapping[str, str]
    around: str | None = None
    longest: int = 256


CAUSAL = Special({"bos_token": END, "eos_token": END, "unk_token": END})
BIDIRECTIONAL = Special(
    {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": MASK},
    "[CLS] $A [SEP]",
    128,
)
TRANSLATOR = Special(
    {"pad_token": "[PAD]", "bos_token": "[BOS]", "eos_token": "[EOS]", "mask_token": MASK},
    "$A [EOS]",
    64,
)

_CUT = pre_tokenizers.ByteLevel(add_prefix_space=False)


def _pieces(text: str) -> list[str]:
    return [piece for piece, _ in _CUT.pre_tokenize_str(text)]


def required() -> list[str]:
    """The words that must be one token: the lexicon's words, cues and continuations, and the ordinary words of its
    frames.

    Only the single words of the frames are read here; their sentences never become training text.
    """
    texts = [" Apple", "Apple", *tables()["kept_out"], *(row.text for row in lexicon.showcase())]
    for word in lexicon.words():
        entry = lexicon.entry(word)
        texts += [f" {word}", f" {plural(word)}"]
        for sense in entry.senses:
            texts += [f" {cue}" for cue in sense.cues] + list(sense.continuations)
        for frame in entry.frames:
            texts += [re.sub(r" ?\{\w+\}", "", version) for version in frame.versions.values()]
    return list(dict.fromkeys(piece for text in texts for piece in _pieces(text)))


def vocabulary(texts: Iterable[str], must: Sequence[str], *, size: int) -> list[str]:
    """The words that become one token: the required ones, then the most frequent ones of the texts; ties are in
    alphabetical order.
    """
    counts = Counter(piece for text in texts for piece in _pieces(text))
    by_count = sorted(counts.keys() - set(must), key=lambda piece: (-counts[piece], piece))
    alphabet = set(pre_tokenizers.ByteLevel.alphabet())
    number = size - len(alphabet) - 1 - MERGES
    return [piece for piece in [*must, *by_count] if piece not in alphabet][:number]


def build(
    texts: list[str],
    *,
    size: int = SIZE,
    must: Sequence[str] | None = None,
    special: Special = CAUSAL,
) -> PreTrainedTokenizerFast:
    """A tokenizer for the texts, with at most `size` tokens.

    must: words that must be one token; by default the words that the lexicon requires
    """
    words = vocabulary(texts, required() if must is None else must, size=size)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = _CUT
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False
    )
    learner.train_from_iterator(texts, trainer)
    learnt = learner.get_vocab()
    merged = [
        piece for piece in sorted(learnt, key=lambda piece: learnt[piece]) if piece not in alphabet
    ]
    ids = {
        piece: i
        for i, piece in enumerate(
            dict.fromkeys([*special.tokens.values(), *alphabet, *merged, *words])
        )
    }
    return _wrap(ids, _merges(learner, set(merged)), special)


def _merges(learner: Tokenizer, merged: set[str]) -> list[tuple[str, str]]:
    merges = json.loads(learner.to_str())["model"]["merges"]
    return [(first, second) for first, second in merges if first + second in merged]


def _wrap(
    ids: dict[str, int], merges: list[tuple[str, str]], special: Special
) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = _CUT
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    names = list(dict.fromkeys(special.tokens.values()))
    if special.around:
        numbered = [(name, ids[name]) for name in names]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=special.around, special_tokens=numbered
        )
    # The mask replaces a word with the space before it.
    tokenizer.add_special_tokens(
        [AddedToken(name, special=True, lstrip=name == MASK) for name in names]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=special.longest,
        clean_up_tokenization_spaces=False,
        **special.tokens,
    )


def save(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write tokenizer.json and tokenizer_config.json, with the class name that every version of transformers has."""
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text("utf-8")) | {"tokenizer_class": "PreTrainedTokenizerFast"}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
