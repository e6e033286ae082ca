"""A release's libraries in this process, and calls of their typed entries with PyTorch's tensors.

Parameters are made once; a call only launches. Several releases may be loaded side by side.
"""

from __future__ import annotations

import contextlib
import ctypes
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln_bench.release import headers
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
    """

    _launch: Callable[[], None]
    variants: list[dict[str, Any]]
    _kept: tuple = field(default=(), repr=False)  # tensors must live as long as what points to them

    @property
    def images(self) -> list[str]:
        """A line of key and variant each, spelled as pages of measurements have it."""
        return [_spelled(row) for row in self.variants]

    def __call__(self) -> None:
        self._launch()


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

    def variants(self, operation: str, target: str) -> list[dict[str, Any]]:
        """The variants of an operation in a target's pack, by the names of kiln_variant's fields."""
        asks = self._core.kiln_variants
        return self._visited(
            lambda handle, *visit: asks(handle, operation.encode(), target.encode(), *visit), "kiln_variant"
        )

    def prepare(self, entry: str, force_keys: Sequence[str] = (), **values: object) -> Launch:
        """A call of an entry, "attn_fwd", with these values and tensors, and with the workspace that it wants.

        Args:
            force_keys: of the variants to run, at most one a kernel.

        Raises:
            Refused: no image serves it; or the release has no such entry, or no such parameter.
        """
        import torch

        structure = self._interface[f"kiln_{entry}_params"]
        known = headers.kinds(structure)
        if unknown := [name for name, value in values.items() if value is not None and name not in known]:
            raise Refused(self._status("UNSUPPORTED"), f"this release's {entry} has no {' and '.join(unknown)}")
        launches, asks, explains = (self._entry(entry, what) for what in ("", "_workspace", "_explain"))
        params = structure()
        kept: list[Any] = []
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                kept += [value, pointer := ctypes.pointer(self._view(value))]
                setattr(params, name, pointer)
            elif value is not None:
                setattr(params, name, value)
        if force_keys:
            keys = (ctypes.c_char_p * len(force_keys))(*(key.encode() for key in force_keys))
            params.force_keys, params.force_count = keys, len(force_keys)
            kept.append(keys)
        queue = self._interface["kiln_queue"](vendor=self.vendor, device=-1)
        common = (self._handle, ctypes.byref(queue), ctypes.byref(params))
        size = ctypes.c_uint64()
        self._check(asks(*common, ctypes.byref(size)))
        if size.value:
            workspace = torch.empty(size.value, dtype=torch.uint8, device=kept[0].device)
            params.workspace, params.workspace_bytes = workspace.data_ptr(), size.value
            kept.append(workspace)
        variants = self._visited(lambda handle, *visit: explains(*common, *visit), "kiln_variant")
        check, of_stream = self._check, _stream_of(kept[0])

        def launch() -> None:
            queue.stream = of_stream()
            check(launches(*common))

        return Launch(launch, variants, (kept, params, queue))

    def _entry(self, entry: str, what: str) -> Any:
        try:
            return getattr(self._flash, f"kiln_{entry}{what}")
        except AttributeError:
            sentence = f"this release's {FLASH} has no kiln_{entry}{what}"
            raise Refused(self._status("UNSUPPORTED"), sentence) from None

    def _view(self, tensor: torch.Tensor) -> ctypes.Structure:
        name = str(tensor.dtype).removeprefix("torch.")
        code = next((row.number for row in dtypes.TABLE if row.torch == name), None)
        if code is None:
            raise Refused(self._status("ARGUMENT"), f"{tensor.dtype} is not a dtype of Kiln's")
        view = self._interface["kiln_tensor"](data=tensor.data_ptr(), dtype=code, rank=tensor.dim())
        view.sizes[: tensor.dim()], view.strides[: tensor.dim()] = tuple(tensor.shape), tensor.stride()  # type: ignore[attr-defined]
        return view

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
