"""An image: the compiled code object of a variant, with what the launch and the judge must know of it."""

from __future__ import annotations

from dataclasses import dataclass

# Part of every key: rises when what is stripped off an image, or read off it, changes.
FORMAT = 1


@dataclass(frozen=True)
class DescriptorInfo:
    """What a CUtensorMap must be like that an image takes.

    Attributes:
        element_type: a CUtensorMapDataType, 9 for bf16.
        swizzle: a CUtensorMapSwizzle: 0 none, 1 to 3 over 32, 64 or 128 bytes.
        box: sides of what one copy moves, outermost first: not always the kernel's tile, which may take several.
    """

    element_type: int
    swizzle: int
    box: tuple[int, ...]

    @property
    def rank(self) -> int:
        return len(self.box)


@dataclass(frozen=True)
class ImageInfo:
    """Facts of an image, all of them functions of its bytes and its compiler's report. Sizes are in bytes.

    Attributes:
        kind: "cubin" or "hsaco".
        symbol: the kernel's name in the code object.
        threads: per block, as the image demands (not 32 * num_warps: warp specialisation adds warps).
        shared: dynamic and static shared memory (LDS) of a block.
        registers: per thread (AMD: architected plus accumulation VGPRs).
        spills: per thread: bytes stored by spills of vector registers.
        stack: per thread, private segment or local frame.
        parameters: number of kernel parameters, hidden ones of Triton included.
        scratch, scratch_align: global scratch of one block (Triton's hidden argument); 0 if none.
        profile_scratch: must be 0.
        clusters: blocks in a cluster (num_ctas).
        abi: code-object version, or the cubin's ELF ABI.
        ptx_version: "8.8" or "".
        descriptors: of the parameters that are tensor descriptors, in the kernel's order.
    """

    kind: str
    symbol: str
    threads: int
    shared: int
    registers: int
    spills: int
    stack: int
    parameters: int
    scratch: int
    scratch_align: int
    profile_scratch: int
    clusters: int
    abi: int
    ptx_version: str
    descriptors: tuple[DescriptorInfo, ...] = ()


@dataclass(frozen=True)
class Image:
    """A stripped code object, its facts, and (NVIDIA) the PTX that it was assembled from."""

    code: bytes
    info: ImageInfo
    ptx: str | None = None
