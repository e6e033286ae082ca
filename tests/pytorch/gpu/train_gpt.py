"""A small GPT, trained from one seed with Kiln's attention and with PyTorch's: are the losses those of each other?

    PYTHONPATH=<wheels> python3 tests/pytorch/gpu/train_gpt.py FOLDER [--steps 200]

Leaves FOLDER/gpt.json with the losses of each step, and FOLDER/gpt.svg where matplotlib is installed (elsewhere later,
by --plot). Sums of PyTorch's are in no order, so that no kernel trains the same way twice: each does it several times,
and how far a run of PyTorch's is from its others is the noise. Fails where a run of Kiln's is half as far again from
PyTorch's as the farthest of those, or a loss is no number. The first steps, before differences have grown, are told
and not judged: there one rounding that falls the other way decides how far a run is. The text is Python's own library,
byte by byte. Dropout is off: every draw would differ.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import sysconfig
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from statistics import mean, median

sys.path.append(str(Path(__file__).resolve().parents[3] / "docs"))
import small_svg

CONTEXT, BATCH, WIDTH, HEADS, LAYERS, RATE, SMOOTH = 256, 32, 384, 6, 6, 1e-3, 10
RUNS, FIRST = 4, 50
KILN, OTHER = "Kiln", "PyTorch, another seed"
Curves = dict[str, list[list[float]]]  # by name, the losses of each run


def text() -> bytes:
    """Some megabytes, the same on every machine with this Python."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    return b"\n".join(path.read_bytes() for path in sorted(folder.glob("*.py")))


def train(steps: int, seed: int, route) -> list[float]:
    """The loss of each step, in bf16 with parameters in fp32."""
    import torch
    import torch.nn.functional as F
    from torch import nn

    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
            self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
            self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x):
            b, n, d = x.shape
            q, k, v = self.qkv(self.first(x)).view(b, n, 3, HEADS, d // HEADS).permute(2, 0, 3, 1, 4)
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
            return x + self.narrow(F.gelu(self.wide(self.second(x))))

    torch.manual_seed(seed)
    data = torch.frombuffer(bytearray(text()), dtype=torch.uint8).cuda()
    model = nn.Sequential(nn.Embedding(256, WIDTH), *(Layer() for _ in range(LAYERS)), nn.LayerNorm(WIDTH),
                          nn.Linear(WIDTH, 256)).cuda()  # fmt: skip
    places = nn.Parameter(torch.randn(CONTEXT, WIDTH, device="cuda") * 0.02)
    optimizer = torch.optim.AdamW([*model.parameters(), places], RATE, weight_decay=0.1)
    losses = []
    for step in range(steps):
        begins = torch.randint(0, len(data) - CONTEXT - 1, (BATCH,), device="cuda")
        batch = data[begins[:, None] + torch.arange(CONTEXT + 1, device="cuda")].long()
        for group in optimizer.param_groups:
            group["lr"] = RATE * min(1.0, (step + 1) / 20)
        with torch.autocast("cuda", torch.bfloat16), route():
            x = model[0](batch[:, :-1]) + places
            for layer in model[1:]:
                x = layer(x)
            loss = F.cross_entropy(x.float().flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


def measure(steps: int) -> Curves:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    import kiln.torch as kt

    def only(*backends):
        return lambda: sdpa_kernel(list(backends))

    routes = {
        "PyTorch, flash": only(SDPBackend.FLASH_ATTENTION),
        "PyTorch, memory-efficient": only(SDPBackend.EFFICIENT_ATTENTION),
        "PyTorch, math": only(SDPBackend.MATH),
        KILN: kt.use,
    }
    curves = {name: [train(steps, 1, route) for _ in range(RUNS)] for name, route in routes.items()}
    curves[OTHER] = [train(steps, 2, nullcontext)]
    assert kt.fallthroughs() == {}, kt.fallthroughs()
    return curves


def smooth(values: list[float]) -> list[float]:
    return [sum(values[max(0, i - SMOOTH) : i + 1]) / (i + 1 - max(0, i - SMOOTH)) for i in range(len(values))]


def distance(a: list[float], b: list[float]) -> float:
    """The largest difference of two smoothed curves."""
    return max(abs(x - y) for x, y in zip(smooth(a), smooth(b)))


def at_first(a: list[float], b: list[float]) -> float:
    """The root mean square of the first steps' differences."""
    return math.sqrt(mean((x - y) ** 2 for x, y in zip(a[:FIRST], b[:FIRST])))


def of_pytorch(curves: Curves) -> list[list[float]]:
    """The runs of its kernels, from the seed that Kiln's have."""
    return [run for name, runs in curves.items() if name not in (KILN, OTHER) for run in runs]


def judge(curves: Curves, far: Callable[[list[float], list[float]], float] = distance) -> dict[str, list[float]]:
    """By name, how far each run is from PyTorch's runs, or from the others of these: the median."""
    theirs = of_pytorch(curves)
    return {
        name: [median(far(run, other) for other in theirs if other is not run) for run in runs]
        for name, runs in curves.items()
    }


def is_noise(curves: Curves) -> bool:
    if not all(math.isfinite(loss) for runs in curves.values() for run in runs for loss in run):
        return False
    distances = judge(curves)
    noise = max(max(found) for name, found in distances.items() if name not in (KILN, OTHER))
    return max(distances[KILN]) <= min(1.5 * noise, min(distances[OTHER]))


def plot(curves: Curves, path: Path) -> bool:
    try:
        import matplotlib
    except ImportError:
        return False
    matplotlib.use("svg")
    matplotlib.rcParams |= {"svg.hashsalt": "kiln", "svg.fonttype": "none"}
    from matplotlib import pyplot

    figure, (above, below) = pyplot.subplots(2, sharex=True, figsize=(8, 7))
    middle = [mean(step) for step in zip(*(smooth(run) for run in of_pytorch(curves)))]
    for name, runs in curves.items():
        style = {"lw": 1.8, "color": "black"} if name == KILN else {"lw": 0.9}
        label = f"{name}, {len(runs)} runs" if len(runs) > 1 else name
        for run in runs:
            (line,) = above.plot(run, label=label, **style)
            style["color"], label = line.get_color(), None
            if name != OTHER:
                below.plot([x - y for x, y in zip(smooth(run), middle)], **style)
    above.set(ylabel="loss of the next byte, nats", title=f"A GPT of {LAYERS} layers from one seed, bf16")
    below.set(xlabel="step", ylabel="smoothed, less the mean of PyTorch's runs")
    above.legend()
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    small_svg.shrink(path)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--plot", action="store_true", help="only draw FOLDER/gpt.json")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    results = arguments.folder / "gpt.json"
    if arguments.plot:
        return 0 if plot(json.loads(results.read_text())["losses"], arguments.folder / "gpt.svg") else 1
    curves = measure(arguments.steps)
    distances = {"all steps": judge(curves), f"first {FIRST} steps": judge(curves, at_first)}
    results.write_text(json.dumps({"distances": distances, "losses": curves}, indent=1))
    for steps, found in distances.items():
        for name, values in found.items():
            print(f"{steps:15s} {name:26s}", *(f"{value:.6f}" for value in values))
    if not plot(curves, arguments.folder / "gpt.svg"):
        print("no matplotlib here: draw it elsewhere with --plot")
    return 0 if is_noise(curves) else 1


if __name__ == "__main__":
    sys.exit(main())
