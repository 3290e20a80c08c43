"""What every model that ships is held to: transformers takes it whole, and one command makes such a folder again."""

import subprocess
import sys
from pathlib import Path

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast


def require_complete(folder: Path, auto: type, kind: type, tokenizer: object) -> PreTrainedModel:
    """The model as plain transformers loads it, of this kind, with no tensor missing or left over, and its tokenizer beside it."""
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, kind)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert len(tokenizer) == model.config.vocab_size
    return model


def require_command_makes(folder: Path, script: str, auto: type, out: Path) -> None:
    """Twenty steps of the training script write every file of the shipped folder, a card that says so, and a model that loads."""
    command = [sys.executable, "-m", f"training.{script}.train", "--out", out, "--seed", "7", "--steps", "20"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert {path.name for path in folder.iterdir()} <= {path.name for path in out.iterdir()}
    text = (out / "card.md").read_text("utf-8")
    assert "--seed 7 --steps 20" in text and text in done.stdout
    model = auto.from_pretrained(out)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(out))
