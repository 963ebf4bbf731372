"""A real model answers a real client."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from pathlib import Path

from tests.e2e.server_process import ServerProcess, clean_environment

QUESTION = "What is the capital of France?"


def test_both_sdks_get_paris_streamed_and_not(
    server: ServerProcess, compiled_model: str, sdk: tuple[str, str]
) -> None:
    major, pythonpath = sdk
    script = Path(__file__).with_name("sdk_script.py")
    client = subprocess.run(
        [sys.executable, str(script), f"{server.url}/v1", compiled_model, QUESTION],
        capture_output=True,
        text=True,
        timeout=110,
        env=clean_environment(PYTHONPATH=pythonpath),
        check=False,
    )
    assert client.returncode == 0, client.stderr
    answer = json.loads(client.stdout)
    assert answer["sdk"].split(".")[0] == major
    assert compiled_model in answer["models"]
    assert "Paris" in answer["text"]
    assert answer["streamed_text"] == answer["text"]
    assert answer["streamed_pieces"] > 1  # it did come in pieces
    assert answer["finish_reason"] == answer["streamed_finish_reason"] == "stop"
    assert answer["streamed_usage"] == answer["usage"]
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens"] > 10  # the template's own tokens are counted too
    assert answer["refused"]["status"] == 400
    assert answer["refused"]["param"] == "temperature"


def test_health_and_models(server: ServerProcess, compiled_model: str) -> None:
    assert server.get("/health")[0] == 200
    assert server.get("/healthz")[0] == 200
    status, listing = server.get("/v1/models")
    assert status == 200
    assert listing["object"] == "list"
    assert compiled_model in [entry["id"] for entry in listing["data"]]


def test_the_stream_on_the_wire(server: ServerProcess, compiled_model: str) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    body = {
        "model": compiled_model,
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 4,
        "stream": True,
    }
    connection.request(
        "POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"}
    )
    response = connection.getresponse()
    assert response.status == 200
    assert response.headers["Content-Type"].startswith("text/event-stream")
    events = [line for line in response.read().decode().split("\n\n") if line]
    connection.close()
    assert all(event.startswith("data: ") for event in events)
    assert events[-1] == "data: [DONE]"
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-1]]
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks][-1] == "length"
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


def test_unknown_model_is_refused_in_openai_shape(server: ServerProcess) -> None:
    messages = [{"role": "user", "content": "hi"}]
    status, body = server.post("/v1/chat/completions", {"model": "gpt-9", "messages": messages})
    assert status == 404
    assert body["error"]["code"] == "model_not_found"
    assert "gpt-9" in body["error"]["message"]


def test_the_same_seed_gives_the_same_text(server: ServerProcess, compiled_model: str) -> None:
    def answer(seed: int) -> str:
        status, body = server.post(
            "/v1/chat/completions",
            {
                "model": compiled_model,
                "messages": [{"role": "user", "content": "Tell me a short story."}],
                "temperature": 1.0,
                "seed": seed,
                "max_tokens": 24,
            },
        )
        assert status == 200, body
        text: str = body["choices"][0]["message"]["content"]
        return text

    assert answer(7) == answer(7)
    assert len({answer(seed) for seed in range(4)}) > 1
