"""Seeds of tests that play by chance: new ones at each run, printed, repeatable, the same in all its processes."""

import os
import random
from collections.abc import Sequence


def seeds(count: int) -> Sequence[int]:
    """Those that TIDELOG_TEST_SEEDS asks for, or new ones."""
    asked = os.environ.get("TIDELOG_TEST_SEEDS")
    if asked:
        chosen = [int(seed) for seed in asked.split(",")]
    else:
        run = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID"))
        chosen = [run.randrange(2**31) for _ in range(count)]
    print(f"seeds (repeat with TIDELOG_TEST_SEEDS): {','.join(map(str, chosen))}", flush=True)
    return chosen
