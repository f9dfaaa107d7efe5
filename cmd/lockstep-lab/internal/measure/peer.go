// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
)

// Supported peers.
const (
	PeerNATS      = "nats"
	PeerChronicle = "chronicle"
)

// ErrNoPeer is returned if the benchmark of a peer is not installed.
var ErrNoPeer = errors.New("not installed")

// Peer is the benchmark of another product: a program that starts the product, applies load, and prints lines of
// results.
type Peer struct {
	Name string
	// Command is the program and its first arguments.
	Command []string
	// Stderr receives the diagnostic output; nil discards it.
	Stderr io.Writer
}

// FindPeer returns the benchmark that command starts or, if command is empty, the program named run in dir. It
// returns ErrNoPeer if dir does not contain the program.
func FindPeer(name, dir, command string) (Peer, error) {
	if command != "" {
		return Peer{Name: name, Command: strings.Fields(command)}, nil
	}
	if dir == "" {
		return Peer{}, fmt.Errorf("%s: %w: no directory given", name, ErrNoPeer)
	}
	run := filepath.Join(dir, "run")
	if info, err := os.Stat(run); err != nil || info.IsDir() {
		return Peer{}, fmt.Errorf("%s: %w: %s not found", name, ErrNoPeer, run)
	}
	return Peer{Name: name, Command: []string{run}}, nil
}

// peerStop is the time limit for a peer's program to exit after SIGTERM.
const peerStop = 20 * time.Second

func (p Peer) run(ctx context.Context, env []string, args ...string) ([]byte, error) {
	args = append(append([]string{}, p.Command[1:]...), args...)
	cmd := exec.CommandContext(ctx, p.Command[0], args...)
	cmd.Env = append(os.Environ(), env...)
	var out, reported bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &reported
	if p.Stderr != nil {
		cmd.Stderr = io.MultiWriter(&reported, p.Stderr)
	}
	inGroup(cmd)
	cmd.WaitDelay = peerStop
	if err := cmd.Run(); err != nil {
		return nil, fmt.Errorf("run the benchmark of %s: %w\n%s", p.Name, err, lastLines(reported.String()))
	}
	return out.Bytes(), nil
}

func lastLines(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

// Cases that are measured for Lockstep and for a peer.
const (
	CasePub1      = "1 publisher"
	CasePub64     = "64 publishers"
	CasePipelined = "5 pipelined"
	CaseConsume   = "5 consumers"
	CasePub64One  = "64 publishers, 1 queue"
	CaseConsume1  = "5 consumers, 1 queue"
	CaseWrite     = "burst write"
	CaseRead      = "burst read"
)

// NATSOptions configures the NATS benchmark.
type NATSOptions struct {
	// Config is r1, r1-always, r3 or r3-always: the number of servers and the sync mode.
	Config   string
	Sizes    []int
	Duration time.Duration
	Dir      string
}

// NATS runs the NATS benchmark, which acquires the lock of all benchmarks itself.
func NATS(ctx context.Context, p Peer, o NATSOptions) ([]bench.Result, error) {
	sizes := make([]string, len(o.Sizes))
	for i, s := range o.Sizes {
		sizes[i] = strconv.Itoa(s)
	}
	out, err := p.run(ctx, []string{"DATA=" + o.Dir, "SIZES=" + strings.Join(sizes, " "), "DUR=" + o.Duration.String()},
		o.Config)
	if err != nil {
		return nil, err
	}
	results, err := parseNATS(out, o.Duration)
	if err == nil && len(results) == 0 {
		err = fmt.Errorf("no results in the benchmark of %s for %s", p.Name, o.Config)
	}
	return results, err
}

// parseNATS parses lines with the tab-separated columns peer, workload, size, messages per second, p50 and p99 in ms,
// CPU seconds of the servers, and note.
func parseNATS(out []byte, d time.Duration) ([]bench.Result, error) {
	cases := map[string]string{
		"pub1": CasePub1, "pub64": CasePub64, "consume": CaseConsume, "pub64-1q": CasePub64One,
		"consume-1q": CaseConsume1,
	}
	const columns = 7
	var results []bench.Result
	for line := range strings.Lines(string(out)) {
		f := strings.Split(strings.TrimRight(line, "\n"), "\t")
		if len(f) < columns || cases[f[1]] == "" {
			continue
		}
		r := bench.Result{Workload: "publish", Phase: "synchronous", Setup: f[0], Case: cases[f[1]]}
		var errs [3]error
		r.SizeBytes, errs[0] = strconv.Atoi(f[2])
		r.Rate, errs[1] = strconv.ParseFloat(f[3], 64)
		r.CPU, errs[2] = strconv.ParseFloat(f[6], 64)
		if err := errors.Join(errs[:]...); err != nil {
			return nil, fmt.Errorf("result of nats %q: %w", line, err)
		}
		r.P50, _ = strconv.ParseFloat(f[4], 64) // "-" if missing
		r.P99, _ = strconv.ParseFloat(f[5], 64)
		r.MB, r.Seconds = r.Rate*float64(r.SizeBytes)/1e6, d.Seconds()
		r.Messages = int(r.Rate * r.Seconds)
		if strings.HasPrefix(f[1], "consume") {
			r.Workload, r.Phase = "consume", "drain"
			if r.Messages = noted(f, "n="); r.Rate > 0 {
				r.Seconds = float64(r.Messages) / r.Rate
			}
		}
		if len(f) > columns {
			r.Comment = f[columns]
		}
		if strings.Contains(r.Comment, "STALLED") || strings.Contains(r.Comment, "failed=") {
			return nil, fmt.Errorf("nats did not complete the workload: %s", line)
		}
		results = append(results, r)
	}
	return results, nil
}

// noted returns the number after key in the note in the last column; 0 if missing.
func noted(columns []string, key string) int {
	for _, word := range strings.Fields(columns[len(columns)-1]) {
		if v, ok := strings.CutPrefix(word, key); ok {
			n, err := strconv.Atoi(v)
			if err == nil {
				return n
			}
		}
	}
	return 0
}

// ChronicleOptions configures the Chronicle Queue benchmark.
type ChronicleOptions struct {
	// Messages is the number of messages per burst.
	SizeBytes, Messages, Bursts int
	// Batch is the number of messages between two syncs; 0 means no syncs.
	Batch int
	// Pause is the time between bursts, in whole seconds.
	Pause time.Duration
	// MemoryLimit is the limit of the process and its page cache, in bytes; 0 means none.
	MemoryLimit int64
	// Dir is the data directory; it must not exist.
	Dir string
}

// Chronicle runs the Chronicle Queue benchmark. It returns two results for each burst: of writing and of reading.
func Chronicle(ctx context.Context, p Peer, o ChronicleOptions) ([]bench.Result, error) {
	args := []string{
		fmt.Sprintf("MSG_SIZE=%d", o.SizeBytes), fmt.Sprintf("BATCH=%d", o.Messages), fmt.Sprintf("GB=%d", o.Bursts),
		fmt.Sprintf("PAUSE=%d", int(o.Pause.Seconds())), "DIR=" + o.Dir,
	}
	if o.Batch > 0 {
		args = append(args, "SYNC=1", fmt.Sprintf("K=%d", o.Batch))
	}
	if o.MemoryLimit > 0 {
		args = append(args, fmt.Sprintf("LIMIT=%d", o.MemoryLimit))
	}
	out, err := p.run(ctx, nil, args...)
	if err != nil {
		return nil, err
	}
	results, err := parseChronicle(out, o)
	if err == nil && len(results) != 2*o.Bursts {
		err = fmt.Errorf("results of the benchmark of %s: %d instead of %d", p.Name, len(results), 2*o.Bursts)
	}
	return results, err
}

// parseChronicle parses lines with the burst number and, for writing and for reading, ms, messages per second and MB/s.
func parseChronicle(out []byte, o ChronicleOptions) ([]bench.Result, error) {
	const columns = 7
	var results []bench.Result
	for line := range strings.Lines(string(out)) {
		f := strings.Fields(line)
		burst, err := strconv.Atoi(append(f, "")[0])
		if len(f) != columns || err != nil {
			continue // the header, or the medians
		}
		for i, c := range []string{CaseWrite, CaseRead} {
			ms, err1 := strconv.ParseFloat(f[1+3*i], 64)
			rate, err2 := strconv.ParseFloat(f[2+3*i], 64)
			if err := errors.Join(err1, err2); err != nil {
				return nil, fmt.Errorf("result of chronicle %q: %w", line, err)
			}
			results = append(results, bench.Result{
				Workload: "store", Phase: []string{"write", "read"}[i], Setup: PeerChronicle, Case: c, Burst: burst,
				SizeBytes: o.SizeBytes, Batch: o.Batch,
				Messages: o.Messages, Seconds: ms / 1000, Rate: rate, MB: rate * float64(o.SizeBytes) / 1e6,
			})
		}
	}
	return results, nil
}
