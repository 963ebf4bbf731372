"""The one shape of every error body, as OpenAI's clients expect it."""

from __future__ import annotations

from typing import TypedDict


class ErrorDetail(TypedDict):
    """`param` is the path of the bad field, `code` a word programs can test for."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(TypedDict):
    """The whole body, and the data of an error event inside a stream."""

    error: ErrorDetail


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> ErrorBody:
    """Make an error body; `kind` becomes its `type`."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}
