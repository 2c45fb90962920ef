"""Quality of all K/V types on both models, for docs/RESULTS.md: what `polykv eval kld` says, kept as JSON.

    python benchmarks/results.py                          # measure what is missing, then rewrite the tables
    python benchmarks/results.py --models smollm2 --tables   # rewrite the tables only

One file per model and length, `results/kld-MODEL-TOKENS.json`; a file that has all types is not measured again, and one
that was begun goes on (`.jsonl`, which goes when all is there). Tables stand in docs/RESULTS.md between two marks.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from polykv.cli import run
from polykv.evals.result import Result
from polykv.evals.tables import Table, tables

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "RESULTS.md"
BEGIN, END = "<!-- tables of benchmarks/results.py -->", "<!-- end of tables -->"
# Tokens of a window, and how many of them.
LENGTHS = ((2048, 4), (8192, 1))
PLAIN = ("q8_0", "q6_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl", "bf16", "turbo8", "turbo4", "turbo3", "turbo2")
OTHER = ("turbo3_tcq", "turbo2_tcq", "q4_0+r", "q8_0/turbo3", "q8_0/q4_0", "turbo4/turbo3")
STAGED = ("turbo4+c/turbo3,sink=4", "turbo3+c/turbo3,sink=4")


def main() -> None:
    """Parse arguments, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])  # type: ignore[union-attr]
    parser.add_argument("--models", default="smollm2,gemma3")
    parser.add_argument("--tables", action="store_true", help="measure nothing")
    args = parser.parse_args()
    if not args.tables:
        for model in args.models.split(","):
            for tokens, windows in LENGTHS:
                measure(model, tokens, windows)
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def file_of(model: str, tokens: int) -> Path:
    """Where a result is kept."""
    return HERE / "results" / f"kld-{model}-{tokens}.json"


def measure(model: str, tokens: int, windows: int) -> None:
    """One result, unless it is there with all types."""
    path, wanted = file_of(model, tokens), (*PLAIN, *OTHER, *STAGED)
    if path.exists():
        missing = set(wanted) - {cell["kv"] for cell in Result.load(path).cells}
        print(f"{path.name} is there" + f" without {', '.join(sorted(missing))}" * bool(missing))
        if not missing:
            return
    kvs = [word for kv in wanted for word in ("--kv", kv)]
    size = ["--ctx", str(tokens), "--windows", str(windows)]
    begun = path.with_suffix(".jsonl")
    code = run(["eval", "kld", "-m", model, *size, *kvs, "--store", str(begun), "--out", str(path)])
    if code:
        raise SystemExit(code)
    begun.unlink()


def with_tables(page: str) -> str:
    """The page with the tables of all results that there are."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest or not after:
        raise SystemExit(f"{PAGE.name} has no place for tables: {BEGIN} ... {END}")
    return before + BEGIN + "\n\n" + "\n\n".join(blocks()) + "\n\n" + END + after


def blocks() -> list[str]:
    """A heading, a line of origin and a table for every result, by model and length."""
    found = []
    for path in sorted((HERE / "results").glob("kld-*-*.json"), key=order):
        result = Result.load(path)
        (table,) = tables(result)
        name, made = result.stamp["model"]["name"], result.stamp
        where = f"{made['backend']} on {made['machine']['processor']}, activations {made['activations']}"
        how = f"Commit {made['commit']}, {made['date'][:10]}, {where}."
        title = f"### {name}, {result.settings['ctx']:,} tokens"
        found.append("\n\n".join([title, rows(table), f"{table.title.capitalize()}. {how}"]))
    return found


def order(path: Path) -> tuple[str, int]:
    """By model, then by length."""
    _, model, tokens = path.stem.split("-")
    return model, int(tokens)


def rows(table: Table) -> str:
    """A table in Markdown."""
    lines = [table.columns, ["---"] * table.text + ["---:"] * (len(table.columns) - table.text), *table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    main()
