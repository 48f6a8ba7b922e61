"""Logging: readable on stderr, rotated in the data directory, JSON on request."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from aicpnode.logs import LOG_NAME, configure_logging


@pytest.fixture(autouse=True)
def _loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    ours = logging.getLogger("aicpnode").level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level
    logging.getLogger("aicpnode").setLevel(ours)
    structlog.reset_defaults()


def test_lines_on_stderr_and_json_in_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(level="info", data_dir=tmp_path, json_lines=True)
    logging.getLogger("aicpnode.x").info("peer %s connected", "ada")
    structlog.get_logger("aicpnode.y").warning("slow", seconds=3)
    logging.getLogger("aicpnode.x").debug("not wanted")
    logging.getLogger("library").info("not wanted")
    entries = [json.loads(line) for line in (tmp_path / LOG_NAME).read_text().splitlines()]
    assert [(e["event"], e["level"], e["logger"]) for e in entries] == [
        ("peer ada connected", "info", "aicpnode.x"),
        ("slow", "warning", "aicpnode.y"),
    ]
    assert entries[1]["seconds"] == 3
    err = capsys.readouterr().err
    assert "peer ada connected" in err and "seconds=3" in err and "not wanted" not in err


def test_plain_file_has_tracebacks_and_stderr_can_be_quieter(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    configure_logging(level="debug", data_dir=tmp_path, json_lines=False, stderr_level="error")
    try:
        raise ValueError("inner")
    except ValueError:
        logging.getLogger("aicpnode").warning("it failed", exc_info=True)
    text = (tmp_path / LOG_NAME).read_text()
    assert "it failed" in text and "ValueError: inner" in text
    assert capsys.readouterr().err == ""


def test_configuring_again_replaces_the_handlers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        configure_logging(level="info", data_dir=tmp_path, json_lines=False)
    logging.getLogger("aicpnode").info("once")
    assert capsys.readouterr().err.count("once") == 1


def test_debug_level_3_lets_libraries_speak(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DEBUG_LEVEL", "3")
    configure_logging(level="debug", data_dir=None, json_lines=False)
    logging.getLogger("library").debug("chatty")
    assert "chatty" in capsys.readouterr().err
