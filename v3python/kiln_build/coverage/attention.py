"""What one kind of layer in a model asks of attention: shapes and features, without weights."""

from __future__ import annotations

from dataclasses import dataclass

from kiln_recipe.errors import UsageError

USES = ("prefill", "decode", "training")
FORWARD_ONLY = ("prefill", "training")  # of what has no cache: encoders, diffusion
DTYPES = ("bf16", "fp16", "fp32")
ROWS = 4096  # of a sequence, where a model does not say less
# Above these a number is a mistake: of heads and head dimensions; of rows, keys and windows; what calls can have.
LARGEST, LONGEST = 1 << 20, (1 << 31) - 1
REALS = {"softcap": 1e30, "dropout": 0.9999}


@dataclass(frozen=True)
class Attention:
    """One kind of attention of a model.

    Attributes:
        name: "full attention", "text sliding attention".
        head_dim, head_dim_v: of q and k, and of v.
        dtype, cache_dtype: as recipes spell them; the second is the cache's in decode.
        window: keys that a row sees, itself included; 0: all.
        softcap, dropout: 0: none. Dropout is of training alone.
        bias: an additive bias [1, heads, rows, keys], which training has a gradient for.
        cross: the keys are another sequence's, which decode does not add to.
        rows, keys: lengths of the example calls.
        layers: how many there are; 0: not known.
        expanded: of attention over a latent cache, the kind that it is once each head has keys and values of its own.
        uses: of USES, those that the model has.
        assumed: what the model does not say, in clauses.
    """

    name: str
    heads: int
    heads_kv: int
    head_dim: int
    head_dim_v: int
    dtype: str = "bf16"
    cache_dtype: str = ""
    causal: bool = True
    window: int = 0
    softcap: float = 0.0
    dropout: float = 0.0
    sinks: bool = False
    bias: bool = False
    alibi: bool = False
    cross: bool = False
    rows: int = ROWS
    keys: int = ROWS
    layers: int = 0
    expanded: Attention | None = None
    uses: tuple[str, ...] = USES
    assumed: tuple[str, ...] = ()

    @property
    def is_latent(self) -> bool:
        """Whether values are the first columns of the keys, in the same memory: they are one head's, and narrower."""
        return self.heads_kv == 1 and self.head_dim > self.head_dim_v

    def __str__(self) -> str:
        """ "32 heads, 8 KV heads, head_dim 128, bf16, causal, window 4096": in the words of the line."""
        width = str(self.head_dim) if self.head_dim == self.head_dim_v else f"{self.head_dim}/{self.head_dim_v}"
        parts = [
            counted(self.heads, "head"),
            counted(self.heads_kv, "KV head") if self.heads_kv != self.heads else "",
            f"head_dim {width}",
            self.dtype + (f" with a cache in {self.cache_dtype}" if self.cache_dtype not in ("", self.dtype) else ""),
            "causal" if self.causal else "bidirectional" if not self.cross else "cross",
            f"window {self.window}" if self.window else "",
            f"softcap {self.softcap:g}" if self.softcap else "",
            *(name for name in ("sinks", "bias", "alibi") if getattr(self, name)),
            f"dropout {self.dropout:g}" if self.dropout else "",
        ]
        return ", ".join(filter(None, parts))


def counted(count: int, what: str) -> str:
    """ "1 head", "8 heads"."""
    return f"{count} {what}" + ("" if count == 1 else "s")


@dataclass(frozen=True)
class Model:
    """A model's kinds of attention.

    Attributes:
        name: of its file, or the line.
        notes: what of the model is not covered, in sentences.
    """

    name: str
    kinds: tuple[Attention, ...]
    notes: tuple[str, ...] = ()


def check(kind: Attention, where: str) -> Attention:
    """The same, if its numbers can be.

    Raises:
        UsageError: they cannot.
    """
    bounds: dict[str, tuple[float, float, float]] = {
        "heads": (kind.heads, 1, LARGEST), "KV heads": (kind.heads_kv, 1, LARGEST),
        "head_dim": (kind.head_dim, 1, LARGEST), "head_dim_v": (kind.head_dim_v, 1, LARGEST),
        "rows": (kind.rows, 1, LONGEST), "keys": (kind.keys, 1, LONGEST), "window": (kind.window, 0, LONGEST),
        "softcap": (kind.softcap, 0, REALS["softcap"]), "dropout": (kind.dropout, 0, REALS["dropout"]),
    }  # fmt: skip
    for what, (number, least, most) in bounds.items():
        if not least <= number <= most:
            raise UsageError(f"{where}: {kind.name} has {number} as {what}; it must be from {least} to {most}")
    if kind.heads % kind.heads_kv:
        raise UsageError(
            f"{where}: {kind.name} has {counted(kind.heads, 'head')} and {counted(kind.heads_kv, 'KV head')}; the "
            "first must be a multiple of the second"
        )
    return kind
