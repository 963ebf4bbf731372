"""The functions of an artifact's library as typed methods. No queues, no page counting.

Every call belongs on one thread: TVM's thread pool is that of the calling thread.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np

from aotlm.errors import ArtifactCorrupt, ArtifactIncompatible
from aotlm.runtime.device import load_tvm
from aotlm.runtime.params import load_params

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from aotlm.artifact import Artifact

_CPU = 1  # kDLCPU of DLPack
_POOLED = 2  # TVM's pooled allocator: activations are not allocated anew every step
_ALIGNMENT = 64  # bytes; what TVM demands of tensors it did not allocate


class CompiledModel:
    """A loaded library with its weights.

    Axis names: `num_tokens` is the ragged batch of a prefill, one chunk per sequence;
    `batch` the sequences of a decode; `vocab` the vocabulary.
    """

    def __init__(self, library: Path, params: Any, *, prefill_chunk: int, batch: int) -> None:
        """`params`: what `load_params` returned.

        Raises ArtifactCorrupt when the library cannot be loaded, ArtifactIncompatible when it
        lacks a function.
        """
        modules = load_tvm()
        self._ffi = modules.ffi
        try:
            vm = modules.tvm.runtime.load_module(str(library))["vm_load_executable"]()
            vm["vm_initialization"](_CPU, 0, _POOLED)
        except Exception as error:
            reason = str(error).strip().splitlines()[-1:]
            raise ArtifactCorrupt(
                f"{library} cannot be loaded ({''.join(reason)}): compile the model again"
            ) from None
        self._vm = vm
        self._prefill = self._function(library, "prefill")
        self._decode = self._function(library, "decode")
        self._create_kv_cache = self._function(library, "create_kv_cache")
        self._params = params
        self._token_ids = _aligned_int32(max(prefill_chunk, batch))
        self._positions = _aligned_int32(batch)

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> CompiledModel:
        """Load library and weights. Raises ArtifactError."""
        limits = artifact.manifest.limits
        return cls(
            artifact.library_path,
            load_params(artifact.weights_path, artifact.manifest.weights),
            prefill_chunk=limits.prefill_chunk,
            batch=limits.max_batch_size,
        )

    def create_kv_cache(
        self, *, max_batch_size: int, max_total_tokens: int, prefill_chunk: int, page_size: int
    ) -> Any:
        """TVM's paged cache for `max_total_tokens` tokens over all sequences.

        Memory is reserved, but takes real pages only as it is used.
        """
        shape = self._ffi.Shape
        return self._create_kv_cache(
            shape([max_batch_size]),
            shape([max_total_tokens]),
            shape([prefill_chunk]),
            shape([page_size]),
            shape([0]),
        )

    def prefill(
        self, token_ids: NDArray[np.int32], logit_positions: NDArray[np.int32], kv_cache: Any
    ) -> NDArray[np.float32]:
        """Run chunks of one or more sequences; `KVCache.forward` says how they split.

        `token_ids`: int32 [num_tokens]; `logit_positions`: int32 [wanted], indices into the
        num_tokens axis, at least one.
        Returns logits float32 [wanted, vocab]: a view, valid until the next call.
        """
        logits = self._prefill(
            self._tensor(self._token_ids, token_ids),
            self._tensor(self._positions, logit_positions),
            kv_cache,
            self._params,
        )
        return _as_array(logits)

    def decode(self, token_ids: NDArray[np.int32], kv_cache: Any) -> NDArray[np.float32]:
        """Run one token per sequence. `token_ids`: int32 [batch].

        Returns logits float32 [batch, vocab]: a view, valid until the next call.
        """
        logits = self._decode(self._tensor(self._token_ids, token_ids), kv_cache, self._params)
        return _as_array(logits)

    def _function(self, library: Path, name: str) -> Any:
        try:
            return self._vm[name]
        except Exception:
            raise ArtifactIncompatible(
                f"{library} has no function {name!r}: compile the model again"
            ) from None

    def _tensor(self, buffer: NDArray[np.int32], values: NDArray[np.int32]) -> Any:
        """A TVM tensor over the first places of `buffer`, filled with `values`."""
        target = buffer[: len(values)]
        target[:] = values
        return self._ffi.from_dlpack(target)


def _aligned_int32(length: int) -> NDArray[np.int32]:
    raw = np.empty(length * 4 + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    return raw[start : start + length * 4].view(np.int32)


def _as_array(tensor: Any) -> NDArray[np.float32]:
    return cast("NDArray[np.float32]", np.from_dlpack(tensor))
