"""Logging of a node process: readable lines on stderr, a rotated file in the data directory, JSON lines on request.

Everything logs through the standard library's loggers or structlog's; both end in the same two handlers. The stderr
handler looks ``sys.stderr`` up at each line, because the prompt replaces it to print above itself.
"""

from __future__ import annotations

import logging
import logging.handlers
import os
import sys
from pathlib import Path

import structlog
from structlog.typing import Processor

LOG_NAME = "node.log"
LOG_FILE_BYTES_MAX = 10 * 1024 * 1024
LOG_FILES_KEPT = 5
OUR_LOGGERS = ("aicpnode", "consensus", "kernels")


def configure_logging(*, level: str, data_dir: Path | None, json_lines: bool, stderr_level: str | None = None) -> None:
    """Set up the root logger for this process. Calling it again replaces the previous set-up.

    ``level`` is debug, info, warning or error, for our own loggers; libraries speak from warning on, unless the
    environment has DEBUG_LEVEL=3. ``data_dir`` None means no file. ``stderr_level`` defaults to ``level``.
    """
    shared: list[Processor] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.PositionalArgumentsFormatter(),
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    for handler in list(root.handlers):
        root.removeHandler(handler)
        handler.close()
    root.setLevel(logging.DEBUG if os.environ.get("DEBUG_LEVEL") == "3" else logging.WARNING)
    for name in OUR_LOGGERS:
        logging.getLogger(name).setLevel(level.upper())
    on_terminal = _StderrHandler()
    on_terminal.setLevel((stderr_level or level).upper())
    on_terminal.setFormatter(_formatter(shared, json_lines=False, colors=sys.stderr.isatty()))
    root.addHandler(on_terminal)
    if data_dir is not None:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        in_file = _FileHandler(
            data_dir / LOG_NAME, maxBytes=LOG_FILE_BYTES_MAX, backupCount=LOG_FILES_KEPT, encoding="utf-8", delay=True
        )
        in_file.setFormatter(_formatter(shared, json_lines=json_lines, colors=False))
        root.addHandler(in_file)


class _FileHandler(logging.handlers.RotatingFileHandler):
    """A log file that cannot be written, as on a full disk, is said on stderr once, in a sentence."""

    _failed = False

    def handleError(self, record: logging.LogRecord) -> None:
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            super().handleError(record)
        elif not self._failed:
            self._failed = True
            sys.stderr.write(f"The log file {self.baseFilename} cannot be written: {error.strerror}.\n")


class _StderrHandler(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        try:
            sys.stderr.write(self.format(record) + "\n")
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


def _formatter(shared: list[Processor], *, json_lines: bool, colors: bool) -> logging.Formatter:
    if json_lines:
        last: list[Processor] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    else:
        plain = structlog.dev.plain_traceback
        last = [structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=plain, pad_event_to=0)]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )
