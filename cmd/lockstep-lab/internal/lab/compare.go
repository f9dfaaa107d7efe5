// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/benchcli"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/measure"
	"github.com/lockstep-mq/lockstep/server/config"
)

// envPeers is the environment variable with the default of --peers.
const envPeers = "LOCKSTEP_PEERS"

type compareFlags struct {
	benchcli.Flags
	peersDir string // contains a directory for each peer
	lock     string
	syncs    []string
	configs  []string // configurations of NATS
	bursts   int
	batch    int
	limit    int64
	peers    map[string]measure.Peer // peers that were found
	missing  []string
}

func (f *compareFlags) register(cmd *cobra.Command, env *cli.Env) {
	dir, _ := env.Lookup(envPeers)
	cmd.Flags().StringVar(&f.peersDir, "peers", dir,
		"directory that contains a directory per peer (environment: "+envPeers+")")
	cmd.Flags().StringVar(&f.lock, "lock", filepath.Join(os.TempDir(), "bench.lock"),
		"file that is locked during measurements, so that they do not overlap; empty: none")
}

// check validates the flags. limit is the value of --memory-limit.
func (f *compareFlags) check(limit string) (p benchcli.Params, err error) {
	if len(f.syncs) == 0 {
		return p, cli.Usage("--sync is empty")
	}
	f.Sync = f.syncs[0] // all sync modes are checked below
	if p, err = f.Parse(); err != nil {
		return p, err
	}
	if f.Duration < 100*time.Millisecond || f.bursts < 1 || f.batch < 1 {
		return p, cli.Usage("--duration must be at least 100ms, and --bursts and --batch at least 1")
	}
	for _, s := range f.syncs {
		if s != "always" && s != "off" {
			return p, cli.Usage("--sync %q: must be always or off", s)
		}
	}
	if limit != "" {
		bytes, err := config.ParseSize(limit)
		if err != nil {
			return p, cli.Usage("--memory-limit: %v", err)
		}
		f.limit = int64(bytes)
	}
	return p, nil
}

// find locates the peers. A missing peer is not an error; print reports it.
func (f *compareFlags) find(env *cli.Env, dir, command string, names ...string) error {
	f.peers = map[string]measure.Peer{}
	for _, name := range names {
		d := dir
		if d == "" && f.peersDir != "" {
			d = filepath.Join(f.peersDir, name)
		}
		p, err := measure.FindPeer(name, d, command)
		if errors.Is(err, measure.ErrNoPeer) {
			f.missing = append(f.missing, err.Error())
			continue
		}
		if err != nil {
			return err
		}
		p.Stderr = env.Stderr
		f.peers[name] = p
	}
	return nil
}

const compareLong = `Run the benchmark of another product (peer) and that of Lockstep alternately. The benchmark of a
peer is the program in --peer-command, or the program "run" in --peer-dir or in the directory with the name of the
peer in --peers. Without a peer, only Lockstep is measured.

nats compares one server (r1) or three servers (r3) with a pair or a standalone node of Lockstep: publishing with 1
and 64 publishers that wait for each acknowledgement and with 5 pipelined publishers, and consuming with 5 consumers.
The default sizes are 512 and 15,000 bytes.

chronicle compares bursts of --messages, which are written and read back, with the embedded store of Lockstep.`

func compareCommand(env *cli.Env) *cobra.Command {
	var f compareFlags
	var peer, dir, command, limit string
	cmd := &cobra.Command{
		Use: "compare", Short: "Compare with another product",
		Long: compareLong,
		Example: `  lockstep-lab compare --peer nats --peers ~/peers --rounds 3
  lockstep-lab compare --peer nats --peer-dir ~/peers/nats --configs r3 --sync always --size 512 --duration 5s
  lockstep-lab compare --peer chronicle --peer-dir ~/peers/chronicle --messages 2000000 --bursts 4
  lockstep-lab compare --peer chronicle --sync always --messages 200000 --batch 100 --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if peer == measure.PeerNATS && !cmd.Flags().Changed("size") {
				f.Sizes = []string{"512", "15000"}
			}
			p, err := f.check(limit)
			if err != nil {
				return err
			}
			if err := f.find(env, dir, command, peer); err != nil {
				return err
			}
			c := &comparer{env: env, cmd: cmd, f: f, p: p}
			switch peer {
			case measure.PeerNATS:
				err = c.natsRounds(cmd.Context())
			case measure.PeerChronicle:
				err = c.chronicleRounds(cmd.Context())
			default:
				err = cli.Usage("--peer %q: must be nats or chronicle", peer)
			}
			if err != nil {
				return err
			}
			return c.print()
		},
	}
	f.RegisterNodes(cmd)
	f.RegisterCommon(cmd)
	f.register(cmd, env)
	benchcli.SetDefaults(cmd, map[string]string{"messages": "2000000"})
	for name, text := range map[string]string{
		"messages":   "chronicle: messages per burst",
		"size":       "message sizes in bytes, measured in sequence; default for nats: 512,15000",
		"pair":       "nats: compare with a pair (default)",
		"standalone": "nats: compare with a standalone node",
		"page-size":  "page size of the nodes or of the embedded store of Lockstep",
		"memory":     "memory budget of a node; the embedded store uses half of it",
	} {
		cmd.Flags().Lookup(name).Usage = text
	}
	cmd.Flags().StringSliceVar(&f.syncs, "sync", []string{"off"},
		"sync modes to measure on both sides: off, always")
	cmd.Flags().StringVar(&peer, "peer", measure.PeerNATS, "peer: nats or chronicle")
	cmd.Flags().StringVar(&dir, "peer-dir", "",
		"directory of the peer's benchmark; default: the directory with that name in --peers")
	cmd.Flags().StringVar(&command, "peer-command", "",
		"the peer's benchmark, instead of the program \"run\" in its directory")
	cmd.Flags().StringSliceVar(&f.configs, "configs", []string{"r1", "r3"},
		"nats: number of servers, r1 for one and r3 for three")
	cmd.Flags().DurationVar(&f.Duration, "duration", 10*time.Second, "nats: duration of each publishing workload")
	cmd.Flags().IntVar(&f.bursts, "bursts", 4, "chronicle: number of bursts, each of --messages")
	cmd.Flags().IntVar(&f.batch, "batch", 100,
		"chronicle: messages per transaction of Lockstep, and between two syncs of the peer")
	cmd.Flags().StringVar(&limit, "memory-limit", "",
		"chronicle: memory limit of each process with its page cache, such as 2GiB")
	return cmd
}

type comparer struct {
	env   *cli.Env
	cmd   *cobra.Command
	f     compareFlags
	p     benchcli.Params
	c     measure.Comparisons
	round int
}

type ourCase struct {
	name    string
	only    int // the only message size of the case; 0: all sizes
	publish bench.PublishOptions
	consume bench.ConsumeOptions // instead of publish, if Consumers is above 0
}

func ourCases() []ourCase {
	return []ourCase{
		{name: measure.CasePub1, publish: bench.PublishOptions{Producers: 1, Window: 1, Queues: 1}},
		{name: measure.CasePub64, publish: bench.PublishOptions{Producers: 5, Publishers: 64, Window: 1, Queues: 5}},
		{name: measure.CasePipelined, publish: bench.PublishOptions{Producers: 5, Window: 1000, Queues: 5}},
		{name: measure.CaseConsume, consume: bench.ConsumeOptions{Consumers: 5, Queues: 5, Prefetch: 1000}},
		{name: measure.CasePub64One, only: 512, publish: bench.PublishOptions{
			Producers: 5, Publishers: 64, Window: 1,
			Queues: 1,
		}},
		{name: measure.CaseConsume1, only: 512, consume: bench.ConsumeOptions{Consumers: 5, Queues: 1, Prefetch: 1000}},
	}
}

func (c *comparer) logf(format string, args ...any) {
	_, _ = fmt.Fprintf(c.env.Stderr, "round %d: %s\n", c.round, fmt.Sprintf(format, args...)) // informative only
}

func (c *comparer) alone(ctx context.Context, fn func() error) (err error) {
	unlock, err := measure.Lock(ctx, c.f.lock, func() { c.logf("another benchmark is running; waiting for %s", c.f.lock) })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock()) }()
	return fn()
}

// In each round, natsRounds measures the first configuration of the peer, then Lockstep, then the other
// configurations of the peer.
func (c *comparer) natsRounds(ctx context.Context) error {
	for c.round = 1; c.round <= c.f.Rounds; c.round++ {
		for _, sync := range c.f.syncs {
			for i, configuration := range c.f.configs {
				if err := c.nats(ctx, configuration, sync); err != nil {
					return err
				}
				if i > 0 {
					continue
				}
				for _, size := range c.p.Sizes {
					if err := c.ours(ctx, sync, size); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// nats runs the benchmark of the peer. It does not acquire the lock: the program of the peer acquires it.
func (c *comparer) nats(ctx context.Context, configuration, sync string) (err error) {
	p, ok := c.f.peers[measure.PeerNATS]
	if !ok {
		return nil
	}
	name := "nats-" + configuration
	if sync == "always" {
		configuration += "-always"
	}
	dir, remove, err := bench.NewDir(c.f.Dir)
	if err != nil {
		return err
	}
	defer remove()
	c.logf("nats %s", configuration)
	results, err := measure.NATS(ctx, p, measure.NATSOptions{
		Config: configuration, Sizes: c.p.Sizes,
		Duration: c.f.Duration, Dir: dir,
	})
	if err != nil {
		return err
	}
	for _, r := range results {
		r.Round, r.Sync = c.round, sync
		c.c.Peer(name, sync, r)
		if err := c.env.Print.Object(r); err != nil {
			return err
		}
	}
	return nil
}

// ours measures all cases of Lockstep with one size on fresh nodes, as the peer does.
func (c *comparer) ours(ctx context.Context, sync string, size int) error {
	f := c.f.Flags
	f.Sync, f.Pair = sync, !f.Standalone
	return c.alone(ctx, func() error {
		c.logf("lockstep, sync=%s, %d bytes", sync, size)
		return benchcli.WithTarget(ctx, c.env, c.cmd, f, c.p, func(t bench.Target) error {
			for _, o := range ourCases() {
				if o.only != 0 && o.only != size {
					continue
				}
				r, err := c.ourCase(ctx, t, o, sync, size)
				if err != nil {
					return fmt.Errorf("%s: %w", o.name, err)
				}
				r.Round, r.Case = c.round, o.name
				c.c.Ours(r)
				if err := c.env.Print.Object(r); err != nil {
					return err
				}
			}
			return nil
		})
	})
}

func (c *comparer) ourCase(
	ctx context.Context, t bench.Target, o ourCase, sync string, size int,
) (bench.Result, error) {
	if o.consume.Consumers == 0 {
		o.publish.SizeBytes, o.publish.Duration = size, c.f.Duration
		if o.publish.Window > 1 { // more than a few MB in flight only add latency
			const bytes, least = 4 << 20, 16
			o.publish.Window = max(least, min(o.publish.Window, bytes/max(size, 1)))
		}
		return bench.Publish(ctx, t, o.publish)
	}
	o.consume.SizeBytes = size
	// Consume as many messages as the peer did; without a peer, a number that takes a few seconds.
	if o.consume.Messages = c.c.Messages(o.name, sync, size); o.consume.Messages == 0 {
		const bytes, most = 600 << 20, 400_000
		o.consume.Messages = min(bytes/max(size, 1), most)
	}
	return bench.Consume(ctx, t, o.consume)
}

// chronicleRounds alternates between the peer and the embedded store of Lockstep.
func (c *comparer) chronicleRounds(ctx context.Context) error {
	for c.round = 1; c.round <= c.f.Rounds; c.round++ {
		for _, sync := range c.f.syncs {
			for _, size := range c.p.Sizes {
				for _, side := range []func(context.Context, string, string, int) error{c.chronicle, c.ourStore} {
					if err := c.embedded(ctx, sync, size, side); err != nil {
						return err
					}
				}
			}
		}
	}
	return nil
}

// embedded runs one side in a new directory. It first writes and deletes as much data there as the side will use.
func (c *comparer) embedded(
	ctx context.Context, sync string, size int, side func(ctx context.Context, dir, sync string, size int) error,
) error {
	return c.alone(ctx, func() error {
		dir, remove, err := bench.NewDir(c.f.Dir)
		if err != nil {
			return err
		}
		defer remove()
		if err := measure.Warm(ctx, dir, measure.StoreBytes(c.f.Messages, c.f.bursts, size)); err != nil {
			return err
		}
		return side(ctx, dir, sync, size)
	})
}

func (c *comparer) chronicle(ctx context.Context, dir, sync string, size int) error {
	p, ok := c.f.peers[measure.PeerChronicle]
	if !ok {
		return nil
	}
	c.logf("chronicle, sync=%s, %d bytes", sync, size)
	o := measure.ChronicleOptions{
		SizeBytes: size, Messages: c.f.Messages, Bursts: c.f.bursts, MemoryLimit: c.f.limit,
		Dir: filepath.Join(dir, "queue"),
	}
	if sync == "always" {
		o.Batch = c.f.batch
	}
	results, err := measure.Chronicle(ctx, p, o)
	if err != nil {
		return err
	}
	for _, r := range results {
		r.Round, r.Sync = c.round, sync
		c.c.Peer(measure.PeerChronicle, sync, r)
		if err := c.env.Print.Object(r); err != nil {
			return err
		}
	}
	return nil
}

// ourStore measures the embedded store in a separate process, like the peer.
func (c *comparer) ourStore(ctx context.Context, dir, sync string, size int) error {
	c.logf("lockstep embedded, sync=%s, %d bytes", sync, size)
	args := []string{
		"store", "--rounds=1", "--dir=" + dir, "--sync=" + sync, "--size=" + strconv.Itoa(size),
		"--messages=" + strconv.Itoa(c.f.Messages),
		"--bursts=" + strconv.Itoa(c.f.bursts), "--batch=" + strconv.Itoa(c.f.batch), "--page-size=" + c.f.PageSize,
		"--memory=" + c.f.Memory,
		"--page-cache=" + c.f.PageCache,
	}
	if c.f.limit > 0 {
		args = append(args, "--memory-limit="+config.Size(c.f.limit).String())
	}
	results, err := benchProcess(ctx, c.env.Stderr, args...)
	if err != nil {
		return err
	}
	for _, r := range results {
		if r.Median || r.Burst == 0 {
			continue
		}
		r.Round, r.Case = c.round, map[string]string{"write": measure.CaseWrite, "read": measure.CaseRead}[r.Phase]
		c.c.Ours(r)
		if err := c.env.Print.Object(r); err != nil {
			return err
		}
	}
	return nil
}

func benchProcess(ctx context.Context, stderr io.Writer, args ...string) (results []bench.Result, err error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find the path of this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, binary, append([]string{"--output=json"}, args...)...)
	cmd.Stderr = stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) } // on this signal, the process removes its data
	cmd.WaitDelay = time.Minute
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("lockstep-lab %v: %w", args, err)
	}
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var r bench.Result
		if err := dec.Decode(&r); errors.Is(err, io.EOF) {
			return results, nil
		} else if err != nil {
			return nil, fmt.Errorf("lockstep-lab %v: %w", args, err)
		}
		results = append(results, r)
	}
}

func (c *comparer) print() error {
	list := c.c.List()
	for _, x := range list {
		if err := c.env.Print.Object(x); err != nil {
			return err
		}
	}
	if err := printComparisons(c.env, list); err != nil {
		return err
	}
	for _, m := range c.f.missing {
		if err := c.env.Print.Sentence("%s", m); err != nil {
			return err
		}
	}
	return nil
}

func printComparisons(env *cli.Env, list []measure.Comparison) error {
	var peers []string
	for i := range list {
		for _, p := range list[i].Peers {
			if !slices.Contains(peers, p.Name) {
				peers = append(peers, p.Name)
			}
		}
	}
	slices.Sort(peers)
	header := []string{"Measured", "Sync", ">Bytes", ">Rate/s", ">Spread", ">p50 ms", ">p99 ms"}
	for _, p := range peers {
		header = append(header, ">× "+p, ">"+p+"/s", ">Spread ", ">p50 ms", ">p99 ms")
	}
	header = append(header, "")
	rows := make([][]any, 0, len(list))
	for i := range list {
		x := &list[i]
		row := append([]any{x.Case, x.Sync, x.SizeBytes}, sideColumns(&x.Ours)...)
		for _, name := range peers {
			j := slices.IndexFunc(x.Peers, func(s measure.Side) bool { return s.Name == name })
			if j < 0 {
				row = append(row, "", "", "", "", "")
				continue
			}
			row = append(append(row, fmt.Sprintf("%.2f", x.Peers[j].Ratio)), sideColumns(&x.Peers[j])...)
		}
		rows = append(rows, append(row, x.Ours.Remark))
	}
	return env.Print.Table(header, rows)
}

func sideColumns(s *measure.Side) []any {
	spread, p50, p99 := "", "", ""
	if s.RateMax > s.RateMin {
		spread = fmt.Sprintf("%.0f–%.0f", s.RateMin, s.RateMax)
	}
	if s.P99 > 0 {
		p50, p99 = benchcli.Digits(s.P50), benchcli.Digits(s.P99)
	}
	return []any{number(s.Rate, 0), spread, p50, p99}
}
