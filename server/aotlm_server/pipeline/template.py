"""Step 2: messages become the text of the prompt, by the model's own template.

A user may write the names of special tokens, such as an end of turn. Such text is put between
two marks before it goes through the template, so that the next step can tell it from the
template's own tokens.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aotlm.errors import RequestError
from aotlm.text.conversation import ConversationTemplate
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.protocol.chat import ChatMessage

_PRIVATE_USE = range(0xE000, 0xF8FF)


@dataclass(frozen=True, slots=True)
class PromptPiece:
    """A stretch of the prompt; special tokens in it count only where `trusted`."""

    text: str
    trusted: bool


def render_prompt(
    conversation: ConversationTemplate, tokenizer: Tokenizer, messages: Sequence[ChatMessage]
) -> list[PromptPiece]:
    """The prompt up to where the assistant speaks.

    Raises RequestError with the template's own message where the template refuses the turns.
    """
    plain = [plain_message(message) for message in messages]
    marks = _unused_characters(plain)
    for message in plain:
        for key in ("content", "name"):
            if key in message and _names_special_token(message[key], tokenizer):
                message[key] = marks[0] + message[key] + marks[1]
    prompt = conversation.render(plain, add_generation_prompt=True)
    return list(_split_at_marks(prompt, marks))


def plain_message(message: ChatMessage) -> dict[str, str]:
    """A message as templates know it: role and content as strings.

    Text parts are joined as they are; an assistant's null content is empty; developer is what
    OpenAI calls system today, and templates know only system.
    """
    content = message.content
    if isinstance(content, list):
        content = "".join(part.text or "" for part in content)
    plain = {
        "role": "system" if message.role == "developer" else message.role,
        "content": content or "",
    }
    if message.name is not None:
        plain["name"] = message.name
    return plain


def _names_special_token(text: str, tokenizer: Tokenizer) -> bool:
    return any(map(tokenizer.is_special, tokenizer.encode(text, allow_special=True)))


def _unused_characters(messages: Sequence[dict[str, str]]) -> tuple[str, str]:
    used = {character for message in messages for text in message.values() for character in text}
    unused = [mark for code in _PRIVATE_USE if (mark := chr(code)) not in used]
    if len(unused) < 2:
        raise RequestError("messages: the text uses up Unicode's private area", param="messages")
    return unused[0], unused[1]


def _split_at_marks(prompt: str, marks: tuple[str, str]) -> list[PromptPiece]:
    opening, closing = marks
    pieces = []
    before = closing
    parts = re.split(f"([{opening}{closing}])", prompt)
    for text, after in zip(parts[::2], [*parts[1::2], opening], strict=True):
        # A template may cut a message in two: half a pair is enough not to be trusted.
        trusted = before == closing and after == opening
        if text:
            pieces.append(PromptPiece(text, trusted))
        before = after
    return pieces
