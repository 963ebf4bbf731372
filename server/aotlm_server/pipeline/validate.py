"""Step 1: a JSON object becomes a request whose every field is known and in range.

What the server does not act on is refused by name, never ignored. `param` of the error is the
path of the field in the body, such as `messages[2].content[0].text`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from aotlm.errors import RequestError
from aotlm_server.protocol.chat import (
    MAX_STOP_STRINGS,
    NOT_ACTED_ON,
    ChatMessage,
    ChatRequest,
    ContentPart,
)

_TEXT_PARTS = ("text", "input_text", "output_text")
_NULLABLE_CONTENT = ("assistant",)
_SHAPES = {
    "ChatMessage": "an object with role and content",
    "ContentPart": "a content part object with type and text",
}
_NOT_YET = "is not supported yet by this server"


def validate_chat(body: dict[str, Any]) -> ChatRequest:
    """Check a chat request. Raises RequestError with the path of the first bad field."""
    try:
        request = ChatRequest.model_validate(body)
    except ValidationError as error:
        raise _request_error(error.errors(include_url=False), body) from None
    refuse_not_acted_on(request)
    if request.stream_options is not None and not request.stream:
        raise RequestError("stream_options needs stream: true", param="stream_options")
    if request.top_logprobs is not None and not request.logprobs:
        raise RequestError("top_logprobs needs logprobs: true", param="top_logprobs")
    limit = request.max_completion_tokens or request.max_tokens
    if request.min_tokens and limit is not None and request.min_tokens > limit:
        raise RequestError("min_tokens is larger than max_tokens", param="min_tokens")
    for index, message in enumerate(request.messages):
        _check_message(message, f"messages[{index}]")
    return request


def refuse_not_acted_on(request: ChatRequest) -> None:
    """Refuse fields of OpenAI's schema that would change the answer if we acted on them."""
    for name, harmless in NOT_ACTED_ON.items():
        value = getattr(request, name)
        if value is not None and value not in harmless:
            raise RequestError(f"{name} {_NOT_YET}; leave it out", param=name)


def _check_message(message: ChatMessage, path: str) -> None:
    if message.role in ("tool", "function"):
        raise RequestError(f"role {message.role!r} {_NOT_YET}", param=f"{path}.role")
    unused = ("refusal", "tool_calls", "tool_call_id", "function_call", "audio")
    for name in unused:
        if getattr(message, name) not in (None, []):
            raise RequestError(f"{path}.{name} {_NOT_YET}", param=f"{path}.{name}")
    if message.content is None and message.role not in _NULLABLE_CONTENT:
        where = f"{path}.content"
        raise RequestError(f"{where} must be a string or a list of text parts", param=where)
    if isinstance(message.content, list):
        for index, part in enumerate(message.content):
            _check_part(part, f"{path}.content[{index}]")


def _check_part(part: ContentPart, path: str) -> None:
    if part.type not in _TEXT_PARTS:
        message = f"{path}: the model reads text only, not parts of type {part.type!r}"
        raise RequestError(message, param=f"{path}.type")
    if part.text is None:
        raise RequestError(f"{path}.text must be a string", param=f"{path}.text")


def _request_error(errors: Sequence[ErrorDetails], body: dict[str, Any]) -> RequestError:
    """The first thing wrong, at the deepest place that pydantic names for it."""
    paths = [_path(error, body) for error in errors]
    best = 0
    for index, path in enumerate(paths):
        # A union complains once for each of its members: the deepest one was meant, or else
        # the one whose type was right.
        if not path.startswith(paths[0]) or len(path) < len(paths[best]):
            continue
        if len(path) > len(paths[best]) or _wrong_type(errors[best]) > _wrong_type(errors[index]):
            best = index
    path, error = paths[best], errors[best]
    if error["type"] == "extra_forbidden":
        return RequestError(f"unknown field: {path}", param=path)
    return RequestError(f"{path}: {_message(error, path)}", param=path)


def _wrong_type(error: ErrorDetails) -> bool:
    return error["type"].endswith("_type")


def _message(error: ErrorDetails, path: str) -> str:
    """What is wrong, in the words of the API rather than of our classes."""
    if path == "stop" and error["type"] == "too_long":
        count = error["ctx"]["actual_length"]
        return f"at most {MAX_STOP_STRINGS} stop strings are taken, not {count}"
    if path == "stop" and _wrong_type(error):
        return "must be a string or a list of strings"
    if error["type"] == "model_type":
        return f"must be {_SHAPES.get(error['ctx']['class_name'], 'an object')}"
    return error["msg"]


def _path(error: ErrorDetails, body: Any) -> str:
    """The place in the body, without the names of union members that pydantic puts between."""
    path, node = "", body
    for step in error["loc"]:
        if isinstance(node, dict) and step in node:
            path, node = f"{path}.{step}", node[step]
        elif isinstance(node, list) and isinstance(step, int) and step < len(node):
            path, node = f"{path}[{step}]", node[step]
        elif error["type"] == "missing" and step == error["loc"][-1]:
            path = f"{path}.{step}"
    return path.removeprefix(".")
