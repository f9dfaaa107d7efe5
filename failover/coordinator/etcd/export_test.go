// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/twins"
)

// Begin has the connection take a process for its own, as Announce does.
func (c *Coordinator) Begin(live failover.Live) { c.track(func(t *twins.Tracker) { t.Begin(live) }) }

// Apply notes changes that a watch has told of at once.
func (c *Coordinator) Apply(events []*clientv3.Event) { c.apply(events) }
