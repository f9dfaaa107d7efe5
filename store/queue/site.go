// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"encoding/binary"
	"math"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/mutate"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// SiteRole is the role of a pair in its group of sites.
type SiteRole uint8

// Site roles, as stored.
const (
	// SiteNone is the role of a pair without a lineage.
	SiteNone SiteRole = 0
	// SitePrimary is the role of the pair that accepts transactions of clients, which the replicas apply.
	SitePrimary SiteRole = 1
	// SiteReplica is the role of a pair that applies only the transactions of the primary, and an OpSite that changes its
	// role.
	SiteReplica SiteRole = 2
	// SiteStopped is the role of a stopped primary. It rejects all transactions except for changes of its role: it can be
	// resumed or promoted, or become a replica.
	SiteStopped SiteRole = 3
)

var siteRoles = [...]string{ //nolint:gochecknoglobals // a table
	SiteNone: "none", SitePrimary: "primary", SiteReplica: "replica", SiteStopped: "stopped",
}

// String returns the name of the role.
func (r SiteRole) String() string {
	if int(r) < len(siteRoles) {
		return siteRoles[r]
	}
	return "unknown"
}

// SiteState is the site role of a pair, and the relation of its log to the log of the primary. A pair without a lineage
// has the zero SiteState.
type SiteState struct {
	// Lineage identifies the group of sites.
	Lineage uuid.UUID
	// Epoch increases with each promotion; the first one is 1.
	Epoch uint64
	Role  SiteRole
	// Upstream is, at a replica, the position of the last applied record in the log of the primary.
	Upstream lsn.Position
	// UpstreamStopped reports, at a replica, whether the primary was stopped at Upstream.
	UpstreamStopped bool
	// StopLSN is, at a replica, the LSN of the record that stopped the primary in this epoch, in the log of the
	// primary. It is 0 if the replica has not applied that record, or has applied a later resume. If it is not 0, the
	// replica has all transactions up to this LSN.
	StopLSN uint64
	// CanceledLSN is an LSN in the log of the primary, set at a replica. Stops up to this LSN do not permit a planned
	// promotion. It is 0 if no stop of this epoch was canceled.
	CanceledLSN uint64
	// Origin is, after the promotion of a replica, its last Upstream. It is zero at a replica, and for a pair that was
	// not promoted from a replica.
	Origin lsn.Position
	// PromotedLSN is the LSN of the record that made a replica a primary or, in a detached copy of a replica, of the last
	// record in the copy. It is 0 at a replica, and for a pair that was not promoted from a replica.
	PromotedLSN uint64
	// Offset is the logical number minus the LSN of each record from PromotedLSN on, modulo 2^64. It is 0 at a replica.
	Offset uint64
	// Logical is the logical number of the last transaction of the lineage that the pair has applied or rejected.
	// Transactions that were rejected because of the site role do not count.
	Logical uint64
	// LossyEpoch is the last epoch that began with the promotion of a pair that may have lacked transactions; 0 for none.
	LossyEpoch uint64
}

// Differs reports whether s and o differ in role, epoch or lineage.
func (s SiteState) Differs(o SiteState) bool {
	return s.Role != o.Role || s.Epoch != o.Epoch || s.Lineage != o.Lineage
}

// MayTakeOver reports whether a replica may be promoted without loss: the replica has applied the stop of the primary
// and no later resume, and the stop was not canceled.
func (s SiteState) MayTakeOver() bool { return s.Role == SiteReplica && s.StopLSN > s.CanceledLSN }

// LogicalOf returns the logical number of the record with LSN n of a primary or stopped pair. ok is false for other
// roles, and for records before PromotedLSN.
func (s SiteState) LogicalOf(n uint64) (logical uint64, ok bool) {
	return n + s.Offset, (s.Role == SitePrimary || s.Role == SiteStopped) && n >= s.PromotedLSN
}

// LSNOf returns the LSN of the record with the given logical number. ok is false at a replica, and for records before
// PromotedLSN.
func (s SiteState) LSNOf(logical uint64) (n uint64, ok bool) {
	n = logical - s.Offset
	before := logical < s.PromotedLSN+s.Offset // the numbers of the records from PromotedLSN on do not wrap around
	return n, s.Role != SiteReplica && !before
}

// Site returns the site role of the pair.
func (s *State) Site() SiteState { return s.site.SiteState }

// TakeSiteChanged reports whether role, epoch or lineage has changed since the last call.
func (s *State) TakeSiteChanged() bool {
	changed := s.site.changed
	s.site.changed = false
	return changed
}

type site struct {
	SiteState

	changed bool // see TakeSiteChanged
}

// admitSite decides whether a transaction is applied in the current site role, and executes an OpSite. If apply is
// false, r contains the result. Otherwise, it returns the logical number of the transaction, unless r.Code is
// txn.ErrNewerVersion.
func (s *State) admitSite(n uint64, r *txn.Result) (logical uint64, apply bool) {
	change, isChange, err := s.reader.SiteChange()
	if r.Code == txn.ErrNewerVersion || codeOf(err) == txn.ErrNewerVersion {
		r.Code = txn.ErrNewerVersion
		return 0, true
	}
	header := s.reader.Site()
	switch role := s.site.Role; {
	case header != nil:
		return s.admitEnvelope(header, change, r)
	case isChange:
		r.Code = s.changeSite(n, &change)
		r.Op = 0
		if r.Code == txn.OK {
			r.Op, r.Ops = -1, s.results(1)
		}
		return 0, false
	case role == SiteNone, role == SitePrimary, mutate.Off("INV-26-replica-applies-transactions-of-clients"):
		return r.LSN, true
	}
	r.Code = txn.ErrReplica
	return 0, false
}

// admitEnvelope decides on a transaction of the primary. It records a change of the primary's role in the site
// state, but does not change the role of this pair.
func (s *State) admitEnvelope(header *txn.Site, change txn.SiteChange, r *txn.Result) (logical uint64, apply bool) {
	t := &s.site
	stale := header.Logical <= t.Logical || header.Upstream.LSN <= t.Upstream.LSN
	switch {
	case t.Role != SiteReplica:
		r.Code = txn.ErrReplica
		return 0, false
	case header.Lineage != t.Lineage || header.Epoch != t.Epoch,
		stale && !mutate.Off("INV-26-transaction-of-the-primary-is-applied-twice"):
		r.Code = txn.ErrSitePosition
		return 0, false
	}
	r.LSN = header.Logical
	switch {
	case change.Action == 0 && !t.UpstreamStopped:
		return header.Logical, true
	case change.Action == 0: // the primary has rejected it
	case change.Action == txn.SiteFollow:
		r.Ops = s.results(1)
	default:
		t.Logical = header.Logical
		r.Ops = s.results(1)
	}
	t.Upstream = header.Upstream
	switch {
	case change.Action == txn.SiteStop && change.Expected == t.Epoch:
		if !t.UpstreamStopped { // otherwise the primary has rejected it
			t.UpstreamStopped, t.StopLSN = true, header.Upstream.LSN
		}
	case change.Action == txn.SiteResume && change.Expected == t.Epoch,
		change.Action == txn.SitePromote && change.Epoch == t.Epoch:
		t.UpstreamStopped, t.StopLSN = false, 0
	}
	return 0, false
}

// advanceSite records that a transaction was applied.
func (s *State) advanceSite(logical uint64) {
	if header := s.reader.Site(); header != nil {
		s.site.Upstream = header.Upstream
	}
	s.site.Logical = logical
}

// changeSite applies the OpSite of the record with LSN n. The record's transaction is not in an envelope.
func (s *State) changeSite(n uint64, c *txn.SiteChange) txn.Code {
	t := &s.site
	before := t.SiteState
	if number, ok := t.LogicalOf(n); ok && c.Action != txn.SiteFollow {
		t.Logical = number // even if the change is rejected, as at the replicas
	}
	ok := c.Action == txn.SiteFollow || c.Expected == t.Epoch
	switch {
	case !ok:
	case c.Action == txn.SiteStart && t.Role == SiteNone:
		t.SiteState = SiteState{Lineage: c.Lineage, Epoch: 1, Role: SitePrimary, Logical: n}
	case c.Action == txn.SiteStop && t.Role == SitePrimary:
		t.Role = SiteStopped
	case c.Action == txn.SiteResume && t.Role == SiteStopped:
		t.Role = SitePrimary
	case c.Action == txn.SitePromote && t.Role == SiteStopped && c.Epoch > t.Epoch:
		t.Role, t.Epoch = SitePrimary, c.Epoch // logical numbers continue, so the replicas can continue
		t.lossy(c)
	case c.Action == txn.SiteCancel && t.Role == SiteReplica:
		t.CanceledLSN = max(t.CanceledLSN, c.Upstream.LSN)
	case c.Action == txn.SitePromote && t.Role == SiteReplica && c.Epoch > t.Epoch && mayPromote(t, c):
		logical := before.Logical + 1
		t.SiteState = SiteState{
			Lineage: t.Lineage, Epoch: c.Epoch, Role: SitePrimary, Origin: t.Upstream, PromotedLSN: n,
			Offset: logical - n, Logical: logical, LossyEpoch: t.LossyEpoch,
		}
		t.lossy(c)
	case c.Action == txn.SiteFollow && s.mayFollow(c):
		t.SiteState = SiteState{
			Lineage: c.Lineage, Epoch: c.Epoch, Role: SiteReplica, Upstream: c.Upstream, UpstreamStopped: c.Stopped,
			Logical: c.Logical, LossyEpoch: c.LossyEpoch,
		}
	default:
		ok = false
	}
	if !ok {
		return txn.ErrSiteChange
	}
	t.changed = t.changed || t.Differs(before)
	return txn.OK
}

func mayPromote(t *site, c *txn.SiteChange) bool {
	return c.Lossy || t.MayTakeOver() || mutate.Off("INV-26-replica-takes-over-without-a-stop")
}

func (t *site) lossy(c *txn.SiteChange) {
	if c.Lossy {
		t.LossyEpoch = c.Epoch
	}
}

// mayFollow reports whether the pair may become a replica of a primary. It does not verify that the pair has no
// transactions that the primary lacks: the proposer of the record must do that.
func (s *State) mayFollow(c *txn.SiteChange) bool {
	t := &s.site
	switch {
	case c.Logical < s.lastNumber(): // the pair would apply transactions again, and its checkpoint could not be loaded
		return false
	case t.Role == SiteNone:
		return true
	case t.Lineage != c.Lineage:
		return false
	}
	return c.Epoch > t.Epoch || c.Epoch == t.Epoch && t.Role != SiteReplica && c.Logical >= t.Logical
}

// ReplicaChange returns the change that makes a copy of the state a replica of the original pair. at is the position of
// the last applied record in the log of that pair. The Action is 0 if the copy is a replica already. ok is false if the
// pair has no lineage, or if the copy cannot follow from that position.
func (s *State) ReplicaChange(at lsn.Position) (c txn.SiteChange, ok bool) {
	t := &s.site
	if t.Role == SiteReplica {
		return c, true
	}
	logical, ok := t.LogicalOf(at.LSN)
	c = txn.SiteChange{
		Action: txn.SiteFollow, Lineage: t.Lineage, Epoch: t.Epoch, Upstream: at, Logical: logical,
		Stopped: t.Role == SiteStopped, LossyEpoch: t.LossyEpoch,
	}
	return c, ok && s.mayFollow(&c)
}

// DetachedSite returns the key and the value that make a copy of the state the primary of a new lineage. The copy and
// the sites of the current lineage reject each other's transactions. Logical numbers continue.
func (s *State) DetachedSite(lineage uuid.UUID) (key, value []byte) {
	before, applied := s.site.SiteState, s.Applied()
	t := site{SiteState: SiteState{
		Lineage: lineage, Epoch: 1, Role: SitePrimary, PromotedLSN: before.PromotedLSN, Offset: before.Offset,
		Logical: before.Logical,
	}}
	switch before.Role {
	case SiteReplica:
		t.PromotedLSN, t.Offset = applied, before.Logical-applied
	case SiteNone:
		t.Logical = applied
	case SitePrimary, SiteStopped:
	}
	return []byte{keySite}, t.appendValue(nil)
}

// lastNumber returns a lower bound of the logical number of the last applied transaction. It is the highest of the
// stored numbers that later transactions must exceed. The LSN is not used: it may be higher in a restored or empty
// pair without a lineage.
func (s *State) lastNumber() uint64 {
	last := s.access.version
	if p := s.producers.newest; p != nil {
		last = max(last, p.usedLSN)
	}
	if n := len(s.prepared.outcomes); n > 0 {
		last = max(last, s.prepared.outcomes[n-1].Number)
	}
	for _, p := range s.prepared.byXID {
		last = max(last, p.number)
	}
	return last
}

// IsSiteKey reports whether key is the key of the site role.
func IsSiteKey(key []byte) bool { return len(key) == 1 && key[0] == keySite }

const siteFlagUpstreamStopped = 1

func (t *site) appendValue(dst []byte) []byte {
	flags := byte(0)
	if t.UpstreamStopped {
		flags = siteFlagUpstreamStopped
	}
	dst = append(dst, valueVersion, byte(t.Role), flags)
	dst = append(dst, t.Lineage[:]...)
	dst = binary.AppendUvarint(dst, t.Epoch)
	dst = appendPosition(appendPosition(dst, t.Upstream), t.Origin)
	dst = binary.AppendUvarint(dst, t.PromotedLSN)
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, t.Logical), t.LossyEpoch)
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, t.StopLSN), t.CanceledLSN)
	return binary.LittleEndian.AppendUint64(dst, t.Offset)
}

func appendPosition(dst []byte, p lsn.Position) []byte {
	dst = binary.AppendUvarint(binary.AppendUvarint(dst, p.Term), p.LSN)
	return binary.LittleEndian.AppendUint32(dst, p.Chain)
}

func (c *cursor) position() lsn.Position {
	return lsn.Position{Term: c.uvarint(math.MaxUint64), LSN: c.uvarint(math.MaxUint64), Chain: c.u32()}
}

func (c *collector) site(t *site) {
	if t.Role != SiteNone {
		c.put(append(c.key(), keySite), t.appendValue)
	}
}

func (l *Loader) site(v *cursor) {
	t := &l.s.site
	v.version()
	t.Role = SiteRole(v.u8())
	flags := v.u8()
	t.UpstreamStopped = flags == siteFlagUpstreamStopped
	copy(t.Lineage[:], v.take(uint64(len(t.Lineage))))
	t.Epoch = v.uvarint(math.MaxUint64)
	t.Upstream, t.Origin = v.position(), v.position()
	t.PromotedLSN, t.Logical = v.uvarint(math.MaxUint64), v.uvarint(math.MaxUint64)
	t.LossyEpoch = v.uvarint(math.MaxUint64)
	t.StopLSN, t.CanceledLSN = v.uvarint(math.MaxUint64), v.uvarint(math.MaxUint64)
	t.Offset = v.u64()
	if v.err == nil && (t.Role == SiteNone || t.Role > SiteStopped || flags > siteFlagUpstreamStopped) {
		v.fail("invalid role or flags of a site")
	}
}

func (t *site) check(applied uint64, bad func(string, ...any)) {
	replica := t.Role == SiteReplica
	switch {
	case t.Role == SiteNone:
		if t.SiteState != (SiteState{}) {
			bad("site without a lineage has a state")
		}
	case t.Lineage == uuid.Nil || t.Epoch == 0 || t.LossyEpoch > t.Epoch:
		bad("%s site has lineage %v and epoch %d", t.Role, t.Lineage, t.Epoch)
	case replica && (t.Offset != 0 || t.PromotedLSN != 0 || t.Origin != lsn.Position{}):
		bad("replica site has the numbers of a primary")
	case !replica && (t.UpstreamStopped || t.CanceledLSN > 0 || t.Upstream != lsn.Position{}):
		bad("%s site has the position of a replica", t.Role)
	case t.StopLSN > 0 && (!t.UpstreamStopped || t.StopLSN > t.Upstream.LSN):
		bad("%s site has the stop of a primary at LSN %d, position %v, stopped: %v", t.Role, t.StopLSN, t.Upstream,
			t.UpstreamStopped)
	case !replica && (t.PromotedLSN > applied || t.Logical-t.Offset > applied || t.Logical-t.Offset < t.PromotedLSN):
		bad("%s site has logical number %d at LSN %d, with offset %d from LSN %d on", t.Role, t.Logical, applied,
			t.Offset, t.PromotedLSN)
	}
}
