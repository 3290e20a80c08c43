"""Records as files: written completely or not at all, with the same bytes for the same record."""

import io
import json
import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor

from probe.errors import InputError
from probe.experiments.carried_sets import CarriedSets
from probe.experiments.design import Pairs, Readings
from probe.experiments.prepare import Gates
from probe.experiments.record import SensePair, WordRecord
from probe.experiments.swaps import Effects, PairEffects
from probe.experiments.table import every_experiment
from probe.provenance import write_atomically
from probe.stats.axes import SenseAtDepth
from probe.stats.resampling import Array
from probe.text.sentences import LeftOut, Sentence
from probe.text.splits import CrossFit, Holdout

# Raised, in addition to ValueError, by reading a file that was truncated or changed.
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError)
CORE = (WordRecord, SensePair, Sentence, LeftOut, CrossFit, Holdout, Pairs, Readings, Gates)
CORE_NUMBERS = (Effects, PairEffects, SenseAtDepth, CarriedSets)


@cache
def record_classes() -> dict[str, type]:
    """The classes that are read from a file, by name, and no others; a pickle could run code."""
    of_experiments = [
        record for each in every_experiment().values() for record in getattr(each, "RECORDS", ())
    ]
    return {each.__name__: each for each in (*CORE, *CORE_NUMBERS, *of_experiments)}


def write_record(path: Path, record: object) -> Path:
    """The path of a record after writing it, completely or not at all.

    The same record has the same bytes.
    """
    return write_atomically(path, record_bytes(record))


def record_bytes(record: object) -> bytes:
    """The content of a record's file; the same record has the same bytes."""
    arrays: dict[str, Any] = {}
    described = json.dumps(_described(record, arrays), sort_keys=True).encode()
    content = io.BytesIO()
    np.savez_compressed(content, described=np.frombuffer(described, np.uint8), **arrays)
    return content.getvalue()


def read_record(path: Path, kinds: Mapping[str, type] | None = None) -> Any:
    """The record in a file.

    kinds: the classes that it may contain, by name

    Raises InputError if the file is missing or damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        described = json.loads(arrays.pop("described").tobytes())
        return _restored(described, arrays, kinds or record_classes())
    except (OSError, ValueError, KeyError, TypeError, EOFError, *DAMAGED) as error:
        raise InputError(
            f"Cannot read {path}: the record is missing or damaged ({type(error).__name__}). "
            "Run the same command again to create it."
        ) from error


def is_whole(path: Path) -> bool:
    """Whether a file contains a complete record."""
    try:
        read_record(path)
    except InputError:
        return False
    return True


def _described(value: Any, arrays: dict[str, Array]) -> Any:
    """A value as JSON; its arrays are added to `arrays`, and the JSON refers to them by name."""
    if isinstance(value, np.ndarray):
        # Numbered in the order of the fields, so that the same record has the same bytes.
        name = f"array{len(arrays)}"
        arrays[name] = value
        return {"array": name}
    if isinstance(value, Tensor):
        return {"tensor": _described(value.numpy(), arrays)}
    if isinstance(value, xr.Dataset):
        variables = [[name, _described(each, arrays)] for name, each in value.variables.items()]
        return {"dataset": variables, "coordinates": list(value.coords)}
    if isinstance(value, xr.Variable):
        contents = {"dims": value.dims, "attrs": value.attrs}
        return contents | {"values": _described(value.to_numpy(), arrays)}
    if isinstance(value, Enum):
        return {"enum": type(value).__name__, "value": value.value}
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


def _restored(described: Any, arrays: Mapping[str, Array], kinds: Mapping[str, type]) -> Any:
    """The value that `_described` describes, where a list becomes a tuple."""
    if isinstance(described, list):
        return tuple(_restored(each, arrays, kinds) for each in described)
    if not isinstance(described, dict):
        return described
    if "array" in described:
        return arrays[described["array"]]
    if "dataset" in described:
        variables = {
            name: (each["dims"], _restored(each["values"], arrays, kinds), each["attrs"])
            for name, each in described["dataset"]
        }
        return xr.Dataset(variables).set_coords(described["coordinates"])
    if "tensor" in described:
        return torch.from_numpy(_restored(described["tensor"], arrays, kinds))
    if "enum" in described:
        return kinds[described["enum"]](described["value"])
    if "items" in described:
        # JSON turns a tuple into a list, which cannot be a key.
        return {
            tuple(key) if isinstance(key, list) else key: _restored(each, arrays, kinds)
            for key, each in described["items"]
        }
    of_fields = {name: _restored(each, arrays, kinds) for name, each in described["fields"].items()}
    return kinds[described["record"]](**of_fields)
