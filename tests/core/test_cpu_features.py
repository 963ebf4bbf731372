"""CPU features as Linux and macOS report them."""

from __future__ import annotations

import platform

from aotlm.cpu_features import (
    X86_LEVELS,
    Cpu,
    cpu_features,
    cpu_from_cpuinfo,
    cpu_from_sysctl,
    read_cpu,
)

_X86 = """\
processor\t: {cpu}
model name\t: Example CPU @ 2.00GHz
physical id\t: 0
core id\t\t: {core}
flags\t\t: fpu sse4_1 avx2 avx512_vnni

"""

_ARM = """\
processor\t: 0
Features\t: fp asimd asimddp

processor\t: 1
Features\t: fp asimd asimddp
"""

_MACOS_INTEL = """\
machdep.cpu.brand_string: Intel(R) Core(TM) i9
machdep.cpu.features: FPU SSE4.1 SSE4.2 AVX1.0 FMA
machdep.cpu.leaf7_features: AVX2 BMI2 AVX512F AVX512VNNI
hw.physicalcpu: 8
hw.logicalcpu: 16
"""

_MACOS_ARM = """\
machdep.cpu.brand_string: Apple M2
hw.optional.arm.FEAT_DotProd: 1
hw.optional.arm.FEAT_I8MM: 1
hw.optional.arm.FEAT_BF16: 0
hw.physicalcpu: 10
hw.logicalcpu: 10
"""


def test_linux_on_x86() -> None:
    text = "".join(_X86.format(cpu=cpu, core=cpu // 2) for cpu in range(4))
    assert cpu_from_cpuinfo(text, "x86_64") == Cpu(
        model="Example CPU @ 2.00GHz",
        machine="x86_64",
        logical_cores=4,
        physical_cores=2,
        features=frozenset({"fpu", "sse4_1", "avx2", "avx512_vnni"}),
    )


def test_linux_on_arm() -> None:
    cpu = cpu_from_cpuinfo(_ARM, "aarch64")
    assert cpu.features == {"fp", "asimd", "asimddp"}
    assert cpu.logical_cores == cpu.physical_cores == 2
    assert cpu.level == "aarch64"


def test_macos_names_become_those_of_linux() -> None:
    intel = cpu_from_sysctl(_MACOS_INTEL, "x86_64")
    assert intel.features >= {"sse4_1", "avx", "fma", "avx2", "bmi2", "avx512f", "avx512_vnni"}
    assert (intel.physical_cores, intel.logical_cores) == (8, 16)
    arm = cpu_from_sysctl(_MACOS_ARM, "aarch64")
    assert arm.features == {"asimddp", "i8mm"}
    assert arm.model == "Apple M2"


def test_where_nothing_tells() -> None:
    for cpu in (cpu_from_cpuinfo("", "x86_64"), cpu_from_sysctl("", "x86_64")):
        assert cpu.features == frozenset()
        assert cpu.logical_cores >= 1
        assert cpu.level == "x86-64-v1"


def test_levels_need_all_below() -> None:
    v2, v3, v4 = (X86_LEVELS[f"x86-64-v{level}"] for level in (2, 3, 4))

    def level(features: frozenset[str]) -> str:
        return Cpu("", "x86_64", 1, 1, features).level

    assert level(v2) == "x86-64-v2"
    assert level(v2 | v3) == "x86-64-v3"
    assert level(v2 | v3 | v4) == "x86-64-v4"
    assert level(v3 | v4) == "x86-64-v1"
    assert level((v2 | v3 | v4) - {"avx512dq"}) == "x86-64-v3"


def test_this_machine() -> None:
    cpu = read_cpu()
    assert 1 <= cpu.physical_cores <= cpu.logical_cores
    assert cpu_features() is cpu.features
    if platform.system() == "Linux":
        assert cpu.features
