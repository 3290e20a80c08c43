"""Hostile input, generated: every entry point for files and texts, with the allowed outcomes.

Each target draws a case and tries it. The outcome is "taken", or "refused" with the message of a
ProbeError. Any other outcome, such as a traceback, a lost row or a text that becomes markup, is a
failure. `tests/package/test_fuzz.py` tries a few hundred cases of each. `python tests/fuzzing.py
--cases 100000 --out reports` tries many, and records their number.
"""

import argparse
import csv
import io
import json
import math
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any

import pyarrow
import pyarrow.parquet
from checkpoints import make_checkpoint, make_tokenizer
from handmade import NOUNS, make_sentences, resolver_model
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from kept import write_totals

from probe.errors import ProbeError
from probe.experiments.store import read_record, write_record
from probe.model.config import read_config
from probe.model.gguf import open_gguf, read_gguf_config, read_tensors
from probe.model.load import check_tokenizer, locate, read_checkpoint, read_gguf_tokenizer
from probe.model.model import Model
from probe.model.tokens import positions_of_span, tokenize
from probe.pages import html
from probe.studies.survey_word import SURVEY, measure_word
from probe.text.files import FileRow, Source, stream
from probe.text.sentences import check_row, read_sentences

TAKEN, REFUSED = "taken", "refused"
GOOD = {"word": "bank", "sense": "river", "text": "The river bank", "start": 10, "end": 14}
BLANK = (
    "",
    " ",
    "\x00",
    "\ud800",
    "\udfff tail",
    "\u202eevil\u202c",
    "\u2028",
    "\ufeff",
    "\r",
    "\r\n",
    "\t",
)
MARKUP = (
    '"',
    "'",
    "\\",
    "<script>x</script>",
    "</script>",
    "{{ 7 * 7 }}",
    "<!--",
    "]]>",
    "&lt;",
    "javascript:x",
    "=1+1",
)
WORDS = (
    "é",
    "e\u0301",
    "🦔",
    "البنك",
    "a" * 3000,
    "bank",
    "NaN",
    "null",
    "-1",
    "1e400",
    "9" * 40,
    "%s%n",
    "../../x",
)
AWKWARD = (*BLANK, *MARKUP, *WORDS)
texts = st.one_of(
    st.sampled_from(AWKWARD), st.text(max_size=30), st.text(st.characters(codec=None), max_size=8)
)
numbers = st.one_of(
    st.integers(-3, 40),
    st.sampled_from((10**18, -(10**18), 10**400, 2**63, 1.5, 1e308, float("nan"))),
)
values = st.one_of(texts, numbers, st.none(), st.booleans(), st.lists(st.integers(), max_size=2))
fields = st.sampled_from(
    (*GOOD, "frame", "pair", "cue_start", "cue_end", "distance", "split", "other")
)
changes = st.one_of(
    st.just({}), st.just({"frame": "\u202eevil\r\n"}), st.dictionaries(fields, values, max_size=3)
)
rows = changes.map(lambda changed: GOOD | changed)
noise = st.binary(max_size=60)


@dataclass(frozen=True)
class Target:
    """An entry point: how its cases are drawn and tried. `cost` is about the number of other cases
    that take as long."""

    draw: st.SearchStrategy[Any]
    attempt: Callable[[Path, Any], str]
    cost: int = 1


def sentence_of(error: ProbeError) -> str:
    """One message without a traceback, for any content of the file."""
    message = str(error)
    assert message.endswith((".", ")")) and "Traceback" not in message, message
    assert error.exit_code == 2
    return REFUSED


def outcome(ask: Callable[[], object]) -> str:
    try:
        ask()
    except ProbeError as error:
        return sentence_of(error)
    return TAKEN


# --- files of sentences ---------------------------------------------------------------------------


def _json_lines(records: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode("utf-8", "replace") + b"\n" for row in records)


def _delimited(records: list[dict[str, Any]], delimiter: str, newline: str) -> bytes:
    buffer = io.StringIO()
    form = {"delimiter": delimiter, "lineterminator": newline, "extrasaction": "ignore"}
    writer = csv.DictWriter(buffer, [*GOOD, "frame", "cue_start"], **form)
    writer.writeheader()
    writer.writerows(records)
    return buffer.getvalue().encode("utf-8", "surrogatepass")


def _parquet(records: list[dict[str, Any]]) -> bytes:
    names = list(GOOD)
    columns = {
        name: [str(row.get(name))[:50].encode("utf-8", "replace").decode() for row in records]
        for name in names
    }
    buffer = io.BytesIO()
    pyarrow.parquet.write_table(pyarrow.table(columns), buffer)
    return buffer.getvalue()


@st.composite
def damaged(draw: st.DrawFn, whole: st.SearchStrategy[bytes]) -> bytes:
    """Bytes unchanged, cut, partly changed, with a mark at the beginning, or arbitrary."""
    how = draw(st.sampled_from(("whole", "whole", "cut", "changed", "marked", "noise", "joined")))
    if how == "noise":
        return draw(noise)
    content = draw(whole)
    at = draw(st.integers(0, max(len(content) - 1, 0)))
    if how == "cut":
        return content[:at]
    if how == "changed":
        return content[:at] + draw(st.binary(min_size=1, max_size=3)) + content[at + 1 :]
    if how == "marked":
        return (
            draw(st.sampled_from((b"\xef\xbb\xbf", b"\xff\xfe", b"\x00", b"\n", b"PAR1"))) + content
        )
    return content + draw(noise) if how == "joined" else content


def _file(name: str, whole: st.SearchStrategy[bytes]) -> Target:
    return Target(
        damaged(whole), lambda folder, content: read_both_ways(_write(folder / name, content))
    )


def _write(file: Path, content: bytes) -> Path:
    file.write_bytes(content)
    return file


def read_both_ways(file: Path) -> str:
    """The rows equal the rows of a plain reader of the whole file, with the same values in the
    same order."""
    try:
        corpus = read_sentences(file)
        rows = list(stream(Source(file, file.name)))
    except ProbeError as error:
        return sentence_of(error)
    plain = read_plainly(file)
    assert len(rows) == len(plain), "a row was lost or doubled"
    for row, values in zip(rows, plain, strict=True):
        assert repr(check_row(row)) == repr(check_row(FileRow("", values)))
    assert len(corpus.sentences) + len(corpus.left_out) == len(plain), "a row was lost"
    sentences = iter(corpus.sentences)
    left_out = {item.where for item in corpus.left_out}
    assert [next(sentences).where for row in rows if row.where not in left_out] == [
        s.where for s in corpus.sentences
    ]
    return TAKEN


def read_plainly(file: Path) -> list[dict[str, Any]]:
    """The rows of a valid file, by whole-file readers that share nothing with the streaming
    reader."""
    if file.is_dir():
        senses = json.loads((file / "classes_map.txt").read_text("utf-8-sig"))
        data, gold = (_plain_lines(file / f"train.{kind}.txt") for kind in ("data", "gold"))
        return [
            _plain_folder_row(line, senses[label]) for line, label in zip(data, gold, strict=True)
        ]
    if file.suffix == ".parquet":
        return pyarrow.parquet.read_table(file).to_pylist()
    text = file.read_bytes().decode("utf-8-sig")
    if file.suffix == ".jsonl":
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    delimiter = "," if file.suffix == ".csv" else "\t"
    header, *rows = [
        cells for cells in csv.reader(io.StringIO(text, newline=""), delimiter=delimiter) if cells
    ]
    return [dict(zip(header, cells, strict=True)) for cells in rows]


def _plain_lines(file: Path) -> list[str]:
    return (
        file.read_bytes()
        .decode("utf-8-sig")
        .removesuffix("\n")
        .replace("\r\n", "\n")
        .removesuffix("\r")
        .split("\n")
    )


def _plain_folder_row(line: str, sense: str) -> dict[str, Any]:
    index, text = line.split("\t", 1)
    words = text.split(" ")
    start = len(" ".join(["", *words[: int(index)], ""])) - 1 if int(index) else 0
    end = start + len(words[int(index)])
    return {
        "word": "bank",
        "sense": sense,
        "split": "train",
        "text": text,
        "start": start,
        "end": end,
    }


@st.composite
def word_folders(draw: st.DrawFn) -> dict[str, bytes]:
    lines = draw(st.lists(st.tuples(st.integers(-1, 5), texts), min_size=1, max_size=4))
    data = "\n".join(f"{at}\tthe {text} bank" for at, text in lines).encode(
        "utf-8", "surrogatepass"
    )
    gold = "\n".join(draw(st.sampled_from("0128")) for _ in lines).encode()
    files = {
        "classes_map.txt": b'{"0": "river", "1": "money"}',
        "train.data.txt": data,
        "train.gold.txt": gold,
    }
    victim = draw(st.sampled_from((*files, "none")))
    if victim in files:
        files[victim] = draw(damaged(st.just(files[victim])))
    return files


def read_folder(folder: Path, files: dict[str, bytes]) -> str:
    word_folder = folder / "bank"
    word_folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (word_folder / name).write_bytes(content)
    return read_both_ways(word_folder)


# --- texts, spans, tokens -------------------------------------------------------------------------


@cache
def small_model() -> Any:
    """Tokenizer and sizes of a model, without the other parts, which tokens do not need."""
    tokenizer = make_tokenizer()
    config = SimpleNamespace(
        prepend_bos=True,
        n_ctx=48,
        d_vocab=len(tokenizer),
        adds_special_tokens=False,
        split_special_tokens=True,
        architecture="gpt2",
    )
    fields = dict.fromkeys(("bridge", "weights", "origin", "device", "dtype"))
    return Model(name="small", tokenizer=tokenizer, config=config, **fields)


@st.composite
def spans(draw: st.DrawFn) -> tuple[str, int, int]:
    text = "".join(
        draw(st.lists(st.one_of(texts, st.sampled_from(("the ", " bank", "\n"))), max_size=5))
    )
    start = draw(st.integers(-1, max(len(text), 1)))
    return text, start, draw(st.integers(start - 1, len(text) + 1))


def cut_and_place(_: Path, case: tuple[str, int, int]) -> str:
    text, start, end = case
    try:
        tokens = tokenize(small_model(), text)
        positions = positions_of_span(tokens, start, end)
    except ProbeError as error:
        return sentence_of(error)
    assert len(tokens.ids) == len(tokens.spans) <= 48
    low, high = tokens.spans[positions[0]][0], tokens.spans[positions[-1]][1]
    inside = text[start:end].strip()
    assert (
        inside
        and low <= start + len(text[start:end]) - len(text[start:end].lstrip())
        and high >= start + 1
    )
    return TAKEN


# --- model folders --------------------------------------------------------------------------------


@cache
def checkpoint() -> tuple[dict[str, Any], bytes]:
    with TemporaryDirectory() as directory:
        folder = make_checkpoint(Path(directory) / "small")
        return json.loads((folder / "config.json").read_text()), (
            folder / "model.safetensors"
        ).read_bytes()


KEYS = (
    *(
        "n_layer",
        "n_head",
        "n_embd",
        "n_positions",
        "vocab_size",
        "n_inner",
        "layer_norm_epsilon",
        "architectures",
    ),
    *(
        "model_type",
        "auto_map",
        "quantization_config",
        "tie_word_embeddings",
        "activation_function",
        "torch_dtype",
    ),
)
OTHERS = (True, "12", None, [], {}, ["GPT2LMHeadModel"] * 2)
ABSURD = st.sampled_from((0, -1, 10**9, 10**18, 10**400, 1e300, float("nan"), *OTHERS))
configs = st.dictionaries(st.sampled_from(KEYS), st.one_of(ABSURD, values), max_size=3)


def read_a_config(folder: Path, changed: dict[str, Any]) -> str:
    """A config is read, with plausible sizes, or refused; headers are checked before memory is
    allocated."""
    raw, tensors = checkpoint()
    (folder / "config.json").write_bytes(json.dumps(raw | changed).encode("utf-8", "replace"))
    if not (folder / "model.safetensors").exists():
        (folder / "model.safetensors").write_bytes(tensors)
    return outcome(lambda: read_checkpoint(folder, read_config(folder, prepend_bos=True)))


def read_any_config(folder: Path, content: bytes) -> str:
    (folder / "config.json").write_bytes(content)
    return outcome(lambda: read_config(folder, prepend_bos=True))


@st.composite
def headers(draw: st.DrawFn) -> bytes:
    """A safetensors file with a changed header, length, or data."""
    _, whole = checkpoint()
    size = struct.unpack("<Q", whole[:8])[0]
    header = json.loads(whole[8 : 8 + size])
    how = draw(st.sampled_from(("field", "length", "bytes", "cut", "noise", "whole")))
    if how == "noise":
        return draw(noise)
    if how == "cut":
        return whole[: draw(st.integers(0, len(whole) - 1))]
    if how == "length":
        return struct.pack("<Q", draw(st.integers(0, 2**64 - 1))) + whole[8:]
    if how == "bytes":
        at = draw(st.integers(0, 8 + size - 1))
        return whole[:at] + draw(st.binary(min_size=1, max_size=2)) + whole[at + 1 :]
    if how == "field":
        name = draw(st.sampled_from(sorted(set(header) - {"__metadata__"})))
        key = draw(st.sampled_from(("dtype", "shape", "data_offsets")))
        kinds, shapes = (
            st.sampled_from(("F32", "I64", "X", "F8_E4M3")),
            st.lists(st.integers(-1, 2**62), max_size=3),
        )
        header[name][key] = draw(st.one_of(kinds, shapes, values))
        raw = json.dumps(header).encode("utf-8", "replace")
        return struct.pack("<Q", len(raw)) + raw + whole[8 + size :]
    return whole


def read_a_header(folder: Path, content: bytes) -> str:
    raw, _ = checkpoint()
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "model.safetensors").write_bytes(content)
    return outcome(
        lambda: (
            locate(folder, "gpt2"),
            read_checkpoint(folder, read_config(folder, prepend_bos=True)),
        )
    )


# --- GGUF files -----------------------------------------------------------------------------------

GGUF_TYPES = {bool: (7, "<?"), int: (4, "<I"), float: (6, "<f")}
GGUF_WORDS = ("<s>", "</s>", "<unk>", "T", "h", "e", "m", "o", "l", "Ġ", "Th", "The")
GGUF_GOOD: dict[str, Any] = {
    "general.architecture": "llama",
    **{
        f"llama.{name}": 8 for name in ("embedding_length", "context_length", "feed_forward_length")
    },
    **{f"llama.{name}": 2 for name in ("attention.head_count", "attention.head_count_kv")},
    "llama.block_count": 1,
    "llama.rope.freq_base": 10000.0,
    "llama.rope.dimension_count": 4,
    "llama.attention.layer_norm_rms_epsilon": 1e-5,
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.tokens": list(GGUF_WORDS),
    "tokenizer.ggml.token_type": [3, 3, 3, *[1] * 9],
    "tokenizer.ggml.merges": ["T h", "Th e"],
    "tokenizer.ggml.bos_token_id": 0,
}
GGUF_LAYER = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down")
GGUF_TENSORS: dict[str, tuple[Any, ...]] = {
    "token_embd.weight": (8, 12),
    **{f"blk.0.{name}.weight": (8, 8) for name in GGUF_LAYER},
    **{
        name: (8,)
        for name in ("blk.0.attn_norm.weight", "blk.0.ffn_norm.weight", "output_norm.weight")
    },
}
GGUF_KEYS = (
    *GGUF_GOOD,
    *(
        "general.alignment",
        "split.count",
        "llama.vocab_size",
        "llama.attention.key_length",
        "llama.expert_count",
        "llama.expert_used_count",
    ),
    *(
        "gpt2.n",
        "llama.rope.scaling.type",
        *(f"tokenizer.ggml.{name}" for name in ("pre", "scores", "add_bos_token")),
    ),
)
LARGE = st.one_of(
    st.integers(0, 70), st.sampled_from((2**16, 2**31, 2**32 - 1, 2**40, 2**62, 2**63, 2**64 - 1))
)


def _gguf_text(text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(raw)) + raw


def _gguf_value(value: Any) -> bytes:
    """A metadata value with its type; a value without a type in the format is written as text."""
    if isinstance(value, list):
        if all(type(item) is int and 0 <= item < 2**32 for item in value):
            return struct.pack(f"<IIQ{len(value)}I", 9, 4, len(value), *value)
        return struct.pack("<IIQ", 9, 8, len(value)) + b"".join(
            _gguf_text(str(item)) for item in value
        )
    if type(value) is int and 2**32 <= value < 2**64:
        return struct.pack("<IQ", 10, value)
    kind, form = GGUF_TYPES.get(type(value), (8, ""))
    if kind == 8 or (type(value) is int and not 0 <= value < 2**32):
        return struct.pack("<I", 8) + _gguf_text(str(value))
    return struct.pack("<I", kind) + struct.pack(form, value if abs(value) < 1e38 else float("inf"))


def gguf_bytes(
    metadata: dict[str, Any], tensors: dict[str, tuple[Any, ...]], stated: dict[str, int]
) -> bytes:
    """A GGUF file of ones; `stated` replaces counts, types and offsets of the header."""
    entries = b"".join(_gguf_text(name) + _gguf_value(value) for name, value in metadata.items())
    table, data = b"", b""
    for number, (name, shape) in enumerate(tensors.items()):
        kind, offset = stated.get(f"kind {number}", 0), stated.get(f"offset {number}", len(data))
        table += _gguf_text(name) + struct.pack(
            f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset
        )
        data += struct.pack("<f", 1.0) * min(math.prod(shape), 200)
        data += bytes(-len(data) % 32)
    counts = (
        stated.get("version", 3),
        stated.get("tensors", len(tensors)),
        stated.get("entries", len(metadata)),
    )
    header = b"GGUF" + struct.pack("<IQQ", *counts) + entries + table
    return header + bytes(-len(header) % 32) + data


@st.composite
def gguf_files(draw: st.DrawFn) -> bytes:
    """A small file, complete, or with changed metadata, tensors, counts, types, offsets or
    bytes."""
    metadata, tensors, stated = dict(GGUF_GOOD), dict(GGUF_TENSORS), {}
    how = draw(st.sampled_from(("metadata", "metadata", "tensors", "stated", "bytes", "damaged")))
    if how == "metadata":
        sensible = st.one_of(values, LARGE, st.floats(width=32), st.lists(texts, max_size=3))
        for key in draw(st.lists(st.sampled_from(GGUF_KEYS), min_size=1, max_size=3)):
            metadata[key] = draw(sensible)
            if draw(st.integers(0, 3)) == 0:
                del metadata[key]
    elif how == "tensors":
        name = draw(
            st.sampled_from((*GGUF_TENSORS, "output.weight", "rope_freqs.weight", "blk.9.x"))
        )
        tensors[name] = tuple(draw(st.lists(LARGE, max_size=5)))
        if draw(st.booleans()):
            del tensors[name]
    elif how == "stated":
        header_fields = [
            f"{field} {number}" for field in ("kind", "offset") for number in range(len(tensors))
        ]
        name = draw(st.sampled_from(("version", "tensors", "entries", *header_fields)))
        maximum = 2**32 - 1 if name.startswith(("kind", "version")) else 2**64 - 1
        stated[name] = min(draw(LARGE), maximum)
    whole = gguf_bytes(metadata, tensors, stated)
    if how == "bytes":
        changed = bytearray(whole)
        for _ in range(draw(st.integers(1, 4))):
            changed[draw(st.integers(0, len(whole) - 1))] = draw(st.integers(0, 255))
        return bytes(changed)
    return draw(damaged(st.just(whole))) if how == "damaged" else whole


def read_a_gguf_file(folder: Path, content: bytes) -> str:
    """Read the header, config, tensors and tokenizer until one is refused. Weights are finite and take
    no more memory than a multiple of the file's size."""
    file = _write(folder / "model.gguf", content)
    try:
        opened = open_gguf(file)
        config = read_gguf_config(opened, prepend_bos=True)
        weights = read_tensors(opened, config)
        check_tokenizer(read_gguf_tokenizer(opened, config), config, where=file)
    except ProbeError as error:
        return sentence_of(error)
    assert all(bool(tensor.isfinite().all()) for tensor in weights.values())
    assert sum(tensor.numel() for tensor in weights.values()) < 40 * len(content)
    return TAKEN


# --- pages and records ----------------------------------------------------------------------------


class Elements(HTMLParser):
    """The elements of a part of markup, and its text."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)

    def handle_data(self, data: str) -> None:
        self.text += data


@cache
def piece() -> Any:
    return html.environment("report").from_string('<p title="{{ text }}"><bdi>{{ text }}</bdi></p>')


def show(_: Path, text: str) -> str:
    """User text in a page stays text: it adds no element, and JSON in a script cannot end the
    script."""
    parser = Elements()
    parser.feed(str(piece().render(text=text)))
    parser.close()
    assert parser.elements == ["p", "bdi"]
    assert parser.text.replace("\r\n", "\n") == text.replace("\r\n", "\n")
    script_json = str(html.as_json({"text": text, text: [text]}))
    assert (
        "<" not in script_json
        and "\u2028" not in script_json
        and json.loads(script_json)["text"] == text
    )
    return TAKEN


@cache
def record() -> bytes:
    """The file of a word of a survey."""
    model, _ = resolver_model(0)
    sentences = make_sentences(frames=1, distances=(1,), cues=2)
    measured = measure_word(model, sentences, replace(SURVEY, nouns=NOUNS[:2]))
    with TemporaryDirectory() as folder:
        return write_record(Path(folder) / "r", measured).read_bytes()


def read_a_record(folder: Path, content: bytes) -> str:
    """The file of a word: accepted if it is complete, otherwise refused, and then the word is
    measured again."""
    file = folder / "000000.word"
    file.write_bytes(content)
    return outcome(lambda: read_record(file))


some_rows = st.lists(rows, min_size=1, max_size=4)


def _tables(delimiter: str, *newlines: str) -> st.SearchStrategy[bytes]:
    return st.builds(_delimited, some_rows, st.just(delimiter), st.sampled_from(newlines))


TARGETS = {
    "sentences.jsonl": _file("s.jsonl", some_rows.map(_json_lines)),
    "sentences.csv": _file("s.csv", _tables(",", "\n", "\r\n")),
    "sentences.tsv": _file("s.tsv", _tables("\t", "\n", "\r\n", "\r")),
    "sentences.parquet": _file("s.parquet", some_rows.map(_parquet)),
    "word folder": Target(word_folders(), read_folder),
    "texts and spans": Target(spans(), cut_and_place),
    "config.json": Target(configs, read_a_config, cost=4),
    "config.json, damaged": Target(damaged(st.just(b'{"model_type": "gpt2"}')), read_any_config),
    "safetensors header": Target(headers(), read_a_header, cost=4),
    "GGUF file": Target(gguf_files(), read_a_gguf_file, cost=4),
    "page": Target(
        texts.filter(lambda text: not any("\ud800" <= c <= "\udfff" for c in text)), show
    ),
    "record of a word": Target(damaged(st.deferred(lambda: st.just(record()))), read_a_record),
}


def try_cases(name: str, folder: Path, cases: int, *, start: int = 0) -> Counter[str]:
    """Generate `cases` cases of a target and count their outcomes; raises the error of the first
    bad case."""
    target, counts = TARGETS[name], Counter[str]()
    folder.mkdir(parents=True, exist_ok=True)

    quiet = {"database": None, "suppress_health_check": list(HealthCheck), "print_blob": False}

    @seed(start)
    @settings(max_examples=cases, deadline=None, phases=[Phase.generate], **quiet)
    @given(target.draw)
    def attempt(case: Any) -> None:
        counts[target.attempt(folder, case)] += 1

    attempt()
    return counts


def shares(cases: int) -> Iterator[tuple[str, int]]:
    """The number of cases of each target: the same for all, but fewer for slow ones."""
    whole = sum(1 / target.cost for target in TARGETS.values())
    for name, target in TARGETS.items():
        yield name, round(cases / target.cost / whole) + 1


COLUMNS = ("target", "cases", "taken", "refused", "failed", "seconds")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("reports"))
    parser.add_argument("--targets", nargs="*", choices=list(TARGETS), default=list(TARGETS))
    arguments = parser.parse_args()
    with TemporaryDirectory() as directory:
        for number, (name, cases) in enumerate(shares(arguments.cases)):
            if name in arguments.targets:
                counts, began, turn = Counter[str](), time.monotonic(), 0
                # A run of hypothesis ends early if it has tried everything.
                while counts.total() < cases:
                    batch = min(2_000, cases - counts.total())
                    counts += try_cases(
                        name, Path(directory) / str(number), batch, start=arguments.seed + turn
                    )
                    turn += 1
                facts = (
                    name,
                    counts.total(),
                    counts[TAKEN],
                    counts[REFUSED],
                    0,
                    round(time.monotonic() - began),
                )
                row = dict(zip(COLUMNS, facts, strict=True))
                write_totals(arguments.out / "fuzz_campaign.csv", [row], order=[*TARGETS])


if __name__ == "__main__":
    main()
