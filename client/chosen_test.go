// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/codes"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *fakeNode) MoveMessages(_ context.Context, r *pb.MoveMessagesRequest) (*pb.MoveMessagesResponse, error) {
	if err := n.ownsQueue(r.GetQueue()); err != nil {
		return nil, err
	}
	return &pb.MoveMessagesResponse{Moved: 1}, n.choose()
}

func (n *fakeNode) RemoveMessages(context.Context, *pb.RemoveMessagesRequest) (*pb.RemoveMessagesResponse, error) {
	return &pb.RemoveMessagesResponse{Removed: 1}, n.choose()
}

func (n *fakeNode) choose() error {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return err
	}
	return n.pair.chosen()
}

// A call without a response may have been executed. It is retried, and an error of the last attempt also matches
// ErrOutcomeUnknown.
func TestMoveAndRemoveWithLostResponse(t *testing.T) {
	lost, full := refusal(t, codes.Unavailable, "OUTCOME_UNKNOWN"), refusal(t, codes.ResourceExhausted, "QUEUE_FULL")
	one := []admin.SequenceRange{{First: 1, Last: 1}}
	for op, call := range map[string]func(context.Context, *client.Client) error{
		"move": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).MoveMessages(ctx, "q", one, admin.MoveOptions{To: "r"})
			return err
		},
		"remove": func(ctx context.Context, c *client.Client) error {
			_, err := admin.New(c).RemoveMessages(ctx, "q", "", one, 0)
			return err
		},
	} {
		for name, tt := range map[string]struct {
			responses []error // nil: executed, with a response
			canceled  bool    // the call is canceled after the last response
			want      error
			unknown   bool
		}{
			"answered":            {responses: []error{nil}},
			"lost, then answered": {responses: []error{lost, nil}},
			"lost, then canceled": {responses: []error{lost}, canceled: true, want: context.Canceled, unknown: true},
			"lost, then refused":  {responses: []error{lost, full}, want: client.ErrLimit, unknown: true},
			"refused":             {responses: []error{full}, want: client.ErrLimit},
		} {
			t.Run(op+", "+name, func(t *testing.T) {
				p := newFakePair(t)
				ctx, cancel := context.WithCancel(soon(t))
				defer cancel()
				attempts := 0
				p.chosen = func() error {
					attempts++
					if tt.canceled && attempts == len(tt.responses) {
						cancel()
					}
					return tt.responses[min(attempts, len(tt.responses))-1]
				}
				err := call(ctx, p.client(client.Options{}))
				require.ErrorIs(t, err, tt.want)
				if tt.unknown {
					require.ErrorIs(t, err, client.ErrOutcomeUnknown)
				} else {
					require.NotErrorIs(t, err, client.ErrOutcomeUnknown)
				}
				p.mu.Lock()
				defer p.mu.Unlock()
				require.Equal(t, len(tt.responses), attempts)
			})
		}
	}
}
