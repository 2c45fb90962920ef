"""Random damage to a small model file, in a process with a memory limit: a typed error or a good load, nothing else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

RUNS = 2500
# The child may use this much address space beyond what Python and NumPy have mapped after import.
HEADROOM = 100 << 20


def child(folder: str, seed: int) -> None:
    """Load damaged files; print how many were refused and how many loaded."""
    import random
    import resource
    import struct

    from gguf_bytes import tiny

    from polykv.errors import PolyKVError
    from polykv.model.gguf_check import nonfinite
    from polykv.model.loader import load_model

    good = {arch: tiny(arch).build() for arch in ("llama", "gemma3")}
    path = Path(folder) / "f.gguf"
    for content in good.values():
        path.write_bytes(content)
        load_model(path)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + HEADROOM, used + HEADROOM))
    rng = random.Random(seed)
    result = {"refused": 0, "loaded": 0}

    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        try:
            nonfinite(load_model(path).gguf)
            result["loaded"] += 1
        except PolyKVError:
            result["refused"] += 1

    for content in good.values():
        head = content.index(b"blk.1.ffn_down.weight") + 60
        # Every 8-byte field of the header, at every offset where one may begin, becomes an extreme.
        for at in range(4, head, 3):
            value = rng.choice((0, 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1))
            attempt(content[:at] + struct.pack("<Q", value) + content[at + 8 :])
    for i in range(RUNS):
        content = bytearray(good["llama" if i % 2 else "gemma3"])
        # Most flips go into the header, where they matter.
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(4, 2600 if rng.random() < 0.9 else len(content))
            content[at] = rng.randrange(256) if rng.random() < 0.5 else content[at] ^ (1 << rng.randrange(8))
        attempt(bytes(content))
    print(json.dumps(result))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the memory limit is set through /proc and RLIMIT_AS")
@pytest.mark.parametrize("seed", [1, 2])
def test_damage_ends_in_typed_errors(tmp_path: Path, seed: int) -> None:
    folders = [str(Path(__file__).parents[i]) for i in range(2)]
    code = f"import sys; sys.path[:0] = {folders!r}; import test_gguf_fuzz as t"
    run = subprocess.run(
        [sys.executable, "-c", f"{code}; t.child({str(tmp_path)!r}, {seed})"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stderr[-3000:]
    result = json.loads(run.stdout)
    # Both outcomes occur, so the damage is neither invisible nor always in the same place.
    assert result["refused"] > 500 and result["loaded"] > 50, result
