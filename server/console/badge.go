// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// badgeAge is how long the counts of the badge are reused: some pages are made four times a second.
const badgeAge = time.Second

// alarmCounts are the numbers of conditions by severity. A node that does not answer counts as critical.
type alarmCounts struct{ Critical, Warnings, Infos int }

// badge keeps the last counts.
type badge struct {
	mu     sync.Mutex // guards all below
	at     time.Time
	counts alarmCounts
}

// countAlarms counts the conditions that the nodes report.
func countAlarms(nodes []*nodeView) (c alarmCounts) {
	for _, condition := range gather(nodes) {
		switch condition.GetSeverity() {
		case pb.Severity_SEVERITY_CRITICAL:
			c.Critical++
		case pb.Severity_SEVERITY_WARNING:
			c.Warnings++
		default:
			c.Infos++
		}
	}
	for _, n := range nodes {
		if n.Status == nil {
			c.Critical++
		}
	}
	return c
}

// alarms returns the counts; nil for a session that may not see the status of the node.
func (v *View) alarms(ctx context.Context) *alarmCounts {
	if _, err := v.Status(ctx); err != nil {
		return nil
	}
	b, now := &v.server.badge, v.server.o.Now()
	b.mu.Lock()
	defer b.mu.Unlock()
	if age := now.Sub(b.at); age < 0 || age >= badgeAge {
		nodes, err := v.nodes(ctx)
		if err != nil {
			return nil
		}
		b.at, b.counts = now, countAlarms(nodes)
	}
	counts := b.counts
	return &counts
}

// frame adds to a layout the parts that depend on the session: the menu and the badge.
func (v *View) frame(ctx context.Context, l *Layout) {
	may, err := v.rights(ctx)
	if err != nil {
		may = nil
	}
	l.Menu, l.Alarms = v.server.offered(may), v.alarms(ctx)
}

// framed is frame for a page that shows an error only.
func (s *Server) framed(r *http.Request, one *session, l *Layout) {
	if one == nil {
		return
	}
	key, leave := s.caller(r)
	defer leave()
	ctx, cancel := context.WithTimeout(r.Context(), loadTimeout)
	defer cancel()
	s.view(one, s.callerOf(r), key, r.URL.Query(), nil).frame(ctx, l)
}
