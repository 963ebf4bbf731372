"""Ends a text at the first stop string, without ever showing a part of it.

The text runs through an Aho-Corasick automaton (Aho and Corasick, 1975) of the stop strings.
Its state is the longest end of the text that begins some stop string, which is just what has
to be held back:

    stop "own fox":   The quick br | own f | ...
                      sent           held: released if "ox" does not follow
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from aotlm.errors import RequestError


class StopStrings:
    """Watches one text for several stop strings.

    The one completed first ends the text, as if it were read one character at a time; of those
    completed by the same character, the longest. Time is linear in the text and in the stop
    strings together.
    """

    __slots__ = ("_depth", "_ends", "_fall_back", "_held", "_matched", "_next", "_state")

    def __init__(self, stops: Sequence[str]) -> None:
        """Raises RequestError for an empty stop string."""
        if not all(stops):
            raise RequestError("a stop string must not be empty", param="stop")
        self._held: list[str] = []  # joined: the state's text
        self._matched: str | None = None
        self._state = 0
        self._next: list[dict[str, int]] = [{}]
        self._depth = [0]  # length of the state's text
        self._fall_back = [0]  # the state of the longest proper end of this state's text
        self._ends = [""]  # the longest stop string that the state's text ends with
        self._build(stops)

    def _build(self, stops: Sequence[str]) -> None:
        for stop in stops:
            state = 0
            for char in stop:
                parent, state = state, self._next[state].setdefault(char, len(self._next))
                if state == len(self._next):
                    self._next.append({})
                    self._depth.append(self._depth[parent] + 1)
                    self._fall_back.append(0)
                    self._ends.append("")
            self._ends[state] = stop
        queue = deque(self._next[0].values())
        while queue:  # breadth first: shorter texts are done before longer ones
            state = queue.popleft()
            for char, child in self._next[state].items():
                queue.append(child)
                self._fall_back[child] = self._step(self._fall_back[state], char)
            self._ends[state] = self._ends[state] or self._ends[self._fall_back[state]]

    def _step(self, state: int, char: str) -> int:
        while True:
            child = self._next[state].get(char)
            if child is not None:
                return child
            if not state:
                return 0
            state = self._fall_back[state]

    def push(self, text: str) -> tuple[str, bool]:
        """Add text; returns what may be shown now, and whether a stop string has ended it.

        Once ended, everything that follows is dropped.
        """
        if self._matched is not None:
            return "", True
        state, before = self._state, self._depth[self._state]
        for index, char in enumerate(text):
            state = self._step(state, char)
            if self._ends[state]:
                self._matched = self._ends[state]
                shown = "".join([*self._held, text[: index + 1]])
                self._held.clear()
                return shown[: len(shown) - len(self._matched)], True
        self._state = state
        certain = before + len(text) - self._depth[state]
        if not certain:
            self._held.append(text)
            return "", False
        whole = "".join([*self._held, text])
        self._held = [whole[certain:]]
        return whole[:certain], False

    def finish(self) -> str:
        """The text held back so far: it only looked like a stop string. Empty once ended."""
        rest = "".join(self._held)
        self._held.clear()
        self._state = 0
        return rest

    @property
    def matched(self) -> str | None:
        """The stop string that ended the text."""
        return self._matched
