"""The device tests under compute-sanitizer, in several processes side by side.

    python benchmarks/gpu_sanitize.py                                          # memcheck of the equivalence suite
    python benchmarks/gpu_sanitize.py --tool racecheck --seconds 600 tests/cuda/test_cuda_equivalence.py -k "not sample"
    python benchmarks/gpu_sanitize.py --tool none                              # the tests alone

racecheck is shown kernels in which every lane of a warp arrives at a barrier in shared memory, not one for all of them
(turns.cuh).

Needs a GPU, and compute-sanitizer on the path. Says how many tests came out how, what the tool found, by kernel, and
the first tests of each process that failed: after a kernel has crashed all others fail too. Exit code 1 if there was
anything, or a process was stopped. The last line is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck", "none")
SUITE = "tests/cuda/test_cuda_equivalence.py"
# Lines of the tools that say what is wrong, and where.
WRONG = re.compile(r"=+ ((?:(?:Error|Warning): )?(?:Invalid|Race|Uninitialized|Barrier|Program hit|Misaligned)[^.\n]*)")
PLACE = re.compile(r"(?:at|access at) (\w+)\+0x")


def started(args: argparse.Namespace, part: int, folder: Path) -> subprocess.Popen[bytes]:
    """One process, and its output in a file."""
    tool = [] if args.tool == "none" else ["compute-sanitizer", "--tool", args.tool, "--print-limit", "20"]
    shard = ["-p", "gpu_shard", "--shard", f"{part}/{args.processes}", "--shard-log", str(folder / f"{part}.log")]
    if args.tool == "racecheck":
        shard += ["--define", "EVERY_LANE_ARRIVES"]
    pytest = [sys.executable, "-m", "pytest", *args.files, "-q", "-n", "0", "-p", "no:cacheprovider", *shard]
    selected = ["-k", args.k] if args.k else []
    path = {"PYTHONPATH": ":".join([str(ROOT / "benchmarks"), *filter(None, sys.path)])}
    with (folder / f"{part}.txt").open("wb") as out:
        return subprocess.Popen([*tool, *pytest, *selected], cwd=ROOT, stdout=out, stderr=out, env=os.environ | path)


def found(text: str) -> Counter[str]:
    """What the tool says, by kind and kernel."""
    counts = Counter[str]()
    lines = text.splitlines()
    for i, line in enumerate(lines):
        wrong = WRONG.search(line)
        if wrong:
            place = next((m[1] for near in lines[i : i + 3] if (m := PLACE.search(near))), "?")
            counts[f"{wrong[1].split(' between')[0].strip()} in {place}"] += 1
    return counts


def first(text: str) -> str:
    """The first report of the tool, with where both accesses are."""
    lines = text.splitlines()
    at = next((i for i, line in enumerate(lines) if WRONG.search(line)), len(lines))
    return "\n".join(line for line in lines[at : at + 12] if line.startswith("===") and "Host Frame" not in line)


def main() -> int:
    """Parse arguments, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("files", nargs="*", default=[SUITE])
    parser.add_argument(
        "--tool", default="memcheck", choices=["memcheck", "racecheck", "initcheck", "synccheck", "none"]
    )
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seconds", type=float, default=300, help="when processes are stopped")
    parser.add_argument("-k", help="as pytest has it")
    args = parser.parse_args()
    outcomes, wrong, failed, stopped = Counter[str](), Counter[str](), list[str](), 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        running = [started(args, part, folder) for part in range(args.processes)]
        for part, process in enumerate(running):
            try:
                process.wait(args.seconds)
            except subprocess.TimeoutExpired:
                for other in running:
                    other.send_signal(signal.SIGINT)
                process.wait()
            stopped += process.returncode not in (0, 1)
            log, text = folder / f"{part}.log", (folder / f"{part}.txt").read_text(errors="replace")
            lines = log.read_text(encoding="utf-8").splitlines() if log.exists() else []
            outcomes.update(line.split()[0] for line in lines[1:])
            outcomes["collected"] += sum(int(line.split()[1]) for line in lines[:1])
            new = found(text)
            # One of each kind in full.
            if new.keys() - wrong.keys():
                print(first(text))
            wrong += new
            failed += [line for line in lines if line.startswith("failed")][:3]
            if not lines:
                print(text[-2000:])
    for what, n in wrong.most_common():
        print(f"{n:6} {what}")
    print(*failed, sep="\n")
    print(json.dumps({"tool": args.tool, **outcomes, "stopped": stopped, "found": dict(wrong)}))
    return int(bool(wrong or failed or stopped))


if __name__ == "__main__":
    sys.exit(main())
