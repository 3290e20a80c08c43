"""Public data sets as sentences: the one converter.

Two kinds of data sets fit. Some name a sense for a word in a text: Senseval's lexical samples,
UFSAC, and the XML of the unified evaluation framework (Raganato et al. 2017). Others say of two
texts whether the word has the same sense in both: WiC, its JSONL in SuperGLUE, RAW-C.

Pairs name no sense, so senses are put together from them. Texts that "same" connects are one group.
The senses of a word are groups of which every two are told apart by a "different"; they are called
1, 2, ... Where several choices are possible, the one with the most texts is taken. All other texts
are left out: nothing says whether they have one of these senses or another.
"""

import csv
import io
import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from xml.etree import ElementTree

from probe.errors import InputError
from probe.text.files import Source, last_name, lines_of, sha256_of_all
from probe.text.sentences import REPEATS, Corpus, LeftOut, Sentence
from probe.text.spans import spans_of

FORMS = (
    "a folder or file of WiC (train.data.txt beside train.gold.txt), pairs as JSONL or CSV with "
    "sentence1 and sentence2, or XML of Senseval, UFSAC or the unified evaluation framework"
)
# Why a text of a data set is left out.
NOT_RELATED = "no pair says whether it has one of the other senses"
CONTRADICTED = "its pairs contradict each other"
SEVERAL_SENSES = "it is labelled with several senses"
NO_SENSE = "it is labelled with no sense"
NO_LABEL = "its pair has no label"
NOT_ONE_HEAD = "it does not have exactly one head"
# What a label says of a pair.
SAME = {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}
UNASSIGNABLE = {"U", "P"}  # Senseval's codes: no sense fits; it is part of a proper name
OPENED, CLOSED = "\ue000", "\ue001"  # mark the head while white space is being normalised
UFSAC_KEY = re.compile(r"wn\d+_key")

Span = tuple[int, int]


@dataclass(frozen=True)
class Labelled:
    """A word in a text, with the senses that it is labelled with."""

    where: str
    word: str
    text: str
    span: Span
    senses: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A word in two texts; `same` is None where the pair has no label."""

    where: str
    word: str
    texts: tuple[str, str]
    spans: tuple[Span, Span]
    same: bool | None


def convert(source: str | Path, words: Sequence[str] = ()) -> Corpus:
    """The sentences of a public data set: WiC, SuperGLUE's WiC, RAW-C, Senseval, UFSAC, or the
    unified evaluation framework.

    source: the file, or the folder of WiC's files. Where senses are in a key file, it is next to
        the XML: semcor.gold.key.txt for semcor.data.xml, or train.key for train.xml.
    words: only these, by default all.
    Raises InputError, naming file and line, for anything that cannot be read as it stands, and
    where no sentence of these words is in the file.

    Example:
        >>> from pathlib import Path
        >>> pairs = [("a river bank", "the bank of a lake", "true")]
        >>> pairs += [("a river bank", "the bank lent us money", "false")]
        >>> rows = ["word,sentence1,sentence2,same", *(",".join(("bank", *row)) for row in pairs)]
        >>> _ = Path("pairs.csv").write_text("\\n".join(rows))
        >>> [(row.sense, row.text) for row in probe.convert("pairs.csv").sentences]
        [('1', 'a river bank'), ('1', 'the bank of a lake'), ('2', 'the bank lent us money')]
    """
    place = Path(source)
    files = _files_of(place)
    wanted = set(words)
    labelled: list[Labelled] = []
    left_out: list[LeftOut] = []
    pairs: list[Pair] = []
    for file in files:
        for item in _reader_of(file)(file):
            if isinstance(item, LeftOut):
                left_out.append(item)
            elif wanted and item.word not in wanted:
                continue
            elif isinstance(item, Pair):
                pairs.append(item)
            else:
                labelled.append(item)
    if pairs:
        of_pairs, unrelated = _senses_of_pairs(pairs)
        labelled += of_pairs
        left_out += unrelated
    sentences, unused = _sentences(labelled)
    left_out += unused
    if not sentences:
        about = f" of {', '.join(sorted(wanted))}" if wanted else ""
        reason = f" ({len(left_out)} left out: {left_out[0].reason})" if left_out else ""
        raise InputError(
            f"Converting {place}: no labelled sentence{about} is in it{reason}; give {FORMS}, with "
            "its labels."
        )
    keys = [key for file in files if (key := _key_file(file)) is not None]
    sha256 = sha256_of_all([Source(file, file.name) for file in (*files, *keys)])
    return Corpus(tuple(sentences), tuple(left_out), last_name(place), sha256)


def write_sentences(corpus: Corpus, out: Path) -> Path:
    """Write word, sense, text, start and end of every sentence as CSV, or as JSONL where the name
    ends so.

    Raises InputError for a file that is there already, and where none can be written.
    """
    from probe.provenance import write_atomically

    if out.exists():
        raise InputError(f"Cannot write {out}: it is there already. Choose another file (--out).")
    columns = ("word", "sense", "text", "start", "end")
    rows = [{name: getattr(row, name) for name in columns} for row in corpus.sentences]
    if out.suffix.lower() == ".jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        written = io.StringIO(newline="")
        table = csv.DictWriter(written, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        content = written.getvalue()
    return write_atomically(out, content.encode())


def _files_of(place: Path) -> list[Path]:
    """The file itself, or the files of WiC in a folder."""
    if not place.is_dir():
        return [place]
    files = sorted(place.glob("*.data.txt"), key=lambda file: (file.name[:5] != "train", file.name))
    if not files:
        raise InputError(
            f"Converting the folder {place}: no file in it ends in .data.txt; give {FORMS}."
        )
    return files


Item = Labelled | Pair | LeftOut
Reader = Callable[[Path], Iterator[Item]]


def _reader_of(file: Path) -> Reader:
    if file.name.endswith(".data.txt"):
        return _read_wic
    readers: dict[str, Reader] = {
        ".jsonl": _read_pairs_jsonl,
        ".csv": _read_pairs_table,
        ".xml": _read_xml,
    }
    reader = readers.get(file.suffix.lower())
    if reader is None:
        raise InputError(
            f"Converting {file}: its name has none of the known endings; give {FORMS}."
        )
    return reader


def _flaw(file: Path, where: str, reason: str) -> InputError:
    return InputError(f"Converting {file}, {where}: {reason}; correct it and convert it again.")


# --- pairs ----------------------------------------------------------------------------------------


def _read_wic(file: Path) -> Iterator[Item]:
    """WiC: word, part of speech, the two places of the word, and two texts cut into words, divided
    by tabs; the labels T and F are line by line in the file with gold for data in its name."""
    gold = file.with_name(file.name.removesuffix(".data.txt") + ".gold.txt")
    if not gold.is_file():
        raise InputError(
            f"Converting {file}: {gold.name} with the labels is not next to it; put it there, or "
            "convert a part of WiC that has labels."
        )
    both = zip_longest(lines_of(file), lines_of(gold))
    for number, (line, label) in enumerate(both, 1):
        where = f"line {number}"
        if line is None or label is None:
            raise _flaw(file, where, f"it and {gold.name} have not as many lines")
        cells = line.split("\t")
        places = re.fullmatch(r"(\d{1,9})-(\d{1,9})", cells[2]) if len(cells) == 5 else None
        if places is None:
            raise _flaw(
                file, where, "expected word, part of speech, 1-2, text and text, divided by tabs"
            )
        texts = (cells[3], cells[4])
        spans = tuple(
            _word_span(file, where, text, int(place))
            for text, place in zip(texts, places.groups(), strict=True)
        )
        yield Pair(where, cells[0], texts, (spans[0], spans[1]), _label(file, where, label))


def _word_span(file: Path, where: str, text: str, place: int) -> Span:
    words = text.split(" ")
    if place >= len(words):
        raise _flaw(file, where, f"the word is number {place}, and the text has {len(words)} words")
    start = sum(len(word) + 1 for word in words[:place])
    return start, start + len(words[place])


def _label(file: Path, where: str, given: object) -> bool | None:
    if given is None or given == "":
        return None
    label = SAME.get(str(given).strip().lower())
    if label is None:
        raise _flaw(file, where, f"the label is {given!r}, expected one of {', '.join(SAME)}")
    return label


def _read_pairs_jsonl(file: Path) -> Iterator[Item]:
    """SuperGLUE's WiC: word, sentence1, sentence2, start1, end1, start2, end2 and label."""
    for number, line in enumerate(lines_of(file), 1):
        if not line.strip():
            continue
        where = f"line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            row = None
        if not isinstance(row, dict):
            raise _flaw(file, where, "it is not a JSON object")
        yield _pair(file, where, row)


def _read_pairs_table(file: Path) -> Iterator[Item]:
    """The same as a table, such as RAW-C's: `same` for `label`, and `string` for the word's form,
    which is searched for where no places are given."""
    table = csv.DictReader(f"{line}\n" for line in lines_of(file))
    for row in table:
        yield _pair(file, f"line {table.line_num}", row)


def _pair(file: Path, where: str, row: dict[str, object]) -> Pair:
    missing = [name for name in ("word", "sentence1", "sentence2") if not row.get(name)]
    if missing:
        raise _flaw(file, where, f"{' and '.join(missing)} is missing")
    word = str(row["word"])
    form = str(row.get("string") or word)
    texts = (str(row["sentence1"]), str(row["sentence2"]))
    spans = []
    for number, text in enumerate(texts, 1):
        ends = [str(row.get(f"{end}{number}", "")) for end in ("start", "end")]
        found = spans_of(form, text)
        if all(end.isdecimal() for end in ends):
            found = [(int(ends[0]), int(ends[1]))]
            if not text[slice(*found[0])].strip():
                between = " to ".join(ends)
                raise _flaw(file, where, f"sentence{number} has no word at {between}")
        if len(found) != 1:
            raise _flaw(
                file, where, f"sentence{number} has {form!r} {len(found)} times, expected it once"
            )
        spans.append(found[0])
    label = row.get("label", row.get("same"))
    return Pair(where, word, texts, (spans[0], spans[1]), _label(file, where, label))


Node = tuple[str, Span]  # a text and the place of the word in it


def _senses_of_pairs(pairs: Sequence[Pair]) -> tuple[list[Labelled], list[LeftOut]]:
    """The texts of the pairs with the senses that follow from them, and those of which none
    follows."""
    by_word: defaultdict[str, list[Pair]] = defaultdict(list)
    left_out = []
    for pair in pairs:
        if pair.same is None:
            left_out += [LeftOut(text, NO_LABEL) for text in pair.texts]
        else:
            by_word[pair.word].append(pair)
    labelled = []
    for word, of_word in by_word.items():
        where, group_of, different = _groups(of_word)
        contradicted = {a for a, b in different if a == b}
        sizes = Counter(group for group in group_of.values() if group not in contradicted)
        chosen = _told_apart(sizes, different)
        for (text, span), group in group_of.items():
            if group in chosen:
                sense = str(1 + chosen.index(group))
                labelled.append(Labelled(where[text, span], word, text, span, (sense,)))
            else:
                reason = CONTRADICTED if group in contradicted else NOT_RELATED
                left_out.append(LeftOut(text, reason))
    return labelled, left_out


Different = set[tuple[int, int]]


def _groups(pairs: Sequence[Pair]) -> tuple[dict[Node, str], dict[Node, int], Different]:
    """Where each text of a word was first, the group that "same" puts it into, and which groups a
    "different" tells apart."""
    where: dict[Node, str] = {}
    group_of: dict[Node, int] = {}
    for pair in pairs:
        for node in zip(pair.texts, pair.spans, strict=True):
            where.setdefault(node, pair.where)
            group_of.setdefault(node, len(group_of))
    for pair in pairs:
        if pair.same:
            first, second = (group_of[node] for node in zip(pair.texts, pair.spans, strict=True))
            for node, group in group_of.items():
                if group == second:
                    group_of[node] = first
    different = set()
    for pair in pairs:
        if not pair.same:
            a, b = (group_of[node] for node in zip(pair.texts, pair.spans, strict=True))
            different |= {(a, b), (b, a)}
    return where, group_of, different


def _told_apart(sizes: Mapping[int, int], different: Different) -> list[int]:
    """Groups of which every two are told apart, in their order; starting from each group, larger
    ones are added first, and the choice with the most texts is taken."""
    by_size = sorted(sizes, key=lambda group: -sizes[group])
    best: list[int] = []
    for first in by_size:
        together = [first]
        for group in by_size:
            if all((group, other) in different for other in together):
                together.append(group)
        if sum(sizes[group] for group in together) > sum(sizes[group] for group in best):
            best = together
    return sorted(best)


# --- XML ------------------------------------------------------------------------------------------


def _read_xml(file: Path) -> Iterator[Item]:
    """Senseval's lexical samples (`lexelt`, `instance`, `answer`, `head`), UFSAC (`sentence`,
    `word`) and the unified evaluation framework (`sentence`, `wf`, `instance`), element by element:
    a corpus of a million words is not held."""
    key_file = _key_file(file)
    keys = _keys(key_file) if key_file is not None else {}
    lexelt = ""
    try:
        for event, element in ElementTree.iterparse(file, events=("start", "end")):
            if event == "start":
                if element.tag == "lexelt":
                    lexelt = _lemma(element.get("item", ""))
            elif element.tag == "sentence" and not lexelt:
                yield from _of_sentence(element, keys)
                element.clear()
            elif element.tag == "instance" and lexelt:
                yield _of_instance(element, lexelt, keys)
                element.clear()
    except ElementTree.ParseError as error:
        line = error.position[0]
        raise _flaw(file, f"line {line}", f"it is not well-formed XML ({error})") from error
    except OSError as error:
        raise InputError(
            f"Converting {file}: it cannot be opened ({error.strerror or error}); give {FORMS}."
        ) from error


def _lemma(item: str) -> str:
    """The word of a lexical item: bank of bank.n and of bank-n."""
    return re.sub(r"[.-][a-z]$", "", item)


def _of_instance(instance: ElementTree.Element, word: str, keys: Mapping[str, list[str]]) -> Item:
    """An instance of a lexical sample, its text with single spaces."""
    where = instance.get("id", "")
    context = instance.find("context")
    heads = [] if context is None else list(context.iter("head"))
    if context is None or len(heads) != 1:
        return LeftOut(where, NOT_ONE_HEAD)
    [head] = heads
    form = "".join(head.itertext()).strip()
    tail = head.tail
    head.clear()
    head.text = f"{OPENED}{form}{CLOSED}"
    head.tail = tail
    marked = " ".join("".join(context.itertext()).split())
    start = marked.index(OPENED)
    end = marked.index(CLOSED) - 1
    text = marked.replace(OPENED, "").replace(CLOSED, "")
    senses = [answer.get("senseid", "") for answer in instance.iter("answer")]
    senses = [sense for sense in senses or keys.get(where, []) if sense not in UNASSIGNABLE]
    return Labelled(where, word, text, (start, end), tuple(senses))


def _of_sentence(sentence: ElementTree.Element, keys: Mapping[str, list[str]]) -> Iterator[Item]:
    """The labelled words of a sentence that is cut into words, which are put together with spaces
    between them."""
    tokens = [token for token in sentence if token.tag in ("word", "wf", "instance")]
    forms = [_form(token) for token in tokens]
    text = " ".join(forms)
    start = 0
    for token, form in zip(tokens, forms, strict=True):
        span = (start, start + len(form))
        start = span[1] + 1
        where = token.get("id", "")
        senses = keys.get(where, []) if token.tag == "instance" else _ufsac_senses(token)
        if token.tag == "instance" or senses:
            word = token.get("lemma") or form.lower()
            yield Labelled(where or text, word, text, span, tuple(senses))


def _form(token: ElementTree.Element) -> str:
    return (token.get("surface_form") or "".join(token.itertext())).strip()


def _ufsac_senses(token: ElementTree.Element) -> list[str]:
    """The senses of a word in UFSAC, of the latest WordNet that it names."""
    names = sorted(name for name in token.attrib if UFSAC_KEY.fullmatch(name))
    return [sense for sense in token.get(names[-1], "").split(";") if sense] if names else []


def _key_file(file: Path) -> Path | None:
    """The file of senses that belongs to an XML file; None where there is none."""
    stem = file.name.removesuffix(".xml")
    if stem == file.name:
        return None
    names = [f"{stem.removesuffix('.data')}.gold.key.txt", f"{stem}.key"]
    return next((path for name in names if (path := file.with_name(name)).is_file()), None)


def _keys(file: Path) -> dict[str, list[str]]:
    """The senses of each instance; a line may begin with the lexical item, as Senseval's do."""
    keys = {}
    for line in lines_of(file):
        cells = line.split()
        if len(cells) > 2 and cells[1].startswith(_lemma(cells[0])):
            del cells[0]
        if cells:
            keys[cells[0]] = cells[1:]
    return keys


# --- sentences ------------------------------------------------------------------------------------


def _sentences(labelled: Iterable[Labelled]) -> tuple[list[Sentence], list[LeftOut]]:
    """Those with exactly one sense, each once."""
    first: dict[tuple[object, ...], str] = {}
    sentences = []
    left_out = []
    for item in labelled:
        senses = tuple(dict.fromkeys(item.senses))
        identity = (item.word, senses, item.text, item.span)
        if len(senses) != 1:
            left_out.append(LeftOut(item.where, SEVERAL_SENSES if senses else NO_SENSE))
        elif identity in first:
            left_out.append(LeftOut(item.where, f"{REPEATS} {first[identity]}"))
        else:
            first[identity] = item.where
            sentences.append(
                Sentence(item.word, senses[0], item.text, *item.span, where=item.where)
            )
    return sentences, left_out
