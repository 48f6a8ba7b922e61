from __future__ import annotations

import subprocess
import sys

TORCH_FREE = [
    "aicpnode.model.config",
    "aicpnode.model.initial",
    "aicpnode.model.tokenizer",
    "aicpnode.training.batching",
    "aicpnode.training.bigram",
    "aicpnode.training.checkpoint",
    "aicpnode.training.corpus",
    "aicpnode.training.data",
    "aicpnode.training.optimizer_state",
    "aicpnode.training.presets",
    "aicpnode.training.schedule",
]


def test_importing_them_does_not_import_torch() -> None:
    # The writer of a genesis and a lightweight node use these, and libtorch alone is larger than such a node may be.
    code = (
        "import importlib, sys\n"
        "for module in sys.argv[1:]:\n"
        "    importlib.import_module(module)\n"
        "    assert 'torch' not in sys.modules, module\n"
    )
    subprocess.run([sys.executable, "-c", code, *TORCH_FREE], timeout=120, check=True)
