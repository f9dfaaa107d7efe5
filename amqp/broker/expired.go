// SPDX-License-Identifier: Apache-2.0

package broker

import (
	"github.com/lockstep-mq/lockstep/amqp/wire"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// expiredState is the state with which expire settles deliveries after their acknowledgement deadline.
var expiredState = &wire.Modified{DeliveryFailed: true} //nolint:gochecknoglobals // a constant

// expire withdraws the messages in ranges: it settles those that were sent, and removes those that wait. The node
// delivers nothing until the next request, which must prove that the client is running. The request is therefore
// sent after the next frame of the client. mu is held.
func (s *consumer) expire(ranges []*pb.SequenceRange) {
	refs := make(map[uint64]bool)
	for _, r := range ranges {
		for sequence := r.GetFirst(); sequence <= r.GetLast(); sequence++ {
			refs[sequence] = true
		}
	}
	s.asked += uint32(s.link.Withdraw(refs, expiredState))
	if !s.silent && !s.gone {
		s.silent = true
		s.c.silent = append(s.c.silent, s)
	}
	s.c.handleEvents()
	s.c.signal()
}

// resume requests messages for the consumers with expired deliveries: the client has sent a frame. mu is held.
func (c *conn) resume() {
	for _, s := range c.silent {
		s.silent, s.alive = false, true
		s.grant()
		s.signal()
	}
	c.silent = nil
}
