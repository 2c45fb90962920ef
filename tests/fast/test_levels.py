"""Every instruction level that this processor can run gives the same products, tokens, attention and trellis paths.

Integer sums are exact at every level, and with fused multiply-adds the float sums have the same roundings: AVX2 and
VNNI agree bit for bit. The portable level has no fused multiply-add on x86 and differs by roundings, of which one can
move a weight of three-bit values to the next of its 16 bits.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from level_worker import attentions, errors, products, tokens

from polykv.fast.cpu.simd_core import Level, features, level

TARGETS = {
    Level.PORTABLE: ("x86-64", "+sse2"),
    Level.AVX2: ("haswell", "+avx,+avx2,+fma,+f16c,+bmi,+bmi2,+popcnt,+sse4.1,+sse4.2,+ssse3,+lzcnt,+movbe"),
}


@pytest.fixture(scope="module")
def here() -> dict[str, np.ndarray]:
    return products() | tokens() | attentions() | errors()


@pytest.mark.parametrize("wanted", TARGETS, ids=lambda w: w.name)
def test_lower_level(wanted: Level, here: dict[str, np.ndarray], tmp_path: Path) -> None:
    if "x86_64" not in features():
        pytest.skip("levels can be lowered by feature lists on x86 only; this processor has one level")
    if wanted >= level():
        pytest.skip(f"this process already runs at level {level().name}")
    name, listed = TARGETS[wanted]
    env = os.environ | {"NUMBA_CPU_NAME": name, "NUMBA_CPU_FEATURES": listed}
    script = Path(__file__).with_name("level_worker.py")
    # On a new machine it compiles everything; the time of a whole test is limit enough.
    subprocess.run([sys.executable, str(script), str(tmp_path / "out.npz")], env=env, check=True)
    there = dict(np.load(tmp_path / "out.npz"))
    assert str(there.pop("level")) == wanted.name
    assert there.keys() == here.keys() - {"level"}
    for key, y in there.items():
        if wanted == Level.AVX2:
            np.testing.assert_array_equal(y, here[key], err_msg=key)
        else:
            error = np.sqrt(np.mean((y - here[key]) ** 2) / np.mean(here[key] ** 2))
            # Without fused multiply-adds some weights are rounded the other way, where values are integers, and some
            # rotated queries, where keys are.
            integers = any(f"/{name}" in key for name in ("turbo3", "q", "iq4_nl"))
            integers |= key.startswith(("turbo8/", "turbo3_tcq/"))
            if key == "greedy-exact":
                # How near a bound is to the limit may be a matter of roundings.
                assert np.abs(y - here[key]).max() <= 16
                continue
            assert error < (1e-5 if integers or key == "turbo3-112" else 2e-6), key
