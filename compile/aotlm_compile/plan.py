"""What will be compiled: a model's name or path and the flags, turned into plain data."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from aotlm.errors import CompileError
from aotlm.manifest import ABI_VERSION, FORMAT_VERSION

from .checkpoint.base import Checkpoint, positive
from .checkpoint.open import open_checkpoint
from .recipe import Recipe, load_recipe, recipe_names
from .targets import parse_target

DEFAULT_CONTEXT = 8192
DEFAULT_PREFILL_CHUNK = 512
DEFAULT_BATCH = 16
MIN_CONTEXT = 16  # one page of the KV cache; with less there is no room for an answer
MAX_CONTEXT = 1 << 20
MAX_PREFILL_CHUNK = 1 << 14
MAX_BATCH = 256

# Files of this package that do not change what is compiled.
_SHELL = {
    "cli.py",
    "driver.py",
    "events.py",
    "listing.py",
    "output_folder.py",
    "progress.py",
    "recipe.py",
    "reuse.py",
    "worker.py",
}


@dataclass(frozen=True, slots=True)
class Flags:
    """What the user asked for; None means: the recipe's, else the compiler's default."""

    model: str
    quantization: str | None = None
    target: str = "cpu"
    output: Path | None = None
    context_window: int | None = None
    prefill_chunk: int | None = None
    max_batch_size: int | None = None
    opt_level: int = 3


@dataclass(frozen=True, slots=True)
class CompilePlan:
    """Everything the worker needs; goes to it as JSON. Sizes are tokens or sequences."""

    source: str  # path of the checkpoint
    model_name: str  # what the server calls the model
    quantization: str
    target: str
    output: str
    context_window: int
    prefill_chunk: int
    max_batch_size: int
    opt_level: int
    fingerprint: str  # of the checkpoint

    def build_key(self) -> str:
        """Equal for two compiles that would give the same artifact.

        Beside source and options it holds the versions of TVM and of the compiler's own
        source, so that an artifact of yesterday's compiler is not taken for today's.
        """
        options = asdict(self)
        for place in ("source", "output"):
            del options[place]
        options["level"] = asdict(parse_target(self.target).level)
        options["versions"] = [version("apache-tvm"), version("apache-tvm-ffi"), _own_source()]
        options["formats"] = [FORMAT_VERSION, ABI_VERSION]
        return hashlib.sha256(json.dumps(options, sort_keys=True).encode()).hexdigest()

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> CompilePlan:
        return CompilePlan(**json.loads(text))


def make_plan(flags: Flags, root: Path) -> tuple[CompilePlan, Checkpoint]:
    """Find the checkpoint and settle every option. `root` is where artifacts go by default.

    Raises RecipeError, CheckpointError or CompileError; nothing is written.
    """
    recipe, source = _find_source(flags.model)
    target = parse_target(flags.target)
    checkpoint = open_checkpoint(source)
    quantization = _quantization(flags, recipe, checkpoint)
    name = recipe.name if recipe is not None else _folder_name(checkpoint.name)
    output = flags.output
    if output is None:
        output = root / f"{name}-{quantization}-{target.folder_name}"
    context, chunk, batch = _limits(flags, recipe, checkpoint)
    plan = CompilePlan(
        source=str(source.resolve()),
        model_name=recipe.served_name if recipe is not None else name,
        quantization=quantization,
        target=target.name,
        output=str(output.resolve()),
        context_window=context,
        prefill_chunk=chunk,
        max_batch_size=batch,
        opt_level=flags.opt_level,
        fingerprint=checkpoint.fingerprint,
    )
    return plan, checkpoint


def _find_source(model: str) -> tuple[Recipe | None, Path]:
    """A recipe's name wins over a file of the same name; write ./NAME to mean the file."""
    path = Path(model).expanduser()
    looks_like_path = "/" in model or path.suffix in (".gguf", ".safetensors")
    if model and model not in recipe_names() and (looks_like_path or path.exists()):
        return None, path
    recipe = load_recipe(model)
    return recipe, recipe.source.locate()


def _quantization(flags: Flags, recipe: Recipe | None, checkpoint: Checkpoint) -> str:
    from .quantize import SCHEMES

    chosen = flags.quantization or (recipe.quantization if recipe is not None else None)
    if chosen is None:
        chosen = "gguf" if checkpoint.kind == "gguf" else "q4f32_1"
    if chosen not in SCHEMES:
        raise CompileError(
            f"unknown quantization {chosen!r:.40}; this version has: {', '.join(sorted(SCHEMES))}"
        )
    if chosen == "gguf" and checkpoint.kind != "gguf":
        raise CompileError(
            "quantization 'gguf' keeps the values of a GGUF file, but the source is "
            f"{checkpoint.kind}; choose one of: {', '.join(sorted(set(SCHEMES) - {'gguf'}))}"
        )
    return chosen


def _limits(flags: Flags, recipe: Recipe | None, checkpoint: Checkpoint) -> tuple[int, int, int]:
    """(context_window, prefill_chunk, max_batch_size)."""
    trained = positive(checkpoint.config, "max_position_embeddings", checkpoint.name)

    def choose(name: str, default: int, limit: int) -> int:
        value: int | None = getattr(flags, name)
        flag = "--" + name.replace("_", "-")
        if value is None:
            suggested: int | None = getattr(recipe, name) if recipe is not None else None
            return min(suggested or default, limit)
        if value > limit:
            why = "what the model was trained for" if limit == trained else "the most possible"
            raise CompileError(f"{flag} {value} is more than {limit}, {why}")
        return value

    context = choose("context_window", DEFAULT_CONTEXT, min(trained, MAX_CONTEXT))
    if context < MIN_CONTEXT:
        raise CompileError(
            f"--context-window {context} leaves no room for an answer; at least {MIN_CONTEXT}"
        )
    chunk = choose("prefill_chunk", DEFAULT_PREFILL_CHUNK, MAX_PREFILL_CHUNK)
    batch = choose("max_batch_size", DEFAULT_BATCH, MAX_BATCH)
    return context, min(chunk, context), batch


def _folder_name(name: str) -> str:
    return re.sub(r"[^a-z0-9._-]+", "-", name.lower()).strip("-.") or "model"


@cache
def _own_source() -> str:
    """SHA-256 over the compiler's source: its version, but true in a source checkout too."""
    package = Path(__file__).resolve().parent
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        name = path.relative_to(package).as_posix()
        if name not in _SHELL:
            digest.update(f"{name}\n".encode() + path.read_bytes())
    return digest.hexdigest()
