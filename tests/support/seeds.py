"""Seeds of random tests. Each run has new ones, prints them, and uses the same in all its processes. A run
can be repeated with them.
"""

import os
import random
from collections.abc import Sequence


def seeds(count: int) -> Sequence[int]:
    """The seeds in TIDELOG_TEST_SEEDS, or new ones."""
    asked = os.environ.get("TIDELOG_TEST_SEEDS")
    if asked:
        chosen = [int(seed) for seed in asked.split(",")]
    else:
        run = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
        chosen = [run.randrange(2**31) for _ in range(count)]
    print(f"seeds (repeat with TIDELOG_TEST_SEEDS): {','.join(map(str, chosen))}", flush=True)
    return chosen
