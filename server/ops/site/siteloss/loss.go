// SPDX-License-Identifier: Apache-2.0

// Package siteloss describes the transactions that would be lost if a replica site were promoted.
package siteloss

import (
	"fmt"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/units"
)

// Loss describes the transactions that a promotion would lose, at the time of a status.
type Loss struct {
	// Known is false if the active of the replica does not know the end of the primary's log. The other fields are then
	// zero.
	Known bool `json:"known"`
	// Records and Bytes are the number and the approximate size of the records that were in the primary's log at HeardAt
	// and are missing at the replica.
	Records uint64    `json:"records"`
	Bytes   uint64    `json:"bytes"`
	HeardAt time.Time `json:"heard_at,omitzero"`
	// AgeSeconds is the time since HeardAt, in seconds.
	AgeSeconds float64 `json:"heard_seconds_ago"`
	// Nothing reports whether the primary accepts no writes and the replica has all its records. The fields above,
	// except Known, are then zero.
	Nothing bool `json:"nothing"`
}

// New returns the loss of a promotion of a replica. primary is the current state of the primary, or nil if the
// primary does not respond.
func New(replica *pb.GetSiteResponse, primary *pb.SiteState) *Loss {
	r, state := replica.GetReplication(), replica.GetSite()
	if primary.GetRole() == pb.SiteRole_SITE_ROLE_STOPPED && primary.GetLineage() == state.GetLineage() &&
		primary.GetEpoch() == state.GetEpoch() && samePosition(primary.GetApplied(), state.GetUpstream()) {
		return &Loss{Known: true, Nothing: true}
	}
	if r.GetHeardAt() == nil {
		return &Loss{}
	}
	now := state.GetNow()
	if primary.GetNow() != nil {
		now = primary.GetNow() // HeardAt is by the clock of the primary
	}
	heard := r.GetHeardAt().AsTime()
	return &Loss{
		Known: true, Records: r.GetLagRecords(), Bytes: r.GetLagBytes(), HeardAt: heard,
		AgeSeconds: max(now.AsTime().Sub(heard), 0).Seconds(),
	}
}

func samePosition(p, q *pb.Position) bool {
	return p != nil && q != nil && p.GetTerm() == q.GetTerm() && p.GetLsn() == q.GetLsn() && p.GetChain() == q.GetChain()
}

// Text returns a description of the loss, such as "loses nothing: …". clock formats times.
func (l *Loss) Text(clock func(time.Time) string) string {
	switch {
	case l.Nothing:
		return "loses nothing: the replica has all records of the primary, which accepts no writes"
	case !l.Known:
		return "loses an unknown number of transactions: the replica has not received the end of the primary's log"
	}
	later := fmt.Sprintf("all transactions that the primary accepted after %s (%s ago)", clock(l.HeardAt),
		units.Age(time.Duration(l.AgeSeconds*float64(time.Second))))
	if l.Records == 0 {
		return "loses " + later
	}
	records := units.Count(l.Records) + " records"
	if l.Records == 1 {
		records = "1 record"
	}
	return fmt.Sprintf("loses %s (%s), and %s", records, units.Bytes(l.Bytes), later)
}
