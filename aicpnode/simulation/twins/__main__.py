"""``python -m aicpnode.simulation.twins``."""

import sys

from aicpnode.simulation.twins.search import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
