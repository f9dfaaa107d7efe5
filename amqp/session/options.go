// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Options are what a Conn announces and what it bounds. Zero values have the defaults that are named.
type Options struct {
	// ContainerID names this node to its peers.
	ContainerID string
	// MaxFrameSize is the largest frame in bytes that is received; default 131,072. The caller's wire.Reader enforces
	// it.
	MaxFrameSize uint32
	// ChannelMax is the highest number of a channel, so that a connection has one session more; default 255.
	ChannelMax uint16
	// HandleMax is the highest handle of a link in a session, so that a session has one link more; default 1023.
	HandleMax uint32
	// MaxLinks bounds the links of the whole connection; default 4096. One more is refused.
	MaxLinks int
	// IdleTimeOut is announced. A peer that has sent nothing for twice as long loses its connection; 0: never.
	IdleTimeOut time.Duration
	// MaxMessageSize in bytes is announced for links, and enforced while a message is put together; 0: no limit but
	// MaxPartial.
	MaxMessageSize uint64
	// MaxPartial bounds the bytes of all messages of the connection of which not all frames have come; default 64 MiB.
	MaxPartial int
	// MaxUnsent bounds the bytes of all messages that wait in the connection's sender links for credit or for the
	// session's window; default 64 MiB.
	MaxUnsent int
	// IncomingWindow is how many transfers a session takes before it has to tell the peer to go on; default 2048.
	IncomingWindow uint32
	// MaxUnsettled bounds the deliveries of a session that were sent and not settled; default 65,536. Further ones
	// wait. Of those that come, the windows of links (Link.Window) bound how many are not settled; where credit was
	// given by Link.Grant, one more than MaxUnsettled ends the session.
	MaxUnsettled int

	OfferedCapabilities []wire.Symbol
	DesiredCapabilities []wire.Symbol
	Properties          wire.Fields

	firstID uint32 // of transfers, deliveries and delivery counts: tests let them wrap around
}

func (o Options) withDefaults() Options {
	set(&o.MaxFrameSize, 128<<10)
	set(&o.ChannelMax, 255)
	set(&o.HandleMax, 1023)
	set(&o.MaxLinks, 4096)
	set(&o.MaxPartial, 64<<20)
	set(&o.MaxUnsent, 64<<20)
	set(&o.IncomingWindow, 2048)
	set(&o.MaxUnsettled, 65536)
	return o
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}
