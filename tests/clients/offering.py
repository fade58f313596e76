"""A test of every foreign client that offers something: `@each_offering("offsets: seek")` and the fixture
`client`.
"""

import pytest

from tests.clients.foreign import PROGRAMS
from tests.clients.matrix import tried
from tests.clients.not_offered import NOT_OFFERED


def each_offering(*features: str) -> pytest.MarkDecorator:
    """Once per client that offers all of `features`, marked as showing them."""
    offering = [name for name in PROGRAMS if not any((name, feature) in NOT_OFFERED for feature in features)]
    cases = [pytest.param(name, marks=tried(name, *features), id=name) for name in offering]
    return pytest.mark.parametrize("client", cases, indirect=True)
