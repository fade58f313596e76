"""The settings of authorization: options of `tidelog agent` and variables `TIDELOG_<NAME>`."""

from pydantic import Field, field_validator

from storage.settings import Settings


class AuthorizationSettings(Settings):
    authorizer: bool = False
    """True: clients may do what access control lists (ACLs) allow, and nothing else. False: every client may
    do everything.
    """
    super_users: str = ""
    """Principals that may do everything, separated by semicolons: `User:admin;User:operator` (Kafka's
    super.users).
    """
    allow_everyone_if_no_acl_found: bool = False
    """True: every client may do everything with a resource that no ACL matches (Kafka's
    allow.everyone.if.no.acl.found).
    """
    acl_poll_s: float = Field(default=0.5, gt=0)
    """How often an agent asks Postgres for changes of ACLs. One statement that reads one row."""
    acl_page: int = Field(default=2_000, ge=1)
    """The most ACLs that one statement reads."""
    max_acls: int = Field(default=100_000, ge=1)
    """The most ACLs of a cluster. Each agent has all of them in memory, about 1 KB each."""
    acl_decisions_per_client: int = Field(default=1_000, ge=0)
    """The most resources for which an agent remembers what a client at one address may do."""
    acl_decisions: int = Field(default=50_000, ge=1)
    """The same for all clients together. If there are more, all are dropped and decided again."""

    @field_validator("super_users")
    @classmethod
    def _are_principals(cls, value: str) -> str:
        for principal in principals_of(value):
            if ":" not in principal:
                raise ValueError(f"'{principal}' has no type: write User:{principal}")
        return value


def principals_of(super_users: str) -> frozenset[str]:
    """Returns the principals of a list with semicolons."""
    return frozenset(part.strip() for part in super_users.split(";") if part.strip())
