"""From what a kernel does with its parameters to what a recipe says of them: each guess, and what to check about it."""

from __future__ import annotations

import ast
import keyword
import re
from collections.abc import Iterator, Mapping, Sequence

from kiln_build.skeleton import axes, programs
from kiln_build.skeleton.facts import Facts
from kiln_build.skeleton.sketch import RESERVED, Entry, Sketch, plain, plain_word, spelled
from kiln_build.skeleton.tensors import Axis, Tensor, read, sizes_of, tile_of
from kiln_build.skeleton.tiles import Tiles
from kiln_build.skeleton.values import Atom
from kiln_build.skeleton.walk import walk

_STATISTICS = re.compile("mean|rstd|inv_?std|lse|logsumexp|var|norm|max|sum|partial|squares?|acc", re.IGNORECASE)


def guess(
    kernel: ast.FunctionDef, constants: Sequence[str], language: str, helpers: Mapping[str, ast.FunctionDef]
) -> Sketch:
    """A sketch of the recipe of a kernel.

    Args:
        constants: its constexpr parameters.
        helpers: what it may call, by name.
    """
    facts = walk(kernel, constants, helpers)
    return _Guess(kernel, list(constants), facts, language).sketch()


class _Guess:
    def __init__(self, kernel: ast.FunctionDef, constants: list[str], facts: Facts, language: str) -> None:
        self.kernel, self.constants, self.facts = kernel, constants, facts
        arguments = [*kernel.args.posonlyargs, *kernel.args.args]
        defaults = dict(zip([a.arg for a in arguments][::-1], kernel.args.defaults[::-1]))
        self.defaults = {n: d.value for n, d in defaults.items() if isinstance(d, ast.Constant)}
        self.parameters = [argument.arg for argument in arguments if argument.arg not in constants]
        self.tensors = read(facts, self.parameters)
        self.sizes = sizes_of(facts, self.parameters)
        self.tiles = Tiles(facts, self.tensors, constants)
        self.unused = set(self.parameters) - {n.id for n in ast.walk(kernel) if isinstance(n, ast.Name)}
        self.taken = {argument.arg for argument in arguments}
        self.dtype_choice = self.unique("dtype")
        self.names = {tensor.parameter: self.name_of_tensor(tensor.parameter) for tensor in self.tensors}
        self.optional = {t.parameter: next(iter(sorted(t.flags))) for t in self.tensors if self.may_be_left_out(t)}
        self.bound: set[str] = {tensor.parameter for tensor in self.tensors}
        # By the parameter of a size, or by an index that nothing is compared with: what expressions call that size.
        self.dimensions: dict[str | frozenset[Atom], str] = {}
        summary = (ast.get_docstring(kernel) or "").partition("\n")[0]
        self.out = Sketch(kernel.name, language, plain(kernel.name), summary)

    def sketch(self) -> Sketch:
        if any(tensor.box is not None for tensor in self.tensors):
            self.out.use_descriptors()
        self.add_tensors()
        self.add_strides()
        self.add_sizes()
        self.add_constants()
        self.add_grid()
        self.add_scalars()
        self.add_shapes()
        return self.out

    # ---- names ----

    def unique(self, wanted: str, own: str = "") -> str:
        """A name that nothing has yet; `own` is a parameter that may have it."""
        name = re.sub("[^A-Za-z0-9_]", "_", spelled(wanted))
        name = name if name.strip("_") else "x"
        name = f"x{name}" if name[0].isdigit() or name.startswith("__") else name
        while (name in self.taken and name != own) or name in RESERVED or keyword.iskeyword(name):
            name += "_"
        self.taken.add(name)
        return name

    def name_of_tensor(self, parameter: str) -> str:
        short = re.sub("^(ptr|pointer|p)_|_?(ptrs?|pointers?|desc|descriptor)$", "", parameter) or parameter
        lower = short.lower()
        return self.unique(lower if lower not in self.taken or lower == parameter else short, parameter)

    def may_be_left_out(self, tensor: Tensor) -> bool:
        return tensor.box is None and any(flag in self.facts.tested for flag in tensor.flags)

    # ---- what a call gives ----

    def add_tensors(self) -> None:
        dtypes = [tensor for tensor in self.tensors if self.dtype(tensor) == self.dtype_choice]
        for tensor in self.tensors:
            rank = len(tensor.axes)
            names, doubt = self.axes(tensor)
            shape = f"axes: [{', '.join(names)}]" if rank > 1 else f"rank: {max(rank, 1)}"
            optional = ", optional: true" if tensor.parameter in self.optional else ""
            name = self.names[tensor.parameter]
            text = f"{{tensor: {self.dtype(tensor)}, {shape}{optional}}}"
            self.out.arguments.append(Entry(name, text, self.doubt(tensor) or doubt))
            if tensor.box is not None:
                sides = [side or "64" for side in tensor.box] or ["64"]
                check = "" if all(tensor.box) and tensor.box else "the sides of the tile that one copy moves"
                box = f"{{descriptor: {name}, box: [{', '.join(sides)}]}}"
                self.out.parameters.append(Entry(tensor.parameter, box, check))
                continue
            if tensor.parameter != f"{name}_ptr":
                self.out.parameters.append(Entry(tensor.parameter, name))
            self.out.aligned.append(tensor.parameter)
            if tensor.kinds == {"atomic_add"} or any(kind in ("atomic_cas", "atomic_xchg") for kind in tensor.kinds):
                self.out.zero.append(name)
        if dtypes:
            leading = self.names[next((t for t in dtypes if t.parameter not in self.optional), dtypes[0]).parameter]
            values = "[fp16, bf16]" if self.facts.dotted else "[fp16, bf16, fp32]"
            check = "the dtypes that calls may have; a tensor that has another than the rest says its own above"
            self.out.choices.append(Entry(self.dtype_choice, f"{{of: {leading}.dtype, values: {values}}}", check))

    def dtype(self, tensor: Tensor) -> str:
        if any(kind in ("atomic_cas", "atomic_xchg") for kind in tensor.kinds):
            return "int32"
        if tensor.is_index:
            return "int64"
        if any(kind.startswith("atomic_") for kind in tensor.kinds):
            return "fp32"
        return "fp32" if _STATISTICS.search(self.names[tensor.parameter]) else self.dtype_choice

    def doubt(self, tensor: Tensor) -> str:
        dtype = self.dtype(tensor)
        if tensor.parameter in self.defaults and tensor.parameter not in self.optional:
            return "its default lets callers leave it out: that takes a constexpr that says whether it is there"
        if tensor.kinds and not tensor.axes:
            return "nothing tells its axes: give their names in place of rank, if it has several"
        if dtype == "int64":
            return "integers, since addresses are computed from it: int64 or int32?"
        if dtype == "fp32":
            return "is it fp32? guessed from its name" if not any(k.startswith("atomic") for k in tensor.kinds) else (
                "added to by several programs, so it is fp32 and set to zero first (`zero` below)"
            )  # fmt: skip
        if dtype == "int32":
            return "a lock: int32, set to zero first (`zero` below)"
        return ""

    def axes(self, tensor: Tensor) -> tuple[list[str], str]:
        """What a tensor's axes are called, and what to check about that."""
        return axes.named(tensor, self.names[tensor.parameter])

    # ---- strides and sizes ----

    def add_strides(self) -> None:
        owners: dict[str, list[str]] = {}
        for tensor in self.tensors:
            for place, axis in enumerate(tensor.axes):
                if axis.stride is not None:
                    owners.setdefault(axis.stride, []).append(f"{self.names[tensor.parameter]}.stride[{place}]")
        for stride in (name for name in self.parameters if name in owners):
            first, *others = owners[stride]
            self.bound.add(stride)
            if self.by_name(stride) != {first}:
                self.out.parameters.append(Entry(stride, first))
            for other in others:
                self.out.require.append(
                    _equal(other, first, "must both have the same stride? the kernel takes one parameter for both")
                )
            is_last = any(a.stride == stride and t.axes[-1] is a and len(t.axes) > 1 for t in self.tensors
                          for a in t.axes)  # fmt: skip
            left_out = any(a.stride == stride and t.parameter in self.optional for t in self.tensors for a in t.axes)
            if not is_last:
                self.out.aligned.append(stride)
            elif not left_out:
                self.out.ones.append(stride)

    def by_name(self, stride: str) -> set[str]:
        """The strides that a recipe takes a parameter of this name for, if it says nothing."""
        found = set()
        for tensor in self.tensors:
            name = self.names[tensor.parameter]
            for place, axis in enumerate(self.axes(tensor)[0]):
                if stride in (f"stride_{name}{axis}", f"stride_{name}_{axis}"):
                    found.add(f"{name}.stride[{place}]")
        if not found:
            firsts = [self.names[t.parameter] for t in self.tensors if stride == f"stride_{self.names[t.parameter]}"]
            found = {f"{name}.stride[0]" for name in firsts}
        return found

    def all_axes(self) -> Iterator[tuple[str, int, Axis]]:
        """Every axis of every tensor: those that a call always has come first."""
        for tensor in sorted(self.tensors, key=lambda tensor: tensor.parameter in self.optional):
            for place, axis in enumerate(tensor.axes):
                yield self.names[tensor.parameter], place, axis

    def add_sizes(self) -> None:
        for size in (name for name in self.parameters if name in self.sizes and name not in self.bound):
            found = [(tensor, place) for tensor, place, axis in self.all_axes() if axis.size == size]
            if not found:
                continue
            name = self.unique(size, size)
            tensor, place = found[0]
            self.out.define.append(Entry(name, f"{tensor}.size[{place}]"))
            self.dimensions[size] = name
            self.bound.add(size)
            if name != size:
                self.out.parameters.append(Entry(size, name))
            if any(axis.size == size and t.axes[-1] is axis for t in self.tensors for axis in t.axes):
                self.out.aligned.append(size)

    def dimension(self, tensor: str, place: int, axis: Axis) -> str:
        """What expressions call the size of an axis; it is defined where nothing was yet."""
        key = axis.size if axis.size in self.dimensions else axis.index
        if key is None or not key:
            return f"{tensor}.size[{place}]"
        if key not in self.dimensions:
            names = next(self.axes(t)[0] for t in self.tensors if self.names[t.parameter] == tensor)
            many = axes.plural(names[place]) if len(names[place]) > 1 else f"{tensor}_{names[place]}"
            if many in self.unused - self.bound:  # given for the caller's sake, so this is what it means
                self.bound.add(many)
                name, check = self.unique(many, many), f"the kernel does not use its parameter {many}: taken for this"
            else:
                name, check = self.unique(many), ""
            self.dimensions[key] = name
            self.out.define.append(Entry(name, f"{tensor}.size[{place}]", check))
        return self.dimensions[key]

    def add_shapes(self) -> None:
        """What must hold of a call's tensors: their sizes agree, and what has no stride is contiguous."""
        defined = {entry.text for entry in self.out.define}
        for tensor in self.tensors:
            name = self.names[tensor.parameter]
            known = [self.dimensions.get(a.size) if a.size else self.dimensions.get(a.index) for a in tensor.axes]
            own = [f"{name}.size[{place}]" in defined for place in range(len(known))]
            if known and all(known) and not all(own):
                sizes = ", ".join(str(size) for size in known)
                parts = [a.size for a in tensor.axes if a.size in self.facts.divided]
                check = f"the kernel divides {' and '.join(parts)}: is it this size, or a part of it?" if parts else ""
                self.out.require.append(Entry("", f"{{shape: {name}, is: [{sizes}]}}", check))
            if tensor.box is not None or not tensor.axes:
                continue
            if any(axis.factors for axis in tensor.axes) or (len(tensor.axes) == 1 and not tensor.axes[0].stride):
                self.out.require.append(Entry("", f"{{contiguous: {name}}}"))
            elif tensor.axes[-1].stride is None:
                self.out.require.append(Entry("", f"{{contiguous: {name}, axes: [{self.axes(tensor)[0][-1]}]}}"))
        written = [self.names[tensor.parameter] for tensor in self.tensors if tensor.kinds != {"load"}]
        if written:
            self.out.require.append(Entry("", f"{{not_broadcast: [{', '.join(written)}]}}"))
        by_flag: dict[str, list[str]] = {}
        for parameter, flag in self.optional.items():
            by_flag.setdefault(flag, []).append(self.names[parameter])
        for together in by_flag.values():
            if len(together) > 1:
                self.out.require.append(Entry("", f"{{belong_together: [{', '.join(together)}]}}"))

    # ---- what else the kernel takes ----

    def add_scalars(self) -> None:
        for parameter in (name for name in self.parameters if name not in self.bound):
            if named := sorted(self.by_name(parameter)):
                self.out.parameters.append(Entry(parameter, named[0], "a stride by its name alone"))
                continue
            name = self.unique(parameter, parameter)
            kind, why = self.scalar(parameter)
            self.out.arguments.append(Entry(name, f"{{scalar: {kind}}}", why))
            if name != parameter:
                self.out.parameters.append(Entry(parameter, name))

    def scalar(self, parameter: str) -> tuple[str, str]:
        default = self.defaults.get(parameter)
        if isinstance(default, bool):
            return "bool", ""
        if isinstance(default, str):
            return "int32", "a kernel is passed no text: make it a tl.constexpr, which becomes a choice"
        if parameter in self.unused:
            return "int32", "the kernel does not use it: leave it out there and here, or say what callers give"
        if isinstance(default, float) or (parameter in self.facts.floats and parameter not in self.facts.integers):
            return "fp32", ""
        if "stride" in parameter.lower():
            return "int64", "no address tells whose stride it is: say `parameters: {" + parameter + ": x.stride[0]}`"
        if parameter in self.sizes:
            return "int32", "no address tells whose size it is: a `define` of its name can take it from a tensor"
        if parameter in self.facts.integers or isinstance(default, int):
            return "int32", "int32, or int64 where it may be 2^31 or more"
        return "int32", "nothing tells what it is: a number of this kind (bool, int32, int64, fp32), or a tensor?"

    def add_constants(self) -> None:
        for constant in self.constants:
            default = self.defaults.get(constant)
            pointer = next((p for p, flag in self.optional.items() if flag == constant), None)
            if pointer is not None:
                name = self.unique(f"has_{self.names[pointer]}")
                self.add_choice(constant, name, f"given({self.names[pointer]})", "[false, true]", "")
            elif constant in self.facts.tested or isinstance(default, bool):
                self.add_flag(constant, "bool", "[false, true]", "a call says which; or take it from a tensor")
            elif words := [w for w in dict.fromkeys(self.facts.words.get(constant, ())) if plain_word(w)]:
                usual = [w for w in ("none",) if w not in words]
                values = f"[{', '.join([*usual, *words])}]"
                self.add_flag(constant, "int32", values, "a call gives the word's place: 0 is the first")
            elif not self.add_whole(constant):
                self.add_value(constant, default)
        if "num_warps" not in self.constants:
            self.out.configuration.append(Entry("num_warps", "4"))

    def add_choice(self, constant: str, name: str, of: str, values: str, check: str) -> None:
        shown = f'"{of}"' if "[" in of else of  # which a mapping on one line would end at
        values = values if ":" in values else f"values: {values}"
        self.out.choices.append(Entry(name, f"{{of: {shown}, {values}}}", check))
        self.out.constants.append(Entry(constant, name))

    def add_flag(self, constant: str, scalar: str, values: str, check: str) -> None:
        """A choice that a call decides by an argument of the same name."""
        name = self.unique(constant.lower())
        self.out.arguments.append(Entry(name, f"{{scalar: {scalar}}}"))
        self.add_choice(constant, name, name, values, check)

    def add_whole(self, constant: str) -> bool:
        """A constant that holds a whole dimension, and is no tile of one, follows from the tensor's size."""
        for tensor, place, axis in self.all_axes():
            if not self.tiles.holds(constant, axis):
                continue
            low, high = self.tiles.whole(constant)
            if axis.size in self.dimensions:
                size = self.dimensions[axis.size]
                check = f"{size} is rounded up to one of these; a call beyond the last is refused"
                name = self.unique(f"{size}_up_to")
                self.add_choice(constant, name, size, f"match: next_larger, values: [{low}, {high}]", check)
            else:
                low, high = (low, high) if high < 1024 else (64, 128) if place > 1 else (128, 1024)
                check = f"without a mask, the size of {tensor} must be one of these"
                self.add_choice(constant, self.unique(constant.lower()), f"{tensor}.size[{place}]",
                                f"values: [{low}, {high}]", check)  # fmt: skip
            return True
        return False

    def add_value(self, constant: str, default: object) -> None:
        upper, check = constant.upper(), ""
        if isinstance(default, float) or (default is None and re.search("EPS|SCALE|ALPHA", upper)):
            self.out.constants.append(Entry(constant, str(default if default is not None else 1.0), "its value"))
            return
        if isinstance(default, int) and default > 0:
            value = default
        elif words := self.facts.words.get(constant):
            self.out.configuration.append(Entry(constant, _quoted(words[0])))
            return
        elif "GROUP" in upper:
            value = 8
        elif "STAGE" in upper:
            value = 2
        elif "WARP" in upper:
            value = 4
        elif constant in self.tiles.blocks or re.search("BLOCK|TILE", upper):
            value = self.tiles.block(constant)
            if not re.search("BLOCK|TILE", upper):
                check = "taken for a tile's side; is it a size, which a choice takes from a tensor?"
        else:
            value, check = next(iter(self.facts.numbers.get(constant, [1]))), "nothing tells its value"
        self.out.configuration.append(Entry(constant, str(value), check))

    # ---- the launch ----

    def add_grid(self) -> None:
        used = sorted({int(n) for n in programs.used(self.facts, (axis for _, _, axis in self.all_axes()))})
        for number in range(min(max(used, default=0), 2) + 1):
            side, check = self.side(str(number)) if number in used else ("1", "")
            self.out.grid.append(Entry("", side, check))
        empty = [name for name in dict.fromkeys(self.dimensions.values())
                 if any(re.search(rf"\b{name}\b", side.text) for side in self.out.grid)]  # fmt: skip
        self.out.skip_when = " or ".join(f"{name} == 0" for name in empty)

    def side(self, program: str) -> tuple[str, str]:
        """How many programs a launch has along an axis."""
        direct: list[tuple[int, tuple[str, int, Axis], str | None]] = []
        divided: list[tuple[tuple[str, int, Axis], str | None]] = []
        wholes = {entry.key: entry.text for entry in self.out.constants}
        for tensor, place, axis in self.all_axes():
            atoms = programs.following(self.facts, axis, program)
            if not atoms:
                continue
            block = tile_of(axis, atoms)
            block = wholes.get(block, block) if block else None
            if any(atom.kind != "step" for atom in atoms):
                likely = 2 * (axis.size in self.dimensions) + (block is not None)
                direct.append((likely, (tensor, place, axis), block))
            else:
                divided.append(((tensor, place, axis), block))
        if direct:
            divided = [max(direct, key=lambda one: one[0])[1:]]
        sides = list(dict.fromkeys(
            f"cdiv({self.dimension(*where)}, {block})" if block else self.dimension(*where) for where, block in divided
        ))  # fmt: skip
        if not sides:
            return "1", f"nothing tells how many programs there are along axis {program}"
        product = " * ".join(sides)
        check = "is this how many programs the kernel expects?" if len(sides) > 1 else ""
        if program in self.facts.programs:  # each works on several
            product = f"min({product}, 4 * device.multiprocessors)"
        return product, check


def _quoted(word: str) -> str:
    return '"' + re.sub(r"[^A-Za-z0-9_.+-]", "_", word) + '"'


def _equal(one: str, other: str, why: str) -> Entry:
    return Entry("", f'{{that: "{one} == {other}", otherwise: {one.partition(".")[0]} must be laid out as '
                 f'{other.partition(".")[0]} is}}', why)  # fmt: skip
