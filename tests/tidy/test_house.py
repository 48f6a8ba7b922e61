"""The house itself: what imports what, what the README promises of the tree, and the style that can be counted."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("aicpnode", "consensus", "kernels")
TREES = {path: ast.parse(path.read_text()) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))}
"""The source files, parsed."""
FUNCTION_LINES_MAX = 70
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:root|work|Users|home/\w+)/\w")
HEADING = re.compile(r"^#+ (.*)$", flags=re.MULTILINE)
UNTOLD_FOLDERS = {".git", ".venv", "build", "dist"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def tracked_files() -> list[Path]:
    """The files that Git knows, or all but the obvious if this is no checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode == 0:
        return [path for name in listed.stdout.split("\0") if name and (path := ROOT / name).is_file()]
    return [
        path for path in ROOT.rglob("*") if path.is_file() and not set(path.relative_to(ROOT).parts) & UNTOLD_FOLDERS
    ]


def readme_tree() -> dict[str, str]:
    """Paths in the README's tree with what is said about each. Indentation by two spaces means inside."""
    text = (ROOT / "README.md").read_text()
    block = re.search(r"```tree\n(.*?)```", text, flags=re.DOTALL)
    assert block, "the README has a tree in a ```tree block"
    entries: dict[str, str] = {}
    parents: list[str] = []
    for line in block[1].splitlines():
        indent = (len(line) - len(line.lstrip())) // 2
        names, _, purpose = line.strip().partition("  ")
        parents = parents[:indent]
        for name in names.split():
            entries["".join([*parents, name])] = purpose.strip()
        parents.append(names.split()[-1])
    return entries


def test_import_contracts_hold() -> None:
    lint_imports = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run(
        [lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stdout


def test_every_room_has_its_place_in_the_import_contract() -> None:
    config = tomllib.loads((ROOT / "pyproject.toml").read_text())
    layers = next(c for c in config["tool"]["importlinter"]["contracts"] if c["type"] == "layers")["layers"]
    placed = {name.strip(" ()") for layer in layers for name in layer.split("|")}
    rooms = {
        f"aicpnode.{path.stem}"
        for path in (ROOT / "aicpnode").iterdir()
        if (path.suffix == ".py" or (path / "__init__.py").exists()) and not path.stem.startswith("__")
    }
    assert rooms - placed == set()


def test_readme_tree_names_what_exists() -> None:
    tree = readme_tree()
    missing = [path for path in tree if not (ROOT / path).exists()]
    assert not missing, "\n".join(missing)
    assert [path for path, purpose in tree.items() if not purpose] == [], "every line says what it is for"


def test_readme_tree_leaves_no_folder_out() -> None:
    folders = set()
    for path in tracked_files():
        parts = path.relative_to(ROOT).parts
        depth = 2 if parts[0] in ("aicpnode", "tests") else 1
        folders |= {"/".join(parts[:level]) + "/" for level in range(1, min(depth, len(parts) - 1) + 1)}
    assert folders - set(readme_tree()) == set()


def test_source_files_open_with_their_theory() -> None:
    silent = [name_of(path) for path, tree in TREES.items() if not ast.get_docstring(tree)]
    assert not silent, "\n".join(silent)


def test_public_classes_with_behaviour_are_documented() -> None:
    undocumented = [
        f"{name_of(path)}: {node.name}"
        for path, tree in TREES.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
        and not node.name.startswith("_")
        and not ast.get_docstring(node)
        and any(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
    ]
    assert not undocumented, "\n".join(undocumented)


def test_functions_fit_on_a_screen() -> None:
    too_long = [
        f"{name_of(path)}: {node.name} has {length} lines"
        for path, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and (length := node.end_lineno - node.lineno + 1) > FUNCTION_LINES_MAX
    ]
    assert not too_long, "\n".join(too_long)


def test_readme_links_lead_somewhere() -> None:
    text = (ROOT / "README.md").read_text()
    anchors = {re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-") for title in HEADING.findall(text)}
    dead = [
        target
        for target in re.findall(r"\]\(([^)\s]+)\)", text)
        if not target.startswith("http")
        and not (target[1:] in anchors if target.startswith("#") else (ROOT / target).exists())
    ]
    assert not dead, "\n".join(dead)


def test_no_path_of_one_machine() -> None:
    found = []
    for path in tracked_files():
        if path == Path(__file__) or path.suffix in (".png", ".svg"):
            continue
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if MACHINE_PATH.search(line):
                found.append(f"{name_of(path)}:{number}: {line.strip()[:80]}")
    assert not found, "\n".join(found)


def test_scripts_are_executable_and_portable() -> None:
    scripts = [path for path in (ROOT / "scripts").iterdir() if path.suffix in ("", ".sh")]
    assert scripts
    for path in scripts:
        assert path.read_text().startswith("#!/bin/sh\n"), name_of(path)
        assert path.stat().st_mode & 0o111, name_of(path)


def test_test_files_have_unique_names_and_no_packages() -> None:
    files = list((ROOT / "tests").rglob("*.py"))
    names = [path.name for path in files if path.name.startswith("test_")]
    assert [name for name in set(names) if names.count(name) > 1] == []
    assert [name_of(path) for path in files if path.name == "__init__.py"] == []
