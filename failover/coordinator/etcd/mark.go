// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
)

// marks caches the mark and its revision.
type marks struct {
	mu  sync.Mutex // guards the fields below
	rev int64      // mod revision of the key; 0 if missing
	now failover.Mark
}

// WriteMark implements failover.Coordinator. The mark has a separate key without a lease.
func (c *Coordinator) WriteMark(ctx context.Context, m failover.Mark) (failover.Mark, error) {
	k := &c.marks
	k.mu.Lock()
	defer k.mu.Unlock()
	for fresh := false; ; fresh = true {
		switch {
		case k.now.Less(m):
			before := k.now
			if done, err := c.raiseMark(ctx, m); done || err != nil {
				return before, err
			}
		case fresh:
			return k.now, nil
		default: // the cached mark is not lower, but may be outdated: etcd may have been restored
			if err := c.readMark(ctx); err != nil {
				return failover.Mark{}, fmt.Errorf("write high-water mark: %w", err)
			}
		}
	}
}

// raiseMark writes the mark and returns true. If another connection has written a mark that is not cached,
// raiseMark caches that mark and returns false. The caller holds c.marks.mu.
func (c *Coordinator) raiseMark(ctx context.Context, m failover.Mark) (bool, error) {
	k := &c.marks
	value, err := json.Marshal(m)
	if err != nil {
		return false, fmt.Errorf("write high-water mark: %w", err)
	}
	// The mark may be sent to several endpoints. The condition rejects an attempt that arrives after another write of
	// the mark.
	resp, _, err := c.txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		return t.If(clientv3.Compare(clientv3.ModRevision(c.mark), "=", k.rev)).
			Then(clientv3.OpPut(c.mark, string(value))).
			Else(clientv3.OpGet(c.mark))
	})
	if err != nil {
		return false, fmt.Errorf("write high-water mark: %w: %w", failover.ErrUnknownOutcome, err)
	}
	c.reportReachable()
	if resp.Succeeded {
		k.rev, k.now = resp.Header.Revision, m
		return true, nil
	}
	return false, c.recordMark(resp.Responses[0].GetResponseRange().GetKvs())
}

// LoadMark implements failover.Coordinator.
func (c *Coordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	k := &c.marks
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := c.readMark(ctx); err != nil {
		return failover.Mark{}, fmt.Errorf("load high-water mark: %w", err)
	}
	return k.now, nil
}

// readMark reads the mark's key linearizably. c.marks.mu is held.
func (c *Coordinator) readMark(ctx context.Context) error {
	resp, err := c.get(ctx, c.mark)
	if err != nil {
		c.reportUnreachable(err)
		return fmt.Errorf("%w: %w", failover.ErrUnreachable, err)
	}
	c.reportReachable()
	return c.recordMark(resp.Kvs)
}

// recordMark caches the value of the mark's key. c.marks.mu is held.
func (c *Coordinator) recordMark(kvs []*mvccpb.KeyValue) error {
	k := &c.marks
	k.rev, k.now = 0, failover.Mark{}
	if len(kvs) == 0 {
		return nil
	}
	if err := json.Unmarshal(kvs[0].Value, &k.now); err != nil {
		k.now = failover.Mark{}
		return fmt.Errorf("key %s: %w: %w", c.mark, failover.ErrRecordInvalid, err)
	}
	k.rev = kvs[0].ModRevision
	return nil
}
