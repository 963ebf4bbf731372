"""`aotlm devices` on the machine of the tests."""

from __future__ import annotations

import json

import pytest

from aotlm.cpu_features import read_cpu
from aotlm.devices_command import main


def test_it_names_the_cpu_and_the_runtimes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert read_cpu().model in out
    assert f"level     {read_cpu().level}" in out
    assert "cpu       usable" in out
    for kind in ("cuda", "vulkan", "metal"):
        assert f"{kind:8}  not built into this version" in out


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["cpu"]["features"] == sorted(read_cpu().features)
    assert data["cpu"]["physical_cores"] == read_cpu().physical_cores
    assert [entry["kind"] for entry in data["runtimes"] if entry["usable"]] == ["cpu"]


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "aotlm devices --json" in capsys.readouterr().out
