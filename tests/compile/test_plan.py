from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from aotlm.errors import CheckpointError, CompileError, RecipeError
from aotlm_compile.plan import CompilePlan, Flags, make_plan
from tests.compile.gguf_samples import write_llama
from tests.tiny_model import write_tiny_model

ROOT = Path("root")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the current one, with recipes of its own."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    monkeypatch.setenv("AOTLM_RECIPES", str(tmp_path / "recipes"))
    return tmp_path


def plan_of(model: str, **flags: Any) -> CompilePlan:
    return make_plan(Flags(model, **flags), ROOT)[0]


def test_defaults_follow_the_source(here: Path) -> None:
    write_tiny_model(here / "Tiny")
    write_llama(here / "Tiny.gguf", "Q8_0")
    for model, quantization in (("./Tiny", "q4f32_1"), ("Tiny.gguf", "gguf")):
        plan = plan_of(model)
        assert plan.quantization == quantization
        assert plan.output == str(here / "root" / f"tiny-{quantization}-cpu")
        assert plan.model_name == "tiny"
        # The model was trained for 512 tokens; a chunk beyond the context makes no sense.
        assert (plan.context_window, plan.prefill_chunk, plan.max_batch_size) == (512, 512, 16)
        assert CompilePlan.from_json(plan.to_json()) == plan
    plan = plan_of("Tiny.gguf", context_window=100, target="cpu:plain", output=Path("o"))
    assert (plan.context_window, plan.prefill_chunk) == (100, 100)
    assert plan.output == str(here / "o")
    assert plan_of("Tiny.gguf", target="cpu:plain").output.endswith("/tiny-gguf-cpu-plain")


def test_recipe_gives_defaults_and_flags_win(here: Path) -> None:
    write_llama(here / "recipes" / "a.gguf", "Q4_1")
    (here / "recipes" / "small.toml").write_text(
        'served_name = "Small"\n[source]\nkind = "path"\npath = "a.gguf"\n'
        '[defaults]\nquantization = "q0f32"\ncontext_window = 8192\nmax_batch_size = 2\n'
    )
    plan = plan_of("small")
    assert (plan.model_name, plan.quantization) == ("Small", "q0f32")
    assert (plan.context_window, plan.max_batch_size) == (512, 2)
    assert Path(plan.output).name == "small-q0f32-cpu"
    plan = plan_of("small", quantization="gguf", context_window=64, max_batch_size=3)
    assert (plan.quantization, plan.context_window, plan.max_batch_size) == ("gguf", 64, 3)


def test_recipe_wins_over_a_folder_of_the_same_name(here: Path) -> None:
    write_llama(here / "recipes" / "a.gguf")
    (here / "recipes" / "tiny.toml").write_text('[source]\nkind = "path"\npath = "a.gguf"\n')
    write_tiny_model(here / "tiny")
    assert plan_of("tiny").source == str(here / "recipes" / "a.gguf")
    assert plan_of("./tiny").source == str(here / "tiny")


def test_names_that_are_neither_recipe_nor_path(here: Path) -> None:
    with pytest.raises(RecipeError, match="unknown recipe 'llama'; known: "):
        plan_of("llama")
    with pytest.raises(RecipeError, match="unknown recipe ''"):
        plan_of("")
    for path in ("llama.gguf", "./llama", "models/llama"):
        with pytest.raises(CheckpointError, match="does not exist"):
            plan_of(path)


def test_build_key_follows_everything_that_changes_the_artifact(here: Path) -> None:
    write_llama(here / "a.gguf")
    plan = plan_of("a.gguf")
    keys = {plan.build_key()}
    changes: dict[str, Any] = {
        "model_name": "other",
        "quantization": "q0f32",
        "target": "cpu:plain",
        "context_window": 64,
        "prefill_chunk": 64,
        "max_batch_size": 1,
        "opt_level": 0,
        "fingerprint": "1" * 64,
    }
    for name, value in changes.items():
        keys.add(dataclasses.replace(plan, **{name: value}).build_key())
    assert len(keys) == 1 + len(changes)
    moved = dataclasses.replace(plan, source="/elsewhere/a.gguf", output="/elsewhere/out")
    assert moved.build_key() == plan.build_key()


def test_windows_too_small_to_answer_are_refused(here: Path) -> None:
    write_llama(here / "a.gguf")
    assert plan_of("a.gguf", context_window=16).context_window == 16
    with pytest.raises(CompileError, match=r"--context-window 15 leaves no room.*at least 16"):
        plan_of("a.gguf", context_window=15)


def test_more_than_the_most_is_refused(here: Path) -> None:
    write_llama(here / "a.gguf")
    for flags, message in (
        ({"context_window": 513}, "--context-window 513 is more than 512, what the model was"),
        ({"prefill_chunk": 1 << 20}, "--prefill-chunk 1048576 is more than 16384, the most"),
        ({"max_batch_size": 257}, "--max-batch-size 257 is more than 256, the most possible"),
    ):
        with pytest.raises(CompileError, match=message):
            plan_of("a.gguf", **flags)
