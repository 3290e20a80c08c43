"""A kept record of a word is used again only for a model that computes the same numbers."""

import json
import shutil
from pathlib import Path

import pandas as pd
import pytest
from inside import SURVEY, job_of, keep_loaded, model_of, provenance, record_name
from transformers import AutoTokenizer, GPT2LMHeadModel

import probe
from probe import Model
from probe.model import model as model_module

TINY = Path(probe.__file__).parent / "model" / "embedded" / "tiny-senses"
SENTENCES = probe.lexicon.expand("bank").sentences


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the embedded model."""
    return Path(shutil.copytree(TINY, tmp_path / "model"))


def swap_ids(folder: Path, first: str = "Ġbank", second: str = "Ġriver") -> None:
    """Exchange the ids of two tokens in tokenizer.json."""
    file = folder / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    file.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def edit_config(folder: Path, **changes: object) -> None:
    """Set keys of config.json."""
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def kept_in(model: Model) -> str:
    """The name of the file with the record of a word in this model."""
    return record_name(job_of(model, SURVEY), SENTENCES)


CHANGES = {
    "tokenizer": swap_ids,
    "heads": lambda folder: edit_config(folder, n_head=2),
    "epsilon": lambda folder: edit_config(folder, layer_norm_epsilon=1e-3),
    "activation": lambda folder: edit_config(folder, activation_function="gelu"),
    "scores": lambda folder: edit_config(folder, scale_attn_by_inverse_layer_idx=True),
}


def test_a_copy_has_the_same_record(folder: Path, tiny: Model) -> None:
    assert kept_in(probe.load(folder)) == kept_in(tiny)


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_in_the_folder_is_another_record(name: str, folder: Path, tiny: Model) -> None:
    CHANGES[name](folder)
    assert kept_in(probe.load(folder)) != kept_in(tiny)


def test_options_and_versions_are_part_of_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    options: list[dict[str, object]] = [
        {},
        {"dtype": "float64"},
        {"prepend_bos": False},
        {"split_special_tokens": False},
    ]
    names = [kept_in(probe.load("tiny-senses", **option)) for option in options]  # type: ignore[arg-type]
    for package in ("torch", "transformers"):
        versions = provenance.numeric_versions.__wrapped__
        with monkeypatch.context() as patch:
            patch.setattr(
                provenance, "version", lambda name, new=package: "9" if name == new else "1"
            )
            patch.setattr(model_module, "numeric_versions", versions)
            names.append(kept_in(probe.load("tiny-senses")))
    assert len(set(names)) == len(names) == 6


def test_another_tokenizer_of_an_object_is_another_record(folder: Path) -> None:
    source = GPT2LMHeadModel.from_pretrained(folder)
    before = kept_in(probe.load(source))
    swap_ids(folder)
    other = AutoTokenizer.from_pretrained(folder)
    assert kept_in(probe.load(source, tokenizer=other)) != before


def test_padding_a_text_is_the_same_record(folder: Path) -> None:
    model = probe.load(folder)
    before = kept_in(model)
    model.tokenizer.pad_token = model.tokenizer.eos_token
    model.tokenizer(["the bank", "the old river bank"], padding=True)
    assert kept_in(model) == before


def test_a_study_of_a_changed_folder_is_measured_again(folder: Path, tmp_path: Path) -> None:
    options = {"sentences": SENTENCES[:48], "permutations": 99, "max_pairs": 2}
    options |= {"experiments": ("heads",)}
    kept = probe.study(folder, "bank", out=tmp_path / "out", **options)  # type: ignore[arg-type]
    CHANGES["heads"](folder)
    again = probe.study(folder, "bank", out=tmp_path / "out", **options)  # type: ignore[arg-type]
    fresh = probe.study(folder, "bank", **options)  # type: ignore[arg-type]
    assert len(kept.heads) == 16 and len(again.heads) == 8
    assert abs(again.words["gap"].item() - kept.words["gap"].item()) > 0.05
    for table in ("words", "heads"):
        pd.testing.assert_frame_equal(again.frames[table], fresh.frames[table])


def test_a_worker_with_another_tokenizer_is_refused(folder: Path) -> None:
    job = job_of(probe.load(folder), SURVEY, str(folder))
    swap_ids(folder)
    other = probe.load("tiny-senses-bidirectional")
    keep_loaded(job_of(other, SURVEY), other)  # so that the process has not loaded the job's model
    with pytest.raises(probe.ModelError) as caught:
        model_of(job)
    assert "its weights, config, tokenizer or libraries differ" in str(caught.value)
