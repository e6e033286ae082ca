# What the build generates of tritonsrc/flash/arguments.yaml (kiln_build.native.argument_files). Operations are spelled
# "attn_fwd"; arguments are those of torch.ops.kiln's operators, fields those of the structures in kiln/flash.h.
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

# Bits of the argument `flags` of torch.ops.kiln_native's operators.
CAUSAL: int
BOTTOM_RIGHT: int
ROWS_FIRST: int
RETURN_LSE: int
FOR_BACKWARD: int
ALIKE: int
NEED_DBIAS: int
NEED_DSINKS: int
DETERMINISTIC: int
ROTARY_INTERLEAVED: int
EQUAL_HEADS: int

# By operation.
SCHEMAS: dict[str, str]  # of the operator, behind its name
ARGUMENTS: dict[str, tuple[str, ...]]  # of the operator, in its order
ARRAYS: dict[str, tuple[str, ...]]  # the fields that are tensors
VALUES: dict[str, tuple[str, ...]]  # the others, by the names that kiln._core takes
FIELDS: dict[str, dict[str, str]]  # the field of an argument
DEFAULTS: dict[str, dict[str, Any]]  # of fields
KINDS: dict[str, dict[str, str]]  # of an argument: "tensor", "optional" ...
NATIVE_DEFAULTS: dict[str, tuple[float | int, ...]]  # of the last result of native_...()

# Arguments of any operator that are a pair of integers: the fields that get these.
PARTS: dict[str, tuple[str, str]]

# Arguments of any operator that are tensors of these dtypes.
INT32: frozenset[str]
FP32: frozenset[str]

# Fields that are reals: the least and the most that they may be, and what a refusal says.
LIMITS: tuple[tuple[str, float | None, float | None, str], ...]
# The recipe's arguments that are not the field of their own name, computed from fields by name.
RECIPE: dict[str, Callable[[Mapping[str, Any]], float | int]]

# All arguments of an operator, in its order.
def attn_fwd(q: Any, k: Any, v: Any, *rest: Any, **named: Any) -> tuple[Any, ...]: ...
def attn_bwd(dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *rest: Any, **named: Any) -> tuple[Any, ...]: ...
def attn_decode(q: Any, k_cache: Any, v_cache: Any, out: Any, *rest: Any, **named: Any) -> tuple[Any, ...]: ...

# The same of any operation, by name.
def by_name(operation: str, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]: ...

# Operations of which the table tells all results: each with its shape, of arguments by name, in words and as a function
# that raises IndexError where an array lacks dimensions; and its dtype, by PyTorch's name, or the argument that has it.
class Result(NamedTuple):
    field: str
    text: str
    shape: Callable[[Mapping[str, Any]], tuple[int, ...]]
    like: str | None
    dtype: str | None

RESULTS: dict[str, tuple[Result, ...]]

# Whether all arguments of attn_fwd but those that the table calls plain have their defaults.
def is_plain(forward: Sequence[Any]) -> bool: ...

# What the operator of kiln_native takes of an operator's arguments: the tensors that every call has, those that are
# given of the others, which these are, flags, the scale, and the other numbers. KeyError: a flag is none.
NO_EXTRAS: list[Any]

Native: TypeAlias = tuple[tuple[Any, ...], list[Any], int, int, float, tuple[float | int, ...]]

def native_attn_fwd(*arguments: Any, **named: Any) -> Native: ...
def native_attn_bwd(*arguments: Any, **named: Any) -> Native: ...
def native_attn_decode(*arguments: Any, **named: Any) -> Native: ...

# Between attn_fwd and attn_bwd: the tensors among all arguments of the one, and the others; all arguments of the other,
# of both and what is its own; and from its results the gradients of each argument of attn_fwd.
def split_forward(forward: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[Any, ...]]: ...
def backward_of(tensors: Sequence[Any], others: Sequence[Any], **own: Any) -> tuple[Any, ...]: ...
def gradients_of(dq: Any, dk: Any, dv: Any, dbias: Any, dsinks: Any) -> tuple[Any, ...]: ...

DIFFERENTIABLE: tuple[str, ...]  # arguments of attn_fwd
