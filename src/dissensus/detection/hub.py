"""The Hugging Face hub: fetch a repository, push a folder to one, and one line for whatever goes wrong.

Arguments have the names and the meaning of huggingface_hub's `ModelHubMixin`. The mixin itself is not used: it would
pass the entries of config.json to `Detector` before they are checked, and write a config.json of its own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TypeVar

from huggingface_hub import CommitInfo, HfApi, constants, get_token, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    LocalTokenNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from dissensus import __version__
from dissensus._core.errors import RunError
from dissensus._core.network import shown, without_credentials
from dissensus.backbones import weights

NAME = r"\w[\w.-]*"
LOGIN = "log in with hf auth login, or set HF_TOKEN"
SECRET = re.compile(r"(?<=Bearer )[^'\"]+|\bhf_[A-Za-z0-9]{6,}")  # in messages of the hub's client
HIDDEN = "***"


def is_repository(name: str) -> bool:
    """Whether a text has the form OWNER/NAME."""
    return re.fullmatch(f"{NAME}/{NAME}", name) is not None


def fetch(
    repo_id: str,
    patterns: Sequence[str],
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    force_download: bool = False,
    local_files_only: bool = False,
) -> Path:
    """Return the folder of a repository in the hub's cache, after fetching what it lacks.

    Without a connection, what the cache has is used.

    Args:
        repo_id: OWNER/NAME.
        patterns: The files to fetch.
        revision: Branch, tag or commit; None: main.
        token: For private repositories; None or True: that of `hf auth login` or HF_TOKEN; False: none.
        cache_dir: Where to keep it; None: the hub's cache.
        force_download: Fetch what the cache has, too.
        local_files_only: Use the cache alone.

    Raises:
        RunError: If there is no such repository or revision, or no access to it.
    """
    token, offline = _stripped(token), constants.HF_HUB_OFFLINE
    try:
        with nullcontext() if local_files_only else weights.offline_unless_reachable():
            folder = snapshot_download(
                repo_id, revision=revision, token=token, cache_dir=cache_dir, force_download=force_download,
                local_files_only=local_files_only, allow_patterns=list(patterns),
            )  # fmt: skip
    except Exception as error:  # the network, the hub's client and its cache raise many kinds
        reason, remedy = _problem(error, repo_id, revision, token)
        if isinstance(error, LocalEntryNotFoundError):
            if local_files_only:
                reason, remedy = "its cache has none", "leave out local_files_only, and it is fetched"
            elif offline:
                reason, remedy = "HF_HUB_OFFLINE is set, and its cache has none", "unset it, and it is fetched"
        raise RunError(
            f"no detector at {repo_id}: there is no such folder, and the hub does not give one ({reason}); {remedy}"
        ) from error
    return Path(folder)


def name_of(repo_id: str, token: str | None) -> str:
    """Return the full name of a repository to push to; raise before any work if nobody is logged in.

    Args:
        repo_id: OWNER/NAME; or NAME, which belongs to the user.
        token: The user's; None: that of `hf auth login` or HF_TOKEN.

    Raises:
        RunError: If the name is invalid, or there is no valid token.
    """
    if not re.fullmatch(f"({NAME}/)?{NAME}", repo_id):
        raise RunError(f"a repository on the hub is named OWNER/NAME; got {repo_id!r}: give one, such as me/detector")
    token = _stripped(token)
    if not (token or get_token()):
        raise RunError(f"cannot push to {repo_id}: not logged in to the hub; {LOGIN}")
    if "/" in repo_id:
        return repo_id
    try:
        with weights.offline_unless_reachable():
            return f"{HfApi(token=token).whoami()['name']}/{repo_id}"
    except Exception as error:  # as above
        raise _cannot_push(error, repo_id, None, token) from error


def push(
    folder: Path,
    repo_id: str,
    *,
    replace: Sequence[str],
    commit_message: str | None = None,
    private: bool | None = None,
    token: str | None = None,
    branch: str | None = None,
    create_pr: bool | None = None,
) -> CommitInfo:
    """Push a folder in one commit; the repository and the branch are created if they do not exist.

    Args:
        folder: What to push.
        repo_id: OWNER/NAME.
        replace: Patterns of files in the repository that are removed if the folder does not have them.
        commit_message: Of the commit.
        private: Whether a new repository is private; None: as its owner has set.
        token: The user's; None: that of `hf auth login` or HF_TOKEN.
        branch: To push to; None: main.
        create_pr: Open a pull request with the commit instead.

    Raises:
        RunError: If the hub cannot be reached, or refuses the push.
    """
    token = _stripped(token)
    api = HfApi(token=token, library_name="dissensus", library_version=__version__)
    try:
        with weights.offline_unless_reachable():
            api.create_repo(repo_id, private=private, exist_ok=True)
            if branch is not None and not create_pr and not branch.startswith("refs/"):
                api.create_branch(repo_id, branch=branch, exist_ok=True)
            return api.upload_folder(
                repo_id=repo_id, folder_path=folder, revision=branch, create_pr=create_pr,
                commit_message=commit_message or f"Push a detector of dissensus {__version__}",
                delete_patterns=list(replace),
            )  # fmt: skip
    except Exception as error:  # as above
        raise _cannot_push(error, repo_id, branch, token) from error


T = TypeVar("T", str | None, str | bool | None)


def _stripped(token: T) -> T:
    """A token without the line break that it has if it was read from a file: HTTP does not allow one."""
    return token.strip() or None if isinstance(token, str) else token


def _cannot_push(error: Exception, repo_id: str, revision: str | None, token: str | None) -> RunError:
    reason, remedy = _problem(error, repo_id, revision, token)
    return RunError(f"cannot push to {repo_id}: {reason}; {remedy}")


def _problem(error: Exception, repo_id: str, revision: str | None, token: str | bool | None) -> tuple[str, str]:
    """Return what is wrong and what to do about it, in a few words each."""
    check = "check the name and the network"
    status = error.response.status_code if isinstance(error, HfHubHTTPError) else None
    if isinstance(error, LocalEntryNotFoundError):
        cause = error.__cause__
        if isinstance(cause, HfHubHTTPError):  # an answer, but not a file
            return _problem(cause, repo_id, revision, token)
        return "it cannot be reached, and its cache has none", check
    if isinstance(error, OfflineModeIsEnabled):
        return "the hub cannot be reached", "check the network, and whether HF_HUB_OFFLINE is set"
    if isinstance(error, LocalTokenNotFoundError):
        return "not logged in", LOGIN
    if isinstance(error, RevisionNotFoundError):
        return f"the repository has no such revision as {revision}", "give a branch, tag or commit that it has"
    if isinstance(error, GatedRepoError):
        return "its owner restricts access", f"ask for it at {shown(constants.ENDPOINT)}/{repo_id}, and {LOGIN}"
    if isinstance(error, RepositoryNotFoundError):
        return "there is no such repository, or it is a private one", f"check the name, or {LOGIN}"
    if status == 401:
        return "the token is not valid", LOGIN
    if status == 403:
        return "the token has no permission for it", "use one that has, or another name"
    if isinstance(error, RuntimeError) and isinstance(error.__cause__, Exception):  # of one of the files
        return _problem(error.__cause__, repo_id, revision, token)
    if isinstance(error, HFValidationError):
        return _first_line(error, token), "give OWNER/NAME"
    return _first_line(error, token), check


def _first_line(error: Exception, token: str | bool | None) -> str:
    """The message of an error, shortened, without tokens and passwords."""
    text = getattr(error, "server_message", None) or str(error)
    for secret in (token, get_token()):
        if isinstance(secret, str) and secret:
            for form in (secret, repr(secret)[1:-1]):  # clients print a header as a literal
                text = text.replace(form, HIDDEN)
    text = SECRET.sub(HIDDEN, without_credentials(text))
    return " ".join((text.strip() or type(error).__name__).split())[:160].rstrip(" .")
