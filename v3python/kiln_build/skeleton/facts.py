"""What a kernel's body tells about its parameters."""

from __future__ import annotations

from dataclasses import dataclass, field

from kiln_build.skeleton.values import Value


@dataclass(frozen=True)
class Access:
    """A load, a store, or an atomic operation (by its own name).

    Attributes:
        flags: the constexpr parameters that must be true for it to happen.
    """

    kind: str
    pointer: str
    address: Value
    flags: frozenset[str]


@dataclass(frozen=True)
class Block:
    """A tensor that the kernel itself describes: make_block_ptr, make_tensor_descriptor."""

    pointer: str
    shape: tuple[Value, ...]
    strides: tuple[Value, ...]
    offsets: tuple[Value, ...]


@dataclass
class Facts:
    """What a kernel's body tells.

    Attributes:
        compared: what is compared with what: an index and, often, the size that it must be below.
        ranges: by the name of a range what its length is.
        loops: by the name of a loop's variable, from where to where it goes.
        tiling: constants that an index is multiplied or divided by: what one step or one program works on.
        steps: by the name of what // or % gives: what was divided, and by what.
        divided: parameters that are divided by a number: half of one may be a size too.
        programs: axes of the launch whose number of programs the kernel asks for.
        tested: constants that decide a branch by being true or false.
        words, numbers: constants that are compared with texts or with numbers, and these.
        floats, integers: parameters that are computed with as such.
        descriptors: by a parameter whose load or store methods are called: what is given as the tile's place.
        described: those of them that are stored to.
        dotted: whether matrices are multiplied.
    """

    accesses: list[Access] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    compared: list[tuple[Value, Value]] = field(default_factory=list)
    ranges: dict[str, Value] = field(default_factory=dict)
    loops: dict[str, tuple[Value, Value]] = field(default_factory=dict)
    tiling: set[str] = field(default_factory=set)
    steps: dict[str, tuple[Value, Value]] = field(default_factory=dict)
    divided: set[str] = field(default_factory=set)
    programs: set[str] = field(default_factory=set)
    tested: dict[str, None] = field(default_factory=dict)
    words: dict[str, list[str]] = field(default_factory=dict)
    numbers: dict[str, list[int]] = field(default_factory=dict)
    floats: set[str] = field(default_factory=set)
    integers: set[str] = field(default_factory=set)
    descriptors: dict[str, tuple[Value, ...]] = field(default_factory=dict)
    described: set[str] = field(default_factory=set)
    dotted: bool = False
