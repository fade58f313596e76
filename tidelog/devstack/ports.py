"""TCP ports for the development stack.

Ports picked here lie below the range that the kernel uses for outgoing connections, and no other stack of
this machine picks them meanwhile. So a killed agent finds its port free when it starts again.
"""

import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from tidelog.errors import UserError

_PICKED_FROM = range(15_000, 31_000)
_ATTEMPTS = 1_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """True if a program could listen there now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


@contextmanager
def picked_ports(count: int) -> Iterator[list[int]]:
    """`count` different ports that are free now. No other stack picks them until the block ends.

    A claim to a port is an open UDP socket of the same number. The kernel closes it when a process is killed.
    """
    generator = random.SystemRandom()
    with ExitStack() as claims:
        found: list[int] = []
        for _ in range(_ATTEMPTS):
            if len(found) == count:
                break
            port = generator.choice(_PICKED_FROM)
            claim = claims.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            try:
                claim.bind(("127.0.0.1", port))
            except OSError:
                continue
            if is_free(port):
                found.append(port)
        else:
            raise UserError(
                f"Found no {count} free TCP ports between {min(_PICKED_FROM)} and {max(_PICKED_FROM)}."
            )
        yield found


def require_free(ports: Iterable[int], option: str, host: str = "127.0.0.1") -> None:
    """Raises `UserError` if a port is taken. The error names the option to change."""
    taken = [port for port in ports if not is_free(port, host)]
    if taken:
        raise UserError(
            f"In use by another program: port {' and port '.join(map(str, taken))}.",
            f"Choose others with {option} (0 picks free ones), or stop what listens there.",
        )
