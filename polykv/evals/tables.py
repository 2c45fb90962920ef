"""A result as tables of text, the same for a terminal, Markdown and HTML."""

from __future__ import annotations

from collections.abc import Callable

from polykv.counted import counted
from polykv.evals.overview_judge import Role, verdict
from polykv.evals.result import Cell, Result
from polykv.evals.shift import as_fresh, passes
from polykv.evals.shift import verdict as verdict_of_shift
from polykv.evals.table import Table
from polykv.evals.task_tables import task_tables

Show = Callable[[Cell], str]


def tables(result: Result) -> list[Table]:
    """All tables of a result. A kind that has no form of its own shows every figure that is a number or a text."""
    return _FORMS.get(result.kind, _plain)(result)


def number(key: str, form: str) -> Show:
    """A figure by its key; `-` when it was not measured.

    >>> number("kld", ".3f")({"kld": 0.12345}), number("kld", ".3f")({})
    ('0.123', '-')
    """
    return lambda c: "-" if c.get(key) is None else format(c[key], form)


def with_error(key: str, error: str, form: str, sign: str = "") -> Show:
    """A figure and its standard error."""
    value, spread = number(key, sign + form), number(error, form)
    return lambda c: f"{value(c)} ± {spread(c)}"


def name_of(c: Cell) -> str:
    """The types, and what the cell is there for when it is no candidate."""
    return str(c["kv"]) if c.get("role", Role.ARM) == Role.ARM else f"{c['kv']} ({c['role']})"


_PPL: dict[str, Show] = {"K/V": name_of, "perplexity": with_error("ppl", "ppl_error", ".4f")}
_KLD: dict[str, Show] = {
    "K/V": name_of,
    "bits": number("bits", ".2f"),
    "held": number("bits_held", ".2f"),
    "mean KLD": with_error("kld", "kld_error", ".5f"),
    "median": lambda c: number("p50", ".5f")(c["kld_quantiles"]),
    "99 %": number("kld_p99", ".4f"),
    "max": number("kld_max", ".3f"),
    "same top": number("same_top", ".2%"),
    "delta p": number("delta_p", "+.2%"),
    "ln PPL ratio": with_error("ln_ppl_ratio", "ln_ppl_ratio_error", ".4f", "+"),
}
_LOGITS: dict[str, Show] = {
    "K/V": name_of,
    "verdict": lambda c: ("PASS" if c["passes"] else "FAIL") + (", as it should" * (c["self_test"] > c["passes"])),
    "real": number("real_frac", ".0%"),
    "agree": number("frac_full_agree", ".0%"),
    "lost": number("recall_mismatch", "d"),
    "mean TV": number("mean_tv", ".4f"),
    "95 % TV": number("p95_tv", ".4f"),
    "real at": number("real", "d"),
    "ties at": number("tie", "d"),
    "after answer": number("post_answer", "d"),
}
_OVERVIEW: dict[str, Show] = {
    "K/V": name_of,
    "verdict": lambda c: "NOT MEASURED" if "error" in c else verdict(c),
    "real": number("real_frac", ".0%"),
    "recall": number("recall", ".0%"),
    "TV": number("mean_tv", ".3f"),
    "95 % TV": number("p95_tv", ".3f"),
    "KLD": number("kld", ".4f"),
    "same top": number("same_top", ".1%"),
    "prefill": number("prefill_tok_s", ",.0f"),
    "decode": number("decode_tok_s", ",.1f"),
    "vs f16": number("decode_ratio", ".2f"),
    "MiB": lambda c: "-" if "error" in c else f"{c['kv_bytes'] / 2**20:.2f}",
    "bits": number("bits_held", ".2f"),
}

_SHIFT: dict[str, Show] = {
    "shifts": number("shifts", "d"),
    "dropped": number("shifted_cells", ",d"),
    "first": number("first", "d"),
    "numbers": number("integers", ",d"),
    "in a row": number("longest_run", ",d"),
    "repeated": number("max_repeat", "d"),
    "as fresh": lambda c: "-" if c.get("fresh") is None else "yes" if as_fresh(c) else "no",
    "logits moved": number("moved", ".2g"),
}


def _table(title: str, form: dict[str, Show], cells: list[Cell], caption: str = "", text: int = 1) -> Table:
    return Table(title, list(form), [[show(c) for show in form.values()] for c in cells], caption, text)


def _windows(result: Result) -> str:
    s = result.settings
    way = ", token by token" if s["decode"] else ""
    windows, positions = counted(s["windows"], "window"), counted(s["positions"], "position")
    return f"{s['corpus']}, {windows} of {s['ctx']:,} tokens, {positions}{way}"


def _ppl(result: Result) -> list[Table]:
    return [_table(f"perplexity: {_windows(result)}", _PPL, result.cells)]


def _kld(result: Result) -> list[Table]:
    s = result.settings
    title = f"divergence: {_windows(result)}, from {s['base']} with perplexity {number('base_ppl', '.3f')(s)}"
    caption = "bits: codes per value; held: all bytes at the end of a window per value of f16"
    return [_table(title, _KLD, result.cells, caption)]


def _logits(result: Result) -> list[Table]:
    s, first = result.settings, result.cells[0]
    answers = "" if s["recall"] is None else f"; it answers {s['recall']:.0%} of the questions"
    prompts, positions = counted(s["prompts"], "prompt"), counted(first["positions"], "position")
    title = f"tokens against those of {s['base']}: {prompts}, {positions}{answers}"
    caption = (
        "real, agree: shares of prompts; lost: prompts that only one of the runs answers; "
        "the last three: positions where the token differs"
    )
    return [_table(title, _LOGITS, result.cells, caption, text=2)]


def _overview(result: Result) -> list[Table]:
    found = []
    caption = "TV: total variation; vs f16: decoding speed against exact K/V; MiB, bits: all that is held"
    for ctx in dict.fromkeys(c["ctx"] for c in result.cells):
        title = f"{ctx:,} tokens of {result.settings['corpus']}: quality with float32 activations, tokens/s as run"
        cells = [c for c in result.cells if c["ctx"] == ctx]
        found.append(_table(title, _OVERVIEW, cells, caption, text=2))
    return found


def _shift(result: Result) -> list[Table]:
    s, control = result.settings, result.cells[0]

    def shown(c: Cell) -> str:
        return verdict_of_shift(c, control) + ", as it should" * (c.get("self_test", False) and not passes(c))

    title = f"counting on from {s['last']:,}: context of {s['ctx']:,} tokens, the first {s['keep']} kept in a shift"
    caption = (
        "in a row: most numbers each one more than the one before; repeated: how often the most frequent one occurs; "
        "as fresh: all after the shift is as after a fresh prompt of the kept tokens"
    )
    form = {"K/V": name_of, "verdict": shown, **_SHIFT}
    return [_table(title, form, result.cells, caption, text=2)]


def _tasks(result: Result) -> list[Table]:
    return task_tables(result.kind, result.cells)


def _plain(result: Result) -> list[Table]:
    keys = list(dict.fromkeys(k for c in result.cells for k, v in c.items() if isinstance(v, str | int | float)))
    rows = [[_text(c.get(k)) for k in keys] for c in result.cells]
    return [Table(result.kind, keys, rows)]


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


_FORMS: dict[str, Callable[[Result], list[Table]]] = {
    "ppl": _ppl,
    "kld": _kld,
    "logits": _logits,
    "overview": _overview,
    "shift": _shift,
    **dict.fromkeys(("niah", "vt", "mrcr", "countup", "copy"), _tasks),
}
