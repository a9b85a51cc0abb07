"""A cache directory whose entries are named by the hash of what they were made from.

An entry is a directory holding an artefact and its sha256. It is filled under a temporary name and
appears by one rename, so other processes see all of it or nothing; a damaged entry is built again.
One process at a time builds an entry, the others wait for it.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE_VARIABLE = "MI300_INDUCTOR_CACHE_DIR"

log = logging.getLogger(__name__)


def cache_dir() -> Path:
    """Returns the cache directory, created private to the user (mode 0700).

    Raises:
        RuntimeError: if it cannot be created or belongs to somebody else.
    """
    given = os.environ.get(CACHE_VARIABLE)
    try:
        path = Path(given) if given else Path.home() / ".cache" / "mi300_inductor"
        path = path.expanduser().absolute()
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
    except (OSError, RuntimeError) as error:
        raise RuntimeError(
            f"build: the cache directory cannot be made; got {error}, expected a writable "
            f"directory. Set {CACHE_VARIABLE} to one."
        ) from error
    if status.st_uid != os.getuid() or status.st_mode & stat.S_ISVTX:
        raise RuntimeError(
            f"build: the cache directory {path} is shared; got owner {status.st_uid} and mode "
            f"{stat.S_IMODE(status.st_mode):o}, expected a directory of user {os.getuid()} alone. "
            f"Set {CACHE_VARIABLE} to a directory of your own."
        )
    if stat.S_IMODE(status.st_mode) != 0o700:
        path.chmod(0o700)
    return path


def hash_key(key_parts: Iterable[object]) -> str:
    """Returns the hash of some values; a `Path` counts with its name and its contents."""
    digest = hashlib.sha256()
    for part in key_parts:
        if isinstance(part, Path):
            data = part.name.encode() + b"\0" + part.read_bytes()
        else:
            data = part if isinstance(part, bytes) else str(part).encode()
        digest.update(len(data).to_bytes(8, "little") + data)
    return digest.hexdigest()


def cached(key_parts: Iterable[object], name: str, builder: Callable[[Path], None]) -> Path:
    """Returns the artefact of a key, building it if the cache has none or a damaged one.

    Args:
        key_parts: Everything the artefact depends on: strings, bytes, and `Path`s, which count
            with their contents.
        name: File name of the artefact.
        builder: Called with the path it has to write; runs in one process at a time per key.

    Returns:
        The path of a file whose sha256 was just verified. Treat it as read-only.

    Raises:
        RuntimeError: if the cache directory is unusable; errors of `builder` pass through.
    """
    root = cache_dir()
    entry = root / hash_key((name, *key_parts))[:40]
    if _is_intact(entry, name):
        return entry / name
    with _locked(root / f"{entry.name}.lock", name):
        if _is_intact(entry, name):
            return entry / name
        scratch = Path(tempfile.mkdtemp(prefix="tmp-", dir=root))
        fresh = scratch / "fresh"
        try:
            fresh.mkdir(mode=0o700)
            builder(fresh / name)
            digest = hashlib.sha256((fresh / name).read_bytes()).hexdigest()
            (fresh / f"{name}.sha256").write_text(digest)
            if entry.exists():
                entry.rename(scratch / "damaged")
            fresh.rename(entry)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return entry / name


def _is_intact(entry: Path, name: str) -> bool:
    try:
        expected = (entry / f"{name}.sha256").read_text()
        return hashlib.sha256((entry / name).read_bytes()).hexdigest() == expected
    except OSError:
        return False


@contextmanager
def _locked(path: Path, name: str) -> Iterator[None]:
    """Holds a lock between processes; threads of one process exclude each other too."""
    with open(path, "w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            log.warning("waiting for %s, which another process or thread is building", name)
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
