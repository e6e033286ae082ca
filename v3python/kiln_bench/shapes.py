"""What is measured, and what it costs: operations and bytes. Needs neither a GPU nor PyTorch.

    file   = {part: [entry, ...], ...}        YAML or JSON; part: training (forward and backward), forward, backward,
                                              decoding
    entry  = {name: value, ...}               a list of values stands for one call with each of them, but `lengths`

Names of training: head_dim, head_dim_v, heads or width (heads * head_dim), heads_kv, length (of queries and keys) or
lengths (of sequences that lie one after another), batch or tokens, causal, window, softcap, sinks, deterministic (of
backward), dtype, rows_first. Of decoding: head_dim, heads, heads_kv, keys, page, batch or cache_bytes, dtype,
cache_dtype, rows_first. PRESETS are examples. Which layout calls of training have that do not say `rows_first`, LAYOUTS
tells.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kiln_recipe import plain_json
from kiln_recipe.console.files import kind_of
from kiln_recipe.dtypes import DTYPE_BYTES
from kiln_recipe.errors import EnvironmentProblem, UsageError
from kiln_recipe.suggest import nearest

PARTS = ("forward", "backward", "decoding", "host")
# By the names that --layout takes: whether rows come before heads in memory. They do after a projection, whose result
# is viewed as [batch, rows, heads, head_dim] and transposed, so in the tensors of PyTorch's models.
LAYOUTS = {"rows-first": (True,), "heads-first": (False,), "both": (True, False)}
LAYOUT = "rows-first"
_TRAINING, _DECODING = "training", "decoding"
_MOST = 1 << 31
_FLOATS, _CACHES = ("bf16", "fp16", "fp32"), ("bf16", "fp16", "fp32", "fp8e4m3")


@dataclass(frozen=True)
class Training:
    """A call of forward, and the backward that belongs to it.

    Attributes:
        head_dim_v: of values and results.
        length: of queries and keys; with `lengths` of the longest.
        lengths: of sequences that lie one after another, in a batch of 1; none: all have `length`.
        window: how many keys a row sees, itself the last; 0: all.
        rows_first: whether rows come before heads in memory.
        softcap: of scores; 0: none.
        sinks: whether each head has a score of a key without value.
        deterministic: whether backward has to give equal bits for equal calls.
    """

    head_dim: int
    head_dim_v: int
    heads: int
    heads_kv: int
    batch: int
    length: int
    lengths: tuple[int, ...] = ()
    causal: bool = False
    window: int = 0
    dtype: str = "bf16"
    rows_first: bool = False
    softcap: int = 0
    sinks: bool = False
    deterministic: bool = False

    @property
    def rows(self) -> int:
        """Of a tensor: those of all sequences that lie in it."""
        return sum(self.lengths) or self.length

    @property
    def pairs(self) -> float:
        """Of a query and a key that it sees, of one head; causal ones as everybody counts them, half of all."""
        every = self.lengths or (self.length,) * self.batch
        if self.window:
            return float(sum(n * w - w * (w - 1) / 2 for n in every for w in (min(n, self.window),)))
        return sum(float(n) * n for n in every) / (2 if self.causal else 1)

    def operations(self, part: str) -> float:
        """Floating-point operations as everybody counts them: two products forward, five backward."""
        first, second = self.pairs * self.head_dim, self.pairs * self.head_dim_v
        return 2.0 * self.heads * (3 * first + 2 * second if part == "backward" else first + second)

    @property
    def bytes(self) -> int:
        """About what the tensors of all sides of a backward take, PyTorch's math aside."""
        widths = 2 * self.heads * (self.head_dim + self.head_dim_v) + 3 * self.heads_kv * self.head_dim * 2
        return 6 * self.batch * self.rows * widths * DTYPE_BYTES[self.dtype]

    def __str__(self) -> str:
        width = f"d{self.head_dim}" + (f"/{self.head_dim_v}" if self.head_dim_v != self.head_dim else "")
        heads = f"{self.heads}" + (f":{self.heads_kv}" if self.heads_kv != self.heads else "") + " heads"
        long = f"{len(self.lengths)} sequences to {spelled(self.length)}" if self.lengths else spelled(self.length)
        mask = f"window {spelled(self.window)}" if self.window else "causal" if self.causal else ""
        size = "" if self.lengths else f"batch {self.batch}"
        extras = (f"softcap {self.softcap}" if self.softcap else "", "sinks" if self.sinks else "")
        kind = "deterministic" if self.deterministic else ""
        rest = (*extras, kind, "" if self.rows_first else "heads first", self.dtype if self.dtype != "bf16" else "")
        return ", ".join(filter(None, (width, heads, mask, long, size, *rest)))


@dataclass(frozen=True)
class Decoding:
    """A new row for each sequence, over `keys` cached ones.

    Attributes:
        page: keys on a page, all in random order; 0: the cache is contiguous.
        cache_dtype: of what is cached; of q and the result: dtype.
    """

    head_dim: int
    heads: int
    heads_kv: int
    batch: int
    keys: int
    page: int = 0
    dtype: str = "bf16"
    cache_dtype: str = "bf16"
    rows_first: bool = False

    @property
    def elements(self) -> int:
        """Of the cached keys; there are as many of values."""
        return self.batch * self.heads_kv * self.keys * self.head_dim

    @property
    def bytes(self) -> int:
        """What must be read: each cached element once. Rows of q and the result are less than a hundredth of it."""
        return 2 * self.elements * DTYPE_BYTES[self.cache_dtype]

    def __str__(self) -> str:
        heads = f"{self.heads}" + (f":{self.heads_kv}" if self.heads_kv != self.heads else "") + " heads"
        page = f"pages of {self.page}" if self.page else "contiguous"
        cache = f"cache {self.cache_dtype}" if self.cache_dtype != self.dtype else ""
        rest = (page, cache, self.dtype if self.dtype != "bf16" else "")
        return ", ".join(
            filter(None, (f"d{self.head_dim}", heads, f"{spelled(self.keys)} keys", f"batch {self.batch}", *rest))
        )


def spelled(number: int) -> str:
    """2k for 2048."""
    return f"{number >> 10}k" if number >= 1024 and number % 1024 == 0 else str(number)


# As in models of 8, of 70 billion parameters; Mistral's window; Gemma's wide heads, and soft cap; the sinks of gpt-oss;
# DeepSeek's prefill.
PRESETS: Mapping[str, Mapping[str, Sequence[Mapping[str, Any]]]] = {
    "core": {
        _TRAINING: [
            {"head_dim": [64, 128, 256], "width": 2048, "causal": [False, True], "length": [512, 2048, 8192, 16384],
             "tokens": 16384},
        ],
        _DECODING: [
            {"head_dim": [64, 128], "heads": 32, "keys": [32768, 2048], "page": [0, 16], "cache_bytes": 10**9},
            {"head_dim": [64, 128], "heads": 64, "heads_kv": 8, "keys": [32768, 2048], "page": [0, 16],
             "cache_bytes": 10**9},
            {"head_dim": 128, "heads": 64, "heads_kv": 8, "keys": 32768, "page": [0, 16], "cache_bytes": 10**9,
             "cache_dtype": "fp8e4m3"},
        ],
    },
    "llm": {
        _TRAINING: [
            {"head_dim": 128, "heads": 32, "heads_kv": 8, "causal": True, "length": [2048, 8192, 32768],
             "tokens": 32768},
            {"head_dim": 128, "heads": 64, "heads_kv": 8, "causal": True, "length": [4096, 16384], "tokens": 16384},
            {"head_dim": 128, "heads": 32, "heads_kv": 8, "causal": True, "window": 4096, "length": 16384, "batch": 1},
            {"head_dim": 256, "heads": 16, "heads_kv": 8, "causal": True, "length": 8192, "batch": 2},
            {"head_dim": 256, "heads": 16, "heads_kv": 8, "causal": True, "length": 8192, "batch": 2, "softcap": 50},
            {"head_dim": 64, "heads": 64, "heads_kv": 8, "causal": True, "window": [0, 128], "length": 8192, "batch": 2,
             "sinks": True},
            {"head_dim": 192, "head_dim_v": 128, "heads": 16, "causal": True, "length": 8192, "batch": 2},
            {"head_dim": 128, "heads": 32, "heads_kv": 8, "causal": True,
             "lengths": [8192, 128, 2048, 512, 4096, 256, 1024, 128]},
        ],
        _DECODING: [
            {"head_dim": 128, "heads": 32, "heads_kv": 8, "keys": [512, 2048, 4096], "page": 16, "batch": [1, 8]},
            {"head_dim": 128, "heads": 32, "heads_kv": 8, "keys": [4096, 16384], "page": 16, "batch": 64},
            {"head_dim": 128, "heads": 64, "heads_kv": 8, "keys": [4096, 16384], "page": 16, "batch": 32,
             "cache_dtype": ["bf16", "fp8e4m3"]},
        ],
    },
}  # fmt: skip


@dataclass(frozen=True)
class Shapes:
    """What is measured, by part.

    Attributes:
        name: the preset's, or the file's without its folder.
    """

    name: str
    forward: tuple[Training, ...]
    backward: tuple[Training, ...]
    decoding: tuple[Decoding, ...]


def read(word: str, layout: str = LAYOUT) -> Shapes:
    """Of a preset, or of a file.

    Args:
        layout: of LAYOUTS.

    Raises:
        EnvironmentProblem: the file cannot be read, or Python lacks what reads it.
        UsageError: it says something else than the grammar above.
    """
    if word in PRESETS:
        return parse(PRESETS[word], word, word, layout)
    path = Path(word)
    if not path.is_file():
        what = f"is {kind_of(path)}" if os.path.lexists(path) else "does not exist"
        raise EnvironmentProblem(f"--shapes {word} {what}; give {', '.join(PRESETS)} or a file")
    return parse(_document(path), word, path.name, layout)


def _document(path: Path) -> object:
    try:
        text = path.read_text("utf-8")
        if path.suffix == ".json":
            return plain_json.read(text)
        import yaml
    except OSError as error:
        raise EnvironmentProblem(f"--shapes {path} cannot be read ({error.strerror})") from error
    except ImportError as error:
        raise EnvironmentProblem(
            f"--shapes {path} needs PyYAML, which this Python lacks; give JSON, in a .json"
        ) from error
    except ValueError as error:  # JSON, UTF-8
        raise UsageError(f"--shapes {path} is not valid JSON ({error})") from error
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"--shapes {path} is not valid YAML ({' '.join(str(error).split())})") from error


def parse(document: object, where: str, name: str, layout: str = LAYOUT) -> Shapes:
    """Of what a file says.

    Args:
        layout: of LAYOUTS, for calls of training that do not say `rows_first`.

    Raises:
        UsageError: it is not what the grammar allows; names the entry.
    """
    known = (_TRAINING, "forward", "backward", _DECODING)
    if not isinstance(document, Mapping) or not document:
        raise UsageError(f"--shapes {where}: it must have some of {', '.join(known)}, each a list of calls")
    found: dict[str, list[Any]] = {part: [] for part in known}
    for part, entries in document.items():
        if part not in known:
            raise UsageError(f"--shapes {where}: unknown part {part!r}; {nearest(str(part), known, 'parts')}")
        if not isinstance(entries, list):
            raise UsageError(f"--shapes {where}: {part} must be a list of calls")
        for number, entry in enumerate(entries, 1):
            place = f"--shapes {where}: {part}, call {number}"
            if not isinstance(entry, Mapping):
                raise UsageError(f"{place}: must be a mapping such as {{head_dim: 128, heads: 16, ...}}")
            if part == _DECODING:
                found[part] += [_decoding(_Entry(one, place)) for one in _spread(entry)]
            else:
                found[part] += [_training(_Entry(one, place)) for one in _spread(_laid_out(entry, layout))]
    both = found[_TRAINING]
    return Shapes(name, (*both, *found["forward"]), (*both, *found["backward"]), tuple(found[_DECODING]))


def _laid_out(entry: Mapping[str, Any], layout: str) -> Mapping[str, Any]:
    """Sequences of several lengths have rows first in any case: others take them so, and would be given copies."""
    if "rows_first" in entry:
        return entry
    return {**entry, "rows_first": [True] if entry.get("lengths") else [*LAYOUTS[layout]]}


def _spread(entry: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """One mapping for each combination of the values that are lists."""
    lists = {name: value for name, value in entry.items() if isinstance(value, list) and name != "lengths"}
    for values in itertools.product(*lists.values()):
        yield {**entry, **dict(zip(lists, values))}


class _Entry:
    """An entry whose names are taken one by one; what is left is unknown."""

    def __init__(self, values: Mapping[str, Any], place: str) -> None:
        self._values, self._place, self._known = dict(values), place, list[str]()

    def wrong(self, sentence: str) -> UsageError:
        return UsageError(f"{self._place}: {sentence}")

    def integer(self, name: str, default: int | None = None, least: int = 1) -> int:
        value = self._take(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value < _MOST:
            raise self.wrong(f"{name} is {value!r}; expected a whole number from {least} to {_MOST - 1}")
        return value

    def flag(self, name: str) -> bool:
        value = self._take(name, False)
        if not isinstance(value, bool):
            raise self.wrong(f"{name} is {value!r}; expected true or false")
        return value

    def one_of(self, name: str, allowed: Sequence[str], default: str) -> str:
        value = self._take(name, default)
        if value not in allowed:
            raise self.wrong(f"{name} is {value!r}; {nearest(str(value), allowed, f'{name}s')}")
        return value

    def lengths(self) -> tuple[int, ...]:
        value = self._take("lengths", [])
        if not isinstance(value, list) or not all(isinstance(n, int) and 0 < n < _MOST for n in value):
            raise self.wrong(f"lengths is {value!r}; expected whole numbers, [128, 512]")
        return tuple(value)

    def either(self, one: str, other: str) -> str:
        """Which of two names is there.

        Raises:
            UsageError: neither is, or both.
        """
        self._known += [one, other]
        there = [name for name in (one, other) if name in self._values]
        if len(there) != 1:
            raise self.wrong(
                f"has {'both' if there else 'neither'} {one} {'and' if there else 'nor'} {other}; give one"
            )
        return there[0]

    def _take(self, name: str, default: Any) -> Any:
        self._known.append(name)
        if default is None and name not in self._values:
            raise self.wrong(f"has no {name}; give a whole number")
        return self._values.pop(name, default)

    def done(self) -> None:
        for name in self._values:
            raise self.wrong(f"unknown {name!r}; {nearest(str(name), dict.fromkeys(self._known), 'names')}")


def _training(entry: _Entry) -> Training:
    head_dim = entry.integer("head_dim")
    if entry.either("heads", "width") == "heads":
        heads = entry.integer("heads")
    else:
        heads = max(1, entry.integer("width") // head_dim)
    lengths = entry.lengths()
    length = max(lengths) if lengths else entry.integer("length")
    batch = 1
    if not lengths:
        wanted = entry.either("batch", "tokens")
        batch = entry.integer(wanted) if wanted == "batch" else max(1, entry.integer(wanted) // length)
    shape = Training(
        head_dim, entry.integer("head_dim_v", head_dim), heads, entry.integer("heads_kv", heads), batch, length,
        lengths, entry.flag("causal"), entry.integer("window", 0, 0), entry.one_of("dtype", _FLOATS, "bf16"),
        entry.flag("rows_first"), entry.integer("softcap", 0, 0), entry.flag("sinks"), entry.flag("deterministic"),
    )  # fmt: skip
    entry.done()
    if shape.heads % shape.heads_kv:
        raise entry.wrong(f"heads is {heads}, no multiple of heads_kv, {shape.heads_kv}")
    if shape.window and not shape.causal:
        raise entry.wrong("window is the keys up to a row's own, which wants causal: true")
    return shape


def _decoding(entry: _Entry) -> Decoding:
    head_dim, heads = entry.integer("head_dim"), entry.integer("heads")
    heads_kv, keys = entry.integer("heads_kv", heads), entry.integer("keys")
    dtype = entry.one_of("dtype", _FLOATS, "bf16")
    cache_dtype = entry.one_of("cache_dtype", _CACHES, dtype)
    one = Decoding(head_dim, heads, heads_kv, 1, keys, 0, dtype, cache_dtype)
    wanted = entry.either("batch", "cache_bytes")
    batch = entry.integer(wanted) if wanted == "batch" else -(-entry.integer(wanted) // one.bytes)
    page, rows_first = entry.integer("page", 0, 0), entry.flag("rows_first")
    entry.done()
    if heads % heads_kv:
        raise entry.wrong(f"heads is {heads}, no multiple of heads_kv, {heads_kv}")
    if page and keys % page:
        raise entry.wrong(f"a cache of {keys} keys does not consist of pages of {page}")
    return Decoding(head_dim, heads, heads_kv, batch, keys, page, dtype, cache_dtype, rows_first)


def of_row(row: Mapping[str, Any]) -> Training | Decoding:
    """The shape that a kept result says, as `as_row` wrote it."""
    shape = dict(row["shape"])
    if row["part"] == _DECODING:
        return Decoding(**shape)
    return Training(**{**shape, "lengths": tuple(shape["lengths"])})


def as_row(shape: Training | Decoding) -> dict[str, Any]:
    """As JSON gives it back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(shape).items()}
