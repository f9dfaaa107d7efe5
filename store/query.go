package store

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// View calls fn with the applied state. fn must be quick, must not call the store, and must keep nothing of the state.
func (s *Store) View(fn func(*queue.State) error) error {
	if err := s.usable(); err != nil {
		return err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return fn(s.state)
}

// QueueInfo describes a queue.
type QueueInfo struct {
	// ID is the queue's number, Name its name, Config what can be altered.
	ID     uint64
	Name   string
	Config txn.Config
	// NextSequence is what the next message will get.
	NextSequence uint64
	// Messages that some subscription has still to acknowledge, and their bytes.
	Messages, Bytes uint64
	// Digest is a rolling hash of everything that was ever applied to the queue.
	Digest uint64
	// Subscriptions by number.
	Subscriptions []SubscriptionInfo
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

func infoOf(q *queue.Queue) QueueInfo {
	info := QueueInfo{
		ID: q.ID(), Name: q.Name(), Config: q.Config(), NextSequence: q.NextSequence(), Messages: q.Messages(),
		Bytes: q.Bytes(), Digest: q.Digest(), Subscriptions: make([]SubscriptionInfo, 0, q.SubCount()),
	}
	for s := range q.Subs {
		info.Subscriptions = append(info.Subscriptions,
			SubscriptionInfo{ID: s.ID(), Name: s.Name(), Floor: s.Floor(), Start: s.Start(), Backlog: s.Backlog()})
	}
	return info
}

// QueueByName describes a queue; ok is false if there is none of that name.
func (s *Store) QueueByName(name string) (info QueueInfo, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.QueueByName(name)
	if q == nil {
		return QueueInfo{}, false
	}
	return infoOf(q), true
}

// QueueID returns the number of a queue; ok is false if there is none of that name. It allocates nothing.
func (s *Store) QueueID(name string) (id uint64, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	q := s.state.QueueByName(name)
	if q == nil {
		return 0, false
	}
	return q.ID(), true
}

// Queues describes up to limit queues in the order of their names: those that begin with prefix and come after `after`.
func (s *Store) Queues(prefix, after string, limit int) []QueueInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	var out []QueueInfo
	for _, q := range s.state.List(nil, prefix, after, limit) {
		out = append(out, infoOf(q))
	}
	return out
}

// Room is what this process may still write to the filesystem, in bytes, and how much of that the next checkpoint will
// take for messages that are in memory and not yet in pages. It takes a few microseconds.
func (s *Store) Room() (freeBytes, tailBytes uint64, err error) {
	usage, err := s.o.FS.Usage(s.o.Dir)
	if err != nil {
		return 0, 0, fmt.Errorf("look at the free space: %w", err)
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return usage.AvailableBytes, uint64(max(s.state.TailBytes(), 0)), nil
}

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
	st.Counts = s.state.Counts()
	s.mu.RUnlock()
	usage, err := s.o.FS.Usage(s.o.Dir)
	if err != nil {
		return st, fmt.Errorf("look at the free space: %w", err)
	}
	st.DiskFree, st.DiskTotal = usage.AvailableBytes, usage.TotalBytes
	return st, nil
}
