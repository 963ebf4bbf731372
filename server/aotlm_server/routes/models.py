"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from aiohttp import web

from aotlm_server.protocol.models import ModelCard, ModelList
from aotlm_server.served_model import ModelSlot, ServedModel
from aotlm_server.sse import encode_json


class ModelRoutes:
    """What is served; cheap, it never asks the engine thread."""

    def __init__(self, slot: ModelSlot) -> None:
        self._slot = slot

    async def list(self, request: web.Request) -> web.Response:
        """Every served model."""
        models: ModelList = {"object": "list", "data": [_card(self._slot.ready())]}
        return web.Response(body=encode_json(models), content_type="application/json")

    async def get(self, request: web.Request) -> web.Response:
        """One model by its name or alias."""
        model = self._slot.named(request.match_info["id"])
        return web.Response(body=encode_json(_card(model)), content_type="application/json")


def _card(model: ServedModel) -> ModelCard:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "aotlm",
        "context_window": model.engine.limits.context_window,
    }
