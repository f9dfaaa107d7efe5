// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/fleet"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const (
	groupInterval = 20 // interval of queues that belong to a placement group
	groupCount    = 3
	creators      = 8 // concurrent requests that create or read queues
	fewMessages   = 3 // in each queue without consumers, before the drain
	maxPlacements = 10_000
	laterQueues   = 6 // created after the rebuild
)

// placement is an entry of the directory.
type placement struct {
	pair, group string
	epoch       uint64
}

// drainLoad is the load of TestDrain.
type drainLoad struct {
	w         *world
	c         *client.Client
	loaded    []string // queues with all kinds of producers and consumers
	few       []string // queues with messages of one Go producer
	golang    *goProducer
	shared    []producer // publish to all loaded queues
	own       map[string]producer
	small     *goProducer // publishes to the queues in few
	consumers []consumer
	since     time.Time
}

// A drained pair has no queue, and the other pairs have all queues with all messages. After the directory was deleted,
// the queues remain usable, and a rebuild restores all placements.
func TestDrain(t *testing.T) {
	n := number(t, "LOCKSTEP_DRAIN_QUEUES", 200, 60)
	w := newWorld(t)
	l := &drainLoad{w: w, c: w.client(w.pairs[0]), own: map[string]producer{}, since: time.Now()}
	l.create(n)
	l.start()
	logs := newLogs(w)
	l.part("start of the load")

	w.round.Add(1)
	from, _ := w.owner(l.loaded[0])
	moves := l.drain(from)
	w.inSync()
	l.continued()
	w.round.Add(1)
	logs.read()
	l.part(fmt.Sprintf("drain of %s with %d moves", from.name, moves))

	before := w.placements()
	w.deleteDirectory()
	l.outage()
	l.part("outage of the directory")
	_, err := w.cli("fleet", "rebuild", "--pairs", strings.Join(w.names(), ","), "--yes")
	require.NoError(t, err)
	require.Equal(t, before, w.placements())
	l.part("rebuild")

	_, err = w.cli("fleet", "undrain", from.name)
	require.NoError(t, err)
	eventually(t, "all pairs are open", func(ctx context.Context) bool {
		f, err := service(from.Nodes[0]).GetFleet(ctx, &pb.GetFleetRequest{})
		return err == nil && len(f.GetPairs()) == len(w.pairs) && !slices.ContainsFunc(f.GetPairs(),
			func(p *pb.FleetPair) bool { return p.GetState() != pb.PairState_PAIR_STATE_OPEN })
	})
	l.createLater()
	l.continued()
	_, err = w.cli("fleet", "status")
	require.NoError(t, err)
	l.part("new queues after the rebuild")
	l.finish(logs, moves)
}

// part logs the duration of a part of the test.
func (l *drainLoad) part(name string) {
	l.w.t.Helper()
	l.w.t.Logf("%s: %s", name, time.Since(l.since).Round(time.Millisecond))
	l.since = time.Now()
}

// create creates n queues. Each pair must receive a share of them, and each placement group has one owner.
func (l *drainLoad) create(n int) {
	t := l.w.t
	t.Helper()
	l.loaded = []string{"orders", "events"}
	for i := range n - len(l.loaded) {
		name := fmt.Sprintf("few-%04d", i)
		if i%groupInterval == 0 {
			name += fmt.Sprintf("{g%d}", i/groupInterval%groupCount)
		}
		l.few = append(l.few, name)
	}
	l.w.create(l.c, l.loaded...)
	l.each(l.few, func(q string) error {
		_, _, err := admin.New(l.c).CreateQueue(limited(t), q, admin.CreateQueueOptions{
			Subscriptions: []string{keptSubscription},
		})
		return err
	})
	all := l.w.placements()
	require.Len(t, all, n)
	shares, groups := map[string]int{}, map[string]string{}
	for q, p := range all {
		shares[p.pair]++
		if p.group == "" {
			require.NotContains(t, q, "{")
			continue
		}
		if groups[p.group] == "" {
			groups[p.group] = p.pair
		}
		require.Equal(t, groups[p.group], p.pair, q)
	}
	require.NotEmpty(t, groups)
	require.Equal(t, slices.Sorted(slices.Values(l.w.names())), slices.Sorted(maps.Keys(shares)))
	l.part(fmt.Sprintf("creation of %d queues, by pair: %v, %d placement groups", n, shares, len(groups)))
}

// each calls f for each queue, concurrently.
func (l *drainLoad) each(queues []string, f func(queue string) error) {
	l.w.t.Helper()
	next := make(chan string)
	errs := make([]error, creators)
	var workers sync.WaitGroup
	for i := range creators {
		workers.Go(func() {
			for q := range next {
				if err := f(q); err != nil {
					errs[i] = errors.Join(errs[i], fmt.Errorf("%s: %w", q, err))
				}
			}
		})
	}
	for _, q := range queues {
		next <- q
	}
	close(next)
	waitFor(l.w.t, &workers, "requests for each queue")
	require.NoError(l.w.t, errors.Join(errs...))
}

func (l *drainLoad) start() {
	t := l.w.t
	t.Helper()
	l.golang = newGoProducer(l.w, l.c, firstMessages*len(l.loaded), l.loaded...)
	l.shared = []producer{l.golang}
	if p := newPythonProducer(l.w, l.w.pairs[1].Addresses(), l.loaded...); p != nil {
		l.shared = append(l.shared, p)
	}
	for _, q := range l.loaded {
		l.own[q] = newAMQPProducer(l.w, q)
	}
	l.small = newGoProducer(l.w, l.w.client(l.w.pairs[2]), fewMessages*len(l.few), l.few...)
	l.consumers = newConsumers(l.w, l.loaded)
	for _, p := range []*goProducer{l.golang, l.small} {
		select {
		case <-p.preloaded:
		case <-limited(t).Done():
			require.FailNow(t, "the first messages are not confirmed")
		}
	}
	l.continued()
}

// producers returns the producers of the loaded queues.
func (l *drainLoad) producers() []producer {
	return slices.Concat(l.shared, slices.Collect(maps.Values(l.own)))
}

// continued waits until each producer and each consumer has made progress, and a message is confirmed in each queue
// without consumers. Without the directory, producers use only queues with a known owner: afterwards, they know all.
func (l *drainLoad) continued() {
	l.w.t.Helper()
	since := time.Now()
	all := l.producers()
	for _, p := range append(slices.Clone(all), l.small) {
		p.continued(since)
	}
	before := l.small.counts()
	eventually(l.w.t, "messages in each queue", func(context.Context) bool {
		now := l.small.counts()
		return !slices.ContainsFunc(l.few, func(q string) bool { return now[q] == before[q] })
	})
	for _, q := range l.loaded {
		n := confirmed(all, q)
		for _, co := range l.consumers {
			co.deliveries(q).caughtUp(n)
		}
	}
}

// drain moves all queues of a pair to the other pairs. It returns the number of moves.
func (l *drainLoad) drain(from *pair) int {
	t := l.w.t
	t.Helper()
	before := l.w.placements()
	out, err := l.w.cli("fleet", "drain", from.name, "--move", "--wait", "--yes", "--output", "json")
	require.NoError(t, err)
	var drained struct {
		Queues  int
		Results []struct {
			From, To, Phase, Error string
			Queues                 []string
		}
		Left []struct{ Queues []string }
	}
	require.NoError(t, json.Unmarshal([]byte(out), &drained), out)
	require.Zero(t, drained.Queues)
	require.Empty(t, drained.Left)
	for _, m := range drained.Results {
		require.Equal(t, from.name, m.From)
		require.NotEqual(t, from.name, m.To)
		require.Equal(t, "done", m.Phase, m.Error)
	}

	after := l.w.placements()
	require.Equal(t, slices.Sorted(maps.Keys(before)), slices.Sorted(maps.Keys(after)))
	shares := map[string]int{}
	for q, p := range after {
		shares[p.pair]++
		require.NotEqual(t, from.name, p.pair, q)
		if before[q].pair != from.name {
			require.Equal(t, before[q], p, "%s has moved", q)
		}
	}
	t.Logf("queues by pair after the drain: %v", shares)
	eventually(t, "no queues at pair "+from.name, func(ctx context.Context) bool {
		return !slices.ContainsFunc(from.Nodes, func(n *harness.Node) bool {
			resp, err := pb.NewAdminServiceClient(n.Conn()).GetQueueDigests(ctx, &pb.GetQueueDigestsRequest{})
			return err != nil || len(resp.GetQueues()) > 0
		})
	})
	return len(drained.Results)
}

// outage waits until all nodes report the loss of the directory. No queues can be created, but all clients of existing
// queues continue.
func (l *drainLoad) outage() {
	t := l.w.t
	t.Helper()
	for _, p := range l.w.pairs {
		require.NoError(t, p.Wait(limited(t), p.name+" has lost the directory", func(all []*pb.GetStatusResponse) bool {
			return !slices.ContainsFunc(all, func(s *pb.GetStatusResponse) bool { return s.GetFleet().GetProblem() == "" })
		}))
	}
	_, err := l.w.cli("fleet", "status")
	require.Error(t, err)
	_, err = l.w.cli("queue", "create", "refused")
	require.Error(t, err)
	l.continued()
}

// createLater creates and uses queues after the rebuild.
func (l *drainLoad) createLater() {
	t := l.w.t
	t.Helper()
	for i := range laterQueues {
		q := fmt.Sprintf("later-%d", i)
		_, created, err := admin.New(l.c).CreateQueue(limited(t), q, admin.CreateQueueOptions{
			Subscriptions: []string{keptSubscription},
		})
		require.NoError(t, err)
		require.True(t, created)
		p, err := l.c.NewProducer(limited(t), client.ProducerOptions{})
		require.NoError(t, err)
		_, err = p.Publish(limited(t), q, client.Message{Body: body("later", i)})
		require.NoError(t, err)
		require.Equal(t, []stored{{1, "later", i}}, content(t, l.c, q, keptSubscription))
	}
}

// finish stops the load, and verifies all queues and their owners.
func (l *drainLoad) finish(logs *logs, moves int) {
	w, t := l.w, l.w.t
	t.Helper()
	all := l.producers()
	for _, p := range append(slices.Clone(all), l.small) {
		p.finish()
	}
	for _, q := range l.loaded {
		for _, co := range l.consumers {
			co.deliveries(q).finish(l.c, confirmed(all, q))
		}
	}
	for _, co := range l.consumers {
		co.stop()
	}
	l.part("end of the load")
	w.inSync()
	for _, q := range l.loaded {
		verify(t, l.c, q, append(slices.Clone(l.shared), l.own[q]), l.consumers)
	}
	l.complete()
	owners := map[string]string{}
	for q, p := range w.placements() {
		owners[q] = p.pair
	}
	w.equal(owners)
	l.part("comparison of the messages")
	ofLoaded := map[string]string{}
	for _, q := range l.loaded {
		ofLoaded[q] = owners[q]
	}
	require.Equal(t, moves, checkOwners(w, logs, ofLoaded, l.shared))
	l.checkFew(logs, owners)
	l.part("comparison of the owners")
}

// counts returns the number of confirmed messages by queue.
func (g *goProducer) counts() map[string]int {
	g.mu.Lock()
	defer g.mu.Unlock()
	all := map[string]int{}
	for q, list := range g.all {
		all[q] = len(list)
	}
	return all
}

// complete verifies that the queues without consumers contain the confirmed messages, in order.
func (l *drainLoad) complete() {
	t := l.w.t
	t.Helper()
	messages := 0
	for _, q := range l.few {
		want := make([]stored, 0, fewMessages)
		for _, r := range l.small.receipts(q) {
			want = append(want, stored{r.sequence, l.small.name(), r.n})
		}
		require.GreaterOrEqual(t, len(want), fewMessages, q)
		require.Equal(t, want, content(t, l.c, q, keptSubscription), q)
		require.Equal(t, uint64(len(want)), want[len(want)-1].sequence, q)
		messages += len(want)
	}
	t.Logf("%d messages in %d queues without consumers", messages, len(l.few))
}

// checkFew verifies the owners of the queues without consumers.
func (l *drainLoad) checkFew(logs *logs, owners map[string]string) {
	t := l.w.t
	t.Helper()
	moves, err := checkMoves(logs.all())
	require.NoError(t, err)
	moved := 0
	for _, q := range l.few {
		tenures, err := checkTenures(q, moves)
		require.NoError(t, err)
		if len(tenures) == 0 {
			continue
		}
		moved++
		_, err = checkReceipts(q, tenures, l.small.receipts(q))
		require.NoError(t, err)
		require.Equal(t, owners[q], tenures[len(tenures)-1].pair, q)
	}
	require.Positive(t, moved)
	t.Logf("%d queues without consumers have moved", moved)
}

func (w *world) names() (all []string) {
	for _, p := range w.pairs {
		all = append(all, p.name)
	}
	return all
}

// placements returns the entries of the directory when all nodes have the same ones.
func (w *world) placements() map[string]placement {
	w.t.Helper()
	var first map[string]placement
	eventually(w.t, "equal copies of the directory", func(ctx context.Context) bool {
		first = nil
		for _, p := range w.pairs {
			for _, n := range p.Nodes {
				list, err := service(n).ListPlacements(ctx, &pb.ListPlacementsRequest{Limit: maxPlacements})
				if err != nil || !list.GetCurrent() || list.GetNextAfter() != "" {
					return false
				}
				all := map[string]placement{}
				for _, e := range list.GetPlacements() {
					all[e.GetQueue()] = placement{e.GetPair(), e.GetGroup(), e.GetEpoch()}
				}
				if first == nil {
					first = all
				}
				if !maps.Equal(first, all) {
					return false
				}
			}
		}
		return true
	})
	return first
}

// deleteDirectory deletes all keys of the fleet in etcd.
func (w *world) deleteDirectory() {
	w.t.Helper()
	c, err := clientv3.New(clientv3.Config{Endpoints: []string{w.etcd.port.Address()}, Logger: zap.NewNop()})
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, c.Close()) }()
	resp, err := c.Delete(limited(w.t), fleet.DefaultPrefix+"/", clientv3.WithPrefix())
	require.NoError(w.t, err)
	require.Positive(w.t, resp.Deleted)
	w.t.Logf("%d keys of the directory deleted", resp.Deleted)
}
