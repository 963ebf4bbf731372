"""Loading a compiled library and calling it, against a NumPy Llama of the same weights."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from aotlm.artifact import Artifact
from aotlm.config import EngineConfig
from aotlm.engine.protocol import EngineLimits
from aotlm.errors import ArtifactCorrupt, ArtifactIncompatible, ArtifactNotFound, RequestError
from aotlm.runtime.compiled_model import CompiledModel
from aotlm.runtime.device import load_tvm
from aotlm.runtime.model_runner import CompiledRunner, cache_tokens, engine_limits, open_runner
from aotlm.runtime.params import load_params
from tests.reference_llama import ReferenceLlama
from tests.tiny_model import CONFIG, random_weights

PROMPT = list(range(40, 70))


@pytest.fixture(scope="module")
def artifact(compile_tiny: Callable[..., Path]) -> Artifact:
    return Artifact.open(compile_tiny("q0f32"))


@pytest.fixture(scope="module")
def reference() -> ReferenceLlama:
    return ReferenceLlama(CONFIG, random_weights(CONFIG, 0))


@pytest.fixture
def runner(artifact: Artifact) -> CompiledRunner:
    return open_runner(EngineConfig(artifact=artifact.path, cache_tokens=512))


def int32(*values: int) -> NDArray[np.int32]:
    return np.array(values, np.int32)


def prefill(runner: CompiledRunner, seq_id: int, tokens: list[int]) -> NDArray[np.float32]:
    """Logits after the last token: float32 [vocab], a copy."""
    logits = runner.prefill([seq_id], [len(tokens)], int32(*tokens), int32(len(tokens) - 1))
    assert logits.shape == (1, CONFIG["vocab_size"])
    return np.array(logits[0])


def assert_close(actual: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(actual, expected, atol=1e-3)


class TestLogits:
    def test_prefill_and_decode(self, runner: CompiledRunner, reference: ReferenceLlama) -> None:
        expected = reference.logits([*PROMPT, 5, 6])
        runner.add(0)
        assert_close(prefill(runner, 0, PROMPT), expected[-3])
        assert_close(runner.decode([0], int32(5))[0], expected[-2])
        assert_close(runner.decode([0], int32(6))[0], expected[-1])

    def test_a_prompt_in_chunks(self, runner: CompiledRunner, reference: ReferenceLlama) -> None:
        runner.add(0)
        prefill(runner, 0, PROMPT[:7])
        prefill(runner, 0, PROMPT[7:20])
        assert_close(prefill(runner, 0, PROMPT[20:]), reference.logits(PROMPT)[-1])

    def test_a_ragged_batch(self, runner: CompiledRunner, reference: ReferenceLlama) -> None:
        prompts = [PROMPT[:3], PROMPT[5:17], [9]]
        for seq_id in range(3):
            runner.add(seq_id)
        tokens = int32(*(token for prompt in prompts for token in prompt))
        logits = runner.prefill([0, 1, 2], [3, 12, 1], tokens, int32(2, 14, 15))
        for row, prompt in zip(logits, prompts, strict=True):
            assert_close(row, reference.logits(prompt)[-1])
        logits = runner.decode([2, 0], int32(4, 8))
        assert_close(logits[0], reference.logits([9, 4])[-1])
        assert_close(logits[1], reference.logits([*PROMPT[:3], 8])[-1])

    @pytest.mark.parametrize("position", [0, 5, 16, 20, 30])
    def test_a_fork(self, artifact: Artifact, reference: ReferenceLlama, position: int) -> None:
        runner = open_runner(EngineConfig(artifact=artifact.path, cache_tokens=512))
        runner.add(0)
        prefill(runner, 0, PROMPT)
        runner._cache.fork(0, 1, position)
        branch = [*PROMPT[:position], 3, 4, 5]
        assert_close(prefill(runner, 1, [3, 4, 5]), reference.logits(branch)[-1])
        assert_close(runner.decode([0], int32(7))[0], reference.logits([*PROMPT, 7])[-1])
        runner.check_integrity()

    @pytest.mark.parametrize("count", [1, 14, 17, 29])
    def test_dropped_tokens(
        self, runner: CompiledRunner, reference: ReferenceLlama, count: int
    ) -> None:
        runner.add(0)
        prefill(runner, 0, PROMPT)
        runner._cache.popn(0, count)
        rest = [*PROMPT[:-count], 3, 4]
        assert_close(prefill(runner, 0, [3, 4]), reference.logits(rest)[-1])
        runner.check_integrity()


class TestFailedForward:
    def test_the_cache_is_as_before(
        self, runner: CompiledRunner, reference: ReferenceLlama, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        runner.add(0)
        prefill(runner, 0, PROMPT)

        def broken(*arguments: object) -> None:
            raise RuntimeError("injected")

        monkeypatch.setattr(runner._model, "_prefill", broken)
        with pytest.raises(RuntimeError, match="injected"):
            prefill(runner, 0, PROMPT)
        monkeypatch.undo()
        runner.check_integrity()
        assert_close(runner.decode([0], int32(7))[0], reference.logits([*PROMPT, 7])[-1])


class TestLoading:
    def test_a_file_that_is_no_library(self, tmp_path: Path) -> None:
        """A truncated one would kill the process in dlopen: Artifact.open checks sizes first."""
        library = tmp_path / "model.so"
        library.write_bytes(b"not a library")
        with pytest.raises(ArtifactCorrupt, match="cannot be loaded") as caught:
            CompiledModel(library, None, prefill_chunk=32, batch=8)
        assert "\n" not in str(caught.value)

    def test_a_library_without_a_function(
        self, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        original = CompiledModel._function

        def renamed(self: CompiledModel, library: Path, name: str) -> object:
            return original(self, library, name.replace("decode", "decipher"))

        monkeypatch.setattr(CompiledModel, "_function", renamed)
        with pytest.raises(ArtifactIncompatible, match="no function 'decipher'"):
            CompiledModel(artifact.library_path, None, prefill_chunk=32, batch=8)

    def test_weights_are_not_copied(self, artifact: Artifact) -> None:
        tensors = load_params(artifact.weights_path, artifact.manifest.weights)
        starts = sorted(np.from_dlpack(tensor).ctypes.data for tensor in tensors)
        assert starts[-1] - starts[0] < artifact.weights_path.stat().st_size

    def test_no_artifact(self, tmp_path: Path) -> None:
        with pytest.raises(ArtifactNotFound):
            open_runner(EngineConfig(artifact=tmp_path))


class TestSizes:
    def test_the_batch_may_be_narrowed_not_widened(self, artifact: Artifact) -> None:
        config = EngineConfig(artifact=artifact.path, max_batch_size=2)
        assert engine_limits(artifact.manifest, config) == EngineLimits(512, 32, 2)
        config = EngineConfig(artifact=artifact.path, max_batch_size=9)
        with pytest.raises(RequestError, match=r"max_batch_size 9 .* compiled for 8"):
            engine_limits(artifact.manifest, config)

    @pytest.mark.parametrize(
        ("setting", "memory", "tokens"),
        [
            ({"cache_tokens": 100}, 0, 96),
            ({"cache_tokens": 1}, 0, 16),
            ({"cache_memory_mb": 0.512}, 0, 1000 // 16 * 16),  # 512 bytes a token
            ({}, 10**12, 512 * 8),
            ({}, 5 * 512 * 1600, 1600),
            ({}, 0, 16),
        ],
    )
    def test_the_cache_is_as_large_as_the_settings_say(
        self, artifact: Artifact, setting: dict[str, float], memory: int, tokens: int
    ) -> None:
        config = EngineConfig(artifact=artifact.path, **setting)  # type: ignore[arg-type]
        limits = engine_limits(artifact.manifest, config)
        assert cache_tokens(artifact.manifest, config, limits, memory) == tokens

    def test_an_unused_cache_takes_no_memory(self, artifact: Artifact) -> None:
        def resident() -> int:
            return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

        load_tvm()
        before = resident()
        runner = open_runner(EngineConfig(artifact=artifact.path, cache_tokens=2**20))
        assert runner.pages.num_pages >= 2**20 // 16
        assert resident() - before < 64e6  # of 537 MB
