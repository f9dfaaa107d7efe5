// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package real

import (
	"context"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// phase is the state of the load and of the link to the replica before the primary is lost.
type phase int

const (
	linkGood phase = iota
	linkCut
	linkSlow
	noLoad
	phases
)

// slowBandwidth is less than the 8 MB/s that large bodies require.
const slowBandwidth = 500 << 10

func (f phase) String() string {
	return [...]string{"link good", "link cut", "link slow", "no load"}[f]
}

// After the loss of the primary, a promotion loses only the last transactions. Of those that were acknowledged before
// the replica received its last status, it loses at most the reported number. The old primary follows if nothing is
// lost. Otherwise it stays stopped, and its file of lost transactions contains all publishes that were acknowledged
// and lost.
func TestPromotionsAfterKills(t *testing.T) {
	r, n := random(t), rounds(t, 10, 2)
	w := newWorld(t, nil, kept)
	l, ctx := newLoad(w)
	l.publish(ctx, kept)
	reader := w.client()
	from := w.east
	var lost, followed int
	for round := range n {
		to := w.other(from)
		l.acked(from, time.Now())
		w.inSync()
		w.follows(to)
		watch := w.watchReplication(to)
		f := phase(r.IntN(int(phases)))
		w.prepareLoss(from, l, f, r)
		p := w.promoteAfterKill(to, watch)
		l.paused.Store(false)
		l.bodyBytes.Store(smallBody)
		from.heal()
		from.shape(linkBandwidth)
		l.acked(to, time.Now())
		gone, missing := l.checkPromotion(reader, from, p)
		if f == noLoad {
			require.Zero(t, missing)
		}
		rejoined, file := w.restart(from, missing)
		if missing > 0 {
			requireSaved(t, file, gone)
		}
		t.Logf("round %d: %s lost, %v: %d transactions missing, lag %d records %v before the kill, %d at the promotion; "+
			"followed: %v", round+1, from.name, f, missing, p.last.GetLagRecords(),
			p.killed.Sub(p.last.GetHeardAt().AsTime()).Round(time.Millisecond),
			p.resp.GetReplication().GetLagRecords(), rejoined)
		lost += missing
		if rejoined {
			followed++
		} else {
			w.replace(from)
		}
		from = to
	}
	l.finish(false)
	w.inSync()
	l.checkStored(reader)
	w.equal()
	t.Logf("%d promotions: %d acknowledged transactions lost, the old primary followed %d times", n, lost, followed)
}

// prepareLoss brings the load and the link into a phase, before the primary is lost.
func (w *world) prepareLoss(from *site, l *load, f phase, r *rand.Rand) {
	w.t.Helper()
	if f == linkSlow {
		from.shape(slowBandwidth)
		l.bodyBytes.Store(largeBody)
	}
	pass(w.t, time.Duration(200+r.IntN(1500))*time.Millisecond)
	switch f {
	case linkCut:
		from.cut()
		pass(w.t, time.Duration(r.IntN(300))*time.Millisecond)
	case noLoad:
		l.paused.Store(true)
		eventually(w.t, "a replica without a lag", func(ctx context.Context) bool {
			_, primary := w.active(ctx, from)
			_, r := w.replication(ctx, w.other(from))
			return l.idle() && primary.GetApplied().GetLsn() == r.GetPrimaryEnd().GetLsn() && r.GetLagRecords() == 0
		})
	}
}

// replicationWatch reads the status of a replica repeatedly.
type replicationWatch struct {
	stop func()
	mu   sync.Mutex // guards last
	last *pb.SiteReplication
}

func (w *world) watchReplication(s *site) *replicationWatch {
	ctx, cancel := context.WithCancel(w.t.Context())
	watch := &replicationWatch{}
	var ended sync.WaitGroup
	ended.Go(func() {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		for {
			if _, r := w.replication(ctx, s); r.GetHeardAt() != nil {
				watch.mu.Lock()
				watch.last = r
				watch.mu.Unlock()
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
		}
	})
	watch.stop = func() {
		cancel()
		ended.Wait()
	}
	w.t.Cleanup(watch.stop)
	return watch
}

// promotion is an unplanned promotion.
type promotion struct {
	old    *pb.SiteState       // of the old primary, before it was killed
	last   *pb.SiteReplication // last status before the kill
	killed time.Time
	resp   *pb.PromoteSiteResponse
}

// promoteAfterKill kills both nodes of the primary, and promotes its replica.
func (w *world) promoteAfterKill(to *site, watch *replicationWatch) (p promotion) {
	w.t.Helper()
	from := w.other(to)
	_, p.old = w.active(w.t.Context(), from)
	require.Equal(w.t, primary, p.old.GetRole())
	watch.mu.Lock()
	p.last = watch.last
	watch.mu.Unlock()
	require.NotNil(w.t, p.last)
	p.killed = time.Now()
	var both sync.WaitGroup
	for _, n := range from.pair.Nodes {
		both.Go(func() {
			if err := n.Kill(); err != nil {
				w.t.Error(err)
			}
		})
	}
	both.Wait()
	watch.stop()
	n, _ := w.active(w.t.Context(), to)
	require.NotNil(w.t, n)
	var err error
	p.resp, err = service(n).PromoteSite(limited(w.t), &pb.PromoteSiteRequest{Reason: "the primary was killed"})
	require.NoError(w.t, err)
	return p
}

// checkPromotion compares the receipts of the old primary with the status and the content of the new primary. It
// returns the acknowledged publishes that are lost, and the number of their transactions. It removes these publishes
// from the load.
func (l *load) checkPromotion(c *client.Client, from *site, p promotion) (gone map[int]bool, transactions int) {
	t := l.t
	t.Helper()
	// Receipts contain logical numbers.
	offset := p.old.GetLogicalOffset()
	end := p.resp.GetOrigin().GetLsn() + offset
	all := l.snapshot()
	stored := map[int]uint64{}
	for _, m := range content(t, c, kept, false) {
		stored[m.n] = m.sequence
	}
	lost := map[uint64]time.Time{}
	lostPublishes := map[int]bool{}
	for _, a := range all {
		sequence, is := stored[a.n]
		gone := from.owns(a.receipt.Address) && a.receipt.LSN > end
		require.Equal(t, !gone, is, "publish %d with number %d; the last number of %s is %d", a.n, a.receipt.LSN,
			from.name, end)
		if gone {
			lost[a.receipt.LSN], lostPublishes[a.n] = a.at, true
		} else {
			require.Equal(t, a.receipt.Sequence, sequence, "publish %d", a.n)
		}
	}
	for _, s := range []*pb.SiteReplication{p.last, p.resp.GetReplication()} {
		before := 0
		for number, at := range lost {
			if at.Before(s.GetHeardAt().AsTime()) {
				before++
				require.LessOrEqual(t, number-offset, s.GetPrimaryEnd().GetLsn())
			}
		}
		require.LessOrEqual(t, uint64(before), s.GetLagRecords(),
			"lost transactions that were acknowledged before the status was received: %v", s)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.acks = slices.DeleteFunc(l.acks, func(a ack) bool { return lostPublishes[a.n] })
	return lostPublishes, len(lost)
}

// requireSaved requires that the file of a former primary contains these publishes.
func requireSaved(t *testing.T, file string, publishes map[int]bool) {
	t.Helper()
	saved := map[int]bool{}
	info, err := wal.InspectFile(vfs.OS(), file, func(it wal.Item) error {
		if it.Seal || it.Frame.Kind != wal.KindTxn {
			return nil
		}
		var r txn.Reader
		if err := r.Reset(it.Frame.Payload); err != nil {
			return err
		}
		for range r.Ops() {
			op, err := r.Next()
			if err != nil {
				return err
			}
			for rec := range op.Records {
				m, err := txn.DecodeMessage(rec)
				if err != nil {
					return err
				}
				n, err := number(m.Body)
				if err != nil {
					return err
				}
				saved[n] = true
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.NoError(t, info.Stop)
	for n := range publishes {
		require.True(t, saved[n], "publish %d was lost, but is not in %s, which contains %d", n, file, len(saved))
	}
}

// checkStored verifies that exactly the acknowledged publishes are stored, in their order.
func (l *load) checkStored(c *client.Client) {
	l.t.Helper()
	var want []stored
	for _, a := range l.acks {
		want = append(want, stored{a.receipt.Sequence, a.n})
	}
	requireSame(l.t, kept, want, content(l.t, c, kept, false))
}

// restart starts the old primary. It reports whether the site follows the new primary. Otherwise the site stays
// stopped, and restart returns the file with the lost transactions of the site.
func (w *world) restart(s *site, missing int) (follows bool, file string) {
	w.t.Helper()
	for _, n := range s.pair.Nodes {
		require.NoError(w.t, n.Start())
	}
	eventually(w.t, s.name+" ends as the primary", func(ctx context.Context) bool {
		n, state := w.active(ctx, s)
		if state.GetRole() == replica {
			follows = true
			return true
		}
		if state.GetRole() != stopped {
			return false
		}
		_, err := service(n).DemoteSite(ctx, &pb.DemoteSiteRequest{})
		file = metadataOf(err)["lost_file"]
		return reasonOf(err) == pb.ErrorReason_ERROR_REASON_SITE_DIVERGED
	})
	require.False(w.t, follows && missing > 0, "%s follows, although it has transactions that were lost", s.name)
	return follows, file
}

// replace replaces the data of a site with a snapshot of the other site, so that the site is a replica.
func (w *world) replace(s *site) {
	w.t.Helper()
	require.NoError(w.t, s.pair.KillAll())
	dir := w.nextDir(s)
	require.NoError(w.t, os.MkdirAll(filepath.Join(dir, "a"), 0o750))
	lockstep(w.t, "site", "seed", "--from", w.other(s).addresses(), "--data-dir", filepath.Join(dir, "a", "data"),
		"--site-name", s.name, "--site-token-file", w.token)
	w.startIn(s, dir)
}

// lockstep runs a lockstep command, which must succeed.
func lockstep(t *testing.T, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(limited(t), binary, args...)
	cmd.Env = harness.Environment()
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%v: %s", args, out)
}
