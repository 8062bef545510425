"""The line budgets of the house, and that methods import only common."""

import ast

import pytest
from conftest import HOUSE

BUDGETS = {"common.py": 528, "grpo.py": 150}
BUDGETS |= {f"methods/{p.name}": 250 for p in (HOUSE / "methods").glob("*.py")}
BUDGETS |= {f"toy_envs/{p.name}": 120 for p in (HOUSE / "toy_envs").glob("*.py")}
OURS = {p.stem for p in HOUSE.glob("*.py")} | {p.stem for p in (HOUSE / "methods").glob("*.py")}
OURS |= {"toy_envs", "real_envs"}


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")[0]


@pytest.mark.parametrize("name", BUDGETS)
def test_line_budget(name):
    assert len((HOUSE / name).read_text().splitlines()) <= BUDGETS[name]


def test_common_and_grpo_on_an_evening():
    lines = [(HOUSE / name).read_text().count("\n") for name in ("common.py", "grpo.py")]
    assert sum(lines) <= 600


@pytest.mark.parametrize("name", ["grpo.py", *(n for n in BUDGETS if n.startswith("methods"))])
def test_methods_import_common_and_nothing_else_of_ours(name):
    assert set(imports(HOUSE / name)) & OURS == {"common"}


def test_environments_know_nothing_of_training():
    for path in (HOUSE / "toy_envs").glob("*.py"):
        assert not set(imports(path)) & (OURS - {"toy_envs"} | {"torch", "transformers"})
