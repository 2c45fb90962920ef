"""On real models more bits are better, and types that are searched for are better than those that are looked up."""

from __future__ import annotations

from importlib.resources import files

import pytest

from polykv.measure.quality import compare
from polykv.model.loader import load_model
from polykv.ops import load
from polykv.text.tokenizer import Tokenizer

pytestmark = pytest.mark.model
# Each pair of a row has a larger divergence than the one before it.
ORDERS = (("turbo8", "turbo4", "turbo3", "turbo2"), ("q8_0", "q6_0", "q5_0", "q4_0"))
SEARCHED = (("turbo3_tcq", "turbo3"), ("turbo2_tcq", "turbo2"))
TOKENS = 160


@pytest.mark.parametrize("name", ("smollm2", "gemma3"))
def test_divergence_falls_with_bits(name: str, request: pytest.FixtureRequest) -> None:
    model = load_model(request.getfixturevalue(f"{name}_path"))
    text = (files("polykv.data") / "texts" / "jargon-file.txt").read_text(encoding="utf-8")
    ids = Tokenizer.from_gguf(model.gguf.metadata).encode(text[:2000])[:TOKENS]
    names = sorted({"turbo4_ep", *(name for order in (*ORDERS, *SEARCHED) for name in order)})
    pairs = ["q8_0/turbo3", "turbo3/q8_0"]
    found = compare(model, ids, [*(f"{n}/{n}" for n in names), *pairs], ops=load("cpu"), truth="f16/f16")
    kl = {n: found[f"{n}/{n}"].kl_mean for n in names}
    for order in (*ORDERS, *SEARCHED):
        divergences = [kl[n] for n in order]
        assert divergences == sorted(divergences), (order, divergences)
    # The other published table has twice the error.
    assert kl["turbo4"] < kl["turbo4_ep"]
    # Stronger keys are worth more than stronger values, at equal bytes.
    strong_k, strong_v = (found[pair] for pair in pairs)
    assert strong_k.bytes_per_token == strong_v.bytes_per_token
    assert strong_k.kl_mean < strong_v.kl_mean
