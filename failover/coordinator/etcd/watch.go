// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcdconn"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
)

// newWatch creates the watch of the pair's keys.
func (c *Coordinator) newWatch() *etcdconn.Watch {
	return etcdconn.NewWatch(etcdconn.WatchOptions{
		Client: c.client, Prefix: c.opts.Prefix + "/", RequestTimeout: c.opts.RequestTimeout, Get: c.get,
		Probe: func(ctx context.Context) error {
			_, err := c.list(ctx)
			return err
		},
		Load: c.list, Apply: c.apply,
		Ended: func(err error) { c.log.Debug("etcd watch restarted", zap.Error(err)) },
	})
}

func (c *Coordinator) list(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	limited, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	var kvs []*mvccpb.KeyValue
	header, err := c.keys.List(limited, c.opts.Prefix+"/", func(kv *mvccpb.KeyValue) { kvs = append(kvs, kv) })
	if err != nil {
		if ctx.Err() == nil {
			c.reportUnreachable(err)
		}
		return nil, err
	}
	c.reportReachable()
	c.seen.Update(func(o *failover.Observation) bool {
		o.Record, o.Revision, o.RecordErr, o.Missing = nil, 0, nil, true
		o.Live, o.LiveKnown = nil, true
		clear(c.processes)
		clear(c.newest)
		for _, kv := range kvs {
			c.put(o, kv)
		}
		c.findDuplicate(o)
		return true
	})
	return header, nil
}

func (c *Coordinator) apply(events []*mvccpb.Event) {
	// The mark changes every second, and watchers do not use it.
	events = slices.DeleteFunc(events, func(ev *mvccpb.Event) bool { return string(ev.Kv.Key) == c.mark })
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
		c.findDuplicate(o)
		return true
	})
}

// findDuplicate updates o.Duplicate. The lock of c.seen is held.
func (c *Coordinator) findDuplicate(o *failover.Observation) {
	all := slices.Collect(maps.Values(c.processes))
	for _, l := range c.newest {
		// A process of 0.1.0 has no process key, and is only visible while it is the newest.
		if !slices.ContainsFunc(all, func(e dupdetect.Entry) bool { return e.Live == l.Live }) {
			all = append(all, l)
		}
	}
	o.Duplicate = c.duplicates.See(0, all)
	if c.duplicates.Unknown(all) {
		select {
		case c.unaware <- struct{}{}:
		default:
		}
	}
}

// put applies a written key. The lock of c.seen is held.
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
			return // ignore an unreadable hint
		}
		c.newest[key] = dupdetect.Entry{Live: l, Seq: kv.ModRevision}
		lives := withoutNode(o.Live, id)
		lives = append(lives, l)
		slices.SortFunc(lives, func(a, b failover.Live) int { return bytes.Compare(a.Node.ID[:], b.Node.ID[:]) })
		o.Live = lives
	case strings.HasPrefix(key, c.processDir):
		var l failover.Live
		if json.Unmarshal(kv.Value, &l) == nil {
			// Two announcements of this process may arrive in one response. First is the revision of the earlier one. A
			// duplicate process with a higher revision was running after that announcement.
			c.processes[key] = dupdetect.Entry{Live: l, Seq: kv.ModRevision, First: kv.CreateRevision}
		}
	}
}

// remove applies a deleted key. The lock of c.seen is held.
func (c *Coordinator) remove(o *failover.Observation, kv *mvccpb.KeyValue) {
	key := string(kv.Key)
	if key == c.record {
		o.Record, o.Revision, o.RecordErr, o.Missing = nil, 0, nil, true
		return
	}
	delete(c.processes, key)
	delete(c.newest, key)
	if id, err := uuid.Parse(strings.TrimPrefix(key, c.livedir)); err == nil {
		o.Live = withoutNode(o.Live, id)
	}
}

func withoutNode(lives []failover.Live, id uuid.UUID) []failover.Live {
	return slices.DeleteFunc(slices.Clone(lives), func(l failover.Live) bool { return l.Node.ID == id })
}
