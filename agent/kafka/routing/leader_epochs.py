"""Leader epochs: every partition's is 0, always (docs/design/zones.md#leader-epochs), so that a client that names
another is told so (KIP-320).

A topic made anew under an old name is told apart by its id, not by an epoch (KIP-516).
"""

from typing import Final

from agent.read_path.read_decisions import ReadFailure

NO_EPOCH: Final = -1
OUR_EPOCH: Final = 0


def epoch_failure(current_leader_epoch: int) -> ReadFailure | None:
    """Why a request with this current leader epoch is refused; none where it names no epoch."""
    if current_leader_epoch in (NO_EPOCH, OUR_EPOCH):
        return None
    if current_leader_epoch < OUR_EPOCH:
        return ReadFailure.FENCED_LEADER_EPOCH
    return ReadFailure.UNKNOWN_LEADER_EPOCH
