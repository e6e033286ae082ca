"""What `kiln bench` calls a release by: structures read from the headers, and the typed entries on the fake driver."""

from __future__ import annotations

import ctypes

import ffi
import flash_tables
import packs
import pytest

from kiln_bench.release import headers, library
from kiln_recipe.errors import ArtifactError

torch = pytest.importorskip("torch")
OURS = {
    "kiln_options": ffi.Options, "kiln_queue": ffi.Queue, "kiln_tensor": ffi.Tensor, "kiln_device": ffi.Device,
    "kiln_variant": ffi.Variant, "kiln_attn_fwd_params": ffi.AttnFwd, "kiln_attn_bwd_params": ffi.AttnBwd,
    "kiln_attn_fwd_fp8_params": ffi.AttnFwdFp8, "kiln_attn_decode_params": ffi.AttnDecode,
    "kiln_dropout_mask_params": ffi.DropoutMask,
}  # fmt: skip


@pytest.fixture(scope="module")
def interface() -> headers.Interface:
    return headers.read(headers.own())


@pytest.mark.parametrize("name", OURS)
def test_a_structure_is_what_the_tests_know_it_to_be(interface, name):
    read, known = interface[name], OURS[name]
    rows = [(field, getattr(read, field).offset, getattr(read, field).size) for field, _ in read._fields_]
    assert rows == [(field, getattr(known, field).offset, getattr(known, field).size) for field, _ in known._fields_]
    if "params" in name:
        values, expected = read(), known() if name != "kiln_dropout_mask_params" else known(size=ctypes.sizeof(known))
        for field, kind in read._fields_:
            if kind in (ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_uint64):
                assert getattr(values, field) == getattr(expected, field), field


def test_constants(interface):
    assert interface.constants["KILN_BF16"] == ffi.BF16 and interface.constants["KILN_E_UNSUPPORTED"] == ffi.UNSUPPORTED
    assert interface.constants["KILN_MAX_RANK"] == 8


def test_headers_that_are_not_kilns(tmp_path):
    with pytest.raises(ArtifactError, match=r"lacks the headers kiln.h and flash.h"):
        headers.read(tmp_path)
    with pytest.raises(ArtifactError, match="declare no kiln_attn_fwd_params"):
        headers.Interface("int main(void);")["kiln_attn_fwd_params"]


@pytest.fixture
def opened(built, fake, interface, tmp_path, tmp_path_factory, monkeypatch):
    """A function that loads the fake driver's libraries: as the first release of the process, or as another."""
    tables = flash_tables.make(tmp_path_factory.mktemp("flash"))
    data = tables.pack()
    (tmp_path / packs.FILES["sm_90"]).write_bytes(data)
    monkeypatch.setenv("KILN_PACK_PATH", str(tmp_path))
    made = []

    def open_one(number: int = 0) -> library.Libraries:
        options = {"resolve": fake.resolve, "trusted": packs.digest_of(data)}
        one = library.Libraries(built / "lib", interface, number, **options)
        made.append(one)
        return one

    open_one.tables = tables
    yield open_one
    for one in made:
        one.__exit__()


def tensors(*sizes: int) -> dict[str, object]:
    return {name: torch.zeros(2, 4, *sizes, dtype=torch.bfloat16) for name in ("q", "k", "v", "out")}


@pytest.mark.parametrize("number", [0, 1])
def test_a_call_launches_what_it_was_given(opened, fake, number):
    """Also of a second release's libraries, which have a core of their own."""
    one, given = opened(number), tensors(128, 64)
    launch = one.prepare("attn_fwd", **given, causal=1, window_left=None)
    assert fake.launches() == [] and launch.images[0][12:].startswith(" sm_90 flash.attn_fwd/attn_fwd[dtype=bf16")
    launch()
    launch()
    first, second = fake.launches()
    arguments = dict(zip(opened.tables.arguments["attn_fwd"], first.parameters()))
    assert {name: arguments[name] for name in given} == {name: t.data_ptr() for name, t in given.items()}
    assert second.parameters() == first.parameters()
    spelled = [f"{name}=bf16[2,4,128,64]/32768,8192,64,1@{place}" for place, name in enumerate(given)]
    above = {name: tensor.data_ptr() % 256 for name, tensor in given.items()}
    spelled = [f"{text}+{above[name]}" if above[name] else text for text, name in zip(spelled, given)]
    assert launch.call == f"attn_fwd {' '.join(spelled)} causal=1"
    assert one.version and next(row["target"] for row in one.devices()) == "sm_90"
    assert {row["kernel"] for row in one.variants("flash.attn_fwd", "sm_90")} == {"attn_fwd"}


def test_an_image_can_be_forced(opened, fake):
    one, given = opened(), tensors(128, 64)
    (usual,) = one.prepare("attn_fwd", **given).variants
    forced = one.prepare("attn_fwd", [usual["key"]], **given)
    assert forced.call == "", "nothing was looked up"
    assert forced.variants == [usual] and usual["operation"] == "flash.attn_fwd" and usual["unavailable"] is None
    forced()
    assert len(fake.launches()) == 1
    with pytest.raises(library.Refused, match="force_keys.* no variant|is not a variant|has no"):
        one.prepare("attn_fwd", ["1" * 64], **given)


def test_refusals_are_one_line(opened):
    one, given = opened(), tensors(128, 64)
    with pytest.raises(library.Refused, match="this release's attn_fwd has no future and other") as refusal:
        one.prepare("attn_fwd", **given, future=1, other=2)
    assert refusal.value.status == ffi.UNSUPPORTED
    with pytest.raises(library.Refused, match="v has rank 3; it must be 4"):
        one.prepare("attn_fwd", **given | {"v": torch.zeros(2, 128, 64, dtype=torch.bfloat16)})
    with pytest.raises(library.Refused, match="complex64 is not a dtype of Kiln's"):
        one.prepare("attn_fwd", **given | {"v": torch.zeros(2, 4, 128, 64, dtype=torch.complex64)})


def test_libraries_that_cannot_be_loaded(interface, tmp_path):
    with pytest.raises(ArtifactError, match="has no libraries that can be loaded"):
        library.Libraries(tmp_path, interface)
