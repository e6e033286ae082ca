"""Decoding that is told into how many parts keys are split: a sequence's bits depend on nothing else in the batch."""

from __future__ import annotations

from dataclasses import dataclass

import ffi
import pytest
import torch

DEVICE = "cuda"
USED = (3000, 17, 1024, 2999, 2048, 700, 1)
HEADS, HEADS_KV, WIDTH = 32, 8, 128


@dataclass(frozen=True)
class Cached:
    """Seven sequences of USED keys, and a row of queries of each."""

    tensors: dict[str, torch.Tensor]
    table: torch.Tensor | None

    @staticmethod
    def make(is_fp8: bool, page: int) -> Cached:
        torch.manual_seed(page + is_fp8)
        dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
        length = page or max(USED)
        pages = -(-max(USED) // length)
        shape = (len(USED) * pages, HEADS_KV, length, WIDTH)
        tensors = {name: torch.randn(shape, device=DEVICE).to(dtype) for name in ("k_cache", "v_cache")}
        if is_fp8:
            tensors |= {name: torch.rand(HEADS_KV, device=DEVICE) + 0.5 for name in ("k_scale", "v_scale")}
        tensors["q"] = torch.randn((len(USED), HEADS, 1, WIDTH), device=DEVICE).bfloat16()
        order = torch.randperm(shape[0], device=DEVICE).to(torch.int32).view(len(USED), pages)
        return Cached(tensors, order if page else None)

    def attend(self, flash, chosen: list[int], splits: int) -> torch.Tensor:
        """The answers for these sequences, in this order."""
        which = torch.tensor(chosen, device=DEVICE)
        tensors = dict(self.tensors)
        tensors["q"] = self.tensors["q"][which].contiguous()
        tensors["out"] = torch.full_like(tensors["q"], torch.nan)
        tensors["seqused_k"] = torch.tensor(USED, dtype=torch.int32, device=DEVICE)[which].contiguous()
        if self.table is None:
            tensors["cache_batch"] = which.to(torch.int32)
        else:
            tensors["block_table"] = self.table[which].contiguous()
        # A reference to what is passed is held until the work is done.
        held = flash.enqueue("kiln_attn_decode", ffi.AttnDecode(splits=splits), tensors), tensors
        return held[1]["out"].clone().view(torch.int16)


@pytest.mark.parametrize("splits", [1, 8])
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
def test_a_sequences_bits_do_not_depend_on_its_batch(flash, record, is_fp8, page, splits):
    cached, every = Cached.make(is_fp8, page), list(range(len(USED)))
    expected = cached.attend(flash, every, splits)
    assert not expected.view(torch.bfloat16).isnan().any()
    batches = [every, every[::-1], every * 9, *([number] for number in every)]
    for chosen in batches:
        found = cached.attend(flash, chosen, splits)
        differ = [number for number, one in zip(chosen, found) if not torch.equal(one, expected[number])]
        assert not differ, f"sequences {differ} have other bits in a batch of {len(chosen)}"
    call = f"decoding, {'fp8' if is_fp8 else 'bf16'}, pages of {page or 'any size'}, splits {splits}"
    record("deterministic", call=call, target=None, runs=len(batches))


@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
def test_a_repeated_call_gives_equal_bits_where_the_library_splits(flash, is_fp8):
    cached, every = Cached.make(is_fp8, 16), list(range(len(USED)))
    first = cached.attend(flash, every, 0)
    assert all(torch.equal(cached.attend(flash, every, 0), first) for _ in range(5))
