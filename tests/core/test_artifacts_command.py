"""`aotlm artifacts` on a folder of small artifacts."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path

import pytest

from aotlm.artifact import TargetInfo
from aotlm.artifacts_command import main
from aotlm.errors import ArtifactCorrupt, ArtifactError, ArtifactNotFound
from tests.core.artifact_files import host_triple, write_artifact


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_artifact(tmp_path / "tiny-cpu")
    far = TargetInfo("cpu", host_triple(), "far", ("warp9",))
    write_artifact(tmp_path / "tiny-far", target=far)
    monkeypatch.setenv("AOTLM_MODEL_LIBS", str(tmp_path))
    return tmp_path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("root")
class TestList:
    def test_a_line_each(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([]) == 0
        usable, unusable = capsys.readouterr().out.splitlines()
        assert usable.startswith("tiny-cpu     0.0 MB  context 256  q4f32_1  plain  2026-")
        assert unusable.startswith("tiny-far  unusable: ")
        assert "warp9" in unusable
        assert main(["list"]) == 0

    def test_as_json(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["list", "--json"]) == 0
        listed = capsys.readouterr().out
        usable, unusable = json.loads(listed)
        assert usable["name"] == "tiny-cpu"
        assert usable["usable"] is True
        assert usable["bytes"] == 180
        assert unusable["usable"] is False
        assert "warp9" in unusable["problem"]
        assert main(["--json"]) == 0
        assert capsys.readouterr().out == listed

    def test_an_empty_root(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        nowhere = tmp_path / "nowhere"
        assert main(["--root", str(nowhere)]) == 0
        assert capsys.readouterr().out == (
            f"no artifacts in {nowhere}; make one with: aotlm compile MODEL\n"
        )
        assert main(["list", "--root", str(nowhere), "--json"]) == 0
        assert json.loads(capsys.readouterr().out) == []


def test_show(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "tiny-cpu"]) == 0
    out = capsys.readouterr().out
    assert "tiny (llama, 2 layers, hidden size 64, vocabulary 101)" in out
    assert "256 tokens (trained for 512)" in out
    assert "aotlm 0.1.0, tvm 0.27.0, tvm_ffi 0.1.14" in out
    assert "unusable" not in out
    assert main(["show", str(root / "tiny-far")]) == 0
    assert "unusable" in capsys.readouterr().out
    assert main(["show", "tiny-cpu", "--json"]) == 0
    assert capsys.readouterr().out == (root / "tiny-cpu" / "manifest.json").read_text()


def test_an_unknown_name(root: Path) -> None:
    for action in ("show", "verify", "remove"):
        with pytest.raises(ArtifactNotFound, match="there: tiny-"):
            main([action, "tiny-gpu"])


def test_verify(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", "tiny-cpu"]) == 0
    assert "all 4 files are as they were written" in capsys.readouterr().out
    assert main(["verify", "tiny-cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"name": "tiny-cpu", "ok": True, "files": 4}
    (root / "tiny-cpu" / "model.so").write_bytes(b"\x7fELG")
    with pytest.raises(ArtifactCorrupt, match=r"model\.so was altered"):
        main(["verify", "tiny-cpu"])


def test_remove_needs_a_terminal_or_yes(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("y\n"))
    with pytest.raises(ArtifactError, match="was not removed: add --yes"):
        main(["remove", "tiny-cpu"])
    assert (root / "tiny-cpu").exists()
    assert main(["remove", "tiny-cpu", "--yes"]) == 0
    assert capsys.readouterr().out == f"removed {root / 'tiny-cpu'}\n"
    assert not (root / "tiny-cpu").exists()
    assert main(["remove", "tiny-far", "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["removed"] is True


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("", True), ("n\n", False)])
def test_remove_asks_on_a_terminal(
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    removed: bool,
) -> None:
    monkeypatch.setattr(sys, "stdin", Terminal(answer or "YES\n"))
    assert main(["remove", "tiny-cpu"]) == (0 if removed else 1)
    assert "[y/N]" in capsys.readouterr().out
    assert (root / "tiny-cpu").exists() is not removed


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "aotlm artifacts show" in capsys.readouterr().out
