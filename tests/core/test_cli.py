"""The dispatcher: finds commands by entry points, loads one, maps errors to exit codes."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path

import pytest

from aotlm import cli
from aotlm.errors import ArtifactNotFound

Run = Callable[..., int]


def returns_its_arguments(argv: Sequence[str]) -> int:
    print("got", *argv)
    return 3


def fails(argv: Sequence[str]) -> int:
    raise ArtifactNotFound("there is nothing\nhere")


def is_interrupted(argv: Sequence[str]) -> int:
    raise KeyboardInterrupt


def stops_early(argv: Sequence[str]) -> int:
    raise SystemExit(2)


def has_a_bug(argv: Sequence[str]) -> int:
    raise ZeroDivisionError("a bug")


@pytest.fixture
def commands(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        metadata.EntryPoint(name, f"{__name__}:{function}", cli.GROUP)
        for name, function in {
            "serve": "returns_its_arguments",
            "bench http": "returns_its_arguments",
            "bench engine": "fails",
            "wait": "is_interrupted",
            "stop": "stops_early",
            "bug": "has_a_bug",
            "gone": "no_such_function",
        }.items()
    ]
    entries.append(metadata.EntryPoint("lost", "no_such_module_x:main", cli.GROUP))
    monkeypatch.setattr(metadata, "entry_points", lambda group: entries)


@pytest.mark.usefixtures("commands")
class TestCommands:
    def test_arguments_and_exit_code_pass_through(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["serve", "--port", "1", "--help"]) == 3
        assert capsys.readouterr().out == "got --port 1 --help\n"

    def test_the_longest_name_wins(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bench", "http", "x"]) == 3
        assert capsys.readouterr().out == "got x\n"

    def test_our_errors_are_one_line(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bench", "engine"]) == 1
        assert capsys.readouterr() == ("", "aotlm: there is nothing here\n")

    def test_an_interrupt(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["wait"]) == 130
        assert capsys.readouterr().err == "aotlm: interrupted\n"

    def test_argparse_may_exit_and_bugs_are_not_hidden(self) -> None:
        with pytest.raises(SystemExit):
            cli.main(["stop"])
        with pytest.raises(ZeroDivisionError):
            cli.main(["bug"])

    def test_a_command_that_cannot_be_loaded(self, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("lost", "gone"):
            assert cli.main([name]) == 1
            error = capsys.readouterr().err
            assert error.startswith(f"aotlm: the command '{name}' cannot be loaded (")
            assert error.count("\n") == 1

    def test_an_unknown_command(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["srve"]) == 2
        out, error = capsys.readouterr()
        assert out == ""
        assert error.startswith("aotlm: unknown command 'srve'; there are: bench engine, ")
        assert error.count("\n") == 1
        assert cli.main(["bench", "gpu"]) == 2
        assert capsys.readouterr().err == (
            "aotlm: unknown command 'bench gpu'; there are: bench engine, bench http\n"
        )

    def test_the_overview(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["--help"]) == 0
        out = capsys.readouterr().out
        assert "serve         serve a model over the OpenAI-compatible HTTP API" in out
        assert "\n  lost\n" in out
        assert cli.main(["-h"]) == 0
        assert capsys.readouterr().out == out
        assert cli.main([]) == 2
        assert capsys.readouterr().out == out

    def test_the_overview_of_a_family(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.main(["bench", "--help"]) == 0
        out = capsys.readouterr().out
        assert "bench http" in out
        assert "wait" not in out
        assert cli.main(["bench"]) == 2


def test_without_an_installation_it_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    assert cli.main(["serve"]) == 1
    assert "aotlm is not installed in this Python" in capsys.readouterr().err
    assert cli.main(["--help"]) == 0
    assert "aotlm is not installed in this Python" in capsys.readouterr().out


def test_the_version(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(metadata, "version", lambda name: "1.2.3")
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == "aotlm 1.2.3\n"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert cli.main(["-V"]) == 0
    assert capsys.readouterr().out == "aotlm (not installed)\n"


def test_help_is_quick_and_imports_no_command() -> None:
    program = (
        "import sys; from aotlm.cli import main; main(['--help']); "
        "assert not {'tvm', 'numpy', 'aiohttp', 'jinja2', 'asyncio'} & set(sys.modules)"
    )
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.2


def test_a_reader_that_leaves(tmp_path: Path) -> None:
    package = tmp_path / "chatty-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: chatty\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[aotlm.commands]\nchatty = chatty:main\n")
    (tmp_path / "chatty.py").write_text(
        textwrap.dedent(
            """\
            def main(argv):
                for _ in range(100_000):
                    print("a line that nobody reads")
                return 0
            """
        )
    )
    path = os.pathsep.join([str(tmp_path), *sys.path])
    process = subprocess.Popen(
        [sys.executable, "-m", "aotlm", "chatty"],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == b""
    process.stderr.close()
