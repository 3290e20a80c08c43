"""Records as files: a tree of datasets in NetCDF, written completely or not at all, with the same
bytes for the same record, and with a checksum, because HDF5 notices no changed number.

A node of the tree is an experiment, or one of its datasets by name. The facts of the word are
attributes of the root, those that are no text and no number as JSON.
"""

import io
import json
from dataclasses import asdict, fields
from hashlib import sha256
from pathlib import Path
from typing import Any

import xarray as xr

from probe.errors import InputError
from probe.experiments.record import WordRecord
from probe.provenance import write_atomically
from probe.text.sentences import LeftOut

NOTHING = "nothing to measure"  # marks an experiment whose result is None
LARGE = 2**14  # bytes: a larger variable is compressed
DIGEST = 32  # bytes at the end of a file: the SHA-256 of its content


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
    compressed = {
        node.path: {
            str(name): {"zlib": True, "complevel": 4}
            for name, variable in node.data_vars.items()
            if variable.nbytes > LARGE and variable.dtype.kind in "fiu"
        }
        for node in tree.subtree
    }
    content = bytes(tree.to_netcdf(engine="h5netcdf", encoding=compressed))
    # Readers of NetCDF ignore what follows the content.
    return write_atomically(path, content + sha256(content).digest())


def read_tree(path: Path) -> xr.DataTree:
    """The tree of datasets in a file.

    Raises InputError if the file is missing or damaged.
    """
    try:
        written = path.read_bytes()
        content, digest = written[:-DIGEST], written[-DIGEST:]
        if sha256(content).digest() != digest:
            raise ValueError("another checksum")
        with xr.open_datatree(io.BytesIO(content), engine="h5netcdf") as tree:
            # `DataTree.load` omits a variable that has the name of a node.
            for node in tree.subtree:
                for variable in node.variables.values():
                    variable.load()
            return tree
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
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
