"""What comes after the last compile: packing a full profile, and the release after an edit of one kernel.

    python benchmarks/farm/packing.py --cores 0-63 --targets sm_90 --profile full --out out [--store FOLDER]

Builds a copy of this tree into an empty workspace, edits a kernel in the copy, and builds again. Seconds are those of
the builds' timelines, from the last compile's end: to the last pack, and to the tarball. --store names a store to copy,
so that the first build compiles only what that lacks. Fails (exit code 1) if the first build's packs, or the second
one's tarball, come later than --packed and --edited allow; 0 means: not judged.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from releases import ROOT, Bench, Build, parser_of, say, store_of

# The edit: a kernel that few images use (attn_decode_combine), and a number of it.
FILE = "tritonsrc/flash/attn_decode_combine.py"
OLD, NEW = (
    'shift = tl.where(row_max == float("-inf"), 0.0, row_max)',
    'shift = tl.where(row_max == float("-inf"), 1.0, row_max)',
)


def copy_of_tree(folder: Path) -> Path:
    """The files that git has of this tree, as they are; where it is no checkout, all but what builds leave there."""
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, check=False)
    if listed.returncode:
        left_out = shutil.ignore_patterns(".git", ".kiln", ".venv", "*.whl", "out", "output")
        return Path(shutil.copytree(ROOT, folder, symlinks=True, ignore=left_out))
    for name in filter(None, listed.stdout.decode().split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)
    return folder


def after(build: Build) -> dict:
    """What a build took after its last compile."""
    made = build.wait()
    if made["code"]:
        sys.exit(f"{build.name}: exit code {made['code']}; {build.log}")
    ends = made["ends"]
    last = made["last_compile"] or ends["compile"]
    made |= {"packed after": round(ends["pack"] - last, 2), "released after": round(ends["tarball"] - last, 2)}
    say(f"{build.name}: {made['jobs']} jobs, the last ends at {last:.1f} s; packed {made['packed after']} s later, "
        f"released {made['released after']} s later")  # fmt: skip
    return made


def main() -> int:
    parser = parser_of(__doc__, "sm_90")
    parser.add_argument("--profile", default="full", help="core or full; default: %(default)s")
    parser.add_argument("--jobs", type=int, help="default: as many as there are processors")
    parser.add_argument("--store", type=store_of, help="a store that is copied first")
    parser.add_argument("--packed", type=float, default=0, help="seconds after which the packs may be there")
    parser.add_argument("--edited", type=float, default=0, help="seconds after which an edit's release may be there")
    parser.add_argument("--name", default="packing", help="of this run's results; default: %(default)s")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    bench.tree = copy_of_tree(bench.scratch / f"{arguments.name}-tree")
    jobs, store = arguments.jobs or len(arguments.cores), bench.scratch / f"{arguments.name}-store"
    shutil.rmtree(store, ignore_errors=True)
    if arguments.store:
        shutil.copytree(arguments.store, store)
    given = {"KILN_PROFILE": arguments.profile, "KILN_STORE": str(store)}
    first = after(bench.build(arguments.name, arguments.cores, jobs, **given))
    bench.keep(arguments.name, first)
    kernel = bench.tree / FILE
    text = kernel.read_text()
    if OLD not in text:
        sys.exit(f"{FILE} no longer has the line that is edited here: {OLD}")
    kernel.write_text(text.replace(OLD, NEW))
    name = f"{arguments.name}-edited"
    second = after(bench.build(name, arguments.cores, jobs, folder=arguments.name, **given))
    bench.keep(name, second)
    limits = ((first["packed after"], arguments.packed), (second["released after"], arguments.edited))
    return 0 if all(not limit or took <= limit for took, limit in limits) else 1


if __name__ == "__main__":
    sys.exit(main())
