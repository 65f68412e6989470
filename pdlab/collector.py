"""Pause the cyclic garbage collector while many small objects are made that all stay.

A large program is half a million tuples. The collector would walk them again and again and find nothing, which takes
as long as making them.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """The collector is off inside, and afterwards as it was before. What was made moves to the oldest generation at
    once: a freeze and its undoing walk nothing, where the youngest generation would be walked as soon as it is on."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()
