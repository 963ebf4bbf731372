from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from aotlm.errors import CompileError
from aotlm_compile.output_folder import (
    check_replaceable,
    locked,
    publish,
    remove_leftovers,
    temporary_folder,
)

TAKE = """
import sys, pathlib
from aotlm_compile.output_folder import locked
with locked(pathlib.Path(sys.argv[1]), lambda: print("waiting", flush=True)):
    print("mine", flush=True)
"""


def silent() -> None:
    pass


def dead_pid() -> int:
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_publish_makes_and_replaces(tmp_path: Path) -> None:
    output = tmp_path / "artifact"
    for text in ("one", "two"):
        temporary = temporary_folder(output)
        (temporary / "manifest.json").write_text(text)
        publish(temporary, output)
        assert [path.name for path in tmp_path.iterdir()] == ["artifact"]
        assert (output / "manifest.json").read_text() == text


def test_only_artifacts_and_empty_folders_are_replaced(tmp_path: Path) -> None:
    check_replaceable(tmp_path / "new")
    (tmp_path / "empty").mkdir()
    check_replaceable(tmp_path / "empty")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "manifest.json").touch()
    check_replaceable(tmp_path / "old")
    with pytest.raises(CompileError, match="/ is a mount point, which cannot be renamed"):
        check_replaceable(Path("/"))
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").touch()
    with pytest.raises(CompileError, match="photos holds other files than an artifact"):
        check_replaceable(tmp_path / "photos")
    with pytest.raises(CompileError, match=r"cat\.jpg is a file"):
        check_replaceable(tmp_path / "photos" / "cat.jpg")


def test_leftovers_of_dead_processes_are_removed(tmp_path: Path) -> None:
    output = tmp_path / "artifact"
    stays = [tmp_path / f".other.{os.getpid()}.tmp", tmp_path / ".cache.tmp", tmp_path / "x.1.tmp"]
    old = tmp_path / f".third.{os.getpid()}.tmp"
    goes = [
        tmp_path / f".other.{dead_pid()}.tmp",
        tmp_path / f".artifact.{os.getpid()}.tmp",  # ours: the lock says nobody else is at it
        tmp_path / f".artifact.{dead_pid()}.old.tmp",
        tmp_path / ".other.99999999999999999999.tmp",
        old,
    ]
    for folder in stays + goes:
        folder.mkdir()
        (folder / "weights.bin").touch()
    day_and_more = time.time() - 25 * 3600
    os.utime(old, (day_and_more, day_and_more))
    remove_leftovers(output)
    assert sorted(tmp_path.iterdir()) == sorted(stays)


def test_lock_leaves_nothing_and_keeps_others_out(tmp_path: Path) -> None:
    output = tmp_path / "deep" / "artifact"
    with locked(output, silent):
        other = subprocess.Popen(
            [sys.executable, "-c", TAKE, str(output)], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        with other:
            assert other.stdout.readline() == "waiting\n"
            time.sleep(0.1)
            assert other.poll() is None
            (output.parent / f".{output.name}.lock").unlink()  # as if we had ended
            with locked(output, silent):  # a third one takes the new file
                pass
            other.kill()
    with locked(output, silent):
        pass
    assert list(output.parent.iterdir()) == []


def test_waiting_process_gets_the_lock_in_the_end(tmp_path: Path) -> None:
    output = tmp_path / "artifact"
    with locked(output, silent):
        other = subprocess.Popen(
            [sys.executable, "-c", TAKE, str(output)], stdout=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        assert other.stdout.readline() == "waiting\n"
    rest, _ = other.communicate(timeout=20)
    assert rest == "mine\n"
    assert list(tmp_path.iterdir()) == []


def test_child_that_inherits_the_lock_holds_it_when_the_parent_is_killed(tmp_path: Path) -> None:
    output = tmp_path / "artifact"
    script = (
        "import os, pathlib, signal, subprocess, sys\n"
        "from aotlm_compile.output_folder import locked\n"
        "with locked(pathlib.Path(sys.argv[1]), lambda: None) as lock:\n"
        "    child = subprocess.Popen(['sleep', '60'], pass_fds=(lock,), stdout=2)\n"
        "    print(child.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    killed = subprocess.run(
        [sys.executable, "-c", script, str(output)], stdout=subprocess.PIPE, text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    child = int(killed.stdout)
    waited = []

    def end_child() -> None:
        waited.append(True)
        os.kill(child, signal.SIGKILL)

    with locked(output, end_child):
        assert waited
    assert list(tmp_path.iterdir()) == []


def test_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(CompileError, match=r"cannot write to .*file/inner"),
        locked(tmp_path / "file" / "inner" / "artifact", silent),
    ):
        pass
