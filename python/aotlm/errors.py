"""Every error aotlm raises on purpose.

    AotlmError
    +-- ArtifactError              an artifact on disk cannot be used
    |   +-- ArtifactNotFound
    |   +-- ArtifactCorrupt        truncated, checksum differs, manifest unreadable
    |   +-- ArtifactIncompatible   other manifest version, other device, missing CPU level
    +-- CompileError               a checkpoint cannot be turned into an artifact
    |   +-- CheckpointError        missing, truncated or unsupported checkpoint
    |   +-- RecipeError            unknown or malformed recipe
    |   +-- ToolchainError         no linker, compiler crashed
    +-- RequestError               the caller's input is wrong (HTTP 400)
    |   +-- ContextLengthError     prompt does not fit the context window
    |   +-- ModelNotServed         the named model is not loaded here (HTTP 404)
    +-- ServeError                 the server cannot start as asked: bad setting, port in use
    +-- EngineError                the engine cannot do what was asked (HTTP 5xx / 429)
        +-- EngineOverloaded       the waiting queue is full (HTTP 429)
        +-- EngineStopped          not started, draining, or the device was lost (HTTP 503)
        +-- GenerationFailed       this one request failed; others go on

Messages are one line and say what, where and what to do. The HTTP status of each is
mapped in one place, `aotlm_server.middleware.errors`; exit codes in `aotlm.cli`.
"""

from __future__ import annotations


class AotlmError(Exception):
    """Base of every error raised on purpose; its message is meant for the user."""


class ArtifactError(AotlmError):
    """An artifact on disk cannot be used."""


class ArtifactNotFound(ArtifactError):
    """There is no artifact at the given path or under the given name."""


class ArtifactCorrupt(ArtifactError):
    """A file of the artifact is missing, truncated or altered."""


class ArtifactIncompatible(ArtifactError):
    """The artifact was made for another version, device or CPU level."""


class CompileError(AotlmError):
    """A checkpoint cannot be turned into an artifact."""


class CheckpointError(CompileError):
    """The checkpoint is missing, truncated or of an unsupported kind."""


class RecipeError(CompileError):
    """The recipe is unknown or malformed."""


class ToolchainError(CompileError):
    """A tool the compiler needs is missing or failed."""


class RequestError(AotlmError):
    """The caller's input is wrong.

    `param` is the path of the bad field (for example ``messages[2].content``), or None.
    """

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class ContextLengthError(RequestError):
    """The prompt does not fit the context window."""


class ModelNotServed(RequestError):
    """The request names a model that this server does not serve."""


class ServeError(AotlmError):
    """The server cannot start as asked: a bad setting, a port in use."""


class EngineError(AotlmError):
    """The engine cannot do what was asked."""


class EngineOverloaded(EngineError):
    """The waiting queue is full; try again later."""


class EngineStopped(EngineError):
    """The engine is not started, is draining, or lost its device."""


class GenerationFailed(EngineError):
    """This one request failed while it was generated; the engine goes on."""
