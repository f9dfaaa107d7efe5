package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
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
	key := c.livedir + live.Node.ID.String()
	var id clientv3.LeaseID
	for ctx.Err() == nil {
		wait := c.opts.LeaseTTL / 3
		if id == clientv3.NoLease {
			id, err = c.grant(ctx, key, string(value))
		} else {
			err = c.renew(ctx, id)
		}
		switch {
		case err == nil:
			c.reached(true)
		case errors.Is(err, errLeaseGone):
			id, wait = clientv3.NoLease, 0
		case ctx.Err() != nil:
		default:
			c.reached(false)
			c.log.Debug("etcd lease", zap.Error(err))
			wait = retryDelay
		}
		select {
		case <-ctx.Done():
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

// grant gets a new lease and writes the liveness key under it.
func (c *Coordinator) grant(ctx context.Context, key, value string) (clientv3.LeaseID, error) {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	sent := time.Now()
	lease, err := c.client.Grant(ctx, int64((c.opts.LeaseTTL+time.Second-1)/time.Second))
	if err != nil {
		return clientv3.NoLease, fmt.Errorf("grant: %w", err)
	}
	if _, err := c.client.Put(ctx, key, value, clientv3.WithLease(lease.ID)); err != nil {
		return clientv3.NoLease, fmt.Errorf("put %s: %w", key, err) // the lease ends by itself
	}
	c.leased(sent, lease.TTL)
	return lease.ID, nil
}

// renew sends one keep-alive and waits for its answer. (The library's KeepAliveOnce waits for a connection and then tries
// again without a pause until the time is up, whatever goes wrong; here an outage is to be noticed at once.)
func (c *Coordinator) renew(ctx context.Context, id clientv3.LeaseID) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.RequestTimeout)
	defer cancel()
	sent := time.Now()
	stream, err := etcdserverpb.NewLeaseClient(c.client.ActiveConnection()).LeaseKeepAlive(ctx)
	if err != nil {
		return fmt.Errorf("keep alive: %w", err)
	}
	if err := stream.Send(&etcdserverpb.LeaseKeepAliveRequest{ID: int64(id)}); err != nil {
		return fmt.Errorf("keep alive: %w", err)
	}
	resp, err := stream.Recv()
	if err != nil {
		if errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) {
			return errLeaseGone
		}
		return fmt.Errorf("keep alive: %w", err)
	}
	if resp.TTL <= 0 {
		return errLeaseGone
	}
	c.leased(sent, resp.TTL)
	return nil
}

// leased notes until when the lease holds at least: the granted time, counted from before the request was sent.
func (c *Coordinator) leased(sent time.Time, ttlSeconds int64) {
	until := sent.Add(time.Duration(ttlSeconds) * time.Second)
	c.seen.Update(func(o *failover.Observation) bool {
		o.LeaseUntil = until
		return true
	})
}
