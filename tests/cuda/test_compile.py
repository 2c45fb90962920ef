"""Every shipped kernel is compiled for every architecture, without a GPU, and what the assembler says is looked at."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from polykv.fast.cuda.nvrtc import compile_for
from polykv.fast.cuda.shipped import shipped
from polykv.fast.cuda.source import source

SHIPPED = {str(s): s for s in shipped()}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_kernel_compiles(name: str) -> None:
    kernel = SHIPPED[name]
    text = source(kernel.file, kernel.defines)
    with ThreadPoolExecutor() as pool:
        made = list(pool.map(lambda arch: compile_for(arch, text, name=kernel.file), kernel.architectures))
    for arch, binary in zip(kernel.architectures, made, strict=True):
        assert set(binary.resources) == {kernel.entry, *kernel.others}
        for used in binary.resources.values():
            # Registers in memory, and arrays indexed at run time, make a slow kernel that looks like a fast one.
            assert used.spills <= kernel.spills and (used.stack == 0 or kernel.spills > 0), (arch, used)
        assert binary.image


def test_names_are_unique() -> None:
    assert len(SHIPPED) == sum(1 for _ in shipped())
