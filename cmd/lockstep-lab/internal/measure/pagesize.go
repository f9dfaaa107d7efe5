// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/lockstep-mq/lockstep/client"
	clientadmin "github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// Group is a number of messages of one size.
type Group struct{ Messages, SizeBytes int }

// PageSizeOptions configure the comparison.
type PageSizeOptions struct {
	// Mix of messages.
	Mix []Group
	// Senders at the same time, distributed over Queues. The number of consumers equals that of queues.
	Senders, Queues int
	// Window of each sender, Prefetch of each consumer.
	Window, Prefetch int
	// PageSize to compare with, in bytes; 0: the recommendation of a scan of the full store.
	PageSize int
	// PageSizeMax bounds the recommendation, in bytes; 0: the setting.
	PageSizeMax int
}

// name returns the mix for the results; empty if all messages have the same size.
func (o *PageSizeOptions) name() string {
	if len(o.Mix) < 2 {
		return ""
	}
	var parts []string
	for _, g := range o.Mix {
		parts = append(parts, fmt.Sprintf("%dx%d", g.Messages, g.SizeBytes))
	}
	return strings.Join(parts, ",")
}

// sizes returns the size of each message, in a deterministic order.
func (o *PageSizeOptions) sizes() (sizes []int, total int64) {
	for _, g := range o.Mix {
		for range g.Messages {
			sizes = append(sizes, g.SizeBytes)
			total += int64(g.SizeBytes)
		}
	}
	rng := rand.New(rand.NewPCG(1, 2))
	rng.Shuffle(len(sizes), func(i, j int) { sizes[i], sizes[j] = sizes[j], sizes[i] })
	return sizes, total
}

// Phases of a Result: producing, producing again before the rewrite, and the rewrite.
const (
	PhaseProduce = "produce"
	PhaseRefill  = "refill"
	PhaseRewrite = "rewrite"
)

// pageSizeRun is one comparison in progress.
type pageSizeRun struct {
	PageSizeOptions
	t      bench.Target
	queues []string
	sizes  []int
	bytes  int64 // of all bodies
	report func(bench.Result) error
}

// PageSize measures producing all messages and then consuming all, with the initial page size of the nodes. It then
// fills the queues again, scans, and rewrites the page files. It measures consuming the rewritten messages, and
// producing and consuming again. It reports one result for each phase. The results of the refill and of the rewrite
// include the start time of the nodes, with the same messages in pages of both sizes.
//
// The amount written to the disk includes a checkpoint and the dirty page cache. A standalone node rewrites during a
// restart. The nodes of a pair rewrite one after the other, as standbys.
func PageSize(ctx context.Context, t bench.Target, o PageSizeOptions, report func(bench.Result) error) error {
	if t.Pair == nil {
		return errors.New("comparing page sizes requires nodes started by the benchmark")
	}
	r := &pageSizeRun{PageSizeOptions: o, t: t, queues: bench.QueueNames(o.Queues), report: report}
	r.sizes, r.bytes = o.sizes()
	return bench.WithQueues(ctx, t.Client, r.queues, func() error {
		for _, step := range []func(context.Context) error{
			r.warmUp, r.produce(PhaseProduce), r.consume("consume"), r.produce(PhaseRefill), r.rewrite,
			r.consume("consume rewritten"),
			r.produce(PhaseProduce), r.consume("consume"),
		} {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return nil
	})
}

// warmUpMessages are produced and consumed before the first phase, to open connections and allocate memory.
const warmUpMessages = 2000

func (r *pageSizeRun) warmUp(ctx context.Context) error {
	report, sizes := r.report, r.sizes
	defer func() { r.report, r.sizes = report, sizes }()
	r.report, r.sizes = func(bench.Result) error { return nil }, sizes[:min(len(sizes), warmUpMessages)]
	if err := r.produce("warm-up")(ctx); err != nil {
		return err
	}
	return r.consume("warm-up")(ctx)
}

// phase measures one phase, and the checkpoint after it.
func (r *pageSizeRun) phase(ctx context.Context, name string, fn func() (*hdrhistogram.Histogram, error)) error {
	bench.SyncDisk(r.t.Dir)
	out := bench.Result{
		Workload: "pagesize", Phase: name, Setup: r.t.Setup, Sync: r.t.Sync,
		SizeBytes: int(r.bytes / int64(len(r.sizes))), Mix: r.name(),
		Queues: r.Queues, Producers: r.Senders, Window: r.Window, Prefetch: r.Prefetch,
	}
	for _, n := range r.t.Pair.Nodes { // a restarted process has a new ID
		r.t.Processes[n.Name] = n.PID()
	}
	bench.ResetPeaks(r.t.Processes)
	m, start := bench.NewMeter(r.t.Processes, r.t.Dir), time.Now()
	h, err := fn()
	if err != nil {
		return err
	}
	out.Took(time.Since(start), len(r.sizes), h)
	if err := r.finish(ctx, &out, m); err != nil {
		return err
	}
	if name == PhaseRefill {
		if out.StartMS, err = r.start(ctx); err != nil {
			return err
		}
	}
	return r.report(out)
}

// starts is the number of starts for the median.
const starts = 3

// start restarts all nodes several times. It returns the median of the milliseconds from the start until they serve;
// for a pair, until they are in sync. Their data is in the page files, except for the log that a checkpoint at the end
// leaves.
func (r *pageSizeRun) start(ctx context.Context) (ms float64, err error) {
	var all []float64
	for range starts {
		var again bench.Result
		if err := restartAll(ctx, r.t, &again); err != nil {
			return 0, err
		}
		all = append(all, again.StartMS)
	}
	slices.Sort(all)
	return all[len(all)/2], nil
}

// finish writes dirty data to the disk, and sets the cost and the file sizes.
func (r *pageSizeRun) finish(ctx context.Context, out *bench.Result, m *bench.Meter) error {
	for _, n := range r.t.Pair.Nodes {
		admin, err := clientadmin.New(r.t.Client).Node(n.Address)
		if err != nil {
			return err
		}
		if _, err := admin.Checkpoint(ctx); err != nil {
			return err
		}
	}
	bench.SyncDisk(r.t.Dir)
	out.Cost(m)
	out.DiskPerByte = out.DiskWritten * 1e6 / float64(r.bytes)
	active, err := r.active(ctx)
	if err != nil {
		return err
	}
	s, err := active.Status(ctx)
	if err != nil {
		return err
	}
	out.PageSize = int(s.GetStore().GetPageSize())
	info, err := os.Stat(datadir.PageFile(active.DataDir()))
	if err != nil {
		return fmt.Errorf("stat page.db: %w", err)
	}
	out.FileMB = float64(info.Size()) / 1e6
	return nil
}

func (r *pageSizeRun) active(ctx context.Context) (*harness.Node, error) {
	active, err := r.t.Client.WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	if n := r.t.Pair.Find(active.Address); n != nil {
		return n, nil
	}
	return nil, fmt.Errorf("unknown active node %s", active.Address)
}

func (r *pageSizeRun) produce(phase string) func(context.Context) error {
	return func(ctx context.Context) (err error) {
		producers := make([]*client.Producer, r.Senders)
		for i := range producers {
			if producers[i], err = r.t.Client.NewProducer(ctx,
				client.ProducerOptions{MaxPendingBytes: 64 << 20}); err != nil {
				return err
			}
			defer func() { err = errors.Join(err, producers[i].Close()) }() //nolint:gocritic // all of them at the end
		}
		return r.phase(ctx, phase, func() (*hdrhistogram.Histogram, error) {
			return bench.PublishAll(ctx, producers, r.queues,
				bench.PublishOptions{
					Messages: len(r.sizes), Sizes: r.sizes, Producers: r.Senders, Window: r.Window,
					Queues: r.Queues,
				})
		})
	}
}

func (r *pageSizeRun) consume(phase string) func(context.Context) error {
	return func(ctx context.Context) error {
		return r.phase(ctx, phase, func() (_ *hdrhistogram.Histogram, err error) {
			consumers, end, err := bench.NewConsumers(ctx, r.t.Client, r.queues, r.Queues, r.Prefetch)
			defer func() { err = errors.Join(err, end()) }()
			if err != nil {
				return nil, err
			}
			return bench.Drain(ctx, consumers, len(r.sizes))
		})
	}
}

// rewritten is the result of a rewrite of one node.
type rewritten struct {
	Took   time.Duration
	before int // page size
	after  int
	bytes  int64 // of the new file
}

// rewrite scans, and rewrites the page file of each node.
func (r *pageSizeRun) rewrite(ctx context.Context) error {
	bench.SyncDisk(r.t.Dir)
	size, note, err := r.scan(ctx)
	if err != nil {
		return err
	}
	out := bench.Result{
		Workload: "pagesize", Phase: PhaseRewrite, Setup: r.t.Setup, Sync: r.t.Sync,
		SizeBytes: int(r.bytes / int64(len(r.sizes))), Mix: r.name(),
		Messages: len(r.sizes), Note: note,
	}
	bench.ResetPeaks(r.t.Processes)
	m, disk := bench.NewMeter(r.t.Processes, r.t.Dir), bench.DeviceWritten(r.t.Dir)
	var all []rewritten
	if len(r.t.Pair.Nodes) == 1 {
		w, err := r.rewriteStandalone(ctx, size)
		if err != nil {
			return err
		}
		all = append(all, w)
		// The process is new, so its whole usage counts; the peak memory is also that of its lifetime.
		n := r.t.Pair.Nodes[0]
		m = bench.NewMeter(map[string]int{n.Name: n.PID()}, r.t.Dir)
		m.Begin[n.Name] = bench.Usage{}
	} else if all, err = r.rewritePair(ctx, size); err != nil {
		return err
	}
	if err := r.finish(ctx, &out, m); err != nil {
		return err
	}
	var took time.Duration
	for _, w := range all {
		took += w.Took / time.Duration(len(all))
	}
	bytes := all[len(all)-1].bytes
	out.Seconds = took.Seconds()
	out.Rate, out.MB = float64(len(r.sizes))/out.Seconds, float64(bytes)/1e6/out.Seconds
	out.FileMB = float64(bytes) / 1e6 // before it grew again
	out.DiskWritten = bench.DeviceWritten(r.t.Dir) - disk
	out.DiskPerByte = out.DiskWritten * 1e6 / float64(r.bytes)
	if out.CopyMB, err = r.plainCopy(ctx); err != nil {
		return err
	}
	if out.StartMS, err = r.start(ctx); err != nil {
		return err
	}
	return r.report(out)
}

// scan returns the page size recommended by the standby or the only node, with its note.
func (r *pageSizeRun) scan(ctx context.Context) (size int, note string, err error) {
	node, err := r.active(ctx)
	if err != nil {
		return 0, "", err
	}
	if len(r.t.Pair.Nodes) > 1 {
		node = r.t.Pair.Other(node)
	}
	admin, err := clientadmin.New(r.t.Client).Node(node.Address)
	if err != nil {
		return 0, "", err
	}
	start := time.Now()
	s, err := admin.Scan(ctx, &pb.ScanRequest{PageSizeMax: uint32(r.PageSizeMax), FullSpeed: true}, nil)
	if err != nil {
		return 0, "", err
	}
	note = fmt.Sprintf("scan took %.2f s and recommends %d of %d: %s", time.Since(start).Seconds(), s.GetRecommended(),
		s.GetCurrent(), s.GetNote())
	if r.PageSize != 0 {
		return r.PageSize, note, nil
	}
	return int(s.GetRecommended()), note, nil
}

// rewritePair rewrites the standby, switches over, and rewrites the other node.
func (r *pageSizeRun) rewritePair(ctx context.Context, size int) ([]rewritten, error) {
	var all []rewritten
	for i := range r.t.Pair.Nodes {
		active, err := r.active(ctx)
		if err != nil {
			return nil, err
		}
		standby, err := clientadmin.New(r.t.Client).Node(r.t.Pair.Other(active).Address)
		if err != nil {
			return nil, err
		}
		res, err := standby.Rewrite(ctx, &pb.RewriteRequest{PageSize: uint32(size)}, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, rewritten{
			Took: res.GetTook().AsDuration(), before: int(res.GetPageSizeBefore()), after: int(res.GetPageSizeAfter()),
			bytes: int64(res.GetFileBytesAfter()),
		})
		if i > 0 {
			break
		}
		a, err := clientadmin.New(r.t.Client).Node(active.Address)
		if err != nil {
			return nil, err
		}
		if _, err := a.Switchover(ctx, time.Minute); err != nil {
			return nil, err
		}
		if err := r.t.Pair.WaitReady(ctx, nil); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// rewriteStandalone restarts the node with a setting to rewrite its page file.
func (r *pageSizeRun) rewriteStandalone(ctx context.Context, size int) (rewritten, error) {
	n := r.t.Pair.Nodes[0]
	req := &pb.UpdateSettingsRequest{}
	yes := true
	s, err := clientadmin.New(r.t.Client).MaintenanceSettings(ctx)
	if err != nil {
		return rewritten{}, err
	}
	if size == int(s.GetPageSizeCurrent()) {
		req.CompactOnStartup = &yes
	} else {
		req.ResizeOnStartup = &yes
	}
	if size != int(s.GetPageSizeRecommended()) && size != int(s.GetPageSizeCurrent()) {
		return rewritten{}, fmt.Errorf("a standalone node resizes to the recommended size, %d, and not to %d: use "+
			"--pair", s.GetPageSizeRecommended(), size)
	}
	if _, err := clientadmin.New(r.t.Client).UpdateMaintenanceSettings(ctx, req); err != nil {
		return rewritten{}, err
	}
	if err := n.Stop(); err != nil {
		return rewritten{}, err
	}
	if err := n.Start(); err != nil {
		return rewritten{}, err
	}
	if err := r.t.Pair.WaitReady(ctx, nil); err != nil {
		return rewritten{}, err
	}
	return rewriteInLog(n.LogFile())
}

// rewriteInLog finds the log entry about the rewrite at a node's start.
func rewriteInLog(file string) (rewritten, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return rewritten{}, fmt.Errorf("the node's log: %w", err)
	}
	var found struct {
		Message  string  `json:"msg"`
		PageSize int     `json:"page_size"`
		Bytes    int64   `json:"bytes"`
		Took     float64 `json:"took"`
	}
	for line := range strings.Lines(string(b)) {
		if !strings.Contains(line, "page.db rewritten at startup") {
			continue
		}
		if err := json.Unmarshal([]byte(line), &found); err != nil {
			return rewritten{}, fmt.Errorf("the node's log: %w", err)
		}
	}
	if found.Took == 0 {
		return rewritten{}, fmt.Errorf("the node did not rewrite its page file at its start; see %s", file)
	}
	return rewritten{Took: time.Duration(found.Took * float64(time.Second)), after: found.PageSize, bytes: found.Bytes},
		nil
}

// plainCopy measures a copy of the active's page file with a sync, in MB/s, as the baseline of a rewrite.
func (r *pageSizeRun) plainCopy(ctx context.Context) (float64, error) {
	active, err := r.active(ctx)
	if err != nil {
		return 0, err
	}
	src, err := os.Open(datadir.PageFile(active.DataDir()))
	if err != nil {
		return 0, fmt.Errorf("copy page.db: %w", err)
	}
	defer func() { _ = src.Close() }() // it was only read
	name := filepath.Join(r.t.Dir, "copy")
	dst, err := os.Create(name)
	if err != nil {
		return 0, fmt.Errorf("copy page.db: %w", err)
	}
	start := time.Now()
	// Plain reads and writes, since copy_file_range would share the blocks on some filesystems.
	n, err := io.CopyBuffer(struct{ io.Writer }{dst}, struct{ io.Reader }{src}, make([]byte, 1<<20))
	if err = errors.Join(err, dst.Sync()); err != nil {
		return 0, errors.Join(fmt.Errorf("copy page.db: %w", err), dst.Close())
	}
	took := time.Since(start)
	if err := errors.Join(dst.Close(), os.Remove(name)); err != nil {
		return 0, fmt.Errorf("copy page.db: %w", err)
	}
	return float64(n) / 1e6 / took.Seconds(), nil
}
