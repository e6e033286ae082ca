"""Bytes of a pack against xz per image, and the time in which the runtime decodes its largest group.

    python benchmarks/pack/run.py --prefix <unpacked>/kiln --targets sm_90 gfx942 [--jobs 2] [--json FILE]

The yardstick is what a kernel archive holds elsewhere: each image as Triton makes it by default (with line
information), compressed by xz at its default level. The images are compiled anew for that, from the same plan as the
pack; one for each image of the pack. Both sides are measured in this one run. Decoding is csrc/core's, compiled as
the release's library is: reading the file, digests, zstd, the order of the code.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import lzma
import os
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "v3python"))

from kiln_build.artifacts import pack  # noqa: E402
from kiln_build.native import native  # noqa: E402
from kiln_build.release import package  # noqa: E402
from kiln_recipe import targets  # noqa: E402
from kiln_recipe.compile import compile as compile_module  # noqa: E402
from kiln_recipe.compile import lock, toolchain  # noqa: E402
from kiln_recipe.images import elf  # noqa: E402
from kiln_recipe.plan import plan  # noqa: E402
from kiln_recipe.read import recipe  # noqa: E402


def _prepare(chain: toolchain.Toolchain) -> None:
    # Triton's defaults: line information stays, nothing is stripped.
    toolchain.PINNED_ENVIRONMENT = {"TRITON_DUMP_PTXAS_LOG": "1"}
    compile_module.PINNED_ENVIRONMENT = toolchain.PINNED_ENVIRONMENT
    elf.strip = lambda code: code
    with tempfile.TemporaryFile() as log:  # what compilers print is read back from a file of this process's own
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    compile_module.prepare_worker(chain)


def _default_image(job: tuple) -> tuple[int, int]:
    spec, chain = job
    code = compile_module.compile_variant(spec, chain).image.code
    return len(code), len(lzma.compress(code))


def _decoder(folder: Path) -> ctypes.CDLL:
    """decode.cc with the runtime's own sources, by the release's compiler and flags."""
    the_lock = lock.read_lock(ROOT / "input" / lock.LOCK_NAME)
    vendored = native.extract_sources(the_lock, ROOT / "input/cache", folder)
    compiler = native.own_zig(folder / "zig")
    environment = {**os.environ, **dict(compiler.environment)}
    include = folder / "include/kiln"
    include.mkdir(parents=True)
    for header in native.CORE_HEADERS:
        (include / header).write_bytes((ROOT / "include/kiln" / header).read_bytes())
    template = (ROOT / "include/kiln/version.h.in").read_text()
    (include / "version.h").write_text(package.version_header(template, "0.0"))
    core, flags = ROOT / "csrc/core", native.read_flags(ROOT)
    sources = [core / name for name in (core / "sources.txt").read_text().split()]
    objects = []
    for source in (
        Path(__file__).with_name("decode.cc"),
        *sources,
        *(vendored[name] / f"{name}.c" for name in vendored),
    ):
        objects.append(folder / f"{source.stem}.o")
        command = (*compiler.c, *flags.zstd) if source.suffix == ".c" else (*compiler.cxx, *flags.cxx)
        places = ("-I", core, *(f"-I{place}" for place in vendored.values()), "-I", folder / "include")
        words = [*command, *places, "-c", source, "-o", objects[-1]]
        subprocess.run(list(map(str, words)), env=environment, check=True)
    library = folder / "decode.so"
    subprocess.run([*compiler.c, "-shared", *map(str, objects), "-o", str(library)], env=environment, check=True)
    return ctypes.CDLL(str(library))


def _decoding(decoder: ctypes.CDLL, path: Path, packed: pack.Pack) -> float:
    """Milliseconds, the median of many."""
    times = (ctypes.c_double * 101)()
    digest = bytes.fromhex(packed.index_digest)
    status = decoder.time_decoding(str(path).encode(), packed.target.encode(), digest, times, len(times))
    if status:
        raise SystemExit(f"{path}: the runtime refuses it with status {status}")
    return statistics.median(times)


def measure(prefix: Path, target_name: str, jobs: int, recipes: list[Path], profile: str, decoder: ctypes.CDLL) -> dict:
    """Sizes in bytes and decoding time in milliseconds for one target's pack."""
    target = targets.by_name(target_name)
    path = prefix / "lib" / "kiln.images" / f"{target.vendor}-{target.name}.pack"
    packed = pack.read_pack(path)
    chain = toolchain.find_toolchain(_site(), lock.read_lock(ROOT / "input" / lock.LOCK_NAME).members_of("triton"))
    wanted = {slot.key: slot.image for kernel in packed.kernels for slot in kernel.slots if slot.image}
    made = plan.make_plan([recipe.load(path) for path in recipes], (target,), profile, (), ROOT / "tuning")
    specs, seen = [], set()
    for variant in made.variants:
        image = wanted.get(variant.spec.key(chain.identity))
        if image is not None and image not in seen:  # one for each image: shared ones count once on both sides
            seen.add(image)
            specs.append(variant.spec)
    if len(specs) != len(set(wanted.values())):
        raise SystemExit(f"the plan does not cover {path}: build the release from this tree with profile {profile}")
    with ProcessPoolExecutor(jobs, get_context("spawn"), _prepare, (chain,)) as pool:
        sizes = list(pool.map(_default_image, [(spec, chain) for spec in specs]))
    data = path.read_bytes()
    largest = max(packed.groups, key=lambda group: group.decoded)
    xz = sum(size for _, size in sizes)
    return {
        "target": target_name,
        "images": len(sizes),
        "default_bytes": sum(size for size, _ in sizes),
        "xz_bytes": xz,
        "pack_bytes": len(data),
        "pack_to_xz": round(len(data) / xz, 4),
        "groups": len(packed.groups),
        "largest_group_bytes": largest.decoded,
        "largest_group_ms": round(_decoding(decoder, path, packed), 3),
        "pack_digest": hashlib.sha256(data).hexdigest(),
    }


def _site() -> Path:
    import importlib.util

    return Path(importlib.util.find_spec("triton").submodule_search_locations[0]).parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prefix", type=Path, required=True, help="the unpacked release's folder `kiln`")
    parser.add_argument("--targets", nargs="+", default=["sm_90", "gfx942"])
    parser.add_argument("--recipes", nargs="+", type=Path, default=[ROOT / "tritonsrc/flash/recipe.yaml"])
    parser.add_argument("--profile", default="core")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        decoder = _decoder(Path(folder))
        rows = [
            measure(arguments.prefix, name, arguments.jobs, arguments.recipes, arguments.profile, decoder)
            for name in arguments.targets
        ]
    columns = [key for key in rows[0] if key != "pack_digest"]
    for line in [columns] + [[str(row[c]) for c in columns] for row in rows]:
        print("  ".join(f"{word:>{max(len(c), 10)}}" for word, c in zip(line, columns)))
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
