"""Step 3: the prompt's text becomes token ids that fit the context window."""

from __future__ import annotations

from collections.abc import Iterable

from aotlm.errors import ContextLengthError
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.pipeline.template import PromptPiece


def tokenize_prompt(
    tokenizer: Tokenizer, pieces: Iterable[PromptPiece], context_window: int
) -> tuple[int, ...]:
    """Token ids: int32 [num_tokens], the pieces' one after another.

    Raises ContextLengthError where no room is left for an answer.
    """
    token_ids: list[int] = []
    for piece in pieces:
        token_ids += tokenizer.encode(piece.text, allow_special=piece.trusted)
    if len(token_ids) >= context_window:
        raise ContextLengthError(
            f"this model's context window is {context_window} tokens, the answer included, but the "
            f"messages take {len(token_ids)}; shorten them",
            param="messages",
        )
    return tuple(token_ids)
