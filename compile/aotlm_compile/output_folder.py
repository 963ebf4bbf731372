"""The folder an artifact is written to: one writer at a time, whole or not at all.

Everything is written into `.NAME.PID.tmp` beside the goal, which is renamed when it is
complete. What a killed compile leaves behind is removed by the next one.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from aotlm.errors import CompileError
from aotlm.manifest import MANIFEST_FILE

_LEFTOVER = re.compile(r"\.(?P<name>.+?)\.(?P<pid>\d+)(\.old)?\.tmp")
_DAY_S = 24 * 3600


def check_replaceable(output: Path) -> None:
    """Raises CompileError when `output` is something that must not be replaced."""
    if not output.exists():
        return
    if output.is_mount():
        raise CompileError(
            f"{output} is a mount point, which cannot be renamed; name a folder in it"
        )
    if not output.is_dir():
        raise CompileError(f"{output} is a file; name a folder for the artifact")
    if any(output.iterdir()) and not (output / MANIFEST_FILE).is_file():
        raise CompileError(f"{output} holds other files than an artifact; name another folder")


@contextmanager
def locked(output: Path, waiting: Callable[[], None]) -> Iterator[int]:
    """Hold the lock of one artifact; calls `waiting` once when another process has it.

    Gives the lock's file descriptor: a child that inherits it holds the lock too, so that it
    outlives a parent that was killed. Raises CompileError when the folder is not writable.
    """
    path = output.parent / f".{output.name}.lock"
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path, waiting)
    except OSError as error:
        raise CompileError(f"cannot write to {output.parent}: {error.strerror or error}") from error
    try:
        yield descriptor
    finally:
        path.unlink(missing_ok=True)  # while it is held: see _acquire
        os.close(descriptor)


def _acquire(path: Path, waiting: Callable[[], None]) -> int:
    told = False
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if not told:
                waiting()
                told = True
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        # The former holder removed the file, so this lock may be on one that nobody finds.
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(descriptor), path.stat()):
                return descriptor
        os.close(descriptor)


def temporary_folder(output: Path) -> Path:
    """Make the folder to write into; call it with the lock held."""
    folder = output.parent / f".{output.name}.{os.getpid()}.tmp"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def remove_leftovers(output: Path) -> None:
    """Remove what killed compiles left beside `output`; call it with the lock held."""
    for path in output.parent.glob(".*.tmp"):
        match = _LEFTOVER.fullmatch(path.name)
        if match is None:
            continue
        # Nobody else works on this artifact; others' folders may be in use.
        if match["name"] == output.name or not _in_use(path, int(match["pid"])):
            shutil.rmtree(path, ignore_errors=True)


def _in_use(path: Path, pid: int) -> bool:
    try:
        if time.time() - path.stat().st_mtime > _DAY_S:
            return False  # the number may have gone to another process by now
        os.kill(pid, 0)
    except (ProcessLookupError, FileNotFoundError, OverflowError):
        return False
    except PermissionError:
        return True
    return True


def publish(temporary: Path, output: Path) -> None:
    """Put the complete folder in its place; an artifact that was there is replaced."""
    for path in temporary.iterdir():
        _sync(path)
    _sync(temporary)
    if output.exists():
        old = temporary.with_name(temporary.name.removesuffix(".tmp") + ".old.tmp")
        output.rename(old)
        temporary.rename(output)
        shutil.rmtree(old, ignore_errors=True)
    else:
        temporary.rename(output)
    _sync(output.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
