"""Speed of polykv on this CPU, against llama.cpp and against itself.

    python benchmarks/cpu.py                                     # both models, peer if this Python has llama-cpp-python
    python benchmarks/cpu.py --peer-python /path/to/python       # the peer lives in another environment
    python benchmarks/cpu.py --models smollm2 --depth 2000       # shorter

Everything is measured in turns: ours, peer, ours, peer, ... in one run, each in its own process; the fastest of the
repetitions counts, because other work on the machine can only slow a run down. Ours decodes as its engine does: every
step chooses a greedy token, and the next goes on with it; at depth 0 from the beginning-of-text token, elsewhere after
random ones. The peer computes logits and is given tokens. It gets its default build and settings with the same number
of threads. Ratios are ours / peer in tokens/s. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

from cores import distance
from protocol import Worker, WorkerError

from polykv.catalogue import resolve
from polykv.model.loader import load_model
from polykv.text.tokenizer import Tokenizer

KV = "q8_0/turbo3"
BUSY = 0.5
# What takes a fraction of a second is measured so many times as often as the rest: a neighbour's burst lasts longer.
SHORT = 3
# What a model is asked to go on with.
PROMPT = (
    "The lighthouse stands at the end of the pier. Every evening the keeper climbs the stairs, cleans the lamp and "
    "writes the weather into a book. One night, when the fog was thicker than ever before, he heard"
)
CONTEXT = {"smollm2": 8192, "gemma3": 9216}


def main() -> None:
    """Parse arguments, run all models, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--depth", type=int, default=8000)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--peer-python", default=sys.executable, help="a Python that has llama-cpp-python")
    parser.add_argument("--peer-kv", default="f16", help="K/V types of the peer, separated by commas")
    args = parser.parse_args()
    load = os.getloadavg()[0]
    if load > BUSY:
        print(
            f"note: load average {load:.1f}, other work is running: take these numbers for a test of the benchmark only"
        )
    peer = find_peer(args.peer_python)
    result: dict[str, Any] = {
        "threads": args.threads,
        "load_average": load,
        "depth": args.depth,
        "kv": KV,
        "peer": peer,
        "models": {},
    }
    for name in args.models.split(","):
        result["models"][name] = run_model(name, args, peer is not None)
    print(json.dumps(result))


def find_peer(python: str) -> str | None:
    """The peer's version, or None with a message."""
    try:
        worker = Worker("worker_llama.py", python)
        version = str(worker("hello")["version"])
        worker.close()
    except (WorkerError, OSError) as e:
        print(f"peer skipped: {python} has no llama-cpp-python ({e})\n  pip install llama-cpp-python, or --peer-python")
        return None
    print(f"peer: llama-cpp-python {version}")
    return version


def run_model(name: str, args: argparse.Namespace, with_peer: bool) -> dict[str, Any]:
    """All measurements of one model: {measurement: {side: value}}."""
    path = str(resolve(name))
    sides: dict[str, Worker] = {f"ours {KV}": Worker("worker_polykv.py"), "ours f16": Worker("worker_polykv.py")}
    if with_peer:
        sides |= {f"peer {kv}": Worker("worker_llama.py", args.peer_python) for kv in args.peer_kv.split(",")}
    table: dict[str, dict[str, float]] = {"core to core, ns": {"before": distance()}}
    opened = {
        side: w(
            "open",
            model=path,
            ctx=max(CONTEXT.get(name, 0), args.depth + 192),
            threads=args.threads,
            kv=side.split()[1],
        )
        for side, w in sides.items()
    }
    table["load, s"] = {side: reply["load_s"] for side, reply in opened.items()}
    for w in sides.values():
        w("warm")
    shallow, deep = "prefill 512, tok/s", f"prefill 128 at {args.depth}, tok/s"
    table[shallow] = in_turns(sides, SHORT * args.repeat, 0, "prefill", 512)
    table["decode at 0, tok/s"] = in_turns(sides, SHORT * args.repeat, 0, "decode", 48)
    prompt = Tokenizer.from_gguf(load_model(Path(path)).gguf.metadata).encode(PROMPT, add_bos=None)
    table["decode after a short prompt, tok/s"] = in_turns(sides, SHORT * args.repeat, 0, "answer", 48, prompt=prompt)
    ours = sides[f"ours {KV}"]
    agents(table, ours, SHORT * args.repeat)
    table["core to core, ns"]["agents"] = distance()
    for w in sides.values():
        w("fill", depth=args.depth)
    table[f"decode at {args.depth}, tok/s"] = in_turns(sides, args.repeat, args.depth, "decode", 16)
    table[deep] = in_turns(sides, args.repeat, args.depth, "prefill", 128)
    memory = {side: w("memory") for side, w in sides.items()}
    table["peak RSS, MB"] = {side: m["peak"] / 1e6 for side, m in memory.items()}
    weights = opened[f"ours {KV}"]["weights"]
    table["peak RSS without weights and K/V, MB"] = {
        side: (m["peak"] - weights - m["kv"]) / 1e6 for side, m in memory.items() if "kv" in m
    }
    for w in sides.values():
        w.close()
    table["start to first token, s"] = first_tokens(path, args, with_peer)
    show(name, table)
    return table


def in_turns(sides: dict[str, Worker], repeat: int, depth: int, do: str, n: int, **more: Any) -> dict[str, float]:
    """Best tokens/s of each side, measured in turns."""
    best = dict.fromkeys(sides, 0.0)
    for _ in range(repeat):
        for side, w in sides.items():
            w("fill", depth=depth)
            best[side] = max(best[side], n / w(do, n=n, **more)["s"])
    return best


def agents(table: dict[str, dict[str, float]], ours: Worker, repeat: int) -> None:
    """Eight agents on a document of 874 tokens against one, and the share of Python in a step."""
    best = {"1 agent": 0.0, "8 agents": 0.0}
    ours("fill", depth=0)
    ours("fill", depth=874)
    for _ in range(repeat):
        for n in (1, 8):
            side = f"{n} agent{'s' if n > 1 else ''}"
            best[side] = max(best[side], n * 24 / ours("agents", n=n, steps=24)["s"])
    table["decode on a document of 874, tok/s"] = best
    ours("fill", depth=0)
    table["time outside operations per decode step, %"] = {
        "ours": 100 * min(ours("overhead", n=48)["share"] for _ in range(repeat))
    }
    ours("fill", depth=0)


def first_tokens(path: str, args: argparse.Namespace, with_peer: bool) -> dict[str, float]:
    """Seconds from starting a process to the first token of a prompt of 30 tokens, files and kernels being cached."""
    scripts = {f"ours {KV}": ("worker_polykv.py", sys.executable)}
    if with_peer:
        scripts["peer f16"] = ("worker_llama.py", args.peer_python)
    best: dict[str, float] = {}
    for _ in range(2):
        for side, (script, python) in scripts.items():
            w = Worker(script, python)
            w("open", model=path, ctx=2048, threads=args.threads, kv=side.split()[1])
            w("first", n=30)
            seconds = time.perf_counter() - w.started
            w.close()
            best[side] = min(best.get(side, seconds), seconds)
    return best


def show(name: str, table: dict[str, dict[str, float]]) -> None:
    """The table for people, with ratios against the best peer and against ourselves."""
    print(f"\n{name}")
    for what, values in table.items():
        cells = "  ".join(f"{side}: {value:,.2f}" for side, value in values.items())
        print(f"  {what:44} {cells}{ratio(values)}{'' if what.endswith('tok/s') else ' (less is better)'}")


def ratio(values: dict[str, float]) -> str:
    """`ours / best peer`, `compressed / f16`, `8 agents / 1`, whichever the row has."""
    found = []
    peers = [v for side, v in values.items() if side.startswith("peer")]
    ours = values.get(f"ours {KV}")
    if ours and peers:
        found.append(f"ours/peer {ours / max(peers):.2f}")
    if ours and values.get("ours f16"):
        found.append(f"compressed/f16 {ours / values['ours f16']:.2f}")
    if "8 agents" in values:
        found.append(f"8/1 {values['8 agents'] / values['1 agent']:.2f}")
    return "   [" + ", ".join(found) + "]" if found else ""


if __name__ == "__main__":
    main()
