"""The zone in a client id, in each spelling."""

import pytest

from agent.kafka.routing.routing import zone_of_client


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("tidelog_zone=a", "a"),
        ("orders-service,tidelog_zone=eu-central-1b", "eu-central-1b"),
        ("diskless_az=use1-az2;team=x", "use1-az2"),
        ("app ws_az=b", "b"),
        ("app|warpstream_az=c|x", "c"),
        ("tidelog_zone=a,ws_az=b", "a"),
        ("rdkafka", None),
        ("", None),
        (None, None),
        ("not_tidelog_zone=a", None),
        ("tidelog_zone=", None),
        ("tidelog_zone=" + "z" * 65, None),
    ],
)
def test_the_zone_is_found_in_every_spelling_and_nowhere_else(
    client_id: str | None, zone: str | None
) -> None:
    assert zone_of_client(client_id) == zone
