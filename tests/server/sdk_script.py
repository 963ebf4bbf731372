"""Everything the server does, through the official openai SDK, checked by the SDK's own types.

    python sdk_script.py BASE_URL

Runs in a process of its own: which major version of the SDK it imports is PYTHONPATH's choice.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import openai
from openai.types.chat import ChatCompletion, ChatCompletionChunk

TEXT = "Hello there, friend."
ASK: dict[str, Any] = {"model": "default", "messages": [{"role": "user", "content": "hi"}]}


def main(base_url: str) -> None:
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=20)
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").object == "model"
    check_answer(client)
    check_stream(client)
    check_errors(client)
    print(json.dumps({"sdk": openai.__version__}))


def check_answer(client: openai.OpenAI) -> None:
    options: list[dict[str, Any]] = [{}, {"n": 2}, {"logprobs": True, "top_logprobs": 3}]
    for option in options:
        raw = client.chat.completions.with_raw_response.create(**ASK, **option)
        answer = ChatCompletion.model_validate(json.loads(raw.http_response.content), strict=True)
        assert [choice.message.content for choice in answer.choices] == [TEXT] * len(answer.choices)
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage is not None
        assert answer.usage.total_tokens > answer.usage.prompt_tokens
    # An answer that is appended as it came is accepted as history.
    message = answer.choices[0].message.model_dump()
    history = [*ASK["messages"], message, {"role": "user", "content": "and?"}]
    client.chat.completions.create(model="default", messages=history)


def check_stream(client: openai.OpenAI) -> None:
    stream = client.chat.completions.create(
        **ASK, stream=True, stream_options={"include_usage": True}, logprobs=True
    )
    chunks = [ChatCompletionChunk.model_validate(c.model_dump(), strict=True) for c in stream]
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == TEXT
    assert chunks[-1].usage is not None
    assert chunks[-1].choices == []
    with client.chat.completions.stream(**ASK) as helper:
        deltas = [event.delta for event in helper if event.type == "content.delta"]
        final = helper.get_final_completion()
    assert "".join(deltas) == final.choices[0].message.content == TEXT


def check_errors(client: openai.OpenAI) -> None:
    unknown = error_of(client, openai.NotFoundError, model="gpt-9")
    assert unknown.code == "model_not_found"
    long = [{"role": "user", "content": "long " * 1000}]
    for stream in (False, True):
        error = error_of(client, openai.BadRequestError, messages=long, stream=stream)
        assert (error.code, error.param) == ("context_length_exceeded", "messages")


def error_of(
    client: openai.OpenAI, kind: type[openai.APIStatusError], **fields: Any
) -> openai.APIStatusError:
    """What the SDK raises for these fields, which must be of that kind."""
    try:
        client.chat.completions.create(**{**ASK, **fields})
    except kind as error:
        return error
    raise AssertionError(f"accepted: {fields}")


if __name__ == "__main__":
    main(sys.argv[1])
