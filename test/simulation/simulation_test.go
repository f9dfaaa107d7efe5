package simulation

import (
	"context"
	"flag"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/test/cluster"
)

var (
	seedsFlag = flag.Int("seeds", 300, "how many seeds TestSimulation runs, from 1")
	seedFlag  = flag.Uint64("seed", 0, "the one seed that TestSimulation is to run, with the logs of both nodes")
)

func TestSimulation(t *testing.T) {
	if *seedFlag != 0 {
		simulate(t, *seedFlag, true)
		return
	}
	for seed := uint64(1); seed <= uint64(*seedsFlag); seed++ {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, seed, false)
		})
	}
}

func simulate(t *testing.T, seed uint64, verbose bool) {
	synctest.Test(t, func(t *testing.T) {
		w, err := newWorld(seed, logger(zap.AddCaller(), verbose))
		require.NoError(t, err)
		err = w.run()
		if err != nil {
			t.Fatalf("%v\nreplay: go test ./test/simulation -run TestSimulation -seed=%d\noptions: %+v\n%s", err, seed, w.options, strings.Join(w.notes, "\n"))
		}
	})
}

func (w *world) run() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	for _, h := range w.hosts {
		h.start()
	}
	defer w.end()
	load, err := cluster.StartWorkload(ctx, w, cluster.WorkloadOptions{Seed: w.seed, PerSecond: w.options.PerSecond, InFlight: 8, LargeBytes: 64 << 10})
	if err != nil {
		return err
	}
	w.note("started")
	if err := w.waitInSync(ctx); err != nil {
		load.Abort()
		return err
	}
	w.note("in sync")
	time.Sleep(w.options.Length)
	if err := load.Finish(ctx); err != nil {
		load.Abort()
		return err
	}
	w.note("finished")
	for _, v := range load.History().Check() {
		w.note("%v", v)
	}
	w.note("%v", load.History().Counts())
	load.Abort()
	return nil
}

func (w *world) end() {
	close(w.over)
	for _, c := range w.conns {
		_ = c.Close()
	}
	for _, h := range w.hosts {
		if err := h.stop(); err != nil {
			w.note("%s: %v", h.name, err)
		}
	}
	w.authority.end()
	w.running.Wait()
}

func (w *world) ended(h *host, err error) {}
