from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from aotlm import bench
from aotlm.engine.engine import Engine
from aotlm.engine.protocol import EngineLimits
from aotlm.errors import ArtifactNotFound, GenerationFailed, RequestError
from tests.core.numpy_runner import NumpyRunner


class Clock:
    """A second for each forward pass of prefill, a tenth for each decode."""

    def __init__(self, runner: NumpyRunner) -> None:
        self._runner = runner

    def perf_counter(self) -> float:
        return sum(1.0 if kind == "prefill" else 0.1 for kind, _ in self._runner.calls)


@pytest.fixture
def runner() -> NumpyRunner:
    return NumpyRunner(num_pages=200, limits=EngineLimits(64, 16, 4))


@pytest.mark.parametrize(
    ("workload", "expected"),
    [
        # 16 tokens in one pass of a second; 10 tokens a second while decoding.
        (bench.Workload(16, 8, 1, 16), bench.Measurement(16.0, 10.0, 1.0)),
        # 32 tokens in two passes; the context is four chunks and does not count.
        (bench.Workload(32, 8, 1, 48), bench.Measurement(16.0, 10.0, 2.0)),
        # Two prompts, first tokens after 1 and 2 seconds; two tokens a decode.
        (bench.Workload(16, 8, 2, 16), bench.Measurement(16.0, 20.0, 1.5)),
    ],
)
def test_figures_are_those_of_the_clock(
    runner: NumpyRunner,
    workload: bench.Workload,
    expected: bench.Measurement,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bench, "time", Clock(runner))
    measured = bench.measure(Engine(runner, busy_prefill_tokens=16), workload, repeat=2)
    assert measured.prefill_tok_s == pytest.approx(expected.prefill_tok_s)
    assert measured.decode_tok_s == pytest.approx(expected.decode_tok_s)
    assert measured.ttft_s == pytest.approx(expected.ttft_s)
    assert runner.pages.free == 200


def test_a_workload_that_does_not_fit_says_what_to_lower(runner: NumpyRunner) -> None:
    with pytest.raises(RequestError, match=r"70 tokens .* holds 64: lower"):
        bench.measure(Engine(runner), bench.Workload(8, 20, 1, 48), repeat=1)


def test_a_model_that_fails_is_not_measured(runner: NumpyRunner) -> None:
    def poison(seq_ids: object) -> None:
        if len(runner.calls) == 3:
            runner.calls.append(("failed", 0))
            raise ValueError("injected")

    runner.hook = poison
    with pytest.raises(GenerationFailed, match="injected"):
        bench.measure(Engine(runner), bench.Workload(16, 8, 1, 16), repeat=3)


def test_json_has_the_documented_keys(
    compile_tiny: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(compile_tiny("q0f32")), "--prompt-tokens", "40", "--new-tokens", "4"]
    words += ["--batch", "2", "--context", "100", "--repeat", "1"]
    capsys.readouterr()  # the compiler's
    assert bench.main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    for key in ("prefill_tok_s", "decode_tok_s", "ttft_s", "peak_rss_mb"):
        assert report[key] > 0
    assert (report["batch"], report["context"], report["prompt_tokens"]) == (2, 100, 40)
    assert bench.main(words) == 0
    assert "tokens/s  (4 tokens after 100)" in capsys.readouterr().out


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ArtifactNotFound, match="no-such-model"):
        bench.main(["no-such-model"])


@pytest.mark.parametrize("words", [["m", "--batch", "0"], ["m", "--repeat", "x"], []])
def test_wrong_usage_exits_with_two(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        bench.main(words)
    assert "usage: aotlm bench engine" in capsys.readouterr().err


def test_memory_is_that_of_this_process() -> None:
    assert 10 < bench.peak_rss_mb() < 100_000
