// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/bench"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

const (
	fleetPrefetch = 1000
	// fleetWarmUp is the number of measured messages per message that is published before the measurement.
	fleetWarmUp = 10
	// fleetGoal is the goal of the derived ratio, per pair: 2.8 for three pairs.
	fleetGoal = 2.8 / 3
)

// FleetPair returns the name of the pair with the index i. The started nodes of a Target have the index 0.
func FleetPair(i int) string { return fmt.Sprintf("pair-%d", i+1) }

// FleetOptions configures the pairs of one measurement, and the load.
type FleetOptions struct {
	// Pairs is the number of pairs of the fleet; 0 means one pair outside a fleet.
	Pairs int
	// Messages of SizeBytes are published to the queue of each pair.
	Messages, SizeBytes int
	// Window is the maximum number of unacknowledged messages of the producer of a queue.
	Window int
	// Consumers is the number of consumers of each queue while messages are published; 0 means that they stay stored.
	Consumers int
	// Concurrent loads all pairs at the same time, otherwise one after the other.
	Concurrent bool
}

// PairCPU is the CPU time of one pair.
type PairCPU struct {
	Pair     string `json:"pair"`
	Messages int    `json:"messages"`
	// CPU is the CPU time of both nodes during the whole measurement, in seconds. PerMessage is in µs, and
	// SystemPerMessage the part of it that the kernel used.
	CPU              float64 `json:"cpu_s"`
	PerMessage       float64 `json:"cpu_us_per_message"`
	SystemPerMessage float64 `json:"cpu_system_us_per_message"`
}

// FleetResult is the result of one measurement of one setup: one pair outside a fleet, or a fleet.
type FleetResult struct {
	Workload   string `json:"workload"`
	Setup      string `json:"setup"` // "pair" or "fleet"
	Pairs      int    `json:"pairs"`
	Sync       string `json:"sync"`
	Round      int    `json:"round"`
	SizeBytes  int    `json:"size_bytes"`
	Window     int    `json:"window"`
	Consumers  int    `json:"consumers,omitempty"`
	Concurrent bool   `json:"concurrent"`
	// Messages is the total of all pairs. Rate is the rate on this machine, which all processes share.
	Messages int       `json:"messages"`
	Seconds  float64   `json:"seconds"`
	Rate     float64   `json:"rate_per_s"`
	PairCPU  []PairCPU `json:"pair_cpu"`
	// ClientCPU is the CPU time of the client, and of etcd in its process, in µs per message.
	ClientCPU float64       `json:"client_cpu_us_per_message"`
	Processes []bench.Usage `json:"processes,omitempty"`
	// Derived is the sum over the pairs of messages per CPU second of their nodes: it is not measured, but derived for
	// pairs that have separate machines.
	Derived float64 `json:"derived_per_cpu_s"`
	// Ratio is Derived divided by that of one pair outside a fleet in the same round. Goal is the minimum to achieve; 0
	// means none.
	Ratio float64 `json:"derived_ratio"`
	Goal  float64 `json:"derived_ratio_goal,omitempty"`
	// Median is set for the round with the median Ratio. RatioMin and RatioMax are of all rounds, and set only there.
	Median   bool    `json:"median,omitempty"`
	RatioMin float64 `json:"derived_ratio_min,omitempty"`
	RatioMax float64 `json:"derived_ratio_max,omitempty"`
}

// Name describes the setup.
func (r *FleetResult) Name() string {
	if r.Setup == "fleet" {
		return fmt.Sprintf("fleet of %d", r.Pairs)
	}
	return "one pair"
}

// CompareFleet sets Ratio and Goal of a fleet. alone is one pair outside a fleet in the same round.
func (r *FleetResult) CompareFleet(alone *FleetResult) {
	r.Ratio = r.Derived / alone.Derived
	if r.Setup == "fleet" {
		r.Goal = fleetGoal * float64(r.Pairs)
	}
}

// MedianFleet returns the round of one setup with the median Ratio. It orders equal ratios by Derived.
// For an even number of rounds, it returns the lower of the two middle results. rounds must not be empty.
func MedianFleet(rounds []FleetResult) FleetResult {
	sorted := slices.SortedFunc(slices.Values(rounds), func(a, b FleetResult) int {
		return cmp.Or(cmp.Compare(a.Ratio, b.Ratio), cmp.Compare(a.Derived, b.Derived))
	})
	m := sorted[(len(sorted)-1)/2]
	m.Median, m.RatioMin, m.RatioMax = true, sorted[0].Ratio, sorted[len(sorted)-1].Ratio
	return m
}

// Fleet measures one setup. t is the first pair; the client is configured only with the addresses of its nodes. Fleet
// starts the other pairs with the given settings, and creates one queue on each pair.
func Fleet(
	ctx context.Context, t bench.Target, settings map[string]string, o FleetOptions,
) (r FleetResult, err error) {
	pairs := []*harness.Pair{t.Pair}
	defer func() {
		for _, p := range pairs[1:] {
			err = errors.Join(err, p.Close())
		}
	}()
	for i := 1; i < o.Pairs; i++ {
		settings := maps.Clone(settings)
		settings[pairSetting], settings["coordinator.etcd.prefix"] = FleetPair(i), "/lockstep/"+FleetPair(i)
		p, err := harness.Start(ctx, harness.Options{
			Dir: filepath.Join(t.Dir, FleetPair(i)), EtcdAddress: t.Pair.EtcdAddress(), Settings: settings,
		})
		if err != nil {
			return r, err
		}
		pairs = append(pairs, p)
	}
	queues := bench.QueueNames(len(pairs))
	if err := createPlaced(ctx, t, pairs, queues, o.Pairs > 0); err != nil {
		return r, err
	}
	if err := o.load(ctx, t.Client, queues, max(o.Messages/fleetWarmUp, 1)); err != nil {
		return r, err
	}
	if err := checkpoint(ctx, t.Client, pairs...); err != nil {
		return r, err
	}
	r = FleetResult{
		Workload: "fleet", Setup: "pair", Pairs: len(pairs), Sync: t.Sync, SizeBytes: o.SizeBytes, Window: o.Window,
		Consumers: o.Consumers, Concurrent: o.Concurrent, Messages: o.Messages * len(pairs),
	}
	if o.Pairs > 0 {
		r.Setup = "fleet"
	}
	processes := map[string]int{}
	for i, p := range pairs {
		for _, n := range p.Nodes {
			processes[processName(i, n.Name)] = n.PID()
		}
	}
	m, start := bench.NewMeter(processes, ""), time.Now()
	if err := o.load(ctx, t.Client, queues, o.Messages); err != nil {
		return r, err
	}
	r.Seconds = time.Since(start).Seconds()
	if err := checkpoint(ctx, t.Client, pairs...); err != nil { // writes that nodes have postponed
		return r, err
	}
	r.Processes = m.Used()
	r.Rate = float64(r.Messages) / max(r.Seconds, 1e-9)
	err = r.derive(o.Messages)
	return r, err
}

func processName(pair int, node string) string { return FleetPair(pair) + "/" + node }

var errNoCPUTime = errors.New(
	"CPU time of the nodes is too short to measure, or unknown on this system: raise --messages")

// derive sets the fields that are derived from Processes. messages is the number of messages of each pair.
func (r *FleetResult) derive(messages int) error {
	used := map[string]bench.Usage{}
	for _, u := range r.Processes {
		used[u.Name] = u
	}
	r.PairCPU, r.Derived = make([]PairCPU, r.Pairs), 0
	for i := range r.PairCPU {
		a, b := used[processName(i, "a")], used[processName(i, "b")]
		p := PairCPU{Pair: FleetPair(i), Messages: messages, CPU: a.CPU + b.CPU}
		if p.CPU <= 0 {
			return errNoCPUTime
		}
		p.PerMessage = p.CPU * 1e6 / float64(messages)
		p.SystemPerMessage = (a.System + b.System) * 1e6 / float64(messages)
		r.PairCPU[i] = p
		r.Derived += float64(messages) / p.CPU
	}
	r.ClientCPU = used["client"].CPU * 1e6 / float64(r.Messages)
	return nil
}

// createPlaced creates one queue on each pair, and waits until the first pair has their owners.
func createPlaced(
	ctx context.Context, t bench.Target, pairs []*harness.Pair, queues []string, inFleet bool,
) error {
	c := admin.New(t.Client)
	create := func() error {
		for _, queue := range queues {
			if _, _, err := c.CreateQueue(ctx, queue, admin.CreateQueueOptions{}); err != nil {
				return err
			}
		}
		return nil
	}
	if !inFleet {
		return create()
	}
	if err := waitMembers(ctx, pairs...); err != nil {
		return err
	}
	found, err := pairs[0].WaitActive(ctx)
	if err != nil {
		return err
	}
	active, err := c.Node(found.Address)
	if err != nil {
		return err
	}
	for i, queue := range queues {
		if err := active.PutPlacementRule(ctx, &pb.PlacementRule{Pattern: queue, Pair: FleetPair(i)}); err != nil {
			return err
		}
	}
	err = waitDirectory(ctx, "pairs and placement rules", func(ctx context.Context) (bool, error) {
		f, err := active.Fleet(ctx)
		return len(f.GetPairs()) == len(pairs) && len(f.GetRules()) == len(queues), err
	})
	if err != nil {
		return err
	}
	if err := create(); err != nil {
		return err
	}
	return waitDirectory(ctx, "owners of the queues", func(ctx context.Context) (bool, error) {
		placed := 0
		for p, err := range active.Placements(ctx, admin.PlacementOptions{}) {
			if err != nil {
				return false, err
			}
			if i := slices.Index(queues, p.GetQueue()); i >= 0 && p.GetPair() == FleetPair(i) {
				placed++
			}
		}
		return placed == len(queues), nil
	})
}

// waitDirectory waits until a node's copy of the directory has the expected contents.
func waitDirectory(ctx context.Context, contents string, has func(context.Context) (bool, error)) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		ok, err := has(ctx)
		if err != nil || ok {
			return err
		}
		if err := elapse(ctx, harness.PollInterval); err != nil {
			return fmt.Errorf("directory does not have the expected %s: %w", contents, err)
		}
	}
}

// load publishes messages to each queue, and consumes them if there are consumers.
func (o *FleetOptions) load(ctx context.Context, c *client.Client, queues []string, messages int) error {
	g, ctx := errgroup.WithContext(ctx)
	if !o.Concurrent {
		g.SetLimit(1)
	}
	for _, queue := range queues {
		g.Go(func() error { return o.loadQueue(ctx, c, queue, messages) })
	}
	return g.Wait()
}

func (o *FleetOptions) loadQueue(ctx context.Context, c *client.Client, queue string, messages int) (err error) {
	consumers, end, err := bench.NewConsumers(ctx, c, []string{queue}, o.Consumers, fleetPrefetch)
	defer func() { err = errors.Join(err, end()) }()
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	if len(consumers) > 0 {
		g.Go(func() error {
			_, err := bench.Drain(ctx, consumers, messages)
			return err
		})
	}
	g.Go(func() error {
		_, err := bench.PublishNew(ctx, c, []string{queue}, bench.PublishOptions{
			SizeBytes: o.SizeBytes, Messages: messages, Producers: 1, Window: o.Window, Queues: 1,
		})
		return err
	})
	return g.Wait()
}
