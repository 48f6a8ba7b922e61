#!/bin/sh
# Formats all Python code and applies the safe fixes of the linter.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
"$root/scripts/setup"
cd "$root"
.venv/bin/ruff check --fix .
.venv/bin/ruff format .
