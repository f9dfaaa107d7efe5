// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// validOperations returns a history of applications without violations. It contains committed and rejected
// transactions, two with an unknown outcome (one stored, one not), acknowledgements, and a purge with messages before
// and after it. A queue is created, deleted, and created again.
func validOperations() *History {
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	h := NewHistory()
	part := func(n uint64, queue string, sequence, lsn uint64, o Outcome) Publish {
		at := ms(int(n))
		return Publish{
			ID: ID{100, n}, Queue: queue, Sequence: sequence, LSN: lsn, Outcome: o, Sent: at,
			Done: at + ms(1), Unordered: true,
		}
	}
	h.Parts = []Publish{
		part(1, "one", 1, 10, Acked), part(2, "two", 1, 10, Acked),
		part(3, "one", 0, 0, Refused), part(4, "two", 0, 0, Refused),
		part(5, "one", 0, 0, Unknown), part(6, "two", 0, 0, Unknown),
		part(7, "one", 0, 0, Unknown), part(8, "two", 0, 0, Unknown),
		part(11, "in", 1, 1, Acked), part(12, "in", 2, 2, Acked), part(13, "in", 3, 3, Acked),
		part(14, "in", 4, 4, Acked),
		part(21, "purged", 1, 21, Acked), part(22, "purged", 2, 22, Acked), part(40, "purged", 3, 40, Acked),
	}
	h.Operations = []Operation{
		{Kind: KindTxn, Outcome: Acked, Parts: []ID{{100, 1}, {100, 2}}, Queue: "in", Input: 1},
		{Kind: KindTxn, Outcome: Refused, Parts: []ID{{100, 3}, {100, 4}}, Queue: "in", Input: 2},
		{Kind: KindTxn, Outcome: Unknown, Parts: []ID{{100, 5}, {100, 6}}, Queue: "in", Input: 3},
		{Kind: KindTxn, Outcome: Unknown, Parts: []ID{{100, 7}, {100, 8}}},
		{Kind: KindAck, Outcome: Acked, Queue: "in", Input: 4},
		{Kind: KindPurge, Outcome: Acked, Queue: "purged", Sent: ms(30), Done: ms(31), Count: 2},
		{Kind: KindPurge, Outcome: Refused, Queue: "purged", Sent: ms(50), Done: ms(51)},
		{Kind: KindCreate, Outcome: Acked, Queue: "life", Sent: ms(1), Done: ms(2)},
		{Kind: KindCreate, Outcome: Refused, Queue: "life", Sent: ms(3), Done: ms(4)},
		{Kind: KindDelete, Outcome: Acked, Queue: "life", Sent: ms(5), Done: ms(6)},
		{Kind: KindCreate, Outcome: Acked, Queue: "life", Sent: ms(7), Done: ms(8)},
	}
	h.Exists["life"] = true
	h.Final = []Stored{
		{"one", 1, ID{100, 1}},
		{"two", 1, ID{100, 2}},
		{"one", 2, ID{100, 5}},
		{"two", 2, ID{100, 6}},
		{"in", 1, ID{100, 11}},
		{"in", 2, ID{100, 12}},
		{"in", 3, ID{100, 13}},
		{"in", 4, ID{100, 14}},
		{"purged", 1, ID{100, 21}},
		{"purged", 2, ID{100, 22}},
		{"purged", 3, ID{100, 40}},
	}
	h.Left = []Left{{"in", 2}, {"purged", 3}}
	h.FinalRead = true
	return h
}

// validSideClients returns a history of side clients without violations: b takes over in term 2.
func validSideClients() *History {
	h := NewHistory()
	h.FinalRead = true
	add := func(n uint64, at int, address string, term uint64) {
		p := Publish{
			ID: ID{200, n}, Queue: "stray", Sequence: n, LSN: n, Outcome: Acked, Address: address, Term: term,
			Sent: time.Duration(at), Done: time.Duration(at + 10),
		}
		h.Parts = append(h.Parts, p)
		h.Final = append(h.Final, Stored{"stray", n, p.ID})
	}
	add(1, 10, "a", 1)
	add(2, 30, "a", 1)
	add(3, 35, "b", 2) // sent before the response to the previous one
	add(4, 50, "b", 2)
	return h
}

func TestCheckerAcceptsApplicationOperations(t *testing.T) {
	require.Empty(t, validOperations().Check())
	require.Empty(t, validSideClients().Check())
}

// The checker reports the smallest violations of each rule about operations of applications and side clients.
func TestCheckerReportsOperationViolations(t *testing.T) {
	for _, test := range []struct {
		name   string
		of     func() *History
		change func(h *History)
		want   []Rule
	}{
		{"a transaction that is stored twice", validOperations, func(h *History) {
			h.Final = append(h.Final, Stored{"one", 3, ID{100, 1}}, Stored{"two", 3, ID{100, 2}})
		}, []Rule{RuleDuplicate, RuleDuplicate}},
		{"a transaction with an unknown outcome that is stored twice", validOperations, func(h *History) {
			h.Final = append(h.Final, Stored{"one", 3, ID{100, 5}}, Stored{"two", 3, ID{100, 6}})
		}, []Rule{RuleDuplicate, RuleDuplicate}},
		{"a rejected transaction that is stored", validOperations, func(h *History) {
			h.Final = append(h.Final, Stored{"one", 3, ID{100, 3}}, Stored{"two", 3, ID{100, 4}})
			h.Left = h.Left[1:]
		}, []Rule{RuleRefused, RuleRefused}},
		{
			"a part of a transaction", validOperations,
			func(h *History) { h.Final = append(h.Final, Stored{"one", 3, ID{100, 7}}) },
			[]Rule{RulePartly},
		},
		{
			"a transaction without its acknowledgement", validOperations,
			func(h *History) { h.Left = append(h.Left, Left{"in", 3}) },
			[]Rule{RulePartly},
		},
		{
			"the acknowledgement of a transaction that is not stored", validOperations, func(h *History) { h.Left = h.Left[1:] },
			[]Rule{RuleSettled},
		},
		{"a confirmed acknowledgement without an effect", validOperations, func(h *History) {
			h.Left = append(h.Left, Left{"in", 4})
		}, []Rule{RuleRedelivered}},
		{
			"a rejected acknowledgement with an effect", validOperations,
			func(h *History) { h.Operations[4].Outcome = Refused },
			[]Rule{RuleSettled},
		},
		{"a purge that was applied twice", validOperations, func(h *History) { h.Left = h.Left[:1] }, []Rule{RuleEffects}},
		{
			"a rejected purge with an effect", validOperations, func(h *History) { h.Operations[5].Outcome = Refused },
			[]Rule{RuleEffects},
		},
		{"a purge that did not remove all messages", validOperations, func(h *History) {
			h.Left = append(h.Left, Left{"purged", 2})
			h.Operations[5].Count = 1
		}, []Rule{RuleLost}},
		{"a purge with a gap", validOperations, func(h *History) {
			h.Left = append(h.Left, Left{"purged", 1})
			h.Operations[5].Count, h.Parts[12].Outcome = 1, Unknown
		}, []Rule{RulePartly}},
		{
			"a queue that was deleted twice by one call", validOperations, func(h *History) { h.Exists["life"] = false },
			[]Rule{RuleEffects},
		},
		{"a queue that was created twice without being deleted", validOperations, func(h *History) {
			h.Operations[9].Outcome = Refused
		}, []Rule{RuleEffects, RuleEffects}},
		{"a deletion of a missing object", validOperations, func(h *History) {
			h.Operations[7].Outcome = Refused
		}, []Rule{RuleEffects, RuleEffects}},
		{"too many unknown outcomes", validOperations, func(h *History) {
			for range 200 {
				h.Operations = append(h.Operations, Operation{Kind: KindAck, Outcome: Unknown})
			}
		}, []Rule{RuleUnknown}},
		{"one LSN for two transactions", validOperations, func(h *History) { h.Parts[12].LSN = 10 }, []Rule{RuleTwoTerms}},
		{"a replaced node that acknowledges", validSideClients, func(h *History) {
			h.Parts[3].Address, h.Parts[3].Term = "a", 1
		}, []Rule{RuleTwoTerms}},
		{
			"two nodes of one term", validSideClients, func(h *History) { h.Parts[1].Term, h.Parts[1].Sent = 2, 34 },
			[]Rule{RuleTwoTerms},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			h := test.of()
			test.change(h)
			rules := make([]Rule, 0, len(test.want))
			for _, v := range h.Check() {
				rules = append(rules, v.Rule)
				t.Log(v)
			}
			require.ElementsMatch(t, test.want, rules)
		})
	}
}
