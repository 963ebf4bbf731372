"""The text side of an artifact: its tokenizer and its conversation template."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from aotlm.text.conversation import ConversationTemplate
from aotlm.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    from aotlm.artifact import Artifact

_FALLBACK_TEMPLATE = "chatml"


def load_text(artifact: Artifact) -> tuple[Tokenizer, ConversationTemplate]:
    """The model's own template, or the built-in one for a model without.

    Raises ArtifactNotFound or ArtifactCorrupt.
    """
    tokenizer = Tokenizer.from_file(artifact.tokenizer_path)
    path = artifact.chat_template_path
    if path is None:
        return tokenizer, ConversationTemplate.built_in(_FALLBACK_TEMPLATE)
    return tokenizer, ConversationTemplate.from_file(path, special_tokens=role_tokens(artifact))


def role_tokens(artifact: Artifact) -> dict[str, str]:
    """How the tokens are spelled that templates ask for by their role (bos_token, eos_token)."""
    data = json.loads(artifact.tokenizer_path.read_bytes())
    spelling = {entry["id"]: entry["content"] for entry in data.get("added_tokens") or ()}
    tokens = artifact.manifest.tokens
    roles = {"bos_token": tokens.bos_id, "eos_token": next(iter(tokens.eos_ids), None)}
    return {role: spelling[token] for role, token in roles.items() if token in spelling}
