"""A walk as a file: everything but its tables, which are separate files."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pandas as pd

from probe.experiments.store import read_record, record_bytes
from probe.model.check import Certificate, Row
from probe.model.parameters import Count, Part, Sizes
from probe.provenance import Origin
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

ABOUT = (Certificate, Row, Origin, Count, Part, Sizes)
CHOSEN = (Caution, Criterion, HeadChoice, SenseEffects, Sources, WordCriterion, WordToFollow)
FOUND = (CausalTrace, HeadWrite, LargestPart, LogitFindings, Parting, Walk, WalkFindings)
KINDS = {each.__name__: each for each in (*ABOUT, *CHOSEN, *FOUND)}


def walk_bytes(walk: Walk) -> bytes:
    """The content of the file of a walk, without its tables."""
    return record_bytes(replace(walk, frames={}))


def read_walk(path: Path, frames: Mapping[str, pd.DataFrame]) -> Walk:
    """The walk of a file, with its tables. Raises InputError for a damaged file."""
    walk: Walk = read_record(path, KINDS)
    return replace(walk, frames=dict(frames))
