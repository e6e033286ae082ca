"""A release's libraries in this process, and calls of their typed entries with PyTorch's tensors.

Parameters are made once; a call only launches. Several releases may be loaded side by side.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench.release import called, headers
from kiln_recipe import dtypes
from kiln_recipe.errors import ArtifactError

if TYPE_CHECKING:
    import torch

CORE, FLASH = "libkiln.so.0", "libkiln_flash.so"
IMAGES = "kiln.images"
VENDORS = {"nvidia": 1, "amd": 2}
_LETTERS = "abcdefghijklmnopqrstuvwxyz"
_VISIT = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p)


class Refused(Exception):
    """A status other than KILN_OK; `str()` is its sentence, in one line."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))
        self.status = status


@dataclass
class Launch:
    """A call that is ready: calling it launches on PyTorch's current stream.

    Attributes:
        variants: what it runs, by the names of kiln_variant's fields.
        call: how it is spelled (called.py); "" where variants were forced, so that nothing was looked up.
    """

    _launch: Callable[[], None]
    variants: list[dict[str, Any]]
    call: str = ""
    _kept: tuple = field(default=(), repr=False)  # tensors must live as long as what points to them

    @property
    def images(self) -> list[str]:
        """A line of key and variant each, spelled as pages of measurements have it."""
        return [_spelled(row) for row in self.variants]

    def __call__(self) -> None:
        self._launch()


@dataclass
class Entered:
    """A call of an entry whose parameters are made.

    Attributes:
        launch: enqueues it on a stream, None for the null stream, with the address of its workspace.
        variants: what it runs, by the names of kiln_variant's fields.
        workspace_bytes: of device memory that it needs besides.
    """

    launch: Callable[[int | None, int | None], None]
    variants: list[dict[str, Any]]
    workspace_bytes: int
    _kept: tuple = field(default=(), repr=False)


class _Value(ctypes.Union):
    _fields_ = (("tensor", ctypes.c_void_p), ("integer", ctypes.c_int64), ("real", ctypes.c_double))


class _Argument(ctypes.Structure):
    """kiln_argument, whose union headers.py does not read; so kiln_call, which points to it, stands here too."""

    _fields_ = (("kind", ctypes.c_int32), ("reserved", ctypes.c_int32), ("value", _Value))


class _Call(ctypes.Structure):
    _fields_ = (
        ("size", ctypes.c_uint64), ("operation", ctypes.c_void_p), ("queue", ctypes.c_void_p),
        ("arguments", ctypes.POINTER(_Argument)), ("argument_count", ctypes.c_int32), ("force_count", ctypes.c_int32),
        ("force_keys", ctypes.POINTER(ctypes.c_char_p)), ("force_target", ctypes.c_char_p),
        ("workspace", ctypes.c_void_p), ("workspace_bytes", ctypes.c_uint64),
    )  # fmt: skip


def _argument(value: object) -> _Argument:
    """A kiln_argument; what it points to must outlive it."""
    if isinstance(value, ctypes.Structure):
        return _Argument(1, 0, _Value(tensor=ctypes.addressof(value)))
    if isinstance(value, float):
        return _Argument(3, 0, _Value(real=value))
    return _Argument(0) if value is None else _Argument(2, 0, _Value(integer=value))


class Libraries:
    """A release's core and attention, with a kiln_t of their own. Leave it (`with`) when all work is done.

    Args:
        folder: with the libraries and, in IMAGES, the packs.
        interface: what the release's headers declare.
        number: how many releases this process has loaded before.
        vendor: of the GPU.
        resolve: the address of a kiln_resolve_fn; None: the vendor's driver.
        trusted: digests of packs to accept besides the library's own.

    Raises:
        ArtifactError: they cannot be loaded.
        Refused: they cannot be opened.
    """

    def __init__(
        self, folder: Path, interface: headers.Interface, number: int = 0, vendor: str = "nvidia",
        resolve: int | None = None, trusted: str | None = None,
    ) -> None:  # fmt: skip
        self._interface, self.vendor = interface, VENDORS[vendor]
        self._copies: Any = contextlib.nullcontext()
        core = CORE
        try:
            if number:  # kept until the end: packs are looked for beside the library when they are needed
                self._copies = tempfile.TemporaryDirectory(prefix="kiln-bench-")
                folder, core = _copied(folder, Path(self._copies.name), number)
            self._core = ctypes.CDLL(str(folder / core))
            self._flash = ctypes.CDLL(str(folder / FLASH))
        except OSError as error:
            raise ArtifactError(f"{folder} has no libraries that can be loaded ({error})") from error
        for name in ("kiln_error", "kiln_version", "kiln_status_name"):
            getattr(self._core, name).restype = ctypes.c_char_p
        self._core.kiln_close.argtypes = [ctypes.c_void_p]
        options = interface["kiln_options"](resolve=resolve, trusted_packs=trusted and trusted.encode())
        self._handle = ctypes.c_void_p()
        self._check(self._core.kiln_open(ctypes.byref(options), ctypes.byref(self._handle)))
        self._register("flash")

    def __enter__(self) -> Libraries:  # noqa: PYI034 - Self is of Python 3.11
        return self

    def __exit__(self, *_: object) -> None:
        self._core.kiln_close(self._handle)
        self._copies.__exit__(None, None, None)

    @property
    def version(self) -> str:
        return self._core.kiln_version().decode()

    def devices(self) -> list[dict[str, Any]]:
        """What the drivers tell of each GPU, by the names of kiln_device's fields.

        Raises:
            Refused: there is none.
        """
        return self._visited(self._core.kiln_devices, "kiln_device")

    def variants(self, operation: str | None, target: str | None) -> list[dict[str, Any]]:
        """The variants of an operation, None for all, in a target's pack, None for all packs, by the names of
        kiln_variant's fields. Needs no device."""
        asks, name, pack = self._core.kiln_variants, operation and operation.encode(), target and target.encode()
        return self._visited(lambda handle, *visit: asks(handle, name, pack, *visit), "kiln_variant")

    def enter(
        self, entry: str, values: Mapping[str, object], force_keys: Sequence[str] = (), device: int = -1
    ) -> Entered:
        """A call of an entry, "attn_fwd", by values and kiln_tensors; those of None are left out.

        Args:
            force_keys: of the variants to run, at most one a kernel.
            device: whose null stream is meant, as the driver counts; -1: that of the stream, or the current one.

        Raises:
            Refused: no image serves it; or the release has no such entry, or no such parameter.
        """
        structure = self._interface[f"kiln_{entry}_params"]
        known = headers.kinds(structure)
        if unknown := [name for name, value in values.items() if value is not None and name not in known]:
            raise Refused(self._status("UNSUPPORTED"), f"this release's {entry} has no {' and '.join(unknown)}")
        launches, asks, explains = (self._entry(entry, what) for what in ("", "_workspace", "_explain"))
        params = structure()
        kept: list[Any] = []
        for name, value in values.items():
            if isinstance(value, ctypes.Structure):
                kept.append(ctypes.pointer(value))
                setattr(params, name, kept[-1])
            elif value is not None:
                setattr(params, name, value)
        if force_keys:
            keys = (ctypes.c_char_p * len(force_keys))(*(key.encode() for key in force_keys))
            params.force_keys, params.force_count = keys, len(force_keys)
            kept.append(keys)
        queue = self._interface["kiln_queue"](vendor=self.vendor, device=device)
        common = (self._handle, ctypes.byref(queue), ctypes.byref(params))
        size = ctypes.c_uint64()
        self._check(asks(*common, ctypes.byref(size)))
        variants = self._visited(lambda handle, *visit: explains(*common, *visit), "kiln_variant")

        def launch(stream: int | None, workspace: int | None) -> None:
            queue.stream, params.workspace, params.workspace_bytes = stream, workspace, size.value
            self._check(launches(*common))

        return Entered(launch, variants, size.value, (kept, params, queue))

    def prepare(self, entry: str, force_keys: Sequence[str] = (), **values: object) -> Launch:
        """A call of an entry, "attn_fwd", with these values and PyTorch's tensors, and the workspace that it wants.

        Args, Raises: as of `enter`.
        """
        import torch

        kept = [value for value in values.values() if isinstance(value, torch.Tensor)]
        views = {
            name: self._view(value) if isinstance(value, torch.Tensor) else value for name, value in values.items()
        }
        entered = self.enter(entry, views, force_keys)
        workspace = None
        if entered.workspace_bytes:
            workspace = torch.empty(entered.workspace_bytes, dtype=torch.uint8, device=kept[0].device)
        address, of_stream = workspace.data_ptr() if workspace is not None else None, _stream_of(kept[0])
        told = {name: _told(value) for name, value in views.items() if value is not None}
        call = "" if force_keys else called.spelled(entry, told)

        def launch() -> None:
            entered.launch(of_stream(), address)

        return Launch(launch, entered.variants, call, (kept, workspace, entered))

    def launch(self, operation: str, arguments: Sequence[object], force_key: str, device: int) -> None:
        """Calls an operation, "flash.dropout_mask", by its arguments in their order: kiln_tensors, integers, reals or
        None; on the null stream, with a forced variant.

        Raises:
            Refused: the call was.
        """
        packed = (_Argument * len(arguments))(*map(_argument, arguments))
        queue = self._interface["kiln_queue"](vendor=self.vendor, device=device)
        found = ctypes.c_void_p()
        self._check(self._core.kiln_find_operation(self._handle, operation.encode(), ctypes.byref(found)))
        keys = (ctypes.c_char_p * 1)(force_key.encode())
        call = _Call(
            ctypes.sizeof(_Call), found, ctypes.addressof(queue), packed, len(arguments), 1, keys, None, None, 0
        )
        self._check(self._core.kiln_launch(ctypes.byref(call)))

    def wait(self, device: int) -> None:
        """Until the work of a device's null stream is done.

        Raises:
            Refused: some of it failed.
        """
        queue = self._interface["kiln_queue"](vendor=self.vendor, device=device)
        self._check(self._core.kiln_synchronize(self._handle, ctypes.byref(queue)))

    def is_of_driver(self, refused: Refused) -> bool:
        """Whether it is the driver that failed: then whatever follows may fail as well."""
        return refused.status == self._status("DRIVER")

    def view(self, address: int, dtype: str, sizes: Sequence[int], strides: Sequence[int]) -> ctypes.Structure:
        """A kiln_tensor of memory at an address.

        Args:
            dtype: Kiln's name. strides: in elements.
        """
        made = self._interface["kiln_tensor"](data=address, dtype=dtypes.DTYPES[dtype], rank=len(sizes))
        made.sizes[: len(sizes)], made.strides[: len(sizes)] = tuple(sizes), tuple(strides)  # type: ignore[attr-defined]
        return made

    def _entry(self, entry: str, what: str) -> Any:
        try:
            return getattr(self._flash, f"kiln_{entry}{what}")
        except AttributeError:
            sentence = f"this release's {FLASH} has no kiln_{entry}{what}"
            raise Refused(self._status("UNSUPPORTED"), sentence) from None

    def _view(self, tensor: torch.Tensor) -> ctypes.Structure:
        name = str(tensor.dtype).removeprefix("torch.")
        known = next((row.name for row in dtypes.TABLE if row.torch == name), None)
        if known is None:
            raise Refused(self._status("ARGUMENT"), f"{tensor.dtype} is not a dtype of Kiln's")
        return self.view(tensor.data_ptr(), known, tuple(tensor.shape), tensor.stride())

    def _register(self, family: str) -> None:
        table = getattr(self._flash, f"kiln_{family}_family")
        table.restype = ctypes.c_void_p
        self._check(self._core.kiln_register_family(self._handle, ctypes.c_void_p(table())))

    def _visited(self, asks: Callable[..., int], structure: str) -> list[dict[str, Any]]:
        """What a function visits, as dicts, whose texts outlive the visit."""
        kind, seen = self._interface[structure], []

        def visit(address: int, _: object) -> int:
            found = kind.from_address(address)
            row = {name: getattr(found, name) for name in headers.kinds(kind)}
            seen.append({name: value.decode() if isinstance(value, bytes) else value for name, value in row.items()})
            return 0

        self._check(asks(self._handle, _VISIT(visit), None))
        return seen

    def _check(self, status: int) -> None:
        if status:
            raise Refused(status, self._core.kiln_error().decode())

    def _status(self, name: str) -> int:
        return self._interface.constants[f"KILN_E_{name}"]


def _stream_of(tensor: torch.Tensor) -> Callable[[], int | None]:
    """What gives PyTorch's current stream at each call; of a tensor in the host's memory the null one."""
    import torch

    if not tensor.is_cuda:
        return lambda: None
    current = torch.cuda.current_stream
    return lambda: current().cuda_stream or None


def _told(value: Any) -> Any:
    """A parameter as called.py spells it."""
    if not isinstance(value, ctypes.Structure):
        return value
    given: Any = value
    dtype = next(row.name for row in dtypes.TABLE if dtypes.DTYPES[row.name] == given.dtype)
    return called.Tensor(given.data or 0, dtype, (*given.sizes[: given.rank],), (*given.strides[: given.rank],))


def _spelled(row: dict[str, Any]) -> str:
    """ "0123456789ab sm_90 flash.attn_fwd/attn_fwd[dtype=bf16 ...][BLOCK_M=128 ...][aligned]": the key shortened as in
    the ledger of images."""
    names = "".join(f"[{row[name]}]" for name in ("functional", "configuration", "specialization"))
    return f"{row['key'][:12]} {row['target']} {row['operation']}/{row['kernel']}{names}"


def _copied(folder: Path, to: Path, number: int) -> tuple[Path, str]:
    """Copies of the libraries which this process can have beside another release's; and what the core is called.

    A family's library finds its core by the core's name, and would be given that of the other release; so the core, and
    what asks for it, get another name of the same length.
    """
    renamed = CORE[:-1] + _LETTERS[number - 1]
    for name, copy in ((CORE, renamed), (FLASH, FLASH)):
        code = (folder / name).read_bytes()
        (to / copy).write_bytes(code.replace(f"{CORE}\0".encode(), f"{renamed}\0".encode()))
    (to / IMAGES).symlink_to((folder / IMAGES).resolve())
    return to, renamed
