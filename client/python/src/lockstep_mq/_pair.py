# SPDX-License-Identifier: Apache-2.0
"""The pairs of two sites: terms, epochs and roles that the nodes have reported.

Terms are compared only within a pair, and epochs only within a lineage.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from lockstep_mq._enums import name_of
from lockstep_mq._proto import admin_pb2, site_pb2

_RANK: dict[int, int] = {admin_pb2.ROLE_ACTIVE: 2, admin_pb2.ROLE_ACTIVE_ALONE: 2, admin_pb2.ROLE_BLOCKED: 1}
_NOT_PRIMARY = frozenset({site_pb2.SITE_ROLE_REPLICA, site_pb2.SITE_ROLE_STOPPED})


@dataclass
class Report:
    """The last report of a node."""

    role: int = admin_pb2.ROLE_UNSPECIFIED
    term: int = 0
    pair_id: str = ""
    site: admin_pb2.SiteInfo = field(default_factory=admin_pb2.SiteInfo)
    removed: bool = False  # the pair was removed from its fleet; reset when the status stream of the node ends

    @property
    def role_rank(self) -> int:
        """2 for a node that serves within its pair, 1 for a blocked node, 0 for other roles."""
        return _RANK.get(self.role, 0)

    @property
    def rank(self) -> int:
        """role_rank; 0 if the pair accepts no requests of clients."""
        return 0 if self.is_replica or self.removed else self.role_rank

    @property
    def is_replica(self) -> bool:
        """Return whether the site is not the primary."""
        return self.site.role in _NOT_PRIMARY


class Pairs:
    """The highest terms and epochs that nodes have reported."""

    def __init__(self) -> None:
        self._terms: dict[str, int] = {}  # highest term of an active or blocked node, by pair ID
        self._epochs: dict[str, int] = {}  # highest epoch, by lineage

    def record(self, reports: Sequence[Report]) -> None:
        """Record the last reports of all nodes. Pairs that no node belongs to any longer are removed."""
        for r in reports:
            if r.role_rank > 0:
                self._terms[r.pair_id] = max(self._terms.get(r.pair_id, 0), r.term)
            if r.site.lineage:
                self._epochs[r.site.lineage] = max(self._epochs.get(r.site.lineage, 0), r.site.epoch)
        pairs, lineages = {r.pair_id for r in reports}, {r.site.lineage for r in reports}
        self._terms = {p: term for p, term in self._terms.items() if p in pairs}
        self._epochs = {lineage: epoch for lineage, epoch in self._epochs.items() if lineage in lineages}

    def epoch(self, r: Report) -> int:
        """Return the highest epoch of the lineage of a node."""
        return self._epochs.get(r.site.lineage, 0)

    def superseded(self, r: Report) -> bool:
        """Return whether another node has a higher term, or another site a higher epoch. The node may be unaware."""
        return r.term < self._terms.get(r.pair_id, 0) or r.site.epoch < self.epoch(r)

    def choose(self, reports: Sequence[Report], current: Report | None) -> Report | None:
        """Return the report of the best target, or None. current is the report of the current target."""
        self.record(reports)
        best: Report | None = None
        for r in reports:
            if r.rank == 0 or self.superseded(r) or _outside(r, reports):
                continue
            if best is None or _better(r, best, current):
                best = r
        return best

    def explain(self, r: Report, address: str, why: str) -> str:
        """Describe the report of a node."""
        text = f"{address}: {name_of(admin_pb2.Role, r.role, 'role')}"
        if r.is_replica:
            stopped = r.site.role == site_pb2.SITE_ROLE_STOPPED
            text += f", site {r.site.name} is {'stopped, a switch is in progress' if stopped else 'a replica'}"
            if r.site.remote_addresses:
                text += f"; other site: {', '.join(r.site.remote_addresses)}"
            return text
        if r.removed:
            return f"{address}: the pair was removed from its fleet"
        if self.epoch(r) > r.site.epoch:
            text += (
                f", site {r.site.name} is superseded: its epoch is {r.site.epoch}, and the other site has epoch "
                f"{self.epoch(r)}"
            )
        return text + (f", {why}" if why else "")


def _outside(r: Report, reports: Sequence[Report]) -> bool:
    """Return whether a node has no lineage, but another pair has: the node is not yet part of a replica."""
    return not r.site.lineage and any(o.site.lineage and (o.pair_id != r.pair_id or not r.pair_id) for o in reports)


def _better(r: Report, best: Report, current: Report | None) -> bool:
    if r.pair_id != best.pair_id:
        # The pairs are unrelated, or both are primaries in one epoch. The client stays with the current pair.
        return current is not None and current.pair_id == r.pair_id
    return (r.term, r.rank, r is current) > (best.term, best.rank, False)
