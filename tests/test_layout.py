"""Limits on the size and the dependencies of modules, and rules that a reviewer would otherwise have to look for."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import skewless
from skewless.partitioners import ALL

SRC, TESTS = Path(skewless.__file__).parent, Path(__file__).parent
MODULES = sorted(str(path.relative_to(SRC)) for path in SRC.rglob("*.py"))
PUBLIC_PACKAGES = ("skewless", "skewless.spark", "skewless.streams", "skewless.testing")
# Where the classes and names of partitioners may be asked for: everywhere else a user's own must do as well.
PARTITIONERS = ("partitioners/", "planning/", "partitioner.py")

# Modules that do not make sense alone and so have no test of their name, and the test that covers them.
TESTED_BY = {
    "kernels/routing.py": "test_table.py",  # how a table routes
    "partitioners/candidates.py": "partitioners/test_auto.py",  # a dictionary
    "spark/state/function.py": "spark/state/test_operator.py",  # what the driver passes to tasks
    "spark/streaming/operator.py": "spark/streaming/test_engine.py",  # types
}
# Tests that do not have the name of a module, because they cover several.
ACROSS_MODULES = {
    "ingest/test_fixtures.py",
    "kernels/test_cache.py",
    "partitioners/test_cooperating_dalton.py",
    "partitioners/test_laws.py",
    "partitioners/test_oracles.py",
    "spark/streaming/test_streams.py",
    "spark/test_fixtures.py",
    "spark/test_own.py",
    "spark/test_smoke.py",
    "spark/verbs/test_equality.py",
    "store/test_store.py",
    "test_docs.py",
    "test_fixtures.py",
    "test_layout.py",
    "test_package.py",
}

MOST_LINES, MOST_PARAMETERS, MOST_IMPORTS = 350, 7, 12


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse((SRC / module).read_text())


def functions(module: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the functions of a module with their qualified names, nested ones too."""

    def inside(node: ast.AST, path: str) -> Iterator[tuple[str, ast.FunctionDef]]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
                if isinstance(child, ast.FunctionDef):
                    yield path + child.name, child
                yield from inside(child, f"{path}{child.name}.")
            else:
                yield from inside(child, path)

    return inside(parsed(module), "")


def public() -> dict[str, object]:
    """Returns what users import, and the public methods of these classes, by name."""
    names: dict[str, object] = {}
    for package in PUBLIC_PACKAGES:
        module = importlib.import_module(package)
        for name in module.__all__:
            thing = getattr(module, name)
            if inspect.isclass(thing) or inspect.isfunction(thing):
                names[f"{thing.__module__}.{thing.__qualname__}"] = thing
            if inspect.isclass(thing):
                for attribute in vars(thing):
                    method = getattr(thing, attribute)
                    if not attribute.startswith("_") and (inspect.isfunction(method) or inspect.ismethod(method)):
                        names[f"{method.__module__}.{method.__qualname__}"] = method
    return {name: thing for name, thing in names.items() if name.startswith("skewless.")}


def dotted(module: str) -> str:
    return ".".join(["skewless", *Path(module).with_suffix("").parts]).removesuffix(".__init__")


def test_every_module_has_a_test_of_its_name() -> None:
    def is_tested(module: str) -> bool:
        path = Path(module)
        own = path.with_name(f"test_{path.name}")
        return path.name == "__init__.py" or (TESTS / TESTED_BY.get(module, str(own))).exists()

    assert [module for module in MODULES if not is_tested(module)] == []
    assert set(TESTED_BY) <= set(MODULES)


@pytest.mark.parametrize(("module", "test"), TESTED_BY.items())
def test_a_test_of_another_name_imports_the_package_of_the_module(module: str, test: str) -> None:
    nodes = [*ast.walk(ast.parse((TESTS / test).read_text()))]
    imported = {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    imported |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    package = dotted(module).rpartition(".")[0]
    assert [name for name in imported if f"{name}.".startswith(f"{package}.")] != []


def test_only_faults_kill_processes_and_cut_files() -> None:
    """Other tests use the functions of that directory. The bytes that they write themselves are pickles."""
    harm = re.compile(
        r"\.kill\(|killpg|SIG(KILL|STOP|TERM)|truncate\(|unlink\(|write_bytes\((?!(cloudpickle\.)?dumps\()"
    )
    others = (path for path in TESTS.rglob("*.py") if path.parent.name != "faults" and path != Path(__file__))
    assert [str(path.relative_to(TESTS)) for path in others if harm.search(path.read_text())] == []


def test_every_test_has_the_name_of_a_module_or_covers_several() -> None:
    tests = {str(path.relative_to(TESTS)) for path in TESTS.rglob("test_*.py")}
    of_modules = {str(Path(module).with_name(f"test_{Path(module).name}")) for module in MODULES}
    elsewhere = {name for name in tests if name.startswith(("examples/", "faults/", "lab/"))}
    assert sorted(tests - of_modules - elsewhere) == sorted(ACROSS_MODULES)


def test_the_page_on_design_names_every_module() -> None:
    """The listings in its section on the package name them."""
    layout = (TESTS.parent / "docs/design.md").read_text().partition("## The package")[2].partition("\n## ")[0]
    named = set(re.findall(r"\w+", "".join(layout.split("```")[1::2])))
    rooms = ("spark/receive", "kernels", "partitioners", "testing", "streams", "cli", "report")  # named as a whole
    missing = [
        module
        for module in MODULES
        if not module.startswith(rooms) and Path(module).stem != "__init__" and Path(module).stem not in named
    ]
    assert missing == []


def test_tests_do_not_import_benchmarks() -> None:
    importing = [
        str(path.relative_to(TESTS))
        for path in TESTS.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if (isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "benchmarks")
        or (isinstance(node, ast.Import) and any(alias.name.split(".")[0] == "benchmarks" for alias in node.names))
    ]
    assert importing == []


def test_files_are_short() -> None:
    lengths = {module: len((SRC / module).read_text().splitlines()) for module in MODULES}
    assert {module: length for module, length in lengths.items() if length > MOST_LINES} == {}


def test_functions_have_few_parameters() -> None:
    """Verbs and commands that users call may have more: their parameters are named in every call."""
    offenders = {}
    for module in MODULES:
        for name, function in functions(module):
            arguments = function.args
            parameters = [
                argument.arg
                for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
                if argument.arg not in ("self", "cls")
            ]
            is_command = any("command" in ast.unparse(decorator) for decorator in function.decorator_list)
            is_public = is_command or f"{dotted(module)}.{name}" in public()
            if len(parameters) > MOST_PARAMETERS and not is_public:
                offenders[f"{dotted(module)}.{name}"] = len(parameters)
    assert offenders == {}


def test_modules_import_few_others() -> None:
    """Packages that only collect public names are not counted."""
    known = {dotted(module) for module in MODULES}
    offenders = {}
    for module in MODULES:
        imported = set()
        for node in ast.walk(parsed(module)):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names if alias.name in known}
            elif isinstance(node, ast.ImportFrom) and node.module in known:
                parts = {f"{node.module}.{alias.name}" for alias in node.names}
                imported |= (parts & known) or {str(node.module)}
        if len(imported) > MOST_IMPORTS and not module.endswith("__init__.py"):
            offenders[dotted(module)] = len(imported)
    assert offenders == {}


def test_modules_of_spark_hold_no_state_of_running_queries() -> None:
    """An empty dictionary, list or set at module level is filled later, and belongs to an object instead.

    Caches with weak keys are allowed: they hold nothing alive.
    """
    offenders = []
    for module in MODULES:
        for node in parsed(module).body if module.startswith("spark/") else ():
            value = node.value if isinstance(node, (ast.Assign, ast.AnnAssign)) else None
            literal = isinstance(value, (ast.Dict, ast.List)) and not ast.dump(value).count("Constant")
            called = isinstance(value, ast.Call) and ast.unparse(value.func).split("[")[0].split(".")[-1] in (
                "dict",
                "list",
                "set",
                "defaultdict",
                "WeakValueDictionary",
            )
            if literal or (called and isinstance(value, ast.Call) and not value.args):
                offenders.append(f"{dotted(module)}:{node.lineno}: {ast.unparse(node)}")
    assert offenders == []


def test_a_name_means_one_type() -> None:
    """Classes, type aliases and type variables of all modules, private ones too; short type variables may recur."""
    places: dict[str, list[str]] = {}
    for module in MODULES:
        for node in parsed(module).body:
            is_alias = isinstance(node, ast.AnnAssign) and ast.unparse(node.annotation) == "TypeAlias"
            is_variable = isinstance(node, ast.Assign) and ast.unparse(node.value).startswith("TypeVar(")
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name.lstrip("_"), []).append(module)
            elif isinstance(node, ast.AnnAssign) and is_alias:
                places.setdefault(ast.unparse(node.target).lstrip("_"), []).append(module)
            elif isinstance(node, ast.Assign) and is_variable:
                places.setdefault(ast.unparse(node.targets[0]).lstrip("_"), []).append(module)
    assert {name: found for name, found in places.items() if len(found) > 1 and len(name) > 1} == {}


def test_every_module_has_a_docstring() -> None:
    assert [module for module in MODULES if not ast.get_docstring(parsed(module))] == []


def test_every_public_name_has_a_docstring() -> None:
    assert [name for name, thing in public().items() if not (inspect.getdoc(thing) or "").strip()] == []


def test_every_parameter_of_a_public_function_is_in_its_docstring() -> None:
    missing = {}
    for name, thing in public().items():
        if callable(thing) and not inspect.isclass(thing):
            words = re.findall(r"\w+", inspect.getdoc(thing) or "")
            unnamed = set(inspect.signature(thing).parameters) - {"self", "cls", *words}
            if unnamed:
                missing[name] = sorted(unnamed)
    assert missing == {}


def test_everything_public_has_an_example() -> None:
    """Of a method, the example may be that of its class or of another method of it."""
    code = re.compile(r"^(?:>>>|\.\.\.) .*", re.MULTILINE)
    examples = {name: code.findall(inspect.getdoc(thing) or "") for name, thing in public().items()}

    def is_shown(name: str) -> bool:
        owner, _, method = name.rpartition(".")
        of_class = [line for other in examples if f"{other}.".startswith(f"{owner}.") for line in examples[other]]
        return owner in examples and any(re.search(rf"\b{method}\(", line) for line in of_class)

    assert [name for name, lines in examples.items() if not lines and not is_shown(name)] == []


@pytest.mark.parametrize("module", [module for module in MODULES if not module.startswith(PARTITIONERS)])
def test_no_engine_asks_for_the_class_or_name_of_a_partitioner(module: str) -> None:
    classes, names = {cls.__name__ for cls in ALL} | {"Planner"}, {cls.name for cls in ALL}
    offenders = []
    for node in ast.walk(parsed(module)):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "issubclass"):
            asked = {ast.unparse(part).split(".")[-1] for part in ast.walk(node.args[1])}
            if asked & classes:
                offenders.append(f"line {node.lineno}: {ast.unparse(node)}")
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            of_name = any(isinstance(side, ast.Attribute) and side.attr == "name" for side in sides)
            constants = {part.value for side in sides for part in ast.walk(side) if isinstance(part, ast.Constant)}
            if of_name and constants & names:
                offenders.append(f"line {node.lineno}: {ast.unparse(node)}")
    assert offenders == []
