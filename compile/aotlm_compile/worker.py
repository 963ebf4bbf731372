"""The process that compiles: `python -m aotlm_compile.worker`, started by `aotlm_compile.driver`.

A crash of code generation ends this process, not the one the user started. The request comes
as one JSON object on stdin; events go out as JSON lines on what was stdout.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import TextIO

from aotlm.errors import AotlmError

from .events import Event, Failed, to_line
from .pipeline import run_pipeline
from .plan import CompilePlan

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main() -> int:
    """Compile what stdin asks for. Exit code 0 when the artifact is in its place."""
    events = _take_stdout()
    faulthandler.enable()
    request = json.loads(sys.stdin.read())
    plan = CompilePlan.from_json(request["plan"])
    _die_with_parent(request["parent"])

    def emit(event: Event) -> None:
        print(to_line(event), file=events, flush=True)

    try:
        run_pipeline(plan, Path(request["temporary"]), emit)
    except AotlmError as error:
        emit(Failed(type(error).__name__, str(error)))
    except MemoryError:
        emit(Failed("CompileError", "out of memory"))
    except OSError as error:
        # A full disk is told by write(), which knows no name.
        place = error.filename or plan.output
        emit(Failed("CompileError", f"cannot write {place}: {error.strerror or error}"))
    except Exception as error:
        traceback.print_exc()
        lines = str(error).strip().splitlines() or [""]
        emit(Failed("", f"{type(error).__name__}: {lines[0]:.300}"))
    else:
        return 0
    return 1


def _take_stdout() -> TextIO:
    """Stdout for events alone: whatever else prints there goes to stderr from now on."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _die_with_parent(parent: int) -> None:
    """On Linux: no orphan goes on compiling when the parent is killed."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main())
