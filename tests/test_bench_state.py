"""What is told of an AMD GPU, by files as Linux's driver shows them; and whose GPU the tuner takes."""

from __future__ import annotations

import contextlib
import types

import pytest

from kiln_bench import state

CLOCKS = "0: 132Mhz\n1: 1735Mhz *\n2: 2100Mhz\n"


@pytest.fixture
def sys(tmp_path, monkeypatch):
    """A host with two of AMD's GPUs and a network card."""
    for name, vendor, files in (
        ("0000:01:00.0", "0x15b3", {}),
        ("0000:c1:00.0", "0x1002", {"pp_dpm_sclk": CLOCKS, "hwmon/hwmon3/freq1_input": "1735000000\n",
                                    "hwmon/hwmon3/power1_cap": "750000000\n",
                                    "hwmon/hwmon3/power1_input": "312000000\n"}),
        ("0000:c2:00.0", "0x1002", {"pp_dpm_sclk": "0: 500Mhz *\n"}),
    ):  # fmt: skip
        for file, text in {"vendor": vendor + "\n", **files}.items():
            path = tmp_path / "devices" / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    (tmp_path / "module/amdgpu").mkdir(parents=True)
    monkeypatch.setattr(state, "_DEVICES", tmp_path / "devices")
    monkeypatch.setattr(state, "_MODULES", tmp_path / "module")
    return tmp_path


def test_an_amd_gpu_by_what_linux_shows(sys, monkeypatch):
    monkeypatch.setattr(state.platform, "release", lambda: "6.8.0")
    right = {"driver_version": "Linux 6.8.0", "clocks.max.sm": "2100 MHz", "clocks.sm": "1735 MHz",
             "power.limit": "750 W", "power.draw": "312 W"}  # fmt: skip
    assert state.amdgpu("0000:c1:00.0") == right == state.amdgpu()
    assert state.amdgpu("0000:c2:00.0") == {"driver_version": "Linux 6.8.0", "clocks.max.sm": "500 MHz"}
    (sys / "module/amdgpu/version").write_text("6.12.12\n")
    assert state.amdgpu("0000:ff:00.0") == {"driver_version": "6.12.12"}


def test_a_host_that_shows_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(state, "_DEVICES", tmp_path / "devices")
    monkeypatch.setattr(state, "_MODULES", tmp_path / "module")
    assert state.amdgpu() == {"driver_version": ""}


def test_pytorchs_device_is_the_one_that_is_told_of(sys, monkeypatch):
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    properties = types.SimpleNamespace(pci_domain_id=0, pci_bus_id=0xC2, pci_device_id=0)
    monkeypatch.setattr(torch.version, "hip", "6.4")
    assert state.of_torch() == {}
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda: properties)
    assert state.of_torch()["clocks.max.sm"] == "500 MHz"


@pytest.mark.parametrize(("hip", "vendor"), [("6.4", "amd"), (None, "nvidia")])
def test_the_tuner_takes_the_vendors_gpu_that_pytorch_is_for(hip, vendor, monkeypatch):
    """Of a host with GPUs of both."""
    torch = pytest.importorskip("torch", reason="needs PyTorch")
    from kiln_bench.tune import session

    class Libraries:
        version = "0.1.0b"

        def __init__(self, *_: object, vendor: str) -> None:
            self.vendor = {"nvidia": 1, "amd": 2}[vendor]

        def devices(self) -> list[dict]:
            return [
                {"vendor": 1, "name": "H200", "target": "sm_90", "multiprocessors": 132},
                {"vendor": 2, "name": "MI300X", "target": "gfx942", "multiprocessors": 304},
            ]

    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(session.measure, "check_device", lambda command: None)
    monkeypatch.setattr(session.capture, "own_stream", contextlib.nullcontext)
    monkeypatch.setattr(session.headers, "read", lambda folder: None)
    monkeypatch.setattr(session, "Libraries", lambda *words, **more: contextlib.nullcontext(Libraries(*words, **more)))
    place = types.SimpleNamespace(name="r", libraries=None, headers=None, pack=lambda target: {"sha256": "0" * 64})
    target = {"amd": "gfx942", "nvidia": "sm_90"}[vendor]
    with session.opened(place, target) as (_, about):
        assert about["device"] == {"amd": "MI300X", "nvidia": "H200"}[vendor]
