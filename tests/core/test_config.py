from __future__ import annotations

from pathlib import Path

import pytest

from aotlm.config import EngineConfig
from aotlm.errors import RequestError


@pytest.mark.parametrize(
    "name",
    ["max_batch_size", "cache_tokens", "cache_memory_mb", "threads", "busy_prefill_tokens"],
)
@pytest.mark.parametrize("value", [0, -1])
def test_numbers_that_cannot_be_meant_name_their_field(name: str, value: int) -> None:
    with pytest.raises(RequestError, match=f"{name} must be positive, not {value}") as caught:
        EngineConfig(artifact=Path("m"), **{name: value})
    assert caught.value.param == name


def test_the_queue_may_be_empty_but_not_negative() -> None:
    assert EngineConfig(artifact=Path("m"), queue_limit=0).queue_limit == 0
    with pytest.raises(RequestError, match="queue_limit must not be negative"):
        EngineConfig(artifact=Path("m"), queue_limit=-1)
