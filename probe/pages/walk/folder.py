"""A walk as a folder: `walk.html`, every frame as CSV and Parquet, and the manifest of what made them.

The same walk gives the same bytes on one machine with one set of versions; times of day live only in the manifest.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from probe.pages.folder import WALK, write_folder
from probe.pages.walk import attended_page
from probe.pages.walk.attended import AttentionWalk
from probe.pages.walk.page import render
from probe.provenance import manifest

if TYPE_CHECKING:
    from probe.pages.walk.record import Walk


def write_walk(walk: "Walk | AttentionWalk", out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write the page, its tables and the manifest into the folder `out`, and return the path of the page.

    `command` is printed on the page as what made it. Raises InputError when the folder cannot be written.
    """
    made = manifest(
        walk.model_name,
        walk.origin,
        seed=None,
        command=command,
        data_sha256=walk.data_sha256,
        dtype=walk.certificate.dtype,
        options=walk.options,
    )
    html = attended_page.render(walk, made) if isinstance(walk, AttentionWalk) else render(walk, made)
    return write_folder(out, {WALK: html}, frames=walk.frames, made=made) / WALK
