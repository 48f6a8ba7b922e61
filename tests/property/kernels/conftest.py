"""Gives the property tests of the kernels their plain Python reference."""

import importlib.util
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def reference():
    path = Path(__file__).with_name("gradients_reference.py")
    spec = importlib.util.spec_from_file_location("gradients_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
