"""Which beginnings of prompts stand in the KV cache, for requests that share them. Pure.

A block is `BLOCK_TOKENS` tokens of a prompt with all that stands before them, so equal blocks have equal keys and
values. Mooncake's traces name the blocks of each request in ``hash_ids`` (kvcache-ai/Mooncake, 2407.00079).
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["BLOCK_TOKENS", "PrefixCache"]

#: Tokens of one of Mooncake's blocks.
BLOCK_TOKENS = 512


class PrefixCache:
    """Blocks in the cache: those that requests in flight use, and idle ones, which are kept until their room is needed.

    Idle blocks leave in the order in which they were last used; of one request's, the later in its prompt first, since
    without the earlier ones they can't be found.
    """

    def __init__(self) -> None:
        self._users: dict[int, int] = {}
        self._idle: dict[int, None] = {}  # the longest unused first

    @property
    def used_tokens(self) -> int:
        """Tokens in blocks that requests in flight use, each block once."""
        return len(self._users) * BLOCK_TOKENS

    @property
    def idle_tokens(self) -> int:
        return len(self._idle) * BLOCK_TOKENS

    def found(self, blocks: Sequence[int]) -> Sequence[int]:
        """The leading ``blocks`` that the cache holds."""
        count = 0
        while count < len(blocks) and (blocks[count] in self._users or blocks[count] in self._idle):
            count += 1
        return blocks[:count]

    def woken_tokens(self, blocks: Sequence[int]) -> int:
        """Tokens of ``blocks`` that are idle, which `take` would make used."""
        return sum(block in self._idle for block in blocks) * BLOCK_TOKENS

    def take(self, blocks: Sequence[int]) -> None:
        """One more request uses ``blocks``, all of which are held."""
        for block in blocks:
            self._idle.pop(block, None)
            self._users[block] = self._users.get(block, 0) + 1

    def add(self, block: int) -> bool:
        """A request has computed ``block`` and goes on using it. False where another copy is held already: then this
        one stays the request's own."""
        if block in self._users or block in self._idle:
            return False
        self._users[block] = 1
        return True

    def release(self, blocks: Sequence[int]) -> None:
        """A request no longer uses ``blocks``, which stand in the order of its prompt."""
        for block in reversed(blocks):
            self._users[block] -= 1
            if not self._users[block]:
                del self._users[block]
                self._idle[block] = None

    def shrink(self, tokens: int) -> None:
        """Drop idle blocks until they hold ``tokens`` at most."""
        while self.idle_tokens > tokens:
            del self._idle[next(iter(self._idle))]
