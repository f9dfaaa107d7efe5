// SPDX-License-Identifier: Apache-2.0

//go:build unix && measure

package detection

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
	"github.com/lockstep-mq/lockstep/test/vfs/faultdisk"
)

var (
	forFlag      = flag.Duration("for", 7*time.Minute, "duration of each situation")
	settingsFlag = flag.String("settings", "1s/600ms 2s/1500ms",
		"failover.timeout/failover.drop-timeout of each pair")
	scenariosFlag = flag.String("situations", "quiet busy fsync gc stop", "situations, measured one after the other")
)

const (
	every      = 5 * time.Second        // interval between two faults, alternately on the two nodes
	fsyncStall = 300 * time.Millisecond // syncs that begin during this time wait for its end
	stop       = 200 * time.Millisecond // time between SIGSTOP and SIGCONT
	busy       = 16                     // number of busy processes
	bodyBytes  = 1 << 10
	pace       = 20 * time.Millisecond // between two publishes
	bound      = 5 * time.Minute
)

// variable is the environment variable that makes this program run as a busy process.
const variable = "DETECTION_PROCESS"

func TestMain(m *testing.M) {
	switch os.Getenv(variable) {
	case "":
		os.Exit(m.Run())
	case "busy":
		for os.Getppid() != 1 {
			for i := range 1 << 28 {
				runtime.KeepAlive(i)
			}
		}
	case "allocate":
		allocate()
	}
}

// allocate replaces the elements of a list of 256 MiB in a loop, so that the garbage collector runs continuously.
func allocate() {
	live := make([]*[1 << 12]*int, 1<<13)
	for i := 0; i&0xffff != 0 || os.Getppid() != 1; i++ {
		live[i%len(live)] = new([1 << 12]*int)
	}
}

// row is the result of one pair.
type row struct {
	scenario, setting string
	faults            uint64
	takeovers, drops  int
	outage            time.Duration // longest outage, as logged by the nodes
	publishes         int
	slowest           time.Duration
	longestStop       time.Duration
	span              time.Duration
}

// TestDetection measures all settings in all scenarios, and logs a table. It checks no limits.
func TestDetection(t *testing.T) {
	dir := t.TempDir()
	binary, err := cluster.Build(t.Context(), dir)
	require.NoError(t, err)
	var rows []row
	for _, scenario := range strings.Fields(*scenariosFlag) {
		t.Run(scenario, func(t *testing.T) {
			found := measure(t, binary, filepath.Join(dir, scenario), scenario)
			rows = append(rows, found...)
			t.Logf("\n%s", table(found))
		})
	}
	t.Logf("all:\n%s", table(rows))
}

// measure runs one scenario with a pair for each setting, in parallel.
func measure(t *testing.T, binary, dir, scenario string) []row {
	t.Helper()
	if scenario == "gc" {
		t.Setenv("GOGC", "5")
	}
	var pairs []*pair
	for i, setting := range strings.Fields(*settingsFlag) {
		p := &pair{row: row{scenario: scenario, setting: setting}, breakDisks: cluster.CanBreakDisks(binary)}
		p.start(t, binary, filepath.Join(dir, fmt.Sprint(i)))
		pairs = append(pairs, p)
	}
	switch scenario {
	case "busy":
		load(t, "busy", busy)
	case "gc":
		load(t, "allocate", runtime.NumCPU())
	}
	ctx, cancel := context.WithTimeout(t.Context(), *forFlag)
	defer cancel()
	var wg sync.WaitGroup
	errs := make([]error, 2*len(pairs))
	for i, p := range pairs {
		wg.Go(func() { errs[2*i] = p.publish(ctx) })
		wg.Go(func() { errs[2*i+1] = p.inject(ctx) })
	}
	wg.Wait()
	require.NoError(t, errors.Join(errs...))
	rows := make([]row, len(pairs))
	for i, p := range pairs {
		p.count(t)
		rows[i] = p.row
	}
	return rows
}

// load starts busy processes, which end with the test.
func load(t *testing.T, kind string, count int) {
	t.Helper()
	for range count {
		cmd := exec.CommandContext(t.Context(), os.Args[0])
		cmd.Env = append(slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, "GOGC=") }),
			variable+"="+kind, "GOMAXPROCS=1")
		if kind == "allocate" {
			cmd.Env = append(cmd.Env, "GOGC=10")
		}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
	}
}

// pair is a pair of nodes with a publisher.
type pair struct {
	row
	*cluster.Pair
	breakDisks bool
	client     *client.Client
	from       [2]int // positions in the nodes' logs
}

func (p *pair) start(t *testing.T, binary, dir string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	timeout, drop, ok := strings.Cut(p.setting, "/")
	require.True(t, ok, "setting %q", p.setting)
	settings := map[string]string{
		"memory.budget": "256MiB", "failover.timeout": timeout, "failover.drop-timeout": drop,
	}
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	var err error
	p.Pair, err = cluster.Start(ctx, cluster.Options{
		Binary: binary, Dir: dir, Settings: settings, Disk: p.breakDisks && p.scenario == "fsync",
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Close() })
	_, _, err = p.WaitInSync(ctx)
	require.NoError(t, err)
	p.client, err = p.NewClient(ctx)
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.client.Close() })
	_, _, err = admin.New(p.client).CreateQueue(ctx, "q", admin.CreateQueueOptions{Subscriptions: []string{"s"}})
	require.NoError(t, err)
	for i, n := range p.Nodes() {
		log, err := os.ReadFile(n.LogFile())
		require.NoError(t, err)
		p.from[i] = len(log)
	}
}

// publish publishes synchronously until ctx is done.
func (p *pair) publish(ctx context.Context) error {
	start := time.Now()
	for body := make([]byte, bodyBytes); ctx.Err() == nil; p.publishes++ {
		from := time.Now()
		if _, err := p.client.Publish(context.WithoutCancel(ctx), "q", client.Message{Body: body}); err != nil {
			return fmt.Errorf("%s, %s: %w", p.scenario, p.setting, err)
		}
		p.slowest = max(p.slowest, time.Since(from))
		<-time.After(pace)
	}
	p.span = time.Since(start)
	return nil
}

// inject injects the scenario's fault at intervals, alternately into the two nodes.
func (p *pair) inject(ctx context.Context) error {
	if p.scenario != "fsync" && p.scenario != "stop" {
		return nil
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		n := p.Nodes()[i%2]
		if err := p.once(context.WithoutCancel(ctx), n); err != nil {
			return err
		}
	}
}

func (p *pair) once(ctx context.Context, n *cluster.Node) error {
	if p.scenario == "stop" {
		from := time.Now()
		if err := n.Pause(); err != nil {
			return err
		}
		<-time.After(stop)
		err := n.Wake()
		p.longestStop = max(p.longestStop, time.Since(from))
		p.faults++
		return err
	}
	if err := n.SetDisk(ctx, faultdisk.State{Rules: []faultdisk.Rule{{Ops: []string{"sync"}, Stall: true}}}); err != nil {
		return err
	}
	from := time.Now()
	<-time.After(fsyncStall)
	hits, err := n.DiskHits(ctx)
	if err != nil {
		return err
	}
	if hits[0] > 0 {
		p.faults++
	}
	err = n.SetDisk(ctx, faultdisk.State{})
	p.longestStop = max(p.longestStop, time.Since(from))
	return err
}

// count reads the nodes' logs, and adds takeovers, dropped standbys and the longest silence to the row.
func (p *pair) count(t *testing.T) {
	t.Helper()
	for i, n := range p.Nodes() {
		events, err := n.Events(p.from[i])
		require.NoError(t, err)
		for _, e := range events {
			switch {
			case e.Name == cluster.EventRole && e.Is("to", "ACTIVATING"):
				p.takeovers++
			case e.Name == "standby lost":
				p.drops++
				t.Logf("%s, %s: %v", p.scenario, p.setting, e)
			case e.Name == "other node was silent":
				silent, err := time.ParseDuration(fmt.Sprint(e.Fields["for"], "s"))
				require.NoError(t, err)
				p.outage = max(p.outage, silent)
			}
		}
	}
}

// table returns a Markdown table.
func table(rows []row) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 1, ' ', 0)
	fmt.Fprintln(w, "| situation\t| setting\t| min\t| faults\t| longest fault\t| takeovers\t| dropped standbys\t"+
		"| longest silence\t| publishes\t| longest publish\t|")
	fmt.Fprintln(w, "|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|---\t|")
	ms := func(d time.Duration) string { return fmt.Sprintf("%d ms", d.Milliseconds()) }
	for _, r := range rows {
		fmt.Fprintf(w, "| %s\t| %s\t| %.1f\t| %d\t| %s\t| %d\t| %d\t| %s\t| %d\t| %s\t|\n", r.scenario, r.setting,
			r.span.Minutes(), r.faults, ms(r.longestStop), r.takeovers, r.drops, ms(r.outage), r.publishes, ms(r.slowest))
	}
	_ = w.Flush()
	return b.String()
}
