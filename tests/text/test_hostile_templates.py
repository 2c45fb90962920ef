"""Templates that attack: each ends in one typed error, with little time and memory, and leaves everything usable."""

from __future__ import annotations

import time
import tracemalloc
from itertools import accumulate

import pytest
from vocabularies import byte_level

from polykv.errors import FormatError, PolyKVError, PromptError
from polykv.text.chat import ChatTemplate
from polykv.text.template_budget import MAX_SECONDS, Budget
from polykv.text.tokenizer import Tokenizer

TOK = Tokenizer.from_gguf(byte_level())
MESSAGES = [{"role": "user", "content": "hello"}]


def _grow(start: str, step: str, end: str = "{{ ns.x }}") -> str:
    return f"{{% set ns = namespace(x={start}) %}}{{% for i in range(70) %}}{step}{{% endfor %}}{end}"


ESCAPES = {
    "lipsum": '{{ lipsum.__globals__["os"].popen("id").read() }}',
    "cycler": "{{ cycler.__init__.__globals__ }}",
    "mro": "{{ ''.__class__.__mro__ }}",
    "subscript": "{{ ''['__class__'].__mro__ }}",
    "filter attr": "{{ ''|attr('__class__') }}",
    "map attr": "{{ ['']|map(attribute='__class__')|map(attribute='__mro__')|list }}",
    "method of type": "{{ namespace.mro() }}",
    "format": "{{ '{0.__class__.__mro__}'.format(1) }}",
    "format_map": "{{ '{a.__class__}'.format_map({'a': 1}) }}",
    "globals": "{{ raise_exception.__globals__.x }}",
    "macro": "{% macro m() %}{% endmacro %}{{ m._func.__globals__ }}",
    "self": "{{ self._TemplateReference__context.environment.x() }}",
    "own filter": "{{ messages|@box }}",
    "change input": "{{ messages.append(1) }}",
    "change message": "{{ messages[0].update({'a': 1}) }}",
    "call filter": "{{ ''.encode() }}",
    "import": "{% import 'x' as y %}",
    "include": "{% include '/etc/passwd' %}",
    "extends": "{% extends 'x' %}",
    "block": "{% block a %}{{ self.a() }}{% endblock %}",
    "autoescape": "{% autoescape true %}{% endautoescape %}",
    "print function": "{{ range }}",
    "print namespace": "{{ namespace(a=1) }}",
}

BOMBS = {
    "range": "{% for i in range(10**9) %}x{% endfor %}",
    "nested loops": "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "string times": "{{ 'a' * 10**9 }}",
    "times string": "{{ 10**9 * 'a' }}",
    "list times": "{{ [0] * 10**9 }}",
    "times in steps": "{% set x = 'a' * 100000 %}{{ x * 10 * 10 * 10 * 10 }}",
    "power": "{{ 2 ** (10 ** 10) }}",
    "squares": _grow("3", "{% set ns.x = ns.x * ns.x %}"),
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "tree recursion": "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(60) }}",
    "growing recursion": "{% macro m(x) %}{{ m(x ~ x ~ 'a') }}{% endmacro %}{{ m('') }}",
    "loop recursion": "{% for a in [1] recursive %}{{ loop([1, 1]) }}{% endfor %}",
    "tilde": _grow("'a'", "{% set ns.x = ns.x ~ ns.x %}"),
    "plus": _grow("'a'", "{% set ns.x = ns.x + ns.x %}"),
    "list plus": _grow("[1]", "{% set ns.x = ns.x + ns.x %}"),
    "shared lists": _grow("[1]", "{% set ns.x = [ns.x, ns.x] %}"),
    "compare shared lists": _grow("[1]", "{% set ns.x = [ns.x, ns.x] %}", "{{ ns.x == ns.x[:] }}"),
    "shared tuples": _grow("[1]", "{% set ns.x = (ns.x, ns.x) %}"),
    "shared dicts": _grow("1", "{% set ns.x = {'a': ns.x, 'b': ns.x} %}"),
    "shared dict calls": _grow("1", "{% set ns.x = dict(a=ns.x, b=ns.x) %}", "{{ ns.x == 1 }}"),
    "shared namespaces": _grow("1", "{% set ns.x = namespace(a=ns.x, b=ns.x) %}"),
    "captured output": _grow("'a'", "{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}"),
    "deep list": "{% set ns = namespace(x=1) %}{% for i in range(9**5) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
    "many strings": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = ns.x + [i] %}{% endfor %}",
    "center": "{{ 'a'.center(10**9) }}",
    "zfill": "{{ 'a'.zfill(10**9) }}",
    "expandtabs": "{{ '\t'.expandtabs(10**9) }}",
    "printf": "{{ '%1000000000d' % 1 }}",
    "printf star": "{{ '%*d' % (10**9, 1) }}",
    "printf many": "{% set x = 'a' * 100000 %}{{ ('%(a)s' * 1000) % {'a': x} }}",
    "replace": "{% set x = 'a' * 100000 %}{{ x.replace('a', x) }}",
    "replace nothing": "{% set x = 'a' * 100000 %}{{ x.replace('', x) }}",
    "replace filter": "{% set x = 'a' * 100000 %}{{ x|replace('a', x) }}",
    "join": "{% set x = 'a' * 100000 %}{{ x|join(x) }}",
    "join method": "{% set x = 'a' * 90000 %}{{ x.join(x|list) }}",
    "split": "{% set x = 'a ' * 800000 %}{{ x.split() }}",
    "indent": "{{ ('a\n' * 10000)|indent(10**9) }}",
    "tojson": "{{ [[[[1]]]]|tojson(indent=10**9) }}",
    "strftime": "{{ strftime_now('%1000000000d') }}",
    "output": "{% for i in range(99999) %}" + "x" * 100_000 + "{% endfor %}",
    "macro output": "{% macro m() %}"
    + "x" * 100_000
    + "{% endmacro %}{% for i in range(99999) %}{{ m() }}{% endfor %}",
    "slow comparisons": "{% set x = 'a' * 900000 %}{% for i in range(9**5) %}{{ x ~ 'b' == x ~ 'c' }}{% endfor %}",
    "parentheses": "{{ " + "(" * 100_000 + "1" + ")" * 100_000 + " }}",
    "some parentheses": "{{ " + "(" * 5_000 + "1" + ")" * 5_000 + " }}",
    "signs": "{{ " + "-" * 9_000 + "1 }}",
    "nested ifs": "{% if a %}" * 2_000 + "{% endif %}" * 2_000,
    "long sum": "{{ " + "+".join(["a"] * 200_000) + " }}",
    "long list": "{{ [" + "a," * 300_000 + "] }}",
    "many outputs": "{{ a }}" * 140_000,
}


@pytest.mark.parametrize("source", ESCAPES.values(), ids=ESCAPES.keys())
def test_escapes_are_refused(source: str) -> None:
    before = [dict(m) for m in MESSAGES]
    with pytest.raises((FormatError, PromptError)):
        ChatTemplate(source, TOK).render(MESSAGES)
    assert before == MESSAGES


@pytest.mark.parametrize("source", BOMBS.values(), ids=BOMBS.keys())
def test_bombs_are_stopped(source: str) -> None:
    chat = ChatTemplate(source, TOK)
    start = time.thread_time()
    tracemalloc.start()
    try:
        with pytest.raises(PolyKVError):
            chat.render(MESSAGES)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 100e6
    # A runaway guard (of processor time, under tracing), not a measure of speed.
    assert time.thread_time() - start < 30


def test_time_is_counted_but_for_its_longest_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """In which Python may have collected garbage; a second one of that length is the template's own."""

    def run(*gaps: float) -> None:
        clock = iter(accumulate(gaps, initial=5.0))
        monkeypatch.setattr(time, "thread_time", lambda: next(clock))
        budget = Budget()
        for _ in gaps:
            budget.step()

    run(*[0.001] * 400, 60.0, *[0.001] * 90)
    for gaps in ((60.0, MAX_SECONDS + 0.1), (MAX_SECONDS + 0.1, 60.0), [0.001] * 600):
        with pytest.raises(FormatError, match="processor time"):
            run(*gaps)


def test_a_stopped_template_can_be_used_again() -> None:
    source = "{% for i in range(messages[0].content | int) %}{% for j in range(1000) %}x{% endfor %}{% endfor %}"
    chat = ChatTemplate(source, TOK)
    with pytest.raises(FormatError, match="steps"):
        chat.render([{"role": "user", "content": "99999"}])
    assert chat.render([{"role": "user", "content": "2"}]) == "x" * 2000


def test_names_of_the_template_do_not_hide_the_bounds() -> None:
    source = "{% set range = 1 %}{% set loop = 1 %}{% for i in 'ab' * 3 %}{{ i }}{% endfor %}"
    assert ChatTemplate(source, TOK).render(MESSAGES) == "ababab"


@pytest.mark.parametrize("source", ["{% if %}", "{{ a", "{% endfor %}", "{{ 'x'|nofilter }}", "{% nosuch %}"])
def test_syntax_errors_name_the_line(source: str) -> None:
    with pytest.raises(FormatError, match="line 2"):
        ChatTemplate("\n" + source, TOK).render(MESSAGES)


@pytest.mark.parametrize("source", ["{{ a.b.c }}", "{{ a() }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}", "{{ a|tojson }}"])
def test_failing_expressions(source: str) -> None:
    with pytest.raises(PromptError, match="template failed"):
        ChatTemplate(source, TOK).render(MESSAGES)


def test_harmless_features_work() -> None:
    cases = {
        "{{ messages|map(attribute='role')|join(', ') }}": "user",
        "{{ messages|selectattr('role', 'equalto', 'user')|list|length }}": "1",
        "{{ {'b': 1, 'a': [1.5, 'é', none]}|tojson }}": '{"b": 1, "a": [1.5, "é", null]}',
        "{{ 'a,b'.split(',')[-1] }}{{ 'abc'[1:] }}": "bbc",
        "{{ '%s-%02d' % ('a', 7) }}": "a-07",
        "{% for k, v in {'x': 1}|items %}{{ k }}{{ v }}{% endfor %}": "x1",
        "{% for k, v in {'x': 1}.items() %}{{ k }}{{ v }}{{ loop.last }}{% endfor %}": "x1True",
        "{% for i in [1, 2, 3]|reverse %}{{ i }}{{ loop.cycle('a', 'b') }}{% endfor %}": "3a2b1a",
        "{{ [3, 1, 2]|sort|first }}{{ [1, 2]|sum }}{{ [1, 2]|max }}": "132",
        "{{ ', '.join(['a', 'b']) }}{{ 'a\nb'|indent(2) }}": "a, ba\n  b",
        "{{ '<a>'|e }}{{ '<a>'|safe }}{{ none }}{{ nothing }}": "&lt;a&gt;<a>None",
        "{% macro m(x) %}{{ x }}{{ caller() if caller }}{% endmacro %}{% call m(1) %}c{% endcall %}{{ m(2) }}": "1c2",
        "{{ strftime_now('%Y')|length }}": "4",
        "{{ 'x' in 'xy' }}{{ 2 in [1] }}{{ messages is iterable and messages is not string }}": "TrueFalseTrue",
    }
    for source, want in cases.items():
        assert ChatTemplate(source, TOK).render(MESSAGES) == want, source
