"""Jinja as chat templates need it: Hugging Face's extras, a sandbox, and limits.

Templates come with checkpoints from strangers. The sandbox keeps them from Python's
internals; the limits keep them from memory and time: every loop turn, call and output of one
rendering is counted, and operators that make large values are checked before they run.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from datetime import datetime
from itertools import chain
from typing import Any, NoReturn, cast

from jinja2 import Undefined, nodes, pass_context
from jinja2.exceptions import TemplateError, TemplateSyntaxError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from aotlm.errors import ArtifactCorrupt, RequestError

MAX_OUTPUT = 16_000_000  # characters, of the result and of all intermediate outputs together
MAX_STEPS = 2_000_000  # loop turns and calls
MAX_SECONDS = 2.0
_MAX_VALUE = 16_000_000  # characters or items of one value an operator makes
_STEPS_BETWEEN_CLOCKS = 256

# Methods of strings whose result can be much larger than what they are given.
_PADDING = frozenset({"ljust", "rjust", "center", "zfill", "expandtabs", "format", "format_map"})
_WIDE = re.compile(
    r"\d{8,}|%[-+ #0]*\*"
)  # in a format: a width of eight digits, or one from outside


class _Refused(Exception):
    """The template called raise_exception."""


class _Budget:
    """What one rendering may still use."""

    __slots__ = ("_deadline", "_output", "_steps")

    def __init__(self) -> None:
        self._steps = 0
        self._output = 0
        self._deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        self._steps += 1
        if self._steps > MAX_STEPS:
            raise RequestError(f"more than {MAX_STEPS} steps")
        if not self._steps % _STEPS_BETWEEN_CLOCKS and time.monotonic() > self._deadline:
            raise RequestError(f"more than {MAX_SECONDS:g} s")

    def output(self, size: int) -> None:
        self._output += size
        if self._output > MAX_OUTPUT:
            raise RequestError(f"more than {MAX_OUTPUT} characters of output")


_budget: ContextVar[_Budget] = ContextVar("budget")


class Template:
    """A compiled chat template."""

    __slots__ = ("_template",)

    def __init__(self, source: str, name: str) -> None:
        """Raises ArtifactCorrupt, which calls the template `name`, when it does not parse."""
        try:
            self._template = _Environment().from_string(source)
        except TemplateSyntaxError as error:
            raise ArtifactCorrupt(
                f"{name} does not parse: line {error.lineno}: {error.message}"
            ) from error
        except (TemplateError, SyntaxError, RecursionError, ValueError) as error:
            raise ArtifactCorrupt(f"{name} does not compile: {_one_line(error)}") from error

    def render(self, values: Mapping[str, Any]) -> str:
        """The template's text. Raises RequestError for whatever goes wrong in it."""
        budget = _Budget()
        token = _budget.set(budget)
        try:
            pieces = []
            size = 0
            for piece in self._template.generate(values):
                size += len(piece)
                if size > MAX_OUTPUT:
                    raise RequestError(f"more than {MAX_OUTPUT} characters of output")
                budget.step()
                pieces.append(piece)
            return "".join(pieces)
        except RequestError:
            raise
        except _Refused as error:
            raise RequestError(_one_line(error)) from error
        except Exception as error:  # a template can fail in as many ways as a program
            raise RequestError(_one_line(error) or type(error).__name__) from error
        finally:
            _budget.reset(token)


class _Environment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        # Source of the options and extras: the chat template environment of `transformers`.
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[LoopControlExtension, _GenerationTag],
            finalize=_counted_output,
        )
        self.filters |= {"tojson": _to_json, "_turns": _turns, "_joined": _joined}
        for name in ("center", "indent"):
            self.filters[name] = _bounded_filter(name, self.filters[name])
        self.globals |= {"raise_exception": _raise_exception, "strftime_now": _strftime_now}

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        template: nodes.Template = _AddCounters().visit(super()._parse(source, name, filename))
        return template

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        _check_operator(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        _budget.get().step()
        # The sandbox wraps str.format, so look inside.
        owner = getattr(getattr(obj, "__wrapped__", obj), "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, obj.__name__, args, kwargs)
        return super().call(context, obj, *args, **kwargs)


class _AddCounters(NodeTransformer):
    """Sends the turns of every loop and the parts of every `~` through a counting filter."""

    def visit_For(self, node: nodes.For) -> nodes.Node:
        node.iter = _filter("_turns", node.iter)
        return self.generic_visit(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        parts = nodes.List(node.nodes, lineno=node.lineno)
        return self.generic_visit(_filter("_joined", parts))


class _GenerationTag(Extension):
    """{% generation %} marks the assistant's part for training; here it is just its body."""

    tags = {"generation"}  # noqa: RUF012 (the base class declares it so)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(cast(nodes.Expr, node), name, [], [], None, None, lineno=node.lineno)


# With the context as an argument, filters of constants are not run while compiling.
@pass_context
def _turns(_context: Context, values: Iterable[Any]) -> Iterator[Any]:
    budget = _budget.get()
    for value in values:
        budget.step()
        yield value


@pass_context
def _joined(_context: Context, parts: list[Any]) -> str:
    texts = [str(part) for part in parts]
    _check_size(sum(map(len, texts)))
    return "".join(texts)


def _bounded_filter(name: str, original: Callable[..., str]) -> Callable[..., str]:
    @pass_context
    def bounded(_context: Context, value: Any, *args: Any, **kwargs: Any) -> str:
        for arg in chain(args, kwargs.values()):
            if isinstance(arg, int):
                _check_size(arg)
        return original(value, *args, **kwargs)

    bounded.__name__ = name
    return bounded


def _counted_output(value: Any) -> str:
    text = value if isinstance(value, str) else str(value)
    budget = _budget.get(None)
    if budget is not None:  # None while compiling: constants
        budget.output(len(text))
    return text


def _check_size(size: int) -> None:
    if size > _MAX_VALUE:
        raise RequestError(f"a value of more than {_MAX_VALUE} characters or items")


def _check_operator(operator: str, left: Any, right: Any) -> None:
    _budget.get().step()
    if operator == "**":
        if isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * abs(right) // 8)
    elif operator == "*":
        for value, count in ((left, right), (right, left)):
            if isinstance(value, str | list | tuple) and isinstance(count, int):
                _check_size(len(value) * count)
        if isinstance(left, int) and isinstance(right, int):
            _check_size((left.bit_length() + right.bit_length()) // 8)
    elif operator == "%":
        if isinstance(left, str) and _WIDE.search(left):
            raise RequestError("a format with a width of more than seven digits")
    elif isinstance(left, str | list | tuple) and isinstance(right, str | list | tuple):
        _check_size(len(left) + len(right))


def _check_method(owner: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    if name == "replace":
        old, new = args[:2] if len(args) > 1 else ("", "")
        if isinstance(old, str) and isinstance(new, str):
            _check_size(len(owner) + owner.count(old) * len(new))
    elif name in _PADDING:
        for arg in chain(args, kwargs.values()):
            if isinstance(arg, int):
                _check_size(arg)
        if name.startswith("format") and _WIDE.search(owner):
            raise RequestError("a format with a width of more than seven digits")


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own filter escapes <, > and & for HTML, which no model was trained on."""
    if isinstance(value, Undefined):
        raise RequestError(f"tojson of an undefined value ({value._undefined_message})")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: Any) -> NoReturn:
    raise _Refused(str(message))


def _strftime_now(format: str) -> str:
    return datetime.now().strftime(format)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())
