"""A walk as a file: everything but its tables, certificate and provenance, which a result's folder
has anyway. It is compressed JSON."""

import gzip
import json
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from probe.errors import InputError
from probe.model.parameters import Count, ParameterPart, Sizes
from probe.walks.walk import Walk

ELSEWHERE = ("model_name", "origin", "certificate", "parameters", "frames")


def walk_bytes(walk: Walk) -> bytes:
    """The content of the file of a walk. The same walk has the same bytes."""
    names = [field.name for field in fields(walk) if field.name not in ELSEWHERE]
    record = {name: getattr(walk, name) for name in names}
    record["parameters"] = asdict(walk.parameters)
    return gzip.compress(json.dumps(record).encode(), mtime=0)


def read_walk(path: Path, **shared: Any) -> Walk:
    """The walk of a file. Raises InputError for a damaged file.

    shared: what every result has: model_name, origin, certificate, frames
    """
    try:
        record = json.loads(gzip.decompress(path.read_bytes()))
        counted = record.pop("parameters")
        parts = tuple(ParameterPart(**part) for part in counted["parts"])
        sizes: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in counted["sizes"].items()
        }
        parameters = Count(Sizes(**sizes), parts, counted["tensors"])
        return Walk(**record, parameters=parameters, **shared)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zlib.error) as error:
        raise InputError(
            f"Cannot read {path}: the record is missing or damaged ({type(error).__name__}). "
            "Run the same command again to create it."
        ) from error
