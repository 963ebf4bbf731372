"""From an artifact's folder to a model that answers."""

from __future__ import annotations

import asyncio
import hashlib
from datetime import datetime
from pathlib import Path

from aotlm.artifact import Artifact
from aotlm.config import EngineConfig
from aotlm.engine.async_engine import AsyncEngine
from aotlm.model_text import load_text
from aotlm.text.conversation import ConversationTemplate
from aotlm.text.tokenizer import Tokenizer
from aotlm_server.served_model import ServedModel
from aotlm_server.settings import Settings


async def load_model(path: Path, settings: Settings) -> ServedModel:
    """Load weights and text side by side. Raises ArtifactError or EngineError."""
    artifact = await asyncio.to_thread(Artifact.open, path)
    engine = AsyncEngine.from_config(
        EngineConfig(artifact=path, max_batch_size=settings.max_batch_size)
    )
    try:
        (tokenizer, conversation), _ = await asyncio.gather(
            asyncio.to_thread(_ready_text, artifact), engine.start()
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


def _ready_text(artifact: Artifact) -> tuple[Tokenizer, ConversationTemplate]:
    """The tokenizer and the template, both ready to use. Raises ArtifactError."""
    tokenizer, conversation = load_text(artifact)
    tokenizer.prepare()
    conversation.prepare()
    return tokenizer, conversation


def _fingerprint(artifact: Artifact) -> str:
    """Changes with the library, the weights and the texts of the model."""
    files = artifact.manifest.files
    sums = "".join(files[name].sha256 for name in sorted(files))
    return f"aotlm-{hashlib.sha256(sums.encode()).hexdigest()[:12]}"
