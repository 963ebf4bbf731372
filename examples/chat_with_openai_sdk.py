"""Talk to a running server with the official openai SDK, streamed.

make serve                                  # in another terminal
pip install openai
python examples/chat_with_openai_sdk.py "What is the capital of France?"
"""

from __future__ import annotations

import argparse

from openai import OpenAI


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a running aotlm server one question.")
    parser.add_argument("question")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    arguments = parser.parse_args()

    client = OpenAI(base_url=arguments.base_url, api_key="unused")
    stream = client.chat.completions.create(
        model="default",  # an alias of whatever the server has loaded
        messages=[{"role": "user", "content": arguments.question}],
        temperature=0,
        stream=True,
    )
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()


if __name__ == "__main__":
    main()
