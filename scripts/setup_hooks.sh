#!/bin/sh
# Installs a Git hook that refuses a commit whose Python code is not linted and formatted. An existing hook is kept.
set -eu
root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
"$root/scripts/setup"
cd "$root"
hook=$(git rev-parse --git-path hooks/pre-commit)
if [ -e "$hook" ] && ! grep -q 'installed by scripts/setup_hooks.sh' "$hook"; then
    printf 'setup_hooks: %s exists and is not ours; nothing was changed.\n' "$hook" >&2
    exit 1
fi
mkdir -p "$(dirname -- "$hook")"
cat >"$hook" <<'HOOK_END'
#!/bin/sh
# installed by scripts/setup_hooks.sh
set -eu
cd "$(git rev-parse --show-toplevel)"
.venv/bin/ruff check .
.venv/bin/ruff format --check .
HOOK_END
chmod +x "$hook"
printf 'setup_hooks: installed %s\n' "$hook"
