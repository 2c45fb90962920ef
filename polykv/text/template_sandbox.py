"""A Jinja environment for templates of unknown origin: sandboxed, and bounded in time and memory.

Jinja's ImmutableSandboxedEnvironment keeps a template from reaching the interpreter. On top of it the parsed template
is rewritten so that everything that repeats or grows goes through `Budget`: loops, calls, operators, literals, slices,
output. Inserted nodes are filters with names that cannot be written in a template, so it can neither call nor shadow
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import cast

from jinja2 import Template, Undefined, nodes
from jinja2.exceptions import SecurityError, TemplateSyntaxError
from jinja2.ext import Extension, LoopControlExtension
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace, pass_context

from polykv.text.template_budget import Budget
from polykv.text.template_filters import GLOBALS, BoundedOperators, Filters, charge_method

MAX_SOURCE = 1 << 20
# Lexer tokens, blanks included; the largest published chat templates have some 6,000.
MAX_TOKENS = 20_000

_FORBIDDEN = (nodes.Include, nodes.Import, nodes.FromImport, nodes.Extends, nodes.Block, nodes.EvalContextModifier)
_OPERATORS = frozenset(["+", "-", "*", "/", "//", "%", "**"])


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model has written; rendering ignores the marks."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatEnvironment(ImmutableSandboxedEnvironment):
    """Environment of one chat template. Set `budget` before each rendering; not for concurrent renderings."""

    intercepted_binops = _OPERATORS

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, optimized=False, extensions=[LoopControlExtension, _Generation]
        )
        self.budget = Budget()
        own = Filters(self._budget, self._text)
        self.filters = own.table() | {
            "@each": self._each,
            "@box": self._box,
            "@step": self._step,
            "@concat": self._concat,
        }
        self.globals = dict(GLOBALS)
        self._operators = BoundedOperators(self._budget)

        # A finalize function that takes the context is never run at compile time, so constants are charged too.
        @pass_context
        def finalize(_: Context, value: object) -> str:
            return self._text(value)

        self.finalize = finalize

    def compile_chat(self, source: str) -> Template:
        """Parse, rewrite and compile. Raises TemplateSyntaxError, SecurityError."""
        if sum(1 for _ in islice(self.lex(source), MAX_TOKENS + 1)) > MAX_TOKENS:
            raise SecurityError(f"has more than {MAX_TOKENS:,} lexical elements")
        tree = self.parse(source)
        for kind in _FORBIDDEN:
            found = tree.find(kind)
            if found is not None:
                raise TemplateSyntaxError(f"{kind.__name__.lower()} is not available in chat templates", found.lineno)
        _rewrite(tree)
        tree.set_environment(self)
        return self.from_string(tree)

    # What follows is called by compiled templates.

    def call(self, context: Context, obj: object, *args: object, **kwargs: object) -> object:
        """Every call in a template."""
        if any(obj is g for g in GLOBALS.values()):
            value = super().call(context, obj, *args, **kwargs)
            return value if isinstance(value, Namespace) else self.budget.checked(value)
        if isinstance(obj, Macro | Undefined):
            self.budget.step()
            return super().call(context, obj, *args, **kwargs)
        if isinstance(obj, LoopContext):
            # Recursive loops go on over another list.
            self.budget.step()
            return super().call(context, obj, self._each(cast(Iterable[object], args[0])), *args[1:])
        owner = getattr(obj, "__self__", None)
        if isinstance(owner, LoopContext) and getattr(obj, "__name__", "") in ("cycle", "changed"):
            self.budget.step()
        else:
            charge_method(self.budget, obj, args)  # type: ignore[arg-type]
        return super().call(context, obj, *args, **kwargs)

    def call_binop(self, context: Context, operator: str, left: object, right: object) -> object:
        """Every arithmetic operator in a template."""
        self._operators.check(operator, left, right)
        return super().call_binop(context, operator, left, right)

    def _budget(self) -> Budget:
        return self.budget

    def _each(self, values: Iterable[object]) -> Iterator[object]:
        for value in values:
            self.budget.step()
            yield value

    def _box(self, value: object) -> object:
        return self.budget.checked(value)

    def _step(self, value: object) -> object:
        self.budget.step()
        return value

    def _concat(self, values: list[object]) -> str:
        return "".join([self._text(v) for v in values])

    def _text(self, value: object) -> str:
        """`value` as text, charged."""
        self.budget.charge(len(value) if isinstance(value, str) else self.budget.size(value))
        return value if isinstance(value, str) else str(value)


def _filter(name: str, node: nodes.Node) -> nodes.Filter:
    return nodes.Filter(node, name, [], [], None, None, lineno=node.lineno)


def _rewrite(node: nodes.Node) -> None:
    """Put the budget into a parsed template, in place, children first."""
    for child in list(node.iter_child_nodes()):
        _rewrite(child)
    _map_children(node, _replacement)
    if isinstance(node, nodes.For):
        node.iter = _filter("@each", node.iter)
    elif isinstance(node, nodes.Compare):
        node.expr = _filter("@step", node.expr)


def _replacement(node: nodes.Node) -> nodes.Node:
    if isinstance(node, nodes.TemplateData):
        return nodes.Const(node.data, lineno=node.lineno)
    if isinstance(node, nodes.Concat):
        return _filter("@concat", nodes.List(node.nodes, lineno=node.lineno))
    # A tuple in `for a, b in` or `set a, b =` is a target, no value.
    is_tuple = isinstance(node, nodes.Tuple) and node.ctx == "load"
    is_slice = isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Slice)
    return _filter("@box", node) if isinstance(node, nodes.List | nodes.Dict) or is_tuple or is_slice else node


def _map_children(node: nodes.Node, function: Callable[[nodes.Node], nodes.Node]) -> None:
    for name in node.fields:
        value = getattr(node, name)
        if isinstance(value, list):
            setattr(node, name, [function(v) if isinstance(v, nodes.Node) else v for v in value])
        elif isinstance(value, nodes.Node):
            setattr(node, name, function(value))
