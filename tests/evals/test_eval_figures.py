"""Windows, figures of positions, intervals: against figures computed in another way."""

from __future__ import annotations

import math
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_models import tiny_path

from polykv.cache.pool import KVPool
from polykv.cache.sequence import Sequence
from polykv.config import CacheConfig
from polykv.errors import ConfigError
from polykv.evals import stamp
from polykv.evals.arms import make_arm, open_setting
from polykv.evals.divergence import figures, perplexity, positions
from polykv.evals.perplexity import ROWS, compare, score
from polykv.evals.statistics import mean_interval, standard_error, wilson
from polykv.evals.windows import cut, text_windows
from polykv.measure.quality import log_softmax
from polykv.model.runner import Logits, Runner
from polykv.text.tokenizer import Tokenizer

TEXT = "Light is a stream of small bodies, or it is a wave; nobody could tell which it was. " * 40


@given(st.integers(0, 40), st.integers(2, 9), st.sampled_from([None, 1]), st.none() | st.integers(1, 3))
def test_windows_follow_the_convention(n: int, size: int, bos: int | None, limit: int | None) -> None:
    ids = list(range(100, 100 + n))
    found = cut(ids, size, bos, limit)
    assert len(found) == min(n // size, limit if limit else n)
    for i, w in enumerate(found):
        part = ids[i * size : (i + 1) * size]
        assert list(w.ids) == ([bos, *part[1:]] if bos else part)
        assert w.first == size // 2
        assert w.scored == size - 1 - size // 2


def test_too_few_positions_are_refused() -> None:
    tokenizer = Tokenizer.from_gguf(open_setting(str(tiny_path("llama")), ctx=16).model.gguf.metadata)
    with pytest.raises(ConfigError, match="fewer than 100"):
        text_windows(tokenizer, TEXT, 16, 2)


def test_a_text_that_just_fills_a_window_is_refused() -> None:
    tokenizer = Tokenizer.from_gguf(open_setting(str(tiny_path("llama")), ctx=16).model.gguf.metadata)
    n = len(tokenizer.encode(TEXT, add_bos=None))
    for limit in (1, None):
        with pytest.raises(ConfigError, match=f"{n:,} tokens, windows of {n // 2 + 1:,} need {2 * (n // 2 + 1):,}"):
            text_windows(tokenizer, TEXT, n // 2 + 1, limit)
    assert len(text_windows(tokenizer, TEXT, n // 2, 1)) == 1


def _logs(n: int, vocab: int, seed: int, spread: float = 2.0) -> np.ndarray:
    return log_softmax((spread * np.random.default_rng(seed).standard_normal((n, vocab))).astype(np.float32))


def test_figures_against_float64() -> None:
    base, mine = _logs(300, 50, 0), _logs(300, 50, 1)
    following = np.random.default_rng(2).integers(0, 50, 300)
    cell = figures(positions(base, np.exp(base), mine, following))
    p, q = np.exp(base.astype(np.float64)), np.exp(mine.astype(np.float64))
    kl = (p * (base.astype(np.float64) - mine)).sum(axis=1)
    true_p, true_q = (x[np.arange(300), following] for x in (p, q))
    assert cell["kld"] == pytest.approx(kl.mean(), rel=1e-5)
    assert cell["kld_max"] == pytest.approx(kl.max(), rel=1e-5)
    assert cell["kld_quantiles"]["p99"] == pytest.approx(np.quantile(kl, 0.99), rel=1e-5)
    assert cell["kld_error"] == pytest.approx(kl.std(ddof=1) / math.sqrt(300), rel=1e-5)
    assert cell["ppl"] == pytest.approx(np.exp(-np.log(true_q).mean()), rel=1e-5)
    assert cell["ln_ppl_ratio"] == pytest.approx(-np.log(true_q / true_p).mean(), rel=1e-5)
    # The same from variances and the covariance, as the peer writes it.
    a, b = -np.log(true_q), -np.log(true_p)
    variance = a.var(ddof=1) + b.var(ddof=1) - 2 * np.cov(a, b)[0, 1]
    assert cell["ln_ppl_ratio_error"] == pytest.approx(math.sqrt(variance / 300), rel=1e-5)
    assert cell["same_top"] == (p.argmax(axis=1) == q.argmax(axis=1)).mean()
    assert cell["delta_p"] == pytest.approx((true_q - true_p).mean(), rel=1e-4)
    assert cell["delta_p_rms"] == pytest.approx(math.sqrt(((true_q - true_p) ** 2).mean()), rel=1e-4)


def test_equal_predictions_do_not_diverge() -> None:
    base = _logs(5, 9, 0)
    cell = figures(positions(base, np.exp(base), base, np.arange(5)))
    assert (cell["kld"], cell["kld_max"], cell["same_top"], cell["ln_ppl_ratio"], cell["delta_p_rms"]) == (
        0,
        0,
        1,
        0,
        0,
    )


@pytest.mark.parametrize("decode", [False, True])
def test_compare_scores_what_the_runner_predicts(decode: bool) -> None:
    """Two windows, longer than the rows of a step: the same figures as from one pass over each window."""
    size = 2 * ROWS + 22
    setting = open_setting(str(tiny_path("gemma3")), ctx=size, decode=decode)
    model, ops = setting.model, setting.ops
    tokenizer = Tokenizer.from_gguf(model.gguf.metadata)
    windows = cut(tokenizer.encode(TEXT, add_bos=None), size, tokenizer.bos if tokenizer.add_bos else None, 2)
    arms = [make_arm(setting, kv) for kv in ("f16", "q8_0/turbo3")]
    counted: list[tuple[int, int]] = []
    found = compare(windows, arms[0], arms, setting, lambda done, total: counted.append((done, total)))
    assert counted[-1] == (3 * 2 * (size - 1), 3 * 2 * (size - 1))
    for arm in arms:
        expected, kl = [], []
        for w in windows:
            logs = []
            for a in (arms[0], arm):
                pool = KVPool(ops, model.config, CacheConfig(a.tiers), fingerprint="", max_tokens=size)
                runner = Runner(ops, model, pool, setting.activations)
                logs.append(log_softmax(runner.step([(Sequence(pool), list(w.ids[:-1]))], Logits.ALL)[w.first :]))
            expected += [-logs[1][i, t] for i, t in enumerate(w.ids[w.first + 1 :])]
            kl += (np.exp(logs[0]) * (logs[0] - logs[1])).sum(axis=1).tolist()
        mine = found[arm.name].positions
        assert np.allclose(mine.nll, expected, rtol=1e-5)
        assert np.allclose(mine.kl, kl, rtol=1e-3, atol=1e-6)
        assert np.array_equal(score(windows, arm, setting), mine.nll)
    assert not found["f16"].positions.kl.any() and found["q8_0/turbo3"].positions.kl.all()
    assert found["f16"].bits == 16 > found["q8_0/turbo3"].bits
    assert found["f16"].bits_held == pytest.approx(16)


def test_intervals_cover_what_they_promise() -> None:
    rng = np.random.default_rng(0)
    for p, n in ((0.5, 10), (0.9, 20), (0.99, 50)):
        inside = [low <= p <= high for low, high in (wilson(k, n) for k in rng.binomial(n, p, 2000))]
        assert 0.9 < np.mean(inside) <= 1
    means = [mean_interval(rng.exponential(size=30), seed=i) for i in range(200)]
    assert 0.85 < np.mean([i.low <= 1 <= i.high for i in means]) <= 1
    assert standard_error([5.0]) == math.inf
    with pytest.raises(ValueError, match="no values"):
        mean_interval([])


def test_perplexity_of_a_fair_guess() -> None:
    assert perplexity(np.full(7, math.log(64.0))) == (pytest.approx(64), 0)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not on the path: `git --version` fails")
def test_the_commit_is_that_of_the_own_tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy that is installed inside somebody else's tree has none."""
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.invalid"]
    git += ["-c", "commit.gpgsign=false"]
    (tmp_path / "theirs").touch()
    for args in (["init", "-q"], ["add", "theirs"], ["commit", "-q", "-m", "theirs"]):
        subprocess.run([*git, *args], capture_output=True, check=True)
    (tmp_path / "stamp.py").touch()
    monkeypatch.setattr(stamp, "__file__", str(tmp_path / "stamp.py"))
    assert stamp.commit() is None
    monkeypatch.setattr(stamp, "__file__", str(tmp_path / "theirs"))
    assert stamp.commit()


def test_a_perplexity_beyond_all_floats_is_infinite() -> None:
    assert perplexity(np.full(3, 1e4))[0] == math.inf and math.isnan(perplexity(np.full(3, np.nan))[0])
