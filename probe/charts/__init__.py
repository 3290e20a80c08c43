"""Frames in, altair charts out: one function per question, each picture readable alone, with a title and a description.

Values are computed in the frame, never in the chart. Look and colours are decided in `probe.charts.palette`. Nothing
here imports torch or a model.
"""

from probe.charts.controls import control_strips
from probe.charts.depth import depth_profile, depth_profiles, gap_at, lines_by_depth
from probe.charts.heads import (
    MARKS,
    MEANINGS,
    effect_limit,
    head_map,
    head_maps,
    marked,
    named,
    reached,
    separation_and_effect,
)
from probe.charts.palette import as_pictures, save, sense_colour, senses_of, themed
from probe.charts.panels import Panel, compared, line_panels, matrix_panels, parameter_bars
from probe.charts.sets import distance_lines, route_bars, set_curves
from probe.charts.writes import (
    added_vectors,
    cue_ledger,
    grouped_bars,
    ledger_bars,
    share_bars,
    share_groups,
    spectra,
)

__all__ = [
    "MARKS",
    "MEANINGS",
    "Panel",
    "added_vectors",
    "as_pictures",
    "compared",
    "control_strips",
    "cue_ledger",
    "depth_profile",
    "depth_profiles",
    "distance_lines",
    "effect_limit",
    "gap_at",
    "grouped_bars",
    "head_map",
    "head_maps",
    "ledger_bars",
    "line_panels",
    "lines_by_depth",
    "marked",
    "matrix_panels",
    "named",
    "parameter_bars",
    "reached",
    "route_bars",
    "save",
    "sense_colour",
    "senses_of",
    "separation_and_effect",
    "set_curves",
    "share_bars",
    "share_groups",
    "spectra",
    "themed",
]
