"""Compiling with the real Triton, in processes of their own: workers empty their environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton is not installed")

import small_implementations

ROOT = Path(__file__).resolve().parents[1]
PRELUDE = """
import dataclasses, importlib.util, json, sys
from pathlib import Path
from kiln_recipe import targets
from kiln_recipe.compile import compile, lock, toolchain
from kiln_recipe.images import elf, judge
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe
# Not imported here: what Triton reads from the environment while it is imported must be ours already.
wheels = lock.read_lock(Path("input", lock.LOCK_NAME)).members_of("triton")
chain = toolchain.find_toolchain(Path(importlib.util.find_spec("triton").origin).parents[1], wheels)
compile.prepare_worker(chain)
def variants(path, words):
    return plan.make_plan([recipe.load(path)], targets.parse(words), "core", ()).variants
"""


def run(code: str, *arguments: object, **environment: str) -> dict:
    """The last line that `code` prints, as JSON."""
    words = [sys.executable, "-c", PRELUDE + textwrap.dedent(code), *map(str, arguments)]
    done = subprocess.run(words, env=os.environ | {"PYTHONPATH": str(ROOT / "v3python")} | environment,
                          capture_output=True, text=True, cwd=ROOT)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


COMPILE_NORM = """
result = {}
for variant in variants("examples/family/recipe.yaml", "sm_90;gfx942"):
    if variant.kernel == "total":
        image = compile.compile_variant(variant.spec, chain).image
        result[variant.target] = [__import__("hashlib").sha256(image.code).hexdigest(), dataclasses.asdict(image.info)]
print(json.dumps(result))
"""


def test_facts_of_images_and_the_users_environment_changes_nothing():
    plain = run(COMPILE_NORM)
    for target, (_, info) in plain.items():
        assert info["symbol"] == "total" and info["parameters"] in (3, 4, 5) and info["spills"] == 0
        assert info["threads"] == (256 if target == "gfx942" else 128)
    steered = run(
        COMPILE_NORM, TRITON_DEBUG="1", TRITON_DISABLE_LINE_INFO="0", DISABLE_PTXAS_OPT="1", AMDGCN_USE_BUFFER_OPS="0",
        TRITON_PTXAS_PATH="/bin/false", PTXAS_OPTIONS="-O0", TRITON_DEFAULT_FP_FUSION="0",
    )  # fmt: skip
    assert steered == plain


def test_fused_multiply_and_add_are_an_option_whatever_the_environment(tmp_path):
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x_ptr):\n"
        "    at = x_ptr + tl.arange(0, 64)\n    x = tl.load(at)\n    tl.store(at, x * x + x)\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        "family: f\noperations:\n  o:\n    arguments: {x: {tensor: fp32, rank: 1}}\n    kernels:\n      k:\n"
        "        source: k.py\n        parameters: {x_ptr: {type: '*fp32', value: x.data}}\n"
        "        specializations: {generic: {}}\n        grid: [1]\n        configurations:\n"
        "        - core: [{num_warps: 1}, {num_warps: 1, enable_fp_fusion: [true, false]}]\n"
    )
    answer = run(
        """
        import hashlib
        result = {"sm_90": [], "gfx942": []}
        for variant in variants(sys.argv[1], "sm_90;gfx942"):
            one = compile.compile_variant(variant.spec, chain)
            result[variant.target].append([hashlib.sha256(one.image.code).hexdigest(), one.ir,
                                           variant.spec.key(chain.identity)])
        print(json.dumps(result))
        """,
        tmp_path / "recipe.yaml",
        TRITON_DEFAULT_FP_FUSION="0",
    )
    for rows in answer.values():
        (default, _, _), (on, _, _), (off, _, _) = rows
        assert default == on != off
        assert len({ir for _, ir, _ in rows}) == len({key for _, _, key in rows}) == 3


def test_what_llvm_only_prints_fails_the_variant(tmp_path):
    (tmp_path / "k.py").write_text(
        "import triton\nimport triton.language as tl\n\n@triton.jit\ndef k(x_ptr):\n"
        "    x = tl.load(x_ptr + tl.arange(0, 64))\n"
        "    x = tl.inline_asm_elementwise('neg.f32 $0, $1;', '=f,f', [x], dtype=tl.float32, is_pure=True, pack=1)\n"
        "    tl.store(x_ptr + tl.arange(0, 64), x)\n"
    )
    (tmp_path / "recipe.yaml").write_text(
        "family: f\noperations:\n  o:\n    arguments: {x: {tensor: fp32, rank: 1}}\n    kernels:\n      k:\n"
        "        source: k.py\n        parameters: {x_ptr: {type: '*fp32', value: x.data}}\n"
        "        specializations: {generic: {}}\n        grid: [1]\n"
        "        configurations: [{core: [{num_warps: 1}]}]\n"
    )
    answer = run(
        """
        from kiln_recipe.errors import CompileError
        result = {}
        for variant in variants(sys.argv[1], "sm_90;gfx942"):
            try:
                result[variant.target] = len(compile.compile_variant(variant.spec, chain).image.code)
            except CompileError as error:
                result[variant.target] = [error.stage, str(error), error.log]
        print(json.dumps(result))
        """,
        tmp_path / "recipe.yaml",
    )
    assert answer["sm_90"] > 1000
    stage, sentence, log = answer["gfx942"]
    assert stage == "image" and "gfx942" in sentence
    assert "register" in sentence and "register" in log


MISTAKEN = """import triton
import triton.language as tl


@triton.jit
def helper(x_ptr, BLOCK: tl.constexpr):
    # as long as it likes
    return tl.load(x_ptr + tl.arange(0, BLOCK), mask=tl.arange(0, BLOCK) < nn)


@triton.jit
def k(
    x_ptr,
):
    CALL
"""


@pytest.mark.parametrize(
    ("call", "line", "words"),
    [
        ("helper(x_ptr, 64)", 8, "nn is not defined"),
        ("tl.store(x_ptr, mm)", 15, "mm is not defined"),
        ("tl.static_assert(1 == 2, 'one is\\n  not two')", 15, "one is not two"),
        ("tl.arange(0, 63)", 15, "arange's range must be a power of 2"),
        ("tl.sum(tl.arange(0, 64), 5)", 15, "invalid axis 5"),
        ("tl.load(x_ptr)[0, 1, 2]", 15, ""),
    ],
)
def test_a_mistake_in_a_kernel_is_told_by_its_place_in_the_file(tmp_path, call, line, words):
    (tmp_path / "k.py").write_text(MISTAKEN.replace("CALL", call))
    (tmp_path / "recipe.yaml").write_text(
        "family: f\noperations:\n  o:\n    arguments: {x: {tensor: fp32, rank: 1}}\n    kernels:\n      k:\n"
        "        source: k.py\n        parameters: {x_ptr: {type: '*fp32', value: x.data}}\n"
        "        specializations: {generic: {}}\n        grid: [1]\n"
        "        configurations: [{core: [{num_warps: 1}]}]\n"
    )
    told = run(
        """
        from kiln_recipe.errors import CompileError
        told = []
        for variant in variants(sys.argv[1], "sm_90;gfx942"):
            try:
                compile.compile_variant(variant.spec, chain)
            except CompileError as error:
                told.append([error.stage, str(error), error.log])
        print(json.dumps(told))
        """,
        tmp_path / "recipe.yaml",
    )
    assert len(told) == 2 and told[0] == told[1], "equal on each target"
    stage, sentence, log = told[0]
    place = f"{tmp_path}/k.py:{line}: "
    assert stage == "ttir" and sentence.startswith(place) and words in sentence and "\n" not in sentence
    assert "at 1:" not in sentence and "Error(" not in sentence
    assert place.strip() in log and "Traceback" not in log


def test_a_mistake_at_a_module_s_top_is_told_by_its_place(tmp_path):
    (tmp_path / "k.py").write_text("SCALE = 1 / 0\n" + MISTAKEN.replace("CALL", "pass"))
    answer = run(
        """
        from kiln_recipe.errors import CompileError
        from kiln_recipe.read.fingerprint import fingerprint
        spec = next(iter(variants("examples/family/recipe.yaml", "sm_90"))).spec
        stated = fingerprint(Path(sys.argv[1]), "k")
        try:
            compile.compile_variant(
                dataclasses.replace(spec, source=sys.argv[1], function="k", fingerprint=stated), chain
            )
        except CompileError as error:
            print(json.dumps([error.stage, str(error)]))
        """,
        tmp_path / "k.py",
    )
    assert answer == ["source", f"{tmp_path}/k.py:1: ZeroDivisionError: division by zero"]


def test_the_digest_of_the_ir_covers_the_toolchain():
    """Equal IR under another assembler or Triton is another image, and is not taken from the store."""
    answer = run(
        """
        variant = next(v for v in variants("examples/family/recipe.yaml", "sm_90") if v.kernel == "total")
        other = dataclasses.replace(chain, triton_version="3.8.0+other")
        print(json.dumps([compile.compile_variant(variant.spec, c).ir for c in (chain, chain, other)]))
        """
    )
    assert answer[0] == answer[1] != answer[2]


def test_the_version_of_ptx_decides_the_assembler():
    answer = run(
        """
        variant = next(v for v in variants("examples/family/recipe.yaml", "sm_90") if v.kernel == "total")
        made = []
        for ptx in (0, 88, 90, 0):
            image = compile.compile_variant(dataclasses.replace(variant.spec, ptx=ptx), chain).image
            reasons = judge.verdict(image.info, targets.by_name("sm_90"), variant.parameter_count, 0)
            made.append([image.info.ptx_version, image.info.abi, list(reasons)])
        wrong = dataclasses.replace(image.info, ptx_version="9.0")
        made.append(judge.verdict(wrong, targets.by_name("sm_90"), variant.parameter_count, 0))
        print(json.dumps(made))
        """
    )
    assert answer[:4] == [["8.0", 7, []], ["8.8", 7, []], ["9.0", 8, []], ["8.0", 7, []]]
    assert answer[4] == ["is of ABI 7; such images for sm_90 are of ABI 8 (targets.yaml)"]


DESCRIPTORS = """
result = {}
for variant in variants(sys.argv[1], "sm_90;sm_120"):
    if "dtype=fp16 width=64" not in variant.name:
        continue
    image = compile.compile_variant(variant.spec, chain).image
    facts = elf.nvidia_facts(image.code)
    result[f"{variant.kernel}[{variant.configuration}][{variant.specialization}]@{variant.target}"] = [
        dataclasses.asdict(image.info), variant.parameter_count, [p.size for p in facts.parameters],
        re.search(r"^[.]version (.*)$", image.ptx, re.MULTILINE)[1]]
print(json.dumps(result))
"""


def test_tensor_descriptors_in_gluon_and_in_triton(tmp_path):
    found = run("import re" + DESCRIPTORS, small_implementations.write(tmp_path))
    info, passed, sizes, version = found["copy.tiles[BLOCK=128 num_warps=4][generic]@sm_90"]
    # A map, two sizes and two strides for each descriptor, then the number of rows, then Triton's hidden pointers.
    assert passed == 11 and sizes == [128, 4, 4, 8, 8, 128, 4, 4, 8, 8, 4, 8, 8] and info["parameters"] == 13
    assert info["ptx_version"] == version == "8.6"
    assert info["descriptors"] == 2 * [{"element_type": 6, "swizzle": 3, "box": [128, 64]}]
    for target in ("sm_90", "sm_120"):
        info, passed, sizes, version = found[f"copy.described[BLOCK=32 num_warps=4][generic]@{target}"]
        assert passed == 11 and sizes[:6] == [128, 4, 4, 8, 8, 128] and info["ptx_version"] == version == "8.7"
        assert [d["box"] for d in info["descriptors"]] == 2 * [[32, 64]]
    info, passed, sizes, version = found["copy.plain[BLOCK=16 num_warps=4][generic]@sm_90"]
    assert (passed, info["descriptors"], info["ptx_version"], version) == (6, [], "8.0", "8.0")


def test_warps_beyond_the_option_s_are_counted_from_the_image():
    """The producer warp and the second consumer of examples/matmul."""
    answer = run(
        """
        variant = next(v for v in variants("examples/matmul/recipe.yaml", "sm_90") if v.kernel == "matmul.hopper")
        image = compile.compile_variant(variant.spec, chain).image
        print(json.dumps([dict(variant.spec.options), image.info.threads, image.info.spills]))
        """
    )
    assert answer == [{"num_warps": 4}, 384, 0]


@pytest.mark.parametrize(
    ("old", "new", "line", "words"),
    [
        ("    wait(barrier)", "    wait(barriers)", 19, "barriers is not defined"),
        ("mbarrier.wait(barrier, 0)", "mbarrier.wait(barrier, phase)", 8, "phase is not defined"),
        ("[BLOCK, WIDTH], x_desc.layout", "[BLOCK, 48], x_desc.layout", 14, ""),
        ("tma.async_store(out_desc", "tma.async_copy(out_desc", 20, "async_copy"),
    ],
)
def test_a_mistake_in_gluon_is_told_by_its_place_in_the_file(tmp_path, old, new, line, words):
    assert small_implementations.GLUON.count(old) == 1
    path = small_implementations.write(tmp_path, gluon=small_implementations.GLUON.replace(old, new))
    told = run(
        """
        from kiln_recipe.errors import CompileError
        variant = next(v for v in variants(sys.argv[1], "sm_90") if v.kernel == "copy.tiles")
        try:
            compile.compile_variant(variant.spec, chain)
        except CompileError as error:
            print(json.dumps([error.stage, str(error)]))
        """,
        path,
    )
    assert told[0] == "ttir" and told[1].startswith(f"{tmp_path}/gluon_kernel.py:{line}: ") and words in told[1], told


def test_the_example_of_descriptors_in_plain_triton():
    """examples/silu for sm_90: two descriptors, copies by the tensor memory accelerator, one image for each dtype,
    since a residual is the other implementation's."""
    answer = run(
        """
        result = {}
        for variant in variants("examples/silu/recipe.yaml", "sm_90"):
            image = compile.compile_variant(variant.spec, chain).image
            copies = image.ptx.count("cp.async.bulk.tensor")
            result.setdefault(f"{variant.kernel} {variant.specialization}", []).append(
                [variant.functional, variant.spec.key(""), [d.box for d in image.info.descriptors], copies,
                 image.info.ptx_version])
        print(json.dumps(result))
        """
    )
    assert {name: len(found) for name, found in answer.items()} == {
        "silu.described generic": 4, "silu.general aligned": 4, "silu.general generic": 4,
    }  # fmt: skip
    described = answer.pop("silu.described generic")
    assert all(facts == [[[64, 64], [64, 64]], 2, "8.6"] for _, _, *facts in described)
    keys = {functional: key for functional, key, *_ in described}
    for dtype in ("fp16", "bf16"):
        assert keys[f"dtype={dtype} has_residual=false"] == keys[f"dtype={dtype} has_residual=true"]
    assert all(facts == [[], 0, "8.0"] for found in answer.values() for _, _, *facts in found)


@pytest.mark.parametrize(
    ("refuse", "expected"),
    [
        # No file has room: what /tmp holds after the compiler was ready. Python says EFBIG where a disk says ENOSPC.
        ("resource.RLIMIT_FSIZE, (0, 0)", "EnvironmentProblem: total for sm_90 cannot be compiled on this machine"),
        ("resource.RLIMIT_NOFILE, (os.dup(0), os.dup(0))", "allow more open files there"),
        ("resource.RLIMIT_NPROC, (0, 0)", "MemoryError"),
    ],
)
def test_what_the_system_refuses_is_no_verdict_on_the_variant(refuse, expected):
    """At the assembler's files and its process; the stages before have what they need."""
    if "NPROC" in refuse and os.getuid() == 0:
        refuse += "), os.setuid(65534"  # root has no limit of processes
    said = run(
        f"""
        import os, resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        (variant,) = [one for one in variants("examples/family/recipe.yaml", "sm_90") if one.kernel == "total"][:1]
        run = compile._Pipeline.run
        def at_the_assembler(self, stage):
            if stage == "cubin":
                resource.setrlimit({refuse})
            run(self, stage)
        compile._Pipeline.run = at_the_assembler
        sent, received = os.pipe()
        child = os.fork()
        if not child:
            try:
                compile.compile_variant(variant.spec, chain)
                said = "compiled"
            except BaseException as error:
                said = f"{{type(error).__name__}}: {{error}}"
            os.write(received, said.encode())
            os._exit(0)
        os.close(received)
        print(json.dumps(os.read(sent, 10_000).decode()))
        """
    )
    assert expected in said
