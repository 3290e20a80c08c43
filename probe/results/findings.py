"""What was found for each word of a study: one record per word, built once from the study's frames.

Whatever a page, a terminal or a notebook says of a word is said from this record. It holds names
and numbers and no sentences. What may be claimed is bound here:

* only a head with the verdict mover or resolver is among the movers, and only one with the verdict
  resolver among the resolvers;
* a word counts as changing further than unambiguous nouns only where it passed the ambiguity
  gate; behind it, what else tells its senses apart confounds nothing, because these nouns stand in
  the same sentences;
* heads whose rank intervals overlap stand in one group, and inside a group there is no order;
* a word of the sentence is credited only where the sentences are aligned and a mover has half of
  its effect or more from that word alone;
* a path counts as leading only where half of the gap or more goes over it and each of its edges
  passed its test.

Effects are fractions of the sense gap beyond a same-sense swap (`net`), means over the pairs of
senses of a word.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd

from probe.experiments.material import LATE
from probe.experiments.run import LEADERS
from probe.inference.verdicts import comparison, passes_gate
from probe.results.frames import without_rows
from probe.stats.limits import GATE, LEVEL, SMALLEST, WORTH_NAMING
from probe.text.splits import ALIGNED, DRAWN, in_pairs, unmarked_pairs

MOST_OF_IT = 0.5  # of an effect or of the gap: more than everything else together
OVER = 1.05  # of the gap: a set that keeps more than all heads do, beyond noise
NEARLY_ALL = 0.9  # of the gap: what is left over is a tenth
WORTH_READING = 0.01  # of the gap: a head with a clear effect from here on is worth its sentences
MOVERS = ("resolver", "mover")  # the verdicts of heads that move the word
PUNCTUATION = ".,;:!?\"'()"
Frames = Mapping[str, pd.DataFrame]
Row = Mapping[Any, Any]

# What has no meaning and may tell two senses apart as well: the column of its p, and the level
# below which it counts. A gap in an untrained model is measured as the gap of the model is, so it
# has the stricter level of that test.
CONFOUNDERS = {"untrained": ("untrained_p", GATE), "nuisance": ("nuisance_p", LEVEL)}


@dataclass(frozen=True)
class HeadFinding:
    """One head at one word: its effects and what it looks at, missing (NaN) where not measured.

    `resolves` is the number of pairs of senses that it resolves, `of` that of the pairs in which it
    was swapped; `p_auroc` and `p_swap` are the smallest corrected p over these pairs. `general`:
    its effect for unambiguous nouns in the word's place; `specific`: its effect for the word
    beyond that; `comparison`: more, less, same or undecided, empty where it was not compared ·
    `at_end`: whether it stands behind the read-out, so that its effect is read after the last
    layer.
    """

    name: str
    layer: int
    head: int
    verdict: str
    resolves: int
    of: int
    rank: int | None
    rank_low: int | None
    rank_high: int | None
    net: float
    net_low: float
    net_high: float
    denoise: float
    noise: float
    swap: float
    same_sense: float
    direct: float
    direct_low: float
    direct_high: float
    self_repair: float
    auroc: float
    attention_cue: float
    attention_previous: float
    attention_itself: float
    p_auroc: float
    p_swap: float
    general: float
    specific: float
    specific_low: float
    specific_high: float
    p_specific: float
    comparison: str
    at_end: bool
    own_write: float
    own_write_nouns: float
    own_write_more_low: float
    moved_raw: float
    moved_raw_nouns: float

    @property
    def with_its_readers(self) -> bool:
        """Whether the head does more for the word than for nouns, and was not shown to write more
        itself, by SMALLEST of what it writes: a part that reads it makes the difference."""
        writes_more = self.own_write_more_low > SMALLEST * abs(self.own_write)
        return self.comparison == "more" and not writes_more


@dataclass(frozen=True)
class PairOfSenses:
    """Two senses of the word: the material, the gap between them, and which heads resolve them.

    `ranked` is true where the gap passed its test, so that heads were swapped and ranked.
    `nuisances` names what has no meaning and tells a ranked pair apart as well; `confounders` the
    same where the pair did not pass the ambiguity gate, else nothing. `nouns` is the number of
    unambiguous nouns in the word's place; `general_share`, the mean, and `largest_share` are how
    far they change, as shares of the word's own squared gap; `ambiguity_p` is the gate's, missing
    where it was not asked, with the reason in `not_compared`, and `ambiguous` whether it passed.
    """

    sense_a: str
    sense_b: str
    ranked: bool
    exploratory: bool
    gap: float
    gap_low: float
    gap_high: float
    gap_p: float
    gap_form: float
    gap_other_forms: float
    auroc: float
    next_token_p: float
    continuation_p: float
    untrained_p: float
    sentences_fit: int
    sentences_report: int
    cue_words: int
    pairs: int
    pair_design: str
    smallest_p: float
    visible_d_pairs: float
    nouns: int
    general_share: float
    largest_share: float
    surprisal: float
    surprisal_nouns: float
    nouns_near: int
    ambiguity_p: float
    ambiguity_p_near: float
    ambiguous: bool
    not_compared: str
    nuisances: tuple[str, ...]
    confounders: tuple[str, ...]
    resolvers: tuple[str, ...]
    leading_head: str | None
    leading_effect: float

    @property
    def place_among_nouns(self) -> int:
        """The word's place among the nouns by how far each changes: 1 where it changes furthest.

        The gate's p is (1 + nouns that change as far) / (1 + nouns).
        """
        return round(self.ambiguity_p * (1 + self.nouns))


@dataclass(frozen=True)
class BesideNouns:
    """How far the word changes at its read-out beside unambiguous nouns in its place, over the
    ranked pairs of senses for which that was asked.

    `pairs` is the number of these. With no pairs only the number of nouns, the reason
    (`not_compared`) and `mlps_more` are known.
    `nouns`: those that were compared · `as_far`: those that change at least as far as the word ·
    `p`: of the ambiguity gate, one for the word, and whether it `passed` · `near`: how many of the
    nouns are about as expected as the word, and `p_near` of the gate among them, missing where
    they are too few · `general_share` and
    `largest_share`: mean and largest squared gap of a noun over the word's · `times_as_far`: how
    many times as far the word changes as the nouns do, a ratio of distances, infinite where they do
    not change · `furthest`: the noun that
    changes furthest · `mlps_more`: layers whose MLP does more for the word than for these nouns, in
    the mean over pairs of senses.
    """

    pairs: int
    passed: bool
    nouns: int
    as_far: int
    general_share: float
    largest_share: float
    p: float
    near: int
    p_near: float
    times_as_far: float
    furthest: str
    mlps_more: tuple[int, ...]
    not_compared: str


@dataclass(frozen=True)
class SmallestSet:
    """The fewest leading heads that keep 90 % of the gap, and what is lost when they alone are
    replaced (`necessity`); `heads_tested` is the number of all."""

    names: tuple[str, ...]
    faithfulness: float
    faithfulness_low: float
    faithfulness_high: float
    necessity: float
    necessity_low: float
    necessity_high: float
    heads_tested: int


@dataclass(frozen=True)
class Peak:
    """The number of leading heads that keep more of the gap than all heads do, and how much they
    keep; `behind` is the number of the others, which bring it back to 100 %."""

    size: int
    faithfulness: float
    behind: int


@dataclass(frozen=True)
class RandomSets:
    """The best faithfulness of the random sets of one size, and how many were drawn."""

    size: int
    number: int
    best: float


@dataclass(frozen=True)
class LeadingPath:
    """The heads of the leading path from the cue to the word, one after the other.

    `nearly_all` is true where nearly all of the gap goes over paths through these heads alone.
    """

    names: tuple[str, ...]
    layers: tuple[int, ...]
    nearly_all: bool


@dataclass(frozen=True)
class CreditedCue:
    """The word of the sentence that gives the meaning, with an example of each sense.

    `marked` is false where it is not the marked cue but another word in which the two sentences of
    a pair differ. `examples` is None where no pair of sentences shows one.
    """

    marked: bool
    examples: tuple[str, str] | None


@dataclass(frozen=True)
class MoverTests:
    """The tests of the heads that move the word, over the pairs of senses in which they do.

    p_swap: the largest corrected p of their effects.
    p_next_token: the same of their effects on the next token; None where it was not measured.
    not_separating: the names of those whose output does not separate the senses.
    """

    p_swap: float
    p_next_token: float | None
    not_separating: tuple[str, ...]


@dataclass(frozen=True)
class OtherHeads:
    """The heads that are not among the movers.

    bound: the largest end of their 95 % intervals, in whole percent.
    """

    bound: int


@dataclass(frozen=True)
class Cautions:
    """What to be careful about in the sentences: surface forms, unmarked or late cues, unmarked
    pairs, pieces. `cues_inferred` and `in_pairs` are numbers of sentences; `pairs_drawn`: sentences
    were put into pairs at random, because fewer than half of them stand in one."""

    forms: tuple[tuple[str, int], ...]
    cue_marked: bool
    cues_inferred: int
    in_pairs: int
    pairs_drawn: bool
    unmarked_pairs: int
    in_pieces: int
    sentences: int
    late: int


@dataclass(frozen=True, eq=False)
class WordFindings:
    """What was found for one word.

    `index` is its place among the words of the study and `rows` its rows of every frame, for charts
    and tables. `ranked` is true where at least one pair of senses is apart. Heads stand by rank:
    `leaders` are the first of them, `movers` those that were shown to move the word, `resolvers`
    those of them that do more for it than for unambiguous nouns,
    `opposing` those that were shown to move the word the other way by WORTH_NAMING or more, the
    furthest first, `pairs_moved` the number of pairs of senses in which the movers do, `heads_read`
    those whose sentences are worth reading, `rank_groups` the groups of leaders whose ranks
    overlap; `without_continuation` names the movers that do not change the prepared next words.
    """

    word: str
    index: int
    layers: int
    heads_per_layer: int
    read_depth: int
    causal: bool
    aligned: bool
    same_token: bool
    senses: tuple[str, ...]
    pairs: tuple[PairOfSenses, ...]
    pairs_moved: int
    ranked: bool
    exploratory: bool
    beside_nouns: BesideNouns
    nuisances: tuple[str, ...]
    confounders: tuple[str, ...]
    heads: tuple[HeadFinding, ...]
    leaders: tuple[HeadFinding, ...]
    resolvers: tuple[HeadFinding, ...]
    movers: tuple[HeadFinding, ...]
    opposing: tuple[HeadFinding, ...]
    heads_read: tuple[HeadFinding, ...]
    rank_groups: tuple[tuple[str, ...], ...]
    tests: MoverTests | None
    without_continuation: tuple[str, ...]
    others: OtherHeads | None
    smallest_set: SmallestSet | None
    random_sets: RandomSets | None
    leading_path: LeadingPath | None
    credited_cue: CreditedCue | None
    cautions: Cautions
    rows: Frames = field(repr=False)


def findings(frames: Frames) -> dict[str, WordFindings]:
    """What was found for every word of a study, by word, in the study's order.

    What experiments that were not run would have found is as where they find nothing.
    """
    frames = without_rows() | dict(frames)
    in_layers = [frames[name]["layer"] for name in ("heads", "mixers") if name in frames]
    layers = int(max(numbers.max() for numbers in in_layers if len(numbers))) + 1
    heads_per_layer = int(frames["heads"]["head"].max()) + 1
    return {
        word: word_findings(word, rows, index=index, model_size=(layers, heads_per_layer))
        for index, (word, rows) in enumerate(rows_by_word(frames).items())
    }


def rows_by_word(frames: Frames) -> dict[str, dict[str, pd.DataFrame]]:
    """The rows of each word, of every frame that has a column for it."""
    return {str(word): rows_of(frames, word) for word in frames["words"]["word"].unique()}


def rows_of(frames: Frames, word: str) -> dict[str, pd.DataFrame]:
    """The rows of one word, of every frame that has a column for it."""
    return {
        name: frame[(frame["word"] == word).to_numpy()]
        for name, frame in frames.items()
        if "word" in frame
    }


def word_findings(
    word: str, rows: Frames, *, index: int = 0, model_size: tuple[int, int]
) -> WordFindings:
    """What was found for one word, from its rows of the frames; `model_size`: layers, and heads in
    each."""
    pairs = pairs_of_senses(rows)
    heads = heads_by_rank(rows)
    resolvers = tuple(head for head in heads if head.verdict == "resolver")
    movers = tuple(head for head in heads if head.verdict in MOVERS)
    moved = rows["heads"][rows["heads"]["verdict"].isin(MOVERS)]
    leaders = heads[:LEADERS]
    smallest = smallest_set(rows["curves"])
    ranked_pairs = [pair for pair in pairs if pair.ranked]
    return WordFindings(
        word=word,
        index=index,
        layers=model_size[0],
        heads_per_layer=model_size[1],
        read_depth=int(rows["words"]["depth"].iloc[0]),
        causal=bool(rows["words"]["causal"].all()),
        aligned=all(pair.pair_design == ALIGNED for pair in pairs),
        same_token=_same_token(rows["depth"]),
        senses=tuple(dict.fromkeys(s for pair in pairs for s in (pair.sense_a, pair.sense_b))),
        pairs=pairs,
        pairs_moved=len(moved[["sense_a", "sense_b"]].drop_duplicates()),
        ranked=bool(ranked_pairs),
        exploratory=any(pair.exploratory for pair in pairs),
        beside_nouns=beside_nouns(word, ranked_pairs, rows),
        nuisances=tuple(dict.fromkeys(name for pair in pairs for name in pair.nuisances)),
        confounders=tuple(dict.fromkeys(name for pair in pairs for name in pair.confounders)),
        heads=heads,
        leaders=leaders,
        resolvers=resolvers,
        movers=movers,
        opposing=_opposing(heads),
        heads_read=_heads_read(heads, rows["readings"]),
        rank_groups=rank_groups(leaders),
        tests=_tests_of_movers(rows["heads"]),
        without_continuation=_without_continuation(rows["heads"], movers),
        others=_other_heads(heads),
        smallest_set=smallest,
        random_sets=best_random(rows["random_sets"], len(smallest.names)) if smallest else None,
        leading_path=leading_path(rows["paths"]),
        credited_cue=_credited_cue(rows, pairs, movers),
        cautions=_cautions(rows["sentences"], rows["left_out"], pairs),
        rows=rows,
    )


def head_name(row: Row) -> str:
    """L2H1 for head 1 of layer 2."""
    return f"L{row['layer']}H{row['head']}"


def names_of(heads: pd.DataFrame) -> tuple[str, ...]:
    """The names of heads in a frame, each once, as they first appear."""
    places = heads[["layer", "head"]].to_dict("records")
    return tuple(dict.fromkeys(map(head_name, places)))


def heads_by_rank(rows: Frames) -> tuple[HeadFinding, ...]:
    """The heads of a word by rank, with their smallest corrected p over its pairs of senses."""
    tests = rows["heads"].groupby(["layer", "head"], as_index=False)[["p_auroc", "p_swap"]].min()
    ranked = rows["word_heads"].sort_values("rank", kind="stable")
    records = ranked.merge(tests, on=["layer", "head"], how="left").to_dict("records")
    depth = int(rows["words"]["depth"].iloc[0])
    return tuple(head_finding(record, read_depth=depth) for record in records)


WHOLE = ("layer", "head", "resolves", "of", "rank", "rank_low", "rank_high")


def head_finding(row: Row, *, read_depth: int) -> HeadFinding:
    """One row of the table of heads of a word that is read at this depth as a record; a rank may be
    missing."""
    values: dict[str, Any] = {
        "name": head_name(row),
        "verdict": str(row["verdict"]),
        "at_end": int(row["layer"]) >= read_depth,
    }
    for column in fields(HeadFinding):
        name = column.name
        if name in WHOLE:
            values[name] = None if pd.isna(row[name]) else int(row[name])
        elif name == "comparison":
            values[name] = "" if pd.isna(row[name]) else str(row[name])
        elif name not in values:
            values[name] = float(row[name])
    return HeadFinding(**values)


def rank_groups(heads: Sequence[HeadFinding]) -> tuple[tuple[str, ...], ...]:
    """The names of heads by rank, those with overlapping rank intervals together: only between
    groups is there an order."""
    groups: list[list[HeadFinding]] = []
    for head in heads:
        # A head joins the group when it may rank before any of its members.
        if groups and _lowest(head) <= max(map(_highest, groups[-1])):
            groups[-1].append(head)
        else:
            groups.append([head])
    return tuple(tuple(head.name for head in group) for group in groups)


def _lowest(head: HeadFinding) -> float:
    return math.nan if head.rank_low is None else head.rank_low


def _highest(head: HeadFinding) -> float:
    return math.nan if head.rank_high is None else head.rank_high


def _heads_read(heads: Sequence[HeadFinding], readings: pd.DataFrame) -> tuple[HeadFinding, ...]:
    """Of the heads whose attention was read, those that were shown to move the word and those
    whose effect is clear; the largest where there is none."""
    read = set(names_of(readings[["layer", "head"]].drop_duplicates()))
    candidates = [head for head in heads if head.name in read]
    worth_reading = [
        head
        for head in candidates
        if head.verdict in MOVERS or (head.net_low > 0 and head.net >= WORTH_READING)
    ]
    return tuple(worth_reading or candidates[:1])


def pairs_of_senses(rows: Frames) -> tuple[PairOfSenses, ...]:
    """The pairs of senses of a word, each with the heads that were shown to resolve it."""
    return tuple(_pair_of_senses(row, rows["heads"]) for row in rows["words"].to_dict("records"))


def _pair_of_senses(row: Row, heads: pd.DataFrame) -> PairOfSenses:
    own = heads[(heads["sense_a"] == row["sense_a"]) & (heads["sense_b"] == row["sense_b"])]
    first = own[own["rank"] == 1].to_dict("records") if row["ranked"] else []
    nuisances = [
        name
        for name, (column, level) in CONFOUNDERS.items()
        if row["ranked"] and row[column] < level
    ]
    # Unambiguous nouns stand in the same sentences: what the word does beyond them is no
    # nuisance of these sentences.
    ambiguous = passes_gate(row)
    confounders = [] if ambiguous else nuisances
    values: dict[str, Any] = {
        "ambiguous": ambiguous,
        "nuisances": tuple(nuisances),
        "confounders": tuple(confounders),
        "resolvers": names_of(own[own["verdict"] == "resolver"]),
        "leading_head": head_name(first[0]) if first else None,
        "leading_effect": float(first[0]["swap"] - first[0]["same_sense"]) if first else math.nan,
    }
    for column in fields(PairOfSenses):
        values.setdefault(column.name, row.get(column.name))
    return PairOfSenses(**values)


def beside_nouns(word: str, ranked_pairs: Sequence[PairOfSenses], rows: Frames) -> BesideNouns:
    """How far the word changes beside unambiguous nouns, from its ranked pairs of senses and the
    rows of the frames `controls` and `mlps`."""
    asked = [pair for pair in ranked_pairs if not math.isnan(pair.ambiguity_p)]
    shares = _shares_of_nouns(word, rows["controls"], int(rows["words"]["depth"].iloc[0]))
    mlps_more = _mlps_more(rows["mlps"])
    if not asked:
        nouns = min((pair.nouns for pair in ranked_pairs), default=0)
        return BesideNouns(
            pairs=0,
            passed=False,
            nouns=nouns,
            as_far=0,
            general_share=math.nan,
            largest_share=math.nan,
            p=math.nan,
            near=0,
            p_near=math.nan,
            times_as_far=math.nan,
            furthest="",
            mlps_more=mlps_more,
            not_compared=next((pair.not_compared for pair in ranked_pairs), ""),
        )
    share = sum(pair.general_share for pair in asked) / len(asked)
    return BesideNouns(
        pairs=len(asked),
        passed=asked[0].ambiguous,
        nouns=asked[0].nouns,  # the same for all of them, as the gate's p is
        as_far=asked[0].place_among_nouns - 1,
        general_share=share,
        largest_share=max(pair.largest_share for pair in asked),
        p=asked[0].ambiguity_p,
        near=asked[0].nouns_near,
        p_near=asked[0].ambiguity_p_near,
        times_as_far=_times_as_far(share),
        furthest=str(shares.idxmax()) if len(shares) else "",
        mlps_more=mlps_more,
        not_compared="",
    )


def _times_as_far(share: float) -> float:
    """The ratio of distances of a share of squared ones; NaN where the word has no squared gap."""
    if math.isnan(share):
        return math.nan
    return share**-0.5 if share > 0 else math.inf


def _shares_of_nouns(word: str, controls: pd.DataFrame, depth: int) -> pd.Series:
    """The share of every noun at a depth, mean over the word's pairs of senses, by noun."""
    rows = controls[(controls["depth"] == depth) & (controls["noun"] != word)]
    return rows.groupby("noun", sort=False)["general_share"].mean().dropna()


def _mlps_more(mlps: pd.DataFrame) -> tuple[int, ...]:
    """The layers whose MLP does more for the word than for unambiguous nouns, by the rule of
    `verdicts.comparison`, in the mean over its pairs of senses and in one of them, whose p is taken
    times their number."""
    layers = []
    for layer in sorted(mlps["layer"].unique().tolist()):
        rows = mlps[mlps["layer"] == layer]
        pairs = rows.assign(p_specific=len(rows) * rows["p_specific"]).to_dict("records")
        does_more = any(comparison(pair) == "more" for pair in pairs)
        if does_more and rows["specific"].mean() > 0:
            layers.append(layer)
    return tuple(layers)


def _same_token(depth: pd.DataFrame) -> bool:
    """Whether the senses are exactly 0 apart at the token embedding: it is the same vector."""
    embedding = depth[depth["depth"] == -1]
    pairs = embedding.groupby(["sense_a", "sense_b"])["coordinate"]
    return bool((pairs.nunique() == 1).all())


def smallest_set(curves: pd.DataFrame) -> SmallestSet | None:
    """The smallest set of leading heads that is enough, or None where no such set is."""
    rows = curves.sort_values("size")
    enough = rows[rows["size"] == rows["smallest"]]
    if enough.empty:
        return None
    first = enough.iloc[0]
    joined = rows.loc[rows["size"].between(1, first["size"]), "added"]
    return SmallestSet(
        names=tuple(name for added in joined for name in added.split(", ")),
        faithfulness=float(first["faithfulness"]),
        faithfulness_low=float(first["faithfulness_low"]),
        faithfulness_high=float(first["faithfulness_high"]),
        necessity=float(first["necessity"]),
        necessity_low=float(first["necessity_low"]),
        necessity_high=float(first["necessity_high"]),
        heads_tested=int(rows["size"].max()),
    )


def peak(curves: pd.DataFrame) -> Peak | None:
    """Where the curve of a word is highest, or None where it is no higher than with all heads, up
    to OVER."""
    if curves.empty or curves["faithfulness"].max() <= OVER:
        return None
    highest = curves.sort_values("faithfulness", kind="stable").iloc[-1]
    return Peak(
        size=int(highest["size"]),
        faithfulness=float(highest["faithfulness"]),
        behind=int(curves["size"].max() - highest["size"]),
    )


def best_random(sets: pd.DataFrame, size: int) -> RandomSets | None:
    """The random sets of `size` heads, or of the next larger size that was drawn."""
    large_enough = sets[sets["size"] >= size]
    if large_enough.empty:
        return None
    drawn = sets[sets["size"] == large_enough["size"].min()]
    return RandomSets(
        size=int(drawn["size"].iloc[0]),
        number=len(drawn),
        best=float(drawn["faithfulness"].max()),
    )


def leading_path(paths: pd.DataFrame) -> LeadingPath | None:
    """The heads of the first path, if half of the gap or more goes over it and each of its edges
    passed its test."""
    rows = paths.dropna(subset="receiver_head")
    rows = rows.rename(columns={"receiver_layer": "layer", "receiver_head": "head"})
    leading = rows[(rows["path"] == 0) & (rows["share"] >= MOST_OF_IT) & (rows["p"] < LEVEL)]
    if leading.empty:
        return None
    names = names_of(leading)
    heads = leading[["layer", "head"]].drop_duplicates()
    elsewhere = set(names_of(rows)) - set(names)
    return LeadingPath(
        names=names,
        layers=tuple(int(layer) for layer in heads["layer"]),
        nearly_all=not elsewhere and bool((leading["together"] >= NEARLY_ALL).any()),
    )


def _credited_cue(
    rows: Frames, pairs: Sequence[PairOfSenses], movers: Sequence[HeadFinding]
) -> CreditedCue | None:
    """The words that were shown to give the meaning: the marked cue, else the other words in which
    the sentences of a pair differ; None where neither was."""
    if any(pair.pair_design != ALIGNED for pair in pairs):
        return None
    effects = rows["head_parts"].groupby(["layer", "head"])[["cue_only", "other_only"]].mean()
    for part in ("cue_only", "other_only"):
        by_head = effects[part].to_dict()
        for head in movers:
            # The parts of a head that was not taken apart are missing, and then it credits nothing.
            effect = by_head.get((head.layer, head.head), math.nan)
            if effect >= max(MOST_OF_IT * head.swap, SMALLEST):
                marked = part == "cue_only"
                senses = (pairs[0].sense_a, pairs[0].sense_b)
                return CreditedCue(marked, _examples(rows["sentences"], senses, marked=marked))
    return None


def _examples(
    sentences: pd.DataFrame, senses: tuple[str, str], *, marked: bool
) -> tuple[str, str] | None:
    """The cues of the first pair of sentences or, without `marked`, another word in which its two
    members differ."""
    tested = sentences[sentences["part"].eq("tested")]
    for _, group in tested.groupby("pair", sort=False):
        first = group[group["sense"] == senses[0]].to_dict("records")
        second = group[group["sense"] == senses[1]].to_dict("records")
        if not first or not second:
            continue
        one = _differing_word(first[0], second[0], marked=marked)
        other = _differing_word(second[0], first[0], marked=marked)
        if one and other:
            return one, other
    return None


def _differing_word(row: Row, partner: Row, *, marked: bool) -> str:
    """The cue of a sentence, or the first other word that its partner has not at this position;
    empty where there is none."""
    text = str(row["text"])
    cue = ""
    if bool(pd.notna(row["cue_start"])):
        cue = text[int(row["cue_start"]) : int(row["cue_end"])]
    if marked:
        return cue
    for word, word_of_partner in zip(text.split(), str(partner["text"]).split(), strict=False):
        bare = word.strip(PUNCTUATION)
        if word != word_of_partner and bare != cue:
            return bare
    return ""


def _tests_of_movers(heads: pd.DataFrame) -> MoverTests | None:
    swapped = heads.dropna(subset="net")
    rows = swapped[swapped["verdict"].isin(MOVERS)]
    if rows.empty:
        return None
    next_token_measured = bool(rows["p_next_token"].notna().all())
    return MoverTests(
        p_swap=float(rows["p_swap"].max()),
        p_next_token=float(rows["p_next_token"].max()) if next_token_measured else None,
        not_separating=names_of(rows[rows["p_auroc"] >= LEVEL]),
    )


def _without_continuation(heads: pd.DataFrame, movers: Sequence[HeadFinding]) -> tuple[str, ...]:
    """The movers that do not significantly change which prepared next words are likely."""
    tested = heads.dropna(subset="p_continuation")
    moves = (tested["p_continuation"] < LEVEL) & (tested["continuation"] >= SMALLEST)
    by_verdict = tested["verdict"].isin([head.verdict for head in movers])
    return names_of(tested[~moves & by_verdict])


def _opposing(heads: Sequence[HeadFinding]) -> tuple[HeadFinding, ...]:
    against = [head for head in heads if head.verdict == "opposes" and head.net <= -WORTH_NAMING]
    return tuple(sorted(against, key=lambda head: head.net))


def _other_heads(heads: Sequence[HeadFinding]) -> OtherHeads | None:
    rest = [head for head in heads if head.verdict not in MOVERS]
    if not rest:
        return None
    furthest = max(abs(end) for head in rest for end in (head.net_low, head.net_high))
    # Rounded before it is rounded up: 8.000000001 % is 8 %.
    bound = math.ceil(round(100 * furthest, 6))
    return OtherHeads(bound=max(bound, 1))


def _as_given(sentences: pd.DataFrame) -> Iterator[Any]:
    """The rows of a table of sentences, what is missing in them being None."""
    return sentences.astype(object).where(sentences.notna(), None).itertuples(index=False)


def _cautions(
    sentences: pd.DataFrame, left_out: pd.DataFrame, pairs: Sequence[PairOfSenses]
) -> Cautions:
    rows = list(_as_given(sentences))
    forms = sentences["form"].value_counts()
    return Cautions(
        forms=tuple((str(form), int(count)) for form, count in forms.items()),
        cue_marked=not sentences["cue_start"].isna().all(),
        cues_inferred=int(sentences["cue_inferred"].sum()),
        in_pairs=len(in_pairs(rows)),
        pairs_drawn=any(pair.pair_design == DRAWN for pair in pairs),
        unmarked_pairs=unmarked_pairs(rows),
        in_pieces=int((sentences["tokens_of_word"] > 1).sum()),
        sentences=len(sentences),
        late=int(left_out["reason"].eq(LATE).sum()),
    )
