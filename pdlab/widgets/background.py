"""Long work beside the page: in a thread that ends with the program, followed from an event loop."""

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def in_thread(work: Callable[[], T]) -> "asyncio.Future[T]":
    """The result of `work`, or what it raises, on the running loop.

    Not `asyncio.to_thread`: Python waits for its threads at exit, and a kernel that is restarted should not wait.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def run() -> None:
        try:
            result = work()
        except BaseException as error:
            loop.call_soon_threadsafe(future.set_exception, error)
        else:
            loop.call_soon_threadsafe(future.set_result, result)

    threading.Thread(target=run, daemon=True).start()
    return future
