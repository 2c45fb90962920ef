"""What works on this machine, and why not: a list of checks, each with a sentence that says what to do.

    for check in examine():
        print(check.state.value, check.name, check.text)

Looks only: nothing is compiled, downloaded or loaded (importing numba is the slowest part, about a second).
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path
from types import ModuleType

from polykv import __version__
from polykv.catalogue import CATALOGUE, model_dir
from polykv.errors import PolyKVError

LOW_DISK = 1_000_000_000


class State(Enum):
    """How a check came out. NOTE: works, but there is something to know."""

    OK = "ok"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True)
class Check:
    """One line of the examination."""

    name: str
    state: State
    text: str


def examine(calibrations: Mapping[str, str | None] | None = None) -> list[Check]:
    """All checks, most basic first. calibrations: files of factors to look at, by what they are for ("K", "V")."""
    checks = [*_basics()]
    if any(c.state is State.BAD for c in checks):
        # Looking further would only repeat the same fault.
        return checks
    files = [_calibration(side, path) for side, path in (calibrations or {}).items() if path is not None]
    return [*checks, *_cpu(), *_models(), *files, _disk(), _gpu()]


def _basics() -> Iterator[Check]:
    yield Check("polykv", State.OK, f"{__version__} in {Path(__file__).parent}")
    yield Check("python", State.OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")
    yield _packages()
    if importlib.util.find_spec("pip") is None:
        yield Check("pip", State.NOTE, "missing: `polykv pull` needs it (`python -m ensurepip`); -m PATH works without")
    encoding = (sys.stdout.encoding or "unknown").lower()
    state = State.OK if encoding.replace("-", "") == "utf8" else State.NOTE
    yield Check("output", state, f"encoding {encoding}" + ("" if state is State.OK else "; polykv writes UTF-8 anyway"))


def _packages() -> Check:
    try:
        required = _requirements()
    except metadata.PackageNotFoundError:
        text = "not looked for: polykv runs from its source folder, without `pip install .`"
        return Check("packages", State.NOTE, text)
    missing, versions = [], []
    for package in required:
        try:
            versions.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            missing.append(package)
    if missing:
        text = f"missing: {', '.join(missing)}; run `pip install .` in the source folder"
        return Check("packages", State.BAD, text)
    return Check("packages", State.OK, ", ".join(versions))


def _requirements() -> list[str]:
    """Names of the packages that the installed polykv asks for, without the optional ones."""
    lines = [line for line in metadata.requires("polykv") or [] if "extra ==" not in line]
    return [re.split(r"[^\w.-]", line)[0] for line in lines]


def _cpu() -> Iterator[Check]:
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    memory = ""
    if sys.platform != "win32":
        memory = f", {os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 1e9:.1f} GB of memory"
    yield Check("cores", State.OK, f"{cores} usable{memory}")
    yield from _backend("ref", "slow, for reading and checking")
    yield from _backend("cpu", "the one to use")
    try:
        from polykv.fast import kernel_store
        from polykv.fast.cpu import simd_core, team
    except (ImportError, PolyKVError) as e:
        yield Check("kernels", State.BAD, f"cannot be imported: {e}")
        return
    level = simd_core.level()
    text = {0: "portable code only: several times slower than with AVX2", 1: "AVX2 with FMA", 2: "AVX2 with VNNI"}
    yield Check("simd", State.OK if level else State.NOTE, text[int(level)])
    yield Check("threads", State.OK, f"{team.threads()} workers, polykv's own; numba's threading layer is not used")
    yield _kernel_cache(kernel_store)


def _backend(name: str, about: str) -> Iterator[Check]:
    from polykv.ops import load

    try:
        load(name)
    except (ImportError, AttributeError, PolyKVError) as e:
        yield Check(f"backend {name}", State.BAD, f"does not load: {e}")
    else:
        yield Check(f"backend {name}", State.OK, about)
        yield _limits(name)


def _limits(name: str) -> Check:
    """What the backend says about K/V types, sizes of heads and weight types that files have."""
    from polykv.capability import HEAD_DIMS, capability
    from polykv.ops import load
    from polykv.types import WeightType

    ops = load(name)
    found = capability(name, ops)
    weights = {kind: ops.supports_weight(kind) for kind in WeightType}
    types, refused_pairs = found.types(), found.refused_pairs()
    everywhere = [d for d in HEAD_DIMS if all(d in found.dims(t) for t in types)]
    kv = f"any pair of {', '.join(types)}" + (f" but {', '.join(refused_pairs)}" if refused_pairs else "")
    dims = f"head_dim {', '.join(map(str, everywhere))}"
    if any(len(found.dims(t)) > len(everywhere) for t in types):
        dims += " (some types more: `polykv tiers --capabilities`)"
    usable = ", ".join(kind.name for kind, reason in weights.items() if reason is None)
    # Reasons are few, whatever the types and sizes: one sentence each.
    refused = dict.fromkeys([*found.refusals(), *(r for r in weights.values() if r is not None)])
    text = f"K/V {kv}; {dims}; weights {usable}"
    return Check(f"{name} runs", State.NOTE if refused else State.OK, ". Not more: ".join([text, *refused]))


def kernels_are_kept() -> bool:
    """Whether compiled kernels can be written to the user's cache."""
    from polykv.fast import kernel_store

    path = kernel_store.cache_dir()
    return path is not None and os.access(path, os.W_OK)


def _kernel_cache(store: ModuleType) -> Check:
    path, sentence = store.cache_dir(), store.cache_state()
    if path is None:
        return Check("kernel cache", State.NOTE, sentence)
    kernels, size, versions = store.usage(path)
    state = State.OK if os.access(path, os.W_OK) else State.NOTE
    text = "empty: the first run compiles"
    if kernels:
        rule = f"unused ones go after {store.MAX_AGE} days"
        text = f"{kernels} compiled kernels, {size / 1e6:.1f} MB in {versions} folders; {rule}"
    return Check("kernel cache", state, f"{sentence}: {text}")


def _models() -> Iterator[Check]:
    for entry in CATALOGUE.values():
        path = model_dir() / f"{entry.name}.gguf"
        if not path.is_file():
            text = f"not here; `polykv pull {entry.name}` brings {entry.size / 1e6:.0f} MB"
            yield Check(f"model {entry.name}", State.NOTE, text)
        elif path.stat().st_size != entry.size:
            text = f"{path} has the wrong size; `polykv pull {entry.name}` replaces it"
            yield Check(f"model {entry.name}", State.NOTE, text)
        else:
            yield Check(f"model {entry.name}", State.OK, str(path))


def _calibration(side: str, path: str) -> Check:
    """What a calibration file holds."""
    from polykv.cache.calibration import describe
    from polykv.cache.calibration_file import read_slots

    name = f"calibration of {side}"
    try:
        slots = read_slots(path)
    except PolyKVError as e:
        return Check(name, State.BAD, str(e))
    more = f"; and {len(slots) - 1} more" if len(slots) > 1 else ""
    return Check(name, State.OK, f"{path}: {describe(slots[0])}{more}; `polykv plan -m MODEL` says if it fits a model")


def _disk() -> Check:
    folder = model_dir()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    state = State.OK if free > LOW_DISK else State.NOTE
    return Check("disk", state, f"{free / 1e9:.1f} GB free for models and kernels in {folder}")


def _gpu() -> Check:
    from polykv.fast.cuda.device import device, problem

    sentence = problem()
    if sentence is None:
        text = f"{device()}; --backend cuda uses it"
    else:
        text = f"not used: {sentence}; everything runs on the CPU"
    return Check("gpu", State.NOTE, text)
