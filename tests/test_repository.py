"""Promises of the repository itself: who imports whom, how long a file may be, where data comes from, no dead links."""

from __future__ import annotations

import ast
import configparser
import hashlib
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "polykv").rglob("*.py"))
PYTHON = sorted(p for d in ("polykv", "tests", "benchmarks", "data") for p in (ROOT / d).rglob("*.py"))
DOCS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), ROOT / "data" / "README.md"])
CUDA = sorted(p for p in (ROOT / "polykv" / "fast" / "cuda" / "kernels").iterdir())
TEXT = sorted(
    {*PYTHON, *CUDA, *DOCS, *ROOT.glob("*.cfg"), *ROOT.glob("*.toml"), ROOT / "Makefile", ROOT / ".ci" / "run"}
)

# Which parts of polykv a part may import; a part is the name after `polykv.`, and always may import itself.
BASE = {"types", "errors", "arguments", "config", "data", "file_kind", "hadamard", "printable", "whole_file"}
FRONT = {"__main__", "cli", "commands", "doctor"}
ALLOWED: dict[str, set[str]] = {
    "hadamard": set(),
    "codec": {"hadamard"},
    "matrix": set(),
    "types": {"codec", "matrix"},
    "errors": set(),
    "arguments": {"errors"},
    "file_kind": set(),
    "printable": set(),
    "whole_file": {"errors"},
    "page_cache": set(),
    "results": set(),
    "host_facts": {"types"},
    "config": {"types"},
    "ref": {"types", "hadamard", "results", "host_facts"},
    # `errors` has no imports of its own; kernels raise typed errors for limits that only they know.
    "fast": {"types", "errors", "hadamard", "results", "host_facts"},
    "ops_facts": {"types"},
    "ops": {"types", "errors", "ops_facts"},
    "sampling": {"types", "errors", "ops"},
    "cache": BASE | {"ops"},
    "text": BASE,
    "model": BASE | {"ops", "cache", "page_cache", "sampling"},
}
# `doctor` describes the installed backends; `llm` sets the number of threads of the one it loads; `notes` says where it
# falls back. `codebook` makes tables with the search of both, which no model asks for.
EXTRA: dict[str, set[str]] = {"doctor": {"fast"}, "llm": {"fast"}, "notes": {"fast"}, "codebook": {"ref", "fast"}}
THIRD_PARTY: dict[str, set[str]] = {"ref": {"numpy"}, "fast": {"numpy", "numba", "llvmlite", "platformdirs", "cupy"}}


def part_of(path: Path) -> str:
    """`ref` for polykv/ref/rope.py, `engine` for polykv/engine.py, the empty string for polykv/__init__.py."""
    first = path.relative_to(ROOT / "polykv").parts[0]
    return first.removesuffix(".py").replace("__init__", "")


PARTS = {part_of(p) for p in SOURCES}


def imports(path: Path) -> list[str]:
    """Dotted names of everything the file imports, wherever in the file (relative imports are made absolute)."""
    names: list[str] = []
    package = ".".join(path.relative_to(ROOT).parent.parts)
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [a.name for a in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            # `from polykv import ops` imports polykv.ops; `from polykv.ops import load` imports polykv.ops.
            names += [f"{base}.{a.name}" for a in node.names] if base == "polykv" else [base]
    return names


def allowed(part: str) -> set[str]:
    if part in ALLOWED:
        return ALLOWED[part] | {part}
    # The front ends see everything but the backends; the engine and what belongs to it do not see the front ends.
    hidden = {"ref", "fast"} if part in FRONT else FRONT | {"ref", "fast"}
    return PARTS - hidden | EXTRA.get(part, set()) | {"__version__"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    part = part_of(path)
    for name in imports(path):
        top, _, rest = name.partition(".")
        if top == "polykv":
            target = rest.split(".")[0]
            assert target in allowed(part), f"{path.relative_to(ROOT)} may not import {name}"
        elif part in THIRD_PARTY and top not in sys.stdlib_module_names:
            assert top in THIRD_PARTY[part], f"{path.relative_to(ROOT)} may not import {name}"


def test_import_rule_sees_a_violation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The checker itself: a `ref` file that imports `ops`, in each of the ways Python offers."""
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    bad = tmp_path / "polykv" / "ref" / "bad.py"
    bad.parent.mkdir(parents=True)
    for line in (
        "import polykv.ops",
        "from polykv import ops",
        "from polykv.ops import load",
        "from ..ops import load",
    ):
        bad.write_text(f"def f():\n    {line}\n")
        assert imports(bad) == ["polykv.ops"], line
        with pytest.raises(AssertionError, match="may not import"):
            test_imports_go_one_way(bad)


@pytest.mark.parametrize("path", [*PYTHON, *CUDA], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_are_short(path: Path) -> None:
    limit = 500
    if path in SOURCES or path in CUDA:
        limit = 150 if part_of(path) == "ref" else 350
    assert len(path.read_text().splitlines()) <= limit


def test_command_table_is_short() -> None:
    assert len((ROOT / "polykv" / "cli.py").read_text().splitlines()) <= 100


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_environment_is_read_in_cli_only(path: Path) -> None:
    used = {
        node.attr
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
    }
    if path.name != "cli.py":
        assert not used & {"environ", "getenv", "environb", "putenv"}


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_module_says_what_it_is(path: Path) -> None:
    source = path.read_text()
    assert not source.strip() or ast.get_docstring(ast.parse(source)), "a module begins with a docstring"
    assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", source)
    assert "hasattr(" not in source


@pytest.mark.parametrize("path", TEXT, ids=lambda p: str(p.relative_to(ROOT)))
def test_no_path_of_one_machine(path: Path) -> None:
    folders = "|".join(["home", "root", "Users", "work", "tmp", "mnt"])
    found = re.findall(rf"(?<![\w.)\]}}])/(?:{folders})/[\w.]+", path.read_text())
    assert not found


# -- packaging -----------------------------------------------------------------------------------------------------
def setup_cfg() -> configparser.ConfigParser:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    return config


def test_every_package_is_installed() -> None:
    listed = set(setup_cfg()["options"]["packages"].split())
    found = {".".join(p.relative_to(ROOT).parent.parts) for p in (ROOT / "polykv").rglob("__init__.py")}
    assert listed == found | {"polykv.data"}


def test_requirements_are_what_is_imported() -> None:
    tops = {name.partition(".")[0] for path in SOURCES for name in imports(path)}
    # llvmlite is a part of numba that comes with it.
    used = tops - {"polykv", "llvmlite"} - sys.stdlib_module_names
    extra = requirements("options.extras_require", "plot") | requirements("options.extras_require", "cluster")
    # CuPy's wheels are named for the CUDA that they are built for.
    extra |= {re.sub(r"-cuda\d+x$", "", name) for name in requirements("options.extras_require", "cuda")}
    assert extra == {"matplotlib", "ray", "cupy"}
    assert used - extra == requirements("options", "install_requires")


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_optional_packages_are_imported_where_they_are_used(path: Path) -> None:
    """They may be missing: importing a module must not need them."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            assert not re.match(r"(import|from) (matplotlib|ray|cupy)\b", ast.unparse(node))


def requirements(section: str, key: str) -> set[str]:
    """Names of packages in setup.cfg, without versions."""
    return {re.split(r"[<>=~!\[]", line)[0] for line in setup_cfg()[section][key].split()}


def test_every_kernel_file_is_installed() -> None:
    folder = ROOT / "polykv" / "fast" / "cuda"
    patterns = setup_cfg()["options.package_data"]["polykv.fast.cuda"].replace(",", " ").split()
    installed = {p for pattern in patterns for p in folder.glob(pattern)}
    assert installed == {p for p in (folder / "kernels").rglob("*") if p.is_file()}


def test_every_data_file_is_installed() -> None:
    patterns = setup_cfg()["options.package_data"]["polykv.data"].replace(",", " ").split()
    installed = {p for pattern in patterns for p in (ROOT / "data").glob(pattern)}
    assert {p for p in data_files() if p.suffix != ".py"} <= installed


def test_version_is_stated_once() -> None:
    import polykv

    assert setup_cfg()["metadata"]["version"] == polykv.__version__
    assert f"## {polykv.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_commands_of_the_makefile() -> None:
    text = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z]+):", text, re.M))
    assert {"run", "test", "lint", "bench", "notebooks"} <= targets
    phony = re.search(r"^\.PHONY: (.*)$", text, re.M)
    assert phony and set(phony[1].split()) == targets
    ci = ROOT / ".ci" / "run"
    assert "make test" in ci.read_text()
    assert os.access(ci, os.X_OK)


# -- data ----------------------------------------------------------------------------------------------------------
def data_files() -> list[Path]:
    return [p for p in sorted((ROOT / "data").rglob("*")) if p.is_file() and "__pycache__" not in p.parts]


def test_every_data_file_has_a_checksum_and_a_licence() -> None:
    rows = re.findall(
        r"^\| `([^`]+)` \| `([0-9a-f]{64})` \| ([^|]+) \|", (ROOT / "data" / "README.md").read_text(), re.M
    )
    table = {name: digest for name, digest, _ in rows}
    files = {str(p.relative_to(ROOT / "data")): p for p in data_files() if p.name not in ("README.md", "__init__.py")}
    assert set(table) == set(files)
    for name, path in files.items():
        assert hashlib.sha256(path.read_bytes()).hexdigest() == table[name], name
    assert all(licence.strip() for _, _, licence in rows)


# -- documents -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("path", DOCS, ids=lambda p: str(p.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if not re.match(r"[a-z]+:", target) and not target.startswith("#"):
            assert (path.parent / target.split("#")[0]).exists(), f"{path.name}: {target}"


@pytest.mark.parametrize("path", PYTHON, ids=lambda p: str(p.relative_to(ROOT)))
def test_documents_that_sources_name_exist(path: Path) -> None:
    for name in re.findall(r"\b(?:docs|data|tests)/[\w/]+\.(?:md|py)\b", path.read_text()):
        assert (ROOT / name).exists(), name


def test_file_map_of_the_readme_is_true() -> None:
    """Every path named in backticks in the file map exists, and every part of polykv is in it."""
    text = (ROOT / "README.md").read_text()
    section = text.partition("## File map")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `([^`]+)`", section, re.M)
    assert named, "README.md has a section 'File map' with a table"
    for name in named:
        assert list(ROOT.glob(name)), name
    covered = {p for name in named for p in ROOT.glob(name)}
    for part in [*(ROOT / "polykv").iterdir()]:
        if part.suffix == ".py" or (part / "__init__.py").is_file():
            assert part in covered or part.name == "__init__.py", f"{part.name} is missing from the file map"
