"""The source distribution, the wheel made from it, and the installed command."""

from __future__ import annotations

import configparser
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import entry_points
from pathlib import Path

import pytest

from tests.e2e.server_process import REPOSITORY

PACKAGES = {"python": "aotlm", "compile": "aotlm_compile", "server": "aotlm_server"}


@pytest.fixture(scope="module")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(sdist, wheel built from that sdist and from nothing else)."""
    folder = tmp_path_factory.mktemp("dist")
    build = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(folder), str(REPOSITORY)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert build.returncode == 0, build.stdout + build.stderr
    [sdist] = folder.glob("*.tar.gz")
    [wheel] = folder.glob("*.whl")
    return sdist, wheel


@pytest.fixture
def wheel(distributions: tuple[Path, Path]) -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(distributions[1]) as archive:
        yield archive


def package_files() -> set[str]:
    """Every file of the three packages in the working tree, as the wheel should name it."""
    found: set[str] = set()
    for root, package in PACKAGES.items():
        for path in (REPOSITORY / root / package).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts and path.suffix != ".so":
                found.add(path.relative_to(REPOSITORY / root).as_posix())
    return found


def test_wheel_holds_the_packages_and_their_data(wheel: zipfile.ZipFile) -> None:
    names = set(wheel.namelist())
    expected = package_files()
    expected |= {
        f"aotlm_compile/recipes/{path.name}"
        for path in (REPOSITORY / "model_libs" / "recipes").glob("*.toml")
    }
    assert "aotlm_compile/recipes/smollm2-135m.toml" in expected
    assert expected <= names
    libraries = [n for n in names if n.startswith("aotlm/native/libaotlm_native.")]
    assert len(libraries) == 1
    others = {n for n in names if ".dist-info/" not in n} - expected - set(libraries)
    assert others == set()


def test_wheel_metadata(distributions: tuple[Path, Path], wheel: zipfile.ZipFile) -> None:
    # A plain C ABI: the wheel is bound to a platform and to no Python version.
    assert distributions[1].name.startswith("aotlm-0.1.0-py3-none-")
    [metadata_name] = [n for n in wheel.namelist() if n.endswith(".dist-info/METADATA")]
    metadata = Parser().parsestr(wheel.read(metadata_name).decode())
    requirements = metadata.get_all("Requires-Dist") or []
    assert "apache-tvm==0.27.0.post1" in requirements
    assert "apache-tvm-ffi==0.1.14.post1" in requirements
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    [points_name] = [n for n in wheel.namelist() if n.endswith(".dist-info/entry_points.txt")]
    points = configparser.ConfigParser(delimiters="=")
    points.read_string(wheel.read(points_name).decode())
    assert points["console_scripts"]["aotlm"] == "aotlm.cli:main"


def test_sdist_can_be_built_from_and_holds_no_build_products(
    distributions: tuple[Path, Path],
) -> None:
    with tarfile.open(distributions[0]) as archive:
        names = [name.split("/", 1)[1] for name in archive.getnames() if "/" in name]
    for needed in (
        "CMakeLists.txt",
        "LICENSE",
        "README.md",
        "model_libs/recipes/smollm2-135m.toml",
    ):
        assert needed in names
    unwanted = (".venv/", "model_libs/build/", "build/", ".git/")
    assert [name for name in names if name.startswith(unwanted) or name.endswith(".so")] == []


def test_every_command_of_the_installed_package_loads() -> None:
    commands = {point.name: point for point in entry_points(group="aotlm.commands")}
    assert set(commands) == {
        "artifacts",
        "bench engine",
        "bench http",
        "chat",
        "compile",
        "devices",
        "serve",
    }
    for point in commands.values():
        assert callable(point.load())
