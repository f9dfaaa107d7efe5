// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// valid returns a history without violations: two producers, a rejected and an unknown publish (the latter stored),
// and one redelivery before the acknowledgement.
func valid() *History {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	h := NewHistory()
	h.Publishes = []Publish{
		{ID: ID{1, 1}, Queue: "q", Sent: ms(1), Done: ms(2), Outcome: Acked, Sequence: 1, LSN: 10, Group: "g"},
		{ID: ID{2, 1}, Queue: "q", Sent: ms(1), Done: ms(3), Outcome: Acked, Sequence: 2, LSN: 11},
		{ID: ID{1, 2}, Queue: "q", Sent: ms(4), Done: ms(5), Outcome: Acked, Sequence: 3, LSN: 12, Group: "g"},
		{ID: ID{1, 3}, Queue: "q", Sent: ms(6), Done: ms(7), Outcome: Unknown, Error: "connection lost"},
		{ID: ID{2, 2}, Queue: "q", Sent: ms(6), Done: ms(7), Outcome: Refused, Error: "queue full"},
		{ID: ID{1, 4}, Queue: "q", Sent: ms(8), Done: ms(9), Outcome: Acked, Sequence: 5, LSN: 14},
	}
	h.Final = []Stored{
		{"q", 1, ID{1, 1}}, {"q", 2, ID{2, 1}}, {"q", 3, ID{1, 2}}, {"q", 4, ID{1, 3}}, {"q", 5, ID{1, 4}},
	}
	h.FinalRead = true
	h.Drained = []string{"q/work"}
	h.Deliveries = []Delivery{
		delivery(1, ID{1, 1}, ms(3)),
		delivery(2, ID{2, 1}, ms(4)),
		delivery(1, ID{1, 1}, ms(5)),
		delivery(3, ID{1, 2}, ms(6)),
		delivery(4, ID{1, 3}, ms(8)),
		delivery(5, ID{1, 4}, ms(10)),
	}
	h.Acks = []Ack{{"q", "work", 1, ms(6), 0}, {"q", "work", 2, ms(6), 0}, {"q", "work", 3, ms(9), 0}}
	for sequence := range uint64(5) {
		h.AcksSent = append(h.AcksSent, Ack{Queue: "q", Sub: "work", Sequence: sequence + 1, Sent: ms(int(sequence) + 5)})
	}
	h.MaxUnknown = 1
	h.Digests = []Digest{{"a", 20, "cafe", 5}, {"b", 20, "cafe", 5}}
	return h
}

// delivery returns a delivery of q/work.
func delivery(sequence uint64, id ID, at time.Duration) Delivery {
	return Delivery{Queue: "q", Sub: "work", Sequence: sequence, ID: id, At: at}
}

func TestCheckerAcceptsValidHistory(t *testing.T) {
	require.Empty(t, valid().Check())
}

// The checker reports the smallest violations of each rule.
func TestCheckerReportsViolations(t *testing.T) {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	tests := []struct {
		name   string
		change func(h *History)
		want   []Rule
	}{
		{"a lost message", func(h *History) {
			h.Final = h.Final[:4]
			h.Deliveries = h.Deliveries[:5]
		}, []Rule{RuleLost}},
		{
			"a lost message that was delivered", func(h *History) { h.Final = h.Final[:4] },
			[]Rule{RuleLost, RuleUncommitted},
		},
		{"a duplicated message", func(h *History) {
			h.Final = append(h.Final, Stored{"q", 6, ID{1, 4}})
			h.Deliveries = append(h.Deliveries, delivery(6, ID{1, 4}, ms(11)))
			h.AcksSent = append(h.AcksSent, Ack{Queue: "q", Sub: "work", Sequence: 6})
		}, []Rule{RuleDuplicate}},
		{"two messages with one sequence", func(h *History) {
			h.Final = append(h.Final, Stored{"q", 5, ID{1, 4}})
		}, []Rule{RuleDuplicate, RuleDuplicate}},
		{"a moved message", func(h *History) { h.Publishes[5].Sequence = 7 }, []Rule{RuleMoved}},
		{"a producer's messages out of order", func(h *History) {
			h.Final[3], h.Final[4] = Stored{"q", 4, ID{1, 4}}, Stored{"q", 5, ID{1, 3}}
			h.Publishes[5].Sequence = 4
			h.Deliveries[4].ID, h.Deliveries[5].ID = ID{1, 4}, ID{1, 3}
		}, []Rule{RuleOrder}},
		{"a message stored before one that was acknowledged earlier", func(h *History) {
			h.Publishes[1].Sent, h.Publishes[1].Done = ms(6), ms(7)
		}, []Rule{RuleOrder}},
		{"a phantom in the store", func(h *History) {
			h.Final = append(h.Final, Stored{"q", 6, ID{9, 1}})
			h.Drained = nil
		}, []Rule{RulePhantom}},
		{"a message in the wrong queue", func(h *History) {
			h.Final[3].Queue = "other"
			h.Deliveries = append(h.Deliveries[:4], h.Deliveries[5])
		}, []Rule{RulePhantom}},
		{"a phantom delivery", func(h *History) {
			h.Deliveries = append(h.Deliveries, delivery(6, ID{9, 1}, ms(11)))
		}, []Rule{RulePhantom}},
		{"a rejected message that is stored", func(h *History) {
			h.Final = append(h.Final, Stored{"q", 6, ID{2, 2}})
			h.Drained = nil
		}, []Rule{RuleRefused}},
		{"a delivery of an uncommitted message", func(h *History) {
			h.Deliveries = append(h.Deliveries, delivery(6, ID{2, 2}, ms(11)))
		}, []Rule{RuleUncommitted}},
		{"a stored message that is never delivered", func(h *History) {
			h.Deliveries = h.Deliveries[:5]
		}, []Rule{RuleUndelivered}},
		{"a redelivery after the confirmed acknowledgement", func(h *History) {
			h.Deliveries = append(h.Deliveries, delivery(1, ID{1, 1}, ms(7)))
		}, []Rule{RuleRedelivered}},
		{"one LSN acknowledged twice", func(h *History) { h.Publishes[2].LSN = 11 }, []Rule{RuleTwoTerms}},
		{"a later sequence with an earlier LSN", func(h *History) { h.Publishes[5].LSN = 9 }, []Rule{RuleTwoTerms}},
		{
			"a requeued message that is acknowledged", func(h *History) { h.AcksSent = h.AcksSent[:4] },
			[]Rule{RuleSettled},
		},
		{"a confirmation without an ack", func(h *History) {
			h.Acks = append(h.Acks, Ack{"q", "work", 7, ms(11), 0})
		}, []Rule{RuleSettled}},
		{"a message of a group before the previous one was acknowledged", func(h *History) {
			h.AcksSent[0].Sent = ms(6) + 1
		}, []Rule{RuleGroup}},
		{"a delivery out of order", func(h *History) {
			h.Deliveries[4].Stream, h.Deliveries[5].Stream = 1, 1
			h.Deliveries[4], h.Deliveries[5] = h.Deliveries[5], h.Deliveries[4]
		}, []Rule{RuleOrder}},
		{"a delivery out of order, on a stream that began long after the previous one had ended", func(h *History) {
			outOfOrder(h, Stream{Began: 0, Ended: ms(1)}, Stream{Began: ms(1) + detached + 1})
		}, []Rule{RuleOrder}},
		{"a delivery out of order, before another stream began", func(h *History) {
			outOfOrder(h, Stream{Began: 0}, Stream{Began: 2*detached + ms(100)})
		}, []Rule{RuleOrder}},
		{"a delivery out of order, concurrent with another subscription", func(h *History) {
			outOfOrder(h, Stream{Began: 0})
			h.Streams = append(h.Streams, Stream{Queue: "q", Sub: "other", Began: 0})
		}, []Rule{RuleOrder}},
		{"too many unknown outcomes", func(h *History) { h.MaxUnknown = 0 }, []Rule{RuleUnknown}},
		{"different digests", func(h *History) { h.Digests[1].Content = "beef" }, []Rule{RuleDigest}},
		{"digests of different positions", func(h *History) { h.Digests[1].LSN = 21 }, []Rule{RuleDigest}},
		{"a corrupt body", func(h *History) {
			h.AddBroken(Violation{Rule: RuleBody, Text: "message 1/1"})
		}, []Rule{RuleBody}},
		{"a history that was not read to the end", func(h *History) { h.FinalRead = false }, []Rule{RuleUnread}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			h := valid()
			test.change(h)
			rules := make([]Rule, 0, len(test.want))
			for _, v := range h.Check() {
				rules = append(rules, v.Rule)
			}
			require.ElementsMatch(t, test.want, rules)
		})
	}
}

// outOfOrder reverses the last two deliveries, delays them by four seconds, and assigns them to a stream. The history
// then contains the given streams.
func outOfOrder(h *History, streams ...Stream) {
	for _, s := range streams {
		s.Queue, s.Sub = "q", "work"
		h.Streams = append(h.Streams, s)
	}
	h.Deliveries[4], h.Deliveries[5] = h.Deliveries[5], h.Deliveries[4]
	for i := 4; i < 6; i++ {
		h.Deliveries[i].Stream = 1
		h.Deliveries[i].At += 2 * detached
	}
}

// The checker accepts a delivery out of order if another stream of the subscription, to which the message may have
// been assigned, was open until recently.
func TestCheckerAcceptsRedeliveryFromOtherStream(t *testing.T) {
	for name, streams := range map[string][]Stream{
		"concurrent streams": {{Began: 1, Ended: 0}, {Began: 2}},
		"ended recently":     {{Began: 1, Ended: 2 * time.Second}, {Began: 2*time.Second + detached}},
		"ended just before":  {{Began: 1, Ended: 2}, {Began: 3}},
	} {
		h := valid()
		outOfOrder(h, streams...)
		require.Empty(t, h.Check(), name)
	}
}

// AckedAfter returns the first acknowledgement after a time from another node.
func TestHistoryAckedAfter(t *testing.T) {
	h := valid()
	h.Publishes[2].Address = "killed"
	at, ok := h.AckedAfter(3500*time.Microsecond, "none")
	require.True(t, ok)
	require.Equal(t, 5*time.Millisecond, at)
	at, ok = h.AckedAfter(3500*time.Microsecond, "killed")
	require.True(t, ok)
	require.Equal(t, 9*time.Millisecond, at)
	_, ok = h.AckedAfter(time.Second, "none")
	require.False(t, ok)
}

// Save writes the publishes with their outcomes as JSON lines.
func TestHistorySave(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "history")
	require.NoError(t, valid().Save(dir))
	lines, err := os.ReadFile(filepath.Join(dir, "publishes.jsonl"))
	require.NoError(t, err)
	require.Contains(t, string(lines), `"outcome":"refused"`)
}

// ParseBody returns the ID of a body from Body, and detects each changed byte and a truncated body.
func TestBody(t *testing.T) {
	for _, size := range []int{0, bodyHeaderBytes, 21, 27, 100, 4096} {
		b := Body(ID{7, 9}, size)
		require.Len(t, b, max(size, bodyHeaderBytes))
		id, err := ParseBody(b)
		require.NoError(t, err)
		require.Equal(t, ID{7, 9}, id)
	}
	good := Body(ID{7, 9}, 100)
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x10
		_, err := ParseBody(bad)
		require.ErrorIs(t, err, ErrBody, "byte %d", i)
	}
	_, err := ParseBody(good[:99])
	require.ErrorIs(t, err, ErrBody)
}
