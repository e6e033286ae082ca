"""Calls that are batch invariant, and those with a cache that are told into how many parts keys are split: a sequence's
bits depend on nothing else in the batch."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import ffi
import pytest

pytest.importorskip("torch", reason="needs PyTorch")

import torch

DEVICE = "cuda"
USED = (3000, 17, 1024, 2999, 2048, 700, 1)
HEADS, HEADS_KV, WIDTH = 32, 8, 128
LATENT, LATENT_VALUES = 576, 512  # columns of keys, of which the first are their values


@dataclass(frozen=True)
class Cached:
    """Seven sequences of USED keys, and one row of queries of each, or several."""

    tensors: dict[str, torch.Tensor]
    table: torch.Tensor | None

    @staticmethod
    def make(is_fp8: bool, page: int, width: int = WIDTH, rows: int = 1, heads_kv: int = HEADS_KV) -> Cached:
        """Keys of LATENT columns, the width, hold their values."""
        torch.manual_seed(page + is_fp8 + width + rows)
        dtype = torch.float8_e4m3fn if is_fp8 else torch.bfloat16
        length = page or max(USED)
        pages = -(-max(USED) // length)
        shape = (len(USED) * pages, heads_kv, length, width)
        tensors = {name: torch.randn(shape, device=DEVICE).to(dtype) for name in ("k_cache", "v_cache")}
        if width == LATENT:
            tensors["v_cache"] = tensors["k_cache"][..., :LATENT_VALUES]
        if is_fp8:
            tensors |= {name: torch.rand(heads_kv, device=DEVICE) + 0.5 for name in ("k_scale", "v_scale")}
        tensors["q"] = torch.randn((len(USED), HEADS, rows, width), device=DEVICE).bfloat16()
        order = torch.randperm(shape[0], device=DEVICE).to(torch.int32).view(len(USED), pages)
        return Cached(tensors, order if page else None)

    def attend(self, flash, chosen: list[int], **fields: int) -> torch.Tensor:
        """The answers for these sequences, in this order."""
        tensors = self.given(chosen)
        # A reference to what is passed is held until the work is done.
        held = flash.enqueue("kiln_attn_decode", ffi.AttnDecode(**fields), tensors), tensors
        return held[1]["out"].clone().view(torch.int16)

    def given(self, chosen: list[int]) -> dict[str, torch.Tensor]:
        """The tensors of a call."""
        which = torch.tensor(chosen, device=DEVICE)
        tensors = dict(self.tensors)
        tensors["q"] = self.tensors["q"][which].contiguous()
        columns = tensors["v_cache"].shape[-1]
        tensors["out"] = torch.full_like(tensors["q"][..., :columns], torch.nan, memory_format=torch.contiguous_format)
        tensors["seqused_k"] = torch.tensor(USED, dtype=torch.int32, device=DEVICE)[which].contiguous()
        if self.table is None:
            tensors["cache_batch"] = which.to(torch.int32)
        else:
            tensors["block_table"] = self.table[which].contiguous()
        return tensors


def need_images(flash, operation: str, head_dim: int) -> None:
    """Skips the test where the release has none of an operation for heads of this size."""
    images = flash.images(operation, flash.target)
    if not any(f"head_dim={head_dim}" in image["functional"].split() for image in images):
        pytest.skip(f"the release has no {operation} of head_dim {head_dim} for {flash.target}")


def check_kernel(flash, cached: Cached, kernel: str, head_dim: int, **fields: int) -> None:
    """Fails unless a kernel with images of this size serves the calls."""
    ran = flash.explain("kiln_attn_decode", ffi.AttnDecode(**fields), cached.given(list(range(len(USED)))))
    names = {(row["kernel"].partition(".")[0], f"head_dim={head_dim}" in row["functional"].split()) for row in ran}
    assert (kernel, True) in names, ran


def compare_batches(flash, record, cached: Cached, call: str, **fields: int) -> None:
    """Fails unless each sequence has the same bits in every batch."""
    every = list(range(len(USED)))
    expected = cached.attend(flash, every, **fields)
    assert not expected.view(torch.bfloat16).isnan().any()
    batches = [every, every[::-1], every * 9, *([number] for number in every)]
    for chosen in batches:
        found = cached.attend(flash, chosen, **fields)
        differ = [number for number, one in zip(chosen, found) if not torch.equal(one, expected[number])]
        assert not differ, f"sequences {differ} have other bits in a batch of {len(chosen)}"
    record("deterministic", call=f"{call}, {fields}", target=None, runs=len(batches))


@pytest.mark.parametrize("fields", [{"splits": 1}, {"splits": 8}, {"batch_invariant": 1}], ids=str)
@pytest.mark.parametrize("page", [0, 16])
@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
def test_a_sequences_bits_do_not_depend_on_its_batch(flash, record, is_fp8, page, fields):
    call = f"decoding, {'fp8' if is_fp8 else 'bf16'}, pages of {page or 'any size'}"
    compare_batches(flash, record, Cached.make(is_fp8, page), call, **fields)


@pytest.mark.parametrize("fields", [{"splits": 1}, {"splits": 8}, {"batch_invariant": 1}], ids=str)
@pytest.mark.parametrize("page", [0, 1, 64])
def test_latent_keys_do_not_depend_on_their_batch(flash, record, page, fields):
    need_images(flash, "attn_decode", LATENT)
    cached = Cached.make(False, page, LATENT, heads_kv=1)
    check_kernel(flash, cached, "attn_decode", LATENT, **fields)
    compare_batches(flash, record, cached, f"decoding, latent keys, pages of {page or 'any size'}", **fields)


@pytest.mark.parametrize("fields", [{"splits": 1}, {"batch_invariant": 1, "causal": 1}], ids=str)
@pytest.mark.parametrize("page", [0, 16, 64])
@pytest.mark.parametrize("width", [64, 128, 192, 256])
def test_a_chunks_bits_do_not_depend_on_its_batch(flash, record, width, page, fields):
    """Of as many rows that an algorithm of its own serves them, where there is one."""
    need_images(flash, "attn_decode", width)
    cached = Cached.make(False, page, width, rows=96)
    if flash.target == "sm_90":
        check_kernel(flash, cached, "attn_prefill", width, **fields)
    compare_batches(flash, record, cached, f"prefill, {width}, pages of {page or 'any size'}", **fields)


@pytest.mark.parametrize("is_fp8", [False, True], ids=["bf16", "fp8"])
def test_a_repeated_call_gives_equal_bits_where_the_library_splits(flash, is_fp8):
    cached, every = Cached.make(is_fp8, 16), list(range(len(USED)))
    first = cached.attend(flash, every)
    assert all(torch.equal(cached.attend(flash, every), first) for _ in range(5))


ROWS = (1, 2999, 129, 17, 1024, 700, 2)  # of queries, each as many as it has keys, or fewer
KEYS = (1, 2999, 640, 17, 1500, 700, 900)


@dataclass(frozen=True)
class Sequences:
    """Seven sequences of ROWS and KEYS."""

    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]

    @staticmethod
    def make(dtype: torch.dtype, width: int) -> Sequences:
        torch.manual_seed(width)

        def drawn(heads: int, lengths: tuple[int, ...]) -> list[torch.Tensor]:
            return [torch.randn((heads, length, width), device=DEVICE).to(dtype) for length in lengths]

        return Sequences(drawn(8, ROWS), drawn(2, KEYS), drawn(2, KEYS))

    def attend(self, flash, chosen: list[int], ragged: bool, **fields: object) -> list[torch.Tensor]:
        """The answers for these sequences, in this order: one after another, or each at the start of a batch of its
        own, filled up with NaN."""
        tensors: dict[str, torch.Tensor] = {}
        for name in ("q", "k", "v"):
            parts = [getattr(self, name)[number] for number in chosen]
            lengths = torch.tensor([part.shape[1] for part in parts], dtype=torch.int32, device=DEVICE)
            axis = "q" if name == "q" else "k"
            if ragged:
                tensors[name] = torch.cat(parts, 1)[None].contiguous()
                tensors[f"cu_seqlens_{axis}"] = torch.nn.functional.pad(lengths.cumsum(0), (1, 0)).to(torch.int32)
            else:
                heads, _, columns = parts[0].shape
                tensors[name] = parts[0].new_full((len(parts), heads, int(lengths.max()), columns), torch.nan)
                for place, part in enumerate(parts):
                    tensors[name][place, :, : part.shape[1]] = part
                tensors[f"seqused_{axis}"] = lengths
        tensors["out"] = torch.full_like(tensors["q"], torch.nan)
        # A reference to what is passed is held until the work is done.
        held = flash.enqueue("kiln_attn_fwd", ffi.AttnFwd(batch_invariant=1, **fields), tensors), tensors
        out, rows = held[1]["out"], [ROWS[number] for number in chosen]
        ends = torch.tensor([0, *rows]).cumsum(0).tolist()
        if ragged:
            return [out[0, :, begin:end].clone() for begin, end in pairwise(ends)]
        return [out[place, :, :count].clone() for place, count in enumerate(rows)]


@pytest.mark.parametrize("fields", [{}, {"causal": 1, "bottom_right": 1}, {"softcap": 20.0}], ids=str)
@pytest.mark.parametrize("ragged", [False, True], ids=["padded", "ragged"])
@pytest.mark.parametrize("width", [64, 80, 128, 192, 256])
def test_a_sequences_forward_does_not_depend_on_its_batch(flash, record, width, ragged, fields):
    if width > WIDTH:
        need_images(flash, "attn_fwd", width)
    sequences, every = Sequences.make(torch.bfloat16, width), list(range(len(ROWS)))
    expected = sequences.attend(flash, every, ragged, **fields)
    assert not any(out.isnan().any() for out in expected)
    batches = [every, every[::-1], every * 9, *([number] for number in every)]
    for chosen in batches:
        found = sequences.attend(flash, chosen, ragged, **fields)
        differ = [number for number, one in zip(chosen, found) if not torch.equal(one, expected[number])]
        assert not differ, f"sequences {differ} have other bits in a batch of {len(chosen)}"
    call = f"forward, {width}, {'ragged' if ragged else 'padded'}, {fields}"
    record("deterministic", call=call, target=None, runs=len(batches))
