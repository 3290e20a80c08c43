"""The findings for each word of a study: one record for each word, built once from the study's
frames.

Pages, the terminal and notebooks report a word from this record. It has names and numbers and no
sentences. It also limits what may be claimed:

* The movers are the heads with the verdict mover or resolver. The resolvers are the heads with the
  verdict resolver.
* A word changes further than unambiguous nouns only if it passes the ambiguity gate. If it passes,
  an untrained model's gap is no confounder, because these nouns are in the same
  sentences.
* Heads with overlapping rank intervals are one group without an order.
* A word of the sentence is credited only if the sentences are aligned and a mover has at least half
  of its effect from that word alone.

Effects are fractions of the sense gap, minus the effect of a same-sense swap (`net`), and means
over the pairs of senses of a word.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import pandas as pd

from probe.claims import MOVERS, UNMARKED, credited_part, leading, mlps_more, named
from probe.experiments.material import LATE
from probe.experiments.run import LEADERS
from probe.inference.verdicts import comparison_of_writes, passes_gate, rank_among_nouns
from probe.results.frames import without_rows
from probe.stats.limits import GATE, LEVEL, SMALLEST, WORTH_NAMING
from probe.text.splits import ALIGNED, DRAWN, in_pairs, unmarked_pairs

MORE = "more"  # the comparison of a part that does more for the word than for nouns

PUNCTUATION = ".,;:!?\"'()"
Frames = Mapping[str, pd.DataFrame]
Row = Mapping[Any, Any]

# Things other than meaning that may separate two senses: the column of the p, and the level below
# which it counts. The gap in an untrained model is measured like the gap of the model, so it has
# the stricter level of that test.
CONFOUNDERS = {"untrained": ("untrained_p", GATE), "nuisance": ("nuisance_p", LEVEL)}


@dataclass(frozen=True)
class HeadFinding:
    """One head at one word: its effects and its attention. NaN if not measured.

    The fields are columns of the table `word_heads` (see `probe.results.columns`), except as noted.
    """

    name: str  # e.g. L4H2
    layer: int
    head: int
    verdict: str
    resolves: int  # pairs of senses that it resolves
    of: int  # pairs of senses in which it was swapped
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
    added_after: float
    auroc: float
    attention_cue: float
    attention_previous: float
    attention_itself: float
    p_auroc: float  # the smallest corrected p over the pairs of senses
    p_swap: float  # the smallest corrected p over the pairs of senses
    nouns: float  # how far it moves unambiguous nouns, in the word's gap
    more: float  # how far it moves the word minus nouns
    more_low: float
    more_high: float
    p_more: float
    nouns_share: float  # how far it moves nouns, in their own gap
    comparison: str  # more, less, same or undecided; "" if it was not compared
    at_end: bool  # at or after the read-out layer, so that its effect is read after the last layer
    writes_more: bool  # whether its own write is larger at the word, too

    @property
    def with_its_readers(self) -> bool:
        """Whether the head moves the word further than nouns without a larger write. Then its
        readers, i.e. later components, make the difference.
        """
        return self.comparison == "more" and not self.writes_more


@dataclass(frozen=True)
class PairOfSenses:
    """Two senses of the word: the sample, the gap between them, and the heads that resolve them.

    The fields are columns of the table `words` (see `probe.results.columns`), except as noted.
    """

    sense_a: str
    sense_b: str
    ranked: bool  # whether the gap passed its test, so that heads were swapped and ranked
    exploratory: bool
    gap: float
    gap_low: float
    gap_high: float
    gap_p: float
    smallest_gap_p: float  # None in the files of an earlier version
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
    nouns_compared: int  # unambiguous nouns in the word's place
    general_share: float  # mean over the nouns of their squared gap / the word's
    largest_share: float  # the largest such ratio
    surprisal: float
    nouns_near: int
    ambiguity_p: float  # p of the ambiguity gate; NaN if it was not computed
    ambiguity_p_near: float
    ambiguous: bool  # whether the word passed the gate
    not_compared: str  # why the gate was not computed
    nuisances: tuple[str, ...]  # keys of CONFOUNDERS that also separate the senses of a ranked pair
    confounders: tuple[str, ...]  # the nuisances if the word did not pass the gate, else none
    resolvers: tuple[str, ...]  # names of the heads that resolve the senses
    leading_head: str | None  # name of the first leading head
    leading_effect: float

    @property
    def too_few_cue_words(self) -> bool:
        """Whether no gap could be significant with these pairs of cue words."""
        return self.smallest_gap_p is not None and self.smallest_gap_p >= GATE

    @property
    def place_among_nouns(self) -> int:
        """The word's rank among the nouns by how far each changes. 1 is the furthest."""
        return int(rank_among_nouns(self.ambiguity_p, self.nouns_compared))


@dataclass(frozen=True)
class BesideNouns:
    """How far the word changes at its read-out layer compared with unambiguous nouns in its place,
    over the ranked pairs of senses with an ambiguity gate.

    Without such pairs, only `nouns`, `mlps_more` and `not_compared` are set.
    """

    pairs: int  # ranked pairs of senses with a gate
    passed: bool  # whether the word passed the gate
    nouns: int  # that were compared
    as_far: int  # nouns that change at least as far as the word
    general_share: float  # mean over the nouns of their squared gap / the word's
    largest_share: float  # the largest such ratio
    p: float  # of the gate, one for the word
    near: int  # nouns that are about as expected as the word
    p_near: float  # of the gate among these nouns; NaN if there are too few
    # How many times as far the word changes as the nouns: a ratio of distances, infinite if the
    # nouns do not change.
    times_as_far: float
    farther: tuple[str, ...]  # the nouns that change at least as far, the farthest first
    mlps_more: tuple[int, ...]  # layers whose MLP does more for the word, mean over pairs of senses
    not_compared: str  # why the gate was not computed


@dataclass(frozen=True)
class LeadingMlp:
    """An MLP up to the read-out layer whose effect is larger than that of every head."""

    layer: int
    net: float  # the mean over the pairs of senses


@dataclass(frozen=True)
class CreditedCue:
    """The word of the sentence that determines the meaning."""

    marked: (
        bool  # False for a word other than the marked cue in which the sentences of a pair differ
    )
    examples: tuple[str, str] | None  # one of each sense; None if no pair of sentences has any


@dataclass(frozen=True)
class MoverTests:
    """The tests of the movers, over the pairs of senses in which they move the word."""

    p_swap: float  # the largest corrected p of their effects
    p_next_token: float | None  # the same of the effects on the next token; None if not measured
    not_separating: tuple[str, ...]  # names of heads whose write does not separate the senses


@dataclass(frozen=True)
class OtherHeads:
    """The heads that are not movers."""

    bound: int  # the end of a 95 % interval that is furthest from 0, in whole percent


@dataclass(frozen=True)
class Cautions:
    """Properties of the sentences that call for caution."""

    forms: tuple[tuple[str, int], ...]  # written forms of the word, with the number of sentences
    cue_marked: bool
    cues_inferred: int  # sentences with a cue inferred from their pair
    in_pairs: int  # sentences in pairs
    pairs_drawn: bool  # pairs were drawn at random: fewer than half of the sentences are in pairs
    unmarked_pairs: int
    in_pieces: int  # sentences whose word has several tokens
    sentences: int
    late: int  # sentences left out because the cue comes after the word


@dataclass(frozen=True, eq=False)
class WordFindings:
    """The findings for one word. Heads are in the order of their ranks, except as noted."""

    word: str
    index: int  # of the word in the study
    layers: int
    heads_per_layer: int
    read_depth: int
    causal: bool
    aligned: bool  # whether the sentences of all pairs are aligned
    same_token: bool  # whether the token embedding is the same vector for all senses
    senses: tuple[str, ...]
    pairs: tuple[PairOfSenses, ...]
    pairs_moved: int  # pairs of senses in which some head moves the word
    ranked: bool  # whether at least one pair of senses has a significant gap
    exploratory: bool
    beside_nouns: BesideNouns
    nuisances: tuple[str, ...]  # of any pair of senses
    confounders: tuple[str, ...]  # of any pair of senses
    heads: tuple[HeadFinding, ...]
    # The first leading heads, and the same with all resolvers (`probe.claims`).
    top_heads: tuple[HeadFinding, ...]
    named: tuple[HeadFinding, ...]
    resolvers: tuple[HeadFinding, ...]
    movers: tuple[HeadFinding, ...]  # includes the resolvers
    # Heads that significantly move the word the wrong way by at least WORTH_NAMING, largest first.
    opposing: tuple[HeadFinding, ...]
    rank_groups: tuple[tuple[str, ...], ...]  # top heads by overlapping ranks
    tests: MoverTests | None
    without_continuation: tuple[str, ...]  # movers that do not change the prepared next words
    other_heads: OtherHeads | None
    leading_mlp: LeadingMlp | None
    credited_cue: CreditedCue | None
    cautions: Cautions
    rows: Frames = field(repr=False)  # the word's rows of every frame, for charts and tables


def findings(frames: Frames) -> dict[str, WordFindings]:
    """The findings for every word of a study, by word, in the study's order.

    Experiments that were not run count as experiments without a finding.
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
    """The rows of each word, by word and frame, for every frame with a column `word`."""
    return {str(word): rows_of(frames, word) for word in frames["words"]["word"].unique()}


def rows_of(frames: Frames, word: str) -> dict[str, pd.DataFrame]:
    """The rows of one word by frame, for every frame with a column `word`."""
    return {
        name: frame[(frame["word"] == word).to_numpy()]
        for name, frame in frames.items()
        if "word" in frame
    }


def word_findings(
    word: str, rows: Frames, *, index: int = 0, model_size: tuple[int, int]
) -> WordFindings:
    """The findings for one word.

    rows: the word's rows by frame
    index: of the word in the study
    model_size: the number of layers, and of heads in each
    """
    pairs = pairs_of_senses(rows)
    heads = heads_by_rank(rows)
    resolvers = tuple(head for head in heads if head.verdict == "resolver")
    movers = tuple(head for head in heads if head.verdict in MOVERS)
    mover_rows = rows["heads"][rows["heads"]["verdict"].isin(MOVERS)]
    by_name = {head.name: head for head in heads}
    named_heads = tuple(by_name[name] for name in names_of(named(rows["word_heads"], LEADERS)))
    top_heads = named_heads[:LEADERS]
    read_depth = int(rows["words"]["depth"].iloc[0])
    ranked_pairs = [pair for pair in pairs if pair.ranked]
    return WordFindings(
        word=word,
        index=index,
        layers=model_size[0],
        heads_per_layer=model_size[1],
        read_depth=read_depth,
        causal=bool(rows["words"]["causal"].all()),
        aligned=all(pair.pair_design == ALIGNED for pair in pairs),
        same_token=_same_token(rows["depth"]),
        senses=tuple(dict.fromkeys(s for pair in pairs for s in (pair.sense_a, pair.sense_b))),
        pairs=pairs,
        pairs_moved=len(mover_rows[["sense_a", "sense_b"]].drop_duplicates()),
        ranked=bool(ranked_pairs),
        exploratory=any(pair.exploratory for pair in pairs),
        beside_nouns=beside_nouns(word, ranked_pairs, rows),
        nuisances=tuple(dict.fromkeys(name for pair in pairs for name in pair.nuisances)),
        confounders=tuple(dict.fromkeys(name for pair in pairs for name in pair.confounders)),
        heads=heads,
        top_heads=top_heads,
        named=named_heads,
        resolvers=resolvers,
        movers=movers,
        opposing=_opposing(heads),
        rank_groups=rank_groups([head for head in heads if head in top_heads]),
        tests=_tests_of_movers(rows["heads"]),
        without_continuation=_without_continuation(rows["heads"], movers),
        other_heads=_other_heads(heads),
        leading_mlp=leading_mlp(rows["mlps"], heads, read_depth),
        credited_cue=_credited_cue(rows, pairs),
        cautions=_cautions(rows["sentences"], rows["left_out"], pairs),
        rows=rows,
    )


def head_name(row: Row) -> str:
    """The name of a head, e.g. L2H1 for head 1 of layer 2."""
    return f"L{row['layer']}H{row['head']}"


def names_of(heads: pd.DataFrame) -> tuple[str, ...]:
    """The distinct names of the heads in a frame, in the order of their first rows."""
    rows = heads[["layer", "head"]].to_dict("records")
    return tuple(dict.fromkeys(map(head_name, rows)))


def heads_by_rank(rows: Frames) -> tuple[HeadFinding, ...]:
    """The heads of a word in the order of their ranks.

    rows: the word's rows by frame
    """
    tests = rows["heads"].groupby(["layer", "head"], as_index=False)[["p_auroc", "p_swap"]].min()
    ranked = rows["word_heads"].sort_values("rank", kind="stable")
    records = ranked.merge(tests, on=["layer", "head"], how="left").to_dict("records")
    depth = int(rows["words"]["depth"].iloc[0])
    return tuple(head_finding(record, read_depth=depth) for record in records)


WHOLE = ("layer", "head", "resolves", "of", "rank", "rank_low", "rank_high")


def head_finding(row: Row, *, read_depth: int) -> HeadFinding:
    """A row of the table `word_heads` as a record.

    read_depth: the read-out depth of the word
    """
    values: dict[str, Any] = {
        "name": head_name(row),
        "verdict": str(row["verdict"]),
        "at_end": int(row["layer"]) >= read_depth,
        "writes_more": comparison_of_writes(row) == MORE,
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
    """The names of heads in groups by rank. Heads with overlapping rank intervals are one group.

    heads: in the order of their ranks

    There is an order between groups and none within a group.
    """
    groups: list[list[HeadFinding]] = []
    for head in heads:
        # A head joins the group if it may rank before any of its members.
        if groups and _lowest(head) <= max(map(_highest, groups[-1])):
            groups[-1].append(head)
        else:
            groups.append([head])
    return tuple(tuple(head.name for head in group) for group in groups)


def _lowest(head: HeadFinding) -> float:
    return math.nan if head.rank_low is None else head.rank_low


def _highest(head: HeadFinding) -> float:
    return math.nan if head.rank_high is None else head.rank_high


def pairs_of_senses(rows: Frames) -> tuple[PairOfSenses, ...]:
    """The pairs of senses of a word.

    rows: the word's rows by frame
    """
    return tuple(_pair_of_senses(row, rows["heads"]) for row in rows["words"].to_dict("records"))


def _pair_of_senses(row: Row, heads: pd.DataFrame) -> PairOfSenses:
    of_pair = heads[(heads["sense_a"] == row["sense_a"]) & (heads["sense_b"] == row["sense_b"])]
    first = leading(of_pair)[:1].to_dict("records") if row["ranked"] else []
    nuisances = [
        name
        for name, (column, level) in CONFOUNDERS.items()
        if row["ranked"] and row[column] < level
    ]
    # Unambiguous nouns have the same function words around them, which is what an untrained model
    # sees. They do not rule out that a head writes a position at the ambiguous word only.
    ambiguous = passes_gate(row)
    confounders = [name for name in nuisances if name == "nuisance" or not ambiguous]
    values: dict[str, Any] = {
        "ambiguous": ambiguous,
        "nuisances": tuple(nuisances),
        "confounders": tuple(confounders),
        "resolvers": names_of(of_pair[of_pair["verdict"] == "resolver"]),
        "leading_head": head_name(first[0]) if first else None,
        "leading_effect": float(first[0]["swap"] - first[0]["same_sense"]) if first else math.nan,
    }
    for column in fields(PairOfSenses):
        values.setdefault(column.name, row.get(column.name))
    return PairOfSenses(**values)


def beside_nouns(word: str, ranked_pairs: Sequence[PairOfSenses], rows: Frames) -> BesideNouns:
    """How far the word changes compared with unambiguous nouns.

    ranked_pairs: the word's pairs of senses with a significant gap
    rows: the word's rows by frame
    """
    with_gate = [pair for pair in ranked_pairs if not math.isnan(pair.ambiguity_p)]
    with_more = tuple(mlps_more(rows["mlps"]))
    if not with_gate:
        nouns = min((pair.nouns_compared for pair in ranked_pairs), default=0)
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
            farther=(),
            mlps_more=with_more,
            not_compared=next((pair.not_compared for pair in ranked_pairs), ""),
        )
    share = sum(pair.general_share for pair in with_gate) / len(with_gate)
    first = with_gate[0]  # the gate and its nouns are the same for all pairs of senses
    as_far = first.place_among_nouns - 1
    by_gap = _nouns_by_gap(word, rows["controls"], int(rows["words"]["depth"].iloc[0]))
    return BesideNouns(
        pairs=len(with_gate),
        passed=first.ambiguous,
        nouns=first.nouns_compared,
        as_far=as_far,
        general_share=share,
        largest_share=max(pair.largest_share for pair in with_gate),
        p=first.ambiguity_p,
        near=first.nouns_near,
        p_near=first.ambiguity_p_near,
        times_as_far=_times_as_far(share),
        farther=by_gap[:as_far],
        mlps_more=with_more,
        not_compared="",
    )


def _times_as_far(share: float) -> float:
    """The ratio of the word's distance to the nouns', from the share of squared distances.

    share ** -0.5

    NaN if the word has no squared gap, infinite if the nouns have none.
    """
    if math.isnan(share):
        return math.nan
    return share**-0.5 if share > 0 else math.inf


def _nouns_by_gap(word: str, controls: pd.DataFrame, depth: int) -> tuple[str, ...]:
    """The unambiguous nouns in the order of the ambiguity gate: by the squared gap at a depth,
    summed over the word's pairs of senses, the largest first."""
    rows = controls[(controls["depth"] == depth) & (controls["noun"] != word)]
    gaps = rows.groupby("noun", sort=False)["gap"].sum()
    return tuple(gaps.sort_values(ascending=False, kind="stable").index)


def _same_token(depth: pd.DataFrame) -> bool:
    """Whether the token embedding is the same vector for all senses."""
    embedding = depth[depth["depth"] == -1]
    pairs = embedding.groupby(["sense_a", "sense_b"])["coordinate"]
    return bool((pairs.nunique() == 1).all())


def leading_mlp(
    mlps: pd.DataFrame, heads: Sequence[HeadFinding], read_depth: int
) -> LeadingMlp | None:
    """The MLP with the largest effect, if that is larger than the effect of every head with a
    verdict. None if such a head has the largest effect, or no MLP was swapped.

    Only parts of layers below `read_depth` are compared, because later ones are read elsewhere.
    """
    before = mlps[mlps["layer"] < read_depth]
    if before.empty:
        return None
    means = before.groupby("layer", as_index=False)["net"].mean()
    largest = means.loc[means["net"].to_numpy().argmax()]
    effects = [head.net for head in heads if head.verdict not in UNMARKED and not head.at_end]
    if largest["net"] <= max(effects, default=0.0):
        return None
    return LeadingMlp(layer=int(largest["layer"]), net=float(largest["net"]))


def _credited_cue(rows: Frames, pairs: Sequence[PairOfSenses]) -> CreditedCue | None:
    """The words that determine the meaning: the marked cue, else the other words in which the
    sentences of a pair differ. None if neither has a sufficient effect.
    """
    if any(pair.pair_design != ALIGNED for pair in pairs):
        return None
    movers = rows["word_heads"][rows["word_heads"]["verdict"].isin(MOVERS)]
    part = credited_part(rows["head_parts"], movers) if "head_parts" in rows else None
    if part is None:
        return None
    marked = part == "cue_only"
    senses = (pairs[0].sense_a, pairs[0].sense_b)
    return CreditedCue(marked, _examples(rows["sentences"], senses, marked=marked))


def _examples(
    sentences: pd.DataFrame, senses: tuple[str, str], *, marked: bool
) -> tuple[str, str] | None:
    """The cues of the first pair of sentences.

    marked: False for another word in which the two sentences differ
    """
    tested = sentences[sentences["part"].eq("tested")]
    for _, group in tested.groupby("pair", sort=False):
        first = group[group["sense"] == senses[0]].to_dict("records")
        second = group[group["sense"] == senses[1]].to_dict("records")
        if not first or not second:
            continue
        word_a = _differing_word(first[0], second[0], marked=marked)
        word_b = _differing_word(second[0], first[0], marked=marked)
        if word_a and word_b:
            return word_a, word_b
    return None


def _differing_word(row: Row, partner: Row, *, marked: bool) -> str:
    """The cue of a sentence. "" without a cue.

    marked: False for the first word other than the cue that its partner does not have at the same
        position
    """
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
    """The tests of the movers, from rows of the frame `heads`. None without movers."""
    measured = heads.dropna(subset="net")
    rows = measured[measured["verdict"].isin(MOVERS)]
    if rows.empty:
        return None
    next_token_measured = bool(rows["p_next_token"].notna().all())
    return MoverTests(
        p_swap=float(rows["p_swap"].max()),
        p_next_token=float(rows["p_next_token"].max()) if next_token_measured else None,
        not_separating=names_of(rows[rows["p_auroc"] >= LEVEL]),
    )


def _without_continuation(heads: pd.DataFrame, movers: Sequence[HeadFinding]) -> tuple[str, ...]:
    """The movers that do not significantly change which prepared next words are likely.

    heads: rows of the frame `heads`
    """
    tested = heads.dropna(subset="p_continuation")
    moves = (tested["p_continuation"] < LEVEL) & (tested["continuation"] >= SMALLEST)
    by_verdict = tested["verdict"].isin([head.verdict for head in movers])
    return names_of(tested[~moves & by_verdict])


def _opposing(heads: Sequence[HeadFinding]) -> tuple[HeadFinding, ...]:
    against = [head for head in heads if head.verdict == "opposes" and head.net <= -WORTH_NAMING]
    return tuple(sorted(against, key=lambda head: head.net))


def _other_heads(heads: Sequence[HeadFinding]) -> OtherHeads | None:
    non_movers = [head for head in heads if head.verdict not in MOVERS]
    if not non_movers:
        return None
    furthest = max(abs(end) for head in non_movers for end in (head.net_low, head.net_high))
    # `round` before `ceil`, so that 8.000000001 % becomes 8 %.
    bound = math.ceil(round(100 * furthest, 6))
    return OtherHeads(bound=max(bound, 1))


def _sentence_rows(sentences: pd.DataFrame) -> Iterator[Any]:
    """The rows of the frame `sentences` as tuples, with None for missing values."""
    return sentences.astype(object).where(sentences.notna(), None).itertuples(index=False)


def _cautions(
    sentences: pd.DataFrame, left_out: pd.DataFrame, pairs: Sequence[PairOfSenses]
) -> Cautions:
    rows = list(_sentence_rows(sentences))
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
