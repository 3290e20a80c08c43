"""A walk as a folder: `walk.html`, every frame as CSV and Parquet, and the manifest of what made them.

The same walk gives the same bytes; times of day live only in the manifest.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from probe.pages.folder import WALK, check_folder, write_folder
from probe.provenance import manifest
from probe.walk.page import render

if TYPE_CHECKING:
    from probe.walk.record import Walk


def write_walk(walk: "Walk", out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write the page, its tables and the manifest into the folder `out`, and return the path of the page.

    `command` is printed on the page as what made it. Raises InputError when the folder cannot be written.
    """
    check_folder(out)
    options = {"text": walk.text, "word": walk.word, "beside": walk.beside, "layer": walk.layer, "head": walk.head}
    made = manifest(
        walk.model_name,
        walk.origin,
        seed=None,
        command=command,
        data_sha256=walk.data_sha256,
        dtype=walk.certificate.dtype,
        options=options,
    )
    return write_folder(out, {WALK: render(walk, made)}, frames=walk.frames, made=made) / WALK
