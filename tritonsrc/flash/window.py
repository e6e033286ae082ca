"""Which keys a row sees: no mask, causal masks and sliding windows, all of them numbers.

Row i sees the keys from i + offset - left to i + offset + right, as far as there are any. The offset is 0 where the
first row and the first key belong together (top-left), and seqlen_k - seqlen_q where the last do (bottom-right). Seen
from the keys it is the same with the signs turned: key j is seen by the rows from j - offset - right to j - offset +
left. Lengths and window sizes are below 2^30, so nothing here leaves 32 bits.
"""

import triton
import triton.language as tl
from flags import BOTTOM_RIGHT


@triton.jit
def bounds(seqlen_q, seqlen_k, left, right, flags):
    """(offset, left, right): so small that sums of them and of a row's or key's number stay in 32 bits."""
    offset = tl.where((flags & BOTTOM_RIGHT) != 0, seqlen_k - seqlen_q, 0)
    longest = tl.maximum(seqlen_q, seqlen_k)
    return offset, tl.minimum(left, longest), tl.minimum(right, longest)


@triton.jit
def span(lowest, highest, items, offset, before, after, length, STEP: tl.constexpr):
    """What a block of items sees of `length` others: item i sees those from i + offset - before to i + offset + after.

    Args:
        lowest, highest: the first and the last item of the block; items are all their numbers.

    Returns:
        first, last: as items, each sees [first, last].
        begin, end: some item sees one of [begin, end) and none beyond; begin is a multiple of STEP.
        whole_begin, whole_end: all items see all of [whole_begin, whole_end), multiples of STEP.
    """
    first = tl.maximum(items + (offset - before), 0)
    last = tl.minimum(items + (offset + after), length - 1)
    lowest += offset
    highest += offset
    begin = tl.maximum(lowest - before, 0) // STEP * STEP
    end = tl.maximum(tl.minimum(highest + after + 1, length), begin)
    whole_begin = tl.maximum(tl.cdiv(tl.maximum(highest - before, 0), STEP) * STEP, begin)
    whole_end = tl.maximum(tl.minimum(lowest + after + 1, length), 0) // STEP * STEP
    nothing = (whole_end <= whole_begin) | (whole_begin >= end)
    whole_begin = tl.where(nothing, begin, whole_begin)
    whole_end = tl.where(nothing, begin, whole_end)
    return first, last, begin, end, whole_begin, whole_end
