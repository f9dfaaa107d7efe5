// SPDX-License-Identifier: Apache-2.0

package site

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// Only transactions with an effect are counted, even if the log begins after the stop of the site.
func TestEffects(t *testing.T) {
	const (
		write = iota
		envelope
		start
		stop
		resume
		promote
		follow
		cancel
	)
	actions := map[int]txn.SiteAction{
		start: txn.SiteStart, stop: txn.SiteStop, resume: txn.SiteResume, promote: txn.SitePromote, follow: txn.SiteFollow,
		cancel: txn.SiteCancel,
	}
	for name, c := range map[string]struct {
		role    queue.SiteRole // role at the end of the log
		records []int
		n, last uint64
	}{
		"without sites":                    {queue.SiteNone, []int{write, write}, 2, 2},
		"primary":                          {queue.SitePrimary, []int{write, write}, 2, 2},
		"started":                          {queue.SitePrimary, []int{write, start, write}, 2, 3},
		"stopped before":                   {queue.SiteStopped, []int{write, write}, 0, 0},
		"stopped":                          {queue.SiteStopped, []int{write, stop, write}, 1, 1},
		"resumed, stopped before":          {queue.SitePrimary, []int{write, resume, write}, 1, 3},
		"stopped and resumed":              {queue.SitePrimary, []int{write, stop, write, resume, write}, 2, 5},
		"promoted":                         {queue.SitePrimary, []int{envelope, write, promote, write}, 1, 4},
		"promoted and stopped":             {queue.SiteStopped, []int{envelope, promote, write, stop, write, envelope}, 1, 3},
		"replica, takeover canceled":       {queue.SiteReplica, []int{follow, envelope, cancel, write}, 0, 0},
		"replica":                          {queue.SiteReplica, []int{stop, write, follow, envelope, write}, 0, 0},
		"rejected, then promoted to write": {queue.SitePrimary, []int{write, write, promote}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			var e effects
			for i, kind := range c.records {
				payload, err := txn.Build(time.Unix(1, 0), func(b *txn.Builder) {
					if action, is := actions[kind]; is {
						b.Site(change(action))
						return
					}
					b.CreateQueue("q", txn.Config{})
				})
				require.NoError(t, err)
				if kind == envelope {
					payload = txn.AppendSite(nil, &txn.Site{Epoch: 1, Logical: 1}, payload)
				}
				e.add(&wal.Frame{Kind: wal.KindTxn, Payload: payload, Pos: lsn.Position{Term: 1, LSN: uint64(i + 1)}})
			}
			n, last := e.end(c.role)
			require.Equal(t, c.n, n)
			require.Equal(t, c.last, last.LSN)
		})
	}
}

func change(action txn.SiteAction) txn.SiteChange {
	c := txn.SiteChange{Action: action, Expected: 1}
	switch action {
	case txn.SiteStart:
		c.Expected, c.Lineage = 0, uuid.UUID{1}
	case txn.SitePromote:
		c.Epoch = 2
	case txn.SiteFollow:
		c.Expected, c.Lineage, c.Epoch = 0, uuid.UUID{1}, 2
	default:
	}
	return c
}
