"""Which family a config.json describes, and its config; what is not in the table of families is refused by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from probe.errors import UnsupportedModel
from probe.families.table import FAMILIES, SUPPORTED, WHOLE
from probe.loading.config import Config, gpt2_config, read_json, refuse
from probe.loading.sizes import family_config


def read_config(folder: Path, *, prepend_bos: bool) -> Config:
    """The config of `folder`. Raises ModelError for what is missing or absurd, UnsupportedModel for other models."""
    raw = read_json(folder / "config.json")
    architectures = raw.get("architectures")
    if not isinstance(architectures, list) or len(architectures) != 1:
        kind = raw.get("model_type", WHOLE)
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise _unsupported(folder, f"its model_type is {kind!r}")
        step = f'add "architectures": ["{FAMILIES[kind].architectures[0]}"] to config.json if that is what the model is'
        raise refuse(folder, f"config.json does not name one architecture (got {architectures!r})", step)
    return config_from(raw, where=folder, architecture=str(architectures[0]), prepend_bos=prepend_bos)


def config_from(raw: Mapping[str, Any], *, where: object, architecture: str, prepend_bos: bool) -> Config:
    """Hugging Face's config keys in `probe`'s words. Raises UnsupportedModel for a family or class beyond the table."""
    kind = raw.get("model_type")
    family = FAMILIES.get(str(kind))
    if family is None or architecture not in (*family.architectures, *family.headless):
        raise _unsupported(where, f"its architecture is {architecture} (model_type {kind!r})")
    for key in ("auto_map", "quantization_config"):
        if raw.get(key):
            reason = "would run code of its own" if key == "auto_map" else "is quantized"
            raise UnsupportedModel(f"Cannot load {where}: it {reason} ({key}); load a plain float checkpoint.")
    if kind == WHOLE:
        return gpt2_config(raw, where=where, prepend_bos=prepend_bos)
    return family_config(raw, where=where, architecture=architecture)


def _unsupported(where: object, found: str) -> UnsupportedModel:
    classes = ", ".join(name for family in FAMILIES.values() for name in (*family.architectures, *family.headless))
    return UnsupportedModel(
        f"Cannot load {where}: {found}, and certified are {SUPPORTED} ({classes}) only; load one of these or tiny-senses."
    )
