"""Rotary position angles: angle[p, i] = p * inv_freq[i]; the tables hold magnitude * cos and magnitude * sin.

Rotation itself is `ops.rope`. Here are only the frequencies of one layer kind, once per model, and the angles of the
rows of one step. With n = n_rot (rotated dims; fewer than head_dim: partial rope), i = 0 .. n/2-1 and b = base:

    none      f[i] = b^(-2i/n)                                                  RoFormer, arXiv 2104.09864
    linear    f[i] / factor                                                     position interpolation, arXiv 2306.15595
    llama3    L = 2 pi / f:  L < orig/high -> f;  L > orig/low -> f/factor;     Llama 3.1 model card
              between:  (1-s) f/factor + s f,  s = (orig/L - low) / (high - low)
    yarn      f/factor * r[i] + f * (1 - r[i]),  r = clip((i - lo) / (hi - lo), 0, 1),     arXiv 2309.00071
              lo, hi = floor, ceil of  n ln(orig / (2 pi beta)) / (2 ln b)  at beta_fast, beta_slow
              magnitude 0.1 ln(factor) + 1
    longrope  f[i] / short[i], beyond the original context f[i] / long[i]       arXiv 2402.13753
              magnitude sqrt(1 + ln(factor) / ln(orig))

`freq_factors` (a tensor of GGUF files) divides the result of every rule: llama3 scaling arrives that way, and so does
"proportional" rope, whose factors 1e30 leave the upper dims unrotated.

Frequencies and angles are float64 (at position 131,072 a float32 angle is off by 0.008), the tables float32.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from polykv.config import RopeConfig, RopeScaling
from polykv.types import I32, Angles

F64 = npt.NDArray[np.float64]


def inv_freq(cfg: RopeConfig) -> F64:
    """Frequencies in radians per position, float64 [n_rot/2]."""
    i = np.arange(cfg.n_rot // 2, dtype=np.float64)
    f: F64 = np.power(float(cfg.base), -2.0 * i / cfg.n_rot)
    match cfg.scaling:
        case RopeScaling.LINEAR:
            f = f / cfg.factor
        case RopeScaling.LLAMA3:
            f = _llama3(f, cfg)
        case RopeScaling.YARN:
            ramp = _yarn_ramp(i, cfg)
            f = f / cfg.factor * ramp + f * (1.0 - ramp)
    if cfg.freq_factors is not None:
        f = f / cfg.freq_factors.astype(np.float64)
    return f


def magnitude(cfg: RopeConfig) -> float:
    """Factor on cos and sin, so on the lengths of the rotated parts of q and k."""
    if cfg.attn_factor is not None:
        return cfg.attn_factor
    if cfg.scaling == RopeScaling.YARN and cfg.factor > 1.0:
        return 0.1 * math.log(cfg.factor) + 1.0
    if cfg.scaling == RopeScaling.LONGROPE and cfg.factor > 1.0:
        return math.sqrt(1.0 + math.log(cfg.factor) / math.log(cfg.original_context))
    return 1.0


def angles(cfg: RopeConfig, positions: I32) -> Angles:
    """cos and sin of rows at `positions` [R]: float32 [R, n_rot/2], magnitude included."""
    freq, scale = _prepared(cfg)
    theta = np.multiply.outer(positions, freq)
    cos, sin = np.cos(theta), np.sin(theta)
    if scale != 1.0:
        cos *= scale
        sin *= scale
    return Angles(cos.astype(np.float32), sin.astype(np.float32), cfg.interleaved)


def for_context(cfg: RopeConfig, context: int) -> RopeConfig:
    """The configuration of a session of `context` tokens: longrope has two factor sets and one is chosen for the whole
    session, because keys rotated by different frequencies cannot be compared. Other rules come back unchanged."""
    if cfg.scaling != RopeScaling.LONGROPE or cfg.long_factors is None:
        return cfg
    factors = cfg.long_factors if context > cfg.original_context else cfg.freq_factors
    return replace(cfg, freq_factors=factors, long_factors=None)


@lru_cache(maxsize=64)
def _prepared(cfg: RopeConfig) -> tuple[F64, float]:
    # A memo of a pure function of a frozen object (compared by identity): a step asks again and again.
    return inv_freq(cfg), magnitude(cfg)


def _llama3(f: F64, cfg: RopeConfig) -> F64:
    turns = cfg.original_context * f / (2.0 * math.pi)
    s = (turns - cfg.low_freq_factor) / (cfg.high_freq_factor - cfg.low_freq_factor)
    s = np.clip(s, 0.0, 1.0)
    return (1.0 - s) * f / cfg.factor + s * f


def _yarn_ramp(i: F64, cfg: RopeConfig) -> F64:
    def dim(beta: float) -> float:
        """Index of the pair that makes `beta` turns within the original context."""
        return cfg.n_rot * math.log(cfg.original_context / (2.0 * math.pi * beta)) / (2.0 * math.log(cfg.base))

    lo = max(0, math.floor(dim(cfg.beta_fast)))
    hi = min(cfg.n_rot - 1, math.ceil(dim(cfg.beta_slow)))
    return np.clip((i - lo) / max(0.001, hi - lo), 0.0, 1.0)
