"""Strict reading of JSON objects: every value by key and type, errors by path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_NOTHING: Any = object()


class MalformedField(Exception):
    """A value is missing, unknown or of another type; the message names its path."""


class Fields:
    """One JSON object. Each method takes the value of a key; `finish` complains of the rest.

    Every method raises MalformedField.
    """

    def __init__(self, value: Any, path: str) -> None:
        """`path` is where the object stands, "" for the top."""
        if not isinstance(value, dict):
            raise MalformedField(f"{path or 'the top level'} must be an object, not {_show(value)}")
        self._values: dict[str, Any] = value
        self._path = path
        self._taken: set[str] = set()

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def text(self, key: str, default: str = _NOTHING) -> str:
        """A string."""
        value = self._take(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a string", value)
        return value

    def integer(self, key: str, minimum: int = 0) -> int:
        """A whole number of at least `minimum`."""
        return self._integer(key, self._take(key), minimum)

    def optional_integer(self, key: str) -> int | None:
        """A whole number of at least 0; None when null or absent."""
        value = self._take(key, None)
        return None if value is None else self._integer(key, value, 0)

    def optional_number(self, key: str) -> float | None:
        """A number; None when null or absent."""
        value = self._take(key, None)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, "a number", value)
        return float(value)

    def boolean(self, key: str) -> bool:
        """true or false."""
        value = self._take(key)
        if not isinstance(value, bool):
            raise self._wrong(key, "true or false", value)
        return value

    def texts(self, key: str) -> tuple[str, ...]:
        """A list of strings."""
        values = self._list(key)
        for index, value in enumerate(values):
            if not isinstance(value, str):
                raise self._wrong(f"{key}[{index}]", "a string", value)
        return tuple(values)

    def integers(self, key: str) -> tuple[int, ...]:
        """A list of whole numbers of at least 0."""
        return tuple(
            self._integer(f"{key}[{index}]", value, 0)
            for index, value in enumerate(self._list(key))
        )

    def object(self, key: str, default: dict[str, Any] = _NOTHING) -> Fields:
        """An object."""
        return Fields(self._take(key, default), self._at(key))

    def objects(self, key: str) -> Iterator[Fields]:
        """A list of objects."""
        for index, value in enumerate(self._list(key)):
            yield Fields(value, self._at(f"{key}[{index}]"))

    def finish(self) -> None:
        """Raises MalformedField for a key that nothing has taken."""
        for key in self._values:
            if key not in self._taken:
                raise MalformedField(f"{self._at(key)!s:.80} is an unknown key")

    def _take(self, key: str, default: Any = _NOTHING) -> Any:
        self._taken.add(key)
        value = self._values.get(key, default)
        if value is _NOTHING:
            raise MalformedField(f"{self._at(key)} is missing")
        return value

    def _list(self, key: str) -> list[Any]:
        value = self._take(key)
        if not isinstance(value, list):
            raise self._wrong(key, "a list", value)
        return value

    def _integer(self, key: str, value: Any, minimum: int) -> int:
        if type(value) is not int or value < minimum:
            raise self._wrong(key, f"a whole number of at least {minimum}", value)
        return value

    def _wrong(self, key: str, wanted: str, value: Any) -> MalformedField:
        return MalformedField(f"{self._at(key)} must be {wanted}, not {_show(value)}")

    def _at(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key


def _show(value: Any) -> str:
    return f"{value!r:.40}"
