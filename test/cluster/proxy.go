// SPDX-License-Identifier: Apache-2.0

//go:build unix

package cluster

import "github.com/lockstep-mq/lockstep/test/harness/faultproxy"

// Proxy is a TCP relay with a link that can be cut.
type Proxy = faultproxy.Relay

// Direction is a direction through a Proxy.
type Direction = faultproxy.Direction

// Directions through a Proxy.
const (
	ToTarget   = faultproxy.ToTarget
	FromTarget = faultproxy.FromTarget
)

// NewProxy starts a proxy that listens on a free port of 127.0.0.1, and relays to target, a host:port. Close stops it.
func NewProxy(target string) (*Proxy, error) { return faultproxy.Listen(target) }
