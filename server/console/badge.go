// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"net/http"
	"sync"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// badgeAge is the time for which the counts of the badge are cached.
const badgeAge = time.Second

// alarmCounts contains the number of conditions by severity. A node that does not respond counts as critical.
type alarmCounts struct{ Critical, Warnings, Infos int }

type badge struct {
	mu     sync.Mutex // guards the fields below
	at     time.Time
	counts alarmCounts
}

func countAlarms(nodes []*nodeView) (c alarmCounts) {
	for _, condition := range mergeConditions(nodes) {
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

// alarms returns the counts for the badge. It returns nil if the session cannot read the status of the node.
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

// frame adds the menu and the badge to a layout. Both depend on the session.
func (v *View) frame(ctx context.Context, l *Layout) {
	may, err := v.rights(ctx)
	if err != nil {
		may = nil
	}
	st, err := v.Status(ctx)
	if err != nil {
		st = nil
	}
	l.Menu, l.Alarms = v.server.offered(may, st), v.alarms(ctx)
}

func (s *Server) framed(r *http.Request, one *session, l *Layout) {
	if one == nil {
		return
	}
	ctx, v, end := s.viewOf(r.Context(), r, one, nil, loadTimeout)
	defer end()
	v.frame(ctx, l)
}
