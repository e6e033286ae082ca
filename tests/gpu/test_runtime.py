"""The runtime on a real driver: contexts, streams, graphs, threads, fork, memory, unloading."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import threading
from pathlib import Path

import ffi
import pytest

SCRIPTS = Path(__file__).with_name("scripts")


def run_script(name: str, prefix: Path, *words: object) -> dict:
    """Runs scripts/<name>.py in a process of its own; the last line that it prints is JSON."""
    command = [sys.executable, str(SCRIPTS / f"{name}.py"), str(prefix), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"exit code {done.returncode}\n{done.stdout}\n{done.stderr}"
    return json.loads(done.stdout.splitlines()[-1])


def small(seed: int = 0):
    from calls import Call
    from check import Expected

    call = Call(
        dtype="fp16", batch=2, heads=4, heads_kv=4, rows=257, keys=257, causal=True, backward=False, number=seed
    )
    want = Expected(call, "cuda", None)
    want.q, want.k, want.v = (storage.values for storage in (want.inputs.q, want.inputs.k, want.inputs.v))
    return want


def check(want, out) -> None:
    from judge import Verdict

    verdict = Verdict()
    verdict.compare("out", out.reshape(-1), want.exact["out"], want.low["out"])
    assert not verdict.wrong(), verdict.wrong()


def test_devices_are_listed(flash, record):
    import torch

    devices = flash.kiln.devices()
    assert len(devices) >= torch.cuda.device_count()
    properties = torch.cuda.get_device_properties(0)
    first = next(device for device in devices if device["vendor"] == ffi.NVIDIA and device["ordinal"] == 0)
    assert first["name"].decode() == properties.name
    assert first["multiprocessors"] == properties.multi_processor_count
    assert first["target"].decode() == f"sm_{properties.major}{properties.minor}"
    assert first["id"].decode().removeprefix("GPU-") == str(properties.uuid).removeprefix("GPU-")
    assert first["refusal"] is None
    record("device", name=properties.name, target=first["target"].decode(), multiprocessors=first["multiprocessors"])


def test_the_context_stays_what_it_was(flash):
    import cudadriver
    import torch

    want = small()
    out = torch.empty_like(want.q)
    before = cudadriver.current()
    flash.attention(want.q, want.k, want.v, out, causal=True)
    assert cudadriver.current() == before
    with pytest.raises(ffi.Failure):
        flash.attention(want.q, want.k[:, :, :5], want.v, out, causal=True)
    assert cudadriver.current() == before


def test_a_second_context(flash):
    """Images are loaded once; they run in a context that came later, on memory and a stream of its own."""
    import cudadriver
    import numpy as np
    import torch

    want = small()
    flash.attention(want.q, want.k, want.v, torch.empty_like(want.q), causal=True)
    torch.cuda.synchronize()
    arrays = [t.cpu().numpy() for t in (want.q, want.k, want.v)]
    with cudadriver.second_context() as context:
        memory = [cudadriver.Memory(array) for array in (*arrays, np.full_like(arrays[0], np.nan))]
        stream = ctypes.c_void_p()
        cudadriver.call("cuStreamCreate", ctypes.byref(stream), 1)
        names = ("q", "k", "v", "out")
        views = {name: ffi.tensor(m.address.value, ffi.FP16, m.like.shape) for name, m in zip(names, memory)}
        flash.enqueue("kiln_attn_fwd", ffi.AttnFwd(causal=1), views, stream=stream.value)
        assert cudadriver.current() == context
        cudadriver.call("cuStreamSynchronize", stream)
        out = memory[3].read()
    check(want, torch.from_numpy(out).cuda())


def test_a_green_context(flash):
    import cudadriver
    import torch

    want = small()
    out = torch.full_like(want.q, torch.nan)
    torch.cuda.synchronize()
    try:
        with cudadriver.green_stream() as stream:
            flash.attention(want.q, want.k, want.v, out, causal=True, stream=stream)
    except AttributeError:
        pytest.skip("the driver has no green contexts")
    check(want, out)


def test_a_side_stream_keeps_order(flash):
    """Work on the stream before the call is done before it, and the call before the work after it."""
    import torch

    want = small()
    stream = torch.cuda.Stream()
    q = torch.zeros_like(want.q)
    out = torch.full_like(want.q, torch.nan)
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # some 10 ms
        q.copy_(want.q)
        flash.attention(q, want.k, want.v, out, causal=True)
        copy = out.clone()
        q.zero_()
    stream.synchronize()
    check(want, copy)


def test_the_null_stream_names_the_current_device(flash):
    import torch

    want = small()
    out = torch.full_like(want.q, torch.nan)
    flash.attention(want.q, want.k, want.v, out, causal=True, stream=0)
    torch.cuda.synchronize()
    check(want, out)


def test_a_stream_of_another_device_is_refused(flash):
    import torch

    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    want = small()
    with torch.cuda.device(1):
        stream = torch.cuda.Stream()
    with pytest.raises(ffi.Failure) as raised:
        flash.attention(
            want.q, want.k, want.v, torch.empty_like(want.q), causal=True, stream=stream.cuda_stream, device=0
        )
    assert raised.value.status == ffi.QUEUE


@pytest.mark.parametrize("loaded", [True, False], ids=["loaded before", "first loaded inside"])
def test_graph_capture_and_replay(prefix, flash, loaded):
    import torch
    from release import Flash

    with Flash(prefix) as fresh:
        want, other = small(), small(seed=1)
        q, k, v = (t.clone() for t in (want.q, want.k, want.v))
        out = torch.full_like(q, torch.nan)
        if loaded:
            fresh.attention(q, k, v, out, causal=True)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            fresh.attention(q, k, v, out, causal=True)
        for inputs in (want, other, want):
            for mine, new in zip((q, k, v), (inputs.q, inputs.k, inputs.v)):
                mine.copy_(new)
            out.fill_(torch.nan)
            graph.replay()
            torch.cuda.synchronize()
            check(inputs, out)
        del graph


def test_eight_threads_at_the_first_call(prefix):
    import torch
    from release import Flash

    want = small()
    outs = [torch.full_like(want.q, torch.nan) for _ in range(8)]
    streams = [torch.cuda.Stream() for _ in range(8)]
    torch.cuda.synchronize()
    with Flash(prefix) as fresh:
        barrier, failures = threading.Barrier(8), []

        def work(number: int) -> None:
            try:
                with torch.cuda.stream(streams[number]):
                    barrier.wait()
                    for _ in range(50):
                        fresh.attention(want.q, want.k, want.v, outs[number], causal=True)
            except Exception as error:  # noqa: BLE001  a thread's failure is the test's
                failures.append(error)

        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        torch.cuda.synchronize()
        assert not failures
        for out in outs:
            check(want, out)


def test_a_call_after_fork_says_so(prefix):
    answer = run_script("after_fork", prefix)
    assert answer["parent_before"] == answer["parent_after"] == ffi.OK
    assert answer["child_call"] == answer["child_devices"] == ffi.FORKED
    assert "fork" in answer["child_sentence"]
    # The driver does not work in a child of a process that used it; that is said, not crashed on.
    assert answer["child_own_devices"] in (ffi.DRIVER, ffi.NO_DEVICE)
    assert answer["child_exit"] == 0


def test_close_and_dlclose_leave_nothing(prefix, record):
    answer = run_script("unload", prefix)
    record("unload", **answer)
    assert answer["mapped_before"] and not answer["mapped_after"]
    assert answer["leaked_bytes"] <= 0, "device memory is missing after 20 rounds of open, call and close"


def test_images_are_released_by_close(prefix):
    """Twenty more runtimes in this process, with all of PyTorch around, take no more device memory than one did."""
    import torch
    from release import Flash

    want = small()
    out = torch.empty_like(want.q)
    free = []
    for _ in range(20):
        with Flash(prefix) as fresh:
            fresh.attention(want.q, want.k, want.v, out, causal=True)
            torch.cuda.synchronize()
        free.append(torch.cuda.mem_get_info()[0])
    assert free[-1] >= free[1], f"free memory went from {free[1]} to {free[-1]} bytes"
