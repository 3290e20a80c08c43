"""A hub name -> a folder on this machine: from the local cache when it is complete, else by download, else one
sentence.

The cache comes first, so that a model works offline from its second use on and keeps its revision until the user
removes it. Only what loading reads is fetched: config, tokenizer and safetensors, never a pickle or code.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from huggingface_hub import HfApi, constants, scan_cache_dir, snapshot_download
from huggingface_hub.errors import (
    CacheNotFound,
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RepositoryNotFoundError,
)
from huggingface_hub.utils import (
    are_progress_bars_disabled,
    disable_progress_bars,
    enable_progress_bars,
    validate_repo_id,
)
from huggingface_hub.utils import logging as hub_logging

from probe.errors import ModelError
from probe.model.checkpoint import has_tokenizer, has_weights
from probe.model.config import refuse

WANTED = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "vocab.json",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
)
ANSWER_WITHIN = 6  # seconds
INSTEAD = "a folder with config.json, tokenizer and safetensors works too, and tiny-senses needs nothing"
# Every failure of the network arrives as one of these: httpx's errors are the bases of the hub's own.
NETWORK_ERRORS = (OSError, *(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError"))


def fetch(name: str) -> tuple[Path, str]:
    """The folder that holds the model `name` of the hub, and its revision (a commit hash).

    Downloads with a progress bar on a terminal when the cache lacks it. Raises ModelError with one sentence when the
    name is not a valid one, the hub cannot be reached, knows no such model, or holds no safetensors of it.
    """
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        problem = "that is neither a folder here, an embedded model nor a possible hub name"
        raise refuse(repr(name), problem, INSTEAD) from error
    folder = _cached(name) or _download(name)
    return folder, folder.name


def _cached(name: str) -> Path | None:
    """The cached folder when everything that loading needs is in it, so that nothing is asked of the network."""
    try:
        folder = Path(snapshot_download(name, allow_patterns=list(WANTED), local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    complete = (folder / "config.json").is_file() and has_tokenizer(folder) and has_weights(folder)
    return folder if complete else None


def _download(name: str) -> Path:
    """Asks the hub what it has, then fetches what is wanted; the question has a time limit, which the library lacks."""
    try:
        with _only_what_helps():
            listed = HfApi().model_info(name, timeout=ANSWER_WITHIN).siblings or ()
            if not any(file.rfilename.endswith(".safetensors") for file in listed):
                step = "convert it with save_pretrained(folder, safe_serialization=True) and load that folder"
                raise refuse(
                    name, f"the hub {constants.ENDPOINT} has no safetensors of it, only a pickle or nothing", step
                )
            return Path(snapshot_download(name, allow_patterns=list(WANTED), etag_timeout=ANSWER_WITHIN))
    except NETWORK_ERRORS as error:
        raise _refusal(name, error) from error


def _refusal(name: str, error: BaseException) -> ModelError:
    """One sentence for each way in which a hub says no or nothing."""
    if isinstance(error, GatedRepoError):
        problem = f"the hub {constants.ENDPOINT} asks for a login and for its terms to be accepted"
    elif isinstance(error, RepositoryNotFoundError):
        problem = f"the hub {constants.ENDPOINT} has no public model of that name, and there is no such folder here"
    elif constants.HF_HUB_OFFLINE:
        problem = "it is not in the local cache, and HF_HUB_OFFLINE forbids asking a hub"
    elif isinstance(error, HfHubHTTPError):
        problem = f"the hub {constants.ENDPOINT} answered with status {error.response.status_code}"
    else:
        reason = (str(error) or type(error).__name__).strip().splitlines()[0][:80].rstrip(". ")
        problem = f"it is not in the local cache, and the hub {constants.ENDPOINT} could not be reached ({reason})"
    return refuse(name, problem, INSTEAD)


@contextmanager
def _only_what_helps() -> Iterator[None]:
    """A progress bar on a terminal or in a notebook and nothing else; restores the user's own settings."""
    before, had_bars = hub_logging.get_verbosity(), not are_progress_bars_disabled()
    seen = sys.stderr.isatty() or "ipykernel" in sys.modules
    hub_logging.set_verbosity_error()
    try:
        if had_bars and not seen:
            disable_progress_bars()
        yield
    finally:
        hub_logging.set_verbosity(before)
        if had_bars and not seen:
            enable_progress_bars()


def cached_models() -> tuple[tuple[str, Path], ...]:
    """Name and folder of every model in the local hub cache that has a config, in name order; reads no weights."""
    try:
        repositories = scan_cache_dir().repos
    except CacheNotFound:
        return ()
    snapshots = []
    for repository in repositories:
        revisions = sorted(repository.revisions, key=lambda revision: revision.last_modified, reverse=True)
        if repository.repo_type == "model" and revisions and (revisions[0].snapshot_path / "config.json").is_file():
            snapshots.append((repository.repo_id, Path(revisions[0].snapshot_path)))
    return tuple(sorted(snapshots))
