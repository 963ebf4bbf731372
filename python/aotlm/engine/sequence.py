"""One request under way: its tokens and how many of them are in the cache. No tensors."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aotlm.request import Request


class Sequence:
    """The tokens of one request, prompt first.

    |<------------- tokens ------------->|
    |<--- prompt --->|<-- completion --->|
    |<------ num_cached ------>|<- uncached: what the next forward passes must run ->|

    The last token is always uncached: its forward pass gives the logits of the next one.
    `seq_id` names it in the cache while it is running, and is -1 otherwise.
    """

    __slots__ = ("num_cached", "prompt_tokens", "request", "seq_id", "tokens")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.tokens: array[int] = array("i", request.prompt_ids)
        self.prompt_tokens = len(self.tokens)
        self.num_cached = 0
        self.seq_id = -1

    @property
    def uncached(self) -> int:
        return len(self.tokens) - self.num_cached

    @property
    def completion_tokens(self) -> int:
        return len(self.tokens) - self.prompt_tokens

    @property
    def is_decoding(self) -> bool:
        """One token is missing behind cached ones: the decode kernels will do."""
        return self.uncached == 1 and self.num_cached > 0

    def leave_cache(self) -> None:
        """Nothing of it is cached any more; running it again starts at the first token."""
        self.num_cached = 0
        self.seq_id = -1
