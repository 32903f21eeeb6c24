"""What keeps a test from being measured, as the run sees it."""

from __future__ import annotations

from pytest_rlperf import wire


class StoppedError(Exception):
    """A test cannot go on in the processes that have it.

    New interpreters may do better where this is ``is_doubtful``. ``is_base`` where base's process stopped;
    ``is_reporter`` where it was the one that reports the test.
    """

    def __init__(self, text: str, name: str, *, is_base: bool, is_doubtful: bool, is_reporter: bool) -> None:
        super().__init__(text)
        self.name = name
        self.is_base = is_base
        self.is_doubtful = is_doubtful
        self.is_reporter = is_reporter

    @property
    def is_due_to_base(self) -> bool:
        """Whether base's code cannot run a test, by the word of a process that counts."""
        return self.is_base and not self.is_doubtful


class LostError(StoppedError):
    """A process died, or did not answer in time and was ended; the text states which, with the end of its output."""

    @classmethod
    def of(cls, lost: wire.Lost) -> LostError:
        """Return the error of a driver's worker or template."""
        return cls(
            lost.text,
            lost.name,
            is_base=lost.is_base,
            is_doubtful=lost.is_doubtful,
            is_reporter=lost.is_reporter,
        )


class DriverLostError(LostError):
    """A driver itself is lost, or a preload server: another one may do what it was to do."""


class LeftError(StoppedError):
    """A test ended in a worker before its measurement did: it was skipped, failed, or called nothing."""

    def __init__(self, left: wire.Left) -> None:
        super().__init__(
            left.done.text,
            left.name,
            is_base=left.is_base,
            is_doubtful=left.is_doubtful,
            is_reporter=left.is_reporter,
        )
        self.done = left.done

    @property
    def is_due_to_base(self) -> bool:
        """Whether base's code cannot run a test; a port that is in use is nobody's fault, a missing name is base's."""
        return not self.done.is_taken and self.is_base and (self.done.name_missing or not self.is_doubtful)


class BrokenError(Exception):
    """A driver failed to carry out an order, by a fault of its own."""


class RetryFreshError(Exception):
    """A forked worker may not be as a new process is: new interpreters are to measure the test."""
