// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

// Package hostile attacks a real node with a process that sends arbitrary TCP, HTTP/2 and AMQP data, while
// legitimate clients publish and consume. The attacks run one after another, with thousands of half-open connections
// throughout. By default, TestHostile takes about half a minute. With
//
//	LOCKSTEP_HOSTILE=10m go test -tags deep ./test/hostile -run 'TestHostile$' -v -timeout 30m
//
// the attacks take that long, and the legitimate client's p99 may at most double compared with the time without
// attacks. This requires an otherwise idle machine. LOCKSTEP_HOSTILE_ONLY selects attacks, separated by commas.
package hostile

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const (
	bound = 60 * time.Second
	// budget is memory.budget of the nodes.
	budget = 512 << 20
	// probeMessages of probeBytes each are stored for consumers that never read.
	probeMessages, probeBytes = 400, 64 << 10
)

func TestMain(m *testing.M) {
	if text := os.Getenv(envAttack); text != "" {
		if err := runAttacker(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if text := os.Getenv(envFrozen); text != "" {
		if err := runFrozen(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	if os.Getenv(envDecoy) != "" {
		if err := runDecoy(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// legitimate is a client that publishes synchronously.
type legitimate struct {
	t      *testing.T
	client *client.Client

	mu    sync.Mutex // guards all fields below
	took  []time.Duration
	ever  []time.Duration // durations before the last call of iterate, since the last call of all
	fails int
}

func (g *legitimate) work(ctx context.Context) {
	for ctx.Err() == nil {
		start := time.Now()
		_, err := g.client.Publish(ctx, "good", client.Message{Body: make([]byte, 512)})
		took := time.Since(start)
		if ctx.Err() != nil {
			return
		}
		g.mu.Lock()
		g.took = append(g.took, took)
		if err != nil {
			g.fails++
			g.t.Errorf("the legitimate client: %v", err)
		}
		g.mu.Unlock()
		pause(ctx, 2*time.Millisecond)
	}
}

// iterate returns median, p99 and number of the publishes since the last call of iterate.
func (g *legitimate) iterate() (median, p99 time.Duration, n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	took := g.took
	g.ever = append(g.ever, took...)
	g.took = nil
	return percentiles(took)
}

// all returns median, p99 and number of the publishes since the last call of all.
func (g *legitimate) all() (median, p99 time.Duration, n int) {
	_, _, _ = g.iterate()
	g.mu.Lock()
	defer g.mu.Unlock()
	took := g.ever
	g.ever = nil
	return percentiles(took)
}

func percentiles(took []time.Duration) (median, p99 time.Duration, n int) {
	slices.Sort(took)
	if len(took) == 0 {
		return 0, 0, 0
	}
	return took[len(took)/2], took[len(took)*99/100], len(took)
}

// consume consumes the published messages.
func consume(ctx context.Context, t *testing.T, k *client.Client) {
	co, err := k.Consume(ctx, "good", client.ConsumerOptions{})
	if err != nil {
		t.Errorf("the legitimate consumer: %v", err)
		return
	}
	defer func() { _ = co.Close() }()
	for d, err := range co.All(ctx) {
		if err != nil {
			if ctx.Err() == nil {
				t.Errorf("the legitimate consumer: %v", err)
			}
			return
		}
		d.Ack()
	}
}

// newConnections continuously creates new connections, which must succeed. It returns their durations.
func newConnections(ctx context.Context, t *testing.T, address string) (took []time.Duration) {
	for ctx.Err() == nil {
		start := time.Now()
		conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
		require.NoError(t, err)
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), bound)
		_, err = pb.NewAdminServiceClient(conn).GetStatus(limited, &pb.GetStatusRequest{}, grpc.WaitForReady(true))
		cancel()
		if err != nil {
			t.Errorf("a new client cannot connect: %v", err)
		}
		took = append(took, time.Since(start))
		_ = conn.Close()
		pause(ctx, 200*time.Millisecond)
	}
	return took
}

// mayOpen returns the number of connections that the attacker may hold, slightly less than the limit of open files.
func mayOpen(t *testing.T) int {
	t.Helper()
	var r syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r))
	n := int(min(r.Cur, 1<<20)) - 1000
	if n < halfOpen {
		t.Logf("ulimit -n allows %d half-open connections instead of %d", max(n, 10), halfOpen)
	}
	return max(n, 10)
}

// own appends the name of a node to the name of a file. If file is empty, own returns "".
func own(file, node string) string {
	if file == "" {
		return ""
	}
	return file + "." + node
}

// victim starts a pair with queues. It also returns the address of the active's metrics.
func victim(t *testing.T, settings map[string]string) (p *cluster.Pair, active, standby *cluster.Node, metrics string) {
	t.Helper()
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	ports := map[string]string{}
	for _, name := range []string{"a", "b"} {
		port, err := harness.ReservePort()
		require.NoError(t, err)
		t.Cleanup(func() { _ = port.Close() })
		ports[name] = port.Address()
	}
	all := map[string]string{"log.level": "info", "memory.budget": "512MiB"}
	maps.Copy(all, settings)
	p, err = cluster.Start(t.Context(), cluster.Options{
		Binary: binary, Dir: t.TempDir(), Settings: all, NodeSettings: map[string]map[string]string{
			"a": {"metrics.listen": ports["a"], "audit.file": own(all["audit.file"], "a")},
			"b": {"metrics.listen": ports["b"], "audit.file": own(all["audit.file"], "b")},
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
	active, standby, err = p.WaitInSync(ctx)
	require.NoError(t, err)
	return p, active, standby, ports[active.Name]
}

// Garbage, half-open connections, floods and consumers that never read cause no errors and little delay for
// legitimate clients. The node does not exceed its memory budget, and leaks no resources.
func TestHostile(t *testing.T) {
	if testing.Short() {
		t.Skip("the test takes half a minute")
	}
	all := chosen(os.Getenv("LOCKSTEP_HOSTILE_ONLY"))
	if len(all) == 0 {
		t.Skip("no selected attack is on this port")
	}
	long, strict := os.LookupEnv("LOCKSTEP_HOSTILE")
	total, settings := 20*time.Second, map[string]string{"limits.handshake-timeout": "1s"}
	if strict {
		var err error
		total, err = time.ParseDuration(long)
		require.NoError(t, err, "LOCKSTEP_HOSTILE")
		settings = nil
	}
	p, active, standby, metrics := victim(t, settings)
	underAttack := plan{Address: active.Address, For: total / time.Duration(len(all)), Files: mayOpen(t), Queue: "target"}
	if runtime.GOOS == "linux" { // all addresses in 127.0.0.0/8 are local, so attacker and legitimate clients differ
		underAttack.From = "127.0.0.2" // incremented for each attack
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	k, err := p.NewClient(ctx)
	require.NoError(t, err)
	defer func() { _ = k.Close() }()
	probe(t, k, &underAttack)

	g := &legitimate{t: t, client: k}
	var working sync.WaitGroup
	defer working.Wait()
	defer cancel()
	working.Go(func() { g.work(ctx) })
	working.Go(func() { consume(ctx, t, k) })
	pause(ctx, 2*time.Second)
	_, _, _ = g.all()
	pause(ctx, max(4*time.Second, total/10))
	quietMedian, baseline, n := g.all()
	goroutines, files := gauge(t, metrics, "go_goroutines"), openFiles(active.PID())
	t.Logf("quiet: median %v, p99 %v of %d; %v goroutines, %v files", quietMedian, baseline, n, goroutines, count(files))
	if strict {
		control(t, g, underAttack, total/20)
	}

	attacked, over := context.WithCancel(ctx)
	arrived := make(chan []time.Duration, 1)
	working.Go(func() { arrived <- newConnections(attacked, t, active.Address) })
	report := map[string]*tally{}
	half := underAttack.from(1)
	half.For = total + total/10
	halfOpened := make(chan struct{})
	go func() {
		defer close(halfOpened)
		attackAll(t, half, report) //nolint:testifylint // asserts without ending the test
	}()
	rows := []string{fmt.Sprintf("%-24s %10s %10s %10s %12s", "attack", "attempts", "median", "p99", "processor")}
	for i, a := range all {
		one := underAttack.from(2 + i)
		one.Attack, one.AllPorts = a.name, one.From != "" && a.name == "many addresses"
		if i == len(all)/2 {
			recovers(t, p, standby)
		}
		mine := map[string]*tally{}
		spent, start := processorTime(t, active.PID()), time.Now()
		attackAll(t, one, mine)
		spent = processorTime(t, active.PID()) - spent
		took := time.Since(start)
		median, p99, _ := g.iterate()
		fired := 0
		for _, tl := range mine {
			fired += tl.Fired
		}
		rows = append(rows, fmt.Sprintf("%-24s %10d %10s %10s %10.0f %%", a.name, fired, rounded(median), rounded(p99),
			100*spent.Seconds()/took.Seconds()))
		logSummary(t, mine)
	}
	<-halfOpened
	over()
	came := <-arrived
	median, p99, n := g.all()
	logSummary(t, report)
	slices.Sort(came)
	t.Logf("the legitimate client during each attack, and the CPU usage of the node:\n%s", strings.Join(rows, "\n"))
	t.Logf("under attack: median %v, p99 %v of %d (%.2f times the baseline); %d new clients, the slowest took %v", median,
		p99, n, float64(p99)/float64(baseline), len(came), came[len(came)-1])
	peak := peakMemory(t, active.PID())
	t.Logf("memory: %d MiB at most, budget %d MiB", peak>>20, budget>>20)

	require.Zero(t, g.fails)
	require.LessOrEqual(t, peak, int64(budget+budget/10), "memory")
	most := max(20*baseline, time.Second) // the machine may have other load
	if strict {
		most = 2 * baseline
	}
	assert.LessOrEqual(t, p99, most, "p99 of the legitimate client; without an attack it is %v", baseline)
	requireNoLeaks(t, metrics, active.PID(), goroutines, files)
}

// requireNoLeaks waits until the active has about as many goroutines and open files as before the attack.
func requireNoLeaks(t *testing.T, metrics string, pid int, goroutines float64, files map[string]int) {
	t.Helper()
	require.Eventually(t, func() bool {
		now, open := gauge(t, metrics, "go_goroutines"), openFiles(pid)
		back := now <= goroutines+10 && count(open) <= count(files)+5
		if !back {
			t.Logf("%v goroutines, %v files: %v", now, count(open), open)
		}
		return back
	}, bound, 2*time.Second, "goroutines and files do not return to %v and %v", goroutines, files)
	t.Logf("goroutines and files: %v and %v before, %v and %v afterwards", goroutines, count(files),
		gauge(t, metrics, "go_goroutines"), count(openFiles(pid)))
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// from returns the plan with a separate source address, where available, so that limits reached by one attacker do not
// affect another attacker.
func (p plan) from(i int) plan {
	if p.From != "" {
		p.From = fmt.Sprint("127.0.0.", 2+i)
	}
	return p
}

// control runs some attacks against another process, and logs their effect on the legitimate client. This is the
// effect of sharing CPUs with the attacker, which no node can avoid.
func control(t *testing.T, g *legitimate, attack plan, each time.Duration) {
	t.Helper()
	attack.Address = decoy(t)
	for _, name := range []string{"truncated frame", "rapid reset", "ping flood"} {
		attack.Attack, attack.For = name, each
		mine := map[string]*tally{}
		attackAll(t, attack, mine)
		median, p99, _ := g.iterate()
		t.Logf("%s against another process, %d attempts: the legitimate client has median %v, p99 %v", name, mine[name].Fired,
			rounded(median), rounded(p99))
	}
	_, _, _ = g.all()
}

// chosen returns the attacks in a comma-separated list, or all attacks if the list is empty.
func chosen(names string) []attack { return chosenFrom(attacks(), names) }

func chosenFrom(all []attack, names string) []attack {
	if names == "" {
		return all
	}
	return slices.DeleteFunc(all, func(a attack) bool { return !slices.Contains(strings.Split(names, ","), a.name) })
}

// probe publishes messages for never-reading consumers.
func probe(t *testing.T, k *client.Client, attack *plan) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	for i := range 32 {
		attack.Subscriptions = append(attack.Subscriptions, fmt.Sprint("s", i))
	}
	_, _, err := admin.New(k).CreateQueue(ctx, "good", admin.CreateQueueOptions{})
	require.NoError(t, err)
	_, _, err = admin.New(k).CreateQueue(ctx, attack.Queue, admin.CreateQueueOptions{Subscriptions: attack.Subscriptions})
	require.NoError(t, err)
	for range probeMessages {
		_, err := k.Publish(ctx, attack.Queue, client.Message{Body: bytes.Repeat([]byte("b"), probeBytes)})
		require.NoError(t, err)
	}
}

// attackAll runs an attacker to its end, and records its results.
func attackAll(t *testing.T, attack plan, report map[string]*tally) {
	text, err := json.Marshal(attack)
	require.NoError(t, err)
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envAttack+"="+string(text))
	cmd.Dir = filepath.Dir(os.Args[0])
	cmd.Stdout, cmd.Stderr = &out, &errs
	assert.NoError(t, cmd.Run(), "%s", errs.String())
	assert.NoError(t, json.Unmarshal(out.Bytes(), &report), "%s", out.String())
	assert.NotEmpty(t, report, "%s made no attempt", attack.Attack)
}

// logSummary logs how the attacks ended.
func logSummary(t *testing.T, report map[string]*tally) {
	t.Helper()
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(report)) {
		fmt.Fprintf(&b, "  %-24s %7d: ", name, report[name].Fired)
		ends := report[name].Ends
		for i, end := range slices.Sorted(maps.Keys(ends)) {
			if i > 0 {
				b.WriteString(", ")
			}
			fmt.Fprintf(&b, "%s %d", end, ends[end])
		}
		b.WriteByte('\n')
	}
	t.Logf("%s", strings.TrimSpace(b.String()))
}

// recovers restarts the standby during the attack, and waits until it is in sync again.
func recovers(t *testing.T, p *cluster.Pair, standby *cluster.Node) {
	t.Helper()
	start := time.Now()
	require.NoError(t, standby.Stop())
	require.NoError(t, standby.Start())
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	_, _, err := p.WaitInSync(ctx)
	require.NoError(t, err, "the standby cannot connect during the attack")
	t.Logf("the standby was stopped, started and in sync within %v", time.Since(start))
}
