// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/queue"
)

// Room is the available space of a store.
type Room struct {
	// FreeBytes is the space that this process may still use in the filesystem. PageBytes is the free space within the
	// page file. PendingBytes is the space within the page file that further checkpoints, or the end of reads, will
	// free.
	FreeBytes, PageBytes, PendingBytes uint64
	// TailBytes is the space that the next checkpoint needs for messages that are only in memory.
	TailBytes uint64
}

// Low reports whether the available space is below the watermark plus TailBytes. Free and pending pages count as
// available. In addition, Low reports true if FreeBytes is below half of the watermark (space for the log) plus the
// part of the tail that does not fit into free pages.
func (r Room) Low(watermark uint64) bool {
	return r.FreeBytes+r.PageBytes+r.PendingBytes < watermark+r.TailBytes || r.FreeBytes < watermark/2+r.beyondPages()
}

// beyondPages returns the part of the tail that does not fit into free pages.
func (r Room) beyondPages() uint64 { return r.TailBytes - min(r.TailBytes, r.PageBytes) }

// NearlyLow reports whether FreeBytes is below 125 % of the watermark plus the part of the tail that does not fit
// into free pages.
func (r Room) NearlyLow(watermark uint64) bool {
	return r.FreeBytes < watermark+watermark/4+r.beyondPages()
}

// Held reports whether a standby has too little free space to accept the given number of bytes. need is the required
// free space: half of the watermark, the part of the tail that does not fit into free pages, and space for the bytes in
// both the log and the pages.
func (r Room) Held(watermark, bytes uint64) (need uint64, held bool) {
	need = watermark/2 + r.beyondPages() + 2*bytes
	return need, r.FreeBytes < need
}

// Room measures the available space.
func (s *Store) Room() (Room, error) {
	usage, err := s.o.FS.Usage(s.o.Dir)
	if err != nil {
		return Room{}, fmt.Errorf("read the free space: %w", err)
	}
	r := Room{FreeBytes: usage.AvailableBytes}
	file := s.pages.Acquire().File
	pages, size := file.Stats(), uint64(file.PageSize())
	r.PageBytes = pages.Free * size
	r.PendingBytes = (pages.Pages - min(pages.Pages, pages.Used+pages.Free)) * size
	s.pages.Release()
	s.mu.RLock()
	defer s.mu.RUnlock()
	r.TailBytes = uint64(max(s.state.TailBytes(), 0))
	return r, nil
}

// SetSpaceShort sets whether disk space is short. While it is short, the log retains only records that are needed for
// recovery or held (HoldLog).
func (s *Store) SetSpaceShort(short bool) { s.log.SetLowSpace(short) }

// Stats contains statistics of a store.
type Stats struct {
	// End and Durable are the positions of the last record in the log and of the last durable record.
	End, Durable lsn.Position
	Applied      lsn.Position
	// FirstLSN is the LSN of the oldest record in the log; 0 if the log is empty.
	FirstLSN                  uint64
	LogBytes                  int64
	Checkpoint, CheckpointLSN uint64
	PageSize                  int
	Pages, PagesUsed          uint64
	// Queues is the number of queues, and QueuesPaused the number of those that are paused or have a paused subscription.
	// Messages is the number of messages that at least one subscription needs, and MessageBytes is their size.
	Queues, QueuesPaused, Messages, MessageBytes uint64
	// Delayed is the number of messages that are not yet deliverable.
	Delayed uint64
	// TailBytes is the size of messages in memory that are not yet in pages.
	TailBytes int64
	// DiskFree is the space in bytes that this process may still use in the filesystem of size DiskTotal.
	DiskFree, DiskTotal uint64
	Sync                string
	// Counts counts the applied operations, except those of records that the log contained when the store was opened.
	Counts queue.Counts
	// CheckpointAt is the time of the last checkpoint; zero if none was written.
	CheckpointAt time.Time
}

// Stats returns the current statistics. It fails if the store is unusable or the free space cannot be read.
func (s *Store) Stats() (Stats, error) {
	if err := s.Usable(); err != nil {
		return Stats{}, err
	}
	file := s.pages.Acquire().File
	defer s.pages.Release()
	meta, pages := file.Meta(), file.Stats()
	st := Stats{
		End: s.log.End(), Durable: s.log.Durable(), FirstLSN: s.log.First(), LogBytes: s.log.Bytes(),
		Checkpoint: meta.Checkpoint, CheckpointLSN: meta.Position.LSN, PageSize: file.PageSize(),
		Pages: pages.Pages, PagesUsed: pages.Used, Sync: s.o.Sync.String(),
	}
	if meta.CreatedMS > 0 {
		st.CheckpointAt = time.UnixMilli(meta.CreatedMS)
	}
	s.mu.RLock()
	st.Applied, st.TailBytes = s.applied, s.state.TailBytes()
	st.Queues, st.Messages, st.MessageBytes = uint64(s.state.QueueCount()), s.state.Messages(), s.state.Bytes()
	st.QueuesPaused = uint64(s.state.PausedQueues())
	st.Counts, st.Delayed = s.state.Counts(), s.state.Delayed()
	s.mu.RUnlock()
	usage, err := s.o.FS.Usage(s.o.Dir)
	if err != nil {
		return st, fmt.Errorf("read the free space: %w", err)
	}
	st.DiskFree, st.DiskTotal = usage.AvailableBytes, usage.TotalBytes
	return st, nil
}

// LeftBehind lists the files and directories in the data directory that may be removed.
func (s *Store) LeftBehind() ([]datadir.LeftBehind, error) {
	return datadir.ListLeftBehind(s.o.FS, s.o.Dir)
}
