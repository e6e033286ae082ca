"""Where cached keys and values lie.

A cache is a number of pages of page_size keys each. Paged attention (Kwon et al., 2023, arXiv:2309.06180) lists the
pages of each sequence in a table. A contiguous cache is the same with one page a batch, so long that no key leaves it;
there the table is not read, and the page is the sequence's batch. So one image serves both, without a branch.

Keys are divided by page_size, which is any number, by a multiplication (Granlund and Montgomery, PLDI 1994): with
shift = ceil(log2(page_size)) and factor = ceil(2^(31 + shift) / page_size), key // page_size is
(2 * key * factor >> 32) >> shift for all keys below 2^31.
"""

import triton
import triton.language as tl
from flags import CACHE_BATCH, LEFTPAD, PAGED, USED_K


@triton.jit
def cached_keys(batch, length, used_ptr, cache_batch_ptr, leftpad_ptr, flags):
    """(batch, keys, leftpad) of a sequence: which batch of a contiguous cache it has, how many keys lie there, and how
    many at their begin do not count."""
    lies_in = batch
    leftpad = batch * 0
    if flags & USED_K:
        length = tl.load(used_ptr + batch)
    if flags & CACHE_BATCH:
        lies_in = tl.load(cache_batch_ptr + batch)
    if flags & LEFTPAD:
        leftpad = tl.load(leftpad_ptr + batch)
    return lies_in, length, leftpad


@triton.jit
def page_of(keys, inside, table_ptr, batch, page_size, factor, shift, flags):
    """(page, key): the number of each key's page, 64 bits wide, and that of the key in it.

    Args:
        keys: [keys], their numbers in the sequence.
        inside: which of them there are; the table may end before the others.
        table_ptr: the sequence's row of the table, with PAGED.
        batch: of a contiguous cache.
    """
    number = (tl.umulhi(keys.to(tl.uint32) * 2, factor.to(tl.uint32)) >> shift.to(tl.uint32)).to(tl.int32)
    page = tl.load(table_ptr + number, mask=inside & ((flags & PAGED) != 0), other=batch)
    return page.to(tl.int64), keys - number * page_size
