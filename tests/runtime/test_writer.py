"""The pack writer of v3python and this reader, each fed with the other's output."""

from __future__ import annotations

import hashlib
from pathlib import Path

import ffi
import packs
import pytest
from test_launch import arguments, work

from kiln_build.artifacts import pack, pack_writer, split
from kiln_recipe.images import image


def test_the_writers_packs_run(library, fake, bare, tmp_path):
    images: list[packs.Image] = []
    kernels = packs.toy_kernels("bare", "sm_80", images)
    by_digest, facts = {}, {}

    def keep(row: packs.Image) -> str:
        digest = hashlib.sha256(row.code).hexdigest()
        by_digest[digest] = row.code[:-1] if row.kind == 3 else row.code  # the writer ends PTX itself
        facts[digest] = image.ImageInfo("cubin", row.symbol, row.threads, row.shared, 40, 0, 0, row.parameters,
                                        row.scratch, row.scratch_align, 0, row.clusters, 7, "")  # fmt: skip
        return digest

    made = [
        pack.KernelSlots(
            kernel.family, kernel.operation, kernel.name, tuple(kernel.functionals), tuple(kernel.configurations),
            tuple(kernel.specializations), kernel.layout.hex(),
            tuple(
                pack.Slot(key.hex(), *(None if row == packs.NONE else keep(images[row]) for row in rows), reason)
                for *rows, reason, key in kernel.slots
            ),
        )
        for kernel in kernels
    ]  # fmt: skip
    path = Path(tmp_path) / packs.FILES["sm_80"]
    digest = pack_writer.write_pack(
        path, "sm_80", split.INSTRUCTIONS["sass"], "1.2.3", made, facts.__getitem__, by_digest.__getitem__,
        lambda code: [(0, len(code) // 2)],
    )  # fmt: skip
    with ffi.Kiln(library, fake, pack_path=str(tmp_path), trusted_packs=digest) as kiln:
        kiln.register(bare, "bare")
        assert len(kiln.variants("bare.mix", "sm_80")) == 26
        kiln.launch(work(kiln, arguments(rows=300), operation="bare.mix", stream=fake.stream(device=1)))
        kiln.launch(work(kiln, arguments(), operation="bare.mix", target="sm_80"))
        symbols = [launch.symbol for launch in fake.launches()]
        assert symbols == [b"main_0_0_aligned", b"reduce_fp16", b"main_0_0_aligned"]


@pytest.mark.parametrize("target", packs.FILES)
def test_these_packs_are_read_there(tmp_path, target):
    path = tmp_path / packs.FILES[target]
    data = packs.toy_pack(target)
    path.write_bytes(data)
    found = pack.read_pack(path)
    assert (found.target, found.release, found.index_digest) == (target, "1.2.3", packs.digest_of(data))
    for group in found.groups:
        stored = data[group.offset : group.offset + group.stored]
        assert len(pack.decode_group(stored, group, "x")) == group.decoded
