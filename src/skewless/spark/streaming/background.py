"""One job at a time in a thread, beside the batches of a query."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")


class Background(Generic[T]):
    """Runs a job in a thread of its own; the next job may start when the result of the last has been taken."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, name)
        self._job: Future[T] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether there is a job whose result has not been taken."""
        return self._job is not None

    @property
    def is_done(self) -> bool:
        """Whether there is a result that can be taken without waiting."""
        return self._job is not None and self._job.done()

    def submit(self, job: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> None:
        """Starts a job; the result of the last one must have been taken."""
        assert self._job is None, "take the result of the last job first"
        self._job = self._executor.submit(job, *args, **kwargs)

    def result(self) -> T:
        """Waits for the job and returns its result or raises its error. Either way, the next job may start."""
        assert self._job is not None
        job, self._job = self._job, None
        return job.result()

    def close(self) -> None:
        """Waits for a job that is running, and ends the thread."""
        self._executor.shutdown(cancel_futures=True)
