"""A kernel with several implementations on hardware: examples/matmul against float64, which one a call takes, and what
the driver is told of its tensors."""

from __future__ import annotations

import ctypes as c
import os
import random
import threading
from pathlib import Path

import cudadriver
import ffi
import pytest

DTYPES = {"fp16": ("float16", ffi.FP16, 6), "bf16": ("bfloat16", ffi.BF16, 9)}  # and CUtensorMapDataType
GUARD = 64
HOPPER, GENERAL = "matmul.hopper", "matmul.general"
SHAPES = [(1, 8, 64), (130, 264, 72), (128, 256, 64), (1000, 1016, 520), (127, 136, 4096), (2048, 4096, 1024)]
_RESOLVE = c.CFUNCTYPE(c.c_void_p, c.c_int32, c.c_char_p, c.c_void_p)
_ENCODE = c.CFUNCTYPE(
    c.c_int, c.c_void_p, c.c_int, c.c_uint32, c.c_void_p, c.POINTER(c.c_uint64), c.POINTER(c.c_uint64),
    c.POINTER(c.c_uint32), c.POINTER(c.c_uint32), c.c_int, c.c_int, c.c_int, c.c_int,
)  # fmt: skip
_LAUNCH = c.CFUNCTYPE(c.c_int, c.c_void_p, *[c.c_uint] * 7, c.c_void_p, c.POINTER(c.c_void_p), c.c_void_p)


class Product:
    """The operation of an unpacked release on the current device."""

    def __init__(self, prefix: Path, **options: object) -> None:
        self.kiln = ffi.Kiln(ffi.Library(prefix / "lib"), None, **options)
        self.kiln.register(c.CDLL(str(prefix / "lib/libkiln_matmul.so")), "matmul")

    def call(self, a, b, out, code: int, keys: tuple[str, ...] = ()) -> ffi.Call:
        import torch

        arguments = [ffi.tensor(t.data_ptr(), code, tuple(t.shape), tuple(t.stride())) for t in (a, b, out)]
        stream = torch.cuda.current_stream().cuda_stream or None
        return self.kiln.call(arguments, operation="matmul.matmul", stream=stream, keys=keys)

    def run(self, a, b, out, code: int, keys: tuple[str, ...] = ()) -> dict[str, str]:
        """Launches it; which implementation ran, and why not an earlier one, by explain."""
        call = self.call(a, b, out, code, keys)
        (variant,) = self.kiln.explain(call)
        self.kiln.launch(call)
        return {name: (variant[name] or b"").decode() for name in ("kernel", "passed_over")}


@pytest.fixture(scope="module")
def prefix(request) -> Path:
    folder = Path(request.config.getoption("--kiln-prefix", None) or os.environ["KILN_PREFIX"])
    if not (folder / "lib/libkiln_matmul.so").is_file():
        pytest.skip(f"{folder} has no family matmul: it was built without KILN_RECIPES=examples/matmul/recipe.yaml")
    import torch

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip(f"{torch.cuda.get_device_name()} is not a Hopper GPU")
    return folder


@pytest.fixture(scope="module")
def product(prefix):
    made = Product(prefix)
    yield made
    made.kiln.close()


def matrix(rows: int, columns: int, dtype, layout: str):
    """Rows that a descriptor takes ("dense", or "padded": longer than their columns), or that it does not."""
    import torch

    if layout == "dense":
        return torch.randn(rows, columns, device="cuda").to(dtype)
    if layout == "padded":
        return torch.randn(rows, columns + 24, device="cuda").to(dtype)[:, 8 : columns + 8]
    if layout == "odd":  # neither the rows nor the first element at a multiple of 16 bytes
        return torch.randn(rows, columns + 3, device="cuda").to(dtype)[:, 1 : columns + 1]
    assert layout == "transposed"
    return torch.randn(columns, rows, device="cuda").to(dtype).t()


def check(product, a, b, dtype: str, expected: str, keys: tuple[str, ...] = ()) -> dict[str, str]:
    """One call against float64; nothing beside the result is written."""
    import torch

    kind, code, _ = DTYPES[dtype]
    rows, columns = a.shape[0], b.shape[0]
    pitch = (columns + 7) // 8 * 8 + 8
    memory = torch.full((rows * pitch + GUARD,), -7.0, device="cuda", dtype=getattr(torch, kind))
    out = memory[: rows * pitch].view(rows, pitch)
    ran = product.run(a, b, out[:, :columns], code, keys)
    assert ran["kernel"] == expected, ran["passed_over"]
    want = a.double() @ b.double().t()
    # Sums are rounded in fp32, the result to its dtype.
    unit = 2.0 ** (-11 if dtype == "fp16" else -8)
    bound = want.abs() * unit + (a.double().abs() @ b.double().abs().t()) * 2.0**-22 + 1e-6
    assert ((out[:, :columns].double() - want).abs() <= bound).all()
    assert (out[:, columns:] == -7.0).all() and (memory[rows * pitch :] == -7.0).all(), "wrote outside of c"
    return ran


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_descriptors_against_float64(product, dtype, shape):
    import torch

    torch.manual_seed(sum(shape))
    rows, columns, depth = shape
    kind = getattr(torch, DTYPES[dtype][0])
    for layout in ("dense", "padded"):
        a, b = (matrix(n, depth, kind, layout) for n in (rows, columns))
        ran = check(product, a, b, dtype, HOPPER)
        assert not ran["passed_over"]


@pytest.mark.parametrize(
    ("layouts", "depth", "why"),
    [
        (("odd", "dense"), 128, "a"),
        (("dense", "odd"), 128, "b"),
        (("dense", "transposed"), 128, "b"),
        (("dense", "dense"), 40, "depth"),
        (("padded", "padded"), 100, "the last size of a is 100"),
    ],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_calls_that_descriptors_cannot_describe(product, dtype, layouts, depth, why):
    import torch

    torch.manual_seed(depth)
    kind = getattr(torch, DTYPES[dtype][0])
    a, b = (matrix(n, depth, kind, layout) for n, layout in zip((200, 136), layouts))
    ran = check(product, a, b, dtype, GENERAL)
    assert ran["passed_over"].startswith("hopper: ") and why in ran["passed_over"].splitlines()[0]


@pytest.mark.parametrize("columns", [129, 132, 1, 7])
def test_rows_that_end_within_16_bytes_are_left_to_others(product, columns):
    """The copy engine would write the rest of the 16 bytes too."""
    import torch

    a, b = (matrix(n, 64, torch.float16, "dense") for n in (64, columns))
    ran = check(product, a, b, "fp16", GENERAL)
    assert f"the last size of c is {columns} elements" in ran["passed_over"]


def test_random_products(product):
    import torch

    draw, taken = random.Random(15), set()
    for number in range(150):
        torch.manual_seed(number)
        dtype = draw.choice(sorted(DTYPES))
        rows, columns, depth = (draw.randint(1, 500) for _ in range(3))
        if draw.random() < 0.6:
            columns, depth = columns // 8 * 8 + 8, depth // 8 * 8 + 64
        layouts = [draw.choice(["dense", "padded", "odd", "transposed"]) for _ in range(2)]
        kind = getattr(torch, DTYPES[dtype][0])
        a, b = (matrix(n, depth, kind, layout) for n, layout in zip((rows, columns), layouts))
        # By the rules of the driver's interface: 16 bytes, contiguous columns.
        fits = depth >= 64 and depth % 8 == 0 and columns % 8 == 0
        fits = fits and all(t.data_ptr() % 16 == 0 and t.stride(1) == 1 and t.stride(0) % 8 == 0 for t in (a, b))
        taken.add(check(product, a, b, dtype, HOPPER if fits else GENERAL)["kernel"])
    assert taken == {HOPPER, GENERAL}


def test_addresses_change_between_equal_calls(product):
    """The descriptors that a thread keeps are of an address and a layout, not of a call."""
    import torch

    for number in range(40):
        torch.manual_seed(number)
        a, b = (matrix(n, 128, torch.bfloat16, "dense") for n in (256, 256))
        check(product, a, b, "bf16", HOPPER)
        check(product, a[:100], b, "bf16", HOPPER)
        del a, b


class Watched:
    """The driver's own functions, of which encodes and launches are written down."""

    def __init__(self) -> None:
        self.encoded: list[dict] = []
        self.launched: list[list[bytes]] = []
        driver = cudadriver.driver()
        self._encode, self._launch = _ENCODE(self._on_encode), _LAUNCH(self._on_launch)
        names = ("cuTensorMapEncodeTiled", "cuLaunchKernel")
        encode, launch = (c.cast(getattr(driver, name), c.c_void_p).value for name in names)
        self._real_encode, self._real_launch = _ENCODE(encode), _LAUNCH(launch)
        self._resolve = _RESOLVE(self._on_resolve)
        self.resolve = c.cast(self._resolve, c.c_void_p).value

    def _on_resolve(self, vendor: int, symbol: bytes, _user) -> int | None:
        if vendor != ffi.NVIDIA:
            return None
        watched = {b"cuTensorMapEncodeTiled": self._encode, b"cuLaunchKernel": self._launch}.get(symbol)
        if watched:
            return c.cast(watched, c.c_void_p).value
        try:
            return c.cast(getattr(cudadriver.driver(), symbol.decode()), c.c_void_p).value
        except AttributeError:
            return None

    def _on_encode(self, place, kind, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill):
        status = self._real_encode(
            place, kind, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill
        )
        self.encoded.append(
            {"element": kind, "address": address, "sizes": sizes[:rank], "strides": strides[: rank - 1],
             "box": box[:rank], "steps": steps[:rank], "interleave": interleave, "swizzle": swizzle, "fill": fill,
             "bytes": c.string_at(place, 128)}
        )  # fmt: skip
        return status

    def _on_launch(self, function, *rest):
        parameters = rest[8]
        sizes, offset, size = [], c.c_size_t(), c.c_size_t()
        info = cudadriver.driver().cuKernelGetParamInfo
        while info(c.c_void_p(function), c.c_size_t(len(sizes)), c.byref(offset), c.byref(size)) == 0:
            sizes.append(size.value)
        self.launched.append([c.string_at(parameters[i], size) for i, size in enumerate(sizes)])
        return self._real_launch(function, *rest)


def driver_map(tensor, element: int, box: tuple[int, int]) -> bytes:
    """What the driver makes of a matrix, asked by this test alone."""
    memory = c.create_string_buffer(192)
    place = c.addressof(memory) + 63 & ~63
    cudadriver.call(
        "cuTensorMapEncodeTiled", c.c_void_p(place), element, 2, c.c_void_p(tensor.data_ptr()),
        (c.c_uint64 * 2)(tensor.shape[1], tensor.shape[0]), (c.c_uint64 * 1)(tensor.stride(0) * 2),
        (c.c_uint32 * 2)(box[1], box[0]), (c.c_uint32 * 2)(1, 1), 0, 3, 2, 0,
    )  # fmt: skip
    return c.string_at(place, 128)


def without_small_bit(value: bytes) -> bytes:
    """Bit 21 of the second word, which is to be cleared for small tensors on drivers up to 13.1."""
    words = [int.from_bytes(value[i : i + 8], "little") for i in range(0, 128, 8)]
    words[1] &= ~(1 << 21)
    return b"".join(word.to_bytes(8, "little") for word in words)


def driver_version() -> int:
    version = c.c_int()
    cudadriver.call("cuDriverGetVersion", c.byref(version))
    return version.value


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [64, 4096])
def test_the_image_gets_the_drivers_own_bytes(prefix, dtype, rows):
    """Maps, sizes and strides as they arrive at the driver's launch; a repeated call encodes nothing."""
    import torch

    watched = Watched()
    made = Product(prefix, resolve=watched.resolve)
    kind, code, element = DTYPES[dtype]
    a, b = (matrix(n, 256, getattr(torch, kind), "padded") for n in (rows, 512))
    out = torch.empty(rows, 512, device="cuda", dtype=getattr(torch, kind))

    def calls() -> None:
        """In a thread of its own, which remembers no descriptor of an earlier test."""
        torch.zeros(1, device="cuda")  # makes the device's context current here
        for _ in range(3):
            ran.append(made.run(a, b, out, code)["kernel"])

    ran: list[str] = []
    thread = threading.Thread(target=calls)
    thread.start()
    thread.join()
    assert ran == [HOPPER] * 3
    torch.cuda.synchronize()
    made.kiln.close()
    assert [e["address"] for e in watched.encoded] == [t.data_ptr() for t in (a, b, out)]
    assert len(watched.launched) == 3 and watched.launched[0] == watched.launched[1] == watched.launched[2]
    parameters = watched.launched[0]
    assert [len(p) for p in parameters[:15]] == [128, 4, 4, 8, 8] * 3
    for number, tensor in enumerate((a, b, out)):
        told = watched.encoded[number]
        assert told["steps"] == [1, 1] and (told["interleave"], told["swizzle"], told["fill"]) == (0, 3, 0)
        want = driver_map(tensor, element, (told["box"][1], told["box"][0]))
        assert told["bytes"] == want
        last = (tensor.shape[0] - 1) * tensor.stride(0) * 2 + (tensor.shape[1] - 1) * 2
        if driver_version() <= 13010 and last + 1 < 131072:
            want = without_small_bit(want)
        block = parameters[5 * number : 5 * number + 5]
        assert block[0] == want
        numbers = [int.from_bytes(p, "little") for p in block[1:]]
        assert numbers == [*tensor.shape, *tensor.stride()]
