"""What the operator may choose: flags > AOTLM_* environment > defaults.

Every field is a flag of `aotlm serve` (`--served-model-name`) and an environment variable
(`AOTLM_SERVED_MODEL_NAME`). `None` means: not chosen, the model or the contract decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from aotlm.errors import ServeError

ENVIRONMENT_PREFIX = "AOTLM_"

# The engine counts in 32 bits.
_MOST = 2**31 - 1


class Settings(BaseModel):
    """The settings of one server."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=0, le=65535)
    served_model_name: str | None = Field(default=None, min_length=1)
    max_batch_size: int | None = Field(default=None, ge=1, le=_MOST)
    log_format: Literal["text", "json"] = "text"
    stream_interval: int = Field(default=1, ge=1, description="tokens gathered in one chunk")
    grace_period: float = Field(
        default=10.0, ge=0, allow_inf_nan=False, description="seconds running requests get"
    )
    max_body_mb: int = Field(default=16, ge=1, description="larger request bodies get 413")
    max_tokens: int | None = Field(default=None, ge=1, le=_MOST)
    default_temperature: float | None = Field(default=None, ge=0, le=2, allow_inf_nan=False)
    default_top_p: float | None = Field(default=None, gt=0, le=1, allow_inf_nan=False)
    default_top_k: int | None = Field(default=None, ge=0, le=_MOST)


def load_settings(flags: Mapping[str, Any], environment: Mapping[str, str]) -> Settings:
    """Merge the sources; flags that are None were not given.

    Raises ServeError naming the flag or variable that is wrong.
    """
    values: dict[str, Any] = {}
    origin: dict[str, str] = {}
    for name in Settings.model_fields:
        variable = ENVIRONMENT_PREFIX + name.upper()
        if environment.get(variable):
            values[name], origin[name] = environment[variable], variable
        if flags.get(name) is not None:
            values[name], origin[name] = flags[name], "--" + name.replace("_", "-")
    try:
        return Settings.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        source = origin.get(str(first["loc"][0]), "settings")
        raise ServeError(f"{source}: {first['msg']}, got {first['input']!r}") from None
