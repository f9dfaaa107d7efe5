// SPDX-License-Identifier: Apache-2.0

// Package demo kills and restarts the active node of a pair under load, also during a rolling resize and with
// transactions, and verifies that no acknowledged message was lost or duplicated. Package historycheck detects the
// violations.
package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
)

// Options configures Run.
type Options struct {
	// Raft stores the cluster record in a raft quorum with a witness, instead of etcd.
	Raft bool
	// Dir is the data directory. It must exist and be empty.
	Dir string
	// Seed determines the content of the messages and the time of the kill.
	Seed uint64
	// Duration is the publishing time.
	Duration time.Duration
	// Rate is the number of messages per second.
	Rate int
	// Settings contains the settings of both nodes.
	Settings map[string]string
	// NodeSettings contains additional settings by node name.
	NodeSettings map[string]map[string]string
	Screen       *Screen
	// Keep, if not nil, is called after the verdict, while the pair is still running.
	Keep func(ctx context.Context, p *harness.Pair)
}

// Verdict is the result of the demo.
type Verdict struct {
	// Published is the number of messages passed to the client.
	Published int `json:"published"`
	// Acknowledged is the number of messages acknowledged by the pair.
	Acknowledged int `json:"acknowledged"`
	// Delivered is the number of distinct messages that the consumer received.
	Delivered int `json:"delivered"`
	// Lost counts acknowledged messages that are not stored or were not delivered with the acknowledged sequence.
	Lost int `json:"lost"`
	// Duplicated counts messages stored twice, or redelivered after their acknowledgement was confirmed.
	Duplicated int `json:"duplicated"`
	// OutOfOrder counts messages stored, or first delivered, before a message published earlier.
	OutOfOrder int `json:"out_of_order"`
	// Violations contains all violations, including those counted above.
	Violations []historycheck.Violation `json:"violations,omitempty"`
	// FailoverMS is the time from just before the kill to the first publish acknowledged by the other node.
	FailoverMS float64 `json:"failover_ms"`
	// DigestsEqual reports whether the digests of both nodes at the same log position are equal.
	DigestsEqual bool   `json:"digests_equal"`
	Coordinator  string `json:"coordinator"`

	// Redelivered counts messages that were redelivered because their acknowledgement was not confirmed (at-least-once
	// delivery).
	Redelivered int `json:"-"`
	// CatchUp is the time from the restart of the killed node until it was in sync.
	CatchUp time.Duration `json:"-"`
	Digests [2]string     `json:"-"`
	LSN     uint64        `json:"-"`
	Seed    uint64        `json:"-"`
}

func (o *Options) coordinator() string {
	if o.Raft {
		return "raft"
	}
	return "etcd"
}

func (o *Options) third() string {
	if o.Raft {
		return "a witness"
	}
	return "etcd"
}

// Passed reports whether at least one message was published, every published message was acknowledged, no rule was
// violated, and both stores have the same content.
func (v Verdict) Passed() bool {
	return len(v.Violations) == 0 && v.DigestsEqual && v.Acknowledged > 0 && v.Published == v.Acknowledged
}

func (v *Verdict) add(broken historycheck.Violation) {
	v.Violations = append(v.Violations, broken)
	switch broken.Rule { // violations of other rules are only listed
	case historycheck.RuleLost, historycheck.RuleMoved, historycheck.RuleUndelivered, historycheck.RuleUncommitted:
		v.Lost++
	case historycheck.RuleDuplicate, historycheck.RuleRedelivered:
		v.Duplicated++
	case historycheck.RuleOrder:
		v.OutOfOrder++
	default:
	}
}

// The timeouts are generous: only a step that hangs exceeds them.
const (
	startBound    = 60 * time.Second
	failoverBound = 60 * time.Second
	catchUpBound  = 120 * time.Second
	settleBound   = 60 * time.Second
	queueName     = "demo"
	auditSub      = "audit"
)

type run struct {
	Options
	pair    *harness.Pair
	client  *client.Client
	ledger  *ledger
	verdict Verdict
}

// Run runs the demo. The verdict is valid only if the error is nil.
func Run(ctx context.Context, o Options) (_ Verdict, err error) {
	r := &run{Options: o, ledger: newLedger(), verdict: Verdict{Coordinator: o.coordinator(), Seed: o.Seed}}
	o.Screen.Event("starting %s and two nodes in %s (seed %d)", o.third(), o.Dir, o.Seed)
	r.pair, err = harness.Start(ctx, harness.Options{
		Dir: o.Dir, Settings: o.Settings, NodeSettings: o.NodeSettings, Raft: o.Raft,
	})
	if err != nil {
		return Verdict{}, err
	}
	defer func() { err = errors.Join(err, r.pair.Close()) }()
	if r.client, err = r.openClient(ctx); err != nil {
		return Verdict{}, err
	}
	defer func() { err = errors.Join(err, r.client.Close()) }()
	if err := r.waitInSync(ctx, startBound); err != nil {
		return Verdict{}, err
	}
	for _, n := range r.pair.Nodes {
		o.Screen.Event("node %s: %s, process %d", n.Name, n.Address, n.PID())
	}
	if err := r.createQueue(ctx); err != nil {
		return Verdict{}, err
	}
	if err := r.script(ctx); err != nil {
		return Verdict{}, err
	}
	if o.Keep != nil {
		o.Keep(ctx, r.pair)
	}
	return r.verdict, nil
}

// openClient opens a client, and records its streams in the history.
func (r *run) openClient(ctx context.Context) (*client.Client, error) {
	return client.OpenWith(ctx, client.Options{
		Addresses:   r.pair.Addresses(),
		DialOptions: []grpc.DialOption{grpc.WithChainStreamInterceptor(r.ledger.history.WatchStreams)},
	})
}

func (r *run) script(ctx context.Context) error {
	w, err := startWorkload(ctx, r.client, r.ledger, r.Seed, r.Rate)
	if err != nil {
		return err
	}
	defer w.stop()
	r.Screen.Progress(r.ledger.line)
	defer r.Screen.Progress(nil)
	start := time.Now()
	r.Screen.Event("publishing and consuming %d messages per second", r.Rate)
	rng := rand.New(rand.NewPCG(r.Seed, 0))
	quarter := r.Duration / 4
	if err := w.run(ctx, quarter/2+time.Duration(rng.Int64N(int64(quarter)))); err != nil {
		return err
	}
	killed, err := r.kill(ctx, w)
	if err != nil {
		return err
	}
	if err := w.run(ctx, quarter); err != nil {
		return err
	}
	if err := r.restart(ctx, w, killed); err != nil {
		return err
	}
	if err := w.run(ctx, max(quarter, r.Duration-time.Since(start))); err != nil {
		return err
	}
	r.Screen.Event("publishing stopped; the consumer reads the remaining messages")
	settle, cancel := context.WithTimeout(ctx, settleBound)
	defer cancel()
	if err := w.finish(settle); err != nil {
		return err
	}
	r.Screen.Progress(nil)
	return r.check(settle)
}

// createQueue creates the queue, and a subscription without consumers, so that the queue retains all messages.
func (r *run) createQueue(ctx context.Context) error {
	_, _, err := admin.New(r.client).CreateQueue(ctx, queueName,
		admin.CreateQueueOptions{Subscriptions: []string{client.DefaultSubscription, auditSub}})
	return err
}

// check compares the content of the queue and the deliveries with the acknowledgements.
func (r *run) check(ctx context.Context) error {
	r.Screen.Event("reading the queue again from the beginning")
	for m, err := range r.client.Browse(ctx, queueName, client.BrowseOptions{}) {
		if err == nil {
			err = r.ledger.audit(m)
		}
		if err != nil {
			return err
		}
	}
	if err := r.compare(ctx); err != nil {
		return err
	}
	r.ledger.check(&r.verdict)
	return nil
}

// kill kills the active, and waits for the first publish acknowledged by the other node.
func (r *run) kill(ctx context.Context, w *workload) (*harness.Node, error) {
	active, err := r.client.WaitActive(ctx)
	if err != nil {
		return nil, err
	}
	victim := r.pair.Find(active.Address)
	if victim == nil {
		return nil, fmt.Errorf("unknown active node %s", active.Address)
	}
	r.Screen.Event("killing node %s, the active one, with SIGKILL (process %d)", victim.Name, victim.PID())
	taken := r.ledger.expectTakeover(victim.Address)
	if err := victim.Kill(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, failoverBound)
	defer cancel()
	select {
	case took := <-taken:
		r.verdict.FailoverMS = float64(took.Microseconds()) / 1000
	case <-ctx.Done():
		return nil, fmt.Errorf("no publish was acknowledged after the kill: %w%s", ctx.Err(), r.dump())
	case err := <-w.failed:
		return nil, err
	}
	other := r.pair.Other(victim)
	r.Screen.Event("node %s took over: first acknowledged publish %.1f ms after the kill", other.Name,
		r.verdict.FailoverMS)
	return victim, nil
}

// dump terminates all processes with SIGQUIT, so that their logs contain goroutine dumps, and returns the end of each
// log before the dump.
func (r *run) dump() string {
	var logs strings.Builder
	for _, p := range r.pair.Processes() {
		fmt.Fprintf(&logs, "\n--- end of %s:\n%s", p.LogFile(), p.LogTail())
		if p.Running() {
			_ = p.Dump()
		}
	}
	return logs.String()
}

func (r *run) restart(ctx context.Context, w *workload, killed *harness.Node) error {
	begun := time.Now()
	if err := killed.Start(); err != nil {
		return err
	}
	r.Screen.Event("restarting node %s (process %d)", killed.Name, killed.PID())
	if err := r.waitInSync(ctx, catchUpBound); err != nil {
		return err
	}
	r.verdict.CatchUp = time.Since(begun)
	r.Screen.Event("node %s is in sync again, %.1f s after its start", killed.Name, r.verdict.CatchUp.Seconds())
	return w.failure()
}

func (r *run) waitInSync(ctx context.Context, bound time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	last := make(map[string]string)
	return r.pair.WaitReady(ctx, func(status []*pb.GetStatusResponse) {
		for i, s := range status {
			name := r.pair.Nodes[i].Name
			text := describe(s)
			if text != "" && text != last[name] {
				last[name] = text
				r.Screen.Event("node %s: %s", name, text)
			}
		}
	})
}

// describe returns the role of a node for display; "" if it did not respond.
func describe(s *pb.GetStatusResponse) string {
	switch s.GetRole() {
	case pb.Role_ROLE_UNSPECIFIED:
		return ""
	case pb.Role_ROLE_RECOVERING:
		return "recovering"
	case pb.Role_ROLE_CATCHING_UP:
		return "catching up"
	case pb.Role_ROLE_SYNCING:
		return "in sync, its acknowledgements are required now"
	case pb.Role_ROLE_STANDBY:
		if s.GetNode().GetInSync() {
			return "standby, in sync"
		}
		return "standby"
	case pb.Role_ROLE_ACTIVE:
		return "active, with its standby in sync"
	case pb.Role_ROLE_ACTIVE_ALONE:
		return "active, alone"
	case pb.Role_ROLE_CANDIDATE, pb.Role_ROLE_ACTIVATING:
		return "taking over"
	case pb.Role_ROLE_BLOCKED:
		return "active, but cannot acknowledge at the moment"
	case pb.Role_ROLE_FENCED:
		return "fenced"
	default:
		return s.GetRole().String()
	}
}

func (r *run) compare(ctx context.Context) error {
	r.Screen.Event("comparing the contents of the two stores")
	d, err := r.pair.Digests(ctx)
	if err != nil {
		return err
	}
	v := &r.verdict
	v.Digests, v.LSN = [2]string{d[0].GetContent(), d[1].GetContent()}, d[0].GetLsn()
	v.DigestsEqual = v.Digests[0] == v.Digests[1] && v.Digests[0] != ""
	return nil
}
