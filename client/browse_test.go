// SPDX-License-Identifier: Apache-2.0

package client_test

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (n *fakeNode) Browse(r *pb.BrowseRequest, stream grpc.ServerStreamingServer[pb.BrowseResponse]) error {
	n.pair.mu.Lock()
	defer n.pair.mu.Unlock()
	if err := n.active(); err != nil {
		return err
	}
	if err := n.pair.owns(r.GetQueue()); err != nil {
		return err
	}
	return n.pair.browse(r, func(resp *pb.BrowseResponse) { _ = stream.Send(resp) })
}

// After a call ends at a limit of the node or with an error, the search continues with the remaining range and the
// remaining number of messages.
func TestBrowseContinuesSearch(t *testing.T) { synctest.Test(t, testBrowseContinuesSearch) }

func testBrowseContinuesSearch(t *testing.T) {
	found := func(progress *pb.SearchProgress, sequences ...uint64) *pb.BrowseResponse {
		resp := &pb.BrowseResponse{Progress: progress}
		for _, seq := range sequences {
			resp.Messages = append(resp.Messages, &pb.StoredMessage{Sequence: seq, Message: &pb.Message{}})
		}
		return resp
	}
	at := func(from, before, scanned, unevaluated uint64) *pb.SearchProgress {
		return &pb.SearchProgress{
			FromSequence: from, BeforeSequence: before, Scanned: scanned, Unevaluated: unevaluated, QueueId: 7,
		}
	}
	for _, newest := range []bool{false, true} {
		p := newFakePair(t)
		var asked []*pb.BrowseRequest
		p.browse = func(r *pb.BrowseRequest, send func(*pb.BrowseResponse)) error {
			asked = append(asked, proto.CloneOf(r))
			switch {
			case len(asked) == 1 && newest:
				send(found(at(0, 801, 200, 1), 950, 900))
			case len(asked) == 1:
				send(found(at(201, 1001, 200, 1), 50, 100))
			case len(asked) == 2 && newest:
				send(found(nil, 700)) // the progress is lost
				return refusal(t, codes.Unavailable, "SHUTTING_DOWN")
			case len(asked) == 2:
				send(found(nil, 300))
				return refusal(t, codes.Unavailable, "SHUTTING_DOWN")
			default:
				send(found(at(5, 5, 50, 1)))
			}
			return nil
		}
		var got []uint64
		var last client.SearchProgress
		for m, err := range p.client(client.Options{}).Browse(soon(t), "q", client.BrowseOptions{
			Filter: "true", Newest: newest, Limit: 9, Progress: func(s client.SearchProgress) { last = s },
		}) {
			require.NoError(t, err)
			got = append(got, m.Sequence)
		}
		require.Len(t, asked, 3)
		require.Equal(t, client.SearchProgress{Scanned: 250, Unevaluated: 2, From: 5, Before: 5, QueueID: 7}, last)
		if newest {
			require.Equal(t, []uint64{950, 900, 700}, got)
			require.Equal(t, []uint64{0, 801, 0, 700}, []uint64{
				asked[1].GetFromSequence(), asked[1].GetBeforeSequence(), asked[2].GetFromSequence(),
				asked[2].GetBeforeSequence(),
			})
		} else {
			require.Equal(t, []uint64{50, 100, 300}, got)
			require.Equal(t, []uint64{201, 1001, 301, 1001}, []uint64{
				asked[1].GetFromSequence(), asked[1].GetBeforeSequence(), asked[2].GetFromSequence(),
				asked[2].GetBeforeSequence(),
			})
		}
		require.Equal(t, []uint64{7, 6}, []uint64{asked[1].GetLimit(), asked[2].GetLimit()})
	}
}
