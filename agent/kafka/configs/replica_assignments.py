"""Checks manual replica assignments by Kafka's rules. Pure.

They have no effect: the object store replicates, and every agent serves every partition.
"""

from collections.abc import Collection, Sequence

from kio.schema.errors import ErrorCode

from agent.error_codes import AdministrationRefused


def check_new_topic(assigned: Sequence[tuple[int, Sequence[int]]], agents: Collection[int]) -> None:
    """Checks the (partition, node ids) of every partition of a topic. Raises AdministrationRefused."""
    if sorted(partition for partition, _ in assigned) != list(range(len(assigned))):
        raise _invalid("partitions should be a consecutive 0-based integer sequence")
    _check_replicas([replicas for _, replicas in assigned], agents)


def check_new_partitions(assigned: Sequence[Sequence[int]], added: int, agents: Collection[int]) -> None:
    """Checks the node ids of each partition that is added. Raises AdministrationRefused."""
    if len(assigned) != added:
        raise _invalid(
            f"Attempted to add {added} additional partition(s), but only {len(assigned)} assignment(s) "
            "were specified."
        )
    _check_replicas(assigned, agents)


def _check_replicas(assigned: Sequence[Sequence[int]], agents: Collection[int]) -> None:
    for replicas in assigned:
        if not replicas:
            raise _invalid("The manual partition assignment includes an empty replica list.")
        if len(set(replicas)) != len(replicas):
            raise _invalid("The manual partition assignment includes a broker more than once.")
        for node_id in replicas:
            if node_id not in agents:
                raise _invalid(
                    f"The manual partition assignment includes broker {node_id}, but no such broker is "
                    "registered."
                )
        if len(replicas) != len(assigned[0]):
            raise _invalid(
                f"The manual partition assignment includes a partition with {len(replicas)} replica(s), "
                "but this is "
                f"not consistent with previous partitions, which have {len(assigned[0])} replica(s)."
            )


def _invalid(message: str) -> AdministrationRefused:
    return AdministrationRefused(ErrorCode.invalid_replica_assignment, message)
