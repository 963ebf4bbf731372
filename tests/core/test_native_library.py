from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aotlm import native
from aotlm.errors import EngineError


def test_the_installed_library_has_the_abi_of_the_loader() -> None:
    assert native.library().aotlm_native_abi() == native.ABI


def test_a_missing_library_says_where_and_how_to_build_it(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match=r"is not in .*csrc/README\.md"):
        native.load([tmp_path])


def test_a_damaged_library_is_one_line(tmp_path: Path) -> None:
    (tmp_path / native.LIBRARY).write_bytes(b"not a library")
    with pytest.raises(EngineError, match="cannot be loaded") as caught:
        native.load([tmp_path])
    assert "\n" not in str(caught.value)


def test_a_library_of_another_version_names_both(tmp_path: Path) -> None:
    source = tmp_path / "other.cc"
    source.write_text('extern "C" int aotlm_native_abi() { return 77; }')
    library = tmp_path / native.LIBRARY
    subprocess.run(["c++", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    with pytest.raises(EngineError, match=f"has ABI 77, this aotlm needs {native.ABI}"):
        native.load([tmp_path])
