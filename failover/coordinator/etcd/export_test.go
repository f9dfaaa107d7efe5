// SPDX-License-Identifier: Apache-2.0

package etcd

import (
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/internal/dupdetect"
)

// OpenOnce is like Open, but the coordinator sends each request once.
func OpenOnce(o Options) (*Coordinator, error) {
	o.sendOnce = true
	return Open(o)
}

// Begin sets the process of the connection, as Announce does.
func (c *Coordinator) Begin(live failover.Live) {
	c.track(func(t *dupdetect.Tracker) { t.Begin(live) })
}

// Apply applies changes that one watch response contains.
func (c *Coordinator) Apply(events []*clientv3.Event) { c.apply(events) }
