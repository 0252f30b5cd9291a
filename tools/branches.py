"""List branches of formulas that no reviewed value takes: `python tools/mutate.py --branches [WORD ...]`.

The golden questions run on the package with every `if`, conditional expression, filter and
`case` of glmplan/costs and glmplan/prediction counted. A branch that none of them takes could be wrong without a
reviewed value noticing. Left out are branches that only raise or assert that they are never taken, which make no value,
and functions that make text: `words`, `__repr__`, `__str__`, and reasons of a refusal (`..._problem`).
"""

from __future__ import annotations

import ast
import contextlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
#: folders of formulas
PACKAGES = ("glmplan.costs", "glmplan.prediction")
_YES, _NO = "_branch_test_", "not "
#: functions that make text; those with the ending say why a plan is refused
_TEXT, _REFUSES = ("words", "__repr__", "__str__"), "_problem"


@dataclass(frozen=True, order=True)
class Branch:
    """One way on from a condition: where it stands, the function around it, and its text."""

    path: str
    line: int
    function: str
    text: str


@dataclass
class Seen:
    """All branches that were compiled, and those that were taken."""

    all: set[Branch] = field(default_factory=set)
    taken: set[Branch] = field(default_factory=set)

    def untaken(self) -> list[Branch]:
        """Return the branches that nothing took, in the order of the files."""
        return sorted(self.all - self.taken)


def _only_raises(body: Sequence[ast.stmt]) -> bool:
    if not body:
        return False
    never = isinstance(body[-1], ast.Expr) and ast.unparse(body[-1]).startswith("assert_never(")
    return never or isinstance(body[-1], ast.Raise)


class Counting(ast.NodeTransformer):
    """Write calls into a tree that note the outcome of each condition."""

    def __init__(self, path: str, seen: Seen) -> None:
        self.path, self.seen = path, seen
        self.functions: list[str] = []
        self.branches: list[tuple[Branch | None, Branch | None]] = []

    def _named(self, node: ast.AST, visit: Any) -> ast.AST:
        self.functions.append(node.name)  # type: ignore[attr-defined]  # functions and classes have one
        visit(node)
        self.functions.pop()
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Remember the function for the conditions inside."""
        return self._named(node, self.generic_visit)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        """Remember the class for the conditions inside."""
        return self._named(node, self.generic_visit)

    def _branch(self, line: int, text: str) -> Branch:
        found = Branch(self.path, line, ".".join(self.functions), " ".join(text.split()))
        self.seen.all.add(found)
        return found

    def _counted(self, test: ast.expr, yes: bool = True, no: bool = True) -> ast.expr:
        text = ast.unparse(test)
        test = self.visit(test)
        function = self.functions[-1] if self.functions else ""
        if text == "TYPE_CHECKING" or function in _TEXT or function.endswith(_REFUSES):
            return test
        self.branches.append((
            self._branch(test.lineno, text) if yes else None,
            self._branch(test.lineno, f"{_NO}({text})") if no else None,
        ))  # fmt: skip
        call = ast.Call(ast.Name(_YES, ast.Load()), [ast.Constant(len(self.branches) - 1), test], [])
        return ast.copy_location(call, test)

    def visit_If(self, node: ast.If) -> ast.AST:
        """Count both ways of an `if`."""
        node.test = self._counted(node.test, not _only_raises(node.body), not _only_raises(node.orelse))
        node.body = [self.visit(one) for one in node.body]
        node.orelse = [self.visit(one) for one in node.orelse]
        return node

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        """Count both ways of a conditional expression."""
        node.test = self._counted(node.test)
        node.body, node.orelse = self.visit(node.body), self.visit(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        """Count what a filter keeps and leaves out."""
        node.target, node.iter = self.visit(node.target), self.visit(node.iter)
        node.ifs = [self._counted(one) for one in node.ifs]
        return node

    def visit_match_case(self, node: ast.match_case) -> ast.AST:
        """Count a `case`."""
        line, text = node.pattern.lineno, f"case {ast.unparse(node.pattern)}"
        self.generic_visit(node)
        if not _only_raises(node.body):
            self.branches.append((self._branch(line, text), None))
            call = ast.Call(ast.Name(_YES, ast.Load()), [ast.Constant(len(self.branches) - 1), ast.Constant(True)], [])
            node.body.insert(0, ast.copy_location(ast.Expr(call), node.body[0]))
        return node


class _Loader(importlib.machinery.SourceFileLoader):
    """Compile a module with its conditions counted; nothing is cached on the disk."""

    seen: Seen

    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(Path(path).read_text(encoding="utf-8"), path)
        self.counting = Counting(Path(path).relative_to(ROOT).as_posix(), self.seen)
        return compile(ast.fix_missing_locations(self.counting.visit(tree)), path, "exec")

    def exec_module(self, module: ModuleType) -> None:
        code = self.get_code(module.__name__)
        branches, taken = self.counting.branches, self.seen.taken

        def note(number: int, outcome: Any) -> Any:
            way = branches[number][0 if outcome else 1]
            if way is not None:
                taken.add(way)
            return outcome

        vars(module)[_YES] = note
        exec(code, vars(module))


class _Finder(importlib.abc.MetaPathFinder):
    """Give the modules of formulas the loader that counts."""

    def __init__(self, seen: Seen, packages: Sequence[str]) -> None:
        self.seen, self.packages = seen, packages

    def find_spec(self, name: str, path: Any, target: Any = None) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of formulas; None for all others."""
        if not any(name == one or name.startswith(f"{one}.") for one in self.packages):
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.origin, str) and spec.origin.endswith(".py"):
            spec.loader = _Loader(name, spec.origin)
            spec.loader.seen = self.seen
        return spec


@contextlib.contextmanager
def counted(packages: Sequence[str] = PACKAGES) -> Iterator[Seen]:
    """Count branches of packages that are imported from here on."""
    finder = _Finder(seen := Seen(), packages)
    sys.meta_path.insert(0, finder)
    try:
        yield seen
    finally:
        sys.meta_path.remove(finder)


def of_golden_questions() -> Seen:
    """Return which branches the golden questions take; the package must not be imported before."""
    sys.path.insert(0, str(ROOT))
    if already := [name for name in sys.modules if name.startswith(PACKAGES)]:
        raise RuntimeError(f"is imported already: {already[0]}")
    spec = importlib.util.spec_from_file_location("golden_show", ROOT / "tests" / "golden" / "show.py")
    assert spec is not None and spec.loader is not None
    show = importlib.util.module_from_spec(spec)
    sys.modules["golden_show"] = show
    spec.loader.exec_module(show)
    with counted() as seen:
        for one in show.values():
            # a question that cannot be answered fails its test; here it takes no branch
            with contextlib.suppress(KeyError, IndexError, ValueError, RuntimeError):
                _ = one.today
    return seen


def main(words: Sequence[str]) -> int:
    """Print the branches that no golden question takes; words choose files."""
    seen = of_golden_questions()
    untaken = [one for one in seen.untaken() if not words or any(word in one.path for word in words)]
    for path in dict.fromkeys(one.path for one in untaken):
        print(path)
        for one in (each for each in untaken if each.path == path):
            print(f"{one.line:6}  {one.function or 'module'}: {one.text[:100]}")
    print(f"{len(untaken)} of {len(seen.all)} branches are taken by no reviewed value")
    return 0
