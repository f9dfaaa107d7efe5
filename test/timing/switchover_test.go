// SPDX-License-Identifier: Apache-2.0

//go:build unix

package timing

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// Switchovers under load, in both directions, succeed at the first request. No publish fails.
func TestSwitchover(t *testing.T) {
	run(t, func(t *testing.T, p *pair) {
		w, l := p.work(), p.load()
		for range 4 {
			active, standby := p.inSync()
			l.more()
			before, from := p.fence(), time.Now()
			r, err := active.Admin().Switchover(t.Context(), &pb.SwitchoverRequest{})
			require.NoError(t, err)
			to := time.Now()
			require.Equal(t, standby.Ready.Advertise, r.GetActiveAddress())
			require.Equal(t, before.Term+1, p.fence().Term)
			l.more()
			t.Logf("pause %v, call %v, clients %v", r.GetPause().AsDuration(), to.Sub(from), l.pause(from, to))
			require.LessOrEqual(t, r.GetPause().AsDuration(), 15*time.Millisecond)
			require.LessOrEqual(t, l.pause(from, to), 20*time.Millisecond, "publish outage")
		}
		l.end()
		p.verify(w)
		for _, publish := range w.History().Publishes {
			require.Equal(t, historycheck.Acked, publish.Outcome, publish.Error)
		}
	})
}
