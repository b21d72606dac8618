"""The model server's books: which prefixes it has read (a prefix cache) and what it has counted (the ledger).

The cache works as vLLM's automatic prefix caching does: text in blocks of 16 tokens, each named by itself and all that
came before it, least recently used blocks dropped first. It holds names only: the synthetic source needs no keys and
values, but a client must see the same ``cached_tokens`` that a real server would report (§6.2.3).
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import asdict, dataclass, field

from specgen.llm.server_types import CHARS_PER_TOKEN

BLOCK_TOKENS = 16  # vLLM's default block size
_BLOCK_CHARS = BLOCK_TOKENS * CHARS_PER_TOKEN


class PrefixCache:
    """Names of the blocks that were read or written; the least recently used go beyond ``capacity_tokens``."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = max(0, capacity_tokens) // BLOCK_TOKENS
        self._seen: OrderedDict[int, None] = OrderedDict()

    def cached_tokens(self, text: str) -> int:
        """How many leading tokens of ``text`` are held. Only whole blocks count."""
        name, blocks = 0, 0
        for start in range(0, len(text) - _BLOCK_CHARS + 1, _BLOCK_CHARS):
            name = hash((name, text[start : start + _BLOCK_CHARS]))
            if name not in self._seen:
                break
            self._seen.move_to_end(name)
            blocks += 1
        return blocks * BLOCK_TOKENS

    def remember(self, name: int) -> None:
        """Hold a block."""
        self._seen[name] = None
        self._seen.move_to_end(name)
        while len(self._seen) > self._capacity:
            self._seen.popitem(last=False)


class SequenceWriter:
    """Feeds one sequence to the cache as it grows."""

    def __init__(self, cache: PrefixCache) -> None:
        self._cache = cache
        self._name = 0
        self._rest = ""

    def add(self, text: str) -> None:
        """Append to the sequence; whole blocks are held from now on."""
        self._rest += text
        whole = len(self._rest) - len(self._rest) % _BLOCK_CHARS
        for start in range(0, whole, _BLOCK_CHARS):
            self._name = hash((self._name, self._rest[start : start + _BLOCK_CHARS]))
            self._cache.remember(self._name)
        self._rest = self._rest[whole:]


@dataclass
class TokenTotals:
    """Tokens since the server started. ``completion`` includes ``reasoning``, ``prompt`` includes ``cached``."""

    prompt: int = 0
    cached: int = 0
    reasoning: int = 0
    completion: int = 0


@dataclass
class Ledger:
    """Counters behind GET /stats. A stream is one choice of one request; a cancelled one counts what was sent."""

    requests: int = 0
    refused: int = 0
    mains: int = 0
    forks: int = 0
    running: int = 0
    running_peak: int = 0
    finished: int = 0
    cancelled: int = 0
    failed: int = 0
    tokens: TokenTotals = field(default_factory=TokenTotals)

    def started(self, *, fork: bool) -> None:
        """A stream began."""
        self.forks += fork
        self.mains += not fork
        self.running += 1
        self.running_peak = max(self.running_peak, self.running)

    def as_dict(self) -> dict[str, object]:
        """For JSON."""
        return asdict(self)
