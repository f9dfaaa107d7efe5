// SPDX-License-Identifier: Apache-2.0

package replication_test

import (
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/identity"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

var (
	seeds     = flag.Int("seeds", 8, "number of random histories of TestRandomHistories")
	firstSeed = flag.Uint64("seed", 1, "first seed of TestRandomHistories")
)

// TestRandomHistories runs random crashes, cuts, resets, promotions, switchovers and restores from older disk images
// under load. The driver replaces failover and obeys its invariants. Clients retry with the same sequence until
// success. At the end no acknowledged message is missing or duplicated, order is kept, and both stores are equal.
func TestRandomHistories(t *testing.T) {
	refused, rollBack := 0, 0
	for i := range *seeds {
		seed := *firstSeed + uint64(i)
		simulated(t, fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			h := newHistory(t, seed)
			h.run(25)
			refused, rollBack = refused+h.refused, rollBack+h.rollBacks
		})
	}
	t.Logf("%d nodes were restored from older images, and %d of them were refused as the active", rollBack, refused)
	if *seeds >= 8 && !t.Failed() {
		require.Positive(t, refused, "no image was older than the committed position of the other node")
	}
}

// clients is the number of concurrent clients.
const clients = 3

// ack is an acknowledgement received by a client.
type ack struct {
	lsn, term uint64
	client    int
	seq       uint64
}

// history is one random execution.
type history struct {
	t      *testing.T
	w      *world
	rng    *rand.Rand
	nodes  [2]*node
	steps  []string
	active int
	// inSync: the standby is a member of in_sync; the active always is.
	inSync       bool
	config, term uint64
	// images are older states of the nodes' disks.
	images             [2][]*memfs.FS
	rollBacks, refused int

	// current is the primary used by the clients.
	current atomic.Pointer[endpoint]
	stop    atomic.Bool
	clients sync.WaitGroup

	mu   sync.Mutex
	acks []ack
}

// endpoint is one activation as seen by clients. mu orders crashes and acknowledgements: every acknowledgement was
// received before the disk was cloned.
type endpoint struct {
	primary *replication.Primary
	term    uint64
	queue   uint64
	mu      sync.RWMutex
	dead    bool
}

// slowLog returns a hook that delays log writes and syncs by up to 300 µs of simulated time.
func slowLog(seed int64) func(faultfs.Op) error {
	var mu sync.Mutex
	rng := rand.New(rand.NewSource(seed))
	return func(op faultfs.Op) error {
		if (op.Kind == faultfs.OpWrite || op.Kind == faultfs.OpSync) && strings.Contains(op.Name, "/log/") {
			mu.Lock()
			took := time.Duration(rng.Int63n(int64(300 * time.Microsecond)))
			mu.Unlock()
			pause(took)
		}
		return nil
	}
}

func newHistory(t *testing.T, seed uint64) *history {
	h := &history{t: t, w: newWorld(t), rng: rand.New(rand.NewSource(int64(seed))), config: 1, term: 1}
	tune := func(n *node) {
		n.options.SegmentBytes, n.options.LogKeepBytes = 64<<10, int64(h.rng.Intn(2)*1<<20+1)
		n.options.PageSize = 2048 << h.rng.Intn(3)
		n.tuning = replication.Tuning{
			Heartbeat: 10 * time.Millisecond, BehindRetry: 10 * time.Millisecond,
			WindowBytes: 16 << 10 << h.rng.Intn(4), TailBytes: 16 << 10, BatchBytes: 4 << 10,
			SnapshotChunkBytes: 8 << 10,
		}
		n.hook = slowLog(h.rng.Int63())
	}
	h.nodes = [2]*node{h.w.node("a", tune), h.w.node("b", tune)}
	t.Cleanup(func() {
		h.stop.Store(true)
		h.clients.Wait()
		if t.Failed() {
			t.Logf("steps of seed %d: %v", seed, h.steps)
		}
	})
	return h
}

func (h *history) lead() *node    { return h.nodes[h.active] }
func (h *history) standby() *node { return h.nodes[1-h.active] }

// serve publishes the current active to the clients.
func (h *history) serve() {
	n := h.lead()
	h.current.Store(&endpoint{primary: n.primary, term: h.term, queue: h.nodes[0].queueID})
}

func (h *history) run(steps int) {
	a, b := h.nodes[0], h.nodes[1]
	a.lead(h.config, h.term, nil)
	a.createQueue()
	h.serve()
	b.follow(a)
	for c := range clients {
		h.clients.Go(func() { h.client(c) })
	}
	for range steps {
		h.step()
	}
	h.ensureSync()
	h.stop.Store(true)
	h.clients.Wait()
	requireEqual(a, b)
	h.check(a)
	h.check(b)
}

// client publishes its sequence numbers in order and retries each until success.
func (h *history) client(c int) {
	// The rate is limited: an active without a standby could commit faster than a standby catches up through a small
	// window.
	pace := time.NewTicker(200 * time.Microsecond)
	defer pace.Stop()
	for seq := uint64(1); !h.stop.Load(); seq++ {
		<-pace.C
		body := binary.LittleEndian.AppendUint64([]byte{byte(c)}, seq)
		for !h.publish(c, seq, body) {
			if h.stop.Load() {
				return
			}
			pause(time.Millisecond)
		}
	}
}

func (h *history) publish(c int, seq uint64, body []byte) bool {
	e := h.current.Load()
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	r, err := e.primary.Commit(ctx, payload(e.queue, fmt.Sprint("client", c), seq, body))
	switch {
	case errors.Is(err, replication.ErrNotActive):
		<-ctx.Done() // until another node is active
		return false
	case err != nil:
		return false
	}
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.dead {
		return false // the connection was lost
	}
	if rerr := r.Err(); rerr != nil {
		h.t.Errorf("client %d seq %d: %v", c, seq, rerr)
		return true
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.acks = append(h.acks, ack{lsn: r.LSN, term: e.term, client: c, seq: seq})
	return true
}

func (h *history) step() {
	actions := []struct {
		name string
		do   func()
	}{
		{"crash-active", h.crashActive},
		{"crash-standby", h.crashStandby},
		{"switchover", h.switchover},
		{"reset", func() { h.w.net.Reset(h.lead().name) }},
		{"cut", h.cut},
		{"sync", h.ensureSync},
		{"sync", h.ensureSync},
		{"checkpoint", h.checkpoint},
		{"drop-standby", h.drop},
		{"image", h.takeImage},
		{"roll-back", h.rollBack},
	}
	a := actions[h.rng.Intn(len(actions))]
	h.steps = append(h.steps, a.name)
	a.do()
	h.progress(uint64(h.rng.Intn(30)))
}

// progress waits until the active has logged the given number of records, so that steps happen under load.
func (h *history) progress(records uint64) {
	n := h.lead()
	at := n.store.End().LSN
	require.Eventually(h.t, func() bool { return n.store.End().LSN >= at+records || h.blocked() }, waitLimit,
		100*time.Microsecond)
}

// blocked reports whether the active waits for a disconnected standby. Nothing advances until the next step.
func (h *history) blocked() bool {
	st := h.lead().primary.Status()
	return st.Config.RequireStandby && (st.Standby == nil || !st.Standby.Required)
}

// ensureSync adds the standby to in_sync as failover does (INV-3).
func (h *history) ensureSync() {
	h.w.net.Heal(h.nodes[0].name)
	h.w.net.Heal(h.nodes[1].name)
	if h.inSync {
		if !h.blocked() {
			return
		}
		h.drop()
	}
	n, s := h.lead(), h.standby()
	primary, follower := n.primary, s.follower
	var member replication.Member
	var state string // last state, for the failure message
	caughtUp := func() bool {
		st := primary.Status()
		state = fmt.Sprintf("%+v; standby %+v; follower %+v", st, st.Standby, follower.Status())
		if st.Standby == nil || !st.Standby.CaughtUp {
			return false
		}
		member = st.Standby.Member
		return member == s.member()
	}
	for until := time.Now().Add(waitLimit); !caughtUp(); {
		require.True(h.t, time.Now().Before(until), "%s does not catch up with %s: %s; events %+v", s.name, n.name,
			state, s.seen())
		time.Sleep(time.Millisecond) //nolint:forbidigo // a poll
	}
	n.clearEvents()
	h.config++
	h.configure(replication.PrimaryConfig{Config: h.config, Serve: true, RequireStandby: true, Standby: member})
	deadline := time.Now().Add(waitLimit)
	for {
		require.True(h.t, time.Now().Before(deadline), "not synced")
		if h.saw(func(e replication.Event) bool { _, ok := e.(replication.StandbySynced); return ok }) {
			h.config++
			h.configure(replication.PrimaryConfig{Config: h.config, Serve: true, RequireStandby: true, Standby: member})
			h.inSync = true
			return
		}
		if h.saw(func(e replication.Event) bool { _, ok := e.(replication.StandbyLost); return ok }) {
			h.drop()
			h.ensureSync()
			return
		}
		time.Sleep(time.Millisecond) //nolint:forbidigo // a poll
	}
}

func (h *history) saw(fits func(replication.Event) bool) bool {
	for _, e := range h.lead().seen() {
		if fits(e) {
			return true
		}
	}
	return false
}

func (h *history) configure(cfg replication.PrimaryConfig) {
	n := h.lead()
	n.primary.Configure(cfg)
	require.NoError(h.t, n.store.SetFence(identity.Fence{Config: cfg.Config, Term: h.term}))
}

// drop removes the standby from in_sync: first from the record, then from the requirement (INV-3).
func (h *history) drop() {
	h.inSync = false
	h.config++
	h.configure(replication.PrimaryConfig{Config: h.config, Serve: true})
}

// crash discards unsynced data of a node's disk and reopens the store.
func (h *history) crash(n *node) {
	n.close()
	e := h.current.Load()
	if n == h.lead() {
		e.mu.Lock()
		e.dead = true
	}
	disk := n.disk.CrashClone(h.rng)
	if n == h.lead() {
		e.mu.Unlock()
	}
	n.stop()
	_ = n.store.Close()
	n.disk = disk
	n.open()
	n.listen()
	n.clearEvents()
}

func (h *history) crashActive() {
	n, s := h.lead(), h.standby()
	if !h.inSync || h.rng.Intn(4) == 0 { // it returns as the active, with or without its previous requirement
		var required *node
		if h.inSync {
			required = s
		}
		h.crash(n)
		h.w.net.Heal(n.name)
		h.config++
		h.term++
		n.lead(h.config, h.term, required)
		h.serve()
		return
	}
	h.crash(n)
	h.w.net.Heal(n.name)
	h.promote()
}

// promote makes the standby, a member of in_sync, the active (INV-4).
func (h *history) promote() {
	n, s := h.lead(), h.standby()
	s.stop()
	require.NoError(h.t, s.store.SetFence(identity.Fence{Config: h.config, Term: h.term + 1}))
	h.config++
	h.term++
	h.active, h.inSync = 1-h.active, false
	s.lead(h.config, h.term, nil)
	h.serve()
	n.follow(s)
}

func (h *history) crashStandby() {
	n, s := h.lead(), h.standby()
	h.w.net.Cut(n.name) // messages in flight were durable before the crash
	h.crash(s)
	if h.rng.Intn(2) == 0 {
		h.drop()
	}
	h.w.net.Reset(n.name)
	h.w.net.Heal(n.name)
	s.follow(n)
}

func (h *history) cut() {
	h.w.net.Cut(h.lead().name)
	if h.rng.Intn(2) == 0 {
		h.drop()
	}
	if h.rng.Intn(2) == 0 {
		h.w.net.Heal(h.lead().name)
	}
}

func (h *history) checkpoint() {
	_, err := h.lead().store.Checkpoint(h.t.Context())
	require.NoError(h.t, err)
}

// switchover hands over while both nodes are running.
func (h *history) switchover() {
	h.ensureSync()
	n := h.lead()
	ctx, cancel := context.WithTimeout(h.t.Context(), waitLimit)
	defer cancel()
	end, err := n.primary.Drain(ctx)
	require.NoError(h.t, err)
	require.GreaterOrEqual(h.t, h.standby().store.Applied().LSN, end.LSN)
	n.stop()
	h.promote()
}

// takeImage saves the state of a node's disk, like a snapshot of its machine.
func (h *history) takeImage() {
	i := h.rng.Intn(2)
	h.images[i] = append(h.images[i], h.nodes[i].disk.CrashClone(h.rng))
}

// rollBack stops both nodes and restarts one with an older image of its disk. That node takes the role, as the cluster
// record would decide. If it lacks records that the other node knows to be committed, it is refused and the other
// node leads.
func (h *history) rollBack() {
	i := h.rng.Intn(2)
	if len(h.images[i]) == 0 {
		h.takeImage()
		return
	}
	h.ensureSync()
	victim, other := h.nodes[i], h.nodes[1-i]
	h.quiesce(other)
	if h.rng.Intn(2) == 0 {
		other.rollBack(other.disk.CrashClone(h.rng))
	}
	image := h.images[i][h.rng.Intn(len(h.images[i]))]
	if h.rng.Intn(4) == 0 {
		image = victim.disk // the current state
	}
	victim.rollBack(image.CrashClone(nil))
	h.w.net.Heal(victim.name)
	h.w.net.Heal(other.name)
	h.rollBacks++

	committed, ok := other.store.PositionOf(other.store.Committed())
	require.True(h.t, ok)
	at, has := victim.store.PositionOf(committed.LSN)
	lacks := committed.LSN > victim.store.End().LSN || has && at != committed
	end := other.store.End()
	h.config++
	h.term++
	h.active, h.inSync = i, true
	victim.lead(h.config, h.term, other)
	old := h.rng.Intn(3) == 0
	other.clearEvents()
	if old {
		other.followVia(oldActive{h.w.dialer()}, victim.address)
	} else {
		other.follow(victim)
	}
	h.steps = append(h.steps, fmt.Sprintf("%s:lacks=%t,old=%t", victim.name, lacks, old))
	if !lacks {
		h.serve()
		return
	}
	h.refused++
	await(other, lost(replication.LostBehind))
	require.Equal(h.t, end, other.store.End(), "nothing is truncated")
	victim.stop()
	h.promote()
}

// quiesce stops further acknowledgements and waits until the node knows all acknowledged records to be committed. The
// test cannot check records that a node did not know to be committed when it stopped.
func (h *history) quiesce(n *node) {
	e := h.current.Load()
	e.mu.Lock()
	e.dead = true
	e.mu.Unlock()
	h.mu.Lock()
	defer h.mu.Unlock()
	last := uint64(0)
	for _, a := range h.acks {
		last = max(last, a.lsn)
	}
	require.Eventually(h.t, func() bool { return n.store.Committed() >= last }, waitLimit, time.Millisecond)
	n.close() // an idle log records its commit position before the close
	n.stop()
	require.NoError(h.t, n.store.Close())
	n.open()
	n.listen()
}

// check compares the acknowledgements received by clients with the node's contents.
func (h *history) check(n *node) {
	t := h.t
	at := map[[2]uint64]int{}
	var last [clients]uint64
	for i, body := range n.messages() {
		c, seq := body[0], binary.LittleEndian.Uint64(body[1:])
		key := [2]uint64{uint64(c), seq}
		if _, twice := at[key]; twice {
			require.Failf(t, "duplicate", "%s: client %d seq %d is stored twice", n.name, c, seq)
		}
		at[key] = i
		if seq != last[c]+1 {
			require.Failf(t, "order", "%s: client %d has %d after %d", n.name, c, seq, last[c])
		}
		last[c] = seq
	}
	byLSN := map[uint64]ack{}
	for _, a := range h.acks {
		if _, there := at[[2]uint64{uint64(a.client), a.seq}]; !there {
			require.Failf(t, "lost", "%s: client %d seq %d was acknowledged in term %d", n.name, a.client, a.seq,
				a.term)
		}
		before, twice := byLSN[a.lsn]
		require.False(t, twice, "LSN %d was acknowledged for two transactions: %+v and %+v", a.lsn, before, a)
		byLSN[a.lsn] = a
	}
	require.NotEmpty(t, h.acks)
	if testing.Verbose() {
		t.Logf("%s: %d messages, %d acknowledged, term %d", n.name, len(at), len(h.acks), h.term)
	}
}
