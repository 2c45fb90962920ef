"""The two real models against float32 truth (golden/models/*.npz), and what sharing saves on them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import polykv
from polykv.cache.sequence import Sequence
from polykv.engine_options import make_request
from polykv.llm import LLM
from polykv.model.runner import Logits

pytestmark = pytest.mark.model
NAMES = ("smollm2", "gemma3")


@pytest.fixture
def path(name: str, request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(f"{name}_path")


@pytest.fixture
def truth(name: str, golden: Path) -> dict[str, np.ndarray]:
    return dict(np.load(golden / "models" / f"{name}.npz"))


class Scores:
    """What is compared, gathered chunk by chunk: all logits of Gemma at once would take a gigabyte."""

    def __init__(self, llm: LLM, truth: dict[str, np.ndarray], n: int) -> None:
        tokens, top = truth["tokens"][:n], truth["top_logits"][:n]
        self.error, self.kld, self.nll = 0.0, [], []
        wrong: list[np.ndarray] = []
        sequence = Sequence(llm.cache)
        for a in range(0, n, 128):
            rows = slice(a, min(a + 128, n))
            logits = llm.engine.runner.step([(sequence, tokens[rows].tolist())], Logits.ALL)
            ours = np.take_along_axis(logits, truth["top_ids"][rows].astype(np.int64), 1).astype(np.float64)
            peak = logits.max(axis=1, keepdims=True)
            lse = np.log(np.exp(logits - peak).sum(axis=1, dtype=np.float64)) + peak[:, 0]
            self.error = max(self.error, float(np.abs(ours - top[rows]).max()))
            wrong.append(logits.argmax(axis=1) != truth["top_ids"][rows, 0])
            following = tokens[a + 1 : rows.stop + 1]
            self.nll += (lse[: len(following)] - logits[np.arange(len(following)), following]).tolist()
            # KL(truth || ours) over the 64 likeliest tokens, all others as one.
            log_p, log_q = top[rows] - truth["lse"][rows, None], ours - lse[:, None]
            rest_p, rest_q = (np.clip(1 - np.exp(x).sum(axis=1), 1e-12, 1) for x in (log_p, log_q))
            inside = (np.exp(log_p) * (log_p - log_q)).sum(axis=1)
            self.kld += (inside + rest_p * np.log(rest_p / rest_q)).tolist()
        sequence.free()
        self.margin_of_wrong = (top[:, 0] - top[:, 1])[np.concatenate(wrong)]
        self.perplexity = float(np.exp(np.mean(self.nll[: n - 1])))
        self.true_perplexity = float(np.exp(truth["nll"][: n - 1].mean()))


@pytest.mark.parametrize(("kv", "tolerance"), (("f32", 2e-3), ("f16", 5e-2)))
@pytest.mark.parametrize("name", NAMES)
def test_ref_computes_the_true_logits(path: Path, truth: dict, kv: str, tolerance: float) -> None:
    scores = Scores(polykv.load(path, backend="ref", kv=kv), truth, 64)
    assert scores.error < tolerance


@pytest.mark.parametrize("name", NAMES)
def test_cpu_computes_the_true_logits(path: Path, truth: dict) -> None:
    scores = Scores(polykv.load(path, kv="f32", activations="f32"), truth, len(truth["tokens"]))
    assert scores.error < 5e-3
    assert (scores.margin_of_wrong < 0.1).all()
    assert scores.perplexity == pytest.approx(scores.true_perplexity, rel=1e-3)


@pytest.mark.parametrize(("kv", "activations", "margin"), (("f16", "f32", 0.1), ("f16", "q8", 0.5)))
@pytest.mark.parametrize("name", NAMES)
def test_float16_cache_and_int8_activations_stay_near_the_truth(
    path: Path, truth: dict, kv: str, activations: str, margin: float
) -> None:
    scores = Scores(polykv.load(path, kv=kv, activations=activations), truth, 384)
    assert (scores.margin_of_wrong < margin).all()
    assert scores.perplexity == pytest.approx(scores.true_perplexity, rel=5e-3)
    assert np.mean(scores.kld) <= 0.005


@pytest.mark.parametrize("name", NAMES)
def test_greedy_continuations_are_the_true_ones(path: Path, truth: dict) -> None:
    llm = polykv.load(path, kv="f16", activations="f32")
    want = []
    for i in range(3):
        # From the first close call on, another order of additions may decide otherwise.
        close = np.flatnonzero(truth[f"margin{i}"] < 0.05)
        want.append(truth[f"greedy{i}"][: close[0] if len(close) else None].tolist())
    requests = [make_request(truth[f"prompt{i}"].tolist(), max_tokens=len(w)) for i, w in enumerate(want)]
    assert [g.tokens for g in llm.engine.run(requests)] == want
    assert sum(map(len, want)) >= 20


@pytest.mark.parametrize("name", NAMES)
def test_eight_agents_share_a_long_document(path: Path, truth: dict) -> None:
    llm = polykv.load(path, activations="f32")
    with llm.pool(llm.detokenize(truth["tokens"][1:700].tolist())) as pool:
        questions = [f"Who wrote section {i}?" for i in range(8)]
        answers = pool.ask(questions, max_tokens=6, ignore_eog=True)
        memory = pool.memory()
        assert memory.total == llm.cache.used_nbytes
        assert memory.separate_cells >= 6 * memory.cells
        assert memory.f16_equivalent >= 8 * memory.total
        assert all(a.stats.cache_n >= len(pool.tokens) - 2 for a in answers)
        counters = llm.cache.counters
        assert counters["shared_cells"] > 0
        ids = llm.prompts.first(questions[3], pool.document)
    alone = polykv.load(path, activations="f32").generate(ids, max_tokens=6, ignore_eog=True, stop=llm.prompts.stop)
    assert alone.stats.cache_n == 0
    assert answers[3].tokens == alone.tokens
