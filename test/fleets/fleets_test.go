// SPDX-License-Identifier: Apache-2.0

//go:build unix

package fleets

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/simpair"
	"github.com/lockstep-mq/lockstep/test/tier"
)

var (
	seedsFlag = flag.Int("seeds", 0, "number of seeds; default 100 with -tags deep, otherwise 3")
	firstFlag = flag.Uint64("first", 1, "first seed")
	seedFlag  = flag.Uint64("seed", 0, "run only this seed")
)

const (
	// finishLimit is the limit for the delivery of the remaining messages.
	finishLimit = 2 * time.Minute
	// everyLabel is the minimum number of seeds with which each label must have been counted.
	everyLabel = 100
)

// labels are the events that must occur in everyLabel seeds.
func labels() []string {
	all := append(kindNames[:], "moves begun", "moves done", "moves not done", "moves canceled by an operator",
		"directories restored", "ownership checked", "txn acked", "txn refused", "unknown, then acked")
	for _, s := range moveSteps() {
		all = append(all, "step "+s, "fault of the source at "+s, "fault of the target at "+s)
	}
	return all
}

func TestFleet(t *testing.T) {
	total := &totals{}
	first, n := *firstFlag, *seedsFlag
	if n == 0 {
		n = tier.Count(3, 100)
	}
	if *seedFlag != 0 {
		first, n = *seedFlag, 1
	}
	t.Run("seed", func(t *testing.T) {
		for seed := first; seed < first+uint64(n); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				simpair.Test(t, func(t *testing.T, sim *simpair.World) {
					w := newWorld(sim, seed)
					err := w.simulate()
					if err != nil {
						t.Errorf("%v\n\nrepeat: go test ./test/fleets -seed=%d -v", err, seed)
					}
					if err != nil || *seedFlag != 0 {
						t.Log(strings.Join(w.notes, "\n"))
					}
					total.add(w)
				})
			})
		}
	})
	t.Log(total)
	if total.seeds < everyLabel {
		return
	}
	for _, label := range labels() {
		if total.count[label] == 0 {
			t.Errorf("never occurred in %d seeds, and so was not tested: %s", total.seeds, label)
		}
	}
}

// totals counts the events of all seeds.
type totals struct {
	mu    sync.Mutex // guards all fields below
	seeds int
	count map[string]int
}

func (s *totals) add(w *world) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.count == nil {
		s.count = map[string]int{}
	}
	s.seeds++
	for label, n := range w.count {
		s.count[label] += n
	}
}

func (s *totals) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	parts := []string{fmt.Sprintf("%d seeds", s.seeds)}
	for _, label := range slices.Sorted(maps.Keys(s.count)) {
		parts = append(parts, fmt.Sprintf("%s %d", label, s.count[label]))
	}
	return strings.Join(parts, "; ")
}

// simulate runs the workload with faults and moves, and checks everything.
func (w *world) simulate() error {
	w.start()
	ctx := w.T.Context()
	rng := rand.New(rand.NewPCG(w.seed, 2))
	load, err := cluster.StartWorkload(ctx, w, cluster.WorkloadOptions{
		Seed: w.seed, Prefix: prefix, Queues: 3, PerSecond: 5 + rng.IntN(20), InFlight: 8, LargeBytes: 64 << 10,
		OperationsPerSecond: 2, SideClientsPerSecond: 2,
	})
	if err != nil {
		return err
	}
	defer load.Abort()
	check, stopChecking := context.WithCancel(ctx)
	var checking sync.WaitGroup
	checking.Go(func() {
		for check.Err() == nil {
			w.checkOwners(check)
			sleep(check, time.Duration(w.random(int64(150*time.Millisecond))))
		}
	})
	defer checking.Wait()
	defer stopChecking()
	w.execute(ctx, drawPlan(rng, time.Duration(4+rng.IntN(10))*time.Second))
	if err := w.settled(ctx); err != nil {
		return errors.Join(w.ownership(), err)
	}
	w.note("recovered")
	w.countMoves(ctx)
	ctx, cancel := context.WithTimeout(ctx, finishLimit)
	defer cancel()
	if err := load.Finish(ctx); err != nil {
		return errors.Join(w.ownership(), err)
	}
	w.note("finished: %v", load.History().Counts())
	return errors.Join(w.ownership(), w.checkHistory(load.History()), w.checkDirectory(ctx))
}

// checkOwners requires that at most one pair serves each queue at this instant.
func (w *world) checkOwners(ctx context.Context) {
	at := time.Now()
	for _, q := range append(queues(), lifeQueue) {
		owners := w.owners(ctx, q)
		if len(owners) < 2 || !time.Now().Equal(at) {
			continue
		}
		w.mu.Lock()
		if w.wrong == nil {
			w.wrong = fmt.Errorf("%s is served by %s and %s at %v", q, owners[0].name, owners[1].name, at.Sub(w.began))
		}
		w.mu.Unlock()
	}
	if time.Now().Equal(at) {
		w.counted("ownership checked")
	} else {
		w.counted("ownership check interrupted")
	}
}

// ownership returns the first violation that checkOwners has found.
func (w *world) ownership() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.wrong
}

// countMoves counts the moves that have ended, as far as the active nodes have not changed.
func (w *world) countMoves(ctx context.Context) {
	for _, p := range w.pairs {
		moves, err := pb.NewFleetServiceClient(*p.active(ctx).local.Load()).ListMoves(ctx, &pb.ListMovesRequest{})
		if err != nil {
			continue
		}
		for _, m := range moves.GetMoves() {
			switch m.GetPhase() {
			case pb.MovePhase_MOVE_PHASE_DONE:
				w.counted("moves done")
			case pb.MovePhase_MOVE_PHASE_NOT_MOVED:
				w.counted("moves not done")
				w.note("not moved: %v", m)
			default:
			}
		}
	}
}

// checkHistory checks the responses and the contents of the queues against all guarantees.
func (w *world) checkHistory(h *historycheck.History) error {
	h.PairOf = func(address string) string {
		if m := w.at(address); m != nil {
			return m.pair.name
		}
		return ""
	}
	for _, p := range h.Publishes {
		if p.Outcome == historycheck.Refused {
			h.AddBroken(historycheck.Violation{
				Rule: historycheck.RuleRefused, Text: fmt.Sprintf("%v was rejected for no reason: %s", p.ID, p.Error),
			})
		}
	}
	for i := range h.Parts {
		h.Parts[i].Term = 0 // of different pairs
	}
	h.MaxUnknown = 0
	var text []string
	for _, v := range h.Check() {
		text = append(text, v.String())
	}
	w.mu.Lock()
	w.count["acknowledged"] += len(h.Publishes)
	w.count["violations"] += len(text)
	for call, n := range h.Calls {
		w.count[call] += n
	}
	w.mu.Unlock()
	if len(text) == 0 {
		return nil
	}
	if dir := os.Getenv("LOCKSTEP_KEEP"); dir != "" {
		if err := h.Save(filepath.Join(dir, fmt.Sprintf("seed-%d", w.seed))); err != nil {
			return err
		}
	}
	return fmt.Errorf("%d violations:\n%s", len(text), strings.Join(text[:min(len(text), 20)], "\n"))
}

// checkDirectory requires that each queue is served by one pair, and that the directory of each node agrees.
func (w *world) checkDirectory(ctx context.Context) error {
	wrong := w.directoryDiffers(ctx)
	for end := time.Now().Add(operatorLimit); wrong != "" && time.Now().Before(end); wrong = w.directoryDiffers(ctx) {
		sleep(ctx, poll)
	}
	if wrong == "" {
		return nil
	}
	// Names that are assigned, but not created, remain until the next comparison, which a rebuild triggers.
	w.counted("directories compared by an operator")
	w.rebuild(ctx)
	for end := time.Now().Add(operatorLimit); time.Now().Before(end); sleep(ctx, poll) {
		if wrong = w.directoryDiffers(ctx); wrong == "" {
			return nil
		}
	}
	return fmt.Errorf("%s\n%s", wrong, w.describe())
}

// directoryDiffers returns the first difference between the directory and the queues of the pairs, or "".
func (w *world) directoryDiffers(ctx context.Context) string {
	owners := map[string]string{}
	for _, q := range append(queues(), lifeQueue) {
		nodes := w.owners(ctx, q)
		switch {
		case len(nodes) > 1:
			return fmt.Sprintf("%s is served by %s and %s", q, nodes[0].name, nodes[1].name)
		case len(nodes) == 1:
			owners[q] = nodes[0].pair.name
		case q != lifeQueue:
			return q + " is served by no pair"
		}
	}
	for _, m := range w.members() {
		list, err := pb.NewFleetServiceClient(*m.local.Load()).ListPlacements(ctx, &pb.ListPlacementsRequest{})
		if err != nil {
			return fmt.Sprintf("%s: %v", m.name, err)
		}
		got := map[string]string{}
		for _, p := range list.GetPlacements() {
			got[p.GetQueue()] = p.GetPair()
		}
		if !maps.Equal(owners, got) {
			return fmt.Sprintf("directory of %s: %v, but the pairs serve %v", m.name, got, owners)
		}
	}
	return ""
}
