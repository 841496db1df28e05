"""A thread that does tasks in order, for calls that go on in the background."""

import threading
from collections import deque
from collections.abc import Callable


class Background:
    """Does tasks in the order in which they come, in a thread, until `finish`.

    Tasks hold memory: `reserve` waits until unfinished tasks leave enough of *limit* bytes. After an error, tasks are
    dropped; `error` is the first one.
    """

    def __init__(self, limit: int | None) -> None:
        self._limit = limit
        self._held_bytes = 0
        self._tasks: deque[tuple[Callable[[], None], int]] = deque()
        self._changed = threading.Condition()
        self._is_finished = False
        self.error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="meshcomm background", daemon=True)
        self._thread.start()

    def reserve(self, size: int) -> None:
        """Wait until the next task may hold *size* bytes. A single task may exceed the limit."""
        with self._changed:
            while self._limit is not None and self._tasks and self._held_bytes + size > self._limit:
                self._changed.wait()
            self._held_bytes += size

    def add(self, task: Callable[[], None], size: int) -> None:
        """Do *task* after those before it. It holds *size* bytes, which were reserved, until it is done."""
        with self._changed:
            self._tasks.append((task, size))
            self._changed.notify_all()

    def finish(self) -> None:
        """Say that no more tasks come."""
        with self._changed:
            self._is_finished = True
            self._changed.notify_all()

    def done(self) -> bool:
        """Return whether all tasks are done."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Wait until all tasks are done."""
        self.finish()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._tasks and not self._is_finished:
                    self._changed.wait()
                if not self._tasks:
                    return
                task, size = self._tasks[0]
            try:
                if self.error is None:
                    task()
            except Exception as error:
                self.error = error
            with self._changed:
                self._tasks.popleft()
                del task  # frees the memory that it holds
                self._held_bytes -= size
                self._changed.notify_all()
