// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/twins"
)

// relistDelay between two attempts to list and watch.
const relistDelay = 200 * time.Millisecond

// errSilent is returned when a watch gets no answer at all.
var errSilent = errors.New("watch: etcd is silent")

// watch lists the pair's keys and follows their changes; whenever that ends (compaction, a member without a leader, a
// broken stream) it lists again, so that nothing can be missed for good.
func (c *Coordinator) watch(ctx context.Context) {
	for ctx.Err() == nil {
		from, err := c.list(ctx)
		if err == nil {
			err = c.follow(ctx, from)
		} else if ctx.Err() == nil {
			c.unreached(err)
		}
		c.log.Debug("etcd watch starts again", zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(relistDelay):
		}
	}
}

// list reads everything and returns the revision to watch from.
func (c *Coordinator) list(ctx context.Context) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	resp, err := c.get(ctx, c.opts.Prefix+"/", clientv3.WithPrefix())
	if err != nil {
		return 0, fmt.Errorf("list: %w", err)
	}
	c.reached()
	c.seen.Update(func(o *failover.Observation) bool {
		o.Record, o.Revision, o.RecordErr, o.Missing = nil, 0, nil, true
		o.Live, o.LiveKnown = nil, true
		clear(c.runs)
		clear(c.news)
		for _, kv := range resp.Kvs {
			c.put(o, kv)
		}
		c.lookForTwin(o)
		return true
	})
	return resp.Header.Revision + 1, nil
}

// follow applies changes until the watch ends.
func (c *Coordinator) follow(ctx context.Context, from int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	// WithRequireLeader: a member that was cut off from the others ends the watch instead of being silent.
	ctx = clientv3.WithRequireLeader(ctx)
	// Watch waits until etcd has taken it.
	limit := time.AfterFunc(c.opts.RequestTimeout, cancel)
	changes := c.client.Watch(ctx, c.opts.Prefix+"/", clientv3.WithPrefix(), clientv3.WithRev(from))
	limit.Stop()
	// Silence can also mean that the connection leads nowhere. So etcd is asked for a sign of life on the same stream.
	ticker := time.NewTicker(c.opts.RequestTimeout)
	defer ticker.Stop()
	asked := false
	for {
		select {
		case w, ok := <-changes:
			if !ok {
				return ctx.Err()
			}
			if err := w.Err(); err != nil {
				return fmt.Errorf("watch: %w", err) // among others ErrCompacted
			}
			asked = false
			c.apply(w.Events)
		case <-ticker.C:
			if asked {
				return errSilent
			}
			if err := c.client.RequestProgress(ctx); err != nil {
				return fmt.Errorf("watch: %w", err)
			}
			asked = true
		}
	}
}

// apply notes changes.
func (c *Coordinator) apply(events []*clientv3.Event) {
	// The mark changes every second, and no watcher waits for it.
	events = slices.DeleteFunc(events, func(ev *clientv3.Event) bool { return string(ev.Kv.Key) == c.mark })
	if len(events) == 0 {
		return
	}
	c.seen.Update(func(o *failover.Observation) bool {
		for _, ev := range events {
			if ev.Type == mvccpb.DELETE {
				c.remove(o, ev.Kv)
			} else {
				c.put(o, ev.Kv)
			}
		}
		c.lookForTwin(o)
		return true
	})
}

// lookForTwin finds out whether another process announces itself under this node's id. Called under the lock of c.seen.
func (c *Coordinator) lookForTwin(o *failover.Observation) {
	all := slices.Collect(maps.Values(c.runs))
	for _, l := range c.news {
		// One of 0.1.0 has no key of its own, and is seen as long as it is the newest.
		if !slices.ContainsFunc(all, func(e twins.Entry) bool { return e.Live == l.Live }) {
			all = append(all, l)
		}
	}
	o.Twin = c.twins.See(0, all)
	if c.twins.Unknown(all) {
		select {
		case c.unknown <- struct{}{}:
		default:
		}
	}
}

// put notes a key. Called under the lock of c.seen.
func (c *Coordinator) put(o *failover.Observation, kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	switch {
	case key == c.record:
		o.Missing = false
		rec, err := failover.DecodeRecord(kv.Value)
		if err != nil {
			o.RecordErr = fmt.Errorf("key %s: %w", key, err)
			return
		}
		o.Record, o.Revision, o.RecordErr = &rec, failover.Revision(kv.ModRevision), nil
	case strings.HasPrefix(key, c.livedir):
		var l failover.Live
		id, err := uuid.Parse(key[len(c.livedir):])
		if err != nil || json.Unmarshal(kv.Value, &l) != nil || l.Node.ID != id {
			return // a hint that cannot be read is none
		}
		c.news[key] = twins.Entry{Live: l, Seq: kv.ModRevision}
		lives := withoutNode(o.Live, id)
		lives = append(lives, l)
		slices.SortFunc(lives, func(a, b failover.Live) int { return bytes.Compare(a.Node.ID[:], b.Node.ID[:]) })
		o.Live = lives
	case strings.HasPrefix(key, c.rundir):
		var l failover.Live
		if json.Unmarshal(kv.Value, &l) == nil {
			// An announcement and its repetition may come at once, and that of a twin between them tells that it runs.
			c.runs[key] = twins.Entry{Live: l, Seq: kv.ModRevision, First: kv.CreateRevision}
		}
	}
}

// remove notes that a key is gone. Called under the lock of c.seen.
func (c *Coordinator) remove(o *failover.Observation, kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if key == c.record {
		o.Record, o.Revision, o.RecordErr, o.Missing = nil, 0, nil, true
		return
	}
	delete(c.runs, key)
	delete(c.news, key)
	if id, err := uuid.Parse(strings.TrimPrefix(key, c.livedir)); err == nil {
		o.Live = withoutNode(o.Live, id)
	}
}

// withoutNode returns a new slice.
func withoutNode(lives []failover.Live, id uuid.UUID) []failover.Live {
	return slices.DeleteFunc(slices.Clone(lives), func(l failover.Live) bool { return l.Node.ID == id })
}
