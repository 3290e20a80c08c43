"""Conversion of public data sets to sentences.

Two kinds of data sets are supported. Some label a word in a text with a sense: Senseval's lexical
samples, UFSAC, and the XML of the unified evaluation framework (Raganato et al. 2017). Others label
two texts as having the same or a different sense of a word: WiC, its JSONL in SuperGLUE, RAW-C.

Pairs have no sense labels, so senses are derived from them. Texts that are connected by "same" are
one group. The senses of a word are groups of which every two are connected by a "different". They
are called 1, 2 and so on. If several choices are possible, the one with the most texts is used. All
other texts are left out, because their sense does not follow from the labels.
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
    "a folder or file of WiC (train.data.txt next to train.gold.txt), pairs as JSONL or CSV with "
    "sentence1 and sentence2, or XML of Senseval, UFSAC or the unified evaluation framework"
)
# Why a text of a data set is left out.
NOT_RELATED = "its sense does not follow from the pairs"
CONTRADICTED = "its pairs contradict each other"
SEVERAL_SENSES = "it is labelled with several senses"
NO_SENSE = "it has no sense label"
NO_LABEL = "its pair has no label"
NOT_ONE_HEAD = "it does not have exactly one head"
# Whether a label means "same".
SAME = {"t": True, "true": True, "1": True, "f": False, "false": False, "0": False}
UNASSIGNABLE = {"U", "P"}  # Senseval's codes for "no sense fits" and "part of a proper name"
OPENED, CLOSED = "\ue000", "\ue001"  # mark the head while white space is being normalised
UFSAC_KEY = re.compile(r"wn\d+_key")

Span = tuple[int, int]


@dataclass(frozen=True)
class Labelled:
    """A word in a text with its sense labels."""

    where: str
    word: str
    text: str
    span: Span
    senses: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """A word in two texts."""

    where: str
    word: str
    texts: tuple[str, str]
    spans: tuple[Span, Span]
    same: bool | None  # whether the word has the same sense; None without a label


def convert(source: str | Path, words: Sequence[str] = ()) -> Corpus:
    """The sentences of a public data set: WiC, SuperGLUE's WiC, RAW-C, Senseval, UFSAC, or the
    unified evaluation framework.

    source: the file, or the folder of WiC's files. A key file with senses must be next to the XML:
        semcor.gold.key.txt for semcor.data.xml, or train.key for train.xml.
    words: the words to convert, by default all

    Raises InputError with the file and the line for anything that cannot be read, and for a file
    without a sentence of these words.

    Example:
        >>> from pathlib import Path
        >>> pairs = [("a river bank", "the bank of a lake", "true")]
        >>> pairs += [("a river bank", "the bank lent us money", "false")]
        >>> rows = ["word,sentence1,sentence2,same", *(",".join(("bank", *row)) for row in pairs)]
        >>> _ = Path("pairs.csv").write_text("\\n".join(rows))
        >>> [(row.sense, row.text) for row in probe.convert("pairs.csv").sentences]
        [('1', 'a river bank'), ('1', 'the bank of a lake'), ('2', 'the bank lent us money')]
    """
    path = Path(source)
    files = _files_of(path)
    selection = set(words)
    labelled: list[Labelled] = []
    left_out: list[LeftOut] = []
    pairs: list[Pair] = []
    for file in files:
        for item in _reader_of(file)(file):
            if isinstance(item, LeftOut):
                left_out.append(item)
            elif selection and item.word not in selection:
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
        about = f" of {', '.join(sorted(selection))}" if selection else ""
        reason = f" ({len(left_out)} left out: {left_out[0].reason})" if left_out else ""
        raise InputError(
            f"Cannot convert {path}: it has no labelled sentence{about}{reason}. Give {FORMS}, "
            "with its labels."
        )
    keys = [key for file in files if (key := _key_file(file)) is not None]
    sha256 = sha256_of_all([Source(file, file.name) for file in (*files, *keys)])
    return Corpus(tuple(sentences), tuple(left_out), last_name(path), sha256)


def write_sentences(corpus: Corpus, out: Path) -> Path:
    """Write word, sense, text, start and end of every sentence as CSV, or as JSONL if the name ends
    in .jsonl.

    Raises InputError for a file that exists or cannot be written.
    """
    from probe.provenance import write_atomically

    if out.exists():
        raise InputError(f"Cannot write {out}: it exists already. Choose another file (--out).")
    columns = ("word", "sense", "text", "start", "end")
    rows = [{name: getattr(row, name) for name in columns} for row in corpus.sentences]
    if out.suffix.lower() == ".jsonl":
        content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    else:
        buffer = io.StringIO(newline="")
        table = csv.DictWriter(buffer, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)
        content = buffer.getvalue()
    return write_atomically(out, content.encode())


def _files_of(path: Path) -> list[Path]:
    """The file itself, or the files of WiC in a folder, those for training first."""
    if not path.is_dir():
        return [path]
    files = sorted(path.glob("*.data.txt"), key=lambda file: (file.name[:5] != "train", file.name))
    if not files:
        raise InputError(
            f"Cannot convert the folder {path}: no file in it ends in .data.txt. Give {FORMS}."
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
            f"Cannot convert {file}: its name does not have a known ending. Give {FORMS}."
        )
    return reader


def _flaw(file: Path, where: str, reason: str) -> InputError:
    return InputError(f"Cannot convert {file}, {where}: {reason}. Correct it and try again.")


# --- pairs ----------------------------------------------------------------------------------------


def _read_wic(file: Path) -> Iterator[Item]:
    """The pairs of a WiC file.

    A line has the word, the part of speech, the two positions of the word and two texts with single
    spaces between words, separated by tabs. The labels T and F are in the same lines of the file
    with "gold" instead of "data" in its name.
    """
    gold = file.with_name(file.name.removesuffix(".data.txt") + ".gold.txt")
    if not gold.is_file():
        raise InputError(
            f"Cannot convert {file}: {gold.name} with the labels is not next to it. Add it, or "
            "convert a part of WiC that has labels."
        )
    both = zip_longest(lines_of(file), lines_of(gold))
    for number, (line, label) in enumerate(both, 1):
        where = f"line {number}"
        if line is None or label is None:
            raise _flaw(file, where, f"it and {gold.name} have different numbers of lines")
        cells = line.split("\t")
        indices = re.fullmatch(r"(\d{1,9})-(\d{1,9})", cells[2]) if len(cells) == 5 else None
        if indices is None:
            raise _flaw(
                file, where, "expected word, part of speech, 1-2, text and text, separated by tabs"
            )
        texts = (cells[3], cells[4])
        spans = tuple(
            _word_span(file, where, text, int(index))
            for text, index in zip(texts, indices.groups(), strict=True)
        )
        yield Pair(where, cells[0], texts, (spans[0], spans[1]), _label(file, where, label))


def _word_span(file: Path, where: str, text: str, index: int) -> Span:
    """The characters of the word with this number, counted from 0."""
    words = text.split(" ")
    if index >= len(words):
        raise _flaw(file, where, f"the word is number {index}, and the text has {len(words)} words")
    start = sum(len(word) + 1 for word in words[:index])
    return start, start + len(words[index])


def _label(file: Path, where: str, cell: object) -> bool | None:
    """Whether a label means "same". None for an empty label."""
    if cell is None or cell == "":
        return None
    label = SAME.get(str(cell).strip().lower())
    if label is None:
        raise _flaw(file, where, f"the label is {cell!r}, expected one of {', '.join(SAME)}")
    return label


def _read_pairs_jsonl(file: Path) -> Iterator[Item]:
    """The pairs of SuperGLUE's WiC, with word, sentence1, sentence2, start1, end1, start2, end2 and
    label.
    """
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
    """The pairs of a CSV file, e.g. RAW-C.

    The columns are those of SuperGLUE's WiC, with `same` as another name of `label`. Without start
    and end, the word is searched in the form of the column `string`.
    """
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
        candidates = spans_of(form, text)
        if all(end.isdecimal() for end in ends):
            candidates = [(int(ends[0]), int(ends[1]))]
            if not text[slice(*candidates[0])].strip():
                between = " to ".join(ends)
                raise _flaw(file, where, f"sentence{number} has no word at {between}")
        if len(candidates) != 1:
            count = len(candidates)
            raise _flaw(
                file, where, f"sentence{number} has {form!r} {count} times, expected it once"
            )
        spans.append(candidates[0])
    label = row.get("label", row.get("same"))
    return Pair(where, word, texts, (spans[0], spans[1]), _label(file, where, label))


Node = tuple[str, Span]  # a text and the characters of the word in it


def _senses_of_pairs(pairs: Sequence[Pair]) -> tuple[list[Labelled], list[LeftOut]]:
    """The texts of the pairs with the senses that follow from the labels, and the texts whose sense
    does not follow.
    """
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
        # A group that differs from itself has contradicting labels.
        contradicted = {a for a, b in different if a == b}
        sizes = Counter(group for group in group_of.values() if group not in contradicted)
        senses = _distinct_groups(sizes, different)
        for (text, span), group in group_of.items():
            if group in senses:
                sense = str(1 + senses.index(group))
                labelled.append(Labelled(where[text, span], word, text, span, (sense,)))
            else:
                reason = CONTRADICTED if group in contradicted else NOT_RELATED
                left_out.append(LeftOut(text, reason))
    return labelled, left_out


Different = set[tuple[int, int]]


def _groups(pairs: Sequence[Pair]) -> tuple[dict[Node, str], dict[Node, int], Different]:
    """The first location of each text of a word, its group, and the pairs of groups that are
    labelled as different.

    Texts that are connected by "same" are one group.
    """
    where: dict[Node, str] = {}
    group_of: dict[Node, int] = {}
    for pair in pairs:
        for node in zip(pair.texts, pair.spans, strict=True):
            where.setdefault(node, pair.where)
            group_of.setdefault(node, len(group_of))
    for pair in pairs:
        if pair.same:
            # Merge the second text's group into the first's.
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


def _distinct_groups(sizes: Mapping[int, int], different: Different) -> list[int]:
    """Groups of which every two are labelled as different, in order.

    sizes: the number of texts of each group

    A greedy search starts from each group and adds larger groups first. The result with the most
    texts is used.
    """
    by_size = sorted(sizes, key=lambda group: -sizes[group])
    best: list[int] = []
    for first in by_size:
        together = [first]
        for group in by_size:
            if all((group, member) in different for member in together):
                together.append(group)
        if sum(sizes[group] for group in together) > sum(sizes[group] for group in best):
            best = together
    return sorted(best)


# --- XML ------------------------------------------------------------------------------------------


def _read_xml(file: Path) -> Iterator[Item]:
    """The labelled words of an XML file: of Senseval's lexical samples (`lexelt`, `instance`,
    `answer`, `head`), UFSAC (`sentence`, `word`) or the unified evaluation framework (`sentence`,
    `wf`, `instance`).

    Elements are read one by one, so that a large corpus is never in memory.
    """
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
            f"Cannot convert {file}: it cannot be opened ({error.strerror or error}). Give {FORMS}."
        ) from error


def _lemma(item: str) -> str:
    """The word of a lexical item, e.g. bank for bank.n and bank-n."""
    return re.sub(r"[.-][a-z]$", "", item)


def _of_instance(instance: ElementTree.Element, word: str, keys: Mapping[str, list[str]]) -> Item:
    """An instance of a lexical sample, with single spaces in its text."""
    where = instance.get("id", "")
    context = instance.find("context")
    heads = [] if context is None else list(context.iter("head"))
    if context is None or len(heads) != 1:
        return LeftOut(where, NOT_ONE_HEAD)
    [head] = heads
    # Marks around the head keep its position while white space is normalised.
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
    """The labelled words of a sentence whose words are elements, joined with spaces in the text."""
    tokens = [token for token in sentence if token.tag in ("word", "wf", "instance")]
    forms = [(token.get("surface_form") or "".join(token.itertext())).strip() for token in tokens]
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


def _ufsac_senses(token: ElementTree.Element) -> list[str]:
    """The senses of a word in UFSAC, in its latest version of WordNet."""
    names = sorted(name for name in token.attrib if UFSAC_KEY.fullmatch(name))
    return [sense for sense in token.get(names[-1], "").split(";") if sense] if names else []


def _key_file(file: Path) -> Path | None:
    """The key file of an XML file, which has the senses. None without a key file."""
    stem = file.name.removesuffix(".xml")
    if stem == file.name:
        return None
    names = [f"{stem.removesuffix('.data')}.gold.key.txt", f"{stem}.key"]
    return next((path for name in names if (path := file.with_name(name)).is_file()), None)


def _keys(file: Path) -> dict[str, list[str]]:
    """The senses of each instance. A line may begin with the lexical item, as in Senseval."""
    keys = {}
    for line in lines_of(file):
        cells = line.split()
        # Senseval: lexical item, instance, senses. The instance begins with the word.
        if len(cells) > 2 and cells[1].startswith(_lemma(cells[0])):
            del cells[0]
        if cells:
            keys[cells[0]] = cells[1:]
    return keys


# --- sentences ------------------------------------------------------------------------------------


def _sentences(labelled: Iterable[Labelled]) -> tuple[list[Sentence], list[LeftOut]]:
    """The sentences with exactly one sense, without repetitions, and the rest with the reasons."""
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
