"""The state of a GPU and its driver: by nvidia-smi, or by what Linux's driver amdgpu shows in /sys."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
from pathlib import Path

_QUERY = (
    "name", "driver_version", "clocks.sm", "clocks.max.sm", "clocks.mem", "power.draw", "power.limit", "memory.total",
)  # fmt: skip
_DEVICES, _MODULES = Path("/sys/bus/pci/devices"), Path("/sys/module")
_OF_AMD = "0x1002"


def of_torch() -> dict[str, str]:
    """Of PyTorch's current device, by the names of nvidia-smi's query; those that are known, none without a device."""
    import torch

    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties()
    if not torch.version.hip:
        return nvidia_smi(str(getattr(properties, "uuid", "")))
    if not hasattr(properties, "pci_domain_id"):
        return amdgpu()
    domain, bus, device = properties.pci_domain_id, properties.pci_bus_id, properties.pci_device_id
    return amdgpu(f"{domain:04x}:{bus:02x}:{device:02x}.0")


def nvidia_smi(uuid: str = "") -> dict[str, str]:
    """The state of an NVIDIA GPU, by default the first; empty without the program."""
    which = [f"--id=GPU-{uuid}"] if uuid else []
    try:
        done = subprocess.run(
            ["nvidia-smi", *which, f"--query-gpu={','.join(_QUERY)}", "--format=csv,noheader"],
            capture_output=True, text=True, check=False, timeout=30,
        )  # fmt: skip
        return dict(zip(_QUERY, map(str.strip, done.stdout.splitlines()[0].split(","))))
    except (OSError, IndexError, subprocess.TimeoutExpired):
        return {}


def amdgpu(pci: str = "") -> dict[str, str]:
    """The same of an AMD GPU, "0000:c1:00.0", by default the first; what /sys does not show is missing. Its clock is
    that of the compute units.

    Source: Linux's documentation of amdgpu, "Driver-specific sysfs" and "Power management" (hwmon, pp_dpm_sclk).
    """
    found = {"driver_version": driver("amd")}
    folder = _DEVICES / pci if pci else next(filter(_is_amdgpu, sorted(_DEVICES.glob("*"))), None)
    if folder is None:
        return found
    levels = re.findall(r"(\d+)\s*mhz", _text(folder / "pp_dpm_sclk").lower())
    if levels:
        found["clocks.max.sm"] = f"{max(map(int, levels))} MHz"
    for name, file, unit, size in (
        ("clocks.sm", "freq1_input", "MHz", 1e6), ("power.limit", "power1_cap", "W", 1e6),
        ("power.draw", "power1_average", "W", 1e6), ("power.draw", "power1_input", "W", 1e6),
    ):  # fmt: skip
        for path in sorted(folder.glob(f"hwmon/hwmon*/{file}")):
            if (text := _text(path)).isdecimal():
                found.setdefault(name, f"{round(int(text) / size)} {unit}")
    return found


def driver(vendor: str) -> str:
    """The version of the vendor's kernel driver; of one that came with Linux, Linux's; "" where it is not shown."""
    if vendor == "amd":
        there = (_MODULES / "amdgpu").is_dir()
        return _text(_MODULES / "amdgpu/version") or (f"Linux {platform.release()}" if there else "")
    return _text(_MODULES / "nvidia/version") or nvidia_smi().get("driver_version", "")


def _is_amdgpu(folder: Path) -> bool:
    return _text(folder / "vendor") == _OF_AMD and (folder / "pp_dpm_sclk").is_file()


def _text(path: Path) -> str:
    """A file's text; "" if it cannot be read."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text().strip()
    return ""
