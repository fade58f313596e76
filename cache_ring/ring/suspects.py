"""Decides which peers this agent treats as dead before their lease ends.

A death shows in two ways. The peer's connections are reset and nothing listens at its address (*refused*), or
its probes stay unanswered (*silent*). Refused is certain at once. Silence may be this agent's own fault, so
it counts less.

Promises:
- Each agent watches at most `probe_watched` others: those 1, 2, 4, 8, ... places after it in one order of all
  agents. So each agent is watched by as many as it watches, and a report reaches all agents in at most that
  many hops.
- A suspect that answers is taken back at once. Patience is how long a probe may stay unanswered. A suspect
  that answers within twice the patience was slow, not frozen: the patience with it doubles, up to
  `probe_most_patience_s`, until it has not been slow for a minute. A peer is slow at its start: for ten
  seconds it gets the longest patience.
- A report makes this agent probe for itself, for `probe_report_s`. No report is believed: a confused agent
  persuades no other. However many peers one agent reports, `probe_reported` of them are probed at a time, the
  first reported first.
- If more than half of the probed peers are silent, this agent assumes that the fault is its own, and ignores
  silence. The silence of the only probed peer counts. A peer that never answered is suspected for its silence
  only if two others report it.
- If this agent itself stood still, it counts silence from the moment when it goes on.
- The lease has the last word. A suspect that keeps renewing its lease for the length of one lease is taken
  back, and is not suspected again before it has answered: the network to it is broken, not the peer.

Use this only where a wrong view does no harm: routing is a hint, coordinators are fenced by epochs, and pages
also come from the store. Node ids, dooming and jobs use the lease.

Pure: times are monotonic seconds and are parameters. Peers are named by node and incarnation: a new
incarnation is no suspect.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from hashlib import blake2b
from heapq import nsmallest
from typing import TypeAlias

from cache_ring.settings import CacheRingSettings
from storage.identifiers import NodeId

PeerName: TypeAlias = tuple[NodeId, int]
"""Node and incarnation."""

_REPORTERS_OF_A_STRANGER = 2
"""This many reports make silence count although the peer never answered this agent."""
_REPORTERS_KEPT = 3
"""The most reports of one suspect that are kept and passed on; more would add nothing."""
_CALM_S = 60.0
_YOUNG_S = 10.0
_LARGEST_SPREAD_S = 0.3
_SPREAD_PER_PEER_S = 0.001
_PLACES_KEPT = 10_000


class Evidence(Enum):
    REFUSED = "refused"
    SILENT = "silent"


@dataclass(slots=True)
class _Peer:
    patience_s: float
    has_answered: bool = False
    first_answer_s: float = 0.0
    asked_s: float | None = None
    """When the oldest unanswered probe was sent."""
    evidence: Evidence | None = None
    """This agent's own evidence, if it suspects the peer."""
    suspected_s: float = 0.0
    is_pardoned: bool = False
    """True: the peer is not suspected before it has answered again."""
    slow_until_s: float = float("-inf")
    """When the peer was last slow."""
    reporters: set[NodeId] = field(default_factory=set)
    reported_s: float = 0.0
    verify_s: float = 0.0
    reports_ignored_until_s: float = float("-inf")


class Suspects:
    """One agent's opinion of the others. The caller reports events and then calls `tick`."""

    def __init__(self, settings: CacheRingSettings) -> None:
        self._settings = settings
        self._self: PeerName | None = None
        self._others: frozenset[PeerName] = frozenset()
        self._watched: frozenset[PeerName] = frozenset()
        self._peers: dict[PeerName, _Peer] = {}
        self._looked_s = float("-inf")
        self._ticked_s: float | None = None
        self._news: list[PeerName] = []
        self._suspected: dict[PeerName, Evidence] = {}

    # --- decisions

    @property
    def suspected(self) -> dict[PeerName, Evidence]:
        """The peers to leave out, as of the last `tick`."""
        return self._suspected

    @property
    def watched(self) -> frozenset[PeerName]:
        """The peers that this agent always probes."""
        return self._watched

    def to_probe(self, now_s: float) -> set[PeerName]:
        """Returns the peers to probe now: the watched, the suspects, and those that others report."""
        suspects = {name for name, peer in self._peers.items() if peer.evidence is not None}
        reported = [
            (peer.reported_s, name)
            for name, peer in self._peers.items()
            if peer.reporters
            and peer.verify_s <= now_s
            and peer.evidence is None
            and name not in self._watched
        ]
        first_reported = {name for _, name in nsmallest(self._settings.probe_reported, reported)}
        return suspects | first_reported | self._watched

    def take_news(self) -> list[PeerName]:
        """Returns the peers suspected by this agent's own evidence since the last call, to report them to
        others."""
        news, self._news = self._news, []
        return news

    # --- events

    def looked_again(self, looked_s: float) -> None:
        """The lease's view was read again at `looked_s`, and is the same."""
        self._looked_s = looked_s

    def looked(self, self_: PeerName, others: Iterable[PeerName], looked_s: float) -> None:
        """The lease's view was read at `looked_s`."""
        self._looked_s = looked_s
        names = frozenset(others) - {self_}
        if self_ == self._self and names == self._others:
            return
        self._self, self._others = self_, names
        self._watched = _watched(self_, names, self._settings.probe_watched)
        self._peers = {name: peer for name, peer in self._peers.items() if name in names}

    def asked(self, name: PeerName, now_s: float) -> None:
        """A probe was sent or tried. An earlier unanswered probe keeps counting."""
        peer = self._peer(name)
        if peer is not None and peer.asked_s is None:
            peer.asked_s = now_s

    def answered(self, name: PeerName, now_s: float) -> None:
        peer = self._peer(name)
        if peer is None:
            return
        if peer.evidence is Evidence.SILENT and now_s < peer.suspected_s + peer.patience_s:
            peer.patience_s = min(2 * peer.patience_s, self._settings.probe_most_patience_s)
            peer.slow_until_s = now_s
        elif now_s > peer.slow_until_s + _CALM_S:
            peer.patience_s = self._settings.probe_patience_s
        if not peer.has_answered:
            peer.first_answer_s = now_s
        peer.has_answered, peer.asked_s, peer.evidence, peer.is_pardoned = True, None, None, False
        if peer.reporters:
            peer.reporters.clear()
            peer.reports_ignored_until_s = now_s + self._settings.probe_report_s

    def refused(self, name: PeerName, now_s: float) -> None:
        """Nothing listens at the peer's address, another incarnation does, or the peer says that it
        leaves."""
        peer = self._peer(name)
        if peer is not None and not peer.is_pardoned and peer.evidence is not Evidence.REFUSED:
            self._suspect(name, peer, Evidence.REFUSED, now_s)

    def hung_up(self, name: PeerName) -> None:
        """The peer accepted a connection and closed it: no answer, but a sign of life."""
        peer = self._peer(name)
        if peer is not None:
            peer.asked_s = None

    def reported(self, name: PeerName, by: NodeId, now_s: float) -> bool:
        """Another agent suspects a peer. True: this is new, pass it on."""
        peer = self._peer(name)
        if peer is None or self._self is None or by in (self._self[0], name[0]):
            return False
        self._forget_old_reports(peer, now_s)
        if (
            now_s < peer.reports_ignored_until_s
            or by in peer.reporters
            or len(peer.reporters) >= _REPORTERS_KEPT
        ):
            return False
        if not peer.reporters:
            peer.reported_s = now_s
            peer.verify_s = now_s + _spread_s(self._self, name, len(self._others))
        peer.reporters.add(by)
        return True

    def tick(self, now_s: float) -> None:
        """Judges by the time. Call it several times per `probe_every_s`."""
        settings = self._settings
        stood_still = (
            self._ticked_s is not None
            and now_s - self._ticked_s > settings.probe_every_s + settings.probe_patience_s / 2
        )
        self._ticked_s = now_s
        for name, peer in self._peers.items():
            self._forget_old_reports(peer, now_s)
            if peer.evidence is not None and self._looked_s >= peer.suspected_s + settings.membership_lease_s:
                peer.evidence, peer.is_pardoned, peer.has_answered = None, True, False
            if peer.asked_s is None:
                continue
            if not self._is_probed(name, peer):
                peer.asked_s = None
            elif stood_still:
                peer.asked_s = now_s
            elif self._is_silent(peer, now_s):
                self._suspect(name, peer, Evidence.SILENT, now_s)
        self._suspected = self._judged()

    # --- rules

    def _peer(self, name: PeerName) -> _Peer | None:
        if name not in self._others:
            return None
        peer = self._peers.get(name)
        if peer is None:
            peer = self._peers[name] = _Peer(patience_s=self._settings.probe_patience_s)
        return peer

    def _is_probed(self, name: PeerName, peer: _Peer) -> bool:
        return name in self._watched or peer.evidence is not None or bool(peer.reporters)

    def _is_silent(self, peer: _Peer, now_s: float) -> bool:
        is_new = peer.evidence is None and not peer.is_pardoned
        may_be_judged = peer.has_answered or len(peer.reporters) >= _REPORTERS_OF_A_STRANGER
        is_young = peer.has_answered and now_s < peer.first_answer_s + _YOUNG_S
        patience_s = self._settings.probe_most_patience_s if is_young else peer.patience_s
        return is_new and may_be_judged and peer.asked_s is not None and now_s - peer.asked_s > patience_s

    def _suspect(self, name: PeerName, peer: _Peer, evidence: Evidence, now_s: float) -> None:
        if peer.evidence is None:
            peer.suspected_s = now_s
            self._news.append(name)
        peer.evidence = evidence

    def _forget_old_reports(self, peer: _Peer, now_s: float) -> None:
        if peer.reporters and now_s > peer.reported_s + self._settings.probe_report_s:
            peer.reporters.clear()

    def _judged(self) -> dict[PeerName, Evidence]:
        silent = [name for name, peer in self._peers.items() if peer.evidence is Evidence.SILENT]
        probed = sum(
            peer.evidence is Evidence.SILENT or (peer.evidence is None and peer.has_answered)
            for name, peer in self._peers.items()
            if self._is_probed(name, peer)
        )
        doubts_itself = probed > 1 and len(silent) > probed / 2
        return {
            name: peer.evidence
            for name, peer in self._peers.items()
            if peer.evidence is Evidence.REFUSED or (peer.evidence is Evidence.SILENT and not doubts_itself)
        }


def _watched(self_: PeerName, others: frozenset[PeerName], most: int) -> frozenset[PeerName]:
    """Returns the agents 1, 2, 4, ... places after this one, in the order of their nodes' hashes."""
    in_order = sorted({*others, self_}, key=lambda name: (_place(name[0]), name[1]))
    own_place, distance = in_order.index(self_), 1
    watched: list[PeerName] = []
    while distance < len(in_order) and len(watched) < most:
        watched.append(in_order[(own_place + distance) % len(in_order)])
        distance *= 2
    return frozenset(watched)


@lru_cache(maxsize=_PLACES_KEPT)
def _place(node_id: NodeId) -> int:
    """The node's place in the order of all agents, which each change of the lease's view computes again."""
    return _hash(node_id)


def _hash(*numbers: int) -> int:
    text = "/".join(map(str, numbers))
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


def _spread_s(self_: PeerName, name: PeerName, peers: int) -> float:
    """Returns how long this agent waits before it probes a reported peer: otherwise a thousand probes would
    come at once."""
    longest_s = min(_LARGEST_SPREAD_S, peers * _SPREAD_PER_PEER_S)
    return longest_s * (_hash(self_[0], name[0], name[1]) / 2**64)
