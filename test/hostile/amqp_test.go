// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// amqpVictim starts a pair that serves AMQP, and returns the active's addresses for AMQP and metrics.
func amqpVictim(t *testing.T) (p *cluster.Pair, active *cluster.Node, amqp, metrics string) {
	t.Helper()
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	of := map[string]map[string]string{}
	for _, name := range []string{"a", "b"} {
		of[name] = map[string]string{}
		for _, setting := range []string{"amqp.listen", "metrics.listen"} {
			port, err := harness.ReservePort()
			require.NoError(t, err)
			t.Cleanup(func() { _ = port.Close() })
			of[name][setting] = port.Address()
		}
	}
	p, err = cluster.Start(t.Context(), cluster.Options{
		Binary: binary, Dir: t.TempDir(), NodeSettings: of, Settings: map[string]string{
			"log.level": "info", "memory.budget": "512MiB", "limits.handshake-timeout": "1s",
		},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("a: %s\nb: %s", p.A.LogTail(), p.B.LogTail())
		}
		require.NoError(t, p.Close())
	})
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	active, _, err = p.WaitInSync(ctx)
	require.NoError(t, err)
	return p, active, of[active.Name]["amqp.listen"], of[active.Name]["metrics.listen"]
}

// Attacks on the AMQP port cause no error for clients of either port, do not make the node exceed its memory budget,
// and leak no resources. LOCKSTEP_HOSTILE sets the duration, as in TestHostile.
func TestHostileAMQP(t *testing.T) {
	if testing.Short() {
		t.Skip("the test takes several seconds")
	}
	total := 6 * time.Second
	if long, ok := os.LookupEnv("LOCKSTEP_HOSTILE"); ok {
		var err error
		total, err = time.ParseDuration(long)
		require.NoError(t, err, "LOCKSTEP_HOSTILE")
	}
	all := chosenFrom(amqpAttacks(), os.Getenv("LOCKSTEP_HOSTILE_ONLY"))
	if len(all) == 0 {
		t.Skip("no selected attack is on this port")
	}
	p, active, address, metrics := amqpVictim(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k, err := p.NewClient(ctx)
	require.NoError(t, err)
	defer func() { _ = k.Close() }()
	underAttack := plan{Address: address, For: total / time.Duration(len(all)), Files: mayOpen(t), Queue: "target"}
	if runtime.GOOS == "linux" { // all addresses in 127.0.0.0/8 are local, so attacker and legitimate clients differ
		underAttack.From = "127.0.0.2"
	}
	probe(t, k, &underAttack)

	byGRPC, byAMQP := &legitimate{t: t, client: k}, &legitimate{t: t}
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { byGRPC.work(ctx) })
	working.Go(func() { consume(ctx, t, k) })
	working.Go(func() {
		if err := byAMQP.publisher(ctx, address); ctx.Err() == nil {
			assert.NoError(t, err, "the legitimate AMQP client")
		}
	})
	pause(ctx, time.Second)
	_, baseline, n := byAMQP.all()
	require.NotZero(t, n, "the legitimate AMQP client published nothing")
	goroutines, files := gauge(t, metrics, "go_goroutines"), openFiles(active.PID())

	for i, a := range all {
		one := underAttack.from(1 + i)
		one.Attack = a.name
		mine := map[string]*tally{}
		spent, start := processorTime(t, active.PID()), time.Now()
		attackAll(t, one, mine)
		spent = processorTime(t, active.PID()) - spent
		median, p99, n := byAMQP.iterate()
		_, other, _ := byGRPC.iterate()
		logSummary(t, mine)
		t.Logf("%-28s median %v, p99 %v of %d by AMQP, p99 %v by gRPC, CPU %.0f %%, memory %d MiB", a.name,
			rounded(median), rounded(p99), n, rounded(other), 100*spent.Seconds()/time.Since(start).Seconds(),
			peakMemory(t, active.PID())>>20)
		require.NotZero(t, n, "the legitimate AMQP client published nothing during %s", a.name)
	}
	_, p99, _ := byAMQP.all()
	require.LessOrEqual(t, p99, max(20*baseline, time.Second),
		"p99 of the legitimate client; without an attack it is %v", baseline)
	require.Zero(t, byGRPC.fails)
	require.LessOrEqual(t, peakMemory(t, active.PID()), int64(budget+budget/10), "memory")
	requireNoLeaks(t, metrics, active.PID(), goroutines, files)
}
