from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from aotlm.runtime.device import available_memory, core_count


@pytest.fixture
def sysfs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Eight logical processors, of which 0 and 4, 1 and 5, ... share a core."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    return tmp_path


def test_hyper_threads_count_once(sysfs: Path) -> None:
    assert core_count(sysfs, sysfs / "none") == 4


def test_the_affinity_mask_counts(sysfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 4, 5})
    assert core_count(sysfs, sysfs / "none") == 2


@pytest.mark.parametrize(
    ("limit", "cores"),
    [("max 100000", 4), ("150000 100000", 2), ("10000 100000", 1), ("nonsense", 4)],
)
def test_a_containers_quota_lowers_the_count(sysfs: Path, limit: str, cores: int) -> None:
    (sysfs / "cpu.max").write_text(limit)
    assert core_count(sysfs, sysfs / "cpu.max") == cores


def test_without_topology_every_processor_is_a_core(sysfs: Path) -> None:
    assert core_count(sysfs / "elsewhere", sysfs / "none") == 8


def test_available_memory_is_part_of_the_whole() -> None:
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < available_memory() <= whole


@pytest.mark.parametrize(("given", "expected"), [("None", "7"), ("3", "3")])
def test_tvm_is_loaded_with_the_runtime_library_and_the_threads(given: str, expected: str) -> None:
    """In a process of its own: this one may have imported tvm already."""
    script = (
        "import os\n"
        "from aotlm.runtime.device import load_tvm\n"
        f"load_tvm({given})\n"
        "maps = open('/proc/self/maps').read()\n"
        "assert 'libtvm_compiler' not in maps, 'the compiler library was loaded'\n"
        "print(os.environ['TVM_NUM_THREADS'], os.environ['TVM_USE_RUNTIME_LIB'])\n"
    )
    environment = {**os.environ, "TVM_NUM_THREADS": "7"}
    environment.pop("TVM_USE_RUNTIME_LIB", None)
    result = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert result.stderr == ""
    assert result.stdout.split() == [expected, "1"]
