"""A process of its own for a library that keeps one runtime for its process, and for drivers that go by their names.

    python aotriton_worker.py <lib> <driver> <version>

The parent asks through `Worker`; the child answers a line of JSON with a line of JSON."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "runtime"))

import ffi
import recorded
from aotriton_interface import Interface, library_of

_PARAMS = {"attn_fwd": ffi.AttnFwd, "attn_bwd": ffi.AttnBwd, "dropout_mask": ffi.DropoutMask}


class Worker:
    """The parent's side.

    Attributes:
        vendor: KILN_VENDOR_* of the driver that the child finds.
    """

    def __init__(
        self, release: Path, vendor: int, driver: str | None = None, version: str = "0.11", **environment: str
    ) -> None:
        """`driver`: the folder below driver/; None: the vendor's. `version`: of the interface."""
        self.vendor, self.version = vendor, version
        folder = release / "driver" / (driver or {ffi.AMD: "amd", ffi.NVIDIA: "nvidia"}[vendor])
        self._folder = Path(tempfile.mkdtemp())
        self._file, self._told = self._folder / "record.jsonl", self._folder / "stderr"
        self._at, self._images = 0, {}
        variables = {"LD_LIBRARY_PATH": str(folder), "FAKE_DRIVER_RECORD": str(self._file), **environment}
        with self._told.open("w") as told:
            self._process = subprocess.Popen(
                [sys.executable, __file__, str(release / "lib"), str(folder), version], text=True,
                env={**os.environ, **variables}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=told,
            )  # fmt: skip

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()
        shutil.rmtree(self._folder, ignore_errors=True)  # a test may have closed it

    def ask(self, do: str, *arguments: object, **fields: object) -> object:
        """What the child's method `do` returns."""
        self._process.stdin.write(json.dumps([do, arguments, fields]) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, f"the worker died\n{self._told.read_text()}"
        value = json.loads(answer)
        assert "failure" not in value, value
        return value["value"]

    def call(self, entry: str, stream: int | None = None, **fields: object) -> tuple[int, str]:
        """The hipError_t of a call, and the sentence that it left."""
        return tuple(self.ask("call", entry, stream, **fields))

    def told(self) -> list[str]:
        """The lines that the process wrote on stderr."""
        return self._told.read_text().splitlines()

    def fake(self, name: str, *arguments: object) -> int:
        """A function of the fake driver."""
        return self.ask("fake", name, *arguments)

    def stream(self, device: int = 0, number: int = 0) -> int:
        return self.fake("fake_stream", self.vendor, device, number)

    def events(self) -> recorded.Record:
        """What was recorded since the last time."""
        part = recorded.Record(images=self._images)
        if self._file.exists():
            with self._file.open("rb") as file:
                file.seek(self._at)
                part.add(file.readlines())
                self._at = file.tell()
        return part


class _Child:
    def __init__(self, lib: Path, driver: Path, version: str) -> None:
        self.lib, self.driver = lib, next(iter(driver.glob("lib*")), None)
        self.interface = Interface(library_of(lib, version), version)
        self.library = ffi.Library(lib)
        self.kiln = None

    def call(self, entry: str, stream: int | None, **fields: object) -> tuple[int, str]:
        status = self.interface.call(entry, stream, **fields)
        return status, self.interface.error() if status else "nothing"

    def value(self, entry: str, stream: int | None) -> tuple[int, str]:
        return self.interface.ask(entry, stream), self.interface.error()

    def fake(self, name: str, *arguments: object) -> int | None:
        function = getattr(ctypes.CDLL(str(self.driver)), name)
        function.restype = ctypes.c_int64
        return function(*(a.encode() if isinstance(a, str) else ctypes.c_int64(a) for a in arguments))

    def direct(self, entry: str, vendor: int, stream: int | None, **fields: object) -> tuple[int, str]:
        """libkiln's own entry, on a runtime of its own; tensors as [data, dtype, sizes, strides]."""
        if not self.kiln:
            self.kiln = ffi.Kiln(self.library, None)
        queue = ffi.Queue(ctypes.sizeof(ffi.Queue), vendor, -1, stream)
        made = {k: ctypes.pointer(ffi.tensor(*v)) if isinstance(v, list) else v for k, v in fields.items()}
        params = _PARAMS[entry](size=ctypes.sizeof(_PARAMS[entry]), **made)
        flash = ctypes.CDLL(str(self.lib / "libkiln_flash.so"))
        status = getattr(flash, f"kiln_{entry}")(self.kiln.handle, ctypes.byref(queue), ctypes.byref(params))
        return status, self.library.error()


def main() -> None:
    lib, driver, version = sys.argv[1:]
    child = _Child(Path(lib), Path(driver), version)
    for line in sys.stdin:
        do, arguments, fields = json.loads(line)
        try:
            answer = {"value": getattr(child, do)(*arguments, **fields)}
        except Exception as failure:  # noqa: BLE001 - the parent asserts that there is none
            answer = {"failure": repr(failure)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
