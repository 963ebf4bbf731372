"""Ask a question with the openai SDK, not streamed and streamed; print the answers as JSON.

    python sdk_script.py BASE_URL MODEL QUESTION

Runs in a process of its own: which major version of the SDK it imports is PYTHONPATH's choice.
"""

from __future__ import annotations

import json
import sys

import openai


def ask(base_url: str, model: str, question: str) -> dict[str, object]:
    """One question both ways, greedily, and the list of models."""
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=100)
    whole = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=64,
    )
    pieces: list[str] = []
    finish_reason = None
    streamed_usage = None
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": question}],
        temperature=0,
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
    )
    for chunk in stream:
        for choice in chunk.choices:
            pieces.append(choice.delta.content or "")
            finish_reason = choice.finish_reason or finish_reason
        streamed_usage = chunk.usage or streamed_usage
    assert whole.usage is not None
    assert streamed_usage is not None
    return {
        "sdk": openai.__version__,
        "models": [entry.id for entry in client.models.list()],
        "text": whole.choices[0].message.content,
        "finish_reason": whole.choices[0].finish_reason,
        "usage": whole.usage.model_dump(),
        "streamed_text": "".join(pieces),
        "streamed_pieces": sum(1 for piece in pieces if piece),
        "streamed_finish_reason": finish_reason,
        "streamed_usage": streamed_usage.model_dump(),
    }


def refused(base_url: str, model: str) -> dict[str, object]:
    """What the SDK makes of a request that the server refuses."""
    client = openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0, timeout=100)
    try:
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hi"}], temperature=17
        )
    except openai.BadRequestError as error:
        return {"status": error.status_code, "param": error.param, "message": error.message}
    return {"status": 200}


if __name__ == "__main__":
    answer = ask(*sys.argv[1:4])
    answer["refused"] = refused(*sys.argv[1:3])
    print(json.dumps(answer))
