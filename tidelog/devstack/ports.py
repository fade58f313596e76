"""TCP ports for the development stack.

Ports picked here lie below the range the kernel hands to outgoing connections, and no other stack of this machine picks
them meanwhile, so that an agent that was killed finds its port free when it comes back.
"""

import random
import socket
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from tidelog.errors import UserError

_PICKED_FROM = range(15_000, 31_000)
_ATTEMPTS = 1_000


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether one could listen there now."""
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
    """`count` different ports that are free now, and until the block ends nobody else's pick.

    The claim to a port is the UDP socket of its number, which the kernel takes back from a process that is killed.
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
            raise UserError(f"Found no {count} free TCP ports between {min(_PICKED_FROM)} and {max(_PICKED_FROM)}.")
        yield found


def require_free(ports: Iterable[int], option: str, host: str = "127.0.0.1") -> None:
    """Raises `UserError`, naming the option to change, if any of them is taken."""
    taken = [port for port in ports if not is_free(port, host)]
    if taken:
        raise UserError(
            f"In use by another program: port {' and port '.join(map(str, taken))}.",
            f"Choose others with {option} (0 picks free ones), or stop what listens there.",
        )
