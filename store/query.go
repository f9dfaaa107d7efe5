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
	// ID is the queue's number, Name its name, Config what can be altered.
	ID     uint64
	Name   string
	Config txn.Config
	// DeadLetter is the name of the queue that Config.DeadLetter is the number of; empty for none.
	DeadLetter string
	// NextSequence is what the next message will get.
	NextSequence uint64
	// Messages that some subscription has still to acknowledge, and their bytes.
	Messages, Bytes uint64
	// Delayed is how many of the messages are not yet to be delivered to any subscription.
	Delayed uint64
	// Dropped is how many messages, counted for each subscription, no consumer could deal with while there was no
	// dead-letter queue for them; Expired how many have expired and were not moved to one. Both count since the queue
	// was made.
	Dropped, Expired uint64
	// Digest is a rolling hash of everything that was ever applied to the queue.
	Digest uint64
	// Subscriptions by number.
	Subscriptions []SubscriptionInfo
	// Forwards say which of its messages also go to other queues.
	Forwards []ForwardInfo
}

// ForwardInfo is a rule of a queue.
type ForwardInfo struct {
	// To is the name of the queue that messages go to.
	To string
	// Move: they go there only.
	Move bool
	// Filter is the expression that they have to match; "" for all messages.
	Filter string
}

// SubscriptionInfo describes a subscription.
type SubscriptionInfo struct {
	// ID is the subscription's number in its queue, Name its name.
	ID   uint32
	Name string
	// Floor: every sequence below it is acknowledged.
	Floor uint64
	// Start is the first sequence that it was to get.
	Start uint64
	// Backlog is how many messages are not acknowledged.
	Backlog uint64
	// Options are its filter, and what it has for itself of what its queue's configuration says.
	Options txn.SubscriptionOptions
	// DeadLetter is the name of the queue that Options.Policy.DeadLetter is the number of; empty for none.
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

// QueueByName describes a queue. ErrNoQueue if there is none of that name; ErrClosed and ErrFailed.
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

// QueueName returns the name of a queue, for log lines; empty if there is no such queue. It never waits: it is empty,
// too, while the store's state is being changed.
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

// Origin names a subscription, and says what its queue does with messages that no consumer can deal with.
type Origin struct {
	// Queue and Subscription are the names.
	Queue, Subscription string
	// DeadLetter is the number of the dead-letter queue of the subscription: its own, or its queue's; txn.NoQueue for
	// none. QueueDeadLetter is that of the queue.
	DeadLetter, QueueDeadLetter uint64
	// DeadLetterName and QueueDeadLetterName are the names of those queues.
	DeadLetterName, QueueDeadLetterName string
}

// Origin describes a subscription. ErrNoQueue if there is none of that number.
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

// TemporaryQueue is one that is deleted when it has had no consumer for a time.
type TemporaryQueue struct {
	// ID is the queue's number, Name its name.
	ID   uint64
	Name string
	// GraceMS is that time, in milliseconds.
	GraceMS uint64
	// Subscriptions are the numbers of those that it has.
	Subscriptions []uint32
}

// Temporary describes the temporary queues. It costs nothing while there are none.
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

// MaxDeliveries is how many times a message is delivered to a subscription at most; 0: there is no limit, or no such
// subscription.
func (s *Store) MaxDeliveries(id uint64, sub uint32) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil && q.Sub(sub) != nil {
		return q.Sub(sub).Config().MaxDeliveries
	}
	return 0
}

// Exhausted returns those of the sequences that were given back as often as the limit of deliveries allows for.
// It costs nothing if there is no limit.
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

// Filter is the expression that the messages of a subscription have to match; "" if it gets all of them, or is not
// there.
func (s *Store) Filter(id uint64, sub uint32) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if q := s.state.Queue(id); q != nil && q.Sub(sub) != nil {
		return q.Sub(sub).Filter()
	}
	return ""
}

// Filters changes whenever a filter of a subscription was altered: before anything that was published later can be
// read.
func (s *Store) Filters() uint64 { return s.filters.Load() }

// QueueCount is the number of queues.
func (s *Store) QueueCount() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.state.QueueCount()
}

// NextSequence is the sequence that the queue's next message will get; ok is false if there is no such queue, or the
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

// QueueRange says which queues to list, in the order of their names.
type QueueRange struct {
	// Prefix that the names begin with, After the name that they come after; "" for all.
	Prefix, After string
	// MaxQueues and MaxSubscriptions bound the answer; it has one queue at least, however many subscriptions that has.
	MaxQueues, MaxSubscriptions int
}

// Queues describes the queues of a range as far as the limits allow; more tells whether there are further ones.
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

// Room is the space that a store has.
type Room struct {
	// FreeBytes is what this process may still write to the filesystem. PageBytes are free within the page file, and
	// PendingBytes will be after further checkpoints.
	FreeBytes, PageBytes, PendingBytes uint64
	// TailBytes is what the next checkpoint will take for messages that are in memory and not yet in pages.
	TailBytes uint64
}

// Low reports whether there is less space than a low-watermark. Free pages count, but half of the watermark must be
// free in the filesystem: the log needs it.
func (r Room) Low(watermark uint64) bool {
	return r.FreeBytes+r.PageBytes+r.PendingBytes < watermark+r.TailBytes || r.FreeBytes < watermark/2+r.beyondPages()
}

// beyondPages is how much of the tail does not fit into free pages.
func (r Room) beyondPages() uint64 { return r.TailBytes - min(r.TailBytes, r.PageBytes) }

// NearlyLow reports whether the log is to give up what it keeps for a standby, before the space is low.
func (r Room) NearlyLow(watermark uint64) bool {
	return r.FreeBytes < watermark+watermark/4+r.beyondPages()
}

// Held reports whether a standby that is to write so many bytes has less than half of the watermark left.
func (r Room) Held(watermark, bytes uint64) (need uint64, held bool) {
	need = watermark/2 + r.beyondPages() + 2*bytes
	return need, r.FreeBytes < need
}

// Room measures the space. It takes a few microseconds.
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

// SetSpaceShort has the log give up what it keeps beyond what recovery needs, for as long as space is short.
func (s *Store) SetSpaceShort(short bool) { s.log.SetPressed(short) }

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
	// Checkpoint is the last checkpoint's number, CheckpointLSN what it holds.
	Checkpoint, CheckpointLSN uint64
	// PageSize in bytes.
	PageSize int
	// Pages in page.db, and how many of them are in use.
	Pages, PagesUsed uint64
	// Queues, Messages that some subscription still wants, and their bytes.
	Queues, Messages, MessageBytes uint64
	// Delayed is how many of the messages are not yet to be delivered.
	Delayed uint64
	// TailBytes of messages are in memory and not yet in pages.
	TailBytes int64
	// DiskFree is what this process may still write to the filesystem, in bytes; DiskTotal is its size.
	DiskFree, DiskTotal uint64
	// Sync is the sync mode.
	Sync string
	// Counts are what was applied since the store was opened.
	Counts queue.Counts
	// CheckpointAt is when the last checkpoint was made; zero if there was none.
	CheckpointAt time.Time
}

// Stats returns what is known now.
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
