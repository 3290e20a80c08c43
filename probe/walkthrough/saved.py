"""A walk as a file: everything but its tables, which are separate files."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from probe.errors import InputError
from probe.model.check import Certificate, Row
from probe.model.parameters import Count, ParameterPart, Sizes
from probe.provenance import Origin
from probe.stats.resampling import Array
from probe.walkthrough.choose import (
    Caution,
    Criterion,
    HeadChoice,
    SenseEffects,
    Sources,
    WordCriterion,
    WordToFollow,
)
from probe.walkthrough.scene import CausalTrace
from probe.walkthrough.walk import (
    HeadWrite,
    LargestPart,
    LogitFindings,
    Parting,
    Walk,
    WalkFindings,
)

ABOUT = (Certificate, Row, Origin, Count, ParameterPart, Sizes)
CHOSEN = (Caution, Criterion, HeadChoice, SenseEffects, Sources, WordCriterion, WordToFollow)
FOUND = (CausalTrace, HeadWrite, LargestPart, LogitFindings, Parting, Walk, WalkFindings)
KINDS = {each.__name__: each for each in (*ABOUT, *CHOSEN, *FOUND)}


# Raised, in addition to ValueError, by reading a file that was truncated or changed.
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError)


def walk_bytes(walk: Walk) -> bytes:
    """The content of the file of a walk, without its tables. The same walk has the same bytes."""
    arrays: dict[str, Any] = {}
    described = json.dumps(_described(replace(walk, frames={}), arrays), sort_keys=True).encode()
    content = io.BytesIO()
    np.savez_compressed(content, described=np.frombuffer(described, np.uint8), **arrays)
    return content.getvalue()


def read_walk(path: Path, frames: Mapping[str, pd.DataFrame]) -> Walk:
    """The walk of a file, with its tables. Raises InputError for a damaged file."""
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        described = json.loads(arrays.pop("described").tobytes())
        walk: Walk = _restored(described, arrays)
    except (OSError, ValueError, KeyError, TypeError, EOFError, *DAMAGED) as error:
        raise InputError(
            f"Cannot read {path}: the record is missing or damaged ({type(error).__name__}). "
            "Run the same command again to create it."
        ) from error
    return replace(walk, frames=dict(frames))


def _described(value: Any, arrays: dict[str, Array]) -> Any:
    """A value as JSON; its arrays are added to `arrays`, and the JSON refers to them by name."""
    if isinstance(value, np.ndarray):
        # Numbered in the order of the fields, so that the same walk has the same bytes.
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Tensor):
        return {"tensor": _described(value.numpy(), arrays)}
    if isinstance(value, Enum):
        return {"record": type(value).__name__, "fields": {"value": value.value}}
    if is_dataclass(value):
        of_fields = {
            each.name: _described(getattr(value, each.name), arrays) for each in fields(value)
        }
        return {"record": type(value).__name__, "fields": of_fields}
    if isinstance(value, Mapping):
        return {"items": [[key, _described(value[key], arrays)] for key in value]}
    if isinstance(value, tuple | list):
        return [_described(each, arrays) for each in value]
    return value.item() if isinstance(value, np.generic) else value


def _restored(described: Any, arrays: Mapping[str, Array]) -> Any:
    """The value that `_described` describes, where a list becomes a tuple."""
    if isinstance(described, list):
        return tuple(_restored(each, arrays) for each in described)
    if not isinstance(described, dict):
        return described
    if "array" in described:
        return arrays[described["array"]]
    if "tensor" in described:
        return torch.from_numpy(_restored(described["tensor"], arrays))
    if "items" in described:
        # JSON turns a tuple into a list, which cannot be a key.
        return {
            tuple(key) if isinstance(key, list) else key: _restored(each, arrays)
            for key, each in described["items"]
        }
    of_fields = {name: _restored(each, arrays) for name, each in described["fields"].items()}
    # No other classes, and no pickle, which could run code.
    return KINDS[described["record"]](**of_fields)
