"""Records as files: a tree of datasets, written completely or not at all, with the same bytes for
the same record.

A node of the tree is an experiment, or one of its datasets by name. The facts of the word are
attributes of the root, those that are no text and no number as JSON. The file is a NumPy archive:
each variable is an array under its path, such as `heads/0/net`, and `about` describes the tree.
NetCDF would need a second for the four hundred small variables of a word, at every experiment;
`study.data["bank"].to_netcdf` writes it when somebody wants it.
"""

import io
import json
import struct
import zipfile
import zlib
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from probe.errors import InputError
from probe.experiments.record import WordRecord
from probe.provenance import write_atomically
from probe.text.sentences import LeftOut

NOTHING = "nothing to measure"  # marks an experiment whose result is None
ABOUT = "about"  # the description of the tree
# Raised, in addition to ValueError, by reading a file that was truncated or changed.
DAMAGED = (zipfile.BadZipFile, zlib.error, struct.error, RuntimeError)


def write_record(path: Path, record: WordRecord) -> Path:
    """The path of a record after writing it, completely or not at all.

    The same record has the same bytes.
    """
    return write_tree(path, tree_of(record))


def read_record(path: Path) -> WordRecord:
    """The record in a file.

    Raises InputError if the file is missing or damaged.
    """
    return record_of(read_tree(path))


def write_tree(path: Path, tree: xr.DataTree) -> Path:
    """The path of a tree of datasets after writing it, completely or not at all."""
    arrays = {}
    about = {}
    for node in tree.subtree:
        dataset = node.to_dataset(inherit=False)
        about[node.path] = {
            "attrs": dataset.attrs,
            "coords": list(dataset.coords),
            "variables": {
                name: [each.dims, each.attrs] for name, each in dataset.variables.items()
            },
        }
        for name, each in dataset.variables.items():
            arrays[f"{node.path}/{name}".lstrip("/")] = each.to_numpy()
    arrays[ABOUT] = np.frombuffer(json.dumps(about).encode(), np.uint8)
    content = io.BytesIO()
    np.savez_compressed(content, allow_pickle=False, **arrays)
    return write_atomically(path, content.getvalue())


def read_tree(path: Path) -> xr.DataTree:
    """The tree of datasets in a file.

    Raises InputError if the file is missing or damaged.
    """
    try:
        with np.load(io.BytesIO(path.read_bytes()), allow_pickle=False) as opened:
            arrays = {name: opened[name] for name in opened.files}
        about = json.loads(arrays[ABOUT].tobytes())
        datasets = {}
        for node, described in about.items():
            variables = {
                name: (dims, arrays[f"{node}/{name}".lstrip("/")], attrs)
                for name, (dims, attrs) in described["variables"].items()
            }
            dataset = xr.Dataset(variables, attrs=described["attrs"])
            datasets[node] = dataset.set_coords(described["coords"])
        return xr.DataTree.from_dict(datasets)
    except (OSError, ValueError, KeyError, TypeError, EOFError, *DAMAGED) as error:
        raise InputError(
            f"Cannot read {path}: the record is missing or damaged ({type(error).__name__}). "
            "Run the same command again to create it."
        ) from error


def is_whole(path: Path) -> bool:
    """Whether a file contains a complete record."""
    try:
        read_tree(path)
    except InputError:
        return False
    return True


def tree_of(record: WordRecord) -> xr.DataTree:
    """A record as a tree of datasets, one for each experiment.

    Example:
        >>> from probe.experiments.measure import unmeasured
        >>> from probe.experiments.material import prepare
        >>> from probe.experiments.store import tree_of
        >>> model = probe.load("tiny-senses")
        >>> sentences = probe.lexicon.expand("bank").sentences[:96]
        >>> material = prepare(model, "bank", sentences)
        >>> tree_of(unmeasured(model, material, sentences, "no time")).attrs["reason"]
        'no time'
    """
    facts = {
        each.name: getattr(record, each.name) for each in fields(record) if each.name != "measured"
    }
    facts["left_out"] = [asdict(item) for item in record.left_out]
    attrs = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in facts.items()
    }
    nodes = {"/": xr.Dataset(attrs=attrs)}
    for name, result in record.measured.items():
        if isinstance(result, dict):
            nodes[name] = xr.Dataset()
            nodes |= {f"{name}/{part}": each for part, each in result.items()}
        else:
            nodes[name] = xr.Dataset(attrs={NOTHING: 1}) if result is None else result
    return xr.DataTree.from_dict(nodes)


def record_of(tree: xr.DataTree) -> WordRecord:
    """The record that a tree holds."""
    facts: dict[str, Any] = {
        each.name: tree.attrs[each.name] if each.type is str else json.loads(tree.attrs[each.name])
        for each in fields(WordRecord)
        if each.name != "measured"
    }
    facts["left_out"] = tuple(LeftOut(**item) for item in facts["left_out"])
    facts["has_heads"] = tuple(facts["has_heads"])
    return WordRecord(
        **facts, measured={str(name): _result(node) for name, node in tree.children.items()}
    )


def _result(node: xr.DataTree) -> Any:
    """The result of an experiment."""
    if NOTHING in node.attrs:
        return None
    # Without what a child inherits from its parent.
    parts = {str(name): each.to_dataset(inherit=False) for name, each in node.children.items()}
    return node.to_dataset(inherit=False) if node.variables else parts
