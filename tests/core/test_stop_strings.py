"""Compared with reading the whole text one character at a time, in whatever pieces it comes."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aotlm.errors import RequestError
from aotlm.text.stop_strings import StopStrings


def naive(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The text before the stop string that is complete first, then the longest; and that one."""
    found = [(text.find(stop), stop) for stop in stops if stop in text]
    if not found:
        return text, None
    start, stop = min(found, key=lambda item: (item[0] + len(item[1]), item[0]))
    return text[:start], stop


def run(pieces: list[str], stops: list[str]) -> tuple[list[str], str | None]:
    watcher = StopStrings(stops)
    emitted = []
    for piece in pieces:
        text, stopped = watcher.push(piece)
        assert stopped == (watcher.matched is not None)
        emitted.append(text)
    return [*emitted, watcher.finish()], watcher.matched


_STOPS = st.lists(st.text("abc", min_size=1, max_size=5), max_size=4)


@settings(max_examples=500)
@given(pieces=st.lists(st.text("abc", max_size=6), max_size=10), stops=_STOPS)
def test_any_cut_gives_what_the_whole_text_gives(pieces: list[str], stops: list[str]) -> None:
    text = "".join(pieces)
    shown, matched = naive(text, stops)
    for cut in (pieces, list(text), [text]):
        emitted, stop = run(cut, stops)
        assert "".join(emitted) == shown
        assert stop == matched


@settings(max_examples=500)
@given(text=st.text("abc", max_size=30), stops=_STOPS)
def test_nothing_is_held_or_shown_that_need_not_be(text: str, stops: list[str]) -> None:
    watcher = StopStrings(stops)
    shown = ""
    for index, char in enumerate(text, start=1):
        emitted, stopped = watcher.push(char)
        shown += emitted
        if stopped:
            break
        held = text[len(shown) : index]
        assert shown + held == text[:index]
        ends = [text[start:index] for start in range(index + 1)]
        longest = max((e for e in ends if any(s.startswith(e) for s in stops)), key=len, default="")
        assert held == longest


def test_a_look_alike_is_released() -> None:
    pieces = ["The quick br", "own f", "rog and the ", "own", " fo", "x jumps"]
    emitted, stop = run(pieces, ["own fox"])
    assert emitted == ["The quick br", "", "own frog and the ", "", "", "", ""]
    assert stop == "own fox"


def test_the_first_complete_one_wins() -> None:
    assert run(["abcd"], ["abcd", "bc"]) == (["a", ""], "bc")
    assert run(["abc"], ["c", "bc", "abc"]) == (["", ""], "abc")


def test_text_after_the_end_is_dropped() -> None:
    watcher = StopStrings(["\n\n"])
    assert watcher.push("a\n") == ("a", False)
    assert watcher.push("\nb") == ("", True)
    assert watcher.push("c") == ("", True)
    assert watcher.finish() == ""


def test_without_stop_strings_everything_passes() -> None:
    assert run(["a", "", "b"], []) == (["a", "", "b", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(RequestError, match="must not be empty") as caught:
        StopStrings(["a", ""])
    assert caught.value.param == "stop"


def test_time_is_linear_for_the_worst_stop_strings() -> None:
    started = time.perf_counter()
    watcher = StopStrings(["a" * 5_000 + "b", "a" * 4_999 + "c"])
    for _ in range(50_000):
        watcher.push("a")
    assert watcher.finish() == "a" * 5_000
    assert time.perf_counter() - started < 10
