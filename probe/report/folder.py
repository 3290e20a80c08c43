"""A study as a folder: the page, every frame as CSV and Parquet, and the manifest of what made them.

The same study gives the same bytes on one machine with one set of versions; times of day live only in the manifest.
"""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from probe.pages.folder import REPORT, check_folder, tables, write_folder
from probe.provenance import manifest
from probe.report.appendix import dictionary
from probe.report.page import render

if TYPE_CHECKING:
    from probe.study import Study

__all__ = ["check_folder", "tables", "write_report"]


def write_report(study: "Study", out: str | os.PathLike[str], *, command: str = "") -> Path:
    """Write the page, its tables and the manifest into the folder `out`, and return the path of the page.

    `command` is printed on the page as what made it. Raises InputError when the folder cannot be written.
    """
    check_folder(out)
    made = manifest(
        study.model_name,
        study.origin,
        seed=study.options["seed"],
        command=command,
        data_sha256=study.data_sha256,
        dtype=study.certificate.dtype,
        options=study.options,
    )
    frames = study.frames | {"columns": dictionary(study.frames)}
    return write_folder(out, {REPORT: render(study, made)}, frames=frames, made=made) / REPORT
