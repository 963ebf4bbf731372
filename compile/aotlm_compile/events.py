"""What a running compile tells: plain data, one JSON object a line between the processes."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

STEPS = ("read", "build", "quantize", "lower", "link", "write")


@dataclass(frozen=True, slots=True)
class StepStarted:
    """A step began; steps come in the order of STEPS."""

    step: str


@dataclass(frozen=True, slots=True)
class StepProgress:
    """`done` of `total` (0: not known) things of the running step are ready."""

    step: str
    done: int
    total: int


@dataclass(frozen=True, slots=True)
class StepFinished:
    """A step ended well after `seconds`; `detail` says in a few words what came of it."""

    step: str
    seconds: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Failed:
    """The compile ended. `error` is the name of a class in `aotlm.errors`, or "" for a bug."""

    error: str
    message: str


@dataclass(frozen=True, slots=True)
class Finished:
    """The artifact lies at `path`; `reused` when it had been up to date already."""

    path: str
    reused: bool = False


Event = StepStarted | StepProgress | StepFinished | Failed | Finished

_NAMES: dict[type[Event], str] = {
    StepStarted: "step_started",
    StepProgress: "step_progress",
    StepFinished: "step_finished",
    Failed: "failed",
    Finished: "finished",
}
_TYPES = {name: kind for kind, name in _NAMES.items()}


def to_line(event: Event) -> str:
    """The event as one line of JSON, without its newline."""
    return json.dumps({"event": _NAMES[type(event)], **asdict(event)})


def from_line(line: str) -> Event | None:
    """The event a line holds, or None when it is something else."""
    try:
        table = json.loads(line)
        kind = _TYPES[table.pop("event")]
        return kind(**{field.name: table[field.name] for field in fields(kind)})
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
