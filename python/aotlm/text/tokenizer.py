"""Text <-> token ids, by a model's tokenizer.json.

Byte-level BPE goes to tiktoken where that gives the same ids, everything else to Hugging
Face's `tokenizers`, which is imported only when it is needed.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aotlm.errors import ArtifactCorrupt, ArtifactNotFound
from aotlm.text.added_tokens import AddedToken, AddedTokenSplitter
from aotlm.text.token_bytes import vocabulary_bytes

if TYPE_CHECKING:
    import tokenizers

    from aotlm.text.byte_level_bpe import ByteLevelBPE


class Tokenizer:
    """The tokenizer of one model; may be used from several threads at once.

    Decoding works as soon as it is loaded. The encoder is made by the first `encode`, or
    before that by `prepare`.
    """

    __slots__ = (
        "_added",
        "_bytes",
        "_data",
        "_fast",
        "_json",
        "_library",
        "_lock",
        "_source",
        "_special",
        "_splitter",
        "_to_id",
    )

    def __init__(self, json_text: bytes, source: str = "tokenizer.json") -> None:
        """Read the UTF-8 text of a tokenizer.json. `source` is what errors call it.

        Raises ArtifactCorrupt when it is not one.
        """
        self._json = json_text
        self._source = source
        self._lock = threading.Lock()
        self._fast: ByteLevelBPE | None = None
        self._library: dict[bool, tokenizers.Tokenizer] = {}
        with self._readable():
            data = json.loads(json_text)
            vocab = _vocabulary(data["model"])
            self._added = [_added_token(entry) for entry in data.get("added_tokens") or ()]
            names = {token.content: token.token_id for token in self._added}
            self._to_id = {**vocab, **names}
            self._special = frozenset(token.token_id for token in self._added if token.special)
            self._bytes = vocabulary_bytes(vocab, data)
            size = max(self._to_id.values(), default=-1) + 1
            self._bytes += [b""] * (size - len(self._bytes))
            for token in self._added:
                self._bytes[token.token_id] = b"" if token.special else token.content.encode()
        self._splitter = AddedTokenSplitter(self._added)
        self._data: dict[str, Any] | None = data  # until the encoder is made of it

    @classmethod
    def from_file(cls, path: Path | str) -> Tokenizer:
        """Load a tokenizer.json. Raises ArtifactNotFound or ArtifactCorrupt."""
        try:
            json_text = Path(path).read_bytes()
        except FileNotFoundError:
            raise ArtifactNotFound(f"there is no tokenizer at {path}") from None
        except OSError as error:
            raise ArtifactCorrupt(f"{path} cannot be read: {error.strerror}") from error
        return cls(json_text, str(path))

    @property
    def vocab_size(self) -> int:
        """One more than the largest id. A model's logits may be padded beyond it."""
        return len(self._bytes)

    def prepare(self) -> None:
        """Make the encoder now. Takes about 0.2 s for 49,000 tokens, nothing when made already.

        Raises ArtifactCorrupt when the merges or the parts for `tokenizers` are malformed.
        """
        with self._lock:
            if self._data is None:
                return
            if not any(token.loose for token in self._added):
                from aotlm.text import byte_level_bpe

                with self._readable():
                    self._fast = byte_level_bpe.build(self._data)
            if self._fast is None:
                self._by_library(allow_special=True)
            self._data = None

    def encode(self, text: str, allow_special: bool) -> list[int]:
        """Ids of a text; nothing is put before or after it.

        With `allow_special=False` the names of special tokens in the text stay text: use it
        for what users write. Lone surrogates are read as U+FFFD.
        """
        try:
            text.encode()
        except UnicodeEncodeError:
            text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        self.prepare()
        if self._fast is None or not self._fast.accepts(text):
            return self._encode_by_library(text, allow_special)
        ids: list[int] = []
        for part in self._splitter.split(text, allow_special):
            if isinstance(part, int):
                ids.append(part)
            else:
                ids += self._fast.encode(part)
        return ids

    def decode(self, token_ids: Iterable[int]) -> str:
        """Text of the ids; special tokens have none, broken UTF-8 becomes U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The token's own bytes, not always whole characters.

        Empty for special tokens, and for ids past the vocabulary: padded logits have those.
        """
        return self._bytes[token_id] if 0 <= token_id < len(self._bytes) else b""

    def is_special(self, token_id: int) -> bool:
        """Whether the token has a meaning but no text."""
        return token_id in self._special

    def token_to_id(self, token: str) -> int | None:
        """Id of a token by its spelling in tokenizer.json; None when there is no such token."""
        return self._to_id.get(token)

    def _encode_by_library(self, text: str, allow_special: bool) -> list[int]:
        ids: list[int] = self._by_library(allow_special).encode(text, add_special_tokens=False).ids
        if allow_special or self._special.isdisjoint(ids):
            return ids
        # A Unigram vocabulary holds its special tokens as ordinary pieces and finds them in text.
        names = {token.token_id: token.content for token in self._added if token.special}
        spelled: list[int] = []
        for token_id in ids:
            spelled += self._spell(names[token_id]) if token_id in names else [token_id]
        return spelled

    def _spell(self, name: str) -> list[int]:
        """Ids of a text by single characters, or by bytes; what has neither is left out."""
        ids: list[int] = []
        for char in name:
            known = self._to_id.get(char)
            spelling = (
                [char] if known is not None else [f"<0x{byte:02X}>" for byte in char.encode()]
            )
            ids += [found for part in spelling if (found := self._to_id.get(part)) is not None]
        return ids

    def _by_library(self, allow_special: bool) -> tokenizers.Tokenizer:
        """The `tokenizers` instance for this switch, which is a property of the instance."""
        library = self._library.get(allow_special)
        if library is None:
            from tokenizers import Tokenizer as Library

            try:
                library = Library.from_str(self._json.decode())
            except Exception as error:  # the library raises no narrower type
                raise ArtifactCorrupt(f"{self._source} is not usable: {error}") from error
            library.no_truncation()
            library.no_padding()
            library.encode_special_tokens = not allow_special
            self._library[allow_special] = library
        return library

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Whatever is wrong with foreign JSON comes out as ArtifactCorrupt."""
        try:
            yield
        except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
            raise ArtifactCorrupt(
                f"{self._source} is not a readable tokenizer.json ({type(error).__name__}: {error})"
            ) from error


def _vocabulary(model: Mapping[str, Any]) -> dict[str, int]:
    vocab = model["vocab"]
    if isinstance(vocab, list):  # Unigram: [token, score] by id
        vocab = {token: token_id for token_id, (token, _) in enumerate(vocab)}
    if not all(type(token_id) is int and token_id >= 0 for token_id in vocab.values()):
        raise ValueError("an id of the vocabulary is not a whole number")
    result: dict[str, int] = vocab
    return result


def _added_token(entry: Mapping[str, Any]) -> AddedToken:
    token_id, content = entry["id"], entry["content"]
    if type(token_id) is not int or token_id < 0 or not isinstance(content, str):
        raise ValueError("an added token lacks an id or its content")
    return AddedToken(
        token_id=token_id,
        content=content,
        special=bool(entry.get("special")),
        normalized=bool(entry.get("normalized")),
        loose=any(entry.get(key) for key in ("lstrip", "rstrip", "single_word")),
    )
