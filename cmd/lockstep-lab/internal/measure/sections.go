// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

// Section is the CPU usage of all goroutines of a node with the same start function.
type Section struct {
	// Node is "active" or "standby".
	Node string `json:"node"`
	// Function is the start function, without the module path.
	Function string `json:"function"`
	// Goroutines is the usual number of goroutines. The work of a single goroutine is serial: more processors do not
	// speed it up.
	Goroutines int `json:"goroutines"`
	// CPU is the CPU time of all goroutines, in µs per message.
	CPU float64 `json:"cpu_us_per_message"`
	// Ceiling is the maximum number of messages per second if each goroutine has its own processor and the work is shared
	// evenly.
	Ceiling float64 `json:"ceiling_per_s,omitempty"`
}

const modulePath = "github.com/lockstep-mq/lockstep/"

// runtimeSection is garbage collection and other work of the Go runtime, to which ceilings do not apply.
const runtimeSection = "runtime"

// startsDispatcher is the function that starts both goroutines of a queue's dispatcher, which do different work.
const startsDispatcher = modulePath + "server/delivery/dispatch.(*Registry).start."

func sections(node string, cpu *profile.Profile, goroutines map[string]int, messages int) []Section {
	nanos := map[string]int64{}
	for _, s := range cpu.Sample {
		nanos[root(s)] += s.Value[len(s.Value)-1]
	}
	out := make([]Section, 0, len(nanos))
	for name, ns := range nanos {
		x := Section{
			Node: node, Function: name, Goroutines: max(goroutines[name], 1),
			CPU: float64(ns) / 1000 / float64(max(messages, 1)),
		}
		if name != runtimeSection && ns > 0 {
			x.Ceiling = 1e6 / x.CPU * float64(x.Goroutines)
		} else {
			x.Goroutines = 0
		}
		out = append(out, x)
	}
	slices.SortFunc(out, func(a, b Section) int {
		return cmp.Or(cmp.Compare(b.CPU, a.CPU), cmp.Compare(a.Function, b.Function))
	})
	return out
}

// root returns the start function of the goroutine of a sample. It skips functions that only start other functions.
func root(s *profile.Sample) string {
	for i := len(s.Location) - 1; i >= 0; i-- {
		lines := s.Location[i].Line
		for j := len(lines) - 1; j >= 0; j-- {
			name := lines[j].Function.Name
			switch {
			case name == "runtime.goexit", strings.HasPrefix(name, "sync.(*WaitGroup).Go"),
				strings.HasPrefix(name, "golang.org/x/sync/errgroup."), strings.HasPrefix(name, "runtime/pprof."),
				strings.HasPrefix(name, startsDispatcher):
				continue
			case strings.HasPrefix(name, "runtime."):
				return runtimeSection
			}
			return strings.TrimSuffix(strings.TrimPrefix(name, modulePath), "-fm") // a method value
		}
	}
	return runtimeSection
}

func count(goroutines *profile.Profile) map[string]int {
	out := map[string]int{}
	for _, s := range goroutines.Sample {
		out[root(s)] += int(s.Value[0])
	}
	return out
}

// usual returns the median count of each kind; for an even number of counts, the higher of the two middle counts. A
// missing kind counts as 0.
func usual(counts []map[string]int) map[string]int {
	out := map[string]int{}
	for _, c := range counts {
		for name := range c {
			if _, ok := out[name]; ok {
				continue
			}
			all := make([]int, len(counts))
			for i := range counts {
				all[i] = counts[i][name]
			}
			slices.Sort(all)
			out[name] = all[len(all)/2]
		}
	}
	return out
}

type inspector struct{ address string }

func (n inspector) get(ctx context.Context, path string, read func(io.Reader) error) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+n.address+path, nil)
	if err != nil {
		return fmt.Errorf("query a node: %w", err)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return fmt.Errorf("query a node: %w", err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("query a node for %s: %s", path, answer.Status)
	}
	return read(answer.Body)
}

func (n inspector) profile(ctx context.Context, path string) (p *profile.Profile, err error) {
	err = n.get(ctx, path, func(r io.Reader) (err error) {
		p, err = profile.Parse(r)
		return err //nolint:wrapcheck // below
	})
	if err != nil {
		return nil, fmt.Errorf("profile a node: %w", err)
	}
	return p, nil
}

func (n inspector) cpu(ctx context.Context, d time.Duration) (*profile.Profile, error) {
	return n.profile(ctx, fmt.Sprintf("/debug/pprof/profile?seconds=%d", int(d.Seconds())))
}

func (n inspector) goroutines(ctx context.Context) (map[string]int, error) {
	p, err := n.profile(ctx, "/debug/pprof/goroutine")
	if err != nil {
		return nil, err
	}
	return count(p), nil
}

// waited is the name of the metric for the lock wait of all goroutines since the start of the node.
const waited = "go_sync_mutex_wait_total_seconds_total"

func (n inspector) waited(ctx context.Context) (seconds float64, err error) {
	err = n.get(ctx, "/metrics", func(r io.Reader) (err error) {
		for lines := bufio.NewScanner(r); lines.Scan(); {
			if value, ok := strings.CutPrefix(lines.Text(), waited+" "); ok {
				seconds, err = strconv.ParseFloat(value, 64)
				return err //nolint:wrapcheck // the error contains the text
			}
		}
		return fmt.Errorf("a node does not export %s", waited)
	})
	if err != nil {
		return 0, fmt.Errorf("read the lock wait of a node: %w", err)
	}
	return seconds, nil
}

// HeldLock is a function that held contended locks.
type HeldLock struct {
	// Node is "active" or "standby".
	Node string `json:"node"`
	// Function released the lock, without the module path.
	Function string `json:"function"`
	// Share is the fraction of the lock wait of the node's goroutines, 0 to 1.
	Share float64 `json:"share"`
}

const mostLocks = 5

// locks groups a mutex profile by the function that held the lock. It returns the functions with the longest waits, at
// most mostLocks.
func locks(node string, p *profile.Profile) []HeldLock {
	nanos, all := map[string]int64{}, int64(0)
	for _, s := range p.Sample {
		ns := s.Value[len(s.Value)-1]
		nanos[holder(s)] += ns
		all += ns
	}
	out := make([]HeldLock, 0, len(nanos))
	for name, ns := range nanos {
		if ns > 0 {
			out = append(out, HeldLock{Node: node, Function: name, Share: float64(ns) / float64(all)})
		}
	}
	slices.SortFunc(out, func(a, b HeldLock) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Function, b.Function))
	})
	return out[:min(len(out), mostLocks)]
}

func holder(s *profile.Sample) string {
	for _, at := range s.Location {
		for _, line := range at.Line {
			name := line.Function.Name
			if !strings.HasPrefix(name, "sync.") && !strings.HasPrefix(name, "internal/sync.") &&
				!strings.HasPrefix(name, "runtime.") {
				return strings.TrimPrefix(name, modulePath)
			}
		}
	}
	return runtimeSection
}

func (n inspector) contention(ctx context.Context, d time.Duration) (*profile.Profile, error) {
	return n.profile(ctx, fmt.Sprintf("/debug/pprof/mutex?seconds=%d", int(d.Seconds())))
}
