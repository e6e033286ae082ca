"""The fields of a configuration, by the names that families of models have for them.

What a configuration of Transformers does not say, its class there fills in: a published config.json often has only what
differs. families.json has what the classes fill in, by model type (made by tests/pytorch/families.py).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from kiln_build.coverage.attention import DTYPES, LONGEST, REALS
from kiln_recipe.dtypes import SYNONYMS
from kiln_recipe.errors import UsageError

FAMILIES = Path(__file__).with_name("families.json")
PARTS, CYCLE = (
    "parts",
    "cycle",
)  # in that file: model types of the configurations inside; kinds of layers, as they repeat

_WHOLE = {
    "hidden": ("hidden_size", "d_model", "n_embd", "n_embed", "dim", "embed_dim", "emb_dim", "encoder_embed_dim",
               "hidden_dim",
               "model_dim"),
    "heads": ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "attention_heads",
              "encoder_num_attention_heads", "conf_num_attention_heads"),
    "heads_kv": ("num_key_value_heads", "num_kv_heads", "n_head_kv", "kv_n_heads", "multi_query_group_num",
                 "num_attention_groups", "encoder_num_key_value_heads"),
    "head_dim": ("head_dim", "d_kv", "attention_head_dim", "attention_head_size", "kv_channels", "d_head"),
    "layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "depth",
               "num_transformer_layers", "conf_num_hidden_layers"),
    "positions": ("max_position_embeddings", "n_positions", "max_seq_len", "max_target_positions", "seq_length"),
    "softcap": ("attn_logit_softcapping", "max_attn_value", "attention_logit_cap", "conf_attention_logit_cap"),
    "dropout": ("attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout_rate"),
    "window": ("sliding_window", "sliding_window_size", "attention_window_size"),
}  # fmt: skip
# What else is read of a configuration and filled in.
_OTHERS = frozenset({
    "alibi", "attention_chunk_size", "attention_downsample_rate", "attn_layer_offset", "attn_layer_period",
    "cross_attention_frequency", "decoder_attention_heads", "decoder_layers", "decoder_num_attention_heads",
    "decoder_num_key_value_heads", "full_attention_interval", "global_attn_every_n_layers", "image_size",
    "is_encoder_decoder", "kv_lora_rank", "local_attention", "max_source_positions", "max_window_layers",
    "multi_query", "new_decoder_architecture", "num_decoder_heads", "num_decoder_layers", "patch_size",
    "position_embedding_type", "position_embeddings_type", "qk_nope_head_dim", "qk_rope_head_dim",
    "relative_attention", "relative_attention_num_buckets", "sliding_window_pattern", "swa_head_dim",
    "swa_num_attention_heads", "swa_num_key_value_heads", "use_rel_pos", "use_sliding_window", "v_head_dim",
    "window_size",
})  # fmt: skip
_TEXT = ("text ", "language ", "llm ", "thinker ", "talker ")  # ends of what parts with a model's text are called
# What families.json has. Lengths of sequences are not in it: they are examples, where a model does not say them.
NAMES = _OTHERS.union(*(names for what, names in _WHOLE.items() if what != "positions"))


@cache
def families() -> Mapping[str, Mapping[str, Any]]:
    """What Transformers fills in, by model type."""
    known: Mapping[str, Mapping[str, Any]] = json.loads(FAMILIES.read_text(encoding="utf-8"))["families"]
    return known


def _differ(value: object) -> bool:
    """Whether it has several numbers, which are not all equal."""
    return isinstance(value, list) and all(type(one) is int for one in value) and len(set(value)) > 1


class Fields:
    """Values of a configuration, checked as they are asked for.

    Args:
        where: the file, for errors.
        part: what it is called in the configuration that it is in, "encoder text "; "" if it is in none.
        outer: the dtype of that one.
        family: the model type whose defaults count, if it says none that is known.
        classes: of the whole model, if it is the text in one that names none itself.
    """

    def __init__(
        self, document: Mapping[str, Any], where: str, part: str = "", outer: str | None = None, family: str = "",
        classes: str = "",
    ) -> None:  # fmt: skip
        self.document = document
        self.where = where
        self.part = part
        self._outer = outer
        self.classes = self.architectures or classes
        self.family = self._of_text(self.model_type if self.model_type in families() else family or self.model_type)
        self._defaults = families().get(self.family, {})
        self._assumed: list[str] = []
        self._filled: dict[str, Any] = {}

    def _of_text(self, family: str) -> str:
        """The family that a configuration of several parts is, where it has its text's fields itself."""
        parts = families().get(family, {}).get(PARTS, {})
        text = parts.get("text_config", "")
        says = any(name in self.document for name in (*_WHOLE["heads"], *_WHOLE["hidden"]))
        return text if text and says and "text_config" not in self.document else family

    def part_of(self, name: str, document: Mapping[str, Any], part: str) -> Fields:
        """The fields of the configuration of this name inside this one."""
        family = families().get(self.model_type, {}).get(PARTS, {}).get(name, "")
        if family and document.get("model_type") == self.model_type:  # some say the whole model's
            document = {**document, "model_type": family}
        classes = self.classes if part.endswith(_TEXT) else ""
        return Fields(document, self.where, part, self.dtype_said, family, classes)

    @property
    def assumed(self) -> tuple[str, ...]:
        """What was asked for, is not there and was assumed, in clauses."""
        filled = ", ".join(f"{name} {value}" for name, value in self._filled.items())
        return (*self._assumed, *([f"{filled} as Transformers does for {self.family}"] if filled else []))

    def assume(self, clause: str) -> None:
        if clause not in self._assumed:
            self._assumed.append(clause)

    @property
    def cycle(self) -> list[str]:
        """The kinds of layers as they repeat in the family; none where they are all alike."""
        return list(self._defaults.get(CYCLE, ()))

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
        if word is None or word == "auto":
            return self._outer
        word = str(word).removeprefix("torch.")
        return SYNONYMS.get(word, word)

    def dtype(self) -> str:
        """That of its calls; bf16 where it says none."""
        said = self.dtype_said
        if said is None:
            self.assume("bf16")
            return "bf16"
        if said not in DTYPES:
            raise UsageError(
                f"{self.where} says the dtype {said!r}; attention is in {', '.join(DTYPES)}: say one of them, or none"
            )
        return said

    def get(self, *names: str) -> tuple[str, Any]:
        """The first of these fields that says something, and its value; ("", None) where there is none.

        Where none of them is there at all, what the family's class has counts.
        """
        for name in names:
            if self.document.get(name) is not None:
                return name, self.document[name]
        if any(name in self.document for name in names):
            return "", None
        for name in names:
            if name in self._defaults:
                if self._defaults[name]:
                    self._filled[name] = self._defaults[name]
                return name, self._defaults[name]
        return "", None

    def whole(self, what: str, *others: str) -> int | None:
        """A whole number by the names in _WHOLE, or by this one and others; None where there is none."""
        names = (*_WHOLE.get(what, (what,)), *others)
        told = [name for name in names if self._tells(self.document.get(name))]
        name, value = (told[0], self.document[told[0]]) if told else self.get(*names)
        if what not in ("heads", "heads_kv") and _differ(value):
            self.assume(f"the largest {name}")
            value = max(value)
        if value is None or not self._tells(value):
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, list):
            value = value[0]
        if not isinstance(value, int) or value is True or not 1 <= value <= LONGEST:
            raise UsageError(f"{self.where} has {name} {value!r}; it must be a whole number from 1 to {LONGEST}")
        return value

    @staticmethod
    def _tells(value: object) -> bool:
        """Whether it is one number; heads of each layer are the caller's."""
        if value is None or value is False:
            return False
        return not isinstance(value, list) or (bool(value) and all(one == value[0] for one in value))

    def differing(self, what: str) -> str:
        """The first field of these names that has different numbers for its layers; "" where none has."""
        return next((name for name in _WHOLE[what] if _differ(self.document.get(name))), "")

    def whole_or_zero(self, what: str) -> int:
        """`whole`, where 0 and -1, as some write it, and nothing at all mean none."""
        _, value = self.get(*_WHOLE.get(what, (what,)))
        return 0 if value in (0, -1, None) else self.whole(what) or 0

    def real(self, what: str) -> float:
        """One of REALS by the names in _WHOLE; 0 where there is none."""
        name, value = self.get(*_WHOLE[what])
        if value is None:
            return 0.0
        if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= REALS[what]:
            raise UsageError(f"{self.where} has {name} {value!r}; it must be a number from 0 to {REALS[what]}")
        return float(value)

    def flag(self, name: str) -> bool:
        return bool(self.get(name)[1])

    def text(self, name: str) -> str:
        value = self.get(name)[1]
        return value if isinstance(value, str) else ""

    def words(self, name: str) -> list[str]:
        """A list of texts; an empty one where it is not that."""
        value = self.document.get(name)
        return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else []

    def numbers(self, name: str) -> list[int] | None:
        """A list of whole numbers; None where it is not that."""
        value = self.document.get(name)
        return value if isinstance(value, list) and all(type(one) is int for one in value) else None

    def inside(self, name: str) -> Fields:
        """The fields of an object in it; none where it is not there."""
        value = self.document.get(name)
        return Fields(value if isinstance(value, Mapping) else {}, f"{self.where}: {name}", outer=self.dtype_said)
