"""Checked access to the metadata of one architecture, and to tensors of an expected shape.

Every getter names file, key and reason when a value has the wrong type or range; nothing is allocated on the strength
of an unchecked number. `used` collects what was read, so that the loader can report what was not.
"""

from __future__ import annotations

import math
import reprlib
from dataclasses import dataclass, field

import numpy as np

from polykv.config import RopeConfig, RopeScaling
from polykv.errors import FormatError, UnsupportedError
from polykv.model.gguf import GgufFile
from polykv.types import F32, QuantTensor

MAX_LAYERS = 4096
MAX_WIDTH = 1 << 24


@dataclass(frozen=True, eq=False)
class Meta:
    """Keys `<arch>.*` and tensors of a GGUF file."""

    gguf: GgufFile
    arch: str
    used: set[str] = field(default_factory=set)

    def get(self, key: str) -> object | None:
        """The raw value of `<arch>.<key>`, or None."""
        self.used.add(f"{self.arch}.{key}")
        return self.gguf.metadata.get(f"{self.arch}.{key}")

    def fail(self, key: str, reason: str) -> FormatError:
        return FormatError(self.gguf.path, f"{self.arch}.{key}", reason)

    def integer(self, key: str, default: int | None = None, *, least: int = 1, most: int = MAX_WIDTH) -> int:
        return self._int(key, self.get(key), default, least, most)

    def _int(self, key: str, value: object, default: int | None, least: int, most: int) -> int:
        if value is None:
            if default is None:
                raise self.fail(key, "the key is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.fail(key, f"expected an integer, found {reprlib.repr(value)}")
        if not least <= value <= most:
            raise self.fail(key, f"{value} is out of range {least} to {most}")
        return value

    def integers(self, key: str, n: int, *, most: int = MAX_WIDTH) -> list[int]:
        """One positive integer per layer, from a scalar or from an array of exactly n."""
        value = self.get(key)
        if not isinstance(value, np.ndarray):
            return [self._int(key, value, None, 1, most)] * n
        if len(value) != n:
            raise self.fail(key, f"has {len(value)} entries for {n} layers")
        return [self._int(key, v, None, 1, most) for v in value.tolist()]

    def number(self, key: str, default: float | None = None, *, above: float = 0.0, most: float = math.inf) -> float:
        """A finite number in (above, most]."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.fail(key, "the key is missing")
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.fail(key, f"expected a number, found {reprlib.repr(value)}")
        if not (math.isfinite(value) and above < value <= most):
            raise self.fail(key, f"{value} is not a finite number above {above:g} and up to {most:g}")
        return float(value)

    def refuse(self, *keys: str) -> None:
        """Keys that change the computation and that this architecture does not implement."""
        for key in keys:
            value = self.get(key)
            if value is not None and not (isinstance(value, bool | int | float) and value == 0):
                setting = f"{self.arch}.{key} = {reprlib.repr(value)}"
                raise UnsupportedError(f"{self.gguf.path}: {setting} changes the forward pass; not supported")

    def name(self) -> str:
        """`general.name`, safe to print; the file name when there is none."""
        value = self.gguf.metadata.get("general.name")
        text = value if isinstance(value, str) and value.strip() else self.gguf.path.stem
        return "".join(c if c.isprintable() else " " for c in text)[:200]

    # -- tensors -----------------------------------------------------------------------------------------------
    def has(self, name: str) -> bool:
        return name in self.gguf.tensors

    def matrix(self, name: str, rows: int, cols: int) -> QuantTensor:
        """A weight [rows, cols], packed."""
        self._shape(name, (rows, cols))
        return self.gguf.tensor(name)

    def vector(self, name: str, n: int) -> F32:
        """A vector [n] as float32."""
        self._shape(name, (n,))
        return self.gguf.vector(name)

    def _shape(self, name: str, want: tuple[int, ...]) -> None:
        self.used.add(name)
        shape = self.gguf.info(name).shape
        if shape != want:
            raise FormatError(self.gguf.path, name, f"has shape {list(shape)}, the metadata says {list(want)}")

    # -- rope --------------------------------------------------------------------------------------------------
    def n_rot(self, head_dim: int) -> int:
        """Rotated dims of a head: even, at most head_dim."""
        n = self.integer("rope.dimension_count", head_dim, least=2, most=head_dim)
        if n % 2:
            raise self.fail("rope.dimension_count", f"{n} is odd; dims are rotated in pairs")
        return n

    def rope(self, head_dim: int, *, interleaved: bool) -> RopeConfig:
        """Rope of layers with full attention: base, scaling keys, factor tensors (docs: polykv.model.rope)."""
        n_rot = self.n_rot(head_dim)
        base = self.number("rope.freq_base", 10000.0, above=1.0)
        kind = self.get("rope.scaling.type")
        # Files older than the typed keys carry only a linear factor.
        factor = self.number("rope.scaling.factor", self.number("rope.scale_linear", 1.0))
        if kind is None:
            kind = "none" if factor == 1.0 else "linear"
        half = n_rot // 2
        factors = self.factors("rope_freqs.weight", half)
        if kind == "none":
            return RopeConfig(base, n_rot, interleaved, freq_factors=factors)
        if kind == "linear":
            return RopeConfig(base, n_rot, interleaved, RopeScaling.LINEAR, factor, freq_factors=factors)
        if kind not in ("yarn", "longrope"):
            raise UnsupportedError(
                f"{self.gguf.path}: {self.arch}.rope.scaling.type: {reprlib.repr(kind)} is not supported;"
                " known are none, linear, yarn, longrope"
            )
        context = self.integer("context_length", most=1 << 40)
        original = self.integer("rope.scaling.original_context_length", context, least=2, most=1 << 40)
        attn = self.number("rope.scaling.attn_factor", 1.0)
        if kind == "yarn":
            return self._yarn(RopeConfig(base, n_rot, interleaved, RopeScaling.YARN, factor, original), factors, attn)
        return RopeConfig(
            base, n_rot, interleaved, RopeScaling.LONGROPE, factor, original, attn_factor=attn,
            freq_factors=self.factors("rope_factors_short.weight", half),
            long_factors=self.factors("rope_factors_long.weight", half),
        )  # fmt: skip

    def _yarn(self, cfg: RopeConfig, factors: F32 | None, attn: float) -> RopeConfig:
        if self.number("rope.scaling.yarn_ext_factor", 1.0, above=-1.0) != 1.0:
            raise self.fail("rope.scaling.yarn_ext_factor", "only 1 is supported")
        attn *= self.number("rope.scaling.yarn_attn_factor", 1.0)
        # The file's factor multiplies the rule's own magnitude.
        own = 0.1 * math.log(cfg.factor) + 1.0 if cfg.factor > 1.0 else 1.0
        return RopeConfig(
            cfg.base, cfg.n_rot, cfg.interleaved, cfg.scaling, cfg.factor, cfg.original_context,
            beta_fast=self.number("rope.scaling.yarn_beta_fast", 32.0),
            beta_slow=self.number("rope.scaling.yarn_beta_slow", 1.0),
            attn_factor=None if attn == 1.0 else attn * own,
            freq_factors=factors,
        )  # fmt: skip

    def factors(self, name: str, n: int) -> F32 | None:
        """Divisors of the frequencies: finite and positive; None when the file has none."""
        if not self.has(name):
            return None
        f = self.vector(name, n)
        if not (np.isfinite(f).all() and (f > 0).all()):
            raise FormatError(self.gguf.path, name, "frequency factors must be finite and positive")
        return f
