"""Tiny random models with golden logits, ready to run; used by the tests of runner, engine and pools."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from polykv import ops as operations
from polykv.cache.codecs import parse_tiers
from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.config import CacheConfig
from polykv.model.loader import Model, load_model
from polykv.model.runner import Logits, Runner
from polykv.types import F32, Activations

MODELS = Path(__file__).parent / "golden" / "models"
NAMES = ("llama", "llama_rope_linear", "llama_rope_llama3", "qwen2", "qwen2_rope_yarn", "gemma3")
WEIGHTS = ("f16", "q8_0")
BACKENDS = ("ref", "cpu")


def tiny_path(name: str, weights: str = "f16") -> Path:
    return MODELS / name / f"model-{weights}.gguf"


@cache
def tiny_model(name: str, weights: str = "f16") -> Model:
    return load_model(tiny_path(name, weights))


def tiny_golden(name: str) -> dict[str, np.ndarray]:
    return dict(np.load(MODELS / name / "golden.npz"))


def tiny_runner(
    name: str, backend: str = "cpu", kv: str = "f32", weights: str = "f16", max_tokens: int = 4096, block_size: int = 64
) -> Runner:
    """A runner with an empty pool and float32 activations."""
    model, ops = tiny_model(name, weights), operations.load(backend)
    cache_config = CacheConfig(parse_tiers(kv, len(model.config.layers)), block_size)
    pool = KVPool(ops, model.config, cache_config, fingerprint=model.fingerprint, max_tokens=max_tokens)
    return Runner(ops, model, pool, Activations.F32)


def random_ids(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(4, 320, n).tolist()


def one_shot(runner: Runner, ids: list[int]) -> F32:
    """Logits of all ids, computed in one step of a fresh sequence."""
    sequence = Sequence(runner.pool)
    logits = runner.step([(sequence, ids)], Logits.ALL)
    sequence.free()
    return logits


def assert_same(backend: str, got: F32, want: F32) -> None:
    """Bit-equal on cpu; ref promises equality up to float rounding."""
    assert got.shape == want.shape
    if backend == "cpu":
        np.testing.assert_array_equal(got, want)
    else:
        np.testing.assert_allclose(got, want, atol=2e-5)
