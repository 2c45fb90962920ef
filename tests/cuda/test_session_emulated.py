"""Whole sessions on the CUDA backend, in the emulator: what a user of `polykv.load(backend="cuda")` has."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pretend_cupy
import pytest
from gguf_bytes import head_of

import polykv
from polykv.errors import UnsupportedError
from polykv.fast.cuda.attend import _signs
from polykv.fast.cuda.attend_run import _levels
from polykv.fast.cuda.bound import _ids_of
from polykv.fast.cuda.forms import _form
from polykv.fast.cuda.fwht import _core

# The model's vocabulary has five letters.
DOCUMENT = "abcdebadcab" * 9
MODEL = {"context_length": 256, "tok__add_space_prefix": False}


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The emulator in the place of CuPy."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed")
    with pretend_cupy.installed(tmp_path_factory.mktemp("kernels"), _levels, _signs, _form, _core, _ids_of):
        yield


@pytest.mark.parametrize(("dim", "kv"), [(64, "f16"), (72, "q8_0/turbo3")])
def test_logits_and_tokens(machine: None, tmp_path: Path, dim: int, kv: str) -> None:
    """Those of `ref`, as far as the bytes of levels allow; a token at a time, in batches, drawn."""
    model = head_of(tmp_path, dim, **MODEL)
    here, there = (polykv.load(model, backend=b, kv=kv, activations="f32", ctx=256) for b in ("ref", "cuda"))
    ids = here.tokenize(DOCUMENT)[:24]
    want, got = here.logits(ids), there.logits(ids)
    assert isinstance(got, np.ndarray)
    assert np.sqrt(((got - want) ** 2).mean() / want.var()) < (1e-3 if kv == "f16" else 2e-2)
    if kv != "f16":
        # Where levels are bytes, a token of near equal chances may be another.
        return
    greedy = {"max_tokens": 2, "ignore_eog": True}
    drawn = {**greedy, "temperature": 0.7, "top_k": 4, "repetition_penalty": 1.1, "seed": 5}
    for options in (greedy, drawn):
        of_here, of_there = (
            [g.tokens for g in llm.generate_many([ids[:5], ids[:9]], **options)] for llm in (here, there)
        )
        assert list(map(len, of_there)) == [2, 2] and of_there == of_here
    assert there.report()


@pytest.mark.parametrize(("kv", "reason"), [("q5_1", "no attention over q5_1"), ("turbo3,sink=4", "exact cells")])
def test_what_is_not_there_is_refused_at_once(machine: None, tmp_path: Path, kv: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=reason):
        polykv.load(head_of(tmp_path, 64, **MODEL), backend="cuda", kv=kv)
