// SPDX-License-Identifier: Apache-2.0

package session

import (
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
)

// Options are the announced values and the limits of a Conn. Zero values select the defaults stated below.
type Options struct {
	// ContainerID identifies this node to its peers.
	ContainerID string
	// MaxFrameSize is the maximum size in bytes of a received frame; default 131,072. The caller's wire.Reader enforces
	// it.
	MaxFrameSize uint32
	// ChannelMax is the highest channel number; a connection may have one more session than that. Default 255.
	ChannelMax uint16
	// HandleMax is the highest link handle in a session; a session may have one more link than that. Default 1023.
	HandleMax uint32
	// MaxLinks is the maximum number of links of the connection; default 4096. Further links are refused.
	MaxLinks int
	// IdleTimeOut is announced. A peer that has sent nothing for twice that time is disconnected; 0: never.
	IdleTimeOut time.Duration
	// MaxMessageSize in bytes is announced for links, and enforced while a message is assembled; 0: limited only by
	// MaxPartial.
	MaxMessageSize uint64
	// MaxPartial is the maximum number of bytes of all incomplete messages of the connection; default 64 MiB.
	MaxPartial int
	// MaxUnsent is the maximum number of bytes of all messages waiting in the connection's sender links for credit or for
	// the session's window; default 64 MiB.
	MaxUnsent int
	// IncomingWindow is the number of transfers that a session accepts before it must send a new window; default 2048.
	IncomingWindow uint32
	// MaxUnsettled is the maximum number of sent and unsettled deliveries of a session; default 65,536. Further ones wait.
	// Unsettled received deliveries are limited by the windows of links (Link.Window); with credit from Link.Grant,
	// exceeding MaxUnsettled ends the session.
	MaxUnsettled int

	OfferedCapabilities []wire.Symbol
	DesiredCapabilities []wire.Symbol
	Properties          wire.Fields

	firstID uint32 // of transfers, deliveries and delivery counts; set by tests of the wraparound
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
