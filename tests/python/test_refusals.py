"""Every failure is an exception of kiln.errors with one sentence, whatever is passed."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
from fractions import Fraction

import fakes
import pytest
from fakes import CPU, CUDA, ROCM, Array, StandardArray
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kiln
from kiln import _core, errors

SHAPE = (1, 2, 8, 64)
STATUSES = {
    1: "KILN_E_ARGUMENT", 2: "KILN_E_UNSUPPORTED", 3: "KILN_E_NO_DEVICE", 4: "KILN_E_DRIVER",
    5: "KILN_E_PACK_NOT_FOUND", 6: "KILN_E_PACK_MISMATCH", 7: "KILN_E_PACK_CORRUPT", 8: "KILN_E_WORKSPACE",
    9: "KILN_E_NEWER_CALLER", 10: "KILN_E_FORKED", 11: "KILN_E_OUT_OF_MEMORY", 12: "KILN_E_NOT_FOUND",
    13: "KILN_E_QUEUE", 14: "KILN_E_RANGE", 15: "KILN_E_RESOURCES", 16: "KILN_E_FAMILY", 17: "KILN_E_?",
}  # fmt: skip


def is_a_sentence(error: BaseException) -> bool:
    text = str(error)
    return bool(text) and "\n" not in text and not text.endswith(".") and "  " not in text and len(text) < 1200


def test_a_class_for_every_status():
    for status, name in STATUSES.items():
        error = errors.of_status(status, "what is wrong")
        assert isinstance(error, kiln.KilnError) and isinstance(error, RuntimeError)
        assert (error.status, error.status_name, str(error)) == (status, name, "what is wrong")
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is type(error) and (again.status, str(again)) == (status, "what is wrong")
    classes = {type(errors.of_status(status, "")) for status in STATUSES}
    assert len(classes) == len(STATUSES) - 1, "9 and 17 have none of their own"
    assert _core.status_name(-5) == "KILN_E_?"


def test_classes_are_pythons_own_too():
    for kind, also in ((kiln.ArgumentError, ValueError), (kiln.NotFoundError, LookupError),
                       (kiln.OutOfMemoryError, MemoryError), (kiln.RangeError, kiln.ArgumentError),
                       (kiln.PackCorruptError, kiln.PackError)):  # fmt: skip
        assert issubclass(kind, also)


class Alike(str):
    """Another key for a dictionary each, and the same text for all who read it."""

    __hash__ = object.__hash__
    __eq__ = object.__eq__


VIEW = (1 << 32, "bf16", SHAPE, (1024, 512, 64, 1))
QUEUE = (fakes.NVIDIA, -1, 0)
ALIKE = """
from kiln import _core
class Alike(str):
    __hash__, __eq__ = object.__hash__, object.__eq__
runtime, view = _core.Runtime(), (4096, "bf16", (1, 1, 1, 8), (8, 8, 8, 1))
for operation in ("attn_fwd", "attn_fwd_fp8", "attn_bwd", "attn_decode", "dropout_mask"):
    name = "mask" if operation == "dropout_mask" else "q"
    for count in (2, 40, 4000):
        try:
            runtime.launch(operation, (1, -1, 0), {Alike(name): view for _ in range(count)})
        except Exception as error:
            assert str(error) == f"{operation} has its parameter {name} twice", error
            print("refused")
"""


def test_a_parameter_that_is_given_twice_in_a_process_of_its_own():
    """A dictionary may have any number of keys that read alike; what is written past an array may end the process."""
    done = subprocess.run([sys.executable, "-c", ALIKE], capture_output=True, text=True)
    assert (done.returncode, done.stdout.split()) == (0, ["refused"] * 15), done.stderr


@pytest.mark.parametrize("how", ["launch", "workspace", "prepare", "explain"])
@pytest.mark.parametrize(
    "name, value",
    [("q", VIEW), ("causal", True), ("softcap", 1.0), ("force_keys", ["0" * 64]), ("force_target", "x"), ("q", None)],
)
def test_a_parameter_that_is_given_twice(runtime, how, name, value):
    with pytest.raises(kiln.ArgumentError, match=f"attn_fwd has its parameter {name} twice"):
        getattr(runtime.core, how)("attn_fwd", QUEUE, {Alike(name): value, Alike(name): value})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(names=st.lists(st.sampled_from(["q", "k", "v", "out", "lse", "bias", "sinks", "seed", "scale"]), max_size=60))
def test_any_number_of_parameters(runtime, names):
    """Each name once: the call is judged by what it has; any name twice: refused for that."""
    fields = {Alike(name): 1.0 if name == "scale" else VIEW for name in names}
    with pytest.raises(kiln.KilnError) as raised:
        runtime.core.launch("attn_fwd", QUEUE, {**fields, "softcap": -1.0})
    assert ("twice" in str(raised.value)) == (len(names) != len(set(names)))


def test_a_dictionary_that_changes_while_it_is_read(runtime):
    """By a number that takes itself and all others out of it."""
    fields: dict[str, object] = {}

    class Emptying:
        def __index__(self) -> int:
            fields.clear()
            return 5

    for many in (1, 20):
        fields |= {name: Emptying() for name in ("window_left", "window_right", "max_seqlen_q", "seed_value")[:many]}
        with pytest.raises(kiln.ArgumentError, match="q "):
            runtime.core.launch("attn_fwd", QUEUE, fields)
        assert not fields


def test_raise_status():
    _core.raise_status(0)
    with pytest.raises(kiln.ArgumentError):
        _core.Runtime.borrow(0)
    with pytest.raises(kiln.QueueError):
        _core.raise_status(13)
    assert isinstance(_core.last_error(), str)


def test_a_missing_pack_names_the_package_that_brings_it():
    said = "there is no pack nvidia-sm_90.pack in /a; name its folder"
    assert str(errors.of_status(5, said)) == f"{said}; the package kiln-images-sm-90 brings it"
    assert "kiln-images-gfx1100" in errors.with_package("there is no pack amd-gfx1100.pack in /a")


WHERE = [
    (CPU, "q is in the CPU's memory; Kiln's kernels take arrays in the memory of a GPU"),
    (3, "q is in pinned memory of the CPU"),
    (77, "q is in memory of DLPack's kind 77"),
]


@pytest.mark.parametrize(("kind", "sentence"), WHERE)
def test_memory_that_no_kernel_reaches(runtime, kind, sentence):
    q = Array(SHAPE, device=(kind, 0))
    with pytest.raises(kiln.ArgumentError, match=sentence):
        kiln.attn_fwd(q, q, q, runtime=runtime)


def test_arrays_of_several_devices(runtime):
    q = Array(SHAPE)
    for place, name in (((CUDA, 1), "CUDA device 1"), ((ROCM, 0), "ROCm device 0")):
        with pytest.raises(
            kiln.ArgumentError, match=f"v is on {name}, but the call's other arrays are on CUDA device 0"
        ):
            kiln.attn_fwd(q, q, Array(SHAPE, device=place), stream=0, runtime=runtime)


def test_read_only_arrays(runtime):
    q = Array(SHAPE, flags=1)
    out = Array(SHAPE)
    kiln.attn_fwd(q, q, q, out=out, stream=0, runtime=runtime)
    with pytest.raises(kiln.ArgumentError, match="by this call, but its library says that it is read-only"):
        kiln.attn_fwd(q, q, q, out=q, stream=0, runtime=runtime)
    with pytest.raises(kiln.ArgumentError, match="k_cache is written"):
        kiln.attn_decode(out, q, q, k_new=out, v_new=out, out=out, stream=0, runtime=runtime)


class Broken(Array):
    def __dlpack__(self, **_: object) -> object:
        raise BufferError("a reason\nin two lines")


class Lost(Array):
    def __dlpack_device__(self) -> tuple[int, int]:
        raise RuntimeError("where?")


class Wrong(Array):
    def __dlpack__(self, **_: object) -> object:
        return 3


SENTENCES = [
    (lambda: {"q": Broken(SHAPE)}, "q is not exported by its library: BufferError: a reason"),
    (lambda: {"q": Lost(SHAPE)}, "q cannot tell on which device it is: RuntimeError: where?"),
    (lambda: {"q": Wrong(SHAPE)}, "q is not exported by its library: TypeError"),
    (
        lambda: {"q": 3},
        "q must be an array of PyTorch, CuPy, JAX or another library that has DLPack's __dlpack__(); an int is not",
    ),
    (lambda: {"v": None}, "v must be an array of PyTorch"),
    (lambda: {"k": Array}, "k must be an array of PyTorch"),
    (lambda: {"v": Array((3,))}, "v has 1 dimensions, and must have 4: [batch, heads_kv, keys, head_dim]"),
    (lambda: {"q": Array(SHAPE, "complex64")}, "q: an array has elements of DLPack's type code 5 with 64 bits"),
    (lambda: {"q": Array((1,) * 9)}, "q: an array has 9 dimensions; a tensor has at most 8"),
    (lambda: {"window": 3}, "window must be (left, right), each below 0 for no limit; 3 is not"),
    (lambda: {"window": (1, 2, 3)}, "window must be (left, right)"),
    (lambda: {"window": ("a", 2)}, "window_left must be an integer of 64 bits; 'a' is not"),
    (lambda: {"window": (1 << 63, 2)}, "window_left must be an integer of 64 bits; 9223372036854775808 is not"),
    (lambda: {"scale": 0}, "scale is 0; None is 1 / sqrt(head_dim)"),
    (lambda: {"scale": Fraction(0)}, "scale is 0; None is 1 / sqrt(head_dim)"),
    (lambda: {"scale": -0.0}, "scale is 0; None is 1 / sqrt(head_dim)"),
    (lambda: {"scale": "a"}, "scale must be a number; 'a' is not"),
    (lambda: {"scale": 1e300}, "scale is 1e+300, which fp32 cannot hold"),
    (lambda: {"scale": 1e-50}, "scale is 1e-50, which fp32 cannot hold"),
    (lambda: {"scale": -1e-50}, "scale is -1e-50, which fp32 cannot hold"),
    (lambda: {"softcap": 1e-50}, "softcap is 1e-50, which fp32 cannot hold"),
    (lambda: {"dropout": 1e-50}, "dropout is 1e-50, which fp32 cannot hold"),
    (lambda: {"scale": float("nan")}, "sm_scale must be a finite number"),
    (lambda: {"softcap": -1}, "softcap must be at least 0"),
    (lambda: {"dropout": 1.0}, "dropout must be at least 0 and at most 0.9999"),
    (lambda: {"causal": "no"}, "causal must be True or False; 'no' is neither"),
    (lambda: {"causal": 1.0}, "causal must be True or False; 1.0 is neither"),
    (lambda: {"seed": 1 << 70}, "seed_value must be an integer of 64 bits"),
    (lambda: {"seed": "x"}, "seed must be an array of PyTorch"),
    (lambda: {"runtime": 3}, "runtime must be a kiln.Runtime; an int is not"),
    (lambda: {"force_keys": "abc"}, "force_keys must be a sequence of keys"),
    (lambda: {"force_keys": [3]}, "force_keys must be text without zero bytes; 3 is not"),
    (lambda: {"force_target": "a\0b"}, "force_target must be text without zero bytes"),
    (lambda: {"out": None}, "results cannot be made beside a fakes.Array, which has no __array_namespace__()"),
]


@pytest.mark.parametrize("number", range(len(SENTENCES)))
def test_sentences(runtime, number):
    change, sentence = SENTENCES[number]
    q = Array(SHAPE)
    words = {"q": q, "k": q, "v": q, "out": q, "stream": 0, "runtime": runtime} | change()
    with pytest.raises(kiln.ArgumentError) as failure:
        kiln.attn_fwd(**words)
    assert is_a_sentence(failure.value) and sentence in str(failure.value)


def test_what_else_is_refused(runtime, fake):
    q = StandardArray(SHAPE)
    lse = Array(SHAPE[:3], "fp32")
    with pytest.raises(kiln.ArgumentError, match="dbias is requested without a bias; give bias="):
        kiln.attn_bwd(q, q, q, q, q, lse, dbias=True, stream=0, runtime=runtime)
    with pytest.raises(TypeError, match="unexpected keyword argument"):
        kiln.attn_fwd(q, q, q, casual=True)
    with pytest.raises(kiln.NotFoundError, match="there is no operation x; there are flash.attn_fwd"):
        kiln.variants("x", runtime=runtime)
    with pytest.raises(kiln.NotFoundError, match="no registered family has a target sm_1; there are sm_90"):
        kiln.variants(target="sm_1", runtime=runtime)
    with pytest.raises(kiln.ArgumentError, match="this Runtime is closed; open another one"):
        closed = kiln.Runtime()
        closed.close()
        closed.close()
        kiln.info(closed)
    with pytest.raises(kiln.ArgumentError, match="trusted_packs"):
        kiln.Runtime(trusted_packs="xyz")
    fake.fail("cuLaunchKernel", 700)
    with pytest.raises(kiln.DriverError, match="CUDA_ERROR_ILLEGAL_ADDRESS"):
        kiln.attn_fwd(q, q, q, stream=0, runtime=runtime)


WRONG_TYPES = [
    (lambda: kiln.variants(5), "operation must be text without zero bytes; 5 is not"),
    (lambda: kiln.variants(target=b"sm_90"), "target must be text without zero bytes; b'sm_90' is not"),
    (lambda: kiln.devices(5), "runtime must be a kiln.Runtime; an int is not"),
    (lambda: kiln.Runtime(5), "pack_path must be text without zero bytes; 5 is not"),
    (lambda: kiln.Runtime(pack_path=b"x"), "pack_path must be text without zero bytes; b'x' is not"),
    (lambda: kiln.Runtime(pack_path="a\0b"), "pack_path must be text without zero bytes"),
    (lambda: kiln.Runtime(trusted_packs=["x"]), "trusted_packs must be text without zero bytes; ['x'] is not"),
    (lambda: kiln.Runtime(trusted_keys=5), "trusted_keys must be text without zero bytes; 5 is not"),
    (lambda: kiln.Runtime(resolve=-1), "resolve must be at least 0; -1 is less"),
    (lambda: kiln.Runtime(resolve=1.5), "resolve must be an integer of 64 bits; 1.5 is not"),
    (lambda: kiln.Runtime(resolve=None), "resolve must be an integer of 64 bits; None is not"),
]


@pytest.mark.parametrize("number", range(len(WRONG_TYPES)))
def test_wrong_types(number):
    call, sentence = WRONG_TYPES[number]
    with pytest.raises(kiln.ArgumentError) as failure:
        call()
    assert is_a_sentence(failure.value) and str(failure.value).startswith(sentence)


def test_scales_of_numpy(runtime):
    numpy = pytest.importorskip("numpy")
    q = Array(SHAPE)
    with pytest.raises(kiln.ArgumentError, match="scale is 0; None is 1"):
        kiln.attn_fwd(q, q, q, out=q, scale=numpy.float32(0), stream=0, runtime=runtime)


def test_exceptions_in_a_process_with_another_c_plus_plus_library():
    code = """
import ctypes
ctypes.CDLL("libstdc++.so.6", ctypes.RTLD_GLOBAL)
import kiln
for _ in range(3):
    for call in (lambda: kiln.attn_fwd(1, 2, 3), lambda: kiln._core.Tensor(3), lambda: kiln._core.raise_status(4),
                 lambda: kiln._core.Runtime(trusted_packs="x"), lambda: kiln._core.Runtime(log=3)):
        try:
            call()
        except (kiln.KilnError, TypeError) as error:
            print(type(error).__name__)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr, done.stderr
    assert done.stdout.split() == ["ArgumentError", "TypeError", "DriverError", "ArgumentError", "ArgumentError"] * 3


def test_tensors_of_pytorch_on_the_cpu():
    torch = pytest.importorskip("torch")
    q = torch.zeros(SHAPE)
    with pytest.raises(
        kiln.ArgumentError, match="q is in the CPU's memory; Kiln's kernels take arrays in the memory of"
    ):
        kiln.attn_fwd(q, q, q)
    with pytest.raises(
        kiln.ArgumentError, match="q cannot tell on which device it is|q is not exported by its library|q is in "
    ):
        kiln.attn_fwd(*[torch.zeros(SHAPE, device="meta")] * 3)


def test_arrays_of_numpy():
    numpy = pytest.importorskip("numpy")
    with pytest.raises(kiln.ArgumentError, match="k is in the CPU's memory"):
        kiln.attn_fwd(Array(SHAPE), numpy.zeros(SHAPE), Array(SHAPE), stream=0)


def any_value():
    """What somebody may pass: values of Python's, and arrays that are nearly right."""
    dtypes, devices = st.sampled_from(sorted(fakes.TYPES)), st.sampled_from([(CUDA, 0), (CUDA, 9), (CPU, 0), (ROCM, 0)])
    sizes = st.lists(st.integers(-1, 70), max_size=9).map(tuple)
    arrays = st.builds(StandardArray, st.one_of(st.just(SHAPE), sizes), dtypes, device=devices)
    plain = st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4),
        st.just(1 << 64), st.just(()), st.just(object()), st.just(float), st.just(1j),
    )  # fmt: skip
    return st.one_of(
        plain, arrays, st.lists(plain, max_size=3), st.tuples(plain, plain), st.dictionaries(plain_key, plain)
    )


plain_key = st.text(max_size=3)
FUNCTIONS = (kiln.attn_fwd, kiln.attn_fwd_fp8, kiln.attn_bwd, kiln.attn_decode, kiln.dropout_mask)
NAMES = {function: [n for n in inspect.signature(function).parameters if n != "runtime"] for function in FUNCTIONS}
LOOSE = settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))


@LOOSE
@given(data=st.data(), function=st.sampled_from(FUNCTIONS))
def test_any_arguments(runtime, data, function):
    """A call succeeds, or raises an exception of Kiln's."""
    good = {"lse": StandardArray(SHAPE[:3], "fp32"), "dropout": 0.0, "mask": StandardArray(SHAPE, "uint8")}
    words = {
        name: good.get(name) if name in good else StandardArray(SHAPE)
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.default is parameter.empty
    }
    words |= {"stream": 0}
    for name in data.draw(st.lists(st.sampled_from(NAMES[function]), max_size=4)):
        words[name] = data.draw(any_value())
    if isinstance(words["stream"], int):
        words["stream"] = min(words["stream"], 2)  # a driver looks where a greater one leads
    try:
        function(**words, runtime=runtime)
    except kiln.KilnError as error:
        assert is_a_sentence(error), str(error)


FIELDS = ["q", "k", "v", "out", "lse", "seed", "offset", "window_left", "sm_scale", "scale", "causal", "padded",
          "workspace", "workspace_bytes", "force_keys", "force_target", "dropout", "nothing", "", "q\0"]  # fmt: skip


@LOOSE
@given(
    fields=st.dictionaries(st.one_of(st.sampled_from(FIELDS), st.integers()), any_value(), max_size=5),
    queue=st.one_of(st.just((1, 0, 0)), st.tuples(*[st.integers(-3, 2)] * 3), any_value()),
    operation=st.sampled_from(["attn_fwd", "attn_fwd_fp8", "attn_bwd", "attn_decode", "dropout_mask", "", "x"]),
    method=st.sampled_from(["launch", "workspace", "prepare", "explain"]),
)
def test_any_fields(runtime, fields, queue, operation, method):
    """The extension itself, whose callers pass a dict."""
    view = Array(SHAPE).view
    words = {"q": view, "k": view, "v": view, "out": view} | fields
    if operation == "dropout_mask":
        words = {"mask": view, **fields}
    try:
        getattr(runtime.core, method)(operation, queue, words)
    except kiln.KilnError as error:
        assert is_a_sentence(error), str(error)


@LOOSE
@given(view=st.tuples(any_value(), any_value(), any_value(), any_value()))
def test_any_view(runtime, view):
    good = Array(SHAPE).view
    for place in range(4):
        words = {"q": tuple(view[i] if i == place else good[i] for i in range(4)), "k": good, "v": good, "out": good}
        try:
            runtime.core.launch("attn_fwd", (1, 0, 0), words)
        except kiln.KilnError as error:
            assert is_a_sentence(error), str(error)


def test_capsules():
    array = Array(SHAPE)
    taken = array.__dlpack__()
    _core.Tensor(taken)
    with pytest.raises(kiln.ArgumentError, match="this one is named used_dltensor; it holds something else, or was"):
        _core.Tensor(taken)
    nameless = fakes._new(id(array), None, None)
    with pytest.raises(kiln.ArgumentError, match="this one is named nothing"):
        _core.Tensor(nameless)
    with pytest.raises(TypeError):
        _core.Tensor(3)
