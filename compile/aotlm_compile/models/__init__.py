"""Model families, one a file. To add one: write its file and name it here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aotlm.errors import CheckpointError

from .base import Family
from .llama import LLAMA

FAMILIES: tuple[Family, ...] = (LLAMA,)


def family_for(config: Mapping[str, Any]) -> Family:
    """The family of a config.json, by model_type. Raises CheckpointError listing those known."""
    found = config.get("model_type")
    for family in FAMILIES:
        if found in family.model_types:
            return family
    known = ", ".join(sorted(name for family in FAMILIES for name in family.model_types))
    raise CheckpointError(f"model_type {found!r:.60} is not supported; supported: {known}")
