// SPDX-License-Identifier: Apache-2.0

package historycheck

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Rule is a guarantee that a history can violate.
type Rule string

// Rules. Each comment describes a violation.
const (
	// RuleLost means that an acknowledged message is not in its queue at the end.
	RuleLost Rule = "lost"
	// RuleDuplicate means that a message is stored more than once, or that two messages have the same sequence.
	RuleDuplicate Rule = "doubled"
	// RuleMoved means that the sequence or the queue of a stored message differs from the acknowledgement to its
	// publisher.
	RuleMoved Rule = "moved"
	// RuleOrder means that messages are stored or delivered in a wrong order. For example, a message was sent after
	// the acknowledgement of another message, but is stored before it.
	RuleOrder Rule = "order"
	// RuleGroup means that a message of a group was delivered before all earlier messages of the group were
	// acknowledged.
	RuleGroup Rule = "group"
	// RulePhantom means that a stored or delivered message was not published to that queue by any producer.
	RulePhantom Rule = "phantom"
	// RuleRefused means that a publish was rejected with a guarantee that nothing was stored, but its message was stored.
	RuleRefused Rule = "refused"
	// RuleUncommitted means that a message was delivered under a sequence that, at the end, has no message or a
	// different message.
	RuleUncommitted Rule = "uncommitted"
	// RuleUndelivered means that a stored message was never delivered by a subscription that was drained.
	RuleUndelivered Rule = "undelivered"
	// RuleRedelivered means that a message was delivered again after its acknowledgement was confirmed.
	RuleRedelivered Rule = "redelivered"
	// RuleTwoTerms means that two nodes acknowledged concurrently: one LSN was acknowledged for two transactions, or
	// the orders of LSNs and sequences differ.
	RuleTwoTerms Rule = "two-terms"
	// RuleDigest means that the stores of the two nodes differ.
	RuleDigest Rule = "digest"
	// RuleBody means that a body differs from the published one.
	RuleBody Rule = "body"
	// RulePartly means that only a part of a transaction or a purge was applied.
	RulePartly Rule = "partly"
	// RuleSettled means that a message is acknowledged although no consumer acknowledged it.
	RuleSettled Rule = "settled"
	// RuleEffects means that the number of purged messages, or of applied queue creations or deletions, contradicts the
	// responses.
	RuleEffects Rule = "effects"
	// RuleSemantics means that a call returned an error that its documentation does not list for that case.
	RuleSemantics Rule = "meaning"
	// RuleUnknown means that more outcomes are unknown than the injected faults can cause.
	RuleUnknown Rule = "unknown"
	// RuleUnread means that the history was checked before the queues were read to the end, so that the check proves
	// nothing.
	RuleUnread Rule = "unread"
)

// Violation is a violated rule.
type Violation struct {
	Rule Rule   `json:"rule"`
	Text string `json:"text"`
}

// String returns "rule: text".
func (v Violation) String() string { return string(v.Rule) + ": " + v.Text }

type position struct {
	queue    string
	sequence uint64
}

// checker contains indexes that several rules use.
type checker struct {
	h         *History
	published []*Publish // by producers and applications
	sent      map[ID]*Publish
	at        map[position]ID
	context   map[ID][]position
	found     []Violation
}

// Check returns every violation of the rules, in no particular order. The history must be complete: the workload has
// stopped, and Final and Digests were read.
func (h *History) Check() []Violation {
	h.mu.Lock()
	defer h.mu.Unlock()
	c := checker{h: h, sent: map[ID]*Publish{}, at: map[position]ID{}, context: map[ID][]position{}}
	c.found = append(c.found, h.Broken...)
	if !h.FinalRead {
		c.report(RuleUnread, "the history does not contain the final contents of the queues")
		return c.found
	}
	for _, published := range [][]Publish{h.Publishes, h.Parts} {
		for i := range published {
			c.published = append(c.published, &published[i])
			c.sent[published[i].ID] = &published[i]
		}
	}
	c.stored()
	c.publishes()
	c.producerOrder()
	c.realTimeOrder()
	c.lsns()
	c.deliveries()
	c.acksSent()
	c.deliveryOrder()
	c.groups()
	c.operations()
	c.terms()
	c.unknowns()
	c.digests()
	return c.found
}

func (c *checker) report(rule Rule, format string, args ...any) {
	c.found = append(c.found, Violation{Rule: rule, Text: fmt.Sprintf(format, args...)})
}

// stored indexes the final contents, and reports messages that must not be stored.
func (c *checker) stored() {
	for _, s := range c.h.Final {
		p := position{s.Queue, s.Sequence}
		if other, taken := c.at[p]; taken {
			c.report(RuleDuplicate, "queue %s contains both %v and %v under sequence %d", s.Queue, other, s.ID, s.Sequence)
		}
		c.at[p] = s.ID
		c.context[s.ID] = append(c.context[s.ID], p)
	}
	for id, locations := range c.context {
		if len(locations) > 1 {
			c.report(RuleDuplicate, "message %v is stored %d times: %v", id, len(locations), locations)
		}
		sent, known := c.sent[id]
		switch {
		case !known:
			c.report(RulePhantom, "message %v is stored at %v, but no producer sent it", id, locations)
		case sent.Queue != locations[0].queue:
			c.report(RulePhantom, "message %v was sent to %s, but is stored at %v", id, sent.Queue, locations)
		case sent.Outcome == Refused:
			c.report(RuleRefused, "message %v is stored at %v, but its publisher received %q", id, locations, sent.Error)
		}
	}
}

// publishes compares the responses to publishers with the stored messages.
func (c *checker) publishes() {
	for _, p := range c.published {
		if p.Outcome != Acked {
			continue
		}
		locations := c.context[p.ID]
		if len(locations) == 0 {
			c.report(RuleLost, "message %v to %s was acknowledged at %v with sequence %d, but is not stored", p.ID,
				p.Queue, p.Done, p.Sequence)
		} else if !slices.Contains(locations, position{p.Queue, p.Sequence}) {
			c.report(RuleMoved, "message %v was acknowledged with sequence %d of %s, but is stored at %v", p.ID,
				p.Sequence, p.Queue, locations)
		}
	}
}

// producerOrder compares the order of messages in each queue with the order in which each producer sent them.
func (c *checker) producerOrder() {
	type lane struct {
		queue    string
		producer uint32
	}
	last := map[lane]Stored{}
	final := slices.Clone(c.h.Final)
	slices.SortStableFunc(final, func(a, b Stored) int {
		return cmp.Or(cmp.Compare(a.Queue, b.Queue), cmp.Compare(a.Sequence, b.Sequence))
	})
	for _, s := range final {
		if p := c.sent[s.ID]; p != nil && p.Unordered {
			continue
		}
		l := lane{s.Queue, s.ID.Producer}
		if before, ok := last[l]; ok && before.ID.N > s.ID.N {
			c.report(RuleOrder, "queue %s: message %v (sequence %d) follows %v (sequence %d)", s.Queue, s.ID,
				s.Sequence, before.ID, before.Sequence)
		}
		last[l] = s
	}
}

// realTimeOrder checks that a message sent after the acknowledgement of another message of its queue has a higher
// sequence.
func (c *checker) realTimeOrder() {
	byQueue := map[string][]*Publish{}
	for _, p := range c.published {
		if p.Outcome == Acked {
			byQueue[p.Queue] = append(byQueue[p.Queue], p)
		}
	}
	for queue, sent := range byQueue {
		done := slices.Clone(sent)
		slices.SortFunc(sent, func(a, b *Publish) int { return cmp.Compare(a.Sent, b.Sent) })
		slices.SortFunc(done, func(a, b *Publish) int { return cmp.Compare(a.Done, b.Done) })
		next := 0
		var highest *Publish
		for _, p := range sent {
			for ; next < len(done) && done[next].Done < p.Sent; next++ {
				if highest == nil || done[next].Sequence > highest.Sequence {
					highest = done[next]
				}
			}
			if highest != nil && highest.Sequence >= p.Sequence {
				c.report(RuleOrder, "queue %s: %v was sent at %v and has sequence %d, but %v was already acknowledged with "+
					"%d at %v",
					queue, p.ID, p.Sent, p.Sequence, highest.ID, highest.Sequence, highest.Done)
			}
		}
	}
}

// lsns checks that an LSN identifies one transaction, and that a queue's sequences increase with the LSN. A
// transaction is a batch of one producer for one queue or a transaction of one application.
func (c *checker) lsns() {
	type origin struct {
		queue    string
		producer uint32
		txn      ID // the first message of an application's transaction
	}
	type number struct {
		pair string
		lsn  uint64
	}
	type log struct{ pair, queue string }
	seen := map[number]origin{}
	byQueue := map[log][]*Publish{}
	txns := map[ID]ID{}
	for _, o := range c.h.Operations {
		for _, id := range o.Parts {
			txns[id] = o.Parts[0]
			if o.Kind == KindPublish { // concurrent publishes of applications may be one batch
				txns[id] = ID{Producer: FirstApplication}
			}
		}
	}
	for _, p := range c.published {
		if p.Outcome != Acked || p.LSN == 0 {
			continue
		}
		mine := origin{p.Queue, p.ID.Producer, ID{}}
		if first, ok := txns[p.ID]; ok {
			if mine = (origin{txn: first}); first.N == 0 {
				mine.queue = p.Queue
			}
		}
		pair := ""
		if c.h.PairOf != nil {
			if pair = c.h.PairOf(p.Address); pair == "" {
				continue
			}
		}
		n, l := number{pair, p.LSN}, log{pair, p.Queue}
		if other, taken := seen[n]; taken && other != mine {
			c.report(RuleTwoTerms, "LSN %d was acknowledged to %+v and to %+v", p.LSN, other, mine)
		}
		seen[n] = mine
		byQueue[l] = append(byQueue[l], p)
	}
	for queue, acked := range byQueue {
		slices.SortFunc(acked, func(a, b *Publish) int { return cmp.Compare(a.Sequence, b.Sequence) })
		for i := 1; i < len(acked); i++ {
			if a, b := acked[i-1], acked[i]; a.LSN > b.LSN {
				c.report(RuleTwoTerms, "queue %s: sequence %d was acknowledged with LSN %d, but the earlier sequence %d with "+
					"the later LSN %d",
					queue.queue, b.Sequence, b.LSN, a.Sequence, a.LSN)
			}
		}
	}
}

// deliveries compares the deliveries with the stored messages and the acknowledgements.
func (c *checker) deliveries() {
	type cursor struct {
		position
		sub string
	}
	confirmed := map[cursor]time.Duration{}
	for _, a := range c.h.Acks {
		k := cursor{position{a.Queue, a.Sequence}, a.Sub}
		if at, ok := confirmed[k]; !ok || a.Confirmed < at {
			confirmed[k] = a.Confirmed
		}
	}
	delivered := map[cursor]bool{}
	for _, d := range c.h.Deliveries {
		k := cursor{position{d.Queue, d.Sequence}, d.Sub}
		delivered[k] = true
		if at, ok := confirmed[k]; ok && d.At > at {
			c.report(RuleRedelivered, "%s/%s: sequence %d (%v) was delivered at %v, after its acknowledgement was "+
				"confirmed at %v",
				d.Queue, d.Sub, d.Sequence, d.ID, d.At, at)
		}
		if _, known := c.sent[d.ID]; !known {
			c.report(RulePhantom, "%s/%s: message %v was delivered, but no producer sent it", d.Queue, d.Sub, d.ID)
		} else if id, ok := c.at[k.position]; !ok || id != d.ID {
			c.report(RuleUncommitted, "%s/%s: message %v was delivered as sequence %d at %v, which is %v", d.Queue,
				d.Sub, d.ID, d.Sequence, d.At, id)
		}
	}
	for _, s := range c.h.Final {
		for _, drained := range c.h.Drained {
			sub, ok := subOf(drained, s.Queue)
			if ok && !delivered[cursor{position{s.Queue, s.Sequence}, sub}] {
				c.report(RuleUndelivered, "%s: sequence %d (%v) is stored, but was never delivered", drained,
					s.Sequence, s.ID)
			}
		}
	}
}

func subOf(drained, queue string) (string, bool) {
	if len(drained) > len(queue) && drained[:len(queue)] == queue && drained[len(queue)] == '/' {
		return drained[len(queue)+1:], true
	}
	return "", false
}

// unknowns checks the number of unknown outcomes. A producer retries messages without a response until it is closed,
// so that almost no outcome is unknown.
func (c *checker) unknowns() {
	unknown := 0
	for _, p := range c.h.Publishes {
		if p.Outcome == Unknown {
			unknown++
		}
	}
	if most := c.h.MaxUnknown; unknown > most {
		c.report(RuleUnknown, "%d of %d publishes without a deadline have an unknown outcome; at most %d are allowed",
			unknown, len(c.h.Publishes), most)
	}
}

func (c *checker) digests() {
	for _, d := range c.h.Digests[min(1, len(c.h.Digests)):] {
		if first := c.h.Digests[0]; d.LSN != first.LSN || d.Content != first.Content {
			c.report(RuleDigest, "%s has %s at LSN %d (%d messages), %s has %s at LSN %d (%d messages)",
				first.Node, first.Content, first.LSN, first.Messages, d.Node, d.Content, d.LSN, d.Messages)
		}
	}
}
