// SPDX-License-Identifier: Apache-2.0

package session

import (
	"cmp"
	"time"
)

// Options are the announced values and the limits of a Conn. Zero values select the defaults.
type Options struct {
	ContainerID    string        // container ID of this node
	MaxFrameSize   uint32        // bytes of a received frame, enforced by the wire.Reader; default 131,072
	ChannelMax     uint16        // highest channel number; default 255, for 256 sessions
	HandleMax      uint32        // highest link handle in a session; default 1023, for 1024 links
	MaxLinks       int           // links of the connection; default 4096; further links are refused
	IdleTimeOut    time.Duration // a peer that is silent for twice that time is disconnected; 0: never
	MaxMessageSize uint64        // bytes, announced and enforced; 0: limited by MaxPartial
	MaxPartial     int           // bytes of all incomplete messages; default 64 MiB
	MaxUnsent      int           // bytes waiting for credit or a window, or one larger message; default 64 MiB
	IncomingWindow uint32        // transfers that a session accepts until it sends a new window; default 2048
	// MaxUnsettled is the maximum number of sent unsettled deliveries of a session; default 65,536. Further messages
	// wait. Received deliveries are limited by Link.Window; with Link.Grant, the session ends if they exceed
	// MaxUnsettled.
	MaxUnsettled int

	firstID uint32 // first number of transfers, deliveries and delivery counts; set by tests of the wraparound
}

func (o Options) withDefaults() Options {
	o.MaxFrameSize = cmp.Or(o.MaxFrameSize, 128<<10)
	o.ChannelMax = cmp.Or(o.ChannelMax, 255)
	o.HandleMax = cmp.Or(o.HandleMax, 1023)
	o.MaxLinks = cmp.Or(o.MaxLinks, 4096)
	o.MaxPartial = cmp.Or(o.MaxPartial, 64<<20)
	o.MaxUnsent = cmp.Or(o.MaxUnsent, 64<<20)
	o.IncomingWindow = cmp.Or(o.IncomingWindow, 2048)
	o.MaxUnsettled = cmp.Or(o.MaxUnsettled, 65536)
	return o
}
