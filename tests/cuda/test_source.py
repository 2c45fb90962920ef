"""Source texts of kernels: what is pasted, what is refused, and that a text stands for itself."""

from __future__ import annotations

import re

import pytest

from polykv.fast.cuda.source import source


def test_includes_are_pasted_once() -> None:
    files = {
        "a.cu": '#include "b.cuh"\n#include "c.cuh"\nint a;',
        "b.cuh": '#include "c.cuh"\nint b;',
        "c.cuh": "int c;",
    }
    text = source("a.cu", instead=files)
    assert "include" not in text
    assert re.findall(r"int \w;", text) == ["int c;", "int b;", "int a;"]


def test_messages_name_the_place_in_the_file() -> None:
    files = {"a.cu": 'int before;\n#include "b.cuh"\nint after;', "b.cuh": "int b;"}
    lines = source("a.cu", {"SOME_SIZE": 3}, instead=files).splitlines()
    assert lines[0] == "#define SOME_SIZE 3"
    assert lines[lines.index("int b;") - 1] == '#line 1 "b.cuh"'
    assert lines[lines.index("int after;") - 1] == '#line 3 "a.cu"'


def test_defines_come_first_in_the_order_of_names() -> None:
    text = source("a.cu", {"ZERO_SIZE": 0, "A_FLAG": True, "THE_TYPE": "Q8_0"}, instead={"a.cu": ""})
    assert text.splitlines()[:3] == ["#define A_FLAG 1", "#define THE_TYPE Q8_0", "#define ZERO_SIZE 0"]


@pytest.mark.parametrize(("name", "value"), [("D", 1), ("DIM", 1), ("some_size", 1), ("SOME_SIZE", "a b"), ("A_B", "")])
def test_short_names_and_loose_values_are_refused(name: str, value: int | str) -> None:
    """`#define D 128` would break every `template <int D>` behind it."""
    with pytest.raises(ValueError, match=f"#define {name}"):
        source("a.cu", {name: value}, instead={"a.cu": ""})


@pytest.mark.parametrize("line", ["#include <cuda_fp16.h>", "# include CONFIG", '#include "b.cuh" int x;'])
def test_other_includes_are_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"a\.cu:2: kernels include files of their own folder only"):
        source("a.cu", instead={"a.cu": f"int a;\n{line}", "b.cuh": ""})
