"""The quality benchmark: it finds nothing where there is nothing, and the documents show what it found."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from tiny_models import random_ids, tiny_model

from polykv.cache.codecs import parse_tiers
from polykv.cache.plan import plan_memory
from polykv.measure.quality import divergence, log_softmax
from polykv.model.loader import load_model

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))
import calibration  # noqa: E402
import results  # noqa: E402
import windows  # noqa: E402
from quality import digits, measure, rows  # noqa: E402

RESULT = json.loads((ROOT / "benchmarks" / "results" / "quality.json").read_text())


@pytest.mark.parametrize("name", ("llama", "gemma3"))
def test_it_measures_what_it_says(name: str) -> None:
    model = tiny_model(name)
    found = measure(model, [random_ids(100)], ["f32/f32", "f16/f16", "q8_0/turbo3"])
    assert (found["f32/f32"]["kl_mean"], found["f32/f32"]["kl_p99"], found["f32/f32"]["same_top"]) == (0, 0, 1)
    assert abs(found["f16/f16"]["kl_mean"]) < 1e-4 < found["q8_0/turbo3"]["kl_mean"]
    assert found["f16/f16"]["times_smaller_than_f16"] == 1
    assert found["f32/f32"]["times_smaller_than_f16"] == 0.5


def test_divergence_of_known_distributions() -> None:
    p, q = np.array([[0.5, 0.25, 0.25], [1 / 3, 1 / 3, 1 / 3]]), np.array([[0.25, 0.5, 0.25], [1 / 3, 1 / 3, 1 / 3]])
    got = divergence(*(log_softmax(np.log(x).astype(np.float32) + 7) for x in (p, q)))
    np.testing.assert_allclose(got, [0.5 * np.log(2) - 0.25 * np.log(2), 0], atol=1e-6)
    assert [digits(x) for x in (0.02995, 0.000036, 3e-7, 2.97)] == ["0.030", "0.000036", "< 0.00001", "3.0"]


def test_the_documents_show_the_result() -> None:
    table = rows(RESULT)
    formats, readme = ((ROOT / name).read_text() for name in ("docs/FORMATS.md", "README.md"))
    assert shown(formats, table) == table
    short = shown(readme, table)
    assert {"f16/f16", "q8_0/q8_0", "q8_0/q4_0", "q8_0/turbo3", "q4_0/q4_0", "turbo3/turbo3"} <= set(short)
    assert all(table[kv] == line for kv, line in short.items())
    for text in (readme, formats):
        assert f"commit {RESULT['commit']}" in text.replace("\n", " ")


def shown(text: str, pairs: dict[str, str]) -> dict[str, str]:
    """Rows of a document that begin with a pair, by that pair."""
    rows = {m[1]: m[0] for m in re.finditer(r"^\| `([^`]+)` .*$", text, re.M)}
    return {kv: line for kv, line in rows.items() if kv in pairs}


def test_the_result_is_complete() -> None:
    for m in RESULT["models"].values():
        names = {kv.split("/")[0] for kv in m["pairs"]}
        assert {"f16", "q8_0", "q4_0", "turbo3"} <= names
        assert set(m["pairs"]) == {f"{k}/{v}" for k in names for v in names}
        assert m["tokens"] >= 512
    assert {"machine", "commit", "date", "backend", "activations"} <= set(RESULT)


@pytest.mark.model
@pytest.mark.parametrize("name", ("smollm2", "gemma3"))
def test_bytes_of_the_result_are_still_those_of_the_arrays(name: str, request: pytest.FixtureRequest) -> None:
    config = load_model(request.getfixturevalue(f"{name}_path")).config
    for kv, x in RESULT["models"][name]["pairs"].items():
        plan = plan_memory(config, parse_tiers(kv, len(config.layers)), ctx=1)
        assert sum(layer.token_nbytes for layer in plan.layers) == x["bytes_per_token"]


@pytest.mark.parametrize("name", ("calibration", "calibration-opticks", "calibration-centered"))
def test_the_results_of_calibrations_are_shown(name: str) -> None:
    result = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    text = (ROOT / "docs" / "RESULTS.md").read_text()
    assert all(row in text for row in calibration.rows(result)) and f"commit {result['commit']}" in text
    for m in result["models"].values():
        for kv, found in m["pairs"].items():
            # Factors for K are worth something wherever K has few bits, and cost no bytes.
            assert len({x["bytes_per_token"] for x in found.values()}) == 1
            limit = 1.05 if kv.startswith("q8_0") else 0.9 if "+c" in kv else 0.8
            assert found["balanced"]["kl_mean"] < limit * found["none"]["kl_mean"]


def test_the_windows_are_shown_and_keep_what_is_said_of_them() -> None:
    """Monotone in bits, a trellis before its scalar sibling, bits for K before bits for V; and the bars."""
    cells = json.loads((ROOT / "benchmarks" / "results" / "windows.json").read_text())["cells"]
    text = (ROOT / "docs" / "RESULTS.md").read_text()
    assert all(row in text for row in windows.rows(cells).values())
    assert all(c["commit"] in text and c["tokens"] == 2048 for c in cells)
    for model, most, rotated in (("smollm2", 0.045, 0.056), ("gemma3", 0.065, 0.133)):
        kl = {kv: windows.average(cells, model, kv, "kl_mean") for kv in {c["kv"] for c in cells}}
        held = {kv: windows.average(cells, model, kv, "bits_held") for kv in kl}
        same = [kl[f"{t}/{t}"] for t in ("turbo8", "turbo4", "turbo3_tcq", "turbo3", "turbo2_tcq", "turbo2")]
        assert same == sorted(same)
        assert kl["turbo4/turbo3"] < kl["turbo3/turbo4"] / 2 and kl["q8_0/turbo3"] < kl["turbo3/q8_0"] / 2
        better, smaller = "turbo4+c/turbo3,sink=4", "turbo3+c/turbo3,sink=4"
        assert kl[better] <= most and held[better] <= 3.9
        assert kl[smaller] <= min(rotated, kl["q4_0+r/q4_0+r"]) and held[smaller] <= 3.4


def test_tables_of_all_types_are_those_of_the_results() -> None:
    """docs/RESULTS.md shows what benchmarks/results.py makes of the files of results."""
    page = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8")
    assert results.with_tables(page) == page
    assert list((ROOT / "benchmarks" / "results").glob("kld-*-*.json"))
