from __future__ import annotations

import io
import json

from aotlm_compile.events import (
    Event,
    Failed,
    Finished,
    StepFinished,
    StepProgress,
    StepStarted,
    from_line,
    to_line,
)
from aotlm_compile.progress import make_display

EVENTS: list[Event] = [
    StepStarted("quantize"),
    StepProgress("quantize", 1, 4),
    StepFinished("quantize", 1.25, "gguf, 98.0 MB"),
    StepStarted("lower"),
    Failed("ToolchainError", "it broke"),
]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def shown(mode: str, stream: io.StringIO, **environment: str) -> str:
    display = make_display(mode, stream, environment)
    for event in EVENTS:
        display.show(event)
        display.tick()
    display.close()
    return stream.getvalue()


def test_plain_lines_where_no_terminal_is() -> None:
    text = shown("auto", io.StringIO())
    assert text.splitlines() == [
        "[3/6] quantize ...",
        "[3/6] quantize    1.2 s  gguf, 98.0 MB",
        "[4/6] lower    ...",
    ]


def test_plain_on_request_and_on_a_dumb_terminal() -> None:
    expected = shown("auto", io.StringIO())
    assert shown("plain", Terminal()) == expected
    assert shown("auto", Terminal(), TERM="dumb") == expected


def test_bars_on_a_terminal_leave_one_line_a_step() -> None:
    text = shown("auto", Terminal(), TERM="xterm")
    assert "\x1b[36m" in text  # the bar is coloured
    assert " 25%" in text
    assert text.count("\n") == 1  # the finished step's; the broken one's line is wiped
    assert text.endswith("\r\x1b[K")


def test_no_color_takes_the_colours_not_the_bars() -> None:
    text = shown("auto", Terminal(), TERM="xterm", NO_COLOR="1")
    assert " 25%" in text
    assert "\x1b[3" not in text
    assert "\x1b[0" not in text


def test_json_lines_give_the_events_back() -> None:
    lines = shown("json", io.StringIO()).splitlines()
    assert [from_line(line) for line in lines] == EVENTS
    assert json.loads(lines[0]) == {"event": "step_started", "step": "quantize"}


def test_lines_that_are_no_events_are_left_alone() -> None:
    event = Finished("/x", reused=True)
    assert from_line(to_line(event)) == event
    for line in ("", "hello", "3", "null", "[]", "{}", '{"event": "x"}', '{"event": "failed"}'):
        assert from_line(line) is None
