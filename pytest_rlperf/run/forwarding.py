"""The reports of a run's tests, as if these had run in this process."""

from __future__ import annotations

import contextlib
import pickle
import sys
import warnings
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from _pytest._code.code import ReprFileLocation, TerminalRepr
from _pytest._io import TerminalWriter

from pytest_rlperf import wire
from pytest_rlperf.errors import for_log


class PlainRepr(TerminalRepr):
    """A failure as plain text, with a line for the short summary."""

    def __init__(self, text: str, path: str, line: int) -> None:
        self.text = for_log(text)
        self.reprcrash = ReprFileLocation(path, line, self.text.partition("\n")[0])

    def toterminal(self, tw: TerminalWriter) -> None:
        """Write the text as an error."""
        for line in self.text.splitlines():
            tw.line(f"E   {line}", red=True)
        tw.line()
        self.reprcrash.toterminal(tw)


class ReportForwarder:
    """Reports one test: forwards its worker's reports, and makes those that a lost worker cannot send."""

    def __init__(self, config: pytest.Config, item: pytest.Item) -> None:
        self._config = config
        self._item = item
        self._phases: list[str] = []
        self._teardown: pytest.TestReport | None = None
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def forward_all(self, messages: Iterable[wire.Reported | wire.Warned]) -> None:
        """Pass on reports and warnings, except the teardown's, for :meth:`finish`; an unreadable one fails the test."""
        for message in messages:
            if isinstance(message, wire.Warned):
                self._warn(message)
                continue
            try:
                report = self._read(message.report)
            except Exception as error:  # a worker runs any code, so this is any text
                self.fabricate(f"a worker sent a report that cannot be read: {type(error).__name__}: {error}")
                continue
            if report.when == "teardown":
                self._teardown = report
            else:
                self._log(report)

    def _read(self, pickled: Mapping[str, bytes]) -> pytest.TestReport:
        """Return a report of the test; raise any error if the message is not a report."""
        data = {}
        for name, value in pickled.items():
            with contextlib.suppress(Exception):  # of a plugin's object whose module only the worker has
                data[name] = pickle.loads(value)  # noqa: S301 - of this run's own process
        report = self._config.hook.pytest_report_from_serializable(config=self._config, data=data)
        if not isinstance(report, pytest.TestReport) or report.when not in ("setup", "call", "teardown"):
            raise ValueError("it is of no part of a test")
        report.nodeid, report.location = self._item.nodeid, self._item.location
        return report

    def fabricate(self, text: str) -> None:
        """Report a failure of the phase that a lost worker was in."""
        when = next((phase for phase in ("setup", "call") if phase not in self._phases), "teardown")
        path, line, _ = self._item.location
        longrepr = PlainRepr(text, str(path), (line or 0) + 1)
        report = self._report(when, "failed", longrepr)
        if when == "teardown":
            self._teardown = report
        else:
            self._teardown = None
            self._log(report)

    def finish(self, properties: list[tuple[str, object]]) -> None:
        """Finish the test: its teardown's report carries the properties for JUnit XML."""
        report = self._teardown or self._report("teardown", "passed", None)
        report.user_properties += properties
        self._log(report)
        self._item.ihook.pytest_runtest_logfinish(nodeid=self._item.nodeid, location=self._item.location)

    def _report(self, when: str, outcome: str, longrepr: Any) -> pytest.TestReport:
        return pytest.TestReport(
            nodeid=self._item.nodeid,
            location=self._item.location,
            keywords=dict.fromkeys(self._item.keywords, 1),
            outcome=outcome,  # type: ignore[arg-type]
            longrepr=longrepr,
            when=when,  # type: ignore[arg-type]
        )

    def _log(self, report: pytest.TestReport) -> None:
        if type(report) is pytest.TestReport:
            self._phases += ["setup", "call"] if report.when == "setup" and not report.passed else [str(report.when)]
        self._item.ihook.pytest_runtest_logreport(report=report)

    def _warn(self, message: wire.Warned) -> None:
        module, _, name = message.category.rpartition(".")
        category = getattr(sys.modules.get(module), name, None)
        if not (isinstance(category, type) and issubclass(category, Warning)):
            encodable = name.encode("utf-8", "backslashreplace").decode().replace("\0", "")
            category = type(encodable, (UserWarning,), {"__module__": module})
        try:
            warning: Warning = category(message.text)
        except Exception:  # a category that takes more than a text, or another one
            category, warning = UserWarning, UserWarning(message.text)
        self._config.hook.pytest_warning_recorded.call_historic(
            kwargs={
                "warning_message": warnings.WarningMessage(warning, category, message.filename, message.line),
                "when": message.when,
                "nodeid": message.nodeid,
                "location": message.location,
            }
        )
