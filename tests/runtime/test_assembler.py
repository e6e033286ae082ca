"""NVIDIA's assembler makes the same bytes of a PTX each time, wherever it runs and whatever surrounds it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import nativebuild
import pytest

from kiln_build.native import native
from kiln_recipe.compile import assembler
from kiln_recipe.errors import EnvironmentProblem, ToolchainError
from kiln_recipe.images import elf

ROOT = Path(__file__).resolve().parents[2]
has_triton = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")

# The image whose bytes were seen to differ most: ptxas 12.9 made six of its PTX.
WORST = """
import dataclasses, importlib.util, json, sys
from pathlib import Path
from kiln_recipe import targets
from kiln_recipe.compile import assembler, compile, lock, toolchain
from kiln_recipe.plan import plan
from kiln_recipe.read import recipe

heap, folder = sys.argv[1], Path(sys.argv[2])
wheels = lock.read_lock(Path("input", lock.LOCK_NAME)).members_of("triton")
chain = toolchain.find_toolchain(Path(importlib.util.find_spec("triton").origin).parents[1], wheels)
chain = dataclasses.replace(chain, heap=heap)
compile.prepare_worker(chain)
selection = (("operation", ("attn_decode",)), ("dtype", ("fp16",)), ("head_dim", ("192",)))
made = plan.make_plan([recipe.load(Path("tritonsrc/flash/recipe.yaml"))], targets.parse("sm_90"), "core", selection)
variant = next(variant for variant in made.variants if variant.kernel == "attn_prefill.hopper")

ran, run = [], assembler.run
def recorded(heap, program, flags, *rest, **options):
    ran.append([program, *flags])
    return run(heap, program, flags, *rest, **options)
assembler.run = recorded
image = compile.compile_variant(variant.spec, chain).image
folder.joinpath("in.ptx").write_text(image.ptx)
folder.joinpath("image").write_bytes(image.code)
(words,) = ran
print(json.dumps(words))
"""


@pytest.fixture(scope="module")
def heap() -> Path:
    compiler = native.own_zig(nativebuild.cache() / "zig")
    return native.build_heap(ROOT, compiler, nativebuild.cache())


@has_triton
def test_one_image_whatever_the_path_the_names_the_environment_and_the_limits(heap, tmp_path):
    environment = os.environ | {"PYTHONPATH": str(ROOT / "v3python")}
    words = [sys.executable, "-c", WORST, str(heap), str(tmp_path)]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    program, *flags = json.loads(done.stdout.splitlines()[-1])
    expected = hashlib.sha256((tmp_path / "image").read_bytes()).hexdigest()

    far = tmp_path / ("a folder of a long name, " * 8) / ("and another " * 12)
    far.mkdir(parents=True)
    for name, path in (("ptxas", program), ("heap.so", heap), ("x.ptx", tmp_path / "in.ptx")):
        shutil.copy(path, far / name)
    script = "import json, sys; from kiln_recipe.compile import assembler; assembler.run(*json.loads(sys.argv[1]))"

    def assembled(where: Path, program: str, source: str, before: tuple[str, ...] = (), **variables: str) -> str:
        """The digest of the image that is made of `source` in a process of its own."""
        binary = where / "o"
        call = json.dumps([str(where / "heap.so"), program, flags, str(where / source), str(binary)])
        subprocess.run(
            [*before, sys.executable, "-c", script, call], env=environment | variables, check=True, capture_output=True
        )
        return hashlib.sha256(elf.strip(binary.read_bytes())).hexdigest()

    shutil.copy(heap, tmp_path / "heap.so")
    unlimited = ("sh", "-c", 'ulimit -s unlimited; exec "$@"', "sh")
    limited = resource.getrlimit(resource.RLIMIT_STACK)[1] != resource.RLIM_INFINITY
    digests = [
        assembled(tmp_path, program, "in.ptx"),
        assembled(far, str(far / "ptxas"), "x.ptx", TMPDIR=str(far)),
        assembled(tmp_path, program, "in.ptx", () if limited else unlimited, LD_LIBRARY_PATH="/a/" * 1000),
        assembled(far, program, "x.ptx", GLIBC_TUNABLES="glibc.malloc.tcache_count=0:glibc.malloc.mmap_threshold=1"),
    ]
    assert digests == [expected] * len(digests)


# ---- the heap ----

CALLS = r"""
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>

#define CHECK(what) do { if (!(what)) { printf("line %d: %s\n", __LINE__, #what); exit(1); } } while (0)
enum { BLOCKS = 4096 };

static void* churn(void* seed_of) {
  unsigned seed = *(unsigned*)seed_of;
  unsigned char* blocks[64] = {0};
  size_t sizes[64] = {0};
  for (int i = 0; i < 20000; ++i) {
    int at = rand_r(&seed) % 64;
    for (size_t k = 0; k < sizes[at]; ++k) CHECK(blocks[at][k] == (unsigned char)at);
    sizes[at] = rand_r(&seed) % (i % 50 ? 300 : 70000);
    if (i % 3) {
      free(blocks[at]);
      blocks[at] = i % 2 ? malloc(sizes[at]) : calloc(sizes[at], 1);
      for (size_t k = 0; i % 2 == 0 && k < sizes[at]; ++k) CHECK(!blocks[at][k]);
    } else {
      blocks[at] = realloc(blocks[at], sizes[at]);
    }
    CHECK(blocks[at] && (uintptr_t)blocks[at] % 16 == 0 && malloc_usable_size(blocks[at]) >= sizes[at]);
    memset(blocks[at], at, sizes[at]);
  }
  return 0;
}

int main(void) {
  unsigned seed = 1;
  static void* blocks[BLOCKS];
  uint64_t places = 0;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < BLOCKS; ++i) {
      blocks[i] = malloc(rand_r(&seed) % (i % 16 ? 2000 : 300000));
      CHECK(blocks[i]);
      places = places * 31 + (uintptr_t)blocks[i];
      free(rand_r(&seed) % 2 ? 0 : strdup("what the C library allocates"));
    }
    for (int i = 0; i < BLOCKS; ++i) free(blocks[(i * 7) % BLOCKS]);
  }
  printf("%p %016llx\n", blocks[0], (unsigned long long)places);
  for (size_t alignment = 8; alignment <= 1 << 20; alignment *= 2) {
    void *block, *second = memalign(alignment, 100);
    CHECK(!posix_memalign(&block, alignment, 5000) && (uintptr_t)block % alignment == 0);
    CHECK((uintptr_t)second % alignment == 0 && malloc_usable_size(block) >= 5000);
    memset(block, 7, 5000);
    unsigned char* larger = realloc(block, 90000);
    for (int k = 0; k < 5000; ++k) CHECK(larger[k] == 7);
    free(larger);
    free(second);
    free(aligned_alloc(alignment, alignment));
  }
  void* unchanged = &seed;
  CHECK(posix_memalign(&unchanged, 24, 8) == EINVAL && unchanged == &seed);
  volatile size_t huge = (size_t)1 << 63;
  errno = 0;
  CHECK(!malloc(huge) && errno == ENOMEM && !calloc(huge, 2) && !realloc(0, huge));
  CHECK(malloc(0) && (free(0), 1));
  pthread_t threads[4];
  unsigned seeds[4] = {1, 2, 3, 4};
  for (int i = 0; i < 4; ++i) pthread_create(&threads[i], 0, churn, &seeds[i]);
  for (int i = 0; i < 4; ++i) pthread_join(threads[i], 0);
  struct timeval now;
  CHECK(!gettimeofday(&now, 0) && !now.tv_sec);
  return 0;
}
"""


@pytest.fixture
def cc() -> str:
    found = shutil.which("cc") or shutil.which("clang")
    if not found:
        pytest.skip("clang is not installed")
    return found


def test_a_heap_that_is_whole_and_hands_out_the_same_addresses_each_time(heap, cc, tmp_path):
    (tmp_path / "calls.c").write_text(CALLS)
    program = tmp_path / "calls"
    subprocess.run([cc, "-O1", "-fno-builtin", "-pthread", "-o", program, tmp_path / "calls.c"], check=True)
    said = set()
    for number in range(4):
        environment = {"LD_PRELOAD": str(heap), "A": "a" * (1000 * number)}
        done = subprocess.run([program, "b" * number], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        said.add(done.stdout)
    (places,) = said
    assert places.startswith("0x1000")


def test_addresses_in_use_are_an_error_of_the_host(heap, cc, tmp_path):
    """A program with something of its own where the heap would be."""
    (tmp_path / "in.ptx").write_text("")
    there = '__attribute__((section(".there"), used)) int there = 1;'
    (tmp_path / "there.c").write_text(f"#include <stdlib.h>\n{there}\nint main(void) {{ return !malloc(1); }}\n")
    words = [cc, "-no-pie", "-fno-builtin", "-Wl,--section-start=.there=0x100000000000"]
    subprocess.run([*words, "-o", tmp_path / "there", tmp_path / "there.c"], check=True)
    with pytest.raises(EnvironmentProblem, match="/there cannot have its memory at the addresses that .* are in use"):
        assembler.run(str(heap), str(tmp_path / "there"), [], str(tmp_path / "in.ptx"), str(tmp_path / "o"), check=True)


def test_a_heap_that_is_not_loaded_is_an_error_of_the_host(tmp_path):
    (tmp_path / "heap.so").write_text("no library")
    with pytest.raises(EnvironmentProblem, match=r"heap\.so cannot be preloaded into /bin/cat, .*\(ERROR: ld\.so: "):
        assembler.run(str(tmp_path / "heap.so"), "/bin/cat", [], str(tmp_path / "in.ptx"), str(tmp_path / "o"))


@has_triton
def test_a_triton_that_assembles_in_another_way_is_an_error(heap):
    from triton.backends.nvidia import compiler as backend

    with (
        pytest.raises(ToolchainError, match="does not start its assembler by"),
        assembler.canonical(backend, str(heap)),
    ):
        pass
    with pytest.raises(ToolchainError, match="command with a.ptx --output o instead of"):
        with assembler.canonical(backend, str(heap)):
            backend.subprocess.run(["ptxas", "-v", "a.ptx", "--output", "o"])
    assert backend.subprocess is subprocess
