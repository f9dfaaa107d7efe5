package etcd

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
)

// storedMark is the value of the mark's key. It names the record that it belongs to by the revision that created it: if the record was
// deleted, and another pair begun under the same prefix, the mark of the old pair says nothing of the new one.
type storedMark struct {
	failover.Mark
	Record int64 `json:"record"`
}

// marks is what this connection knows of the mark's key, so that a write needs no read before it.
type marks struct {
	mu      sync.Mutex // guards what follows
	rev     int64      // mod revision of the key; 0: there is none
	created int64      // create revision of the record; 0: there is none
	now     storedMark
}

// above tells whether a mark is one to write.
func (k *marks) above(m failover.Mark) bool { return k.now.Record != k.created || k.now.Less(m) }

// WriteMark implements failover.Coordinator. The mark has a key of its own without a lease: it outlives whoever wrote it. Besides the
// errors of a read and of a swap there is ErrNoRecord: a mark belongs to a record.
func (c *Coordinator) WriteMark(ctx context.Context, m failover.Mark) error {
	k := &c.marks
	k.mu.Lock()
	defer k.mu.Unlock()
	for fresh := false; ; fresh = true {
		switch {
		case fresh && k.created == 0:
			return fmt.Errorf("write the pair's mark: key %s: %w", c.record, failover.ErrNoRecord)
		case fresh && !k.above(m):
			return nil
		case k.created == 0 || !k.above(m): // for all that this connection knows; etcd may have been put back since
			if err := c.readMark(ctx); err != nil {
				return fmt.Errorf("write the pair's mark: %w", err)
			}
			continue
		}
		if done, err := c.raiseMark(ctx, m); done || err != nil {
			return err
		}
	}
}

// raiseMark writes the mark if nobody else has since this connection has last looked; if somebody has, it notes what is there. Called
// with c.marks.mu held.
func (c *Coordinator) raiseMark(ctx context.Context, m failover.Mark) (bool, error) {
	k := &c.marks
	next := storedMark{Mark: m, Record: k.created}
	value, err := json.Marshal(next)
	if err != nil {
		return false, fmt.Errorf("write the pair's mark: %w", err)
	}
	// It may be sent to several endpoints. One that is done only after a higher mark was written does not meet its condition any more.
	resp, _, err := hedged(ctx, c.attempts(), func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return c.client.Txn(ctx).
			If(
				clientv3.Compare(clientv3.ModRevision(c.mark), "=", k.rev),
				clientv3.Compare(clientv3.CreateRevision(c.record), "=", k.created),
			).
			Then(clientv3.OpPut(c.mark, string(value))).
			Else(clientv3.OpGet(c.mark), clientv3.OpGet(c.record, clientv3.WithKeysOnly())).
			Commit()
	})
	if err != nil {
		return false, fmt.Errorf("write the pair's mark: %w: %w", failover.ErrUnknownOutcome, err)
	}
	c.reached()
	if resp.Succeeded {
		k.rev, k.now = resp.Header.Revision, next
		return true, nil
	}
	return false, c.noteMark(resp)
}

// LoadMark implements failover.Coordinator.
func (c *Coordinator) LoadMark(ctx context.Context) (failover.Mark, error) {
	k := &c.marks
	k.mu.Lock()
	defer k.mu.Unlock()
	if err := c.readMark(ctx); err != nil {
		return failover.Mark{}, fmt.Errorf("load the pair's mark: %w", err)
	}
	if k.now.Record != k.created {
		return failover.Mark{}, nil // another record's
	}
	return k.now.Mark, nil
}

// readMark reads the mark's key linearizably, and whose it is. Called with c.marks.mu held.
func (c *Coordinator) readMark(ctx context.Context) error {
	resp, _, err := hedged(ctx, c.attempts(), func(ctx context.Context) (*clientv3.TxnResponse, error) {
		return c.client.Txn(ctx).Then(clientv3.OpGet(c.mark), clientv3.OpGet(c.record, clientv3.WithKeysOnly())).Commit()
	})
	if err != nil {
		c.unreached(err)
		return fmt.Errorf("%w: %w", failover.ErrUnreachable, err)
	}
	c.reached()
	return c.noteMark(resp)
}

// noteMark notes the answer to a read of both keys. Called with c.marks.mu held.
func (c *Coordinator) noteMark(resp *clientv3.TxnResponse) error {
	k := &c.marks
	k.rev, k.created, k.now = 0, 0, storedMark{}
	if kvs := resp.Responses[1].GetResponseRange().GetKvs(); len(kvs) == 1 {
		k.created = kvs[0].CreateRevision
	}
	kvs := resp.Responses[0].GetResponseRange().GetKvs()
	if len(kvs) == 0 {
		return nil
	}
	k.rev = kvs[0].ModRevision
	if err := json.Unmarshal(kvs[0].Value, &k.now); err != nil {
		k.created = 0 // so that it is read again
		return fmt.Errorf("key %s: %w: %w", c.mark, failover.ErrRecordInvalid, err)
	}
	return nil
}
