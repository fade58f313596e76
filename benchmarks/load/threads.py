"""A thread for each connection of a load process."""

import threading
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


def in_threads(work: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results of `work`, in the order in which they ended. Raises the first failure when all ended."""
    results: list[Result] = []
    failures: list[Exception] = []

    def run(item: Item) -> None:
        try:
            results.append(work(item))
        except Exception as error:  # noqa: BLE001 - raised again below, in the thread that waits
            failures.append(error)

    threads = [threading.Thread(target=run, args=(item,), daemon=True) for item in items]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return results
