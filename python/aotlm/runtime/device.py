"""The CPU this process may use, and TVM set up for it before its first import.

Nothing else in the core imports tvm: `load_tvm` is the one door, so that the runtime-only
library (not the 250 MB compiler library) is loaded and the thread count is right.
"""

from __future__ import annotations

import importlib
import math
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_SYSFS = Path("/sys/devices/system/cpu")
_CGROUP_LIMIT = Path("/sys/fs/cgroup/cpu.max")


@dataclass(frozen=True, slots=True)
class Tvm:
    """The modules `tvm` and `tvm_ffi`; untyped, this is the border."""

    tvm: Any
    ffi: Any


def load_tvm(threads: int | None = None) -> Tvm:
    """Import TVM with the runtime-only library and `threads` threads (None: `core_count()`).

    A process that has imported tvm already (the compiler does) keeps what it has: neither
    choice can be changed afterwards. TVM_NUM_THREADS in the environment wins over None.
    """
    if "tvm" not in sys.modules:
        os.environ["TVM_USE_RUNTIME_LIB"] = "1"
        if threads is not None:
            os.environ["TVM_NUM_THREADS"] = str(threads)
        else:
            os.environ.setdefault("TVM_NUM_THREADS", str(core_count()))
    return Tvm(importlib.import_module("tvm"), importlib.import_module("tvm_ffi"))


def core_count(sysfs: Path = _SYSFS, cgroup_limit: Path = _CGROUP_LIMIT) -> int:
    """Physical cores this process may use: its affinity mask, hyper-threads counted once.

    A container's CPU quota lowers it further. At least 1.
    """
    cpus = _allowed_cpus()
    cores = {_core_of(cpu, sysfs) for cpu in cpus}
    return max(1, min(len(cores), _quota(cgroup_limit, len(cpus))))


def _allowed_cpus() -> set[int]:
    if hasattr(os, "sched_getaffinity"):  # Linux only
        return os.sched_getaffinity(0)
    return set(range(os.cpu_count() or 1))


def _core_of(cpu: int, sysfs: Path) -> str:
    """A name shared by the hyper-threads of one core; the CPU's own number when unknown."""
    try:
        return (sysfs / f"cpu{cpu}" / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)


def _quota(cgroup_limit: Path, unlimited: int) -> int:
    try:
        quota, period = cgroup_limit.read_text().split()
        return unlimited if quota == "max" else math.ceil(int(quota) / int(period))
    except (OSError, ValueError):
        return unlimited


def available_memory() -> int:
    """Bytes that can be allocated without swapping, as the kernel estimates them."""
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
