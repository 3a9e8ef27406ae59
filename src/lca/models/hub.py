"""Models on the Hugging Face hub: `push` uploads a model folder as one commit, `pull` brings one back, checked.

The hub's own client does the work; who you are it takes from `hf auth login` or the variable HF_TOKEN.
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from glob import escape
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

import lca
from lca.errors import LcaError
from lca.files import (
    MANIFEST_LIMIT,
    check_part,
    has_state,
    hold,
    is_part_name,
    manifest_alone,
    new_folder,
    read_kept,
    read_manifest,
    write_atomic,
)
from lca.guarded import content_of, keep_private
from lca.progress import BarProgress, Progress
from lca.stored_facts import check_facts
from lca.text import terminal_text

if TYPE_CHECKING:
    from huggingface_hub import HfApi

CARD, CONFIG = "README.md", "config.json"
CARD_LIMIT, MODEL_LIMIT = 2**20, 16 * 2**30
"""Bytes of a card, and of all parts of a model, that are downloaded at most."""
HTTP_LIBRARIES = ("httpx", "httpx2", "httpcore", "requests", "urllib3")
"""What the hub's client has been built on."""
LOG_IN = "log in with `hf auth login` or set HF_TOKEN"


def push(
    folder: str | Path,
    repo: str,
    *,
    private: bool = True,
    token: str | None = None,
    message: str = "Update the model",
    endpoint: str | None = None,
    progress: Progress | None = None,
    examples: Sequence[str | Path] = (),
) -> str:
    """Upload a saved model; makes the repository if there is none. Returns the address of the commit.

    One commit holds all of it, so nobody can pull half of a model. Only the model's own files go up, with what
    `hub_card` adds for the hub, and small copies of the photos among `examples`; parts and examples of an earlier
    version are removed. `private` is for a new repository: one that exists stays as visible as it is.
    """
    folder, progress = Path(folder), progress or Progress()
    if not has_state(folder):
        raise LcaError(f"{folder} is no model: there is no state.json in it")
    parts, meta = _checked(folder, folder)
    card = _card(folder)
    backbone = meta["recipe"]["backbone"]
    if "backbone" not in parts and backbone["weights"] is not None:
        progress.line(
            f"CHECK: the weights of {backbone['name']} come from a file of yours ({backbone['weights']}) and do not go "
            "along; others need the same file. To send them too, save the model with bundle = True"
        )
    photos, widget = _examples(folder, examples, progress)
    with _client_told(repo, progress):
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete, get_token

        if token is None and get_token() is None:
            raise LcaError(f"the hub wants to know who you are: {LOG_IN}")
        api = _client(token, endpoint)
        repo = api.create_repo(repo, private=private, exist_ok=True).repo_id
        files: dict[str, Path | bytes] = {path.name: path for path in parts.values()}
        files |= _for_the_hub(repo, card, parts, meta, widget) | photos | {"state.json": manifest_alone(folder)}
        progress.line(f"uploading {len(files)} files to {repo}")
        stale = [name for name in api.list_repo_files(repo) if _is_ours(name) and name not in files]
        # not upload_folder: it may split a folder into several commits
        operations: list[Any] = [CommitOperationAdd(name, content) for name, content in files.items()]
        operations += [CommitOperationDelete(name) for name in stale]
        return str(api.create_commit(repo, operations, commit_message=message).commit_url)


def pull(
    repo: str,
    folder: str | Path,
    *,
    revision: str | None = None,
    token: str | None = None,
    overwrite: bool = False,
    endpoint: str | None = None,
    progress: Progress | None = None,
) -> None:
    """Download a model into a folder. It appears there whole and checked, or not at all."""
    api = _client(token, endpoint)
    folder, progress = Path(folder), progress or Progress()
    known = has_state(folder)
    if known and not overwrite:
        raise LcaError(f"{folder} holds a model already; choose another name, or use --force to replace it")
    if not known and folder.exists():
        if not folder.is_dir() or any(folder.iterdir()):
            raise LcaError(f"{folder} exists and is no model; choose another name")
        folder.rmdir()
    busy = f"another process is changing {folder}; wait for it to finish"
    with hold(folder, busy) if known else nullcontext(), new_folder(folder.absolute(), private=True) as beside:
        _download(api, repo, beside, revision, progress)
        if known:
            _replace(folder, beside)


def _examples(
    folder: Path, photos: Sequence[str | Path], progress: Progress
) -> tuple[dict[str, bytes], list[dict[str, Any]]]:
    if not photos:
        return {}, []
    from lca.classifier import ContinualClassifier
    from lca.models.hub_card import widget_examples

    return widget_examples(ContinualClassifier.load(folder, device="cpu"), photos, progress)


def _for_the_hub(
    repo: str,
    card: bytes | None,
    parts: Mapping[str, Path],
    meta: Mapping[str, Any],
    widget: Sequence[Mapping[str, Any]],
) -> dict[str, bytes]:
    from lca.models.hub_card import hub_card, hub_config

    text = None if card is None else card.decode("utf-8", "replace")
    sizes = {part: path.stat().st_size for part, path in parts.items()}
    config = json.dumps(hub_config(meta), indent=1, ensure_ascii=False)
    return {CARD: hub_card(text, repo, meta, sizes, widget).encode(), CONFIG: f"{config}\n".encode()}


def _is_ours(name: str) -> bool:
    """Whether a push may have put this file there, and another one may remove it."""
    return is_part_name(name) or bool(re.fullmatch(r"example-\d+\.jpg", name))


def _client(token: str | None, endpoint: str | None) -> "HfApi":
    from huggingface_hub import HfApi

    endpoint = endpoint or os.environ.get("HF_ENDPOINT")  # the client reads it only when it is imported
    return HfApi(endpoint, token=token, library_name="lca", library_version=lca.__version__)


def _download(api: "HfApi", repo: str, folder: Path, revision: str | None, progress: Progress) -> None:
    """The model's own files, of one commit, checked."""
    with _client_told(repo, progress, revision):
        info = api.model_info(repo, revision=revision, files_metadata=True)
        sizes = {each.rfilename: each.size or 0 for each in info.siblings or ()}
        if "state.json" not in sizes:
            raise LcaError(f"{repo} holds no model of lca: there is no state.json in it")
        _expect_at_most(MANIFEST_LIMIT, "state.json", sizes["state.json"], repo)
        api.hf_hub_download(repo, "state.json", revision=info.sha, local_dir=folder)
        parts, meta = read_manifest(folder)
        check_facts(meta, repo)
        if not parts or not meta["classes"]:
            raise LcaError(f"{repo} holds a model that knows no class; there is nothing to pull")
        wanted = [path.name for path in parts.values()] + [CARD]
        _expect_at_most(CARD_LIMIT, CARD, sizes.get(CARD, 0), repo)
        _expect_at_most(MODEL_LIMIT, "all parts", sum(sizes.get(name, 0) for name in {*wanted}), repo)
        progress.line(f"downloading {len(wanted) + 1} files from {repo}")
        wanted += [CONFIG] * (CONFIG in sizes)  # it is what the hub counts; a model needs nothing of it
        patterns = [escape(name) for name in wanted]
        api.snapshot_download(repo, revision=info.sha, local_dir=folder, allow_patterns=patterns)
    rmtree(folder / ".cache", ignore_errors=True)  # the client's notes
    for path in folder.iterdir():
        if path.name not in {*wanted, "state.json"} or path.is_symlink() or not path.is_file():
            raise LcaError(f"{repo}: {terminal_text(path.name)} is no file of a model")
        keep_private(path)
    _card(folder)
    write_atomic(folder / "state.json", manifest_alone(folder), private=True)  # no word of earlier states
    (folder / CONFIG).unlink(missing_ok=True)
    _checked(folder, repo)


def _expect_at_most(limit: int, what: str, size: int, repo: str) -> None:
    if size > limit:
        raise LcaError(f"{repo}: {what} has {size:,} bytes; at most {limit:,} are downloaded")


def _card(folder: Path) -> bytes | None:
    """The card, if there is one: a file of its own, no link to another."""
    try:
        return content_of(folder / CARD, CARD_LIMIT)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LcaError(f"{folder / CARD} cannot be used as a card: {error.strerror}") from error


def _checked(folder: Path, where: object) -> tuple[dict[str, Path], dict[str, Any]]:
    """The manifest of a model whose parts are all there and have the content their names say."""
    parts, meta = read_manifest(folder)
    check_facts(meta, where)
    for path in parts.values():
        check_part(path, where)
    return parts, meta


def _replace(folder: Path, new: Path) -> None:
    """Put the files of a model in the place of another's: parts first, then the one file that names them."""
    old, _ = read_manifest(folder)
    old_files = [*old.values(), *(path for parts, _ in read_kept(folder) for path in parts.values())]
    parts, _ = read_manifest(new)
    names = [path.name for path in parts.values()]
    for name in [*names, "state.json", CARD]:
        if (new / name).exists():
            (new / name).replace(folder / name)
    for path in old_files:
        if path.name not in names:
            path.unlink(missing_ok=True)


@contextmanager
def _client_told(repo: str, progress: Progress, revision: str | None = None) -> Iterator[None]:
    """The client's own bars on a terminal only, and its errors in one line, with what to do."""
    from huggingface_hub.utils import (  # type: ignore[attr-defined]  # documented, but not in its __all__
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    silenced = not isinstance(progress, BarProgress) and not are_progress_bars_disabled()
    if silenced:
        disable_progress_bars()
    try:
        yield
    except LcaError:
        raise
    except Exception as error:
        if (remedy := _remedy(error, repo, revision)) is None:
            raise
        raise LcaError(remedy) from error
    finally:
        if silenced:
            enable_progress_bars()


def _remedy(error: Exception, repo: str, revision: str | None) -> str | None:
    from huggingface_hub import errors

    known = (  # the first that fits: some are kinds of others
        (errors.HFValidationError, f"{repo!r} is no name of a repository; expected NAME or OWNER/NAME: anna/flowers"),
        (errors.GatedRepoError, f"{repo} is gated: ask for access on its page, then {LOG_IN}"),
        (errors.RevisionNotFoundError, f"{repo} has no revision {revision!r}; give a branch, a tag or a commit"),
        (
            errors.RepositoryNotFoundError,
            f"there is no repository {repo}, or it is private: check the name, or {LOG_IN}",
        ),
    )
    for kind, text in known:
        if isinstance(error, kind):
            return text
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        if status in (401, 403):
            return f"the hub refuses access to {repo} ({status}): {LOG_IN}, with a token that may write"
        return f"the hub answered {status} for {repo}: {_first_line(error)}; try again later"
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, ConnectionError | TimeoutError):
        if type(cause).__module__.split(".")[0] in HTTP_LIBRARIES:
            break
        cause = cause.__cause__
    if cause is None:
        return None
    return (
        f"the hub cannot be reached ({_first_line(cause)}); check the network, and HF_ENDPOINT and HF_HUB_OFFLINE if "
        "you set them"
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
