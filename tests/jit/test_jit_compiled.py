"""What kiln.jit compiles is what a build compiles, byte by byte; and interpreting leaves nothing behind. No GPU."""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

import pytest

import users_package

pytestmark = pytest.mark.slow(40)

FAMILY = Path(__file__).resolve().parents[2] / "examples" / "family" / "recipe.yaml"


def variants(target: str) -> list:
    """Of the example every kind of specialization, and one attention kernel that has constants of all kinds."""
    import torch

    import kiln.jit

    recipe = kiln.jit.Recipe(FAMILY, interpret=True, target=target)
    x, w = torch.ones(3, 1024), torch.ones(1024)
    norm = recipe.operation("rms_norm")
    made = [*norm.explain(x, w, x, torch.ones(1), 1e-6), *norm.explain(x[:, :1000], w[:1000], x[:, :1000], None, 1e-6)]
    made += norm.explain(torch.ones(3, 2048)[:, ::2], w, x, None, 1e-6)
    flash = kiln.jit.Recipe(interpret=True, target=target)
    q = torch.ones(1, 2, 16, 64, dtype=torch.float16)
    made += flash.operation("dropout_mask").explain(torch.ones(1, 1, 20, 30), None, None, 5, 0, 0)
    engine = kiln.jit.Engine(flash)
    made += engine._operations["attn_fwd"].explain(
        q=q, k=q, v=q, out=q, max_seqlen_q=0, max_seqlen_k=0, window_left=-1, window_right=0, bottom_right=0,
        is_padded=0, sm_scale=0.1, is_negative=0, is_capped=0, softcap=1.0, threshold=0, keep_scale=1.0, seed_value=0,
        offset_value=0, batch_invariant=0,
    )  # fmt: skip
    return [*(one.variant.spec for one in made), *gluon(target)]


def gluon(target: str) -> list:
    """The implementation of the example in Gluon: with tensor descriptors for Hopper."""
    from kiln_recipe import targets
    from kiln_recipe.plan import plan
    from kiln_recipe.read import recipe

    made = plan.make_plan([recipe.load(FAMILY.parents[1] / "matmul" / "recipe.yaml")], (targets.by_name(target),))
    return [next(variant.spec for variant in made.variants if variant.spec.language == "gluon")]


def compiled_here(target: str, folder: str, languages: tuple[str, ...] = ("triton", "gluon")) -> list:
    """By spec the image that kiln.jit compiles, and whether anything was printed or left in the environment."""
    os.environ["TRITON_CACHE_DIR"] = folder
    import contextlib
    import io

    from kiln.jit.compiled import compile_spec
    from kiln.jit.functions import Functions
    from kiln_recipe import targets

    made, functions = [], Functions()
    for spec in variants(target):
        if spec.language not in languages:
            continue
        before, printed = dict(os.environ), io.StringIO()
        with contextlib.redirect_stdout(printed):
            kernel = compile_spec(spec, targets.by_name(target), functions.get(spec, False))
        clean = dict(os.environ) == before and not printed.getvalue()
        made.append((spec, kernel.asm[targets.by_name(target).image_kind], clean))
    return made


def compiled_as_a_build(made: list) -> list[tuple[str, bool]]:
    """By function whether a build's compiler gives the same image."""
    import triton

    from kiln_recipe.compile import compile, lock, toolchain
    from kiln_recipe.images import elf

    wheels = lock.read_lock(Path(__file__).resolve().parents[2] / "input" / lock.LOCK_NAME).members_of("triton")
    chain = toolchain.find_toolchain(Path(triton.__file__).parents[1], wheels)
    compile.prepare_worker(chain)
    return [
        (spec.function, compile.compile_variant(spec, chain).image.code == elf.strip(code)) for spec, code, _ in made
    ]


@pytest.mark.parametrize("target", ["sm_90", "gfx942"])
def test_images_are_those_of_a_build(fresh, target, tmp_path):
    made = fresh(compiled_here, target, str(tmp_path))
    assert all(clean for _, _, clean in made)
    with users_package.process() as worker:
        found = worker(compiled_as_a_build, made)
    own = {"sm_90": {"attn_fwd", "matmul_hopper"}, "gfx942": {"attn_fwd_amd", "matmul_cdna"}}[target]
    assert {name for name, _ in found} == {"rms_norm", "total", "dropout_mask"} | own
    assert all(same for _, same in found), found


def ir_around_a_run(folder: str) -> list[str]:
    """Triton's IR of a kernel before and after others were interpreted, and what the language looks like."""
    os.environ["TRITON_CACHE_DIR"], os.environ["TRITON_ALWAYS_COMPILE"] = folder, "1"
    import torch
    import triton
    import triton.language as tl

    import kiln.jit
    from kiln.jit.compiled import compile_spec
    from kiln.jit.functions import Functions
    from kiln_recipe.targets import by_name

    def language() -> dict[str, object]:
        holders = (tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, triton.runtime.JITFunction)
        found = {f"{holder}.{name}": value for holder in holders for name, value in vars(holder).items()}
        return {name: value for name, value in found.items() if not name.endswith(".__annotations__")}

    from triton.runtime import interpreter

    spec = variants("sm_90")[0]
    told, patch = [], interpreter._patch_lang
    x, w = torch.randn(3, 1024), torch.ones(1024)
    for _ in range(2):
        before = language()
        told.append(compile_spec(spec, by_name("sm_90"), Functions().get(spec, False)).asm["ttir"])
        kiln.jit.Recipe(FAMILY, interpret=True).operation("rms_norm")(x, w, torch.empty_like(x), torch.ones(1), 1e-6)
        try:
            kiln.jit.Recipe(FAMILY, interpret=True).operation("rms_norm")(x, w, x[:2], None, 1e-6)
        except kiln.jit.errors.ArgumentError:
            told.append("refused")
        assert language() == before and interpreter._patch_lang is patch
        assert not triton.knobs.runtime.interpret and "TRITON_INTERPRET" not in os.environ
        assert interpreter.InterpretedFunction.rewritten_fn == {}
    return told


def test_interpreting_leaves_tritons_language_as_it_was(fresh, tmp_path):
    before, refused, after, again = fresh(ir_around_a_run, str(tmp_path))
    assert before == after and "tt.load" in before
    assert refused == again == "refused"


def under_tritons_own_variable() -> list[str]:
    os.environ["TRITON_INTERPRET"] = "1"
    import torch

    import kiln.jit

    x, w, out = torch.ones(3, 64), torch.ones(64), torch.empty(3, 64)
    recipe = kiln.jit.Recipe(FAMILY)
    assert recipe.interpret
    recipe.operation("rms_norm")(x, w, out, None, 0.0)
    told = [str(out.sum().item())]
    other = kiln.jit.Recipe(FAMILY, interpret=False)
    try:
        (one,) = recipe.operation("rms_norm").explain(x, w, out, None, 0.0)
        other._loaded.functions.get(one.variant.spec, False)
    except kiln.jit.errors.KilnError as error:
        told.append(str(error))
    return told


def test_tritons_own_variable_is_the_default(fresh):
    total, sentence = fresh(under_tritons_own_variable)
    assert float(total) == 3 * 64
    assert sentence == (
        "Triton was imported with TRITON_INTERPRET=1, so nothing can be compiled in this process; "
        "unset it, or say interpret=True"
    )


def without(package: str) -> list[str]:
    import sys

    class Absent:
        def find_spec(self, name: str, path: object = None, target: object = None) -> None:
            if name.partition(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    sys.meta_path.insert(0, Absent())
    import kiln.jit

    told = []
    for what in (lambda: kiln.jit.Recipe(FAMILY), lambda: kiln.jit.Recipe(FAMILY).interpret, lambda: kiln.jit.enable()):
        try:
            what()
        except kiln.jit.MissingPackageError as error:
            told.append(str(error))
    return told


@pytest.mark.parametrize(
    ("package", "name", "times"), [("yaml", "PyYAML", 3), ("msgspec", "msgspec", 3), ("triton", "Triton", 2)]
)
def test_a_missing_package_is_one_sentence(fresh, package, name, times):
    assert (
        fresh(without, package)
        == [
            f"kiln.jit needs {name}, which is not installed; pip install {name.lower()}, or all that it needs with "
            "pip install 'kiln-runtime[jit]'"
        ]
        * times
    )


def launched() -> dict[str, object]:
    """What Image.launch gives a compiled kernel, whose launcher is a stand-in."""
    import types

    import torch
    import triton
    from triton.runtime import _allocation
    from triton.runtime.errors import OutOfResources

    import kiln.jit
    from kiln.jit.compiled import Image

    x, w = torch.ones(3, 1024), torch.ones(1024)
    norm = kiln.jit.Recipe(FAMILY, interpret=True).operation("rms_norm")
    (one,) = norm.explain(x, w, x, None, 1e-6)
    (none,) = (
        kiln.jit.Recipe(interpret=True).operation("dropout_mask").explain(torch.ones(1, 1, 1, 1), None, None, 5, 0, 0)
    )
    seen: dict[str, object] = {"names": [name for name, _ in one.variant.spec.signature]}

    class Kernel:
        metadata = types.SimpleNamespace(global_scratch_size=8)

        def __getitem__(self, grid: tuple[int, ...]):
            def run(*values: object) -> None:
                seen.update(grid=grid, values=values, other=_allocation._allocator.get() is not before)
                if seen.get("fail"):
                    raise OutOfResources(2, 1, "shared memory")

            return run

    before = _allocation._allocator.get()
    Image(Kernel()).launch(one)
    assert _allocation._allocator.get() is before and isinstance(triton.__version__, str)
    seen["fail"] = True
    try:
        Image(Kernel()).launch(one)
    except kiln.jit.errors.ResourcesError as error:
        seen["refused"] = str(error)
    from dataclasses import replace

    seen["grid"] = None
    Image(Kernel()).launch(replace(none, launch=replace(none.launch, grid=(4, 0, 1))))
    seen["x"] = x.data_ptr()
    return seen


def test_what_a_launcher_gets(child):
    seen = child(launched)
    given = dict(zip(seen["names"], seen["values"]))
    assert seen["names"][-1] == "BLOCK" and given["BLOCK"] == 1024 and given["stride_x_column"] == 1
    assert (given["x_ptr"], given["rows"], given["stride_x"]) == (seen["x"], 3, 1024)
    assert seen["other"], "the scratch that Triton asks for comes from PyTorch"
    assert seen["refused"].startswith("norm.rms_norm/rms_norm[dtype=fp32 ") and "shared memory" in seen["refused"]
    assert seen["grid"] is None, "an empty grid was launched"


def comparisons(folder: str) -> list[tuple[bool, tuple[str, ...]]]:
    import json
    from dataclasses import replace

    import torch

    import kiln.jit
    from kiln.jit.parity import installed_toolchain, release_toolchain

    x, w = torch.ones(3, 1024), torch.ones(1024)
    norm = kiln.jit.Recipe(FAMILY, interpret=True).operation("rms_norm")
    chosen = norm.explain(x, w, x, torch.ones(1), 1e-6)
    here = installed_toolchain()
    names = ("kernel", "functional", "configuration", "specialization", "target")

    def ahead(chain: object) -> list[dict[str, str]]:
        rows = [{name: getattr(one.variant, name) for name in names} for one in chosen]
        return [row | {"key": one.variant.spec.key(chain.identity)} for row, one in zip(rows, chosen)]

    def stated(chain: object) -> str:
        """A release's manifest, as far as it states its tools: sorted, and others among them."""
        tools = [{"name": "zig", "version": "1", "sha256": None}, {"name": "triton", "version": chain.triton_version}]
        tools += [{"name": f"triton's {name}", "version": "", "sha256": digest} for name, digest in sorted(chain.files)]
        path = Path(folder) / f"{chain.triton_version}-{len(chain.files)}.json"
        path.write_text(json.dumps({"tools": tools}))
        assert release_toolchain(path).identity == chain.identity
        return str(path)

    newer, other = replace(here, triton_version="9.9"), replace(here, files=here.files[1:])
    rows = [
        *kiln.jit.compare(chosen, ahead(here), stated(here)),
        *kiln.jit.compare(chosen[:1], ahead(newer)[:1]),
        *kiln.jit.compare(chosen[:1], ahead(newer)[:1], stated(newer)),
        *kiln.jit.compare(chosen[:1], ahead(other)[:1], stated(other)),
        *kiln.jit.compare(chosen[:1], [ahead(newer)[0] | {"key": "0" * 64}], stated(newer)),
        *kiln.jit.compare(chosen[:1], [ahead(here)[0] | {"configuration": "num_warps=8"}], stated(here)),
        *kiln.jit.compare(chosen[:1], ahead(here))[1:],
        *kiln.jit.compare(chosen, ahead(here)[:1])[1:],
    ]
    try:
        kiln.jit.compare(chosen, ahead(here), folder + "/no.json")
    except kiln.jit.errors.KilnError as error:
        rows.append(kiln.jit.Comparison("", (str(error),), "", ""))
    return [(row.equal, row.differences) for row in rows]


def test_what_differs_from_what_was_made_ahead_is_said(child, tmp_path):
    version = importlib.metadata.version("triton")
    assert child(comparisons, str(tmp_path)) == [
        (True, ()),
        (True, ()),
        (False, ("keys: of sources, settings or toolchains; the release's manifest would tell which",)),
        (False, (f"toolchain: Triton {version} here, 9.9 ahead; all else is equal",)),
        (False, (f"toolchain: other files of Triton {version}; all else is equal",)),
        (False, ("sources or settings: the release was made from others",)),
        (False, ("configuration: num_warps=4 num_stages=1 here, num_warps=8 ahead",)),
        (False, ("runs ahead alone",)),
        (False, ("runs here alone",)),
        (False, (f"{tmp_path}/no.json is not the manifest of a release; give its share/kiln/manifest.json",)),
    ]
