"""What the tests reach inside the package, in one place: when a module moves, only this file changes.

A test imports public names from `probe`, a module that no other file of tests needs from its home,
and everything else from here. A name is imported when it is first asked for, so that a test needs
only what it names.
"""

import ast
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from probe import cli, provenance, verdicts
    from probe.charts import palette
    from probe.charts.palette import repacked
    from probe.claims import cues as cue_claims
    from probe.claims import heads as head_claims
    from probe.claims import survey as survey_claims
    from probe.claims.cues import strongest_cues
    from probe.claims.heads import MOVERS, named, names_of
    from probe.claims.survey import carried_set, top_over_words
    from probe.cli import app, main
    from probe.display import html_of
    from probe.experiments import design, head_parts, nouns, swaps
    from probe.experiments import heads as head_effects
    from probe.experiments.beside_nouns import (
        NO_GATE,
        TOO_FEW_NOUNS,
        ambiguity_gates,
        compare_pairwise,
        compare_with_nouns,
        expected_movement,
        holm,
        joined_parts,
    )
    from probe.experiments.candidates import NO_NOUN as NO_NOUN_FITS
    from probe.experiments.candidates import OTHER_TOKENS, PAST, candidates, require_usable
    from probe.experiments.design import Pairs, Readout, pairs_of
    from probe.experiments.heads import every_head, net_where, swap_columns, swap_every_head
    from probe.experiments.material import (
        LATE,
        REPEATED,
        WORDS,
        Material,
        prepare,
        prepare_counted,
        sentences_of,
    )
    from probe.experiments.measure import count_left_out, measure, measure_gates, not_swapped
    from probe.experiments.nouns import (
        WordInPlace,
        at_rows,
        axes_until,
        heads_in,
        put_in_place,
        share_out,
        usable_pairs,
    )
    from probe.experiments.observe import observe, predicts, split_senses
    from probe.experiments.prepare import prepare_pairs
    from probe.experiments.record import WordRecord
    from probe.experiments.store import is_whole, read_record, write_record
    from probe.experiments.swaps import (
        drawn_effects,
        effects_of,
        gaps,
        has_effects,
        run_swaps,
        swap_effect,
    )
    from probe.experiments.table import choose as choose_experiments
    from probe.experiments.table import every_experiment
    from probe.model import (
        agreement,
        attention,
        blocks,
        check,
        find,
        forward,
        hooks,
        objects,
        parameters,
        qk,
        variants,
    )
    from probe.model import load as loading
    from probe.model import trace as tracing
    from probe.model.agreement import ROUNDING, STEPS, rounded_through, text_ids
    from probe.model.architectures import FAMILIES, GGUF_FAMILIES, GGUF_KNOWN, NOT_READ
    from probe.model.architectures.wrappers import WRAPPERS
    from probe.model.check import (
        DEFAULT_TEXTS,
        EACH_ROUNDED,
        FROM_SCORES,
        THROUGH_ALL,
        Certificate,
        Row,
        certify_pair,
    )
    from probe.model.decomposition import components, logit_lens, residual_stream
    from probe.model.find import EMBEDDED, EMBEDDED_FOLDER, PACKAGED, fetch, find_packaged
    from probe.model.find import find as find_model
    from probe.model.load import read_weights, untrained
    from probe.model.objects import numbers
    from probe.model.parameters import (
        HEAD_PARTS,
        PUBLISHED,
        Sizes,
        count,
        count_parameters,
        sizes_of,
    )
    from probe.model.tokens import (
        BATCH_TOKENS,
        Tokens,
        batch_by_length,
        ids_after,
        in_order,
        is_one_token,
        position,
        positions_of_span,
        target_tokens,
        token_id,
        visible_token,
        whole_words,
    )
    from probe.model.trace import target_states, trace_target, traces
    from probe.model.variants import TargetText
    from probe.model.weights import Weights, read_stacks
    from probe.pages import sections, terminal, write
    from probe.pages.folder import (
        REPORT,
        check_folder,
        downloads,
        made_by,
        manifest_of,
        to_be_replaced,
        write_folder,
    )
    from probe.pages.heads import axis_of_lines, effect_axis, place
    from probe.pages.html import TEMPLATES, environment, facts_of, texts, worst_first
    from probe.pages.sections import sections_of
    from probe.pages.terminal import (
        EVALUATION_WIDTH,
        likely,
        print_otherwise,
        sentences_suffice,
        survey_suffices,
    )
    from probe.pages.verdicts import because, with_reasons
    from probe.pages.write import write_surveys
    from probe.patching import edges, mlps, positions, sets, tokens
    from probe.patching import heads as patched_heads
    from probe.patching.cross import CrossSwaps, directions, first_token, toward
    from probe.patching.edges import CHANNELS, EDGE_DTYPE, composition, edges_of
    from probe.patching.heads import swap_heads, swap_pairs, swap_sets
    from probe.patching.mlps import swap_mlps
    from probe.patching.positions import COMPONENTS, trace_positions
    from probe.patching.sets import mask_of
    from probe.patching.tokens import ReplacedStates, replace_tokens
    from probe.provenance import Origin, content_key, manifest, sha256_of_bytes, write_atomically
    from probe.results.columns import COLUMNS, TABLES, about, dictionary
    from probe.results.frames import of_experiment, of_experiments, of_table, without_rows
    from probe.results.tables import (
        PageTables,
        StudyTables,
        SurveyTables,
        rows_by_word,
        table_names,
    )
    from probe.stats import axes, resampling
    from probe.stats import separation as separations
    from probe.stats.axes import Axis, HeldOutAxes, fit_axis, hold_out, squared_gap
    from probe.stats.limits import FEWEST_WORDS, GATE, LEVEL
    from probe.stats.numbers import (
        counted,
        decimal,
        interval,
        listed,
        measured,
        ordinal,
        p_value,
        percent,
        scientific,
    )
    from probe.stats.resampling import bootstrap_t, ratio_interval, sign_flip_test
    from probe.stats.separation import (
        corrected_tests,
        measure_separation,
        own_direction_scores,
        reduced,
    )
    from probe.studies import across, decompose, evaluation, survey_word, words, workers
    from probe.studies import cues as cue_study
    from probe.studies import study as study_run
    from probe.studies import survey as survey_run
    from probe.studies.across import numbers_of, sets_frames, summarise
    from probe.studies.cues import Cues
    from probe.studies.evaluation import (
        CHOSEN,
        METHODS,
        OTHER_WORD,
        Evaluation,
        compare,
        coordinates,
        macro_f1,
        nearest_mean,
        predict,
        prepare_tasks,
        rows_without,
    )
    from probe.studies.evaluation import COLUMNS as EVALUATION_COLUMNS
    from probe.studies.evaluation import KINDS as EVALUATION_KINDS
    from probe.studies.study import (
        STUDY_DEFAULTS,
        GatePreview,
        StudyOptions,
        conclude,
        plan_study,
        preview_gates,
        studies,
        study_inputs,
    )
    from probe.studies.survey import NO_ENGLISH, NO_NOUN, SURVEY_WITH_PAGES, Survey, plan_survey
    from probe.studies.survey_word import (
        ALONE,
        MOST_PAIRS,
        NOT_APART,
        SAMPLED,
        SURVEY,
        measure_sets,
        measure_word,
    )
    from probe.studies.words import job_of, keep_loaded, model_of, record_name
    from probe.studies.workers import running
    from probe.text import splits
    from probe.text.cues import infer_cues
    from probe.text.sentences import REPEATS, Corpus, LeftOut, Sentence, as_corpus, check_row
    from probe.text.slots import frames_for, read_frames
    from probe.text.spans import WORD, find_word, fold, letters, plain, spans_of
    from probe.text.splits import (
        ALIGNED,
        CROSSED,
        DRAWN,
        ELSEWHERE,
        FOLDS,
        NO_PART,
        NOT_LEARNED,
        ONE_SENSE,
        SURVEY_LEAST,
        TOO_FEW,
        UNPAIRED,
        CrossFit,
        Holdout,
        cross_fit,
        plan,
        restrict,
        unmarked_pairs,
    )
    from probe.verdicts import (
        ORDER,
        comparison,
        comparison_of_writes,
        passes_gate,
        rank_among_nouns,
        verdict,
    )
    from probe.walks import axes as walk_axes
    from probe.walks import choose, explore, scene, server
    from probe.walks.explore import ExplorerPage, messages
    from probe.walks.explorer import MAX_TOKENS, Explorer
    from probe.walks.frames import DESCRIBED
    from probe.walks.frames import TABLES as WALK_TABLES
    from probe.walks.page import formula, render
    from probe.walks.questions import KINDS, WHAT, HeadSwap, Question, parse
    from probe.walks.scene import AttentionView


# By name: the module that it is imported from, and its name there.
HOMES = {
    alias.asname or alias.name: (str(node.module), alias.name)
    for node in ast.walk(ast.parse(Path(__file__).read_text(encoding="utf-8")))
    if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "probe"
    for alias in node.names
}


def __getattr__(name: str) -> object:
    if name not in HOMES:
        raise AttributeError(f"tests/inside.py does not name {name!r}")
    home, there = HOMES[name]
    module = import_module(home)
    return getattr(module, there) if hasattr(module, there) else import_module(f"{home}.{there}")


# The packages and modules at the top, each of which imports only from earlier ones.
PACKAGES = (
    "errors",
    "progress",
    "side_by_side",
    "provenance",
    "display",
    "tidy",
    "text",
    "stats",
    "model",
    "patching",
    "experiments",
    "claims",
    "verdicts",
    "results",
    "charts",
    "studies",
    "pages",
    "walks",
    "cli",
    "__main__",
)
# The tests and verdicts of a question stand next to its measurement: one layer.
TOGETHER = ("experiments", "claims", "verdicts")
