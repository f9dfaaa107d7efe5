// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep && measure

package real

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// TestCost alternately measures a pair with a replica site and a pair without a replica. It measures the publish rate
// of 64 publishers, the 99th percentile of the latency of paced publishes, and the CPU time of the pair's nodes per
// paced message.
//
//	taskset -c 0 env LOCKSTEP_REPLICA_CPUS=1 go test -tags deep,measure ./test/sites/real -run TestCost -v
//	LOCKSTEP_REPLICA_CPUS=1  CPUs of the nodes of the replica
//	LOCKSTEP_NEIGHBOR=60000  also measures the pair alone while a separate pair on LOCKSTEP_REPLICA_CPUS receives this
//	                         number of messages per second
//	LOCKSTEP_OTHER=path      also measures this binary with a replica, to compare two versions
//	LOCKSTEP_ROUNDS=5        rounds, each with all pairs
//	LOCKSTEP_PERIOD=10s      duration of each of the two loads
//	LOCKSTEP_RATE=2000       paced publishes per second
//
// All processes share one machine. With taskset and LOCKSTEP_REPLICA_CPUS, the nodes of the replica and all other
// processes use separate CPUs, as on separate machines. Otherwise, the nodes of the replica have the lowest priority
// (nice 19), and compete for CPU time. In both cases, they compete for caches and the disk. The link between the
// sites has no delay and no relay: relays would use the CPUs of the primary. The CPU time per message includes the
// time until the replica has all messages. The rate does not include the work for a replica that falls behind. The log
// contains the time for which the replica was behind.
func TestCost(t *testing.T) {
	n, period, rate := rounds(t, 5, 1), duration(t, "LOCKSTEP_PERIOD", 10*time.Second), perSecond(t)
	w, with := startReplicated(t, "with replica", binary)
	sides := []*costSide{{name: "alone", pair: w.startAlone()}, with}
	if rate := os.Getenv("LOCKSTEP_NEIGHBOR"); rate != "" {
		load := func() (end func()) { return startNeighbor(t, rate, period) }
		sides = append(sides, &costSide{name: "alone, LOCKSTEP_NEIGHBOR", pair: sides[0].pair, neighbor: load})
	}
	if other := os.Getenv("LOCKSTEP_OTHER"); other != "" {
		_, with := startReplicated(t, "with replica, LOCKSTEP_OTHER", other)
		sides = append(sides, with)
	}
	for _, s := range sides {
		s.client = pairClient(t, s.pair)
	}
	for round := range n {
		for i := range sides {
			s := sides[(round+i)%len(sides)] // each is first in some round
			c := s.measure(t, period, rate)
			s.all = append(s.all, c)
			t.Logf("round %d, %s: %.0f messages/s, 99%% of paced publishes %v, %v of CPU per message; replica behind for %v",
				round+1, s.name, c.rate, c.latency.Round(time.Microsecond), c.cpu.Round(100*time.Nanosecond),
				c.behind.Round(time.Millisecond))
		}
	}
	for _, s := range sides[1:] {
		s.compare(t, sides[0])
	}
}

// startReplicated starts two sites with a binary.
func startReplicated(t *testing.T, name, binary string) (*world, *costSide) {
	t.Helper()
	w := newSites(t, nil)
	w.binary, w.west.start = binary, replicaCommand()
	w.east.direct, w.west.direct = true, true
	w.begin(kept)
	return w, &costSide{name: name, pair: w.east.pair, settle: func() { w.caughtUp(w.east) }}
}

// startNeighbor starts a pair with 64 publishers on the CPUs of the replica. It returns when the publishers are
// running.
func startNeighbor(t *testing.T, rate string, period time.Duration) (end func()) {
	t.Helper()
	dir := t.TempDir()
	command := slices.Concat(replicaCommand(), []string{
		binary, "bench", "publish", "--publishers=64", "--size=512", "--rounds=1", "--dir=" + dir, "--rate=" + rate,
		"--duration=" + (period + bound).String(),
	})
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env = harness.Environment()
	require.NoError(t, cmd.Start())
	eventually(t, "a second segment of the other pair", func(context.Context) bool {
		files, err := filepath.Glob(filepath.Join(dir, "*", "b", "data", "log", "*.seg"))
		return err == nil && len(files) > 1
	})
	return func() {
		_ = cmd.Process.Signal(os.Interrupt)
		_ = cmd.Wait() // reports the interrupt
	}
}

// compare logs the ratios to a pair without a replica.
func (s *costSide) compare(t *testing.T, alone *costSide) {
	t.Helper()
	var rates, cpu, latencies []float64
	for round, is := range s.all {
		base := alone.all[round]
		rates = append(rates, is.rate/base.rate)
		cpu = append(cpu, float64(is.cpu)/float64(base.cpu))
		latencies = append(latencies, float64(is.latency)/float64(base.latency))
	}
	t.Logf("%s: ratios to the pair alone, medians of %d rounds: rate %.3f (goal at least 0.95), "+
		"99%% %.3f (goal at most 1.1), CPU per message %.3f", s.name, len(s.all), median(rates), median(latencies),
		median(cpu))
}

// replicaCommand returns the command that starts the nodes of the replica.
func replicaCommand() []string {
	if cpus := os.Getenv("LOCKSTEP_REPLICA_CPUS"); cpus != "" {
		return []string{"taskset", "-c", cpus}
	}
	return []string{"nice", "-n", "19"}
}

type costSide struct {
	name     string
	pair     *harness.Pair
	client   *client.Client
	settle   func()              // waits until no work of the load remains
	neighbor func() (end func()) // starts another load, which runs while the publishers run
	all      []cost
}

// cost is the result of a round.
type cost struct {
	rate    float64       // messages per second of the publishers
	latency time.Duration // 99th percentile of the paced publishes
	cpu     time.Duration // of the nodes, per paced message
	behind  time.Duration // time from the end of the publishers until the replica had all messages
}

func (s *costSide) measure(t *testing.T, period time.Duration, rate int) (c cost) {
	t.Helper()
	end := func() {}
	if s.neighbor != nil {
		end = s.neighbor()
	}
	n, took := saturate(t, s.client, period)
	end()
	c.rate = float64(n) / took.Seconds()
	ended := time.Now()
	if s.settle != nil {
		s.settle()
		c.behind = time.Since(ended)
	}
	before := cpuTime(t, s.pair)
	p := startPaced(t, s.client, kept, rate)
	pass(t, period)
	latencies := p.end()
	if s.settle != nil {
		s.settle()
	}
	c.latency = p99(latencies)
	c.cpu = (cpuTime(t, s.pair) - before) / time.Duration(len(latencies))
	return c
}

// saturate publishes with 64 publishers, each of which waits for its receipts.
func saturate(t *testing.T, c *client.Client, period time.Duration) (n int64, took time.Duration) {
	t.Helper()
	const publishers = 64
	p, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	defer func() { _ = p.Close() }()
	var all sync.WaitGroup
	var count atomic.Int64
	var failure atomic.Pointer[error]
	began := time.Now()
	for i := range publishers {
		all.Go(func() {
			m := client.Message{Body: body(i, smallBody)}
			for time.Since(began) < period {
				if _, err := p.Publish(t.Context(), kept, m); err != nil {
					failure.Store(&err)
					return
				}
				count.Add(1)
			}
		})
	}
	all.Wait()
	if err := failure.Load(); err != nil {
		require.NoError(t, *err)
	}
	return count.Load(), time.Since(began)
}

// startAlone starts a pair without sites.
func (w *world) startAlone() *harness.Pair {
	w.t.Helper()
	settings := harness.SmallNodes()
	settings["insecure"] = "true"
	p, err := harness.Start(limited(w.t), harness.Options{
		Binary: binary, Dir: filepath.Join(w.dir, "alone"), Settings: settings, EtcdNoSync: true, AFirst: true,
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = p.KillAll() })
	active, _, err := p.WaitInSync(limited(w.t))
	require.NoError(w.t, err)
	_, err = pb.NewQueueServiceClient(active.Conn()).CreateQueue(w.t.Context(), &pb.CreateQueueRequest{Name: kept})
	require.NoError(w.t, err)
	return p
}
