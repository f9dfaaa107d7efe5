// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/audit"
)

const (
	reconnectInterval = time.Second
	// keptRecords is the number of records that a node has in memory.
	keptRecords = 1000
)

// event is a response of a node, or the end of a stream.
type event struct {
	address string
	records []*pb.AuditRecord
	missed  uint64
	ended   bool
	err     error // of an ended stream; nil if the node has stopped
	retries bool  // whether the stream is opened again
}

// stream follows the records of one node. After a reconnect, it omits the records that it has already returned.
type stream struct {
	node  *admin.Node
	since time.Time // time of the first record
	seen  []string  // the last records, at most keptRecords
}

// run sends the records of the node until ctx ends or an error is permanent.
func (s *stream) run(ctx context.Context, req *pb.TailAuditRequest, send func(event)) {
	for {
		err := s.tail(ctx, req, send)
		if ctx.Err() != nil {
			return
		}
		retries := err == nil || errors.Is(err, client.ErrUnavailable)
		send(event{address: s.node.Address(), ended: true, err: err, retries: retries})
		if !retries {
			return
		}
		select {
		case <-time.After(reconnectInterval):
		case <-ctx.Done():
			return
		}
	}
}

func (s *stream) tail(ctx context.Context, req *pb.TailAuditRequest, send func(event)) error {
	if !s.since.IsZero() {
		req = proto.CloneOf(req)
		req.Last = keptRecords
	}
	before := slices.Clone(s.seen)
	for resp, err := range s.node.TailAudit(ctx, req) {
		if err != nil {
			return err
		}
		records := slices.DeleteFunc(resp.GetRecords(), func(r *pb.AuditRecord) bool { return !s.isNew(r, before) })
		send(event{address: s.node.Address(), records: records, missed: resp.GetMissed()})
	}
	return nil
}

// isNew reports whether a record is not in before, and is not older than the first record.
func (s *stream) isNew(r *pb.AuditRecord, before []string) bool {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	at := r.GetTime().AsTime()
	if err != nil || at.Before(s.since) || slices.Contains(before, string(raw)) {
		return false
	}
	if s.since.IsZero() {
		s.since = at
	}
	s.seen = append(s.seen, string(raw))
	s.seen = s.seen[max(0, len(s.seen)-keptRecords):]
	return true
}

// follow prints the most recent records, then new ones until ctx ends. It reports a node that does not respond, and
// connects to the node again. It returns an error if none of the nodes has responded.
func follow(ctx context.Context, env *cli.Env, c *client.Client, req *pb.TailAuditRequest) error {
	nodes, err := env.Nodes(c)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	events := make(chan event)
	var streams sync.WaitGroup
	defer streams.Wait()
	defer cancel()
	for _, n := range nodes {
		streams.Go(func() {
			(&stream{node: n}).run(ctx, req, func(e event) {
				select {
				case events <- e:
				case <-ctx.Done():
				}
			})
		})
	}
	f := follower{env: env, nodes: len(nodes), down: map[string]error{}}
	for {
		select {
		case e := <-events:
			if err := f.handle(&e); err != nil {
				return err
			}
		case <-ctx.Done():
			return errors.Join(f.failed...)
		}
	}
}

// follower prints the events of the nodes.
type follower struct {
	env       *cli.Env
	nodes     int
	down      map[string]error // errors of the nodes that do not respond, by address
	failed    []error          // permanent errors
	responded bool             // a node has responded
}

// handle returns an error if the command must end.
func (f *follower) handle(e *event) error {
	if e.ended {
		return f.handleEnd(e)
	}
	f.responded = true
	delete(f.down, e.address)
	if e.missed > 0 {
		if err := f.env.Print.Sentence("skipped %d records of %s: this client is too slow; see the audit file of the node",
			e.missed, e.address); err != nil {
			return err
		}
	}
	for _, r := range e.records {
		one := audit.FromProto(r)
		if err := show(f.env, &one); err != nil {
			return err
		}
	}
	return nil
}

func (f *follower) handleEnd(e *event) error {
	_, reported := f.down[e.address]
	f.down[e.address] = e.err
	f.responded = f.responded || e.err == nil
	if !e.retries {
		f.failed = append(f.failed, e.err)
	}
	if len(f.failed) == f.nodes || !f.responded && len(f.down) == f.nodes {
		var all []error
		for _, err := range f.down {
			all = append(all, err)
		}
		return errors.Join(all...)
	}
	switch {
	case reported && e.retries:
	case e.err == nil:
		fmt.Fprintf(f.env.Stderr, "Node %s has stopped; reconnecting.\n", e.address)
	case e.retries:
		fmt.Fprintf(f.env.Stderr, "Node %s does not respond; reconnecting: %v\n", e.address, e.err)
	default:
		fmt.Fprintf(f.env.Stderr, "The records of node %s are not shown: %v\n", e.address, e.err)
	}
	return nil
}
