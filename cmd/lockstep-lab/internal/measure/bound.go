// SPDX-License-Identifier: Apache-2.0

// Package measure implements the benchmarks of lockstep-lab: nodes under load, plain message relays, the embedded store
// alone in one goroutine, and the benchmarks of other products.
package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	"github.com/lockstep-mq/lockstep/cmd/lockstep-lab/internal/bound"
)

// Bounds is a pair of relays in place of active and standby. The relays store nothing or, with Sync, write
// received messages to files and sync them.
type Bounds struct {
	Transport bound.Transport
	Sync      bool

	relays    []*exec.Cmd
	pipes     []io.Closer
	processes map[string]int
	address   string
}

// StartBounds starts the two relays of a transport as separate processes of this program. args returns the
// arguments of a relay. With these arguments, the program must call bound.Serve, print the address, and exit when
// its standard input is closed. The caller must close the Bounds.
func StartBounds(ctx context.Context, t bound.Transport, sync bool, args func(next string) []string) (*Bounds, error) {
	b := &Bounds{Transport: t, Sync: sync, processes: map[string]int{}}
	for _, name := range []string{"b", "a"} {
		if err := b.start(ctx, name, args(b.address)); err != nil {
			return nil, errors.Join(err, b.Close())
		}
	}
	return b, nil
}

func (b *Bounds) start(ctx context.Context, name string, args []string) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the path of this program: %w", err)
	}
	cmd := exec.CommandContext(ctx, binary, args...)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("bound: %w", err)
	}
	b.relays, b.pipes = append(b.relays, cmd), append(b.pipes, in)
	b.processes[name] = cmd.Process.Pid
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return fmt.Errorf("start a relay: %w", err)
	}
	b.address = strings.TrimSpace(line)
	return nil
}

// Close stops the relays.
func (b *Bounds) Close() (err error) {
	for _, p := range b.pipes {
		err = errors.Join(err, p.Close())
	}
	for _, r := range b.relays {
		err = errors.Join(err, r.Wait())
	}
	return err
}

// Measure sends messages for the duration d, with window messages in flight.
func (b *Bounds) Measure(ctx context.Context, sizeBytes, window int, d time.Duration) (bench.Result, error) {
	r := bench.Result{
		Workload: "bound", Phase: string(b.Transport), Setup: "two relays", Sync: "off", SizeBytes: sizeBytes,
		Producers: 1, Window: window,
	}
	if b.Sync {
		r.Sync = "always"
	}
	h := bench.NewHistogram()
	m := bench.NewMeter(maps.Clone(b.processes), "")
	n, took, err := bound.Load(ctx, bound.LoadOptions{
		Transport: b.Transport, Address: b.address, Connections: 1, Window: window, Body: bench.Body(sizeBytes), Duration: d,
		Record: func(d time.Duration) { bench.Record(h, d) },
	})
	if err != nil {
		return r, fmt.Errorf("measure the bound: %w", err)
	}
	r.Duration(took, n, h)
	r.Cost(m)
	return r, nil
}
