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
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/twins"
)

// retryDelay between two attempts to renew the lease while etcd does not answer.
const retryDelay = 250 * time.Millisecond

// errLeaseGone is returned when etcd does not know the lease any more.
var errLeaseGone = errors.New("the lease has ended")

// Announce implements failover.Coordinator. Renewing the lease is also how an outage of etcd is noticed.
func (c *Coordinator) Announce(ctx context.Context, live failover.Live) error {
	value, err := json.Marshal(live)
	if err != nil {
		return fmt.Errorf("announce: %w", err)
	}
	keys := announced{
		live: c.livedir + live.Node.ID.String(),
		run:  c.rundir + live.Node.ID.String() + "/" + url.PathEscape(live.Process), value: string(value),
	}
	c.track(func(t *twins.Tracker) { t.Begin(live) })
	defer c.track((*twins.Tracker).End)
	var id clientv3.LeaseID
	var alive keepAlive
	defer alive.end()
	unknown := false // one that may not know of this process
	for ctx.Err() == nil {
		wait := c.opts.LeaseTTL / 3
		if id == clientv3.NoLease {
			id, err = c.grant(ctx, keys)
		} else {
			err = c.renew(ctx, &alive, id)
		}
		if err == nil && (unknown || c.overwritten(live)) {
			err = c.announceAgain(ctx, keys, id)
		}
		switch {
		case err == nil:
			unknown = false
			c.reached()
		case errors.Is(err, errLeaseGone):
			id, wait = clientv3.NoLease, 0
		case ctx.Err() != nil:
		case errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace):
			// No new lease, but it answers. The liveness key is a hint that the pair can do without.
			c.reach(true, cause(err))
		default:
			c.unreached(err)
			c.log.Debug("etcd lease", zap.Error(err))
			wait = retryDelay
		}
		select {
		case <-ctx.Done():
		case <-c.unknown:
			unknown = true
		case <-time.After(wait):
		}
	}
	if id != clientv3.NoLease {
		// So that the other node need not wait for the end of the lease to know.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), c.opts.RequestTimeout/2)
		defer cancel()
		if _, err := c.client.Revoke(ctx, id); err != nil {
			c.log.Debug("etcd lease: revoke", zap.Error(err))
		}
	}
	return nil
}

// announced are the keys of a process that announces itself, both under its lease.
type announced struct {
	live  string // of its node: the newest process counts
	run   string // its own
	value string
}

// track changes whom this connection takes for itself.
func (c *Coordinator) track(change func(*twins.Tracker)) {
	c.seen.Update(func(o *failover.Observation) bool {
		change(&c.twins)
		c.lookForTwin(o)
		return true
	})
}

// overwritten tells whether the node's liveness key is gone although its process is here: a twin had written it, and is
// gone as well.
func (c *Coordinator) overwritten(live failover.Live) bool {
	o := c.seen.Get()
	_, there := o.LiveNode(live.Node.ID)
	return o.Reachable && o.LiveKnown && !there
}

// announceAgain writes this process's own key once more, so that a process that has come since knows that this one
// runs; and the node's key if there is none.
func (c *Coordinator) announceAgain(ctx context.Context, keys announced, id clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	_, _, err := c.txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		run := clientv3.OpPut(keys.run, keys.value, clientv3.WithLease(id))
		return t.If(clientv3.Compare(clientv3.CreateRevision(keys.live), "=", 0)).
			Then(run, clientv3.OpPut(keys.live, keys.value, clientv3.WithLease(id))).
			Else(run)
	})
	switch {
	case errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound):
		return errLeaseGone
	case err != nil:
		return fmt.Errorf("put %s: %w", keys.run, err)
	}
	return nil
}

// grant gets a new lease and writes the keys under it.
func (c *Coordinator) grant(ctx context.Context, keys announced) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	sent := time.Now()
	lease, _, err := hedged(ctx, c.attempts(), func(ctx context.Context) (*clientv3.LeaseGrantResponse, error) {
		// a superfluous one ends by itself
		return c.client.Grant(ctx, int64((c.opts.LeaseTTL+time.Second-1)/time.Second))
	})
	if err != nil {
		return clientv3.NoLease, fmt.Errorf("grant: %w", err)
	}
	_, _, err = c.txn(ctx, func(t clientv3.Txn) clientv3.Txn {
		return t.Then(
			clientv3.OpPut(keys.live, keys.value, clientv3.WithLease(lease.ID)),
			clientv3.OpPut(keys.run, keys.value, clientv3.WithLease(lease.ID)),
		)
	})
	if err != nil {
		return clientv3.NoLease, fmt.Errorf("put %s: %w", keys.live, err) // the lease ends by itself
	}
	c.leased(sent, lease.TTL)
	return lease.ID, nil
}

// keepAlive is a stream that renews a lease. It stays open from one renewal to the next: with users, opening one costs
// etcd the check of a password.
type keepAlive struct {
	stream etcdserverpb.Lease_LeaseKeepAliveClient // nil: to be opened
	cancel context.CancelFunc
}

// end closes the stream, if there is one.
func (k *keepAlive) end() {
	if k.stream != nil {
		k.cancel()
		k.stream = nil
	}
}

// renew renews the lease once, by another connection if one does not answer.
func (c *Coordinator) renew(ctx context.Context, alive *keepAlive, id clientv3.LeaseID) error {
	var err error
	for range len(c.opts.Endpoints) + 1 { // the first stream may be of a connection that has ended since
		if err = c.renewOnce(ctx, alive, id); err == nil || errors.Is(err, errLeaseGone) || ctx.Err() != nil {
			return err
		}
	}
	return err
}

// renewOnce sends one keep-alive and waits for its answer. (The library's KeepAliveOnce waits for a connection and then
// tries again without a pause until the time is up, whatever goes wrong; here an outage is to be noticed at once.)
func (c *Coordinator) renewOnce(ctx context.Context, alive *keepAlive, id clientv3.LeaseID) error {
	sent := time.Now()
	limit := c.opts.RequestTimeout / time.Duration(min(len(c.opts.Endpoints), 3))
	resp, err := alive.ask(ctx, c.client, id, limit)
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

// ask sends a keep-alive, opening the stream if need be, and reads the answer.
func (k *keepAlive) ask(
	ctx context.Context, client *clientv3.Client, id clientv3.LeaseID, limit time.Duration,
) (*etcdserverpb.LeaseKeepAliveResponse, error) {
	if k.stream == nil {
		ctx, cancel := context.WithCancel(ctx)
		timer := time.AfterFunc(limit, cancel)
		stream, err := etcdserverpb.NewLeaseClient(client.ActiveConnection()).LeaseKeepAlive(ctx)
		timer.Stop()
		if err != nil {
			cancel()
			return nil, err //nolint:wrapcheck // renewOnce says what it is
		}
		k.stream, k.cancel = stream, cancel
	}
	timer := time.AfterFunc(limit, k.cancel)
	defer timer.Stop()
	if err := k.stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil && !errors.Is(err, io.EOF) {
		return nil, err //nolint:wrapcheck // renewOnce says what it is
	}
	return k.stream.Recv() //nolint:wrapcheck // renewOnce says what it is
}

// leased notes until when the lease holds at least: the granted time, counted from before the request was sent.
func (c *Coordinator) leased(sent time.Time, ttlSeconds int64) {
	until := sent.Add(time.Duration(ttlSeconds) * time.Second)
	c.seen.Update(func(o *failover.Observation) bool {
		o.LeaseUntil = until
		return true
	})
}
