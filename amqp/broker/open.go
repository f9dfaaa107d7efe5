// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"fmt"
	"slices"
	"strings"

	"github.com/lockstep-mq/lockstep/amqp/session"
	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Capabilities of connections that clients request by name.
const (
	anonymousRelay  wire.Symbol = "ANONYMOUS-RELAY"
	delayedDelivery wire.Symbol = "DELAYED_DELIVERY"
	sharedSubs      wire.Symbol = "SHARED-SUBS"
	soleConnection  wire.Symbol = "sole-connection-for-container"
)

const notActive = "this node is not active"

// opened responds to an open. mu is held.
func (c *conn) opened(o *wire.Open) {
	role, _ := c.server.o.Role()
	c.server.o.Hello(c.remote, nameOf(o))
	if !role.Active && !understandsRedirect(o) {
		c.shutLocked(redirectError(role, notActive))
		return
	}
	// The open has no failover-server-list, because Qpid JMS replaces its configured addresses with that list. The list
	// can lack the other node, the other site, or addresses that the client can reach.
	reply := session.OpenReply{
		OfferedCapabilities: []wire.Symbol{anonymousRelay, delayedDelivery, sharedSubs},
		Properties: wire.Fields{
			{Key: wire.Symbol("product"), Value: "Lockstep"},
			{Key: wire.Symbol("version"), Value: c.server.o.Version},
		},
	}
	var reason *wire.Error
	switch {
	case !role.Active:
		reason = redirectError(role, notActive)
	case c.refused != nil:
		reason = c.refused
	case slices.Contains(o.DesiredCapabilities, soleConnection):
		reply.OfferedCapabilities = append(reply.OfferedCapabilities, soleConnection)
		if !c.server.claim(c, o.ContainerID) {
			reason = session.Errorf(session.InvalidField, "container-id %q is in use by another connection, and this one "+
				"requests exclusive use: use a unique container-id per client", o.ContainerID)
			reason.Info = wire.Fields{{Key: wire.Symbol("invalid-field"), Value: wire.Symbol("container-id")}}
		}
	}
	if reason == nil {
		c.core.Open(reply)
		return
	}
	// A client that receives this property waits for the close.
	reply.Properties = append(reply.Properties,
		wire.MapEntry{Key: wire.Symbol("amqp:connection-establishment-failed"), Value: true})
	c.core.Open(reply)
	c.shutLocked(reason)
}

func nameOf(o *wire.Open) string {
	name := o.ContainerID
	if product, ok := o.Properties.Get(wire.Symbol("product")); ok {
		name = fmt.Sprint(product, " ", name)
		if version, ok := o.Properties.Get(wire.Symbol("version")); ok {
			name = fmt.Sprint(product, "/", version, " ", o.ContainerID)
		}
	}
	const most = 200
	return strings.ToValidUTF8(name[:min(len(name), most)], "")
}
