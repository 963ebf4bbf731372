"""Run a compiled model in this process, without a server.

aotlm compile smollm2-135m
python examples/generate_in_process.py smollm2-135m-gguf-cpu "What is the capital of France?"
"""

from __future__ import annotations

import argparse

from aotlm.llm import LLM


def main() -> None:
    parser = argparse.ArgumentParser(description="Ask a compiled model one question.")
    parser.add_argument("artifact", help="a folder, or the name of one in model_libs/build")
    parser.add_argument("question")
    arguments = parser.parse_args()

    llm = LLM(arguments.artifact)
    answers = llm.generate([{"role": "user", "content": arguments.question}], temperature=0)
    print(answers[0].text)


if __name__ == "__main__":
    main()
