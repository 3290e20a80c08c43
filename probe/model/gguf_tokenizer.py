"""The tokenizer in the metadata of a GGUF file, converted by transformers and corrected where its
converter would give other tokens than the model's.
"""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from probe.errors import ModelError
from probe.model.bridge import in_short
from probe.model.gguf import GgufFile
from probe.model.model import Config, refuse

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# Rules for splitting text before byte-level merges, which transformers' converter replaces by
# GPT-2's. SmolLM's rule separates digits but gives the same tokens, as no merge has two digits.
LIKE_GPT2 = (None, "gpt-2", "gpt2", "default", "smollm", "mpt", "olmo", "jais", "phi-2")
GIVE_TOKENIZER = "put the tokenizer.json of this model next to the file"


def read_gguf_tokenizer(opened: GgufFile, config: Config) -> "PreTrainedTokenizerFast":
    """The tokenizer in the metadata, converted by transformers. Raises ModelError for a
    tokenizer that it would convert incorrectly.
    """
    from transformers import PreTrainedTokenizerFast
    from transformers.integrations.gguf import convert_gguf_tokenizer, get_gguf_tokenizer
    from transformers.integrations.gguf.gguf_tokenizer_mapping import (
        GGUF_PRE_TOKENIZER_SPLITS,
        GGUF_TOKENIZER_TYPES,
    )

    kind = opened.metadata.get("tokenizer.ggml.model")
    cut = opened.metadata.get("tokenizer.ggml.pre")
    if not opened.metadata.get("tokenizer.ggml.tokens"):
        raise refuse(opened.path, "it holds no tokenizer", GIVE_TOKENIZER)
    if (
        config.family.kind != "decoder"
        or not isinstance(kind, str)
        or kind not in GGUF_TOKENIZER_TYPES
    ):
        problem = f"its tokenizer is of the kind {str(kind)[:40]!r}, which is not converted"
        raise refuse(opened.path, problem, GIVE_TOKENIZER)
    if kind == "gpt2" and cut not in (*LIKE_GPT2, *GGUF_PRE_TOKENIZER_SPLITS):
        problem = f"its tokenizer cuts text by the rule {str(cut)[:40]!r}, which is not converted"
        raise refuse(opened.path, problem, GIVE_TOKENIZER)
    try:
        architecture, described, settings = get_gguf_tokenizer(str(opened.path))
        backend, _ = convert_gguf_tokenizer(architecture, described)
        tokenizer = _without_added(backend, len(described["tokens"]))
        if kind != "gpt2":  # byte-level tokenizers do not read the setting
            prefix = opened.metadata.get("tokenizer.ggml.add_space_prefix")
            tokenizer = _with_space_prefix(tokenizer, prefix, where=opened.path)
        return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **settings)
    except ModelError:
        raise
    except Exception as error:  # broad, because tokenizers raises Exception itself
        raise refuse(
            opened.path, f"its tokenizer cannot be converted ({in_short(error)})", GIVE_TOKENIZER
        ) from error


def _without_added(backend: Any, tokens: int) -> Any:
    """The tokenizer without tokens that the file does not have: the converter adds GPT-2's end
    of text to every byte-level one.
    """
    if backend.get_vocab_size(with_added_tokens=True) <= tokens:
        return backend
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < tokens]
    return Tokenizer.from_str(json.dumps(state))


def _with_space_prefix(backend: Any, prefix: object, *, where: Path) -> Any:
    """The tokenizer with a space in front of every text, or without one, as the file states; the
    converter does not read this.

    prefix: the file's setting, None without one

    Raises ModelError for a tokenizer that the converter builds without the space that the file
    asks for.
    """
    from tokenizers import Tokenizer

    state = json.loads(backend.to_str())
    without = state | {
        part: _without_space(state[part]) for part in ("normalizer", "pre_tokenizer", "decoder")
    }
    if prefix and without == state:
        problem = "its tokenizer puts a space in front of every text, which is not converted"
        raise refuse(where, problem, GIVE_TOKENIZER)
    return Tokenizer.from_str(json.dumps(without)) if prefix is False else backend


def _without_space(part: Any) -> Any:
    """A part of a tokenizer's state that puts no space in front of a text, and removes none when it
    decodes; None if it does nothing else.
    """
    if part is None or part["type"] in ("Prepend", "Strip"):
        return None
    if part["type"] == "Metaspace":
        return part | {"prepend_scheme": "never"}
    steps = next((name for name in part if isinstance(part[name], list)), None)
    if part["type"] != "Sequence" or steps is None:
        return part
    kept = [_without_space(each) for each in part[steps]]
    return part | {steps: [each for each in kept if each is not None]}
