"""What is said about a machine: one sentence for each thing that can be missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from gguf_bytes import head_of
from tiny_models import tiny_path

import polykv
from polykv import cli
from polykv.errors import UnsupportedError
from polykv.fast.cuda.device import describe, problem

H200 = {
    "name": b"NVIDIA H200",
    "major": 9,
    "minor": 0,
    "totalGlobalMem": 150_754_820_096,
    "multiProcessorCount": 132,
    "sharedMemPerMultiprocessor": 228 << 10,
}


def machine(driver: int = 13000, built: int = 13000, count: int = 1, nvrtc: Any = None, **changes: Any) -> Any:
    """A stand-in for CuPy on some machine."""

    def libraries() -> tuple[int, int]:
        if nvrtc is not None:
            raise nvrtc
        return 13, 0

    runtime = SimpleNamespace(
        runtimeGetVersion=lambda: built,
        driverGetVersion=lambda: driver,
        getDeviceCount=lambda: count,
        getDevice=lambda: 0,
        getDeviceProperties=lambda i: H200 | changes,
    )
    return SimpleNamespace(cuda=SimpleNamespace(runtime=runtime, nvrtc=SimpleNamespace(getVersion=libraries)))


def test_a_good_machine_is_described() -> None:
    found = describe(machine())
    assert str(found) == "NVIDIA H200, compute capability 9.0, 150.8 GB of memory"
    assert (found.arch, found.processors) == ("sm_90", 132)


@pytest.mark.parametrize(
    ("have", "sentence"),
    [
        (machine(driver=0), "there is no NVIDIA driver"),
        (
            machine(driver=12040),
            r"built for CUDA 13\.0, but the driver knows CUDA 12\.4 at most; install cupy-cuda12x in its place",
        ),
        (machine(count=0), "it shows no GPU"),
        (machine(major=7, minor=5), r"NVIDIA H200 has compute capability 7\.5; the kernels need 8\.0 or more"),
        (machine(nvrtc=ImportError("no libnvrtc")), r"no NVRTC, CUDA's compiler; `pip install 'cupy-cuda13x\[ctk\]'`"),
    ],
    ids=["driver", "old driver", "device", "old device", "compiler"],
)
def test_what_is_missing_is_said_in_one_sentence(have: Any, sentence: str) -> None:
    with pytest.raises(UnsupportedError, match=sentence) as e:
        describe(have)
    assert "\n" not in str(e.value)


def test_a_newer_driver_is_fine() -> None:
    assert describe(machine(driver=13010, built=12090)).runtime == (13, 0)


BROKEN = """
import sys
from types import ModuleType
from polykv.doctor import examine

{setup}
print([c.text for c in examine() if c.name == "gpu"][0])
"""


@pytest.mark.parametrize(
    ("setup", "sentence"),
    [
        ("sys.modules['cupy'] = None", "not used: CuPy is not installed; `pip install '.[cuda]'` brings it"),
        (
            "class Finder:\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name == 'cupy': raise OSError('libcudart.so.12: cannot open')\n"
            "sys.meta_path.insert(0, Finder())",
            "not used: CuPy does not import (libcudart.so.12: cannot open); install it again",
        ),
        ("sys.modules['cupy'] = ModuleType('cupy')", "not used: CuPy cannot load CUDA (module 'cupy' has no attribute"),
    ],
    ids=["absent", "broken", "hollow"],
)
def test_doctor_survives_a_broken_cupy(setup: str, sentence: str) -> None:
    program = BROKEN.format(setup=setup)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith(sentence)
    assert done.stdout.rstrip().endswith("; everything runs on the CPU")


@pytest.mark.skipif(problem() is None, reason="there is a GPU: `polykv doctor` shows it")
def test_without_a_gpu_one_sentence_says_what_lacks_and_what_runs(tmp_path: Path) -> None:
    with pytest.raises(UnsupportedError) as e:
        polykv.load(head_of(tmp_path, 64), backend="cuda")
    assert str(problem()) in str(e.value) and "--backend cpu" in str(e.value) and "\n" not in str(e.value)


@pytest.mark.skipif(problem() is None, reason="there is a GPU: `polykv doctor` shows it")
@pytest.mark.parametrize("command", [["tiers"], ["plan"], ["generate", "hi"]], ids=lambda c: c[0])
def test_commands_say_it_before_anything_else(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    model = [] if command == ["tiers"] else ["-m", str(tiny_path("llama"))]
    code = cli.run([*command, *model, "--backend", "cuda"])
    out, err = capsys.readouterr()
    assert code == 2 and out == "" and err.count("\n") == 1 and str(problem()) in err and "--backend cpu" in err
