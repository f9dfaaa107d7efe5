// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/delivery/filter"
)

const everyTenth = `properties.kind == "c3" && body.customer.id == "4711"`

// publishOrders publishes messages in batches. Every tenth message matches everyTenth, and every seventh message
// is large.
func (n *testNode) publishOrders(queue string, first, count int) {
	n.t.Helper()
	for begin := first; begin < first+count; begin += 50 {
		var messages []*pb.Message
		for i := begin; i < min(begin+50, first+count); i++ {
			text := "x"
			if i%7 == 0 {
				text = strings.Repeat("x", 20_000)
			}
			messages = append(messages, &pb.Message{
				Body:       fmt.Appendf(nil, `{"n": %d, "customer": {"id": "%d"}, "text": %q}`, i, 4708+i%10, text),
				Properties: map[string]string{"kind": fmt.Sprintf("c%d", i%10)},
			})
		}
		_, err := n.queues.Publish(n.t.Context(), &pb.PublishRequest{Queue: queue, Messages: messages})
		require.NoError(n.t, err)
	}
}

// search repeats a request until the search is complete. It returns the found sequences, the number of calls, and
// the last progress.
func (n *testNode) search(req *pb.BrowseRequest) (found []uint64, calls int, last *pb.SearchProgress) {
	n.t.Helper()
	for limit := req.GetLimit(); ; {
		calls++
		stream, err := n.queues.Browse(n.t.Context(), req)
		require.NoError(n.t, err)
		for {
			resp, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(n.t, err)
			for _, m := range resp.GetMessages() {
				found = append(found, m.GetSequence())
			}
			if p := resp.GetProgress(); p != nil {
				last = p
			}
		}
		if limit > 0 {
			if req.Limit = limit - uint64(len(found)); req.GetLimit() == 0 {
				return found, calls, last
			}
		}
		if req.GetFilter() == "" {
			return found, calls, last
		}
		require.NotNil(n.t, last)
		if last.GetFromSequence() >= last.GetBeforeSequence() {
			return found, calls, last
		}
		req.FromSequence, req.BeforeSequence = last.GetFromSequence(), last.GetBeforeSequence()
	}
}

// A search returns the stored messages of the range that match, in either order and over any number of calls.
func TestSearch(t *testing.T) { simulated(t, testSearch) }

func testSearch(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publishOrders("q", 1, 1500)
	_, err := n.admin.Checkpoint(t.Context(), &pb.CheckpointRequest{})
	require.NoError(t, err)
	n.publishOrders("q", 1501, 500)
	r := rand.New(rand.NewPCG(1, 2))
	stored := make(map[uint64]bool)
	for seq := uint64(1); seq <= 2000; seq++ {
		stored[seq] = true
	}
	// Remove single messages and long ranges.
	var removed []*pb.SequenceRange
	for range 200 {
		first := 1 + r.Uint64N(2000)
		removed = append(removed, &pb.SequenceRange{First: first, Last: first})
	}
	removed = append(removed, &pb.SequenceRange{First: 300, Last: 700}, &pb.SequenceRange{First: 1900, Last: 2000})
	_, err = n.queues.RemoveMessages(t.Context(), &pb.RemoveMessagesRequest{Queue: "q", Sequences: removed})
	require.NoError(t, err)
	for _, g := range removed {
		for seq := g.GetFirst(); seq <= g.GetLast(); seq++ {
			delete(stored, seq)
		}
	}
	for i := range 150 {
		req := &pb.BrowseRequest{Queue: "q", Newest: i%2 == 0}
		matches := func(seq uint64) bool { return seq%10 == 3 }
		switch i % 5 {
		case 0:
			req.Filter = everyTenth
		case 1:
			req.Filter, matches = `body.n % 3 == 1`, func(seq uint64) bool { return seq%3 == 1 }
		case 2:
			req.Filter, matches = `size > 10000`, func(seq uint64) bool { return seq%7 == 0 }
		case 3:
			matches = func(uint64) bool { return true }
		case 4:
			req.Filter, matches = `false`, func(uint64) bool { return false }
		}
		if i%3 > 0 {
			req.FromSequence, req.BeforeSequence = r.Uint64N(2100), r.Uint64N(2100)
		}
		if i%4 == 1 {
			req.Limit = 1 + r.Uint64N(100)
		}
		if i%4 > 1 {
			req.MaxScanned = 1 + r.Uint64N(300)
		}
		var want []uint64
		for seq := max(req.GetFromSequence(), 1); seq <= 2000; seq++ {
			if stored[seq] && matches(seq) && (req.GetBeforeSequence() == 0 || seq < req.GetBeforeSequence()) {
				want = append(want, seq)
			}
		}
		if req.GetNewest() {
			slices.Reverse(want)
		}
		if req.GetLimit() > 0 {
			want = want[:min(len(want), int(req.GetLimit()))]
		}
		name := req.String()
		got, _, _ := n.search(req)
		require.Equal(t, want, got, name)
	}
}

// One call reads a limited number of messages. It reports the position at which the next call can continue.
func TestSearchLimits(t *testing.T) { simulated(t, testSearchLimits) }

func testSearchLimits(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publishOrders("q", 1, 1000)
	for _, newest := range []bool{false, true} {
		found, calls, last := n.search(&pb.BrowseRequest{Queue: "q", Filter: `properties.kind == "none"`, Newest: newest})
		require.Empty(t, found)
		require.Equal(t, 1, calls)
		require.Equal(t, uint64(1000), last.GetScanned())
		_, calls, last = n.search(&pb.BrowseRequest{
			Queue: "q", Filter: `properties.kind == "none"`, Newest: newest, MaxScanned: 1,
		})
		require.Greater(t, calls, 2, "batches of about 1 MiB")
		require.Less(t, last.GetScanned(), uint64(1000))
		require.NotZero(t, last.GetQueueId())
	}
	n.publish("q", `{"customer": {"id": "4711"}}`+strings.Repeat(" ", filter.MaxJSONBytes))
	_, _, last := n.search(&pb.BrowseRequest{Queue: "q", Filter: `body.customer.id == "0"`})
	require.Equal(t, uint64(1), last.GetUnevaluated())

	for _, text := range []string{`body.x ==`, `body.x`, strings.Repeat("(", 4000) + "true"} {
		stream, err := n.queues.Browse(t.Context(), &pb.BrowseRequest{Queue: "q", Filter: text})
		require.NoError(t, err)
		_, err = stream.Recv()
		if text == `body.x` {
			require.NoError(t, err)
			continue
		}
		require.ErrorIs(t, kind(err), filter.ErrInvalid, text)
		require.Regexp(t, `\b1:\d+: `, err.Error())
	}
}

// A search does not return messages that are published after its start. It may return messages that are
// acknowledged in the meantime. After a failover, a client can continue the search without duplicate or missing
// messages.
func TestSearchSnapshotAndFailover(t *testing.T) { simulated(t, testSearchSnapshotAndFailover) }

func testSearchSnapshotAndFailover(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	active.createQueue("q")
	active.publishOrders("q", 1, 600)
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{active.ready.Address, standby.ready.Address}, DialOptions: clientOptions(t),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	for _, newest := range []bool{false, true} {
		var want, got []uint64
		for seq := uint64(3); seq <= 600; seq += 10 {
			want = append(want, seq)
		}
		if newest {
			slices.Reverse(want)
		}
		published := 0
		o := client.BrowseOptions{Filter: everyTenth, Newest: newest, Before: 601, HeadersOnly: true}
		if !newest {
			o.Before = 0 // the search keeps the end of the first call
		}
		for m, err := range c.Browse(t.Context(), "q", o) {
			require.NoError(t, err)
			got = append(got, m.Sequence)
			if published < 3 {
				active.publishOrders("q", 1001+10*published, 10) // one of them matches
				published++
			}
			if len(got) == 5 {
				_, err := active.queues.RemoveMessages(t.Context(), &pb.RemoveMessagesRequest{
					Queue: "q", Sequences: append(sequences(13, 283, 593), &pb.SequenceRange{First: 100, Last: 110}),
				})
				require.NoError(t, err)
			}
			if len(got) == 10 && !newest {
				active.stop()
				standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
				active = standby
			}
		}
		removed := func(seq uint64) bool { return seq == 13 || seq == 103 || seq == 283 || seq == 593 }
		require.Equal(t, slices.DeleteFunc(want, removed), slices.DeleteFunc(got, removed))
	}
}

// Only matching messages are moved, removed and replayed, each once, while other messages are published and
// acknowledged.
func TestMoveMatching(t *testing.T) { simulated(t, testMoveMatching) }

func testMoveMatching(t *testing.T) {
	active, standby := startPair(t, startEtcd(t))
	for _, name := range []string{"q", "to", "dead"} {
		active.createQueue(name)
	}
	active.publishOrders("q", 1, 3000)
	c, err := client.OpenWith(t.Context(), client.Options{
		Addresses: []string{active.ready.Address, standby.ready.Address}, DialOptions: clientOptions(t),
	})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	adm := admin.New(c)

	parts := 0
	result, err := adm.MoveMatching(t.Context(), "q", admin.Matching{
		Filter: everyTenth, Progress: func(p client.SearchProgress) {
			require.Equal(t, uint64(3001), p.Before)
			if parts++; parts == 1 {
				active.publishOrders("q", 3001, 20) // published after the start of the search
				_, err := active.queues.PurgeQueue(t.Context(), &pb.PurgeQueueRequest{Name: "to"})
				require.NoError(t, err)
				active.stop()
				standby.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
			}
		},
	}, admin.MoveOptions{To: "to"})
	require.NoError(t, err)
	require.Equal(t, uint64(300), result.Moved)
	require.Equal(t, 2, parts)
	n := standby
	found, _, _ := n.search(&pb.BrowseRequest{Queue: "q", Filter: everyTenth})
	require.Equal(t, []uint64{3003, 3013}, found)
	require.Len(t, n.browse("q"), 2700+20)
	for _, m := range n.browse("to") {
		require.Equal(t, "c3", m.GetMessage().GetProperties()["kind"])
	}

	removed, err := adm.RemoveMatching(t.Context(), "q", "", admin.Matching{Filter: `body.n > 10 && body.n <= 20`}, 0)
	require.NoError(t, err)
	require.Equal(t, uint64(9), removed)
	require.Len(t, n.browse("q"), 2700+20-9)
	_, err = adm.RemoveMatching(t.Context(), "q", "", admin.Matching{Filter: `body.n >`}, 0)
	require.ErrorIs(t, err, client.ErrInvalid)
	_, err = adm.RemoveMatching(t.Context(), "q", "", admin.Matching{}, 0)
	require.ErrorIs(t, err, client.ErrInvalid)
	_, err = n.queues.RemoveMessages(t.Context(), &pb.RemoveMessagesRequest{
		Queue: "q", Sequences: sequences(1), Search: &pb.Search{Filter: "true"},
	})
	require.ErrorIs(t, kind(err), apierror.ErrInvalid)
	_, err = adm.RemoveMatching(t.Context(), "q", "", admin.Matching{Filter: "true"}, 12345)
	require.ErrorIs(t, err, client.ErrQueueNotFound)

	r, err := adm.ReplayDeadLetters(t.Context(), "q", admin.ReplayOptions{
		To: "dead", Filter: `body.customer.id == "4712"`, Limit: 5,
	})
	require.NoError(t, err)
	require.Equal(t, uint64(5), r.Moved)
	r, err = adm.ReplayDeadLetters(t.Context(), "q", admin.ReplayOptions{To: "dead", Filter: `body.customer.id == "4712"`})
	require.NoError(t, err)
	require.Equal(t, uint64(300+2-1-5), r.Moved)
	for _, m := range n.browse("dead") {
		require.Equal(t, "c4", m.GetMessage().GetProperties()["kind"])
	}
}

// If the client does not read, a search ends after a time limit. The client can continue it.
func TestSearchTimeLimit(t *testing.T) { simulated(t, testSearchTimeLimit) }

func testSearchTimeLimit(t *testing.T) {
	n := startAlone(t, nil)
	n.createQueue("q")
	n.publishOrders("q", 1, 2000)
	stream, err := n.queues.Browse(t.Context(), &pb.BrowseRequest{Queue: "q", Filter: `size > 10000`})
	require.NoError(t, err)
	<-time.After(10 * time.Second)
	var last *pb.SearchProgress
	found := 0
	for {
		resp, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		found += len(resp.GetMessages())
		if p := resp.GetProgress(); p != nil {
			last = p
		}
	}
	require.Less(t, last.GetFromSequence(), last.GetBeforeSequence())
	rest, _, _ := n.search(&pb.BrowseRequest{
		Queue: "q", Filter: `size > 10000`, FromSequence: last.GetFromSequence(), BeforeSequence: last.GetBeforeSequence(),
	})
	require.Equal(t, 2000/7, found+len(rest))
}
