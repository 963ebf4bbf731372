"""Wire models of POST /v1/chat/completions.

The request is strict: a field that is not declared here is refused by pydantic, and a declared
one that the server does not act on is refused by `pipeline.validate` (`NOT_ACTED_ON`).
Answers are typed dictionaries: cheap to make once per token, and describable by a schema.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired, TypedDict

from pydantic import BaseModel, ConfigDict, Field

MAX_CHOICES = 128
MAX_STOP_STRINGS = 16

StopString = Annotated[str, Field(min_length=1)]


class _Wire(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class ContentPart(_Wire):
    """One part of a message's content; only text parts are acted on."""

    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: Any = None
    input_audio: Any = None
    file: Any = None
    annotations: Any = None
    prompt_cache_breakpoint: Any = None


class ChatMessage(_Wire):
    """One turn. The fields after `name` come back from clients that append our answers."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | list[ContentPart] | None = None
    name: str | None = None
    refusal: str | None = None
    tool_calls: list[Any] | None = None
    tool_call_id: str | None = None
    function_call: Any = None
    annotations: list[Any] | None = None
    audio: Any = None
    reasoning: str | None = None
    reasoning_content: str | None = None


class StreamOptions(_Wire):
    """`include_obfuscation` asks for padding that we never send, so any value is right."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class ChatRequest(_Wire):
    """The body of a chat completion request; null means absent."""

    model: str
    messages: list[ChatMessage] = Field(min_length=1)

    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)
    temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    presence_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    frequency_penalty: float | None = Field(default=None, ge=-2, le=2, allow_inf_nan=False)
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    seed: int | None = Field(default=None, ge=-(2**63), le=2**63 - 1)
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    # Extensions, named as other servers name them.
    top_k: int | None = Field(default=None, ge=-1, le=2**31 - 1)
    min_p: float | None = Field(default=None, ge=0, le=1, allow_inf_nan=False)
    repetition_penalty: float | None = Field(default=None, gt=0, le=10, allow_inf_nan=False)
    min_tokens: int | None = Field(default=None, ge=0)
    stop_token_ids: list[Annotated[int, Field(ge=0)]] | None = None
    ignore_eos: bool | None = None

    # Harmless: they change nothing in the answer.
    user: str | None = None
    metadata: dict[str, Any] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None

    # Known to OpenAI's schema, not acted on: see NOT_ACTED_ON for the values that are let through.
    service_tier: str | None = None
    store: bool | None = None
    modalities: list[str] | None = None
    audio: Any = None
    prediction: Any = None
    verbosity: str | None = None
    moderation: Any = None
    prompt_cache_options: Any = None
    prompt_cache_retention: str | None = None
    web_search_options: Any = None
    reasoning_effort: str | None = None
    response_format: dict[str, Any] | None = None
    tools: list[Any] | None = None
    tool_choice: Any = None
    parallel_tool_calls: bool | None = None
    functions: list[Any] | None = None
    function_call: Any = None


# Fields we do not act on -> the values (beside null) that ask for nothing we do not do anyway.
NOT_ACTED_ON: dict[str, tuple[Any, ...]] = {
    "service_tier": ("auto", "default"),
    "store": (False,),
    "modalities": (["text"],),
    "audio": (),
    "prediction": (),
    "verbosity": ("medium",),
    "moderation": (),
    "prompt_cache_options": (),
    "prompt_cache_retention": ("in_memory", "in-memory"),
    "web_search_options": (),
    "reasoning_effort": ("medium", "none"),
    "response_format": ({"type": "text"},),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True,),
    "functions": ([],),
    "function_call": ("none", "auto"),
}


class TopLogprob(TypedDict):
    """One likely token; `bytes` is null where the token has no text."""

    token: str
    logprob: float
    bytes: list[int] | None


class TokenLogprob(TopLogprob):
    """The chosen token and its most likely rivals."""

    top_logprobs: list[TopLogprob]


class ChoiceLogprobs(TypedDict):
    """Log probabilities of the content's tokens."""

    content: list[TokenLogprob]
    refusal: None


class PromptTokensDetails(TypedDict):
    cached_tokens: int


class CompletionTokensDetails(TypedDict):
    reasoning_tokens: int


class Usage(TypedDict):
    """Counted in tokens over all choices; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class AnswerMessage(TypedDict):
    role: Literal["assistant"]
    content: str
    refusal: None


class AnswerChoice(TypedDict):
    index: int
    message: AnswerMessage
    logprobs: ChoiceLogprobs | None
    finish_reason: str


class ChatCompletion(TypedDict):
    """The whole answer at once."""

    id: str
    object: Literal["chat.completion"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[AnswerChoice]
    usage: Usage


class Delta(TypedDict, total=False):
    """What a chunk adds; absent keys rather than nulls."""

    role: Literal["assistant"]
    content: str


class ChunkChoice(TypedDict):
    index: int
    delta: Delta
    logprobs: ChoiceLogprobs | None
    finish_reason: str | None


class ChatChunk(TypedDict):
    """One event of a stream; `usage` is there only when the client asked for it."""

    id: str
    object: Literal["chat.completion.chunk"]
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChunkChoice]
    usage: NotRequired[Usage | None]
