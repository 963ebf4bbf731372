"""From an artifact's folder to a model that answers."""

from __future__ import annotations

import asyncio
import hashlib
import json
from datetime import datetime
from pathlib import Path

from aotlm.artifact import Artifact
from aotlm.config import EngineConfig
from aotlm.engine.async_engine import AsyncEngine
from aotlm.text.conversation import ConversationTemplate
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.served_model import ServedModel
from aotlm_server.settings import Settings

_FALLBACK_TEMPLATE = "chatml"


async def load_model(path: Path, settings: Settings) -> ServedModel:
    """Load weights and text side by side. Raises ArtifactError or EngineError."""
    artifact = await asyncio.to_thread(Artifact.open, path)
    engine = AsyncEngine.from_config(
        EngineConfig(artifact=path, max_batch_size=settings.max_batch_size)
    )
    try:
        (tokenizer, conversation), _ = await asyncio.gather(
            asyncio.to_thread(load_text, artifact), engine.start()
        )
    except BaseException:
        await engine.stop(0)
        raise
    manifest = artifact.manifest
    return ServedModel(
        name=settings.served_model_name or manifest.model.name,
        engine=engine,
        tokenizer=tokenizer,
        conversation=conversation,
        end_token_ids=frozenset(manifest.tokens.eos_ids),
        generation_defaults=manifest.generation.given(),
        created=int(datetime.fromisoformat(manifest.created).timestamp()),
        fingerprint=_fingerprint(artifact),
    )


def load_text(artifact: Artifact) -> tuple[Tokenizer, ConversationTemplate]:
    """The tokenizer and the template, both ready to use. Raises ArtifactError."""
    tokenizer = Tokenizer.from_file(artifact.tokenizer_path)
    tokenizer.prepare()
    path = artifact.chat_template_path
    if path is None:
        conversation = ConversationTemplate.built_in(_FALLBACK_TEMPLATE)
    else:
        conversation = ConversationTemplate.from_file(
            path, special_tokens=_special_tokens(artifact)
        )
    conversation.prepare()
    return tokenizer, conversation


def _special_tokens(artifact: Artifact) -> dict[str, str]:
    """How the tokens that templates ask for by their role are spelled."""
    added = json.loads(artifact.tokenizer_path.read_bytes()).get("added_tokens") or ()
    spelling = {entry["id"]: entry["content"] for entry in added}
    tokens = artifact.manifest.tokens
    roles = {"bos_token": tokens.bos_id, "eos_token": next(iter(tokens.eos_ids), None)}
    return {role: spelling[i] for role, i in roles.items() if i in spelling}


def _fingerprint(artifact: Artifact) -> str:
    """Changes with the library, the weights and the texts of the model."""
    files = artifact.manifest.files
    sums = "".join(files[name].sha256 for name in sorted(files))
    return f"aotlm-{hashlib.sha256(sums.encode()).hexdigest()[:12]}"
