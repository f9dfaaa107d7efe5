// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"time"

	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/queue"
)

func siteFamilies() []family {
	replica := func(name, kind, help string, read func(p *conditions.SiteReplication) float64) family {
		return family{Metric{Name: name, Type: kind, Help: help, When: whenReplica}, func(s *snapshot, put emitFunc) {
			if p := s.replication(); p != nil {
				put(read(p))
			}
		}}
	}
	lag := func(name, help string, read func(p *conditions.SiteReplication) float64) family {
		return gaugeOf(name, whenHeard, help, nil, func(s *snapshot, put emitFunc) {
			if p := s.replication(); p != nil && !p.HeardAt.IsZero() {
				put(read(p))
			}
		})
	}
	return []family{
		gaugeOf("site_role", whenSites, "1 for the current role of the site; none before the first replica has connected.",
			[]string{"role"}, func(s *snapshot, put emitFunc) {
				for r := queue.SiteNone; s.node.Site != nil && r <= queue.SiteStopped; r++ {
					put(boolValue(r == s.node.Site.Role), r.String())
				}
			}),
		gaugeOf("site_epoch", whenSites, "Epoch of the site, which each promotion increments; 0 with the role none.", nil,
			func(s *snapshot, put emitFunc) {
				if s.node.Site != nil {
					put(float64(s.node.Site.Epoch))
				}
			}),
		replica("site_connected", Gauge, "1 while the replica receives the log of the primary site.",
			func(p *conditions.SiteReplication) float64 { return boolValue(p.Connected) }),
		lag("site_lag_records", "Log records of the primary site that the replica lacks, as last known.",
			func(p *conditions.SiteReplication) float64 { return float64(p.LagRecords) }),
		lag("site_lag_bytes", "Approximate size of the log records of the primary site that the replica lacks, as last "+
			"known.",
			func(p *conditions.SiteReplication) float64 { return float64(p.LagBytes) }),
		lag("site_lag_seconds", "Age of the oldest log record that the replica lacks, plus the time since the last contact "+
			"with the primary site while the replica is not connected.", siteLag),
		replica("site_received_bytes_total", Counter, "Compressed log bytes received from the primary site since the start "+
			"of the node.", func(p *conditions.SiteReplication) float64 { return float64(p.ReceivedBytes) }),
		replica("site_connections_total", Counter, "Connections to the primary site since the start of the node.",
			func(p *conditions.SiteReplication) float64 { return float64(p.Connections) }),
	}
}

// replication returns the state of the replication from the primary site. It returns nil unless this node is the
// active of a replica.
func (s *snapshot) replication() *conditions.SiteReplication {
	if st := s.node.Site; st != nil && st.Active && st.Role == queue.SiteReplica {
		return &st.Replication
	}
	return nil
}

// siteLag returns the age, in seconds, of the oldest transaction that a promotion may lose.
func siteLag(p *conditions.SiteReplication) float64 {
	lag := p.Lag
	if !p.Connected {
		lag += max(time.Since(p.HeardAt), 0)
	}
	return lag.Seconds()
}
