"""What a call must make the driver do, by the recipe and the pack alone: kiln_recipe.call goes the call's way through
the recipe in Python, the pack's own index and each image's own metadata say the rest."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from recorded import Launch, Record, TensorMap, Zero, read_map

from builds import ROOT, WIDE_RECIPES, WIDE_SELECTION
from kiln_build.artifacts import pack
from kiln_recipe import targets
from kiln_recipe.call import evaluate
from kiln_recipe.call.dispatch import Tables
from kiln_recipe.call.evaluate import ALIGNMENT, DTYPE_NAMES, Given, Refusal
from kiln_recipe.call.implementations import Described, PassedOver
from kiln_recipe.dtypes import DTYPE_BYTES
from kiln_recipe.images import elf
from kiln_recipe.images.image import DescriptorInfo
from kiln_recipe.model import Operation, Recipe
from kiln_recipe.plan.model import KernelPlan
from kiln_recipe.read import recipe
from kiln_recipe.selection import parse_selection

if TYPE_CHECKING:
    from kiln_recipe.selection import Selection

# By target its device of the fake driver, and the threads along the first dimension of a grid.
DEVICES = {
    "sm_90": (evaluate.Device("NVIDIA", 132, driver=12080), None),
    "gfx942": (evaluate.Device("AMD", 304, describes=False), 2**32 - 1),
}
SMALL_TENSOR = 128 << 10  # bytes: of smaller ones drivers up to 13.1 make a map with a bit too many
BYTES = {
    "i1": 1, "i8": 1, "u8": 1, "i16": 2, "u16": 2, "i32": 4, "u32": 4, "fp32": 4, "i64": 8, "u64": 8, "fp64": 8,
}  # fmt: skip
MAX_GRID = 2**31 - 1


@dataclass(frozen=True)
class Set:
    """Memory that is set to zero."""

    address: int
    bytes: int


@dataclass(frozen=True)
class Run:
    """A kernel that is launched: the digest of its image, and all that the driver is told."""

    image: str
    symbol: str
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared: int
    cluster: int
    overlaps: bool
    arguments: tuple[bytes | TensorMap, ...]


@dataclass(frozen=True)
class Expected:
    """What a call comes to.

    Attributes:
        workspace: bytes that it needs.
        keys: of the variants that it runs.
        passed: of each of them the implementations that were passed over, a line for each.
    """

    steps: tuple[Set | Run, ...]
    workspace: int
    keys: tuple[str, ...]
    passed: tuple[str, ...] = ()


@cache
def families() -> tuple[Recipe, ...]:
    """The recipes of the small release."""
    return tuple(map(recipe.load, (ROOT / "tritonsrc/flash/recipe.yaml", *WIDE_RECIPES)))


def operation(name: str) -> Operation:
    """By its name with its family's."""
    family, _, short = name.partition(".")
    known = {(r.family, o.name): o for r in families() for o in r.operations}
    return known[family, short]


def _selection(family: Recipe) -> Selection:
    """What was selected of a family's own choices."""
    known = {choice.name for operation in family.operations for choice in operation.choices}
    return tuple(e for e in parse_selection(WIDE_SELECTION["KILN_SELECT"]) if e[0] in known)


class Oracle:
    """The small release's images for one target, and what calls on its device come to.

    Attributes:
        tables: by family what leads from a call to a variant.
        slots: by (family, operation, kernel) its place in the pack.
    """

    def __init__(self, prefix: Path, target: str) -> None:
        self.target = target
        self.device, self.grid_threads = DEVICES[target]
        self.path = prefix / "lib" / "kiln.images" / f"{self.device.vendor.lower()}-{target}.pack"
        self.data = self.path.read_bytes()
        self.pack = pack.parse_pack(self.data, str(self.path))
        self.tables = {
            family.family: Tables(family, targets.by_name(target), "core", _selection(family), ROOT / "tuning")
            for family in families()
        }
        self.slots = {(k.family, k.operation, k.kernel): k for k in self.pack.kernels}
        assert {place: self.plan(place).layout for place in self.slots} == {p: k.layout for p, k in self.slots.items()}
        self.images = {image.digest: image for image in self.pack.images}

    def plan(self, place: tuple[str, str, str]) -> KernelPlan:
        """Of (family, operation, kernel)."""
        family, _, kernel = place
        return self.tables[family].kernels[kernel].plan

    @cached_property
    def by_key(self) -> Mapping[str, pack.Slot]:
        return {slot.key: slot for kernel in self.pack.kernels for slot in kernel.slots if slot.image}

    def place(self, kernel: KernelPlan, number: int) -> tuple[Mapping[str, str], int, str]:
        """Of a kernel's slot the functional, as it is spelled, the configuration's number and the specialization."""
        rest, specialization = divmod(number, len(kernel.kernel.specializations))
        functional, configuration = divmod(rest, len(kernel.configurations))
        spelled = dict(word.split("=") for word in kernel.functionals[functional].name.split())
        return spelled, configuration, kernel.kernel.specializations[specialization].name

    @cached_property
    def codes(self) -> Mapping[str, bytes]:
        """The bytes of each image, by digest."""
        groups = [
            pack.decode_group(self.data[group.offset : group.offset + group.stored], group, str(self.path))
            for group in self.pack.groups
        ]
        return {i.digest: groups[i.group][i.offset : i.offset + i.bytes] for i in self.pack.images}

    @cache  # noqa: B019  (lives as long as the tests)
    def facts(self, digest: str) -> tuple[str, int, tuple[tuple[int, int], ...]]:
        """What an image says itself: (kernel, bytes of static shared memory, offset and size of each parameter)."""
        code = self.codes[digest]
        if elf.kind_of(code) == "cubin":
            cubin = elf.nvidia_facts(code)
            return cubin.kernel, cubin.shared, tuple((p.offset, p.size) for p in cubin.parameters)
        hsaco = elf.amd_facts(code)
        own = (p for p in hsaco.arguments if not p.kind.startswith("hidden_"))
        return hsaco.kernel, hsaco.group_segment, tuple((p.offset, p.size) for p in own)

    def expected(
        self, name: str, given: Sequence[Given], workspace: int = ALIGNMENT, forced: Mapping[str, int] | None = None
    ) -> Expected:
        """What a call must do.

        Args:
            name: of the operation, with its family's.
            given: its arguments, in the recipe's order.
            workspace: its address.
            forced: by kernel the number of its configuration, in place of what the look-up gives.

        Raises:
            Refusal: it must fail.
        """
        call = self.tables[name.partition(".")[0]].begin(operation(name), name, given, self.device)
        if call.missing or call.skipped:
            return Expected(tuple(self.tables[name.partition(".")[0]].dispatch(call, {})), 0, ())
        addresses, end = {}, workspace
        for part, size in evaluate.workspaces(call).items():
            addresses[part] = end
            end += -(-size // ALIGNMENT) * ALIGNMENT
        steps: list[Set | Run] = []
        keys, passed = [], []
        for launch, over in self._launches(call, addresses, forced or {}):
            passed.append("\n".join(map(str, over)))
            place = (*name.split("."), launch.kernel.name)
            number = self.plan(place).slot(launch.functional, launch.configuration, launch.specialization)
            slot = self.slots[place].slots[number]
            keys.append(slot.key)
            steps += [Set(*zero) for zero in launch.zeros]
            run = self._run(call, launch, slot.image)
            if 0 not in launch.grid:
                steps.append(run)
        return Expected(tuple(steps), end - workspace, tuple(keys), tuple(passed))

    def _launches(
        self, call: evaluate.Call, addresses: Mapping[str, int], forced: Mapping[str, int]
    ) -> Iterator[tuple[evaluate.Launch, tuple[PassedOver, ...]]]:
        family = call.name.partition(".")[0]
        for chosen in self.tables[family].dispatch(call, addresses):
            step = next(step for step in call.operation.steps if chosen.launch.kernel in step)
            kernel = next((one for one in step if one.name in forced), None)
            if kernel:  # whether or not the call would take this implementation
                row = self.plan((family, "", kernel.name)).configuration_rows[forced[kernel.name]]
                launch = evaluate.launch(call, kernel, forced[kernel.name], row, addresses)
                assert isinstance(launch, evaluate.Launch)
                yield launch, ()
            else:
                yield chosen.launch, chosen.passed

    def _run(self, call: evaluate.Call, launch: evaluate.Launch, digest: str) -> Run:
        info = self.images[digest].info
        symbol, static, parameters = self.facts(digest)
        if self.grid_threads and launch.grid[0] > self.grid_threads // info.threads:
            raise Refusal("RANGE", f"{call.name}: grid dimension 0 of kernel {launch.kernel.name} is {launch.grid[0]}")
        assert info.clusters == 1 and not info.scratch and not info.profile_scratch
        types = {parameter.name: parameter.type for parameter in launch.kernel.parameters}
        arguments: list[bytes | TensorMap] = []
        described = iter(info.descriptors)
        for parameter, value in launch.arguments:
            if isinstance(value, Described):
                arguments += [
                    map_of(value, next(described)),
                    *(encoded("i32", size) for size in value.sizes),
                    *(encoded("i64", stride) for stride in value.strides),
                ]
            else:
                arguments.append(encoded(types[parameter], value))
        hidden = len(parameters) - len(arguments)  # Triton's pointers to scratch that the image has no need of
        assert hidden in (0, 1, 2)
        arguments += [bytes(8)] * hidden
        sizes = [len(argument) if isinstance(argument, bytes) else elf.TENSOR_MAP_BYTES for argument in arguments]
        assert sizes == [size for _, size in parameters]
        assert (symbol, len(parameters)) == (info.symbol, info.parameters)
        return Run(
            digest, symbol, launch.grid, (info.threads, 1, 1), max(0, info.shared - static), 1, launch.kernel.overlaps,
            tuple(arguments),
        )  # fmt: skip


def map_of(tensor: Described, of_image: DescriptorInfo) -> TensorMap:
    """What the driver must be asked to encode: the tensor, with the image's box, element type and swizzle."""
    element = DTYPE_BYTES[DTYPE_NAMES[tensor.dtype]]
    last = sum((size - 1) * stride * element for size, stride in zip(tensor.sizes, tensor.strides))
    return TensorMap(
        tensor.address, of_image.element_type, of_image.swizzle, tensor.sizes,
        tuple(stride * element for stride in tensor.strides[:-1]), of_image.box,
        small=last + 1 >= SMALL_TENSOR,
    )  # fmt: skip


def encoded(kind: str, value: float) -> bytes:
    """A parameter of a type, as a kernel's argument buffer has it."""
    if kind.startswith("*"):
        return struct.pack("<Q", value)
    if kind.startswith("fp"):
        return struct.pack("<f" if kind == "fp32" else "<d", value)
    return (value % 2 ** (8 * BYTES[kind])).to_bytes(BYTES[kind], "little")


def observed(record: Record, first: int, stream: int | None, device: int) -> tuple[Set | Run, ...]:
    """What the driver was made to do from its step `first` on: all of it on this stream and device."""
    steps: list[Set | Run] = []
    for step in record.steps[first:]:
        assert (step.stream, step.device) == (stream, device)
        steps.append(Set(step.address, step.bytes) if isinstance(step, Zero) else run_of(step, record))
    return tuple(steps)


def run_of(launch: Launch, record: Record) -> Run:
    image = record.images[launch.module]
    assert image.symbol == launch.symbol.decode()
    arguments = tuple(read_map(a) if len(a) == elf.TENSOR_MAP_BYTES else a for a in launch.arguments)
    return Run(
        digest_of(image.code), image.symbol, launch.grid, launch.block, launch.shared, launch.cluster, launch.overlaps,
        arguments,
    )  # fmt: skip


@cache
def digest_of(code: bytes) -> str:
    return hashlib.sha256(code).hexdigest()
