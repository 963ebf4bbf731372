"""The user's side of a compile: reuse what is up to date, else run the worker and watch it."""

from __future__ import annotations

import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO

from aotlm import errors
from aotlm.errors import AotlmError, CompileError, ToolchainError

from .events import Event, Failed, Finished, StepStarted, from_line
from .output_folder import check_replaceable, locked, remove_leftovers, temporary_folder
from .plan import CompilePlan
from .progress import Display
from .reuse import up_to_date

# -P: a file in the user's folder must not take the place of a module.
WORKER = (sys.executable, "-P", "-m", "aotlm_compile.worker")
_TICK_S = 0.1
_FULL_BYTES = 1 << 20


def compile_artifact(
    plan: CompilePlan,
    display: Display,
    *,
    force: bool = False,
    verbose: bool = False,
    notify: Callable[[str], None] = lambda text: None,
    command: Sequence[str] = WORKER,
) -> Finished:
    """Make the artifact of `plan` unless it is up to date; `force` makes it anyway.

    Raises what the worker raised, or ToolchainError when it crashed; then nothing is left.
    """
    output = Path(plan.output)
    check_replaceable(output)
    if not force and up_to_date(output, plan):
        return Finished(str(output), reused=True)
    with locked(output, lambda: notify(f"waiting for another compile of {output}")) as lock:
        # The process that was waited for may have made just this artifact.
        if not force and up_to_date(output, plan):
            return Finished(str(output), reused=True)
        remove_leftovers(output)
        temporary = temporary_folder(output)
        try:
            _run_worker(plan, temporary, lock, display, verbose, command)
        finally:
            display.close()
            shutil.rmtree(temporary, ignore_errors=True)
    return Finished(str(output))


def _run_worker(
    plan: CompilePlan,
    temporary: Path,
    lock: int,
    display: Display,
    verbose: bool,
    command: Sequence[str],
) -> None:
    # A server that starts a compile runs on the runtime-only library; a compiler cannot.
    environment = {k: v for k, v in os.environ.items() if k != "TVM_USE_RUNTIME_LIB"}
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None if verbose else subprocess.DEVNULL,
        env=environment,
        pass_fds=(lock,),
        encoding="utf-8",
    ) as process:
        try:
            _send(process, plan, temporary)
            step, failure = _watch(process, display)
        except BaseException:
            process.kill()
            raise
    if failure is not None:
        raise _as_error(failure, step)
    if process.returncode:
        raise ToolchainError(_describe_end(process.returncode, step) + _full_disk(temporary.parent))


def _send(process: subprocess.Popen[str], plan: CompilePlan, temporary: Path) -> None:
    assert process.stdin is not None
    request = {"plan": plan.to_json(), "temporary": str(temporary), "parent": os.getpid()}
    try:
        with process.stdin as stdin:
            stdin.write(json.dumps(request))
    except BrokenPipeError:
        return  # it died at once; how is told by its exit code


def _watch(process: subprocess.Popen[str], display: Display) -> tuple[str, Failed | None]:
    """Show events until the worker ends; returns the last step and the failure it told."""
    assert process.stdout is not None
    events: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
    reader = threading.Thread(target=_read, args=(process.stdout, events), daemon=True)
    reader.start()
    step, failure = "start", None
    while True:
        try:
            event = events.get(timeout=_TICK_S)
        except queue.Empty:
            display.tick()
            continue
        if event is None:
            break
        if isinstance(event, StepStarted):
            step = event.step
        if isinstance(event, Failed):
            failure = event
        display.show(event)
    reader.join()
    process.wait()
    return step, failure


def _read(stream: IO[str], events: queue.SimpleQueue[Event | None]) -> None:
    for line in stream:
        event = from_line(line)
        if event is not None:
            events.put(event)
    events.put(None)


def _as_error(failure: Failed, step: str) -> AotlmError:
    kind = getattr(errors, failure.error, None) if failure.error else None
    if isinstance(kind, type) and issubclass(kind, AotlmError):
        return kind(failure.message)
    return CompileError(
        f"the compiler failed in step {step}: {failure.message}; nothing was written. This is a "
        "bug: --verbose shows where"
    )


def _full_disk(folder: Path) -> str:
    """LLVM ends its process when it cannot write; the reason can still be seen on the disk."""
    full = shutil.disk_usage(folder).free < _FULL_BYTES
    return f" (no space left on the disk of {folder})" if full else ""


def _describe_end(code: int, step: str) -> str:
    if code > 0:
        return f"the compiler ended with code {code} in step {step}; nothing was written"
    name = signal.Signals(-code).name
    hint = " (was there enough memory?)" if -code == signal.SIGKILL else ""
    return f"the compiler crashed ({name}) in step {step}; nothing was written{hint}"
