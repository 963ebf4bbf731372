"""What this machine's CPU is and which instructions it has, without running any of them."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")

# macOS names that differ from Linux's by more than case.
_MACOS_NAMES = {
    "avx1.0": "avx",
    "sse4.1": "sse4_1",
    "sse4.2": "sse4_2",
    "avx512vnni": "avx512_vnni",
    "avx512bf16": "avx512_bf16",
}
# Apple's names of Arm features -> Linux's.
_ARM_NAMES = {
    "FEAT_DotProd": "asimddp",
    "FEAT_FP16": "asimdhp",
    "FEAT_I8MM": "i8mm",
    "FEAT_BF16": "bf16",
}

# Source: the x86-64 psABI, table of micro-architecture levels (what an OS cannot hide of them).
X86_LEVELS: Mapping[str, frozenset[str]] = {
    "x86-64-v2": frozenset({"cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3"}),
    "x86-64-v3": frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe"}),
    "x86-64-v4": frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}),
}


@dataclass(frozen=True, slots=True)
class Cpu:
    """The CPU as the operating system describes it; `features` are named as Linux names them."""

    model: str
    machine: str  # x86_64, aarch64, ...
    logical_cores: int
    physical_cores: int
    features: frozenset[str]

    @property
    def level(self) -> str:
        """The highest x86-64 level whose features are all there; the machine's name elsewhere."""
        if self.machine != "x86_64":
            return self.machine
        level = "x86-64-v1"
        for name, features in X86_LEVELS.items():
            if not self.features >= features:
                break
            level = name
        return level


def cpu_features() -> frozenset[str]:
    """Features of this CPU, named as /proc/cpuinfo names them; empty where nothing tells."""
    return read_cpu().features


@cache
def read_cpu() -> Cpu:
    """This machine's CPU. Never fails: what cannot be found out is empty or a guess."""
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    if platform.system() == "Darwin":
        return cpu_from_sysctl(_sysctl(), machine)
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    return cpu_from_cpuinfo(text, machine)


def cpu_from_cpuinfo(text: str, machine: str) -> Cpu:
    """Read the text of Linux's /proc/cpuinfo."""
    blocks = [_fields(block) for block in text.strip().split("\n\n")]
    first = blocks[0]
    logical = sum("processor" in block for block in blocks) or os.cpu_count() or 1
    cores = {
        (block.get("physical id", ""), block["core id"]) for block in blocks if "core id" in block
    }
    return Cpu(
        model=first.get("model name") or platform.processor() or machine,
        machine=machine,
        logical_cores=logical,
        physical_cores=len(cores) or logical,
        features=frozenset((first.get("flags") or first.get("Features") or "").split()),
    )


def cpu_from_sysctl(text: str, machine: str) -> Cpu:
    """Read the output of macOS's `sysctl machdep.cpu hw`."""
    fields = _fields(text)
    names = " ".join(
        fields.get(f"machdep.cpu.{key}", "")
        for key in ("features", "leaf7_features", "extfeatures")
    )
    features = {_MACOS_NAMES.get(name, name) for name in names.lower().split()}
    features |= {
        linux
        for apple, linux in _ARM_NAMES.items()
        if fields.get(f"hw.optional.arm.{apple}") == "1"
    }
    logical = fields.get("hw.logicalcpu", "")
    physical = fields.get("hw.physicalcpu", "")
    count = int(logical) if logical.isdecimal() else os.cpu_count() or 1
    return Cpu(
        model=fields.get("machdep.cpu.brand_string") or machine,
        machine=machine,
        logical_cores=count,
        physical_cores=int(physical) if physical.isdecimal() else count,
        features=frozenset(features),
    )


def _fields(text: str) -> dict[str, str]:
    """Lines "key : value" as a dict; the first of equal keys counts."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, colon, value = line.partition(":")
        if colon:
            fields.setdefault(key.strip(), value.strip())
    return fields


def _sysctl() -> str:
    try:
        result = subprocess.run(
            ["/usr/sbin/sysctl", "machdep.cpu", "hw"],
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout
