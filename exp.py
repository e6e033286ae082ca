import sys, json
from pathlib import Path
ROOT=Path("/".join(__file__.split("/")[:-1]) or ".")
sys.path[:0]=[str(ROOT/"benchmarks/attention"), str(ROOT/"tests/runtime")]
import torch, timing, training
from entries import Entries
from shapes import shapes
old, new = sys.argv[1], sys.argv[2:]
names={"old":old, **{f"new{i}":p for i,p in enumerate(new)}}
# two releases in one process at most: pairs
from torch.profiler import profile, ProfilerActivity
for name,p in list(names.items())[1:]:
    with Entries(Path(p)) as a, Entries(Path(old), is_second=True) as b:
        rel={"kiln":a,"against":b}
        for shape in shapes([64,128],[2048,8192,16384]):
            problem=training.Problem(rel, shape, torch.bfloat16,"bhsd")
            made=problem.sides("backward")
            sides={k:made[k] for k in rel}
            times,_=timing.interleave(sides, 9, 60)
            med={k:sorted(v)[len(v)//2] for k,v in times.items()}
            per={}
            for k,s in sides.items():
                with profile(activities=[ProfilerActivity.CUDA]) as prof:
                    for _ in range(5): s()
                    torch.cuda.synchronize()
                for e in prof.key_averages():
                    t=getattr(e,"self_device_time_total",0)
                    if t and "attn" in e.key: per[f"{k}:{e.key[:16]}"]=round(t/5,1)
            print(name, shape.head_dim, shape.causal, shape.length, "new/old %.4f"%(med["kiln"]/med["against"]), per, flush=True)
