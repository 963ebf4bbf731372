"""Wire models of GET /v1/models."""

from __future__ import annotations

from typing import Literal, TypedDict


class ModelCard(TypedDict):
    """One served model; `created` is in Unix seconds, `context_window` in tokens."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    context_window: int


class ModelList(TypedDict):
    """Every served model."""

    object: Literal["list"]
    data: list[ModelCard]
