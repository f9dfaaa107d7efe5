// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/twins"
)

// Begin has the connection take a process for its own, as Announce does.
func (c *Coordinator) Begin(live failover.Live) { c.track(func(t *twins.Tracker) { t.Begin(live) }) }

// Apply notes changes that a watch has told of at once.
func (c *Coordinator) Apply(events []*clientv3.Event) {
	changes := make([]*mvccpb.Event, len(events))
	for i, ev := range events {
		changes[i] = (*mvccpb.Event)(ev)
	}
	c.apply(changes)
}
