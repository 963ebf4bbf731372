"""Targets a model can be compiled for, and the CPU levels among them.

A level is a fixed set of instructions: a library made for one runs on every CPU that has
them. `cpu` means the best level of this machine; `cpu:LEVEL` names one.
"""

from __future__ import annotations

import platform
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from aotlm.cpu_features import X86_LEVELS, cpu_features
from aotlm.errors import CompileError

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True, slots=True)
class CpuLevel:
    """Instructions a library may use.

    `features` are named as Linux prints them in /proc/cpuinfo; `dot` picks the kernel of the
    integer dot product (`aotlm_compile.kernels.cpu.dot`).
    """

    name: str
    machines: tuple[str, ...]
    features: tuple[str, ...]
    mcpu: str
    mattr: tuple[str, ...]
    dot: str


# All that LLVM may use at that level, not only what the kernels ask for: a virtual machine can
# hide any of them.
_V3 = (*sorted(X86_LEVELS["x86-64-v2"]), *sorted(X86_LEVELS["x86-64-v3"]))

# Best first: `cpu` takes the first one this machine has.
# Without -prefer-256-bit LLVM splits every 512-bit vector of an x86-64-v4 CPU in two.
LEVELS = (
    CpuLevel(
        name="x86-64-v4",
        machines=("x86_64", "amd64"),
        features=(*_V3, *sorted(X86_LEVELS["x86-64-v4"]), "avx512_vnni"),
        mcpu="x86-64-v4",
        mattr=("+avx512vnni", "-prefer-256-bit"),
        dot="vnni512",
    ),
    CpuLevel(
        name="x86-64-v3",
        machines=("x86_64", "amd64"),
        features=_V3,
        mcpu="x86-64-v3",
        mattr=(),
        dot="avx2",
    ),
    CpuLevel(
        name="plain",
        machines=("x86_64", "amd64", "aarch64", "arm64"),
        features=(),
        mcpu="",
        mattr=(),
        dot="plain",
    ),
)


@dataclass(frozen=True, slots=True)
class CpuTarget:
    """What `--target` chose: a CPU level on an operating system."""

    name: str
    level: CpuLevel
    triple: str

    @property
    def folder_name(self) -> str:
        """The target's part of an artifact's folder name."""
        return self.name.replace(":", "-")

    def manifest_entry(self) -> dict[str, Any]:
        """The manifest's `target` entry."""
        return {
            "kind": "cpu",
            "triple": self.triple,
            "level": self.level.name,
            "features": list(self.level.features),
        }

    def tvm_target(self, opt_level: int = 3) -> tvm.target.Target:
        """The target as TVM takes it; `opt_level` 0..3 is LLVM's."""
        import tvm

        spec: dict[str, Any] = {
            "kind": "llvm",
            "mtriple": self.triple,
            "opt-level": opt_level,
        }
        if self.level.mcpu:
            spec["mcpu"] = self.level.mcpu
        if self.level.mattr:
            spec["mattr"] = list(self.level.mattr)
        return tvm.target.Target(spec)


def available_targets() -> tuple[str, ...]:
    """Names `parse_target` takes on this machine."""
    return ("cpu", *(f"cpu:{level.name}" for level in _levels_here()))


def parse_target(text: str) -> CpuTarget:
    """The target named `text`. Raises CompileError for an unknown one."""
    if text == "cpu":
        have = cpu_features()
        level = next(lv for lv in _levels_here() if have.issuperset(lv.features))
        return CpuTarget("cpu", level, _host_triple())
    for level in _levels_here():
        if text == f"cpu:{level.name}":
            return CpuTarget(text, level, _host_triple())
    raise CompileError(
        f"unknown target {text!r}; this version compiles for: {', '.join(available_targets())}"
    )


def _levels_here() -> tuple[CpuLevel, ...]:
    machine = platform.machine().lower()
    return tuple(lv for lv in LEVELS if machine in lv.machines or lv.name == "plain")


def _host_triple() -> str:
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if platform.system() == "Darwin":
        return f"{'arm64' if machine == 'aarch64' else machine}-apple-macos13.0"
    return f"{machine}-unknown-linux-gnu"
