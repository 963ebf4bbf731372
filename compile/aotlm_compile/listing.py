"""What `aotlm compile --list` and `--dry-run` print."""

from __future__ import annotations

import math
from pathlib import Path

from aotlm.artifact import list_artifacts
from aotlm.errors import RecipeError

from .checkpoint.base import Checkpoint
from .plan import CompilePlan
from .quantize import SCHEMES
from .recipe import load_recipe, recipe_names
from .targets import available_targets, parse_target


def list_text(root: Path) -> str:
    """Recipes, the artifacts under `root`, quantizations and targets."""
    recipes = [(name, _recipe_line(name)) for name in recipe_names()]
    artifacts = [
        (
            listed.path.name,
            f"{listed.artifact.size / 1e6:.1f} MB"
            if listed.artifact is not None
            else f"unusable: {listed.problem}",
        )
        for listed in list_artifacts(root)
    ]
    return "\n\n".join(
        [
            _section("recipes", recipes),
            _section(f"artifacts in {root}", artifacts),
            _section(
                "quantizations", [(scheme.name, scheme.summary) for scheme in SCHEMES.values()]
            ),
            _section("targets", [(name, _target_line(name)) for name in available_targets()]),
        ]
    )


def plan_text(plan: CompilePlan, checkpoint: Checkpoint, reused: bool) -> str:
    """What a compile of `plan` would do."""
    config = checkpoint.config
    target = parse_target(plan.target)
    layers, hidden = config.get("num_hidden_layers"), config.get("hidden_size")
    heads, kv_heads = config.get("num_attention_heads"), config.get("num_key_value_heads")
    trained = config["max_position_embeddings"]
    rows = [
        ("source", f"{plan.source} ({checkpoint.kind})"),
        ("architecture", f"{config.get('model_type')}, {layers} layers of {hidden}"),
        ("heads", f"{heads}, {kv_heads} of keys and values"),
        ("vocabulary", f"{config.get('vocab_size')} tokens"),
        ("parameters", f"{_parameters(checkpoint) / 1e6:.1f} million"),
        ("quantization", f"{plan.quantization}: {SCHEMES[plan.quantization].summary}"),
        ("target", f"{plan.target}: level {target.level.name}, {target.triple}"),
        ("context window", f"{plan.context_window} tokens of the {trained} it was trained for"),
        ("prefill chunk", f"{plan.prefill_chunk} tokens"),
        ("max batch size", f"{plan.max_batch_size} sequences"),
        ("model name", plan.model_name),
        ("output", plan.output),
        ("would be", "reused: it is up to date" if reused else "compiled"),
    ]
    return _table(rows, indent="")


def _recipe_line(name: str) -> str:
    try:
        return load_recipe(name).description
    except RecipeError as error:
        return f"unusable: {error}"


def _target_line(name: str) -> str:
    level = parse_target(name).level
    if name == "cpu":
        return f"the best level of this machine: {level.name}"
    return " ".join(level.features) or "no special instructions"


def _parameters(checkpoint: Checkpoint) -> int:
    return sum(math.prod(checkpoint.shape(name)) for name in checkpoint.tensor_names())


def _section(title: str, rows: list[tuple[str, str]]) -> str:
    return f"{title}:\n" + (_table(rows, indent="  ") if rows else "  none")


def _table(rows: list[tuple[str, str]], indent: str) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{indent}{name:<{width}}  {text}".rstrip() for name, text in rows)
