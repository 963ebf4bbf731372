"""Messages -> prompt text, by a model's own Jinja template or a named built-in one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotlm.errors import ArtifactCorrupt, ArtifactNotFound, RequestError

if TYPE_CHECKING:
    from aotlm.text.template_sandbox import Template

# ChatML, for models that come without a template. Source: OpenAI's chatml.md.
_CHATML = """\
{%- for message in messages -%}
{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}
"""

BUILT_IN_TEMPLATES: Mapping[str, str] = {"chatml": _CHATML}
_STOP_STRINGS: Mapping[str, tuple[str, ...]] = {"chatml": ("<|im_end|>",)}


class ConversationTemplate:
    """One template, compiled on first use; may be used from several threads at once.

    The template writes the begin-of-text token itself where the model wants one, so encode
    its text with special tokens allowed and put nothing before it.
    """

    __slots__ = ("_name", "_special_tokens", "_template", "source", "stop_strings")

    def __init__(
        self,
        source: str,
        *,
        name: str = "the chat template",
        special_tokens: Mapping[str, str] | None = None,
        stop_strings: Sequence[str] = (),
    ) -> None:
        """`special_tokens`: what the template knows as bos_token, eos_token, ...

        `name` is what errors call it; `stop_strings` end an answer beside the model's own end
        tokens.
        """
        self.source = source
        self.stop_strings = tuple(stop_strings)
        self._name = name
        self._special_tokens = dict(special_tokens or {})
        self._template: Template | None = None

    @classmethod
    def from_file(
        cls, path: Path | str, *, special_tokens: Mapping[str, str] | None = None
    ) -> ConversationTemplate:
        """Read a .jinja file. Raises ArtifactNotFound or ArtifactCorrupt."""
        try:
            source = Path(path).read_text(encoding="utf-8")
        except FileNotFoundError:
            raise ArtifactNotFound(f"there is no chat template at {path}") from None
        except (OSError, UnicodeDecodeError) as error:
            raise ArtifactCorrupt(f"the chat template {path} cannot be read: {error}") from error
        return cls(source, name=f"the chat template {path}", special_tokens=special_tokens)

    @classmethod
    def built_in(cls, name: str) -> ConversationTemplate:
        """One of `BUILT_IN_TEMPLATES`. Raises ArtifactNotFound naming them."""
        source = BUILT_IN_TEMPLATES.get(name)
        if source is None:
            known = ", ".join(sorted(BUILT_IN_TEMPLATES))
            raise ArtifactNotFound(f"there is no built-in chat template {name!r}; known: {known}")
        return cls(source, name=f"the chat template {name}", stop_strings=_STOP_STRINGS[name])

    def prepare(self) -> None:
        """Compile the template now. Raises ArtifactCorrupt with the line that does not parse."""
        self._compiled()

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        add_generation_prompt: bool = True,
        **variables: Any,
    ) -> str:
        """The prompt for these messages; content that is None or absent counts as "".

        `variables` (tools, documents, enable_thinking, ...) are the template's own. Raises
        RequestError with the template's message when it refuses the messages, fails on them,
        or passes the limits on size and time; ArtifactCorrupt when it does not parse.
        """
        template = self._compiled()
        values: dict[str, Any] = {"tools": None, "documents": None, **self._special_tokens}
        values |= variables
        values["messages"] = [
            {**message, "content": "" if (content := message.get("content")) is None else content}
            for message in messages
        ]
        values["add_generation_prompt"] = add_generation_prompt
        try:
            return template.render(values)
        except RequestError as error:
            raise RequestError(f"{self._name}: {error}", param="messages") from error

    def _compiled(self) -> Template:
        if self._template is None:
            from aotlm.text.template_sandbox import Template

            self._template = Template(self.source, self._name)
        return self._template
