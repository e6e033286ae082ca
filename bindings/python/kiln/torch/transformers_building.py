"""What happens when a model of Hugging Face Transformers is built with Kiln's attention; imports that package.

Some models choose a class of their own by the attention's name, from a table that only has Transformers' names. With
another name they end in a KeyError: here they end in a sentence. Others compute attention in their own code, and
nothing of Transformers says so: here a warning does.
"""

from __future__ import annotations

import functools
import inspect
import sys
import warnings
from types import ModuleType

from torch import nn
from transformers import PreTrainedModel

from kiln.errors import UnsupportedError
from kiln.torch.transformers_attention import attend

__all__ = ["watch"]

_POSITIONAL = 5  # the module, query, key, value and mask, whatever they are called
_KNOWN = frozenset([*inspect.signature(attend).parameters, "sliding_window"])  # masks say a window

_names: set[str] = set()
_theirs = PreTrainedModel.get_correct_attn_implementation
_warned: set[type] = set()


class _Table(dict):
    """A module's classes of attention, by the attention's name."""

    def __init__(self, table: dict, where: str) -> None:
        super().__init__(table)
        self.where = where

    def __missing__(self, name: object) -> object:
        if name not in _names:
            raise KeyError(name)
        raise UnsupportedError(
            f'attn_implementation is "{name}", but {self.where} has an attention of its own only for '
            f'{" and ".join(map(str, self))}; load the model with attn_implementation="eager", or if this is a part of '
            f'it, with {{"": "{name}", "<the part>_config": "eager"}}'
        )


def watch(name: str) -> None:
    """From now on a model that is built with this attention is looked at."""
    if not _names:  # others may have wrapped it since the first time
        PreTrainedModel.get_correct_attn_implementation = _get_correct_attn_implementation
    _names.add(name)


@functools.wraps(_theirs)
def _get_correct_attn_implementation(self: PreTrainedModel, *args, **kwargs) -> str:
    name = _theirs(self, *args, **kwargs)
    if name in _names:
        for kind in type(self).__mro__:
            if issubclass(kind, PreTrainedModel) and kind is not PreTrainedModel:
                module = sys.modules.get(kind.__module__)
                _replace_tables(module)
                _check_arguments(module, kind, name)
        _warn(type(self), name)
    return name


def _replace_tables(module: ModuleType | None) -> None:
    """Has a module's tables say what they lack."""
    if module is None:
        return
    for table, value in [*vars(module).items()]:
        if type(value) is dict and "eager" in value and all(_is_layer(x) for x in value.values()):
            setattr(module, table, _Table(value, module.__name__.rpartition(".")[2].removeprefix("modeling_")))


def _check_arguments(module: ModuleType | None, kind: type[PreTrainedModel], name: str) -> None:
    """Refuses a model whose own attention takes what Kiln's does not."""
    eager = getattr(module, "eager_attention_forward", None)
    if eager is None:
        return
    unknown = [p.name for p in inspect.signature(eager).parameters.values() if p.kind is not p.VAR_KEYWORD][
        _POSITIONAL:
    ]
    unknown = [argument for argument in unknown if argument not in _KNOWN]
    if unknown:
        raise UnsupportedError(
            f'attn_implementation is "{name}", but the attention of {kind.__name__} takes {" and ".join(unknown)}, '
            f'which Kiln does not know; load the model with attn_implementation="eager"'
        )


def _is_layer(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, nn.Module)


def _warn(kind: type[PreTrainedModel], name: str) -> None:
    """Of a model whose attention is code of its own."""
    if kind in _warned or kind._can_set_attn_implementation():
        return
    _warned.add(kind)
    warnings.warn(
        f'{kind.__name__} has attention in its own code, which stays as it is with attn_implementation="eager": '
        f'"{name}" does not change it',
        stacklevel=2,
    )
