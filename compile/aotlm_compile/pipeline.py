"""The steps of a compile: read -> build -> quantize -> lower -> link -> write."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from aotlm.errors import ArtifactCorrupt, CheckpointError
from aotlm.manifest import LIBRARY_FILE, WEIGHTS_FILE
from aotlm.text.conversation import ConversationTemplate

from .checkpoint.base import Checkpoint
from .checkpoint.open import open_checkpoint
from .events import Event, StepFinished, StepProgress, StepStarted
from .output_folder import publish
from .package import Contents, write_package
from .plan import CompilePlan
from .targets import parse_target
from .toolchain import find_linker
from .weights_file import WeightsFile

if TYPE_CHECKING:
    from .program import Program

Emit = Callable[[Event], None]


class _Step:
    """A running step; `detail` is told when it ends."""

    def __init__(self, name: str, emit: Emit) -> None:
        self.detail = ""
        self._name = name
        self._emit = emit

    def progress(self, done: int, total: int) -> None:
        self._emit(StepProgress(self._name, done, total))


def run_pipeline(plan: CompilePlan, temporary: Path, emit: Emit) -> None:
    """Do every step, write into `temporary` and rename it to the plan's output.

    Raises CheckpointError, CompileError or ToolchainError.
    """
    target = parse_target(plan.target)
    with _step("read", emit) as step:
        # What can fail for reasons known by now fails here, not after minutes of work.
        find_linker()
        checkpoint = open_checkpoint(Path(plan.source))
        tokenizer = checkpoint.tokenizer_json()
        _check_chat_template(checkpoint, plan.source)
        from . import program as tvm_program  # imports tvm, which takes a second or two
        from .models import family_for

        family_for(checkpoint.config)
        step.detail = _describe(checkpoint)
    with _step("build", emit):
        options = tvm_program.ProgramOptions(
            context_window=plan.context_window,
            prefill_chunk=plan.prefill_chunk,
            max_batch_size=plan.max_batch_size,
            opt_level=plan.opt_level,
        )
        program = tvm_program.build(checkpoint, plan.quantization, target, options)
    with _step("quantize", emit) as step:
        weights = _write_weights(program, temporary / WEIGHTS_FILE, step)
        step.detail = f"{plan.quantization}, {weights.size / 1e6:.1f} MB"
    with _step("lower", emit) as step:
        executable = tvm_program.lower(program)
        step.detail = f"{target.name}, level {target.level.name}"
    with _step("link", emit) as step:
        tvm_program.link(executable, temporary / LIBRARY_FILE)
        step.detail = f"{(temporary / LIBRARY_FILE).stat().st_size / 1e6:.1f} MB"
    with _step("write", emit):
        contents = Contents(
            plan=plan,
            checkpoint=checkpoint,
            tokenizer=tokenizer,
            target=target,
            model={**program.model_info, "name": plan.model_name},
            limits=program.limits,
            weights=weights,
        )
        write_package(temporary, contents)
        publish(temporary, Path(plan.output))


def _check_chat_template(checkpoint: Checkpoint, source: str) -> None:
    template = checkpoint.chat_template()
    if template is None:
        return
    try:
        ConversationTemplate(template, name=f"the chat template of {source}").prepare()
    except ArtifactCorrupt as error:
        raise CheckpointError(str(error)) from error


def _write_weights(program: Program, path: Path, step: _Step) -> WeightsFile:
    total = len(program.parameters)
    with WeightsFile(path) as weights:
        for done, weight in enumerate(program.pack(), 1):
            weights.add(weight.name, weight.array)
            step.progress(done, total)
    return weights


def _describe(checkpoint: Checkpoint) -> str:
    config = checkpoint.config
    layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    count = len(checkpoint.tensor_names())
    return f"{checkpoint.kind} {config.get('model_type')}, {layers} x {hidden}, {count} tensors"


@contextmanager
def _step(name: str, emit: Emit) -> Iterator[_Step]:
    started = time.perf_counter()
    emit(StepStarted(name))
    step = _Step(name, emit)
    yield step
    emit(StepFinished(name, round(time.perf_counter() - started, 3), step.detail))
