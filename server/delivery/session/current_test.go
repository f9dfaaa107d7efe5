// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

// A standby can be in sync before its announcement is visible. In that case, a request that requires a feature waits
// for the announcement, and does not treat the standby as a node with an older release.
func TestRequireWaitsForAnnouncement(t *testing.T) {
	a := failover.NodeInfo{ID: uuid.New(), Name: "a", Address: "a:1", Features: failover.KnownFeatures()}
	b := failover.NodeInfo{ID: uuid.New(), Name: "b", Address: "b:1", Features: failover.KnownFeatures()}
	older := b
	older.Features, older.Version = "", "0.1.0"
	reported := func(n failover.NodeInfo) []failover.Live { return []failover.Live{{Node: n}} }
	for _, c := range []struct {
		name string
		// Announcements that are visible at first, and later.
		first, later []failover.Live
		end          bool // the session ends during the wait
		took         time.Duration
		want         error
		text         string
	}{
		{name: "reported", first: reported(b)},
		{name: "reported later", later: reported(b), took: time.Second},
		{
			name: "older release, reported later", later: reported(older), took: time.Second, want: apierror.ErrFeature,
			text: "runs 0.1.0",
		},
		{
			name: "not reported", took: failover.AnnounceWait, want: replication.ErrBlocked,
			text: b.ID.String(),
		},
		{name: "not reported, and the session ends", end: true, took: time.Second, want: replication.ErrBlocked},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := failover.Status{Live: c.first, Record: &failover.Record{
					Nodes: []failover.NodeInfo{a}, InSync: []failover.Member{{Node: a.ID}, {Node: b.ID}},
				}}
				changed, session := make(chan struct{}), &Session{ended: make(chan struct{})}
				current := NewCurrent(nil, func() failover.Status { return st },
					func() <-chan struct{} { return changed })
				start, done := time.Now(), make(chan error)
				go func() { done <- current.Require(session, failover.FeatureQueues) }()
				if c.took > 0 {
					<-time.After(time.Second)
					synctest.Wait()
					st.Live = c.later
					if c.end {
						close(session.ended)
					} else if c.later != nil {
						old := changed
						changed = make(chan struct{})
						close(old)
					}
				}
				err := <-done
				require.Equal(t, c.took, time.Since(start))
				require.ErrorIs(t, err, c.want)
				if c.text != "" {
					require.Contains(t, err.Error(), c.text)
				}
				if c.end {
					return
				}
				st.Live = nil // a feature that both nodes have supported is not checked again
				require.Equal(t, c.want == nil, current.Require(session, failover.FeatureQueues) == nil)
			})
		})
	}
}
