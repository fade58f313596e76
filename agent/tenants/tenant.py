"""A tenant as its connections need it: what its names are inside the cluster, and to its clients.

Pure. `sequencer/tenants/tenant_names.py` has the form of the names.
"""

from base64 import urlsafe_b64encode
from dataclasses import dataclass, field
from hashlib import sha256

from sequencer.tenants.tenant_names import prefix_of


class ForeignName(Exception):
    """A name does not belong to the tenant. Its clients must not see it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    name: str
    prefix: str = field(init=False)
    """What the names of all that belongs to it begin with."""
    cluster_id: str
    """Of the cluster that its clients see."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "prefix", prefix_of(self.name))

    def owns(self, name: str) -> bool:
        return name.startswith(self.prefix)

    def qualified(self, local: str) -> str:
        """Returns the name inside the cluster. An empty name stays empty: it names nothing."""
        return self.prefix + local if local else local

    def local(self, name: str) -> str:
        """Returns the name that its clients see. Raises ForeignName."""
        if not name:
            return name
        if not name.startswith(self.prefix):
            raise ForeignName(f"not a name of tenant {self.name}")
        return name[len(self.prefix) :]

    def shown(self, text: str) -> str:
        """Returns a text for its clients: names in it are those that they see."""
        return text.replace(self.prefix, "")


def cluster_id_of(cluster_id: str, tenant: str) -> str:
    """Returns the id of the cluster that the tenant sees: 16 bytes, as Kafka writes them."""
    digest = sha256(f"{cluster_id}/{tenant}".encode()).digest()[:16]
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
