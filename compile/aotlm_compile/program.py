"""From an opened checkpoint to a device library: build, pack, lower, link."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy.typing as npt

from aotlm.errors import CompileError, ToolchainError

from .checkpoint.base import Checkpoint
from .layers.weights import WeightBook
from .models import family_for
from .models.base import CausalLM, ModelConfig
from .passes import run_passes
from .quantize import scheme_named
from .targets import CpuTarget
from .toolchain import find_linker

PAGE_SIZE = 16


@dataclass(frozen=True, slots=True)
class ProgramOptions:
    """Limits fixed at compile time, counted in tokens and sequences; `opt_level` 0..3 is LLVM's."""

    context_window: int
    prefill_chunk: int
    max_batch_size: int
    opt_level: int = 3


@dataclass(frozen=True, slots=True)
class PackedWeight:
    """One weight as the library reads it."""

    name: str
    array: npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Program:
    """A model as TVM's IR, and the book its weights are packed by."""

    module: Any  # tvm.IRModule
    parameters: tuple[tuple[str, Any], ...]  # (name, nn.Parameter) in the library's order
    book: WeightBook
    family: str
    name: str
    config: ModelConfig
    options: ProgramOptions
    target: CpuTarget

    @property
    def model_info(self) -> dict[str, Any]:
        """The manifest's `model` entry."""
        c = self.config
        return {
            "name": self.name,
            "family": self.family,
            "vocab_size": c.vocab_size,
            "hidden_size": c.hidden_size,
            "num_layers": c.num_layers,
            "num_heads": c.num_heads,
            "num_kv_heads": c.num_kv_heads,
            "head_dim": c.head_dim,
            "context_window": self.options.context_window,
            "trained_context": c.trained_context,
        }

    @property
    def limits(self) -> dict[str, int]:
        """The manifest's `limits` entry."""
        return {
            "context_window": self.options.context_window,
            "prefill_chunk": self.options.prefill_chunk,
            "max_batch_size": self.options.max_batch_size,
            "page_size": PAGE_SIZE,
        }

    def pack(self) -> Iterator[PackedWeight]:
        """The weights in the library's order, one at a time. Raises CheckpointError."""
        arrays = self.book.pack([parameter for _, parameter in self.parameters])
        for (name, _), array in zip(self.parameters, arrays, strict=True):
            yield PackedWeight(name, array)


def build(
    checkpoint: Checkpoint, scheme_name: str, target: CpuTarget, options: ProgramOptions
) -> Program:
    """Express the model in TVM's IR. Raises CheckpointError or CompileError."""
    family = family_for(checkpoint.config)
    config = family.read_config(checkpoint.config)
    if options.context_window > config.trained_context:
        raise CompileError(
            f"--context-window {options.context_window} exceeds the {config.trained_context} "
            f"tokens {checkpoint.name} was trained for"
        )
    book = WeightBook(checkpoint, scheme_named(scheme_name))
    model: CausalLM = family.build(config, book, target, options.context_window)
    module, parameters = model.export_tvm(spec=model.spec(), allow_extern=False)
    return Program(
        run_passes(module),
        tuple(parameters),
        book,
        family.name,
        checkpoint.name,
        config,
        options,
        target,
    )


def lower(program: Program) -> Any:
    """Compile to machine code: a tvm.relax.VMExecutable.

    A crash of the code generator kills the process.
    """
    import tvm

    target = program.target.tvm_target(program.options.opt_level)
    with target, tvm.transform.PassContext(opt_level=3):
        return tvm.compile(program.module, target=target)


def link(executable: Any, path: Path) -> None:
    """Write what `lower` made as a shared library.

    Raises ToolchainError when there is no working linker.
    """
    compiler = find_linker()
    try:
        # Beside the library, so that what a kill leaves goes with the compile's own folder.
        with TemporaryDirectory(prefix=".link-", dir=path.parent) as folder:
            executable.export_library(str(path), cc=compiler, workspace_dir=folder)
    except RuntimeError as error:
        # TVM puts a title above what the linker says and its command below.
        frame = ("Compilation error:", "Command line:", "collect2:")
        said = [line for line in str(error).splitlines() if line and not line.startswith(frame)]
        last = said[-1] if said else "it does not say why"
        raise ToolchainError(f"linking {path} with {compiler} failed: {last}") from error
