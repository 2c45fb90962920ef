"""Surroundings that break other programs: a CuPy that does not work, no home, code that comes from standard input."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tiny_models import tiny_path

ROOT = Path(__file__).parent.parent
USE = f"""
import polykv
llm = polykv.load({str(tiny_path("llama"))!r}, ctx=256, kv="f16", activations="f32")
assert len(llm.generate([5, 6, 7], max_tokens=4, ignore_eog=True).tokens) == 4
print("it works")
"""
BROKEN = {
    "no library": "raise ImportError('libnvrtc.so.12: cannot open shared object file')",
    "no GPU": "class cuda:\n    @staticmethod\n    def is_available():\n        raise RuntimeError('no device')",
    "crash": "raise RuntimeError('vector_types.h not found')",
}
SAID = {
    "no library": "CuPy does not import (libnvrtc.so.12: cannot open shared object file)",
    "no GPU": "CuPy cannot load CUDA",
    "crash": "CuPy does not import (vector_types.h not found)",
}


def python(*args: str, text: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, **environment}
    return subprocess.run([sys.executable, *args], input=text, capture_output=True, text=True, timeout=300, env=env)


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_cupy_disturbs_nothing(fault: str, tmp_path: Path) -> None:
    (tmp_path / "cupy").mkdir()
    (tmp_path / "cupy" / "__init__.py").write_text(BROKEN[fault])
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = python("-c", USE, PYTHONPATH=path, CUDA_VISIBLE_DEVICES="")
    assert (done.returncode, done.stdout) == (0, "it works\n"), done.stderr
    doctor = python("-m", "polykv", "doctor", "--json", PYTHONPATH=path)
    assert doctor.returncode == 0, doctor.stderr
    assert SAID[fault] in doctor.stdout and "everything runs on the CPU" in doctor.stdout


def test_a_program_from_standard_input() -> None:
    done = python("-", text=USE)
    assert (done.returncode, done.stdout) == (0, "it works\n"), done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="POSIX home directories")
def test_without_a_home(tmp_path: Path) -> None:
    """HOME unset, then one that cannot be written; kernels come from where they are or are compiled in memory."""
    script = "import os; os.environ.pop('HOME', None); os.environ.pop('XDG_CACHE_HOME', None)\n" + USE
    done = python("-c", script)
    assert (done.returncode, done.stdout) == (0, "it works\n"), done.stderr
