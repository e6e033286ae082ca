"""The table of targets (targets.yaml), and the spellings that lead to them. Standard library only: build.sh refuses an
unknown target before any package is installed, and `kiln list` runs where none is."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import pkgutil
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from kiln_recipe import plain_yaml
from kiln_recipe.errors import UsageError

TABLE = "targets.yaml"  # beside this module
# What cuDriverGetVersion() says of the first driver that takes PTX of a version: 8.0 came with CUDA 12.0.
PTX_DRIVERS = {
    80: 12000, 81: 12010, 82: 12020, 83: 12030, 84: 12040, 85: 12050, 86: 12070, 87: 12080, 88: 12090, 90: 13000,
}  # fmt: skip
_LAST_OF_CUDA_12 = 88
_ALIKE = 0.6  # words no more alike than that share letters by chance
_MOST_NAMED = 12  # of unknown targets in one sentence
# Architectures of GPUs that Kiln has no target for: what is asked for is no slip of the pen, and no target is near.
_OTHERS = frozenset(
    ("gfx803", "gfx900", "gfx902", "gfx904", "gfx906", "gfx909", "gfx90c", "gfx940", "gfx941", "gfx1010", "gfx1011",
     "gfx1012", "gfx1013", "gfx1030", "gfx1031", "gfx1032", "gfx1033", "gfx1034", "gfx1035", "gfx1036", "gfx1103",
     "gfx1150", "gfx1152", "gfx1153", "gfx1250", "gfx1251", "sm50", "sm52", "sm53", "sm60", "sm61", "sm62", "sm70",
     "sm72", "sm75", "sm88", "sm101", "sm110")
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Residency:
    """What one multiprocessor holds at once (CDNA: a compute unit; RDNA: a work-group processor). Sizes are in bytes.

    Attributes:
        simds: parts of it that have registers of their own; a warp stays on one.
        lane_registers: registers of one lane of a SIMD, for all its warps together.
        register_granule: a thread gets a multiple of so many registers.
        warps: on a SIMD, at most.
        blocks: at most.
        shared_memory: for all blocks together.
        shared_granule: a block gets a multiple of so many bytes.
        shared_reserved: what the system takes of each block's besides.
        single_warp_blocks: blocks of one warp at most, which need no barrier; 0: as many as of others.
    """

    simds: int
    lane_registers: int
    register_granule: int
    warps: int
    blocks: int
    shared_memory: int
    shared_granule: int
    shared_reserved: int = 0
    single_warp_blocks: int = 0


@dataclasses.dataclass(frozen=True)
class Assembly:
    """Who makes cubins of PTX, and what loads them: see the attributes of Target."""

    assembler: str
    abi: int
    lowest_driver: str
    driver: int


# Of PTX that ptxas 12.9 does not take. What the newer assembler writes, no driver before those of CUDA 13 loads.
_NEWER = Assembly("ptxas-blackwell", 8, "580", PTX_DRIVERS[90])


@dataclasses.dataclass(frozen=True)
class Target:
    """One GPU architecture to compile for. Sizes are in bytes.

    Attributes:
        name: "gfx942", "sm_90".
        vendor: "nvidia" or "amd".
        groups: names for several targets at once, from wide to narrow: "amd", "cdna", "cdna3".
        names: trade names of GPUs that have this architecture.
        backend: Triton's name of the backend: "cuda" or "hip".
        image_kind: "cubin" or "hsaco", which is Triton's name of its last stage too.
        instructions: how a pack cuts up its code, by a name in split.INSTRUCTIONS.
        warp_size: threads of a warp (wavefront).
        shared_memory: that one block can have (NVIDIA: after opting in; AMD: LDS).
        threads_per_block: the most that a block can have.
        registers_per_thread: 32-bit registers (AMD: VGPRs, accumulation registers included).
        registers_per_multiprocessor: a block must fit into one multiprocessor.
        abi: of images: a cubin's ELF ABI, the version of an AMD code object.
        lowest_driver: that loads the images: "525" (NVIDIA), "ROCm 6.0" (AMD).
        driver: NVIDIA: what cuDriverGetVersion() says of that driver; 0 where any will do.
        compile_seconds: that an image of an attention kernel usually takes, for estimates where none was recorded.
        assembler: NVIDIA: which of Triton's, "ptxas" or "ptxas-blackwell".
        ptx_version: NVIDIA: of the PTX, 80 for 8.0; 0 where there is none.
        architecture_specific: Triton compiles for "sm_90a" and the like, which nothing else can run.
        tensor_descriptors: kernels can copy tiles by a tensor descriptor (CUtensorMap).
        runs_on: targets whose GPUs execute the images natively; itself if not said.
        residency: what a multiprocessor holds at once. The model of AMD images and a ledger need it.
    """

    name: str
    vendor: str
    groups: tuple[str, ...]
    names: tuple[str, ...]
    backend: str
    image_kind: str
    instructions: str
    warp_size: int
    shared_memory: int
    threads_per_block: int
    registers_per_thread: int
    registers_per_multiprocessor: int
    abi: int
    lowest_driver: str
    compile_seconds: float = 1.0
    assembler: str = ""
    ptx_version: int = 0
    driver: int = 0
    architecture_specific: bool = False
    tensor_descriptors: bool = False
    runs_on: tuple[str, ...] = ()
    residency: Residency | None = None

    @property
    def triton_arch(self) -> int | str:
        """What Triton's GPUTarget takes: 90, "gfx942"."""
        return int(self.name.removeprefix("sm_")) if self.vendor == "nvidia" else self.name

    @property
    def pinned(self) -> tuple[int | str, ...]:
        """What the table pins for the compiler; its other columns change no byte of an image."""
        return (self.backend, self.triton_arch, self.warp_size, self.assembler, self.ptx_version)

    def assembly(self, ptx: int = 0) -> Assembly:
        """How an image is made that is assembled from PTX of this version, 90 for 9.0; 0: of the target's."""
        if ptx > _LAST_OF_CUDA_12:
            return _NEWER
        return Assembly(self.assembler, self.abi, self.lowest_driver, self.driver)

    @property
    def pack_file(self) -> str:
        """The name of this target's pack: "nvidia-sm_90.pack"."""
        return f"{self.vendor}-{self.name}.pack"

    def is_called(self, name: str) -> bool:
        """Whether `name`, of a recipe, means this target: its name, a group's, or "default"."""
        return name == "default" or name == self.name or name in self.groups

    def specificity(self, name: str) -> int:
        """How narrowly `name` means this target: higher is narrower, -1 is not at all."""
        if name == self.name:
            return len(self.groups) + 1
        if name in self.groups:
            return self.groups.index(name) + 1
        return 0 if name == "default" else -1


def ptx_number(version: str) -> int:
    """86 of "8.6", as PTX versions are compared; 0 of "", which is said of what has none."""
    return int(version.replace(".", "") or 0)


@functools.cache
def load() -> tuple[Target, ...]:
    """All targets, in the table's order."""
    found = []
    for row in rows():
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in row.items()}
        values.setdefault("runs_on", (row["name"],))
        if "residency" in row:
            values["residency"] = Residency(**row["residency"])
        found.append(Target(**values))
    return tuple(found)


def rows() -> list[dict[str, Any]]:
    """The table as plain data."""
    text = cast(bytes, pkgutil.get_data("kiln_recipe", TABLE))  # zip files and wheels give or raise
    return plain_yaml.read(text.decode())["targets"]


def by_name(name: str) -> Target:
    """The target of that very name.

    Raises:
        UsageError: there is none.
    """
    for target in load():
        if target.name == name:
            return target
    raise UsageError(_refusal({name: name}))


def group_names() -> frozenset[str]:
    """Every name that a recipe may use for targets, "default" included."""
    table = load()
    return frozenset(["default", *(t.name for t in table), *(group for t in table for group in t.groups)])


def parse(text: str) -> tuple[Target, ...]:
    """The targets that a list means, each once, in the table's order.

    Entries are separated by ';', ',' or spaces: names of targets (`gfx942`, `sm_90`), trade names (`MI300X`,
    `RTX 4090`: the longest that fits is taken), CUDA's spellings (`90`, `9.0`, `90-real`, `90a`), groups (`cdna3`) and
    `all`. Case, spaces, '-' and '_' within a name do not matter.

    Raises:
        UsageError: entries are unknown, all of which it names, or empty, or ask for a virtual architecture.
    """
    chosen: set[str] = set()
    unknown: dict[str, str] = {}  # with what stands behind it in its entry
    for entry in re.split(r"[;,]", text):
        if not entry.strip():
            where = f" in {text!r}" if text.strip() else ""
            raise UsageError(f"empty target{where}; give one or more of {_list()}, or all")
        words = entry.split()
        while words:
            for count in range(len(words), 0, -1):
                found = _spellings().get(_plain(" ".join(words[:count])))
                if found:
                    chosen.update(found)
                    del words[:count]
                    break
            else:
                unknown[words[0]] = " ".join(words)
                if not _looks_like(words[0]):  # the rest may be a part of the same unknown name
                    break
                del words[0]
    if unknown:
        raise UsageError(_refusal(unknown))
    return tuple(target for target in load() if target.name in chosen)


def name_in_recipes(spelling: str) -> str | None:
    """What recipes, which take one spelling alone, call what a spelling means to `parse`: "sm_90" for "H100"."""
    names = {_plain(name): name for name in group_names()} | {"all": "default"}
    meant = _spellings().get(_plain(spelling), ())
    return names.get(_plain(spelling)) or (meant[0] if meant else None)


@functools.cache
def _spellings() -> dict[str, tuple[str, ...]]:
    """Every accepted spelling, as `_plain` makes it, with the names of the targets that it means."""
    spellings: dict[str, tuple[str, ...]] = {"all": tuple(target.name for target in load())}
    for target in load():
        for group in target.groups:
            spellings[_plain(group)] = (*spellings.get(_plain(group), ()), target.name)
    for target in load():
        for spelling in _names(target):
            spellings[_plain(spelling)] = (target.name,)
    return spellings


def _names(target: Target) -> Iterator[str]:
    yield target.name
    yield from target.names
    if target.vendor == "nvidia":
        number = target.name.removeprefix("sm_")
        dotted = f"{number[:-1]}.{number[-1]}"
        for base in (number, dotted, *([f"{number}a", f"{dotted}a"] if target.architecture_specific else [])):
            yield from (base, f"{base}-real", f"sm_{base}", f"sm_{base}-real")


def _plain(spelling: str) -> str:
    return re.sub(r"[\s_-]", "", spelling).casefold()


def _refusal(unknown: Mapping[str, str]) -> str:
    """What is wrong with each word, the keys of `unknown` (values: the rest of their entries), and what there is."""
    others = list(dict.fromkeys(word.partition(":")[0] for word in unknown if _other(word) in _OTHERS))
    clauses = [f"Kiln has no target for {', '.join(others[:_MOST_NAMED])}"] if others else []
    rest = [word for word in unknown if _other(word) not in _OTHERS]
    clauses += [_unknown(word, unknown[word]) for word in rest[:_MOST_NAMED]]
    if more := max(len(others) - _MOST_NAMED, 0) + max(len(rest) - _MOST_NAMED, 0):
        clauses.append(f"{more} more are unknown")
    vendors = {_looks_like(word) for word in unknown}
    vendor = vendors.pop() if len(vendors) == 1 else ""
    owners = {"amd": "AMD's targets", "nvidia": "NVIDIA's targets"}.get(vendor, "the targets")
    comma = "," if _NEAREST in clauses[-1] else ";"
    return f"{'; '.join(clauses)}{comma} {owners} are {_list(vendor)}; `kiln targets` lists their GPUs"


_NEAREST = "the nearest is"


def _looks_like(word: str) -> str:
    """The vendor of an architecture that is spelled as it spells them, or ""."""
    if re.match(r"gfx[0-9]", word, re.IGNORECASE):
        return "amd"
    return "nvidia" if re.match(r"(sm_?|compute_?)?[0-9]", word, re.IGNORECASE) else ""


def _other(word: str) -> str:
    """An architecture in the spelling of _OTHERS."""
    name = re.sub(r"-(real|virtual)$", "", word.partition(":")[0].casefold())
    number = re.fullmatch(r"(?:sm|compute)?_?(\d+)\.?(\d)[af]?", name)
    return f"sm{number[1]}{number[2]}" if number else name


def _unknown(word: str, rest: str) -> str:
    plain, colon, _ = word.partition(":")
    if colon and _plain(plain) in _spellings():
        real = _spellings()[_plain(plain)][0]
        return f"target {word!r} names features; say {real}, for Kiln compiles for an architecture without them"
    virtual = re.fullmatch(r"(?:compute_?(\S+?)|(\S+?))(?:-virtual)?", word, re.IGNORECASE)
    number = _plain(virtual[1] or virtual[2]) if virtual else ""
    if virtual and (word.casefold().endswith("-virtual") or virtual[1]) and number in _spellings():
        real = _spellings()[number][0]
        if by_name(real).vendor == "amd":
            return f"target {word!r} asks for PTX, which AMD's GPUs have not; say {real}"
        return f"target {word!r} asks for PTX alone; say {real}, whose pack holds PTX too if KILN_PTX=1"
    if word.endswith((".yaml", ".yml")):
        return f"{word!r} is a file, and no target; a recipe is given by --recipe {word}"
    shown = {_plain(name): name for target in load() for name in (target.name, *target.names)}
    shown |= {key: key for key in _spellings() if key not in shown}
    nearest = max(shown, key=lambda key: max(_likeness(word, key), _likeness(rest, key)))
    like = max(_likeness(word, nearest), _likeness(rest, nearest))[0]
    is_group = any(shown[nearest] in target.groups for target in load())
    close = f"the group {shown[nearest]}" if is_group else shown[nearest]
    guess = f"; {_NEAREST} {close}" if like > _ALIKE and not word.startswith("-") else ""
    return f"unknown target {word!r}{guess}"


def _likeness(word: str, key: str) -> tuple[float, int]:
    plain = _plain(word)
    same_start = next((i for i, (a, b) in enumerate(zip(plain, key)) if a != b), min(len(plain), len(key)))
    return difflib.SequenceMatcher(None, plain, key, autojunk=False).ratio(), same_start


def _list(vendor: str = "") -> str:
    return ", ".join(target.name for target in load() if vendor in ("", target.vendor))
