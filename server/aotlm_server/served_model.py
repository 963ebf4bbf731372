"""The model a server serves, and the slot it is put into once it has loaded.

The server listens before its model is there, so that /health can tell "loading" from "down".
Routes ask the slot; it answers with the model or with EngineStopped (HTTP 503).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from aotlm.engine.protocol import EngineProtocol, EngineStatus
from aotlm.errors import EngineStopped, ModelNotServed
from aotlm.text.conversation import ConversationTemplate
from aotlm.text.tokenizer import Tokenizer

MODEL_ALIAS = "default"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model and all that is needed to talk to it.

    `end_token_ids` end an answer unless the request says ignore_eos. `generation_defaults` are
    the checkpoint's own (temperature, top_p, top_k, repetition_penalty). `created` is in Unix
    seconds. `fingerprint` changes whenever answers may: with the artifact and the version.
    """

    name: str
    engine: EngineProtocol
    tokenizer: Tokenizer
    conversation: ConversationTemplate
    end_token_ids: frozenset[int]
    generation_defaults: Mapping[str, float] = field(default_factory=dict)
    created: int = 0
    fingerprint: str = "aotlm"


class ModelSlot:
    """Empty while the model loads, then filled once."""

    def __init__(self, model: ServedModel | None = None) -> None:
        self._model = model

    def fill(self, model: ServedModel) -> None:
        """Put the loaded model in; its engine must have started."""
        self._model = model

    @property
    def model(self) -> ServedModel | None:
        """The loaded model, ready or not."""
        return self._model

    @property
    def status(self) -> EngineStatus:
        """LOADING while empty, then what the engine says."""
        return EngineStatus.LOADING if self._model is None else self._model.engine.status

    def ready(self) -> ServedModel:
        """The model, if it takes requests now. Raises EngineStopped."""
        if self._model is None or self.status is not EngineStatus.READY:
            raise EngineStopped(_NOT_READY[self.status])
        return self._model

    def named(self, name: str) -> ServedModel:
        """The model served under `name` or its alias. Raises ModelNotServed, EngineStopped."""
        model = self.ready()
        if name not in (model.name, MODEL_ALIAS):
            raise ModelNotServed(
                f"the model {name!r} is not served here; served: {model.name} ({MODEL_ALIAS})",
                param="model",
            )
        return model


_NOT_READY = {
    EngineStatus.LOADING: "the model is still loading; try again in a moment",
    EngineStatus.DRAINING: "the server is shutting down and takes no new requests",
    EngineStatus.STOPPED: "the server has stopped",
    EngineStatus.FAILED: "the engine has failed; see the server's log and restart it",
    EngineStatus.READY: "the model is ready",
}
