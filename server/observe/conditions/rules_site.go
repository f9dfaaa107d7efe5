// SPDX-License-Identifier: Apache-2.0

package conditions

import (
	"time"

	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/units"
)

// MaxSiteLag is the maximum lag of a connected replica that is not reported.
const MaxSiteLag = 30 * time.Second

// siteFault is the reason why a replica cannot continue. It is stored until the replica is connected.
type siteFault struct {
	kind Kind
	err  error
}

func (r *Rules) site(f *findings, s *Site) {
	if s == nil || !s.Active {
		r.replica = siteFault{}
		return
	}
	switch s.Role {
	case queue.SiteReplica:
		r.siteReplica(f, s)
		return
	case queue.SiteStopped:
		f.pair(!s.Superseded, SiteStopped, "epoch %d%s", s.Epoch, because(s.Err))
	default:
		f.sitePrimary(s)
	}
	r.replica = siteFault{}
	if s.Superseded && s.Remote != nil {
		f.pair(true, SupersededBySite, "site %s has epoch %d, this site has epoch %d%s", s.Remote.Name, s.Remote.Epoch,
			s.Epoch, because(s.Err))
	}
}

func (r *Rules) siteReplica(f *findings, s *Site) {
	p := &s.Replication
	switch {
	case p.Connected:
		r.replica = siteFault{}
		f.pair(p.Lag > MaxSiteLag, SiteLag, "%s behind: %s records, %s", p.Lag.Round(time.Second),
			units.Count(p.LagRecords), units.Bytes(p.LagBytes))
		return
	case s.Behind:
		r.replica = siteFault{SiteBehind, s.Err}
	case s.Diverged:
		r.replica = siteFault{SiteDiverged, s.Err}
	case r.replica.kind == "" || r.replica.kind == SiteUnreachable && s.Err != nil:
		r.replica = siteFault{SiteUnreachable, s.Err}
	}
	details := "not connected to the primary"
	if err := r.replica.err; err != nil {
		details = err.Error()
	}
	f.pair(true, r.replica.kind, "%s", details)
}

func (f *findings) sitePrimary(s *Site) {
	f.pair(s.WritesHeld, SiteLag, "writes are refused: the replica lacks transactions of %s, site.max-lag is %s",
		s.WriteLag.Round(100*time.Millisecond), s.MaxLag)
	if s.Err != nil {
		f.pair(s.Role == queue.SitePrimary, SiteUnreachable, "%v", s.Err)
		return // the state of the other site may have changed
	}
	other := s.Remote
	if other == nil || s.Superseded || s.Role == queue.SiteNone && other.Role == queue.SiteNone {
		return
	}
	f.pair(other.Role == queue.SitePrimary || other.Role == queue.SiteNone, TwoPrimaries,
		"this site: %s, epoch %d; site %s: %s, epoch %d", s.Role, s.Epoch, other.Name, other.Role, other.Epoch)
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}
