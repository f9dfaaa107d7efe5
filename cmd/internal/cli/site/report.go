// SPDX-License-Identifier: Apache-2.0

package site

import (
	"cmp"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/site/siteloss"
)

// report is the output of lockstep site status.
type report struct {
	// Site is the site of --addr, and Remote is the other site; Remote is nil if it is unknown.
	Site   siteState  `json:"site"`
	Remote *siteState `json:"remote,omitempty"`
	// Replication is nil without a replica, or if the active node of the replica does not respond.
	Replication *replication `json:"replication,omitempty"`
	// Loss is nil without a replica.
	Loss *siteloss.Loss `json:"promotion_loss,omitempty"`
	// Problems is empty if both sites respond, the replica receives the log, and the roles are consistent.
	Problems []string `json:"problems"`
}

// siteState is the state of one site.
type siteState struct {
	Name    string `json:"name"`
	Role    string `json:"role"`
	Lineage string `json:"lineage,omitempty"`
	Epoch   uint64 `json:"epoch"`
	// Responds reports whether this site responded. Otherwise, the other site reported the state.
	Responds  bool      `json:"responds"`
	Addresses []string  `json:"addresses"`
	Applied   *position `json:"applied,omitempty"`
	Upstream  *position `json:"upstream,omitempty"`
	Origin    *position `json:"origin,omitempty"`
	Promoted  *position `json:"promoted,omitempty"`
}

type position struct {
	Term uint64 `json:"term"`
	LSN  uint64 `json:"lsn"`
}

// replication is the state of the replication, as reported by the replica.
type replication struct {
	Connected      bool      `json:"connected"`
	HeardAt        time.Time `json:"heard_at,omitzero"`
	PrimaryEnd     *position `json:"primary_end,omitempty"`
	LagRecords     uint64    `json:"lag_records"`
	LagBytes       uint64    `json:"lag_bytes"`
	LagSeconds     float64   `json:"lag_seconds"`
	BytesPerSecond uint64    `json:"bytes_per_second"`
	Connections    uint64    `json:"connections"`
	Error          string    `json:"error,omitempty"`
}

func newPosition(p *pb.Position) *position {
	if p == nil {
		return nil
	}
	return &position{Term: p.GetTerm(), LSN: p.GetLsn()}
}

func newSiteState(s *pb.SiteState, responds bool) siteState {
	j := siteState{
		Name: s.GetName(), Role: pairstatus.SiteRole(s.GetRole()), Lineage: s.GetLineage(), Epoch: s.GetEpoch(),
		Responds: responds, Addresses: s.GetAddresses(), Applied: newPosition(s.GetApplied()),
		Upstream: newPosition(s.GetUpstream()), Origin: newPosition(s.GetOrigin()), Promoted: newPosition(s.GetPromoted()),
	}
	if j.Addresses == nil {
		j.Addresses = []string{}
	}
	return j
}

func newReplication(r *pb.SiteReplication, problem string) *replication {
	if r == nil {
		return nil
	}
	j := &replication{
		Connected: r.GetConnected(), PrimaryEnd: newPosition(r.GetPrimaryEnd()), LagRecords: r.GetLagRecords(),
		LagBytes: r.GetLagBytes(), LagSeconds: r.GetLag().AsDuration().Seconds(), BytesPerSecond: r.GetBytesPerSecond(),
		Connections: r.GetConnections(), Error: problem,
	}
	if r.GetHeardAt() != nil {
		j.HeardAt = r.GetHeardAt().AsTime()
	}
	return j
}

// newReport combines the responses of both sites. there is nil if the other site cannot be reached from this machine,
// for the reason otherErr.
func newReport(here, there *pair, otherErr error) report {
	r := report{Site: newSiteState(here.site(), true), Problems: []string{}}
	remote := here.state.GetRemote()
	if there != nil {
		remote = there.site()
	}
	if remote != nil {
		s := newSiteState(remote, there != nil)
		r.Remote = &s
	} else if addresses := here.remote(); len(addresses) > 0 {
		r.Remote = &siteState{Role: roleUnknown, Addresses: addresses}
	}
	switch {
	case is(here.site(), pb.SiteRole_SITE_ROLE_REPLICA):
		r.addReplica(here.state, there.site())
	case there != nil && is(there.site(), pb.SiteRole_SITE_ROLE_REPLICA):
		r.addReplica(there.state, here.site())
	}
	r.addResponses(here, there, otherErr)
	if there != nil || here.state.GetError() == "" { // otherwise, the state of the other site may be old
		r.addRoles()
	}
	return r
}

const (
	roleUnknown = "unknown" // role of a site that does not respond
	roleNone    = "none"
	rolePrimary = "primary"
	roleReplica = "replica"
	roleStopped = "stopped"
)

func is(s *pb.SiteState, role pb.SiteRole) bool { return s.GetRole() == role }

func (r *report) addReplica(replica *pb.GetSiteResponse, primary *pb.SiteState) {
	r.Replication = newReplication(replica.GetReplication(), replica.GetError())
	r.Loss = siteloss.New(replica, primary)
}

func (r *report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// addResponses adds the problems of the nodes and of the connection between the sites.
func (r *report) addResponses(here, there *pair, otherErr error) {
	for _, p := range []*pair{here, there} {
		if p != nil && !p.active {
			r.problem("%s has no active node", named(p.site()))
		}
	}
	reason := here.state.GetError()
	if !here.active {
		reason = "" // only the active contacts the other site
	}
	switch {
	case r.Remote == nil:
	case there == nil && here.state.GetRemote() == nil:
		r.problem("the other site does not respond: %s", cmp.Or(reason, errorText(otherErr)))
	case is(here.site(), pb.SiteRole_SITE_ROLE_REPLICA): // see below
	case reason != "":
		r.problem("%s does not reach the other site: %s", named(here.site()), reason)
	}
	switch p := r.Replication; {
	case p != nil && !p.Connected:
		r.problem("the replica does not receive the log of the primary: %s", cmp.Or(p.Error, "not connected"))
	case p == nil && r.Remote != nil && (r.Site.Role == roleReplica || r.Remote.Role == roleReplica):
		r.problem("the active node of the replica does not respond: the lag is unknown")
	}
}

// addRoles adds the problems of the roles of two sites.
func (r *report) addRoles() {
	here, there := &r.Site, r.Remote
	if there == nil {
		return
	}
	for _, s := range []*siteState{here, there} {
		if s.Role == roleStopped {
			r.problem("%s accepts no writes: a switch is in progress, or its outcome is unknown", s)
		}
	}
	switch {
	case here.Lineage != "" && there.Lineage != "" && here.Lineage != there.Lineage:
		r.problem("the sites belong to different groups: keep the site with the valid messages, and set up the other one " +
			"again (docs/how-to/fail-over-to-another-site.md)")
	case here.Role == rolePrimary && there.Role == rolePrimary:
		low := here
		if there.Epoch < low.Epoch {
			low = there
		}
		r.problem("both sites are primaries: make %s, which has the lower epoch, the replica with lockstep site demote", low)
	case here.Role == roleReplica && there.Role == roleReplica:
		r.problem("no site is the primary: promote one with lockstep site promote")
	case there.Role == roleNone || here.Role == roleNone && there.Role != roleUnknown:
		r.problem("no site is a replica of the other: make one a replica with lockstep site demote")
	}
}

func (s *siteState) String() string { return "site " + cmp.Or(s.Name, "without a name") }

func named(s *pb.SiteState) string { return "site " + cmp.Or(s.GetName(), "without a name") }

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
