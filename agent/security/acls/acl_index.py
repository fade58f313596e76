"""Finds what the access control lists (ACLs) allow, with the semantics of Kafka's StandardAuthorizer.

Promises:
- A snapshot never changes. `with_changes` makes the next one, which shares what did not change.
- An ACL that denies wins over all that allow.
- READ, WRITE, DELETE and ALTER imply DESCRIBE, ALTER_CONFIGS implies DESCRIBE_CONFIGS, and ALL implies every
  operation. An ACL that denies implies only ALL's operations.
- A look-up costs one step per distinct length of the principal's prefixes, whatever the number of ACLs.

Pure. Per resource type and principal there is a table of literal names and one of prefixes. The entry of a
pattern has two bit fields per host: the operations that are allowed, and those that are denied.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import chain
from operator import or_
from typing import Final, Generic, Self, TypeVar

from sequencer.security.acl import (
    ANY_NAME,
    ANY_PRINCIPAL,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)

EVERY_OPERATION: Final = reduce(or_, (1 << operation for operation in Operation))
NO_OPERATION: Final = 0
_ALL: Final = 1 << Operation.ALL
_DESCRIBE: Final = 1 << Operation.DESCRIBE
_DESCRIBE_CONFIGS: Final = 1 << Operation.DESCRIBE_CONFIGS
_ALTER_CONFIGS: Final = 1 << Operation.ALTER_CONFIGS
_IMPLY_DESCRIBE: Final = (
    1 << Operation.READ | 1 << Operation.WRITE | 1 << Operation.DELETE | 1 << Operation.ALTER
)
_ANY_RESOURCE: Final = "hardcode"
"""The name with which Kafka tests whether a principal may act on resources of any name."""

Entry = TypeVar("Entry")
_Hosts = Mapping[str, tuple[int, int]]
"""Per host, the bits of allowed and of denied operations."""


@dataclass(frozen=True, slots=True)
class _Patterns(Generic[Entry]):
    """What is said about the patterns of one resource type."""

    literal: Mapping[str, Entry] = field(default_factory=dict)
    prefixed: Mapping[str, Entry] = field(default_factory=dict)
    lengths: tuple[int, ...] = ()
    """The distinct lengths of the prefixes, ascending."""

    def matching(self, name: str, scope: str) -> list[Entry]:
        """Returns the entries of all patterns that match this resource."""
        literals = (name, scope + ANY_NAME)
        found = [entry for literal in literals if (entry := self.literal.get(literal)) is not None]
        length = len(name)
        for prefix_length in self.lengths:
            if prefix_length > length:
                break
            entry = self.prefixed.get(name[:prefix_length])
            if entry is not None:
                found.append(entry)
        return found

    def replaced(self, changes: Mapping[tuple[PatternType, str], Entry | None]) -> Self:
        """None removes a pattern."""
        tables = {PatternType.LITERAL: dict(self.literal), PatternType.PREFIXED: dict(self.prefixed)}
        for (pattern_type, name), entry in changes.items():
            if entry is None:
                tables[pattern_type].pop(name, None)
            else:
                tables[pattern_type][name] = entry
        prefixed = tables[PatternType.PREFIXED]
        lengths = self.lengths
        if prefixed.keys() != self.prefixed.keys():
            lengths = tuple(sorted(set(map(len, prefixed))))
        return type(self)(tables[PatternType.LITERAL], prefixed, lengths)

    def get(self, pattern: tuple[PatternType, str]) -> Entry | None:
        pattern_type, name = pattern
        return (self.literal if pattern_type is PatternType.LITERAL else self.prefixed).get(name)


_NO_PATTERNS: Final[_Patterns[_Hosts]] = _Patterns()
_NO_NAMES: Final[_Patterns[int]] = _Patterns()


class AclIndex:
    """One snapshot of all ACLs."""

    __slots__ = ("_named", "_of", "_size")

    def __init__(self) -> None:
        self._of: Mapping[tuple[ResourceType, str], _Patterns[_Hosts]] = {}
        self._named: Mapping[ResourceType, _Patterns[int]] = {}
        """How many ACLs each pattern has, of all principals."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def with_changes(self, added: Iterable[Acl], removed: Iterable[Acl]) -> "AclIndex":
        """Returns the next snapshot. What is already there is not added twice, what is not there need not be
        removed. An ACL is not in both.
        """
        changed: dict[tuple[ResourceType, str], dict[tuple[PatternType, str], dict[str, tuple[int, int]]]]
        changed = {}
        counted: dict[ResourceType, dict[tuple[PatternType, str], int]] = {}
        size = self._size
        for acl, is_added in chain(((acl, True) for acl in added), ((acl, False) for acl in removed)):
            owner, pattern = (acl.resource_type, acl.principal), (acl.pattern_type, acl.name)
            patterns = changed.setdefault(owner, {})
            if pattern not in patterns:
                patterns[pattern] = dict(self._of.get(owner, _NO_PATTERNS).get(pattern) or {})
            hosts = patterns[pattern]
            allowed, denied = before = hosts.get(acl.host, (0, 0))
            bit = 1 << acl.operation
            if acl.permission is Permission.ALLOW:
                allowed = allowed | bit if is_added else allowed & ~bit
            else:
                denied = denied | bit if is_added else denied & ~bit
            if (allowed, denied) == before:
                continue
            step = 1 if is_added else -1
            size += step
            counts = counted.setdefault(acl.resource_type, {})
            if pattern not in counts:
                counts[pattern] = self._named.get(acl.resource_type, _NO_NAMES).get(pattern) or 0
            counts[pattern] += step
            if allowed or denied:
                hosts[acl.host] = (allowed, denied)
            else:
                del hosts[acl.host]
        index = AclIndex()
        index._size = size
        index._of = {
            **self._of,
            **{
                owner: self._of.get(owner, _NO_PATTERNS).replaced(
                    {pattern: hosts or None for pattern, hosts in patterns.items()}
                )
                for owner, patterns in changed.items()
            },
        }
        index._named = {
            **self._named,
            **{
                kind: self._named.get(kind, _NO_NAMES).replaced(
                    {pattern: count or None for pattern, count in counts.items()}
                )
                for kind, counts in counted.items()
            },
        }
        return index

    def operations(
        self,
        principal: str,
        hosts: Sequence[str],
        resource_type: ResourceType,
        name: str,
        *,
        open_if_no_acl: bool,
        scope: str = "",
    ) -> int:
        """Returns the bits of the operations that are allowed. `hosts`: what an ACL may name for the client's
        host, ANY_HOST too. `open_if_no_acl`: a resource that no ACL
        matches is open to all. `scope`: the prefix of the principal's tenant, whose ACLs for all names and
        for all principals have names of the tenant.
        """
        allowed = denied = 0
        for owner in (principal, _any_principal(scope)):
            patterns = self._of.get((resource_type, owner))
            if patterns is None:
                continue
            for bits_of in patterns.matching(name, scope):
                for host in hosts:
                    bits = bits_of.get(host)
                    if bits is not None:
                        allowed |= bits[0]
                        denied |= bits[1]
        if not allowed and not denied:
            is_open = open_if_no_acl and not self._named.get(resource_type, _NO_NAMES).matching(name, scope)
            return EVERY_OPERATION if is_open else NO_OPERATION
        return _implied(allowed) & ~(EVERY_OPERATION if denied & _ALL else denied)

    def allows_some(
        self,
        principal: str,
        hosts: Sequence[str],
        operation: Operation,
        resource_type: ResourceType,
        *,
        open_if_no_acl: bool,
        scope: str = "",
    ) -> bool:
        """Returns whether the operation is allowed on any resource of the type (KIP-679).

        As in Kafka, a literal or prefixed pattern counts unless the same literal, or a prefix of it, is
        denied. It costs a step for each pattern of the principal.
        """
        everywhere = self.operations(
            principal,
            hosts,
            resource_type,
            scope + _ANY_RESOURCE,
            open_if_no_acl=open_if_no_acl,
            scope=scope,
        )
        if everywhere & 1 << operation:
            return True
        bits = 1 << operation | _ALL
        allowed: dict[PatternType, set[str]] = {kind: set() for kind in PatternType}
        denied: dict[PatternType, set[str]] = {kind: set() for kind in PatternType}
        for owner in (principal, _any_principal(scope)):
            patterns = self._of.get((resource_type, owner), _NO_PATTERNS)
            for kind, table in (
                (PatternType.LITERAL, patterns.literal),
                (PatternType.PREFIXED, patterns.prefixed),
            ):
                for name, bits_of in table.items():
                    found = [bits_of[host] for host in hosts if host in bits_of]
                    if any(one[0] & bits for one in found):
                        allowed[kind].add(name)
                    if any(one[1] & bits for one in found):
                        denied[kind].add(name)
        if scope + ANY_NAME in denied[PatternType.LITERAL]:
            return False
        if scope + ANY_NAME in allowed[PatternType.LITERAL]:
            return True
        literals = allowed[PatternType.LITERAL] - denied[PatternType.LITERAL]
        prefixes = denied[PatternType.PREFIXED]
        return any(
            not any(name[:length] in prefixes for length in range(1, len(name) + 1))
            for name in chain(literals, allowed[PatternType.PREFIXED])
        )


def _any_principal(scope: str) -> str:
    kind, colon, name = ANY_PRINCIPAL.partition(":")
    return f"{kind}{colon}{scope}{name}"


def _implied(allowed: int) -> int:
    if allowed & _ALL:
        return EVERY_OPERATION
    if allowed & _IMPLY_DESCRIBE:
        allowed |= _DESCRIBE
    if allowed & _ALTER_CONFIGS:
        allowed |= _DESCRIBE_CONFIGS
    return allowed
