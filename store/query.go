// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// QueueInfo describes a queue.
type QueueInfo struct {
	// ID is the queue's number, Name its name, Config the configuration that can be altered.
	ID     uint64
	Name   string
	Config txn.Config
	// DeadLetter is the name of the queue whose number is Config.DeadLetter; empty if none.
	DeadLetter string
	// NextSequence is the sequence of the next message.
	NextSequence uint64
	// Messages counts the messages that some subscription has not yet acknowledged, Bytes their size.
	Messages, Bytes uint64
	// Delayed is the number of messages that are not yet deliverable to any subscription.
	Delayed uint64
	// Dropped counts the messages, for each subscription, that failed and were discarded for lack of a dead-letter
	// queue. Expired counts those that expired and were not moved to one. Both count since the queue was created.
	Dropped, Expired uint64
	// Digest is a rolling hash of all operations applied to the queue.
	Digest uint64
	// Subscriptions by number.
	Subscriptions []SubscriptionInfo
	// Forwards are the queue's forwarding rules.
	Forwards []ForwardInfo
}

// ForwardInfo is a forwarding rule of a queue.
type ForwardInfo struct {
	// To is the name of the target queue.
	To string
	// Move is set if matching messages go only to the target queue.
	Move bool
	// Filter is the expression that messages must match; "" for all messages.
	Filter string
}

// SubscriptionInfo describes a subscription.
type SubscriptionInfo struct {
	// ID is the subscription's number in its queue, Name its name.
	ID   uint32
	Name string
	// Floor is the sequence below which all messages are acknowledged.
	Floor uint64
	// Start is the sequence at which the subscription began.
	Start uint64
	// Backlog is the number of unacknowledged messages.
	Backlog uint64
	// Options are its filter and its own settings that override the queue's configuration.
	Options txn.SubscriptionOptions
	// DeadLetter is the name of the queue whose number is Options.Policy.DeadLetter; empty if none.
	DeadLetter string
}

// Subscription returns the subscription of that name.
func (q *QueueInfo) Subscription(name string) (SubscriptionInfo, bool) {
	for _, s := range q.Subscriptions {
		if s.Name == name {
			return s, true
		}
	}
	return SubscriptionInfo{}, false
}

func infoOf(state *queue.State, q *queue.Queue) QueueInfo {
	info := QueueInfo{
		ID: q.ID(), Name: q.Name(), Config: q.Config(), NextSequence: q.NextSequence(), Messages: q.Messages(),
		Bytes: q.Bytes(), Digest: q.Digest(), Subscriptions: make([]SubscriptionInfo, 0, q.SubCount()),
		Delayed: q.DelayedMessages(),
	}
	info.Dropped, info.Expired = q.Dropped()
	if target := state.Queue(info.Config.DeadLetter); target != nil {
		info.DeadLetter = target.Name()
	}
	for _, f := range q.Forwards() {
		forward := ForwardInfo{Move: f.Move, Filter: f.Filter}
		if target := state.Queue(f.Target); target != nil {
			forward.To = target.Name()
		}
		info.Forwards = append(info.Forwards, forward)
	}
	for s := range q.Subs {
		one := SubscriptionInfo{
			ID: s.ID(), Name: s.Name(), Floor: s.Floor(), Start: s.Start(), Backlog: s.Backlog(), Options: s.Options(),
		}
		if target := state.Queue(one.Options.Policy.DeadLetter); target != nil {
			one.DeadLetter = target.Name()
		}
		info.Subscriptions = append(info.Subscriptions, one)
	}
	return info
}

// QueueByName describes a queue. It returns ErrNoQueue if no queue has that name, ErrClosed or ErrFailed.
func (s *Store) QueueByName(name string) (QueueInfo, error) {
	if err := s.usable(); err != nil {
		return QueueInfo{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.QueueByName(name)
	if q == nil {
		return QueueInfo{}, fmt.Errorf("%w: queue %q", ErrNoQueue, name)
	}
	return infoOf(s.state, q), nil
}

// QueueName returns the name of a queue, for log lines; empty if the queue does not exist. It never blocks: it also
// returns "" while the store's state is being changed.
func (s *Store) QueueName(id uint64) string {
	if !s.mu.TryRLock() {
		return ""
	}
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil {
		return q.Name()
	}
	return ""
}

// Origin names a subscription and its dead-letter queues.
type Origin struct {
	// Queue and Subscription are the names.
	Queue, Subscription string
	// DeadLetter is the number of the dead-letter queue that applies to the subscription, its own or its queue's;
	// txn.NoQueue if none. QueueDeadLetter is the number of the queue's dead-letter queue.
	DeadLetter, QueueDeadLetter uint64
	// DeadLetterName and QueueDeadLetterName are the names of those queues.
	DeadLetterName, QueueDeadLetterName string
}

// Origin describes a subscription. It returns ErrNoQueue if no subscription has that number.
func (s *Store) Origin(id uint64, sub uint32) (Origin, error) {
	if err := s.usable(); err != nil {
		return Origin{}, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || q.Sub(sub) == nil {
		return Origin{}, fmt.Errorf("%w: queue %d, subscription %d", ErrNoQueue, id, sub)
	}
	o := Origin{
		Queue: q.Name(), Subscription: q.Sub(sub).Name(), DeadLetter: q.Sub(sub).Config().DeadLetter,
		QueueDeadLetter: q.Config().DeadLetter,
	}
	if target := s.state.Queue(o.DeadLetter); target != nil {
		o.DeadLetterName = target.Name()
	}
	if target := s.state.Queue(o.QueueDeadLetter); target != nil {
		o.QueueDeadLetterName = target.Name()
	}
	return o, nil
}

// TemporaryQueue is a queue that is deleted when it has had no consumer for a grace period.
type TemporaryQueue struct {
	// ID is the queue's number, Name its name.
	ID   uint64
	Name string
	// GraceMS is the grace period in milliseconds.
	GraceMS uint64
	// Subscriptions are the numbers of its subscriptions.
	Subscriptions []uint32
}

// Temporary returns the temporary queues. It costs nothing while none exist.
func (s *Store) Temporary() []TemporaryQueue {
	s.mu.RLock()
	defer s.mu.RUnlock()
	queues := s.state.Temporary()
	out := make([]TemporaryQueue, len(queues))
	for i, q := range queues {
		out[i] = TemporaryQueue{ID: q.ID(), Name: q.Name(), GraceMS: q.Config().TemporaryGrace}
		for sub := range q.Subs {
			out[i].Subscriptions = append(out[i].Subscriptions, sub.ID())
		}
	}
	return out
}

// MaxDeliveries returns the maximum number of deliveries of a message to a subscription; 0 if unlimited, or if the
// subscription does not exist.
func (s *Store) MaxDeliveries(id uint64, sub uint32) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil && q.Sub(sub) != nil {
		return q.Sub(sub).Config().MaxDeliveries
	}
	return 0
}

// Exhausted returns the sequences that have been released as often as the delivery limit allows. It costs nothing
// without a limit.
func (s *Store) Exhausted(id uint64, sub uint32, sequences []uint64) (exhausted []uint64) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil || q.Sub(sub) == nil {
		return nil
	}
	of := q.Sub(sub)
	most := of.Config().MaxDeliveries
	if most == 0 {
		return nil
	}
	for _, sequence := range sequences {
		if uint64(of.DeliveryCount(sequence)) >= most {
			exhausted = append(exhausted, sequence)
		}
	}
	return exhausted
}

// Filter returns the expression that the messages of a subscription must match; "" if it receives all messages, or
// does not exist.
func (s *Store) Filter(id uint64, sub uint32) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil && q.Sub(sub) != nil {
		return q.Sub(sub).Filter()
	}
	return ""
}

// Filters returns a version that changes whenever a subscription's filter is altered, before any later message
// becomes readable.
func (s *Store) Filters() uint64 { return s.filters.Load() }

// QueueCount returns the number of queues.
func (s *Store) QueueCount() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.QueueCount()
}

// NextSequence returns the sequence of the queue's next message; ok is false if the queue does not exist, or the
// store cannot be used.
func (s *Store) NextSequence(id uint64) (next uint64, ok bool) {
	if s.usable() != nil {
		return 0, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.Queue(id)
	if q == nil {
		return 0, false
	}
	return q.NextSequence(), true
}

// QueueRange selects the queues to list, in name order.
type QueueRange struct {
	// Prefix is the prefix of the names, After the name after which the list starts; "" for all.
	Prefix, After string
	// MaxQueues and MaxSubscriptions bound the result. It contains at least one queue, regardless of its number of
	// subscriptions.
	MaxQueues, MaxSubscriptions int
}

// Queues describes the queues of a range, within its limits. more reports whether further queues exist.
func (s *Store) Queues(r QueueRange) (infos []QueueInfo, more bool, err error) {
	if err := s.usable(); err != nil {
		return nil, false, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	subscriptions := 0
	for _, q := range s.state.List(nil, r.Prefix, r.After, r.MaxQueues+1) {
		subscriptions += q.SubCount()
		if len(infos) == r.MaxQueues || len(infos) > 0 && subscriptions > r.MaxSubscriptions {
			return infos, true, nil
		}
		infos = append(infos, infoOf(s.state, q))
	}
	return infos, false, nil
}

// Room is the available space of a store.
type Room struct {
	// FreeBytes is the space that this process may still use in the filesystem. PageBytes are free within the page
	// file, and PendingBytes will become free after further checkpoints.
	FreeBytes, PageBytes, PendingBytes uint64
	// TailBytes is the space that the next checkpoint needs for messages that are only in memory.
	TailBytes uint64
}

// Low reports whether there is less space than a low-watermark. Free pages count, but half of the watermark must be
// free in the filesystem: the log needs it.
func (r Room) Low(watermark uint64) bool {
	return r.FreeBytes+r.PageBytes+r.PendingBytes < watermark+r.TailBytes || r.FreeBytes < watermark/2+r.beyondPages()
}

// beyondPages returns the part of the tail that does not fit into free pages.
func (r Room) beyondPages() uint64 { return r.TailBytes - min(r.TailBytes, r.PageBytes) }

// NearlyLow reports whether the log must discard the records kept for a standby, before the space is low.
func (r Room) NearlyLow(watermark uint64) bool {
	return r.FreeBytes < watermark+watermark/4+r.beyondPages()
}

// Held reports whether the free space is too low for a standby to write the given bytes and keep half of the
// watermark. It also returns the space needed.
func (r Room) Held(watermark, bytes uint64) (need uint64, held bool) {
	need = watermark/2 + r.beyondPages() + 2*bytes
	return need, r.FreeBytes < need
}

// Room measures the available space. It takes a few microseconds.
func (s *Store) Room() (Room, error) {
	usage, err := s.o.FS.Usage(s.o.Dir)
	if err != nil {
		return Room{}, fmt.Errorf("look at the free space: %w", err)
	}
	r := Room{FreeBytes: usage.AvailableBytes}
	s.ioMu.RLock()
	pages, size := s.file.Stats(), uint64(s.file.PageSize())
	r.PageBytes = pages.Free * size
	r.PendingBytes = (pages.Pages - min(pages.Pages, pages.Used+pages.Free)) * size
	s.ioMu.RUnlock()
	s.mu.RLock()
	defer s.mu.RUnlock()
	r.TailBytes = uint64(max(s.state.TailBytes(), 0))
	return r, nil
}

// SetSpaceShort makes the log discard all records not needed for recovery while space is short.
func (s *Store) SetSpaceShort(short bool) { s.log.SetLowSpace(short) }

// Stats describes the store.
type Stats struct {
	// End and Durable are the last record in the log and the last durable one.
	End, Durable lsn.Position
	// Applied is the last applied record.
	Applied lsn.Position
	// FirstLSN is the oldest record in the log.
	FirstLSN uint64
	// LogBytes on disk.
	LogBytes int64
	// Checkpoint is the last checkpoint's number, CheckpointLSN its LSN.
	Checkpoint, CheckpointLSN uint64
	// PageSize in bytes.
	PageSize int
	// Pages is the number of pages in page.db, PagesUsed the number of pages in use.
	Pages, PagesUsed uint64
	// Queues is the number of queues, Messages the number of messages that some subscription needs, and MessageBytes
	// their size.
	Queues, Messages, MessageBytes uint64
	// Delayed is the number of messages that are not yet deliverable.
	Delayed uint64
	// TailBytes is the size of messages in memory that are not yet in pages.
	TailBytes int64
	// DiskFree is the space that this process may still use in the filesystem, in bytes; DiskTotal is the
	// filesystem's size.
	DiskFree, DiskTotal uint64
	// Sync is the sync mode.
	Sync string
	// Counts counts the operations applied since the store was opened.
	Counts queue.Counts
	// CheckpointAt is the time of the last checkpoint; zero if none.
	CheckpointAt time.Time
}

// Stats returns the current statistics.
func (s *Store) Stats() (Stats, error) {
	if err := s.usable(); err != nil {
		return Stats{}, err
	}
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	meta, pages := s.file.Meta(), s.file.Stats()
	st := Stats{
		End: s.log.End(), Durable: s.log.Durable(), FirstLSN: s.log.First(), LogBytes: s.log.Bytes(),
		Checkpoint: meta.Checkpoint, CheckpointLSN: meta.Position.LSN, PageSize: s.file.PageSize(),
		Pages: pages.Pages, PagesUsed: pages.Used, Sync: s.o.Sync.String(),
	}
	if meta.CreatedMS > 0 {
		st.CheckpointAt = time.UnixMilli(meta.CreatedMS)
	}
	s.mu.RLock()
	st.Applied, st.TailBytes = s.applied, s.state.TailBytes()
	st.Queues, st.Messages, st.MessageBytes = uint64(s.state.QueueCount()), s.state.Messages(), s.state.Bytes()
	st.Counts, st.Delayed = s.state.Counts(), s.state.Delayed()
	s.mu.RUnlock()
	usage, err := s.o.FS.Usage(s.o.Dir)
	if err != nil {
		return st, fmt.Errorf("look at the free space: %w", err)
	}
	st.DiskFree, st.DiskTotal = usage.AvailableBytes, usage.TotalBytes
	return st, nil
}
