// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/tier"
)

var (
	seedsFlag = flag.Int("seeds", 0, "number of seeds per test, from 1; default with -tags deep: 300 for "+
		"TestSimulation and 60 for TestDisks; otherwise a fifteenth")
	seedFlag = flag.Uint64("seed", 0, "run only this seed; with -v, print the logs of both nodes")
)

const (
	// faultsLimit is the limit for the duration of all faults together.
	faultsLimit = 3 * time.Minute
	// recoveryLimit is the limit for the time until the pair is in sync after the last fault.
	recoveryLimit = 20 * time.Second
	// finishLimit is the limit for the delivery of the remaining messages after the recovery.
	finishLimit = time.Minute
	// maxFailures is the number of failed seeds after which no further seeds start; with -failfast it is 1.
	maxFailures = 5
	// realLimit is the limit for a simulation in real time, on the slowest machine.
	realLimit = 4 * time.Minute
	// progressSeeds is the number of seeds between two progress reports.
	progressSeeds = 1000
	// In one of featureSeeds seeds, applications use additional queue features.
	featureSeeds = 3
)

// everyKind is the number of seeds from which every kind of fault must have taken effect and every outcome occurred.
const everyKind = 300

func TestSimulation(t *testing.T) {
	var total totals
	defer func() {
		t.Log(total.String())
		if never := total.never(); total.seeds >= everyKind && len(never) > 0 {
			t.Errorf("never occurred in %d seeds, and so were not tested: %v", total.seeds, never)
		}
	}()
	runSeeds(t, &total, 300, func(t *testing.T, seed uint64, verbose bool) result {
		return simulate(t, seed, verbose, func(w *world) scenario {
			plan := drawPlan(rngOf(seed), w.options)
			return scenario{fmt.Sprint(plan), func() error { return w.run(plan) }}
		})
	})
}

// runSeeds runs the seed that -seed selects, or as many seeds as -seeds states. By default it runs the given number of
// seeds in the deep tier, and a fifteenth of them in the default tier.
func runSeeds(t *testing.T, total *totals, seeds int, one func(t *testing.T, seed uint64, verbose bool) result) {
	t.Helper()
	if *seedFlag != 0 {
		total.add(one(t, *seedFlag, testing.Verbose()))
		return
	}
	if *seedsFlag != 0 {
		seeds = *seedsFlag
	} else {
		seeds = tier.Count(seeds/15, seeds)
	}
	limit := maxFailures
	if f := flag.Lookup("test.failfast"); f != nil && f.Value.String() == "true" {
		limit = 1
	}
	// Seeds are not subtests: with -v their output would hide the totals.
	var next atomic.Uint64
	t.Run("seeds", func(t *testing.T) {
		for i := range runtime.GOMAXPROCS(0) {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for seed := next.Add(1); seed <= uint64(seeds) && total.failed() < limit; seed = next.Add(1) {
					total.add(one(t, seed, false))
					if seed%progressSeeds == 0 {
						fmt.Fprintf(os.Stderr, "%s: seed %d, %d failed\n", t.Name(), seed, total.failed())
					}
				}
			})
		}
	})
}

// scenario is the sequence of events in one simulation.
type scenario struct {
	plan string // as text
	run  func() error
}

// simulate runs one seed. draw generates the scenario from the seed.
func simulate(t *testing.T, seed uint64, verbose bool, draw func(w *world) scenario) (done result) {
	test, _, _ := strings.Cut(t.Name(), "/")
	defer watch(seed)()
	defer func() {
		if r := recover(); r != nil {
			panic(fmt.Sprintf("seed %d: %v", seed, r))
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(seed, logger(zap.AddCaller(), verbose))
		require.NoError(t, err)
		s := draw(w)
		err = s.run()
		if done = w.done; err != nil {
			done.failure = fmt.Sprintf("%v\n\nreplay: go test ./test/simulation -run %s -seed=%d -v\noptions: "+
				"%+v\nplan: %v\n"+
				"events:\n%s", err, test, seed, w.options, s.plan, strings.Join(w.notes, "\n"))
		}
	})
	if done.failure != "" {
		t.Error(done.failure) // outside the bubble, because a failure in it ends the loop over seeds
	}
	return done
}

// watch ends the process if a seed does not end within realLimit, not counting time in which the process was suspended.
// It must be called outside the bubble, because the clock of the bubble may be stopped.
func watch(seed uint64) (stop func()) {
	done := make(chan struct{})
	go func() {
		second := time.NewTicker(time.Second)
		defer second.Stop()
		for range realLimit / time.Second {
			select {
			case <-second.C:
			case <-done:
				return
			}
		}
		panic(fmt.Sprintf("seed %d does not end: a goroutine of the bubble waits for something that is not "+
			"simulated, or does not end", seed))
	}()
	return func() { close(done) }
}

// run executes a simulation with the faults of a plan.
func (w *world) run(plan []fault) error {
	return w.runWith(func(*historycheck.History) error {
		faults, cancel := context.WithTimeout(context.Background(), faultsLimit)
		defer cancel()
		return w.injectFaults(faults, plan)
	})
}

// runWith executes a simulation: it starts a pair, injects faults, and checks all responses that clients received.
func (w *world) runWith(injectFaults func(h *historycheck.History) error) (err error) {
	for _, h := range w.hosts {
		h.start()
	}
	defer func() { err = errors.Join(err, w.end()) }()
	ctx, cancel := context.WithTimeout(context.Background(), recoveryLimit)
	defer cancel()
	load, err := cluster.StartWorkload(ctx, w, cluster.WorkloadOptions{
		Seed: w.seed, PerSecond: w.options.PerSecond, InFlight: 8, LargeBytes: 64 << 10,
		OperationsPerSecond: 3, SideClientsPerSecond: 3, Features: w.seed%featureSeeds == 0,
	})
	if err != nil {
		return err
	}
	defer load.Abort()
	if err := w.waitInSync(ctx); err != nil {
		return err
	}
	w.record("in sync")
	if err := w.putSchedule(ctx); err != nil {
		return err
	}
	searching, stopSearching := context.WithCancel(context.Background())
	defer stopSearching()
	w.running.Go(func() { w.searchSchedule(searching) })
	w.refusable = load.RefusableQueues()
	for _, h := range w.hosts {
		h.onDisk(func(d *disk) { d.losesSyncs = w.options.LosesSyncs })
	}
	if err := injectFaults(load.History()); err != nil {
		return err
	}
	w.heal()
	if err := w.recovered(load.History()); err != nil {
		return err
	}
	finish, cancel := context.WithTimeout(context.Background(), finishLimit)
	defer cancel()
	stopSearching()
	if err := w.checkSchedule(finish); err != nil {
		return err
	}
	if err := load.Finish(finish); err != nil {
		return err
	}
	return w.checkHistory(load.History())
}

// recovered waits until the pair is in sync and acknowledges messages.
func (w *world) recovered(h *historycheck.History) error {
	healed := h.Now()
	w.record("healed")
	ctx, cancel := context.WithTimeout(context.Background(), recoveryLimit)
	defer cancel()
	if w.recordLost {
		var operating sync.WaitGroup
		defer operating.Wait()
		octx, stop := context.WithCancel(ctx)
		defer stop()
		operating.Go(func() { w.operator(octx) })
	}
	for { // until an operator has rebuilt a lost record, without which a running pair continues
		if err := w.waitSettled(ctx); err != nil {
			return fmt.Errorf("not recovered: %w", err)
		}
		if _, _, err := w.store.within.Load(ctx); err == nil {
			break
		}
		sleep(ctx, poll)
	}
	for ctx.Err() == nil {
		if _, ok := h.AckedAfter(healed, ""); ok {
			w.record("recovered")
			w.done.recovery = h.Now() - healed
			return nil
		}
		sleep(ctx, poll)
	}
	return errors.New("not recovered: the pair is in sync, but acknowledges nothing")
}

// checkHistory checks the responses and the contents of the queues against all guarantees.
func (w *world) checkHistory(h *historycheck.History) error {
	for _, p := range h.Publishes {
		switch p.Outcome {
		case historycheck.Acked:
			w.done.acked++
		case historycheck.Unknown:
			w.done.unknown++
		case historycheck.Refused:
			if !p.Limit || w.done.faults[lowDisk] == 0 {
				h.AddBroken(historycheck.Violation{
					Rule: historycheck.RuleRefused,
					Text: fmt.Sprintf("%v was rejected for no reason: %s", p.ID, p.Error),
				})
			}
		}
	}
	w.done.deliveries, w.done.confs, w.done.calls = len(h.Deliveries), len(h.Acks), h.Calls
	rec, _, err := w.store.within.Load(context.Background())
	if err != nil {
		return fmt.Errorf("read the record: %w", err)
	}
	w.done.takeovers = rec.Term - 1
	if w.done.faults[lowDisk] == 0 {
		h.MaxUnknown = 0
	}
	found := h.Check()
	w.done.rules = map[historycheck.Rule]int{}
	text := make([]string, 0, len(found))
	for _, v := range found {
		w.done.rules[v.Rule]++
		text = append(text, v.String())
	}
	if len(text) > 20 {
		text = append(text[:20], "…")
	}
	if dir := os.Getenv("LOCKSTEP_KEEP"); dir != "" && len(text) > 0 {
		if err := h.Save(filepath.Join(dir, fmt.Sprintf("seed-%d", w.seed))); err != nil {
			return err
		}
	}
	if len(text) > 0 {
		return fmt.Errorf("%d violations:\n%s", len(found), strings.Join(text, "\n"))
	}
	return nil
}

// end stops the clients and both nodes, and verifies the files.
func (w *world) end() error {
	close(w.over)
	for _, c := range w.conns {
		_ = c.Close() // an error has no effect
	}
	w.heal()
	var errs []error
	for _, h := range w.hosts {
		if err := h.stop(); err != nil && !errors.Is(err, node.ErrRestart) { // a plan may request a restart at any moment
			errs = append(errs, fmt.Errorf("%s at the end: %w", h.name, err))
		}
	}
	w.store.end()
	w.running.Wait()
	w.clients.Kill()
	for _, h := range w.hosts {
		var report checkpoint.Report
		err := checkpoint.ReadDir(h.vol.mem, "/data", func(c *checkpoint.Checkpoint) (err error) {
			report, err = c.Check(context.Background(), nil)
			return err
		})
		if err == nil && len(report.Problems) > 0 {
			err = fmt.Errorf("%v", report.Problems)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("files of %s: %w", h.name, err))
		}
	}
	return errors.Join(errs...)
}

// totals are the sum of the results of all seeds.
type totals struct {
	mu    sync.Mutex // guards all fields below
	seeds int
	bad   int // seeds that failed
	sum   result
}

func (s *totals) failed() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bad
}

func (s *totals) add(r result) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seeds++
	if r.failure != "" {
		s.bad++
	}
	for k, n := range r.faults {
		s.sum.faults[k] += n
	}
	s.sum.acked += r.acked
	s.sum.unknown += r.unknown
	s.sum.deliveries += r.deliveries
	s.sum.confs += r.confs
	s.sum.searches += r.searches
	s.sum.takeovers += r.takeovers
	s.sum.recovery = max(s.sum.recovery, r.recovery)
	if s.sum.rules == nil {
		s.sum.rules, s.sum.calls, s.sum.moves = map[historycheck.Rule]int{}, map[string]int{}, map[string]int{}
	}
	for move, n := range r.moves {
		s.sum.moves[move] += n
	}
	for call, n := range r.calls {
		s.sum.calls[call] += n
	}
	for rule, n := range r.rules {
		s.sum.rules[rule] += n
	}
}

// never returns the faults that never took effect, and the outcomes of calls that never occurred.
func (s *totals) never() (never []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k, n := range s.sum.faults {
		if n == 0 {
			never = append(never, kind(k).String())
		}
	}
	for _, call := range []string{
		"publish acked", "publish refused", "publish unknown", "txn acked", "txn refused", "txn unknown", "ack acked",
		"ack unknown",
		"purge acked", "purge refused", "purge unknown", "create acked", "create refused", "create unknown",
		"delete acked", "delete refused",
		"delete unknown",
		"unknown, then acked", "unknown, then unknown", "refused, then acked", "limit", "side client acked",
		"side client refused", "side client unknown", "pinned acked", "pinned refused", "pinned unknown",
	} {
		if s.sum.calls[call] == 0 {
			never = append(never, call)
		}
	}
	if s.sum.searches == 0 {
		never = append(never, "search")
	}
	return never
}

func (s *totals) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var b strings.Builder
	fmt.Fprintf(&b, "%d seeds, %d failed; faults:", s.seeds, s.bad)
	for k, n := range s.sum.faults {
		fmt.Fprintf(&b, " %v %d", kind(k), n)
	}
	fmt.Fprintf(&b, "\n%d messages acknowledged, %d with an unknown outcome, %d deliveries, %d acks confirmed, %d "+
		"searches, %d takeovers, longest recovery %v",
		s.sum.acked, s.sum.unknown, s.sum.deliveries, s.sum.confs, s.sum.searches, s.sum.takeovers, s.sum.recovery)
	fmt.Fprintf(&b, "\ncalls of applications and side clients: %v", s.sum.calls)
	if len(s.sum.moves) > 0 {
		fmt.Fprintf(&b, "\ndisk moves and their effects: %v", s.sum.moves)
	}
	fmt.Fprintf(&b, "\nlost %d, duplicated %d", s.sum.rules[historycheck.RuleLost],
		s.sum.rules[historycheck.RuleDuplicate])
	for _, rule := range slices.Sorted(maps.Keys(s.sum.rules)) {
		fmt.Fprintf(&b, ", %s %d", rule, s.sum.rules[rule])
	}
	return b.String()
}
