"""POST /v1/chat/completions: the pipeline's steps in order, then a stream or one body."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from contextlib import aclosing

from aiohttp import web

from aotlm.request import Request
from aotlm_server.middleware.errors import describe_error
from aotlm_server.pipeline.assemble import AnswerHead, ChunkWriter, fold
from aotlm_server.pipeline.body import Body, parse_object, read_body
from aotlm_server.pipeline.generate import TextEvent, generate_text, merge_choices
from aotlm_server.pipeline.generation_config import generation_configs, stop_strings
from aotlm_server.pipeline.template import render_prompt
from aotlm_server.pipeline.tokenize import tokenize_prompt
from aotlm_server.pipeline.validate import validate_chat
from aotlm_server.protocol.chat import ChatRequest
from aotlm_server.served_model import ModelSlot, ServedModel
from aotlm_server.settings import Settings
from aotlm_server.sse import EventStream, encode_json

# Longer bodies are parsed, checked, templated and tokenized beside the event loop, not on it.
_INLINE_BYTES = 8192


class ChatRoutes:
    """Chat completions of the slot's model."""

    def __init__(self, slot: ModelSlot, settings: Settings) -> None:
        self._slot = slot
        self._settings = settings

    async def post(self, request: web.Request) -> web.StreamResponse:
        """Answer one chat request."""
        body = await read_body(request)
        if len(body.raw) < _INLINE_BYTES and not body.compressed:
            call, model, prompt_ids = _understand(body, self._slot)
        else:
            call, model, prompt_ids = await asyncio.to_thread(_understand, body, self._slot)
        head = AnswerHead(model, wants_logprobs=bool(call.logprobs))
        events = self._events(call, model, prompt_ids, head.id)
        if call.stream:
            return await _stream(request, call, head, events)
        async with aclosing(events):
            answer = await fold(events, head, call.n or 1)
        return web.Response(body=encode_json(answer), content_type="application/json")

    def _events(
        self, call: ChatRequest, model: ServedModel, prompt_ids: tuple[int, ...], answer_id: str
    ) -> AsyncGenerator[TextEvent, None]:
        choices = [
            generate_text(
                model.engine,
                model.tokenizer,
                Request(f"{answer_id}-{index}", prompt_ids, config),
                index=index,
                stops=stop_strings(call, model),
                interval=self._settings.stream_interval,
            )
            for index, config in enumerate(generation_configs(call, model, self._settings))
        ]
        return merge_choices(choices)


def _understand(body: Body, slot: ModelSlot) -> tuple[ChatRequest, ServedModel, tuple[int, ...]]:
    """All that is done to a body before the engine sees it: the call, its model, its prompt."""
    call = validate_chat(parse_object(body))
    model = slot.named(call.model)
    pieces = render_prompt(model.conversation, model.tokenizer, call.messages)
    prompt_ids = tokenize_prompt(model.tokenizer, pieces, model.engine.limits.context_window)
    return call, model, prompt_ids


async def _stream(
    request: web.Request,
    call: ChatRequest,
    head: AnswerHead,
    events: AsyncGenerator[TextEvent, None],
) -> web.StreamResponse:
    stream = EventStream(request)
    options = call.stream_options
    writer = ChunkWriter(head, include_usage=bool(options and options.include_usage))
    async with aclosing(events):
        # Until here an error is an ordinary answer with a status of its own.
        first = await anext(events)
        with contextlib.suppress(ConnectionError):  # the client left: closing the events aborts
            await stream.open()
            try:
                await _send_all(stream, writer, first, events)
            except ConnectionError:
                raise
            except Exception as error:
                await stream.send(describe_error(error, request).body)
                stream.response.force_close()
            await stream.close()
    return stream.response


async def _send_all(
    stream: EventStream,
    writer: ChunkWriter,
    first: TextEvent,
    rest: AsyncGenerator[TextEvent, None],
) -> None:
    for chunk in writer.chunks(first):
        await stream.send(chunk)
    async for event in rest:
        for chunk in writer.chunks(event):
            await stream.send(chunk)
    usage = writer.usage()
    if usage is not None:
        await stream.send(usage)
