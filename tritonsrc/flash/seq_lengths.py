"""Where sequences begin and how long they are, as attention takes them, from what others' interfaces say."""

import triton
import triton.language as tl


@triton.jit
def seq_lengths(
    cu_ptr, begins_ptr, lengths_ptr, begins_out_ptr, batch, most, total, has_cu, wants_lengths, wants_begins,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """lengths[i] = cu[i + 1] - cu[i], or `most` without cu; never below 0, and where `most` is above 0 never above it.
    begins_out is what the first `batch` of begins are, and then `total`. The grid is (cdiv(batch + 1, BLOCK),).

    Args:
        cu_ptr: [batch + 1] int32, with has_cu.
        begins_ptr: [batch] int32, with wants_begins.
        lengths_ptr: [batch] int32, with wants_lengths; written.
        begins_out_ptr: [batch + 1] int32, with wants_begins; written.
    """
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = place < batch
    if wants_lengths:
        length = tl.zeros([BLOCK], tl.int32) + most
        if has_cu:
            begin = tl.load(cu_ptr + place, mask=inside, other=0)
            length = tl.load(cu_ptr + place + 1, mask=inside, other=0) - begin
            length = tl.where(most > 0, tl.minimum(length, most), length)
        tl.store(lengths_ptr + place, tl.maximum(length, 0), mask=inside)
    if wants_begins:
        begins = tl.load(begins_ptr + place, mask=inside, other=0)
        tl.store(begins_out_ptr + place, tl.where(inside, begins, total), mask=place <= batch)
