// SPDX-License-Identifier: Apache-2.0

package session

import (
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/amqp/wire"
	"github.com/stretchr/testify/require"
)

func TestSmoke(t *testing.T) {
	var got []wire.Performative
	now := time.Unix(0, 0)
	c := New(Options{ContainerID: "n", encode: func(b []byte, _ uint16, body wire.Performative, _ []byte) []byte {
		if tr, ok := body.(*wire.Transfer); ok {
			cp := *tr
			body = &cp
		}
		got = append(got, body)
		return append(b, 1)
	}}, now)
	in := func(body wire.Performative, payload ...byte) {
		require.NoError(t, c.Receive(&wire.Frame{Body: body, Payload: payload}, now))
		for e, ok := c.Next(); ok; e, ok = c.Next() {
			t.Logf("%T", e)
			switch e := e.(type) {
			case *Opened:
				c.Open(OpenReply{})
			case *Attached:
				require.True(t, e.Link.Accept(Reply{}))
				e.Link.Window(10)
			case *Delivery:
				e.Link.Settle(e.ID, wire.Accepted{})
			case *Credit:
				require.NoError(t, e.Link.Send(&Message{Ref: 7, Payload: []byte("x")}))
			case *Disposed:
				require.Equal(t, []uint64{7}, e.Refs)
			}
		}
		c.Output(nil)
	}
	in(&wire.Open{MaxFrameSize: 1000, ChannelMax: 10})
	in(&wire.Begin{IncomingWindow: 100, HandleMax: 10})
	in(&wire.Attach{Name: "a", Role: wire.RoleSender, Handle: 3})
	in(&wire.Transfer{Handle: 3, DeliveryID: wire.Some[uint32](0)}, 1, 2, 3)
	in(&wire.Attach{Name: "a", Role: wire.RoleReceiver, Handle: 4})
	in(&wire.Flow{IncomingWindow: 100, Handle: wire.Some[uint32](4), LinkCredit: wire.Some[uint32](4)})
	in(&wire.Disposition{Role: wire.RoleReceiver, Settled: true, State: wire.Accepted{}})
	for _, g := range got {
		t.Logf("%T %+v", g, g)
	}
	require.Len(t, got, 7)
}
