// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/server/observe/history"
	"github.com/lockstep-mq/lockstep/store/query"
)

const (
	// historyCopyTimeout limits a periodic copy of the active's history. historyFetchTimeout limits the copy that a
	// node without history requests when it becomes active.
	historyCopyTimeout  = history.Interval / 2
	historyFetchTimeout = 2 * time.Second
	// historyMinWait is the minimum delay until the next sample. It prevents a second sample in the same interval if a
	// timer fires early.
	historyMinWait = time.Second
)

// historySource provides the values of the node during one session.
type historySource struct {
	n       *node
	session *session.Session
}

var _ history.Source = (*historySource)(nil)

func (s *historySource) Totals() (history.Totals, error) {
	stats, err := s.n.store.Stats()
	return history.Totals{
		Published: stats.Counts.Published, Delivered: s.n.deliveries.Delivered.Load(),
		Acknowledged: stats.Counts.Acknowledged, Messages: stats.Messages, Bytes: stats.MessageBytes,
	}, err
}

func (s *historySource) Queues(yield func(history.Queue)) {
	query.Samples(s.n.store, func(q query.QueueSample) {
		yield(history.Queue{ID: q.ID, NextSequence: q.NextSequence, Messages: q.Messages, Bytes: q.Bytes})
	})
}

func (s *historySource) Delivered() (current, detached map[uint64]uint64) {
	activity := s.session.Consumers.Activity()
	current = make(map[uint64]uint64, len(activity))
	for id, a := range activity {
		current[id] = a.Delivered
	}
	return current, s.session.Consumers.TakeDetached()
}

func (s *historySource) Oldest(queue uint64) (uint64, bool) {
	return query.OldestSequence(s.n.store, queue)
}

func (s *historySource) AcceptedAt(ctx context.Context, queue, sequence uint64) (time.Time, bool) {
	return query.AcceptedAt(ctx, s.n.store, queue, sequence)
}

// copiedHistory identifies the last copy of the active's history by the active and its term. The copy is complete up
// to since.
type copiedHistory struct {
	active uuid.UUID
	term   uint64
	since  time.Time
}

// runHistory samples the history at the end of each interval while the node is active. While it is not active, it
// copies the history of the active half an interval later.
func (n *node) runHistory(ctx context.Context) {
	var source *historySource
	var copied copiedHistory
	next := afterInterval(time.Now())
	for {
		changed := n.runner.Changed()
		switch session := n.serving.Get(); {
		case session == nil:
			source = nil
		case source == nil || source.session != session:
			source = &historySource{n, session}
			if n.history.Empty() { // this node restarted and is active again before the standby took over
				n.fetchHistory(ctx)
			}
			n.sampleHistory(ctx, source, false)
			next = afterInterval(time.Now())
		}
		timer := time.NewTimer(time.Until(next))
		select {
		case <-timer.C:
			if source == nil {
				n.copyHistory(ctx, &copied)
				next = afterInterval(time.Now()).Add(history.Interval / 2)
			} else {
				if n.serving.Get() == source.session {
					n.sampleHistory(ctx, source, true)
				}
				next = afterInterval(time.Now())
			}
		case <-changed:
			timer.Stop()
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// afterInterval returns the first end of an interval that is at least historyMinWait after now.
func afterInterval(now time.Time) time.Time {
	next := now.Truncate(history.Interval).Add(history.Interval)
	if next.Sub(now) < historyMinWait {
		next = next.Add(history.Interval)
	}
	return next
}

func (n *node) sampleHistory(ctx context.Context, source *historySource, record bool) {
	if err := n.history.Sample(ctx, source, time.Now(), record); err != nil {
		n.log.Debug("history not sampled", zap.Error(err))
	}
}

// copyHistory updates this node's copy of the active's history.
func (n *node) copyHistory(ctx context.Context, last *copiedHistory) {
	st := n.runner.Status()
	if st.Record == nil || st.Record.Active == st.Self.ID {
		return
	}
	active, known := st.Node(st.Record.Active)
	if !known || active.Address == "" {
		return
	}
	now := copiedHistory{active: st.Record.Active, term: st.Record.Term}
	if now.active == last.active && now.term == last.term {
		now.since = last.since
	}
	ctx, cancel := context.WithTimeout(ctx, historyCopyTimeout)
	defer cancel()
	all, err := n.peers.History(ctx, active.Address, now.since)
	if err != nil {
		n.log.Debug("history not copied", zap.Error(err))
		return
	}
	if newest := n.history.Paste(all); !newest.IsZero() {
		now.since = newest
	}
	*last = now
}

// fetchHistory copies the history of the other node, if it is reachable.
func (n *node) fetchHistory(ctx context.Context) {
	other, known := n.monitor.otherAddress()
	if !known {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, historyFetchTimeout)
	defer cancel()
	if all, err := n.peers.History(ctx, other.Address, time.Time{}); err == nil {
		n.history.Paste(all)
	}
}
