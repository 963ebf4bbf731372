"""The whole wiring on one page: which path is answered by what, and what surrounds it."""

from __future__ import annotations

from aiohttp import web

from aotlm_server.middleware.access_log import access_log
from aotlm_server.middleware.errors import errors
from aotlm_server.middleware.request_id import echo_request_id, request_id
from aotlm_server.routes.chat import ChatRoutes
from aotlm_server.routes.health import HealthRoutes
from aotlm_server.routes.models import ModelRoutes
from aotlm_server.served_model import ModelSlot
from aotlm_server.settings import Settings


def create_app(slot: ModelSlot, settings: Settings) -> web.Application:
    """Make the application.

    `slot` may still be empty: until it is filled, all but /health answers 503. Run it with
    `handler_cancellation=True`, as `serving.listening` does: aiohttp does not end the handlers
    of clients that left by itself.
    """
    app = web.Application(
        middlewares=[request_id, access_log, errors],  # the first one is outermost
        client_max_size=settings.max_body_mb * 2**20,
    )
    app.on_response_prepare.append(echo_request_id)
    chat, models, health = ChatRoutes(slot, settings), ModelRoutes(slot), HealthRoutes(slot)
    app.add_routes(
        [
            web.post("/v1/chat/completions", chat.post),
            web.get("/v1/models", models.list),
            web.get("/v1/models/{id:.+}", models.get),
            web.get("/health", health.get),
            web.get("/healthz", health.get),
        ]
    )
    return app
