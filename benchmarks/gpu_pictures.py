"""Pictures of figures of one H200, for docs/PERFORMANCE.md: speed of attention and of whole models by bits per value.

    python benchmarks/gpu_pictures.py       # reads benchmarks/results/h200/*.json, writes docs/pictures/gpu-*.svg

Needs matplotlib, which the extra `plot` brings.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib
from matplotlib.figure import Figure

from polykv.cache.codecs import CODECS
from polykv.fast.cuda.layout import TILE, kind_of, slices_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

HERE = Path(__file__).parent
RESULTS, PICTURES = HERE / "results" / "h200", HERE.parent / "docs" / "pictures"
HEAD_DIM = 128


def main() -> None:
    """Write both pictures."""
    # The same bytes for the same figures.
    matplotlib.rcParams["svg.hashsalt"] = "polykv"
    PICTURES.mkdir(exist_ok=True)
    for name, make in {"gpu-attention": attention, "gpu-decode": decode}.items():
        figure = Figure(figsize=(7.5, 4.2), layout="constrained")
        make(figure.add_subplot())
        figure.savefig(PICTURES / f"{name}.svg", metadata={"Date": None})


def bits_of(kv: str) -> float:
    """Bits of a value in memory, K and V together."""
    k, v = (kv.split("/") * 2)[:2]
    size = sum(kind_of(CODECS[name]).tile_bytes(*slices_of(HEAD_DIM)) for name in (k, v)) / 2
    return 8 * size / (TILE * HEAD_DIM)


def read(name: str, key: str) -> list[dict[str, Any]]:
    """The measurements of a file."""
    found: list[dict[str, Any]] = json.loads((RESULTS / f"{name}.json").read_text())[key]
    return found


def attention(axes: Axes) -> None:
    """How many times as fast as the best f16 kernel of PyTorch attention of one row is, beside what its bytes allow."""
    cells = read("attention", "attention")
    best = {(tuple(c["shape"]), c["depth"]): c["torch_us"] for c in cells if c.get("torch_us")}
    for shape, mark in (((32, 8, 128), "o"), ((16, 8, 256), "s")):
        here = [c for c in cells if tuple(c["shape"]) == shape and c["depth"] == 262144]
        points = [(bits_of(c["kv"]), best[shape, 262144] / c["us"], c["kv"]) for c in here]
        heads, n_kv, dim = shape
        draw(axes, points, mark, f"{heads} heads over {n_kv} K/V heads of {dim} dims", names=mark == "o")
    bits = [2.2 + 0.1 * i for i in range(140)]
    axes.plot(bits, [16 / b for b in bits], color="0.6", linewidth=1, label="if bytes were all")
    axes.set_ylabel("times as fast as PyTorch's f16")
    finish(axes, "Attention of one row over 262,144 cells, H200")


def decode(axes: Axes) -> None:
    """Tokens a second of a whole model by bits, at each depth."""
    results = [r for r in read("model", "results") if r.get("agents") == 1]
    for depth, mark in zip(sorted({r["depth"] for r in results}), "osD^", strict=False):
        points = [(bits_of(r["kv"]), r["tok_s"], r["kv"]) for r in results if r["depth"] == depth]
        draw(axes, points, mark, f"after {depth:,} tokens", names=depth > 0)
    axes.set_ylabel("tokens a second")
    finish(axes, "Decoding, Llama-8B shape, Q4_0 weights, one sequence, H200")


def draw(axes: Axes, points: list[tuple[float, float, str]], mark: str, label: str, *, names: bool) -> None:
    """Points with their types' names above."""
    x, y, kv = zip(*sorted(points), strict=True)
    axes.plot(x, y, mark, label=label)
    for i, (at, value, name) in enumerate(zip(x, y, kv, strict=True) if names else ()):
        # In turns above and below, so that types of nearly as many bits do not cover each other.
        place = (0, 6 if i % 2 else -13)
        axes.annotate(name, (at, value), xytext=place, textcoords="offset points", ha="center", fontsize=8)


def finish(axes: Axes, title: str) -> None:
    """What both pictures have."""
    axes.set_xscale("log", base=2)
    axes.set_xticks([2, 3, 4, 6, 8, 16], ["2", "3", "4", "6", "8", "16"])
    axes.set_xlabel("bits of a value in memory")
    axes.set_title(title)
    axes.set_ylim(bottom=0)
    axes.margins(y=0.15)
    axes.legend()


if __name__ == "__main__":
    main()
