"""`aotlm compile` on the real model: killed, started again, reused."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from aotlm.artifact import Artifact
from aotlm.errors import ArtifactError
from tests.e2e.server_process import AOTLM, MODEL, REPOSITORY, clean_environment, run_aotlm


def start_compile(output: Path) -> subprocess.Popen[bytes]:
    """A compile in a process group of its own, so that all of it can be killed at once."""
    return subprocess.Popen(
        [AOTLM, "compile", MODEL, "-o", str(output)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=REPOSITORY,
        env=clean_environment(),
        start_new_session=True,
    )


def wait_for_half_written_files(folder: Path, process: subprocess.Popen[bytes]) -> None:
    """Return once the compile has begun to write into a folder beside its goal."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, "the compile ended before it could be killed"
        if any(path.is_file() and path.stat().st_size for path in folder.rglob("*")):
            return
        time.sleep(0.01)
    raise AssertionError("the compile wrote nothing in 60 s")


@pytest.mark.timeout(300)
def test_kill_leaves_no_artifact_and_the_next_compile_succeeds(tmp_path: Path) -> None:
    output = tmp_path / "artifact"
    process = start_compile(output)
    wait_for_half_written_files(tmp_path, process)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    left = [path for path in tmp_path.rglob("*") if path.is_dir()]
    assert left, "nothing was half-written, so this test tested nothing"
    for folder in (output, *left):
        with pytest.raises(ArtifactError):
            Artifact.open(folder)

    result = run_aotlm("compile", MODEL, "-o", str(output), timeout=250)
    assert result.returncode == 0, result.stderr
    Artifact.open(output, verify=True)
    assert list(tmp_path.iterdir()) == [output]  # what the killed one left is gone


def test_up_to_date_artifact_is_reused(compiled_model: str) -> None:
    begun = time.monotonic()
    result = run_aotlm("compile", compiled_model)
    assert result.returncode == 0, result.stderr
    assert "up to date" in result.stdout + result.stderr
    assert time.monotonic() - begun < 10
