"""How a compile shows itself: bars on a terminal, lines elsewhere, or JSON lines."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from .events import STEPS, Event, Failed, StepFinished, StepProgress, StepStarted, to_line

_BAR_CELLS = 24
_NAME_WIDTH = max(len(step) for step in STEPS)
_REDRAW_S = 0.05


class Display(Protocol):
    """Something that shows events as they come."""

    def show(self, event: Event) -> None: ...

    def tick(self) -> None:
        """Called every now and then while nothing happens."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was found."""
        ...


class JsonDisplay:
    """Every event as one line of JSON."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        print(to_line(event), file=self._stream, flush=True)

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass


class PlainDisplay:
    """One line when a step begins and one when it is done."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def show(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self._print(f"{_label(event.step)} ...")
        elif isinstance(event, StepFinished):
            self._print(_finished(event))

    def tick(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)


class BarDisplay:
    """A line that is redrawn while its step runs."""

    def __init__(self, stream: TextIO, color: bool) -> None:
        self._stream = stream
        self._color = color
        self._step: str | None = None
        self._fraction: float | None = None
        self._started = 0.0
        self._drawn = 0.0

    def show(self, event: Event) -> None:
        if isinstance(event, StepStarted):
            self._step, self._fraction = event.step, None
            self._started = time.monotonic()
            self._draw()
        elif isinstance(event, StepProgress):
            self._fraction = event.done / event.total if event.total else None
            if time.monotonic() - self._drawn > _REDRAW_S:
                self._draw()
        elif isinstance(event, StepFinished):
            self._step = None
            self._line(self._paint(_finished(event), "32") + "\n")
        elif isinstance(event, Failed):
            self.close()

    def tick(self) -> None:
        if self._step is not None:
            self._draw()

    def close(self) -> None:
        if self._step is not None:
            self._line("")
            self._step = None

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        elapsed = self._drawn - self._started
        if self._fraction is None:
            # Not known how long: a block that walks to and fro.
            at = int(elapsed * 8) % (2 * _BAR_CELLS - 2)
            at = min(at, 2 * _BAR_CELLS - 2 - at)
            bar = "░" * at + "█" + "░" * (_BAR_CELLS - 1 - at)
            share = "    "
        else:
            full = round(min(self._fraction, 1.0) * _BAR_CELLS)
            bar = "█" * full + "░" * (_BAR_CELLS - full)
            share = f"{self._fraction:4.0%}"
        label = _label(self._step or "")
        self._line(f"{label}  {self._paint(bar, '36')} {share} {elapsed:5.1f} s")

    def _line(self, text: str) -> None:
        self._stream.write("\r\x1b[K" + text)
        self._stream.flush()

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text


def make_display(mode: str, stream: TextIO, environment: Mapping[str, str] = os.environ) -> Display:
    """The display for `mode` (auto, plain, json) on `stream`.

    auto is bars on a terminal that can redraw a line; NO_COLOR (no-color.org) takes the colours.
    """
    if mode == "json":
        return JsonDisplay(stream)
    if mode == "plain" or not stream.isatty() or environment.get("TERM") == "dumb":
        return PlainDisplay(stream)
    return BarDisplay(stream, color=not environment.get("NO_COLOR"))


def _label(step: str) -> str:
    return f"[{STEPS.index(step) + 1}/{len(STEPS)}] {step:<{_NAME_WIDTH}}"


def _finished(event: StepFinished) -> str:
    line = f"{_label(event.step)}  {event.seconds:5.1f} s"
    return f"{line}  {event.detail}" if event.detail else line
