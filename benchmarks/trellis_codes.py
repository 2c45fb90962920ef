"""Which trellis code has the least error for its bits: the present tables, trained ones, computed ones, tail-biting.

    python benchmarks/trellis_codes.py                       # all codes on N(0, 1), trained ones on K and V as well
    python benchmarks/trellis_codes.py --values 10000        # quicker, less exact

A code is k bits per value, 2^L states and a level for each. Trained codes ("trained") are fitted to draws from N(0, 1)
by generalised Lloyd iterations (`polykv.ref.codebooks`) over three seeds, of which the one with the least error on
those draws is taken; every figure is for draws, or for K and V of another text, that it has not seen. Computed codes
need no table: "1mad" adds the four bytes of a linear congruential hash of the state, "3inst" two fp16 numbers made of
its halves (Tseng et al., "QTIP", 2024, algorithms 1 and 2). Tail-biting paths end in the class they began with, so that
a stream has no prefix; they are found in two passes, the first of which chooses the class.

error: squared, per squared length, norms as stored. bits: per value, with the norm and everything else, in whole bytes.
gap: how far the error is above 2^(-2 bits), Shannon's bound for N(0, 1), in dB; this compares codes of different bits.
work: states a step looks at, the cost of encoding relative to the present code. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import platform
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from quality import commit

from polykv.cache.codecs import codec
from polykv.catalogue import resolve
from polykv.commands.ask import read_document
from polykv.fast.cpu._jit import kernel
from polykv.fast.cpu.trellis import viterbi
from polykv.measure.corpus import Side, gaussian, of_text
from polykv.model.loader import load_model
from polykv.ops import load
from polykv.ref.codebooks import Search, improved, relative_errors, stratified
from polykv.ref.rotation import normalised, pairwise
from polykv.text.tokenizer import Tokenizer
from polykv.types import F32, Codec

SEEDS = (0, 1, 2)
PRESENT = {3: "turbo3_tcq", 2: "turbo2_tcq"}
FAR = np.float32(1e30)


@kernel()
def paths(y: F32, codebook: F32, bits: int, first: Any, states: Any) -> None:
    """Best paths states [n, T] of y [n, T] for any power of two of states. first [n]: the class (state >> bits) in
    which the path of a group has to end and the state before its first one has to lie; -1: any."""
    n, steps = y.shape
    total = codebook.size
    low = total >> bits
    cost, choice = np.zeros(total, np.float32), np.empty((steps, low), np.uint8)
    best = np.empty(low, np.float32)
    for i in range(n):
        cost[:] = 0
        if first[i] >= 0:
            cost[:] = FAR
            cost[first[i] << bits : (first[i] + 1) << bits] = 0
        for t in range(steps):
            for kept in range(low):
                lowest, place = cost[kept << bits], 0
                for p in range(1, 1 << bits):
                    if cost[(kept << bits) + p] < lowest:
                        lowest, place = cost[(kept << bits) + p], p
                best[kept], choice[t, kept] = lowest, place
            for u in range(1 << bits):
                for kept in range(low):
                    d = y[i, t] - codebook[u * low + kept]
                    cost[u * low + kept] = best[kept] + d * d
        s, least = 0, np.float32(np.inf)
        for state in range(total):
            if cost[state] < least and (first[i] < 0 or state >> bits == first[i]):
                s, least = state, cost[state]
        for t in range(steps - 1, -1, -1):
            states[i, t] = s
            kept = s & (low - 1)
            s = (kept << bits) + choice[t, kept]


def free(y: F32, codebook: F32, bits: int) -> Any:
    """Best paths from any class; with the kernel of the present trellis where it fits."""
    if len(codebook) == 64 << bits:
        return viterbi(y, codebook, bits)
    states = np.empty(y.shape, np.int64)
    paths(y, codebook, bits, np.full(len(y), -1), states)
    return states


def biting(y: F32, codebook: F32, bits: int) -> Any:
    """Paths that end in the class in which they began: that of a free path through the group begun at its middle."""
    half, states = y.shape[1] // 2, np.empty(y.shape, np.int64)
    paths(np.roll(y, -half, axis=1), codebook, bits, np.full(len(y), -1), states)
    first = states[:, y.shape[1] - half - 1] >> bits
    paths(y, codebook, bits, first, states)
    return states


def one_mad(states: int) -> F32:
    """Levels of "1mad", in units of a unit-norm vector of 128."""
    x = (np.arange(states, dtype=np.uint64) * 34038481 + 76625530) & 0xFFFFFFFF
    total = sum((x >> np.uint64(8 * i) & np.uint64(255)).astype(np.float64) for i in range(4))
    return standard(total)


def three_inst(states: int) -> F32:
    """Levels of "3inst"."""
    x = ((np.arange(states, dtype=np.uint64) * 89226354 + 64248484) & 0xFFFFFFFF).astype(np.uint32)
    halves = (x & np.uint32(0x8FFF8FFF)) ^ np.uint32(0x3B603B60)
    return standard(sum((halves >> np.uint32(16 * i)).astype(np.uint16).view(np.float16).astype(float) for i in (0, 1)))


def standard(x: Any) -> F32:
    """Numbers shifted and scaled to the mean and deviation of N(0, 1/128)."""
    return np.asarray((x - x.mean()) / x.std() / np.sqrt(128), np.float32)


def groups(c: Codec, x: F32) -> F32:
    """Rotated groups of unit norm, in the units of the tables, of vectors [n, D]."""
    g = c.group(x.shape[1])
    y, length = normalised(c, x, g, pairwise)
    return np.ascontiguousarray(y.reshape(-1, g)[length.reshape(-1) > 0])


def trained(y: F32, bits: int, states: int, rounds: int) -> F32:
    """The best codebook of SEEDS for y, as judged on y."""
    found = []
    for seed in SEEDS:
        book = stratified(bits, states >> bits, np.random.default_rng(seed))
        for _ in range(rounds):
            book, _ = improved(book, y, bits, free)
        found.append((improved(book, y, bits, free)[1], seed, book))
    return min(found, key=lambda f: f[:2])[2]


@dataclass(frozen=True)
class Code:
    """A code to measure: bits per value, levels of its states, how paths are found."""

    name: str
    bits: int
    codebook: F32
    search: Search = free

    def row(self, y: F32) -> dict[str, Any]:
        """Figures on groups y [n, g]."""
        g, width = y.shape[1], len(self.codebook).bit_length() - 1
        prefix = 0 if self.search is biting else width - self.bits
        bits = 8 * (2 + -(-(prefix + self.bits * g) // 8)) / g
        error = float(relative_errors(self.codebook, y, self.bits, self.search).mean())
        gap = 10 * np.log10(error) + 20 * bits * np.log10(2)
        work = len(self.codebook) / (64 << self.bits) * (2 if self.search is biting else 1)
        return {"group": g, "bits": bits, "error": error, "gap_db": float(gap), "work": work}


def codes(bits: int, y: F32, rounds: int, widest: int) -> list[Code]:
    """All codes of so many bits, trained on y."""
    present = np.array(codec(PRESENT[bits]).centroids, np.float32)
    found = [Code("present table", bits, present)]
    for width in range(bits + 3, bits + 9):
        found.append(Code(f"trained, L = {width}", bits, trained(y, bits, 1 << width, rounds)))
    ours = next(c.codebook for c in found if c.name == f"trained, L = {bits + 6}")
    found.append(Code("trained, tail-biting", bits, ours, biting))
    for width in (bits + 6, 12, widest):
        for name, levels in (("1mad", one_mad), ("3inst", three_inst)):
            found.append(Code(f"{name}, L = {width}", bits, levels(1 << width)))
    return found


def on_normal(bits: int, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of all codes for groups of 64 and 128 values of N(0, 1)."""
    c, rows = codec(PRESENT[bits]), []
    fit = groups(c, gaussian(4 * args.values, 128, (0, bits)))
    for code in codes(bits, fit, args.rounds, args.widest):
        for g in (64, 128):
            # Wide codes take long: their error is measured on less.
            n = 4 * args.values * min(1, 1024 / len(code.codebook))
            figures = code.row(groups(c, gaussian(int(n), g, (1, bits))))
            rows.append({"bits_of_code": bits, "code": code.name, "data": "N(0, 1)", **figures})
            show(rows[-1])
    return rows


def on_model(name: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the present table and of trained ones (on N(0, 1), on another text) for K and V of a model on a text."""
    model, ops, rows = load_model(resolve(name)), load("cpu"), []
    encode = Tokenizer.from_gguf(model.gguf.metadata).encode
    texts = [encode(read_document(str(t) if t else None))[: args.tokens] for t in (args.text, args.held_out)]
    for side in (Side.K, Side.V):
        fit, judge = (of_text(model, ids, ops, side=side, values=4 * args.values) for ids in texts)
        for bits, kind in PRESENT.items():
            c = codec(kind)
            normal = trained(groups(c, gaussian(4 * args.values, 128, (0, bits))), bits, 64 << bits, args.rounds)
            own = trained(groups(c, fit), bits, 64 << bits, args.rounds)
            present = np.array(c.centroids, np.float32)
            for label, book in (("present table", present), ("trained on N(0, 1)", normal), ("trained on K or V", own)):
                figures = Code(label, bits, book).row(groups(c, judge))
                rows.append({"bits_of_code": bits, "code": label, "data": f"{side.value.upper()} of {name}", **figures})
                show(rows[-1])
    return rows


def show(row: dict[str, Any]) -> None:
    """A line of the table."""
    figures = f"{row['bits']:7.4f} {row['error']:8.5f} {row['gap_db']:7.3f} {row['work']:7.3g}"
    print(f"{row['bits_of_code']} {row['code']:24} {row['data']:16} {row['group']:5} {figures}", flush=True)


def main() -> None:
    """Parse arguments, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument(
        "--values", type=int, default=1 << 18, help="that an error is measured on; 4 times as many to fit"
    )
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--widest", type=int, default=14, help="L of the largest computed codes")
    parser.add_argument("--models", default="smollm2,gemma3", help="empty: N(0, 1) only")
    parser.add_argument("--text", type=Path, help="to fit to K and V; default the shipped document")
    parser.add_argument("--held-out", type=Path, help="another text to measure on; needed for models")
    parser.add_argument("--tokens", type=int, default=2048, help="of each text")
    parser.add_argument("--machine", default=f"{platform.machine()}, {platform.system()}", help="how to call it")
    args = parser.parse_args()
    models = args.models.split(",") if args.models and args.held_out else []
    print(f"k {'code':24} {'data':16} {'group':>5} {'bits':>7} {'error':>8} {'gap dB':>7} {'work':>7}")
    tables: list[Callable[[], list[dict[str, Any]]]] = [partial(on_normal, bits, args) for bits in PRESENT]
    tables += [partial(on_model, name, args) for name in models]
    rows = [row for table in tables for row in table()]
    print(
        json.dumps({"machine": args.machine, "commit": commit(), "seeds": SEEDS, "rounds": args.rounds, "rows": rows})
    )


if __name__ == "__main__":
    main()
