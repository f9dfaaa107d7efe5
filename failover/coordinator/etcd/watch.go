// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
)

const relistDelay = 200 * time.Millisecond

var (
	errSilent   = errors.New("watch: no response from etcd")
	errReplaced = errors.New("watch: etcd was restored or replaced")
)

// watch lists the pair's keys and watches their changes. It lists them again after every interruption, so that no
// change is missed.
func (c *Coordinator) watch(ctx context.Context) {
	for ctx.Err() == nil {
		err := c.watchOnce(ctx)
		c.log.Debug("etcd watch restarted", zap.Error(err))
		select {
		case <-ctx.Done():
		case <-time.After(relistDelay):
		}
	}
}

// watchOnce lists the keys, and watches their changes until the stream ends.
//
// Unlike the client library's watch, the stream is never resumed. If etcd was restored from a backup, or emptied, its
// new history may reach a previously seen revision only later, and a watch from that revision reports nothing until
// then. So the keys are listed after the stream is opened, which detects a replaced history.
func (c *Coordinator) watchOnce(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if _, err := c.list(ctx); err != nil { // detects an outage even if no stream can be opened
		return err
	}
	stream, err := c.openWatch(ctx, cancel)
	if err != nil {
		return err
	}
	select {
	case <-c.replaced: // obsolete after the list below
	default:
	}
	listed, err := c.list(ctx)
	if err != nil {
		return err
	}
	return c.follow(ctx, stream, listed)
}

func (c *Coordinator) list(ctx context.Context) (*etcdserverpb.ResponseHeader, error) {
	limited, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	resp, err := c.get(limited, c.opts.Prefix+"/", clientv3.WithPrefix())
	if err != nil {
		if ctx.Err() == nil {
			c.reportUnreachable(err)
		}
		return nil, fmt.Errorf("list: %w", err)
	}
	c.reportReachable()
	c.seen.Update(func(o *failover.Observation) bool {
		o.Record, o.Revision, o.RecordErr, o.Missing = nil, 0, nil, true
		o.Live, o.LiveKnown = nil, true
		clear(c.processes)
		clear(c.newest)
		for _, kv := range resp.Kvs {
			c.put(o, kv)
		}
		c.findDuplicate(o)
		return true
	})
	return resp.Header, nil
}

// openWatch opens a stream of changes. If etcd does not respond within the request timeout, openWatch calls cancel,
// which must cancel ctx.
func (c *Coordinator) openWatch(
	ctx context.Context, cancel context.CancelFunc,
) (etcdserverpb.Watch_WatchClient, error) {
	limit := time.AfterFunc(c.opts.RequestTimeout, cancel)
	defer limit.Stop()
	// WithRequireLeader: a member without a leader ends the watch.
	stream, err := etcdserverpb.NewWatchClient(c.client.ActiveConnection()).Watch(
		clientv3.WithRequireLeader(ctx), grpc.MaxCallRecvMsgSize(math.MaxInt32))
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	prefix := c.opts.Prefix + "/"
	err = stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_CreateRequest{
		CreateRequest: &etcdserverpb.WatchCreateRequest{
			Key: []byte(prefix), RangeEnd: []byte(clientv3.GetPrefixRangeEnd(prefix)),
		},
	}})
	if err != nil && !errors.Is(err, io.EOF) { // Recv returns the reason
		return nil, fmt.Errorf("watch: %w", err)
	}
	resp, err := stream.Recv()
	if err != nil {
		return nil, fmt.Errorf("watch: %w", err)
	}
	if resp.Canceled {
		return nil, fmt.Errorf("watch: rejected by etcd: %s", resp.CancelReason)
	}
	return stream, nil
}

type received struct {
	resp *etcdserverpb.WatchResponse
	err  error
}

func (c *Coordinator) follow(
	ctx context.Context, stream etcdserverpb.Watch_WatchClient, listed *etcdserverpb.ResponseHeader,
) error {
	responses := make(chan received)
	c.wg.Go(func() {
		for {
			resp, err := stream.Recv()
			select {
			case responses <- received{resp, err}:
			case <-ctx.Done():
				return
			}
			if err != nil {
				return
			}
		}
	})
	// Without changes the stream is idle, so request progress notifications to detect a broken connection.
	ticker := time.NewTicker(c.opts.RequestTimeout)
	defer ticker.Stop()
	requested := false
	for {
		select {
		case r := <-responses:
			if r.err != nil {
				return fmt.Errorf("watch: %w", r.err)
			}
			requested = false
			if err := c.process(r.resp, listed); err != nil {
				return err
			}
		case <-ticker.C:
			if requested {
				return errSilent
			}
			err := stream.Send(&etcdserverpb.WatchRequest{RequestUnion: &etcdserverpb.WatchRequest_ProgressRequest{
				ProgressRequest: &etcdserverpb.WatchProgressRequest{},
			}})
			if err != nil && !errors.Is(err, io.EOF) {
				return fmt.Errorf("watch: %w", err)
			}
			requested = true
		case <-c.replaced:
			return errReplaced
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (c *Coordinator) process(resp *etcdserverpb.WatchResponse, listed *etcdserverpb.ResponseHeader) error {
	h := resp.Header
	switch {
	case resp.Canceled:
		return fmt.Errorf("watch: canceled by etcd: %s", resp.CancelReason)
	case h.GetClusterId() != listed.GetClusterId():
		return errReplaced
	case len(resp.Events) == 0 && h.GetRevision() < listed.GetRevision():
		return errReplaced // behind a proxy that keeps the stream open; or a lagging member, where a new list is harmless
	}
	// The stream was opened before the list, which may be newer than the first events.
	events := slices.DeleteFunc(resp.Events, func(ev *mvccpb.Event) bool { return ev.Kv.ModRevision <= listed.Revision })
	c.apply(events)
	return nil
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
			// Two announcements of a process may arrive in one response. First reveals whether a duplicate process announced
			// itself in between, which proves that the process was running.
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
