"""Whatever a file holds, `kiln` reads it within 256 MiB and a time that grows with its size, or says what is wrong."""

from __future__ import annotations

import os
import re

import pytest

import hostile
from hostile import changed, manifest_of
from limits import MOST_MEMORY, kiln

INSPECT, VERIFY, LIST = ("inspect",), ("inspect", "--verify"), ("list",)
SECONDS = 60  # of the processor; most take less than one, on a machine that does nothing else

HOSTILE = [
    # artifact, commands, exit code, what is said
    (hostile.gzip_bomb, (INSPECT, VERIFY, LIST), 6, "expands to more than 100 times its size"),
    (hostile.pax_header, (INSPECT, VERIFY), 6, "is not of a file, a folder or a link"),
    (hostile.long_manifest, (INSPECT,), 6, "its manifest has 8589934591 bytes, more than any release's"),
    (hostile.many_variants, (INSPECT, LIST, ("list", "--json"), ("inspect", "--json"), ("inspect", "--html")), 0, ""),
    (hostile.many_variants, (VERIFY,), 6, "is missing"),
    (hostile.too_many_variants, (INSPECT,), 6, "has more than 60000 rows in its table 'variants'"),
    (hostile.many_values, (INSPECT,), 6, "has more than 1500000 values"),
    (hostile.kernels_that_share_slots, (INSPECT, LIST), 6, "a kernel's names and slots do not match"),
    (hostile.slots_that_share_a_text, (INSPECT, LIST), 6, "a string is not a line of text"),
    (hostile.strings_without_letters, (INSPECT,), 6, "it has more strings than its rows use"),
    (hostile.images_that_overlap, (INSPECT, VERIFY), 6, "an image lies outside of its group"),
    (hostile.groups_that_expand, (INSPECT, VERIFY), 6, "its images are more than 100 times its size"),
    (hostile.large_group_of_little, (INSPECT, VERIFY), 6, "takes more bytes than its decoded size can need"),
    (hostile.debugging_without_bytes, (INSPECT, VERIFY), 0, ""),
    (hostile.selectors_alone, (VERIFY,), 6, "cannot be decoded (a frame ends within its planes)"),
    (hostile.many_slots, (INSPECT, LIST, ("list", "--missing"), ("list", "--json"), ("inspect", "--html")), 0, ""),
    (hostile.compressed_section, (INSPECT,), 6, "it has a compressed section; no image has"),
    (hostile.broken_compression, (INSPECT,), 6, "it has a compressed section; no image has"),
    (hostile.many_attributes, (INSPECT,), 6, ".nv.info has more than 262144 bytes"),
    (hostile.many_symbols, (INSPECT,), 6, "has more than 4096 symbols"),
    (hostile.long_names, (INSPECT,), 6, "a name has no end, or more than 1024 bytes"),
    (hostile.many_sections, (INSPECT,), 6, "or there are more than 256"),
    (hostile.many_notes, (INSPECT,), 6, "bytes of notes; an image has 262144 at most"),
    (hostile.deep_metadata, (INSPECT,), 6, "MessagePack is truncated or nested too deeply"),
    (hostile.deep_yaml, (("recipes",), ("plan", "--recipe")), 3, "is too large or nested too deep"),
    (hostile.laughing_yaml, (("recipes",),), 3, "is too large or nested too deep"),
    (hostile.lock_of(b"a: " + b"[" * 100_000), (("unbundle",),), 6, "is too large or nested too deep"),
    (hostile.lock_of(b"a: &a [*a]"), (("unbundle",),), 6, "is too large or nested too deep"),
]

MALFORMED = {
    "a list for an object": changed(lambda d: d.update(source=["a"])),
    "an object for a list": changed(lambda d: d.update(files={"a": 1})),
    "a number for a text": changed(lambda d: d.update(kiln=1)),
    "a text for a number": changed(lambda d: d["images"][0].update(registers="many")),
    "a number for a row": changed(lambda d: d["variants"].append(7)),
    "null for a table": changed(lambda d: d.update(waivers=None)),
    "a table that is missing": changed(lambda d: d.pop("tools")),
    "a field that is missing": changed(lambda d: d["targets"][0].pop("lowest_driver")),
    "an unknown field": changed(lambda d: d["source"].update(branch="main")),
    "a fraction": changed(lambda d: d["files"][0].update(bytes=1.5)),
    "a negative number": changed(lambda d: d["files"][0].update(bytes=-1)),
    "a huge number": changed(lambda d: d["files"][0].update(bytes=10**4000)),
    "not a number": changed(lambda d: d.update(ptx=float("nan"))),
    "a list of lists": changed(lambda d: d["targets"][0].update(runs_on=[[["sm_90"]]])),
    "a path outside": changed(lambda d: d["files"][0].update(path="../../etc/passwd")),
    "a pack outside": changed(lambda d: d["targets"][0].update(pack="../../x.pack")),
    "an escape": changed(lambda d: d["waivers"][0].update(reason="\x1b[2J")),
    "half a character": manifest_of('{\n "format": 2,\n "kiln": "\\ud800"\n}\n'),
    "nesting": manifest_of('{\n "format": 2,\n "kiln": ' + "[" * 100_000),
    "no text": manifest_of(""),
    "a text alone": manifest_of('"format": 2 '),
    "another spelling": manifest_of('{"format": 2, "files": []}'),
}


def words_of(command: tuple[str, ...], path, tmp_path) -> list[object]:
    if command == ("unbundle",):
        return ["fetch", "--input", tmp_path / "input", "--unbundle", path]
    more = [tmp_path / "page.html"] if command[-1] == "--html" else []
    return [command[0], path, *command[1:], *more] if "--recipe" not in command else [*command, path]


@pytest.mark.parametrize(("make", "commands", "code", "sentence"), HOSTILE)
def test_within_its_limits(tmp_path, make, commands, code, sentence):
    path = make(tmp_path)
    for command in commands:
        done = kiln(*words_of(command, path, tmp_path))
        said = done.err.strip()
        print(f"| {getattr(make, '__name__', 'lock')} | {' '.join(command)} | {done.seconds:.1f} s "
              f"| {done.memory >> 20} MiB | {done.code} | {said[-200:]} |")  # fmt: skip
        assert done.code == code, (command, said)
        assert sentence in said and len(said.splitlines()) <= 1 and said.isprintable()
        assert done.memory < MOST_MEMORY and done.seconds < SECONDS


@pytest.mark.parametrize("name", MALFORMED)
@pytest.mark.parametrize("command", [INSPECT, VERIFY, LIST, ("wheel",)], ids=" ".join)
def test_a_malformed_manifest_is_a_sentence(tmp_path, name, command, capsys):
    from kiln_build.cli import main

    path = MALFORMED[name](tmp_path)
    words = ["wheel", str(path), str(tmp_path / "wheels")] if command == ("wheel",) else [command[0], str(path)]
    assert main([*words, *command[1:]]) == 6
    err = capsys.readouterr().err
    assert re.match(f"kiln: {re.escape(str(path))}: its manifest .", err), err
    assert len(err.splitlines()) == 1 and err.strip().isprintable() and len(err) < 600
    assert not (tmp_path / "wheels").exists()


def test_what_is_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", "/dev/zero", "/dev/null"):
        for verb in ("inspect", "list"):
            done = kiln(verb, path)
            assert done.code == 7 and len(done.err.splitlines()) == 1
            assert done.err.startswith(
                f"kiln: {path} is a pipe or a device, which Kiln does not read; give a release's "
            )
        (tmp_path / "input").mkdir(exist_ok=True)
        done = kiln("fetch", "--input", tmp_path / "input", "--unbundle", path)
        assert (done.code, done.err) == (6, f"kiln: {path} is not a file\n")


def test_foreign_names_do_nothing_to_a_terminal(tmp_path):
    name = "\x1b[2J\u202eevil\n.pack"
    (tmp_path / name).write_bytes(hostile.seal(b"x" * 40))
    done = kiln("inspect", tmp_path / name)
    assert done.code == 6 and "\\x1b[2J\\u202eevil" in done.err and "\x1b" not in done.err and "\u202e" not in done.err
    code = hostile.image("sm_90-256-fp16").replace(b".nv.info.scale\0", b".nv.info.\x1b[2J\0\0")
    (tmp_path / "image").write_bytes(code)
    done = kiln("inspect", tmp_path / "image")
    assert done.code == 6 and "a name is not a line of text" in done.err and "\x1b" not in done.err + done.out
