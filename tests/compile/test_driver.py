"""The parent's side, with small programs in the worker's place."""

from __future__ import annotations

import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from aotlm.errors import AotlmError, CheckpointError, CompileError, ToolchainError
from aotlm_compile.driver import compile_artifact
from aotlm_compile.events import Event, StepFinished, StepStarted
from aotlm_compile.plan import CompilePlan

PRELUDE = """
import json, os, pathlib, signal, sys
request = json.loads(sys.stdin.read())
temporary = pathlib.Path(request["temporary"])
plan = json.loads(request["plan"])
(temporary / "weights.bin").write_bytes(b"half")
def say(**event):
    print(json.dumps(event), flush=True)
say(event="step_started", step="read")
say(event="step_finished", step="read", seconds=0.5, detail="")
say(event="step_started", step="lower")
print("LLVM likes to talk")
"""


class Recorder:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.closed = False

    def show(self, event: Event) -> None:
        self.events.append(event)

    def tick(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True


def plan_for(output: Path) -> CompilePlan:
    return CompilePlan(
        source="tiny.gguf",
        model_name="tiny",
        quantization="gguf",
        target="cpu",
        output=str(output),
        context_window=128,
        prefill_chunk=32,
        max_batch_size=4,
        opt_level=3,
        fingerprint="0" * 64,
    )


def run(body: str, output: Path) -> Recorder:
    recorder = Recorder()
    try:
        compile_artifact(plan_for(output), recorder, command=(sys.executable, "-c", PRELUDE + body))
    finally:
        assert recorder.closed
        assert recorder.events[:3] == [
            StepStarted("read"),
            StepFinished("read", 0.5),
            StepStarted("lower"),
        ]
    return recorder


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        (
            "os.kill(os.getpid(), signal.SIGSEGV)",
            ToolchainError,
            r"the compiler crashed \(SIGSEGV\) in step lower; nothing was written",
        ),
        (
            "os.kill(os.getpid(), signal.SIGKILL)",
            ToolchainError,
            r"crashed \(SIGKILL\) in step lower; .*enough memory",
        ),
        ("sys.exit(3)", ToolchainError, "ended with code 3 in step lower; nothing was written"),
        (
            "say(event='failed', error='CheckpointError', message='no tensor x'); sys.exit(1)",
            CheckpointError,
            "^no tensor x$",
        ),
        (
            "say(event='failed', error='', message='KeyError: 7'); sys.exit(1)",
            CompileError,
            "failed in step lower: KeyError: 7; nothing was written.*--verbose",
        ),
        (
            "say(event='failed', error='SystemExit', message='odd'); sys.exit(1)",
            CompileError,
            "failed in step lower: odd",
        ),
    ],
)
def test_worker_that_fails_is_one_line_and_leaves_nothing(
    body: str, kind: type[AotlmError], message: str, tmp_path: Path
) -> None:
    with pytest.raises(kind, match=message) as caught:
        run(body, tmp_path / "artifact")
    assert type(caught.value) is kind
    assert list(tmp_path.iterdir()) == []


def test_failure_keeps_the_artifact_that_was_there(tmp_path: Path) -> None:
    output = tmp_path / "artifact"
    output.mkdir()
    (output / "manifest.json").write_text("{}")
    with pytest.raises(ToolchainError):
        run("os.abort()", output)
    assert [path.name for path in tmp_path.iterdir()] == ["artifact"]
    assert (output / "manifest.json").read_text() == "{}"


def test_worker_never_gets_the_runtime_only_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVM_USE_RUNTIME_LIB", "1")
    run("assert 'TVM_USE_RUNTIME_LIB' not in os.environ", tmp_path / "artifact")


def test_folder_of_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(CompileError, match="holds other files"):
        compile_artifact(plan_for(tmp_path), Recorder(), force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_full_disk_that_ends_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", ["total", "used", "free"])
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(10**9, 10**9 - 4096, 4096))
    with pytest.raises(ToolchainError) as caught:
        run("sys.exit(1)", tmp_path / "artifact")
    assert str(caught.value) == (
        "the compiler ended with code 1 in step lower; nothing was written "
        f"(no space left on the disk of {tmp_path})"
    )
    assert list(tmp_path.iterdir()) == []
