"""Entry point of ``aicp-node`` and of ``python -m aicpnode``."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line and exit with its code."""
    from aicpnode.cli.app import run_app

    sys.exit(run_app(sys.argv[1:]))


if __name__ == "__main__":
    main()
