"""What is refused, with which status, and that every error has the one shape."""

from __future__ import annotations

import io
import json
from typing import Any

import aiohttp
import pytest

from aotlm.engine.protocol import EngineStatus
from aotlm.errors import EngineOverloaded, GenerationFailed
from tests.server.live_server import LiveServer, read_error

USER = {"role": "user", "content": "hi"}

BAD_FIELDS: list[tuple[dict[str, Any], str]] = [
    ({"n": 0}, "n"),
    ({"n": 129}, "n"),
    ({"n": True}, "n"),
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "system", "content": None}, USER]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": [7]}]}, "messages[0].content[0]"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": 3}]}]},
        "messages[0].content[0].text",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}]},
        "messages[0].content[0].type",
    ),
    ({"messages": [{**USER, "colour": "red"}]}, "messages[0].colour"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "foo": 1}]}]},
        "messages[0].content[0].foo",
    ),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]}, "messages[0].role"),
    (
        {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [{}]}]},
        "messages[1].tool_calls",
    ),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "1"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"top_k": 2**31}, "top_k"),
    ({"min_p": 1.5}, "min_p"),
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_completion_tokens": -1}, "max_completion_tokens"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"1": 101}}, "logit_bias.1"),
    ({"logit_bias": {"999999": 1}}, "logit_bias"),
    ({"stop": ""}, "stop"),
    ({"stop": ["a", ""]}, "stop[1]"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [999999]}, "stop_token_ids"),
    ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"seed": 2**63}, "seed"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"x": 1}}, "stream_options.x"),
    ({"stream": "yes"}, "stream"),
    ({"colour": "red"}, "colour"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"parallel_tool_calls": False}, "parallel_tool_calls"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"verbosity": "low"}, "verbosity"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"store": True}, "store"),
]


@pytest.mark.parametrize(("fields", "param"), BAD_FIELDS)
async def test_bad_field_is_named(live: LiveServer, fields: dict[str, Any], param: str) -> None:
    error = await live.error(400, **fields)
    assert error["type"] == "invalid_request_error"
    assert error["param"] == param
    assert "\n" not in error["message"]
    if not fields.keys() & {"stream", "stream_options"}:
        assert await live.error(400, **fields, stream=True) == error
    assert live.engine.requests == []


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"stop": ["x"] * 17}, "stop: at most 16 stop strings are taken, not 17"),
        ({"stop": 5}, "stop: must be a string or a list of strings"),
        ({"messages": [5]}, "messages[0]: must be an object with role and content"),
        (
            {"messages": [{"role": "user", "content": ["hi"]}]},
            "messages[0].content[0]: must be a content part object with type and text",
        ),
        ({"stream": True, "stream_options": 1}, "stream_options: must be an object"),
    ],
)
async def test_messages_speak_of_the_api(
    live: LiveServer, fields: dict[str, Any], message: str
) -> None:
    assert (await live.error(400, **fields))["message"] == message


@pytest.mark.parametrize("escape", ["\\ud800", "\\ud800x", "\\udc00", "\\ud800\\u0041"])
async def test_half_a_surrogate_pair_is_called_that(live: LiveServer, escape: str) -> None:
    headers = {"Content-Type": "application/json"}
    raw = json.dumps(live.body(user="?")).replace("?", escape)
    async with live.session.post(
        f"{live.url}/chat/completions", data=raw, headers=headers
    ) as response:
        message = (await read_error(response, 400))["message"]
    assert "half of a surrogate pair and is not valid Unicode" in message
    await live.chat(user="\N{GRINNING FACE}")  # a whole pair in JSON


async def test_missing_fields(live: LiveServer) -> None:
    for name in ("model", "messages"):
        body = live.body()
        del body[name]
        async with live.session.post(f"{live.url}/chat/completions", json=body) as response:
            assert (await read_error(response, 400))["param"] == name


async def test_unknown_model(live: LiveServer) -> None:
    for stream in (False, True):
        error = await live.error(404, model="gpt-9", stream=stream)
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert "gpt-9" in error["message"]
        assert "scripted" in error["message"]


async def test_over_long_prompt(live: LiveServer) -> None:
    window = live.engine.limits.context_window
    for content in ("z " * window, "a" * 100_000):
        for stream in (False, True):
            error = await live.error(
                400, messages=[{"role": "user", "content": content}], stream=stream
            )
            assert error["code"] == "context_length_exceeded"
            assert str(window) in error["message"]
    assert live.engine.requests == []


async def test_a_prompt_that_just_fits(live: LiveServer) -> None:
    await live.chat()
    overhead = len(live.engine.requests[0].prompt_ids) - len(
        live.tokenizer.encode("hi", allow_special=False)
    )
    window = live.engine.limits.context_window
    for length, status in ((window - overhead - 1, 200), (window - overhead, 400)):
        body = live.body(messages=[{"role": "user", "content": "\x01" * length}])
        async with live.session.post(f"{live.url}/chat/completions", json=body) as response:
            assert response.status == status


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"nonsense",
        b"[1]",
        b'"text"',
        b"\x00",
        b'{"model": "a\x00b"}',
        b"\xff\xfe",
        b'{"model": NaN}',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 1000 + b"1" + b"}" * 1000,
    ],
)
async def test_body_that_is_no_json_object(live: LiveServer, raw: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    url = f"{live.url}/chat/completions"
    async with live.session.post(url, data=raw, headers=headers) as response:
        assert (await read_error(response, 400))["type"] == "invalid_request_error"


async def test_escaped_nul_is_text(live: LiveServer) -> None:
    await live.chat(messages=[{"role": "user", "content": "a\x00b"}])
    raw = b"".join(live.tokenizer.token_bytes(i) for i in live.engine.requests[0].prompt_ids)
    assert b"a\x00b" in raw


async def test_paths_methods_types_and_sizes(live: LiveServer) -> None:
    session, url = live.session, f"{live.url}/chat/completions"
    async with session.get(f"{live.root}/nope") as response:
        assert (await read_error(response, 404))["code"] == "not_found"
    async with session.get(f"{live.root}/v1/%00/x") as response:
        await read_error(response, 404)
    async with session.get(url) as response:
        assert "POST" in (await read_error(response, 405))["message"]
        assert response.headers["Allow"] == "POST"
    for content_type in ("text/plain", "application/x-www-form-urlencoded"):
        headers = {"Content-Type": content_type}
        async with session.post(url, data=b"{}", headers=headers) as response:
            await read_error(response, 415)
    latin = {"Content-Type": "application/json; charset=latin-1"}
    async with session.post(url, data=b"{}", headers=latin) as response:
        await read_error(response, 415)
    huge = io.BytesIO(json.dumps(live.body(user="x" * (17 * 2**20))).encode())
    headers = {"Content-Type": "application/json"}
    async with session.post(url, data=huge, headers=headers) as response:
        assert (await read_error(response, 413))["code"] == "body_too_large"
    await live.chat()  # and the server lives


async def test_template_that_refuses(live: LiveServer) -> None:
    # The template's own words reach the client.
    error = await live.error(400, messages=[{"role": "user", "content": "refuse me"}])
    assert "the template refuses" in error["message"]


async def test_engine_errors_before_the_first_token(live: LiveServer) -> None:
    cases: list[tuple[Exception, int, str]] = [
        (EngineOverloaded("the queue is full"), 429, "rate_limit_exceeded"),
        (GenerationFailed("no pages"), 500, "server_error"),
        (RuntimeError("secret detail"), 500, "server_error"),
    ]
    for error, status, kind in cases:
        live.play("abc", fail_after=0, error=error)
        for stream in (False, True):
            body = live.body(stream=stream)
            async with live.session.post(f"{live.url}/chat/completions", json=body) as response:
                assert ("Retry-After" in response.headers) == (status == 429)
                detail = await read_error(response, status)
                assert detail["type"] == kind
                assert "secret" not in detail["message"]


async def test_error_after_token_three_of_a_stream(live: LiveServer) -> None:
    live.play("Hello there, friend.", fail_after=3)
    chunks = await live.stream()  # asserts the one [DONE] at the end
    assert [chunk for chunk in chunks if "error" in chunk] == chunks[-1:]
    assert chunks[-1]["error"]["type"] == "server_error"
    assert "fire" not in chunks[-1]["error"]["message"]
    assert len(chunks) > 2
    async with aiohttp.ClientSession() as live.session:  # the connection has been closed
        await live.error(500)
        live.play("fine")
        assert (await live.chat())["choices"][0]["message"]["content"] == "fine"


async def test_request_ids(live: LiveServer) -> None:
    url = f"{live.url}/chat/completions"
    given = {"X-Request-Id": "abc-123"}
    for stream in (False, True):
        async with live.session.post(url, json=live.body(stream=stream), headers=given) as response:
            assert response.headers["X-Request-Id"] == "abc-123"
    async with live.session.post(url, json=live.body(n=0), headers=given) as response:
        assert response.headers["X-Request-Id"] == "abc-123"
    made = set()
    for headers in ({}, {}, {"X-Request-Id": "x" * 200}, {"X-Request-Id": "a b"}):
        async with live.session.get(f"{live.root}/nope", headers=headers) as response:
            made.add(response.headers["X-Request-Id"])
    assert len(made) == 4
    assert all(value.isalnum() and len(value) == 32 for value in made)


async def test_models(live: LiveServer) -> None:
    card = {
        "id": "scripted",
        "object": "model",
        "created": 1_700_000_000,
        "owned_by": "aotlm",
        "context_window": 256,
    }
    async with live.session.get(f"{live.url}/models") as response:
        assert await response.json() == {"object": "list", "data": [card]}
    for name in ("scripted", "default"):
        async with live.session.get(f"{live.url}/models/{name}") as response:
            assert await response.json() == card
    for name in ("gpt-9", "a/b", "%00"):
        async with live.session.get(f"{live.url}/models/{name}") as response:
            assert (await read_error(response, 404))["code"] == "model_not_found"


async def test_not_ready_is_503(live: LiveServer) -> None:
    for state in (EngineStatus.LOADING, EngineStatus.DRAINING, EngineStatus.FAILED):
        live.engine.state = state
        assert (await live.error(503))["code"] == "service_unavailable"
        async with live.session.get(f"{live.url}/models") as response:
            await read_error(response, 503)
    live.engine.state = EngineStatus.READY
