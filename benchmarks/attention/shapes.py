"""What is measured, and what it costs: operations and bytes. Needs neither a GPU nor PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

TOKENS = 16384  # in all sequences of a call together
WIDTH = 2048  # heads * head_dim
ITEM_BYTES = {"bf16": 2, "fp16": 2, "fp8e4m3": 1}
GROUPS = {"MHA": 1, "GQA 8:1": 8}  # query heads for each head of keys and values
HEADS_KV = {"MHA": 32, "GQA 8:1": 8}  # as in models of 8 billion parameters, before and after the change to groups
CACHE_BYTES = 1_000_000_000  # at least: many times the L2 cache, so that each byte comes from memory


@dataclass(frozen=True)
class Shape:
    """A call of training: as many sequences of one length as make TOKENS."""

    head_dim: int
    causal: bool
    length: int

    @property
    def batch(self) -> int:
        return max(1, TOKENS // self.length)

    @property
    def heads(self) -> int:
        return WIDTH // self.head_dim

    def operations(self, direction: str) -> float:
        """Floating-point operations as everybody counts them: two products forward, five backward, half if causal."""
        forward = 4.0 * self.batch * self.heads * self.length**2 * self.head_dim / (2 if self.causal else 1)
        return forward * 2.5 if direction == "backward" else forward


@dataclass(frozen=True)
class Cache:
    """A call of decoding: a new row for each sequence, over `keys` cached ones.

    Attributes:
        kind: one of GROUPS.
        page: keys on a page, all in random order; 0 for a cache that is contiguous.
        dtype: of what is cached.
    """

    head_dim: int
    kind: str
    keys: int
    page: int
    dtype: str

    @property
    def heads_kv(self) -> int:
        return HEADS_KV[self.kind]

    @property
    def heads(self) -> int:
        return self.heads_kv * GROUPS[self.kind]

    @property
    def batch(self) -> int:
        of_one = 2 * self.heads_kv * self.keys * self.head_dim * ITEM_BYTES[self.dtype]
        return -(-CACHE_BYTES // of_one)

    @property
    def elements(self) -> int:
        """Of the cached keys; there are as many of values."""
        return self.batch * self.heads_kv * self.keys * self.head_dim

    @property
    def bytes(self) -> int:
        """What must be read: each cached element once. Rows of q and out are less than a thousandth of it."""
        return 2 * self.elements * ITEM_BYTES[self.dtype]


def shapes(head_dims: Sequence[int], lengths: Sequence[int]) -> Iterator[Shape]:
    return itertools.starmap(Shape, itertools.product(head_dims, (False, True), lengths))


def caches(
    head_dims: Sequence[int], lengths: Sequence[int], pages: Sequence[int], dtypes: Sequence[str]
) -> list[Cache]:
    """Longest first: those are what is judged."""
    longest_first = sorted(lengths, reverse=True)
    product = itertools.product(longest_first, dtypes, head_dims, GROUPS, pages)
    return [Cache(head_dim, kind, keys, page, dtype) for keys, dtype, head_dim, kind, page in product]
