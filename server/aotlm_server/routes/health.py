"""GET /health and /healthz: may this server be sent requests?"""

from __future__ import annotations

from aiohttp import web

from aotlm.engine.protocol import EngineStatus
from aotlm_server.served_model import ModelSlot
from aotlm_server.sse import encode_json


class HealthRoutes:
    """200 when ready, 503 while loading or draining and after the engine died."""

    def __init__(self, slot: ModelSlot) -> None:
        self._slot = slot

    async def get(self, request: web.Request) -> web.Response:
        """Answer with the engine's status, ready or not."""
        status = self._slot.status
        return web.Response(
            status=200 if status is EngineStatus.READY else 503,
            body=encode_json({"status": status.value}),
            content_type="application/json",
        )
