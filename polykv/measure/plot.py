"""The rate-distortion picture: error against bits for every type, beside what is possible.

    Shannon        D(R) = 2^(-2R)                    no code of R bits per value does better on N(0, 1), however long
    Panter-Dite    D(R) = (sqrt(3) pi / 2) 2^(-2R)   the best table of one value at a time, for many bits

The second is 4.35 dB above the first. That is what codes of many values at a time, such as trellises, can win: 1.53 dB
by cells rounder than cubes, the rest by spending no levels on corners that hardly occur. Sources: Shannon, "Coding
theorems for a discrete source with a fidelity criterion" (1959); Panter and Dite, "Quantization distortion in
pulse-count modulation" (1951); Eyuboglu and Forney, "Lattice and trellis quantization" (1993).
Needs matplotlib, which the extra `plot` brings.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from polykv.errors import ConfigError, UnsupportedError
from polykv.types import Codec, Family

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PANTER_DITE = float(np.sqrt(3) * np.pi / 2)
# Types of more code bits are floats, whose error has nothing to do with either curve.
MOST_BITS = 8
# Kinds of types, in the order in which they are drawn.
MARKS = {"scalar": "o", "scalar, rotated": "D", "Lloyd-Max": "s", "trellis": "^", "centered": "P"}


@dataclass(frozen=True)
class Point:
    """One type: bits per value in memory, and its NMSE on every sample by the sample's name."""

    codec: Codec
    bits: float
    nmse: dict[str, float]


def check(path: str | Path, codecs: list[Codec]) -> None:
    """What would keep `draw` from a picture of these types, asked before anything is measured.

    Raises UnsupportedError without matplotlib, ConfigError for a path that cannot be written, and when no type has bits
    that could be drawn.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise UnsupportedError("--plot needs matplotlib, which is not installed: pip install matplotlib") from None
    from matplotlib.figure import Figure

    path, formats = Path(path), Figure().canvas.get_supported_filetypes()
    if path.suffix[1:].lower() not in formats:
        raise ConfigError(f"--plot: {path} cannot be written: its suffix is none of .{', .'.join(sorted(formats))}")
    if not path.parent.is_dir():
        raise ConfigError(f"--plot: {path} cannot be written: {path.parent} is not a folder")
    if all(c.bits > MOST_BITS for c in codecs):
        raise ConfigError(f"--plot: there is nothing to draw, all of these types have more than {MOST_BITS} bits")


def draw(path: str | Path, points: list[Point], title: str) -> None:
    """Write the picture; the suffix of the path says the format (.png, .svg, .pdf).

    The first panel has error against bits for the first sample; all samples follow as distances from the bound, in
    which types that are close together can be told apart. Raises as `check` does, and ConfigError for a file that
    cannot be written.
    """
    check(path, [p.codec for p in points])
    from matplotlib.figure import Figure

    shown = [p for p in points if p.codec.bits <= MOST_BITS]
    names = list(shown[0].nmse)
    columns = min(4, 1 + len(names))
    rows = -(-(1 + len(names)) // columns)
    figure = Figure(figsize=(4.6 * columns, 4.4 * rows), layout="constrained")
    first, *others = figure.subplots(rows, columns, squeeze=False).flat
    rate_distortion(first, shown, names[0])
    # One scale for all: what rotating does to K is the difference between two panels.
    top = 1 + max(above_bound(p, name) for p in shown for name in names)
    for ax, name in zip(others, names, strict=False):
        distance(ax, shown, name)
        ax.set_ylim(-0.5, top)
    for ax in others[len(names) :]:
        ax.set_axis_off()
    figure.suptitle(title)
    try:
        figure.savefig(path, dpi=110)
    except OSError as e:
        raise ConfigError(f"--plot: {path} cannot be written: {e}") from None


def rate_distortion(ax: Axes, points: list[Point], name: str) -> None:
    """NMSE on one sample against bits per value, on a logarithmic scale."""
    r = np.linspace(1.5, 9, 2)
    ax.plot(r, 2.0 ** (-2 * r), "k-", lw=1, label="Shannon's bound for N(0, 1)")
    ax.plot(r, PANTER_DITE * 2.0 ** (-2 * r), "k:", lw=1, label="best scalar table, many bits")
    _marks(ax, points, {p.codec.name: p.nmse[name] for p in points})
    ax.set(title=name, yscale="log", xlabel="bits per value in memory", ylabel="NMSE")
    ax.legend(fontsize=7)


def distance(ax: Axes, points: list[Point], name: str) -> None:
    """How many dB the error on one sample is above Shannon's bound for normal values; 6.02 dB are worth one bit."""
    ax.axhline(0, color="k", lw=1)
    ax.axhline(10 * np.log10(PANTER_DITE), color="k", lw=1, ls=":")
    _marks(ax, points, {p.codec.name: above_bound(p, name) for p in points})
    ax.set(title=name, xlabel="bits per value in memory", ylabel="dB above the bound")


def above_bound(point: Point, name: str) -> float:
    """dB between the error on one sample and Shannon's bound for as many bits."""
    # A type that loses nothing (all vectors of the sample are zero, say) has no logarithm.
    return float(10 * np.log10(max(point.nmse[name], 1e-30)) + 20 * np.log10(2) * point.bits)


def _marks(ax: Axes, points: list[Point], y: dict[str, float]) -> None:
    for kind, mark in MARKS.items():
        mine = [p for p in points if _kind(p.codec) == kind]
        if mine:
            ax.plot([p.bits for p in mine], [y[p.codec.name] for p in mine], mark, ms=5, label=kind)
        for p in mine:
            ax.annotate(p.codec.name, (p.bits, y[p.codec.name]), (4, 3), textcoords="offset points", fontsize=7)
    ax.grid(alpha=0.3)
    # Room for the name of the rightmost type.
    ax.margins(x=0.12)


def _kind(codec: Codec) -> str:
    if codec.centered:
        return "centered"
    scalar = "scalar, rotated" if codec.rotated else "scalar"
    return {Family.LLOYD_MAX: "Lloyd-Max", Family.TRELLIS: "trellis"}.get(codec.family, scalar)
