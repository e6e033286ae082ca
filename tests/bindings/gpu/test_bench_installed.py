"""`kiln bench` as a user of the wheels runs it."""

from __future__ import annotations

import json
import subprocess
import sys

from conftest import need


def test_the_package_that_is_installed(tmp_path):
    need("torch")
    shapes, kept = tmp_path / "shapes.json", tmp_path / "results.json"
    call = {"head_dim": 128, "heads": 8, "length": 1024, "batch": 2, "causal": True}
    shapes.write_text(json.dumps({"training": [call]}))
    words = ["--shapes", shapes, "--only", "forward,backward,host", "--budget", "30s", "--json", kept]
    command = [sys.executable, "-m", "kiln", "bench", *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(kept.read_text())
    host, forward, backward = found["rows"]
    assert (forward["part"], backward["part"]) == ("forward", "backward") and found["about"]["releases"][0]["pack"]
    assert {"kiln", "flash"} <= forward["milliseconds"].keys() & backward["milliseconds"].keys()
    assert host["wrong"] == host["refused"] == {} and not host.get("skipped")
    assert {"kiln.torch.attention", "F.scaled_dot_product_attention"} <= host["microseconds"].keys()
