"""The requirements for every model that ships: transformers loads it completely, and training writes
such a folder again."""

import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from training import training
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast


def require_complete(folder: Path, auto: type, kind: type, tokenizer: object) -> PreTrainedModel:
    """Require that plain transformers loads the model, of this class, with no tensor missing or
    left over, and its tokenizer."""
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, kind)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert len(tokenizer) == model.config.vocab_size
    return model


def require_two_steps_make(
    folder: Path, train: ModuleType, auto: type, out: Path, results: object
) -> None:
    """Require that two steps of training write every file of the shipped folder, including its card,
    and a model that loads; with a tokenizer of a few hundred texts and the shipped `results`, which
    do not affect that."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(train, "SAMPLE", 300)
        patch.setattr(train, "evaluate", lambda *_: results)
        patch.setattr(training, "prepare", time.process_time)
        train.main(["--out", str(out), "--seed", "7", "--steps", "2"])
    assert {path.name for path in folder.iterdir()} <= {path.name for path in out.iterdir()}
    text = (out / "card.md").read_text("utf-8")
    assert "--seed 7 --steps 2" in text and text in printed.getvalue()
    model = auto.from_pretrained(out)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(out))
