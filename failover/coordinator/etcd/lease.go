// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
)

const retryDelay = 250 * time.Millisecond

var errLeaseGone = errors.New("lease has expired")

// Announce implements failover.Coordinator. Lease renewal also detects outages of etcd.
func (c *Coordinator) Announce(ctx context.Context, live failover.Live) error {
	value, err := json.Marshal(live)
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	keys := announced{
		live:    c.livedir + live.Node.ID.String(),
		process: c.processDir + live.Node.ID.String() + "/" + url.PathEscape(live.Process), value: string(value),
	}
	c.track(func(t *dupdetect.Tracker) { t.Begin(live) })
	defer c.track((*dupdetect.Tracker).End)
	var id clientv3.LeaseID
	var alive keepAlive
	defer alive.end()
	unaware := false // another process may not have detected this process
	for ctx.Err() == nil {
		wait := c.opts.LeaseTTL / 3
		if id == clientv3.NoLease {
			id, err = c.grant(ctx, keys)
		} else {
			err = c.renew(ctx, &alive, id)
		}
		if err == nil && (unaware || c.overwritten(live)) {
			err = c.announceAgain(ctx, keys, id)
		}
		switch {
		case err == nil:
			unaware = false
			c.reportReachable()
		case errors.Is(err, errLeaseGone):
			id, wait = clientv3.NoLease, 0
		case ctx.Err() != nil:
		case errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace):
			// A new lease was rejected, but etcd responds. The liveness key is only a hint.
			c.setReachable(true, cause(err))
		default:
			c.reportUnreachable(err)
			c.log.Debug("etcd lease", zap.Error(err))
			wait = retryDelay
		}
		select {
		case <-ctx.Done():
		case <-c.unaware:
			unaware = true
		case <-time.After(wait):
		}
	}
	if id != clientv3.NoLease {
		// Revoke the lease: the other node then does not have to wait until it expires.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.opts.RequestTimeout/2)
		defer cancel()
		if _, err := c.client.Revoke(ctx, id); err != nil {
			c.log.Debug("etcd lease: revoke", zap.Error(err))
		}
	}
	return nil
}

type announced struct {
	live    string // key of the node; the value is that of its newest process
	process string // key of the process
	value   string
}

func (c *Coordinator) track(change func(*dupdetect.Tracker)) {
	c.seen.Update(func(o *failover.Observation) bool {
		change(&c.duplicates)
		c.findDuplicate(o)
		return true
	})
}

// overwritten reports whether the node's liveness key is known to be missing. This is the case after a duplicate
// process has overwritten the key and then terminated.
func (c *Coordinator) overwritten(live failover.Live) bool {
	o := c.seen.Get()
	_, present := o.LiveNode(live.Node.ID)
	return o.Reachable && o.LiveKnown && !present
}

// announceAgain rewrites the key of this process. It also writes the node's liveness key if that key is missing.
func (c *Coordinator) announceAgain(ctx context.Context, keys announced, id clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	_, _, err := c.txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		process := clientv3.OpPut(keys.process, keys.value, clientv3.WithLease(id))
		return t.If(clientv3.Compare(clientv3.CreateRevision(keys.live), "=", 0)).
			Then(process, clientv3.OpPut(keys.live, keys.value, clientv3.WithLease(id))).
			Else(process)
	})
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		return errLeaseGone
	case err != nil:
		return fmt.Errorf("put %s: %w", keys.process, err)
	}
	return nil
}

func (c *Coordinator) grant(ctx context.Context, keys announced) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	sent := time.Now()
	lease, _, err := hedged(ctx, c.attempts(), func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		// an unused lease expires
		return c.client.Grant(ctx, int64((c.opts.LeaseTTL+time.Second-1)/time.Second))
	})
	if err != nil {
		return clientv3.NoLease, fmt.Errorf("grant: %w", err)
	}
	_, _, err = c.txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		return t.Then(
			clientv3.OpPut(keys.live, keys.value, clientv3.WithLease(lease.ID)),
			clientv3.OpPut(keys.process, keys.value, clientv3.WithLease(lease.ID)),
		)
	})
	if err != nil {
		return clientv3.NoLease, fmt.Errorf("put %s: %w", keys.live, err) // the lease expires
	}
	c.leased(sent, lease.TTL)
	return lease.ID, nil
}

// keepAlive is a stream that renews a lease. It is kept open between renewals.
type keepAlive struct {
	stream etcdserverpb.Lease_LeaseKeepAliveClient // nil if not open
	cancel context.CancelFunc
}

func (k *keepAlive) end() {
	if k.stream != nil {
		k.cancel()
		k.stream = nil
	}
}

func (c *Coordinator) renew(ctx context.Context, alive *keepAlive, id clientv3.LeaseID) error {
	var err error
	for range len(c.opts.Endpoints) + 1 { // the first stream may belong to a broken connection
		if err = c.renewOnce(ctx, alive, id); err == nil || errors.Is(err, errLeaseGone) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// renewOnce sends one keep-alive. It does not use the library's KeepAliveOnce: an outage must be detected
// immediately.
func (c *Coordinator) renewOnce(ctx context.Context, alive *keepAlive, id clientv3.LeaseID) error {
	sent := time.Now()
	limit := c.opts.RequestTimeout / time.Duration(min(len(c.opts.Endpoints), 3))
	resp, err := alive.send(ctx, c.client, id, limit)
	switch {
	case err == nil && resp.TTL > 0:
		c.leased(sent, resp.TTL)
		return nil
	case err == nil:
		return errLeaseGone
	}
	alive.end()
	if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
		return errLeaseGone
	}
	return fmt.Errorf("keep alive: %w", err)
}

func (k *keepAlive) send(
	ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, limit time.Duration,
) (*etcdserverpb.LeaseKeepAliveResponse, error) {
	if k.stream == nil {
		ctx, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(limit, cancel)
		stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
		timer.Stop()
		if err != nil {
			cancel()
			return nil, err //nolint:wrapcheck // renewOnce adds the context
		}
		k.stream, k.cancel = stream, cancel
	}
	timer := time.AfterFunc(limit, k.cancel)
	defer timer.Stop()
	if err := k.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err //nolint:wrapcheck // renewOnce adds the context
	}
	return k.stream.Recv() //nolint:wrapcheck // renewOnce adds the context
}

func (c *Coordinator) leased(sent time.Time, ttlSeconds int64) {
	until := sent.Add(time.Duration(ttlSeconds) * time.Second)
	c.seen.Update(func(o *failover.Observation) bool {
		o.LeaseUntil = until
		return true
	})
}
