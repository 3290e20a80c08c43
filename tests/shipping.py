"""The requirements for every model that ships: transformers loads it completely, and one command
writes such a folder again."""

import os
import subprocess
import sys
import time
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType

import pytest
from training import training
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerFast

ROOT = Path(__file__).parents[1]


def require_complete(folder: Path, auto: type, kind: type, tokenizer: object) -> PreTrainedModel:
    """Require that plain transformers loads the model, of this class, with no tensor missing or
    left over, and its tokenizer."""
    model, info = auto.from_pretrained(folder, output_loading_info=True)
    assert isinstance(model, kind)
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"]
    assert isinstance(tokenizer, PreTrainedTokenizerFast)
    assert len(tokenizer) == model.config.vocab_size
    return model


def require_command_makes(folder: Path, script: str, auto: type, out: Path) -> None:
    """Require that twenty steps of the training script write every file of the shipped folder,
    including its card, and a model that loads."""
    command = [
        sys.executable,
        "-m",
        f"training.{script}.train",
        "--out",
        out,
        "--seed",
        "7",
        "--steps",
        "20",
    ]
    with_training = os.environ | {"PYTHONPATH": str(ROOT / "analyses")}
    process = subprocess.run(command, capture_output=True, text=True, check=True, env=with_training)
    require_made(folder, auto, out, "--seed 7 --steps 20", process.stdout)


def require_two_steps_make(
    folder: Path, train: ModuleType, auto: type, out: Path, results: object
) -> str:
    """Require that two steps in this process write the same files, with a tokenizer of a few
    hundred texts and the shipped `results`.

    Neither affects which files are written and whether they load. Return the card.
    """
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setattr(train, "SAMPLE", 300)
        patch.setattr(train, "evaluate", lambda *_: results)
        patch.setattr(training, "prepare", time.process_time)
        train.main(["--out", str(out), "--seed", "7", "--steps", "2"])
    return require_made(folder, auto, out, "--seed 7 --steps 2", printed.getvalue())


def require_made(folder: Path, auto: type, out: Path, options: str, printed: str) -> str:
    assert {path.name for path in folder.iterdir()} <= {path.name for path in out.iterdir()}
    text = (out / "card.md").read_text("utf-8")
    assert options in text and text in printed
    model = auto.from_pretrained(out)
    assert model.config.vocab_size == len(AutoTokenizer.from_pretrained(out))
    return text
