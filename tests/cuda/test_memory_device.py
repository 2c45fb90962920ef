"""What is planned is what the driver shows, on a GPU, in a process of its own that nothing else shares the GPU with."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from polykv.fast.cuda.device import problem

ROOT = Path(__file__).parent.parent.parent
GPU = problem()
pytestmark = [
    pytest.mark.skipif(GPU is not None, reason=f"no GPU to run on: {GPU}"),
    # The driver tells of the memory of all processes together.
    pytest.mark.skipif("PYTEST_XDIST_WORKER" in os.environ, reason="other tests use the GPU: run it with -n 0"),
]


@pytest.mark.parametrize(("kv", "ctx", "agents"), [("f16", 32768, 4), ("q8_0/turbo3", 65536, 8)])
def test_the_plan_agrees_with_the_driver(kv: str, ctx: int, agents: int) -> None:
    script = [str(ROOT / "benchmarks" / "gpu_memory.py"), "--shape", "small"]
    options = ["--kv", kv, "--ctx", str(ctx), "--agents", str(agents)]
    done = subprocess.run([sys.executable, *script, *options], capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    print(done.stdout)
    assert abs(found["error"]) <= 0.03, found
    parts, held = found["parts"], found["held"]
    # What can be summed over arrays is exact; no step had to ask the driver for more.
    assert held["K/V"] == parts["K/V"] and found["grown"] == 0
    assert parts["weights"] - (2 << 20) < held["weights"] <= parts["weights"]
    assert held["steps"] <= parts["steps"] + (16 << 20), found
