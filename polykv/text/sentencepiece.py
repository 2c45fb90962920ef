"""SentencePiece-style BPE (`tokenizer.ggml.model = llama`): the two neighbours whose join has the best score merge.

Spaces are written as U+2581. Starting from single characters, the pair of neighbours that joins to the token of the
highest score is merged (of equals, the leftmost), until no join is a token. A character that has no token becomes its
UTF-8 bytes, each the token `<0xNN>`. Source: Kudo and Richardson, "SentencePiece" (2018), section 3.

Merges depend on scores of tokens, not on a list of pairs, so the merging is done here: deriving the pairs of a
vocabulary of 262,144 entries for a library would cost more than most prompts.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Mapping
from heapq import heapify, heappop, heappush

import numpy as np

from polykv.errors import PromptError
from polykv.text.vocab import PREFIX, Kind, Vocabulary, fail

SPACE = "\u2581"

# Words repeat; cached ones cost one look-up. Both limits only bound memory.
_CACHE_WORDS = 1 << 16
_CACHE_LENGTH = 48

# A heap entry is one integer: rank of the token, position of the left symbol, characters of the join.
_SIZE_BITS, _LEFT_BITS = 20, 40
_SIZE_MASK, _LEFT_MASK = (1 << _SIZE_BITS) - 1, (1 << _LEFT_BITS) - 1


class SentencePieceBpe:
    """Encoder and decoder of text without special tokens."""

    add_space_prefix_default = True
    add_bos_default = True
    notes: tuple[str, ...] = ()

    def __init__(self, metadata: Mapping[str, object], vocab: Vocabulary) -> None:
        if vocab.scores is None:
            fail("scores", "is missing; merging needs one score per token")
        pre = metadata.get(PREFIX + "pre", "default")
        if pre != "default":
            fail("pre", f"{pre!r:.40} does not belong to a vocabulary with scores")
        self._vocab = vocab
        self._ids = vocab.ids
        # 0 is the best; equal scores share a rank. Tokens that text must never turn into have none.
        ranks = np.unique(-vocab.scores, return_inverse=True)[1].astype(np.intc)
        ranks[np.isin(vocab.kinds, (Kind.CONTROL, Kind.UNKNOWN, Kind.BYTE))] = -1
        # As fast to look into as a list, and 1 MB for 262,144 tokens where a list of Python integers takes 10.
        self._rank = array("i", ranks.tobytes())
        self._byte_ids = [vocab.ids.get(f"<0x{b:02X}>") for b in range(256)]
        self._words = _word_border(vocab)
        self._cache: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`. Raises PromptError for a character that has neither a token nor bytes nor `unk`."""
        ids: list[int] = []
        for word in self._words.split(text.replace(" ", SPACE)):
            known = self._cache.get(word)
            if known is None:
                known = self._word(word)
                if len(word) <= _CACHE_LENGTH:
                    if len(self._cache) >= _CACHE_WORDS:
                        self._cache.clear()
                    self._cache[word] = known
            ids += known
        return ids

    def _word(self, word: str) -> list[int]:
        if not word:
            return []
        token = self._ids.get(word)
        if len(word) == 1:
            return [token] if token >= 0 and self._rank[token] >= 0 else self._fallback(word)
        length = self._merge(word)
        ids, at = [], 0
        while at < len(word):
            symbol = word[at : at + length[at]]
            token = self._ids.get(symbol)
            if token >= 0 and self._rank[token] >= 0:
                ids.append(token)
            else:
                ids += self._fallback(symbol)
            at += length[at]
        return ids

    def _merge(self, word: str) -> array[int]:
        """Lengths of the symbols of `word` after all merges, at the position where each starts; O(n log n)."""
        n, ids, rank = len(word), self._ids, self._rank
        length = array("i", [1]) * n
        before = array("i", range(-1, n - 1))
        # Symbols are told by their first character, so the right neighbour of i is i + length[i].
        heap: list[int] = []
        for i in range(n - 1):
            token = ids.get(word[i : i + 2])
            if token >= 0 and rank[token] >= 0:
                heap.append((rank[token] << _LEFT_BITS | i) << _SIZE_BITS | 2)
        heapify(heap)
        while heap:
            entry = heappop(heap)
            size, left = entry & _SIZE_MASK, entry >> _SIZE_BITS & _LEFT_MASK
            right = left + length[left]
            # One of the two has merged elsewhere since: it is gone (length 0) or the join has another size.
            if length[left] == 0 or right >= n or length[left] + length[right] != size:
                continue
            length[left], length[right] = size, 0
            after = left + size
            if after < n:
                before[after] = left
            for a, end in ((before[left], after), (left, after + length[after] if after < n else -1)):
                if a < 0 or end < 0:
                    continue
                token = ids.get(word[a:end])
                if token >= 0 and rank[token] >= 0:
                    heappush(heap, (rank[token] << _LEFT_BITS | a) << _SIZE_BITS | end - a)
        return length

    def _fallback(self, symbol: str) -> list[int]:
        ids = [self._byte_ids[b] for b in symbol.encode()]
        if -1 not in ids:
            return ids
        if self._vocab.unk is None:
            raise PromptError(f"the model's vocabulary has no token for the character {symbol!r}")
        return [self._vocab.unk]

    def token_bytes(self, token_id: int) -> bytes:
        """Bytes of one token."""
        text, kind = self._vocab.tokens[token_id], self._vocab.kinds[token_id]
        if kind == Kind.BYTE:
            return bytes([_byte_value(text)])
        if kind in (Kind.CONTROL, Kind.USER_DEFINED, Kind.UNKNOWN):
            return text.encode()
        return text.replace(SPACE, " ").encode()


def _byte_value(text: str) -> int:
    match = re.fullmatch("<0x([0-9A-Fa-f]{2})>", text)
    if match is None:
        fail("tokens", f"{text!r:.40} is of the byte kind, but is not written <0xNN>")
    return int(match[1], 16)


def _word_border(vocab: Vocabulary) -> re.Pattern[str]:
    """Where text can be cut without changing a merge: before a space mark, unless some token holds a space mark after
    just that character. Nothing can merge across such a border, and merges on its two sides do not touch."""
    for i in vocab.of_kind(Kind.BYTE):
        _byte_value(vocab.tokens[i])
    inside = set(re.findall(f"([^\0]){SPACE}", "\0".join(vocab.tokens))) | {SPACE}
    return re.compile(f"(?<=[^{''.join(map(re.escape, sorted(inside)))}])(?={SPACE})")
