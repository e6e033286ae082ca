"""The fields of a configuration, by the names that families of models have for them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kiln_build.coverage.line import DTYPES
from kiln_recipe.dtypes import SYNONYMS
from kiln_recipe.errors import UsageError

_WHOLE = {"hidden": ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "encoder_embed_dim"),
          "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
                    "attention_heads"),
          "heads_kv": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads"),
          "head_dim": ("head_dim", "d_kv", "attention_head_dim"),
          "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers"),
          "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length"),
          }  # fmt: skip


class Fields:
    """Values of a configuration, checked as they are asked for.

    Args:
        where: the file, for errors.
        outer: the dtype of the configuration that this one is in.
        part: what it is called there, "encoder text "; "" if it is in none.

    Attributes:
        assumed: what was asked for, is not there and was assumed, in clauses.
    """

    def __init__(self, document: Mapping[str, Any], where: str, outer: str | None = None, part: str = "") -> None:
        self.document = document
        self.where = where
        self.part = part
        self._outer = outer
        self.assumed: list[str] = []

    @property
    def model_type(self) -> str:
        return str(self.document.get("model_type") or "")

    @property
    def architectures(self) -> str:
        """The names of its classes, one after the other."""
        names = self.document.get("architectures")
        return " ".join(map(str, names)) if isinstance(names, list) else ""

    @property
    def dtype_said(self) -> str | None:
        """As the configuration says it, or the one that it is in."""
        word = self.document.get("torch_dtype") or self.document.get("dtype")
        if word is None:
            return self._outer
        word = str(word).removeprefix("torch.")
        return SYNONYMS.get(word, word)

    def dtype(self) -> str:
        """That of its calls; bf16 where it says none."""
        said = self.dtype_said
        if said is None:
            self.assumed.append("bf16")
            return "bf16"
        if said not in DTYPES:
            raise UsageError(
                f"{self.where} says the dtype {said!r}; attention is in {', '.join(DTYPES)}: say one of them, or none"
            )
        return said

    def whole(self, what: str, *others: str) -> int | None:
        """A whole number above 0 by the names in _WHOLE, or by this one and others; None where there is none."""
        for name in (*_WHOLE.get(what, (what,)), *others):
            value = self.document.get(name)
            if value is None or value is False:
                continue
            if isinstance(value, float) and value.is_integer():
                value = int(value)
            if isinstance(value, list):
                if not value or any(one != value[0] for one in value):
                    continue  # by layer: the caller's
                value = value[0]
            if not isinstance(value, int) or value is True or value < 1:
                raise UsageError(f"{self.where} has {name} {value!r}; it must be a whole number above 0")
            return value
        return None

    def whole_or_zero(self, *names: str) -> int:
        """`whole` by the first name that is there, where 0, as some write it, and nothing at all mean none."""
        return next((self.whole(name) or 0 for name in names if self.document.get(name) not in (0, None)), 0)

    def real(self, *names: str) -> float:
        """A number that is not below 0; 0 where there is none."""
        for name in names:
            value = self.document.get(name)
            if value is None:
                continue
            if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value < 1e30:
                raise UsageError(f"{self.where} has {name} {value!r}; it must be a number that is not below 0")
            return float(value)
        return 0.0

    def flag(self, name: str) -> bool:
        return bool(self.document.get(name))

    def text(self, name: str) -> str:
        value = self.document.get(name)
        return value if isinstance(value, str) else ""

    def inside(self, name: str) -> Fields:
        """The fields of an object in it; none where it is not there."""
        value = self.document.get(name)
        return Fields(value if isinstance(value, Mapping) else {}, f"{self.where}: {name}", self.dtype_said)
