"""Names of targets, and which CPU level they choose, on machines that are not this one."""

from __future__ import annotations

import platform
from collections.abc import Callable

import pytest

from aotlm.cpu_features import X86_LEVELS, cpu_features
from aotlm.errors import CompileError
from aotlm_compile import targets
from aotlm_compile.kernels.cpu.dot import DOTS
from aotlm_compile.targets import LEVELS, available_targets, parse_target

V3 = X86_LEVELS["x86-64-v2"] | X86_LEVELS["x86-64-v3"]
V4 = V3 | X86_LEVELS["x86-64-v4"]
Machine = Callable[..., None]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """A function that pretends to another machine."""

    def pretend(name: str, features: frozenset[str] = frozenset(), system: str = "Linux") -> None:
        monkeypatch.setattr(platform, "machine", lambda: name)
        monkeypatch.setattr(platform, "system", lambda: system)
        monkeypatch.setattr(targets, "cpu_features", lambda: features)

    return pretend


@pytest.mark.parametrize(
    ("features", "level"),
    [
        (V4 | {"avx512_vnni", "amx_tile"}, "x86-64-v4"),
        (V4, "x86-64-v3"),  # Skylake-X: AVX-512 without its integer dot product
        (V3 | {"avx_vnni"}, "x86-64-v3"),
        (V3 - {"f16c"}, "plain"),
        (V3 - {"fma"}, "plain"),
        (X86_LEVELS["x86-64-v2"], "plain"),
        (frozenset(), "plain"),
    ],
)
def test_cpu_is_the_best_level_of_the_machine(
    machine: Machine, features: frozenset[str], level: str
) -> None:
    machine("x86_64", features)
    target = parse_target("cpu")
    assert (target.name, target.level.name) == ("cpu", level)
    assert features.issuperset(target.level.features)


def test_a_named_level_may_exceed_the_machine(machine: Machine) -> None:
    """Compiling for another machine; running it here is what the artifact refuses."""
    machine("x86_64", X86_LEVELS["x86-64-v2"])
    assert parse_target("cpu:x86-64-v4").level.name == "x86-64-v4"
    assert available_targets() == ("cpu", "cpu:x86-64-v4", "cpu:x86-64-v3", "cpu:plain")


@pytest.mark.parametrize("name", ["aarch64", "arm64"])
def test_arm_has_the_plain_level(machine: Machine, name: str) -> None:
    machine(name, frozenset({"asimd", "asimddp", "i8mm"}))
    assert available_targets() == ("cpu", "cpu:plain")
    assert parse_target("cpu").level.name == "plain"
    assert parse_target("cpu").triple == "aarch64-unknown-linux-gnu"
    with pytest.raises(CompileError, match=r"unknown target 'cpu:x86-64-v3'.*: cpu, cpu:plain$"):
        parse_target("cpu:x86-64-v3")


@pytest.mark.parametrize("name", ["riscv64", "ppc64le"])
def test_any_other_machine_has_the_plain_level(machine: Machine, name: str) -> None:
    machine(name)
    assert parse_target("cpu").level.name == "plain"
    assert parse_target("cpu").triple == f"{name}-unknown-linux-gnu"


@pytest.mark.parametrize(
    ("name", "triple"),
    [("arm64", "arm64-apple-macos13.0"), ("x86_64", "x86_64-apple-macos13.0")],
)
def test_macos(machine: Machine, name: str, triple: str) -> None:
    machine(name, system="Darwin")
    assert parse_target("cpu").triple == triple


def test_the_machine_may_be_spelt_in_capitals(machine: Machine) -> None:
    machine("AMD64", V3)
    assert parse_target("cpu").level.name == "x86-64-v3"


@pytest.mark.parametrize(
    "text", ["", "cpu:", "CPU", "cpu:x86-64-v9", "cuda", "cpu:plain ", "plain"]
)
def test_unknown_names_are_refused_with_those_known(machine: Machine, text: str) -> None:
    machine("x86_64", V3)
    with pytest.raises(CompileError) as caught:
        parse_target(text)
    message = str(caught.value)
    assert repr(text) in message
    assert message.endswith("cpu, cpu:x86-64-v4, cpu:x86-64-v3, cpu:plain")


def test_folder_names_and_manifest_entry(machine: Machine) -> None:
    machine("x86_64", V3)
    assert parse_target("cpu").folder_name == "cpu"
    target = parse_target("cpu:x86-64-v3")
    assert target.folder_name == "cpu-x86-64-v3"
    assert target.manifest_entry() == {
        "kind": "cpu",
        "triple": "x86_64-unknown-linux-gnu",
        "level": "x86-64-v3",
        "features": list(target.level.features),
    }
    assert parse_target("cpu:plain").manifest_entry()["features"] == []


def test_levels_name_features_that_linux_prints() -> None:
    """A misspelt one would make every machine lack it."""
    known = V4 | {"avx512_vnni"}
    for level in LEVELS:
        assert known.issuperset(level.features)
        assert level.dot in DOTS
    assert LEVELS[-1].features == ()
    assert {"avx2", "fma"} <= set(LEVELS[1].features)


@pytest.mark.parametrize("name", available_targets())
def test_tvm_takes_every_target(name: str) -> None:
    target = parse_target(name).tvm_target(opt_level=2)
    assert target.kind.name == "llvm"
    assert str(target.attrs["mtriple"]) == parse_target(name).triple


def test_this_machine_runs_what_cpu_means() -> None:
    assert cpu_features().issuperset(parse_target("cpu").level.features)
