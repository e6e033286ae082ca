"""Hugging Face Transformers with Kiln's attention:

    import kiln.torch
    kiln.torch.register_transformers()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="kiln")

Neither this module nor `kiln.torch` imports Transformers; `register_transformers` does.
"""

from __future__ import annotations

from kiln.arrays import shown
from kiln.errors import ArgumentError, UnsupportedError

__all__ = ["register_transformers"]


def register_transformers(name: str = "kiln", *, fallback: str | None = None) -> None:
    """Registers Kiln as an attention of Hugging Face Transformers, for `attn_implementation=name`.

    A model computes what it does with "eager", in fp32, bf16 and fp16: causal or not, padded on either side, packed
    sequences (by `position_ids`, or by `cu_seq_lens_q` and its like), sliding windows, soft caps, sinks, position
    biases, chosen keys (`indices`), dropout, dynamic and static caches. Rows of padding that see no key get zeros.

    Models that compute attention in their own code, and do not ask Transformers for it (`AttentionInterface`), go on
    without Kiln: they get the masks of "eager", and a warning says so when they are built. Models that choose a class
    by the attention's name, and have none for this one, are refused when they are built. For this
    `PreTrainedModel.get_correct_attn_implementation` is replaced by a function that calls it. Continuous batching
    ("paged|kiln") is not there.

    What a model's mask says goes to the kernels as numbers and a row of keys, where it is plain enough, and is else
    added to the scores. A mask of the first kind exists only where something reads it. Beneath torch.compile a forward
    without a cache (`use_cache=False`) and without an `attention_mask` adds its mask to the scores, since Transformers
    then allows for packed sequences: give it an attention_mask, of ones say, or where sequences are packed their
    lengths (`cu_seq_lens_q` and its like).

    Args:
        name: one that holds no other attention's, such as "flash" or "sdpa", which Transformers treats in its own ways.
        fallback: "sdpa": a call that Kiln has no kernel for goes to PyTorch's attention, and its reason is counted with
            those of `kiln.torch.fallthroughs()`; PyTorch's has neither soft cap nor sinks, so that calls with these
            still raise, as do all beneath torch.compile. None: every such call raises.

    Raises:
        kiln.errors.ArgumentError: another `fallback`, or a name that cannot be.
        kiln.errors.UnsupportedError: Transformers is missing, or older than 5.4.

    Calls again replace what was registered under the name. A model's call that cannot be served raises
    `kiln.errors.UnsupportedError`, as does one that wants attention's weights (`output_attentions`).
    """
    if fallback not in (None, "sdpa"):
        raise ArgumentError(f'fallback is {shown(fallback)}; expected None or "sdpa"')
    others = ("flash", "sdpa", "flex_attention", "eager", "/", "|")
    if not isinstance(name, str) or not name or any(part in name for part in others):
        raise ArgumentError(
            f'name is {shown(name)}; expected one like "kiln", without another attention\'s name, "/" and "|"'
        )
    try:
        from transformers import AttentionInterface, AttentionMaskInterface

        from kiln.torch import transformers_attention, transformers_building, transformers_masks
    except (ImportError, AttributeError, TypeError) as problem:
        raise UnsupportedError(f"register_transformers needs Hugging Face Transformers, 5.4 or later: {problem}")
    attend = transformers_attention.attend if fallback is None else transformers_attention.attend_or_sdpa
    AttentionInterface.register(name, attend)
    AttentionMaskInterface.register(name, transformers_masks.make_mask)
    transformers_building.watch(name)
