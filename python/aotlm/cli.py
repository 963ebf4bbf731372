"""The `aotlm` command: finds its subcommands by entry points and runs the one that is asked for.

A subcommand is an entry point of the group `aotlm.commands`; its name may have two words
("bench http"), its value is a callable `main(argv: Sequence[str]) -> int`. So the core needs to
know neither the compiler nor the server, and `--help` imports none of them.

Exit codes: 0 done, 1 an error that is explained in one line, 2 wrong usage, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib import metadata

from aotlm.errors import AotlmError

GROUP = "aotlm.commands"
EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE = 1, 2, 130, 141

# One line each for the overview; what a command takes is told by its own --help.
_SUMMARIES: Mapping[str, str] = {
    "compile": "turn a checkpoint into an artifact for this machine",
    "serve": "serve a model over the OpenAI-compatible HTTP API",
    "chat": "talk to a model in the terminal",
    "bench engine": "measure a model in process",
    "bench http": "measure any OpenAI-compatible server",
    "artifacts": "list, show, verify and remove compiled models",
    "devices": "show this machine's CPU and what else models can run on",
}

_EXAMPLES: Mapping[str, str] = {
    "compile": "aotlm compile smollm2-135m",
    "serve": "aotlm serve smollm2-135m --port 8000",
    "chat": "aotlm chat smollm2-135m",
    "bench engine": "aotlm bench engine smollm2-135m --prompt-tokens 512 --json",
    "bench http": "aotlm bench http --base-url http://127.0.0.1:8000/v1 --model smollm2-135m",
}

_NOT_INSTALLED = (
    "aotlm is not installed in this Python, so its commands cannot be found; "
    'in the folder with its pyproject.toml run "pip install -e ."'
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run `aotlm ARGV...` and return the exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        code = _run(words)
        sys.stdout.flush()
    except AotlmError as error:
        return _complain(str(error), EXIT_ERROR)
    except KeyboardInterrupt:
        return _complain("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        # The reader of our output left. Python would complain once more when it closes stdout.
        with suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return code


def _run(words: list[str]) -> int:
    if words[:1] in (["--version"], ["-V"]):
        print(f"aotlm {version()}")
        return 0
    commands = _commands()
    if words[:1] in ([], ["--help"], ["-h"]):
        print(_overview(commands))
        return 0 if words else EXIT_USAGE
    if not commands:
        return _complain(_NOT_INSTALLED, EXIT_ERROR)
    for count in range(len(words), 0, -1):  # the longest name wins
        entry = commands.get(" ".join(words[:count]))
        if entry is not None:
            return _load(entry)(words[count:])
    family = [name for name in commands if name.startswith(f"{words[0]} ")]
    if family and words[1:2] in ([], ["--help"], ["-h"]):
        print(_overview({name: commands[name] for name in family}))
        return 0 if words[1:] else EXIT_USAGE
    unknown = " ".join(words[:2]) if family else words[0]
    known = ", ".join(family or sorted(commands))
    return _complain(f"unknown command {unknown!r}; there are: {known}", EXIT_USAGE)


def version() -> str:
    """The installed version."""
    try:
        return metadata.version("aotlm")
    except metadata.PackageNotFoundError:
        return "(not installed)"


def _commands() -> dict[str, metadata.EntryPoint]:
    found = metadata.entry_points(group=GROUP)
    return {" ".join(entry.name.split()): entry for entry in sorted(found, key=lambda e: e.name)}


def _load(entry: metadata.EntryPoint) -> Callable[[Sequence[str]], int]:
    try:
        command: Callable[[Sequence[str]], int] = entry.load()
    except (ImportError, AttributeError) as error:
        raise AotlmError(
            f"the command {entry.name!r} cannot be loaded ({error}); "
            "install aotlm again, with its dependencies"
        ) from error
    return command


def _overview(commands: Mapping[str, metadata.EntryPoint]) -> str:
    lines = [
        "usage: aotlm COMMAND [ARGUMENTS]   (aotlm COMMAND --help tells more)",
        "",
        "Compile language models ahead of time and serve them.",
        "",
        "commands:",
    ]
    order = list(_SUMMARIES)
    names = sorted(commands, key=lambda name: [*order, name].index(name))
    width = max(map(len, names), default=0) + 2
    lines += [f"  {name:{width}}{_SUMMARIES.get(name, '')}".rstrip() for name in names]
    if not names:
        lines.append(f"  none: {_NOT_INSTALLED}")
    examples = [f"  {_EXAMPLES[name]}" for name in names if name in _EXAMPLES]
    if examples:
        lines += ["", "examples:", *examples]
    return "\n".join([*lines, "", "options: --help, --version"])


def _complain(message: str, code: int) -> int:
    print(f"aotlm: {' '.join(message.split())}", file=sys.stderr)
    return code
