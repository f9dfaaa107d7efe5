// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package real

import (
	"context"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// fault is a fault during a switch.
type fault int

const (
	noFault fault = iota
	killReplica
	killPrimary
)

func (f fault) String() string {
	return [...]string{"no fault", "active of the replica", "active of the primary"}[f]
}

// clients are clients that use the sites in addition to a load.
type clients interface {
	// continued waits for a publish that succeeds after a time.
	continued(since time.Time)
	// finish stops the publishes, and waits until all messages are consumed.
	finish(reader *client.Client)
	// verify compares the stored messages with the responses.
	verify(reader *client.Client)
}

// Planned switches under load lose and duplicate no message, and keep the order, even if the active of a site is
// killed during the switch. The load uses the clients for Go and Python, and AMQP clients.
func TestSwitches(t *testing.T) {
	r, n := random(t), rounds(t, 20, 4)
	w := newWorld(t, nil, kept, work, left, right)
	l, ctx := newLoad(w)
	l.publish(ctx, kept, work)
	l.transactions(ctx)
	l.consume(ctx)
	others := []clients{newAMQPLoad(w)}
	if p := newPythonLoad(w); p != nil {
		others = append(others, p)
	}
	reader := w.client()
	l.acked(w.east, time.Time{})

	pauses := map[fault][]time.Duration{}
	for round := range n {
		from := w.east
		if round%2 == 1 {
			from = w.west
		}
		f := chooseFault(r, round)
		w.inSync()
		pass(t, time.Duration(r.IntN(1000))*time.Millisecond)
		pause := w.switchFrom(from, l, f, time.Duration(r.IntN(200))*time.Millisecond)
		t.Logf("round %d to %s: %v, pause %v", round+1, w.other(from).name, f, pause.Round(time.Millisecond))
		pauses[f] = append(pauses[f], pause)
		l.acksPermanent(reader)
		for _, o := range others {
			o.continued(time.Now())
		}
	}
	l.finish(true)
	for _, o := range others {
		o.finish(reader)
	}
	w.inSync()
	l.verify(reader)
	for _, o := range others {
		o.verify(reader)
	}
	w.equal()
	for f, all := range pauses {
		slices.Sort(all)
		t.Logf("%d switches, killed: %v: median pause %v, maximum %v", len(all), f,
			all[len(all)/2].Round(time.Millisecond), all[len(all)-1].Round(time.Millisecond))
	}
}

// chooseFault returns no fault in the first two rounds, and in half of the other rounds.
func chooseFault(r *rand.Rand, round int) fault {
	if f := r.IntN(4); round >= 2 && f < 2 {
		return []fault{killReplica, killPrimary}[f]
	}
	return noFault
}

// switchFrom switches to the other site, and kills a node after a delay. It returns the longest time without an
// acknowledgement.
func (w *world) switchFrom(from *site, l *load, f fault, after time.Duration) time.Duration {
	w.t.Helper()
	to := w.other(from)
	var victim *harness.Node
	switch f {
	case killReplica:
		victim, _ = w.active(w.t.Context(), to)
	case killPrimary:
		victim, _ = w.active(w.t.Context(), from)
	}
	require.True(w.t, f == noFault || victim != nil)
	began := time.Now()
	killed := make(chan error, 1)
	go func() {
		if victim == nil {
			killed <- nil
			return
		}
		timer := time.NewTimer(after)
		defer timer.Stop()
		<-timer.C
		killed <- victim.Kill()
	}()
	w.switchTo(to)
	l.acked(to, time.Now())
	ended := time.Now()
	require.NoError(w.t, <-killed)
	if victim != nil {
		require.NoError(w.t, victim.Start())
	}
	w.follows(from)
	return l.longestGap(began, ended)
}

// switchTo switches to a site. It retries a switch that fails while a node is replaced.
func (w *world) switchTo(to *site) {
	w.t.Helper()
	from := w.other(to)
	var failed []error
	defer func() {
		if n := len(failed); n > 0 {
			w.t.Logf("%d requests to switch failed, the first one with: %v", n, failed[0])
		}
	}()
	eventually(w.t, to.name+" is the primary", func(ctx context.Context) bool {
		if w.has(ctx, to, primary) {
			return true
		}
		n, state := w.active(ctx, from)
		if state.GetRole() != primary {
			return false
		}
		resp, err := service(n).SwitchSite(ctx, &pb.SwitchSiteRequest{To: to.name})
		if err != nil {
			failed = append(failed, err)
			return false
		}
		w.t.Logf("no site accepted writes for %v", resp.GetPause().AsDuration().Round(time.Millisecond))
		return true
	})
}
