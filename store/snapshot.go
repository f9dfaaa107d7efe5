// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"io"
	"sort"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// snapshotIdle is the time for which an interrupted transfer can be resumed.
const snapshotIdle = 2 * time.Minute

// Snapshot is a pinned checkpoint that is transferred to another node or copied to a backup. It retains the log after
// the checkpoint until it is closed. Transactions do not wait for the transfer.
type Snapshot struct {
	// ID identifies the snapshot.
	ID     string
	Header SnapshotHeader

	s       *Store
	file    *page.File // may no longer be page.db, since the store can replace it
	pin     *page.Pin
	hold    *wal.Hold
	meta    []byte // metadata of the checkpoint: the first piece, at offset 0
	extents []page.Extent
	mu      sync.Mutex // held while pages are read; guards the fields below
	closed  bool
	expire  *time.Timer
	// stream verifies the data while it is sent contiguously from the beginning; next is the offset of its next byte.
	stream *page.ExtentStream
	next   uint64
}

// SnapshotHeader describes a snapshot to its receiver before the transfer.
type SnapshotHeader struct {
	// Position is the position of the last record that the snapshot contains.
	Position lsn.Position
	// FileBytes is the size of the page file of the checkpoint, including free pages.
	FileBytes uint64
	// DataBytes is the amount of data to transfer, without free pages.
	DataBytes uint64
	PageSize  int
}

type snapshotSet struct {
	mu   sync.Mutex
	byID map[string]*Snapshot
}

// OpenSnapshot returns a Snapshot of the last durable checkpoint. The caller must call Close or Suspend.
func (s *Store) OpenSnapshot() (*Snapshot, error) {
	file := s.pages.Acquire().File
	defer s.pages.Release()
	if err := s.Usable(); err != nil {
		return nil, err
	}
	// Retain the whole log first: a concurrent checkpoint could release records that follow the pinned checkpoint.
	hold := s.log.Hold(1)
	pin := file.Pin()
	meta := pin.Meta()
	hold.Advance(meta.Position.LSN + 1)
	snap := &Snapshot{ID: uuid.NewString(), s: s, file: file, pin: pin, hold: hold, meta: meta.Encode()}
	var pages uint64
	for ext, err := range file.UsedExtents(pin) {
		if err != nil {
			snap.release()
			return nil, fmt.Errorf("open snapshot: %w", err)
		}
		snap.extents = append(snap.extents, ext)
		pages += uint64(ext.Pages)
	}
	snap.Header = SnapshotHeader{
		Position: meta.Position, PageSize: meta.PageSize, FileBytes: uint64(meta.FileBytes()),
		DataBytes: pages*uint64(meta.PageSize) + uint64(len(snap.meta)),
	}
	s.snapshots.mu.Lock()
	defer s.snapshots.mu.Unlock()
	if s.snapshots.byID == nil {
		s.snapshots.byID = make(map[string]*Snapshot)
	}
	s.snapshots.byID[snap.ID] = snap
	return snap, nil
}

// ResumeSnapshot returns the snapshot with the given ID and ends its suspension (see Suspend). It returns
// ErrSnapshotGone if the snapshot was closed.
func (s *Store) ResumeSnapshot(id string) (*Snapshot, error) {
	s.snapshots.mu.Lock()
	defer s.snapshots.mu.Unlock()
	snap, ok := s.snapshots.byID[id]
	if !ok {
		return nil, fmt.Errorf("%w: %s", ErrSnapshotGone, id)
	}
	snap.mu.Lock()
	defer snap.mu.Unlock()
	if snap.expire != nil && !snap.expire.Stop() {
		return nil, fmt.Errorf("%w: %s", ErrSnapshotGone, id)
	}
	snap.expire = nil
	return snap, nil
}

// ReadNext reads the first piece of the page file at or after the offset, at most limit bytes but at least one page,
// and returns its offset and data. The next call must pass the end of the piece. The piece at offset 0 contains the
// metadata of the checkpoint, and may be larger than limit. If buf is not nil, the data may be in *buf, which ReadNext
// replaces if it is too small; otherwise, ReadNext allocates memory. ReadNext returns io.EOF after the last piece, and
// ErrSnapshotGone if the snapshot or the store was closed, or if the store's content was replaced.
func (sn *Snapshot) ReadNext(offset uint64, limit int, buf *[]byte) (at uint64, data []byte, err error) {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	if sn.closed { // the pages may have been overwritten
		return 0, nil, fmt.Errorf("%w: %s", ErrSnapshotGone, sn.ID)
	}
	if offset < uint64(len(sn.meta)) {
		return offset, sn.meta[offset:], nil
	}
	size := sn.file.PageSize()
	end := func(ext page.Extent) uint64 { return uint64(page.OffsetOf(ext.End(), size)) }
	i := sort.Search(len(sn.extents), func(i int) bool { return end(sn.extents[i]) > offset })
	if i == len(sn.extents) {
		return 0, nil, io.EOF
	}
	ext := sn.extents[i]
	from := max(uint64(page.OffsetOf(ext.First, size)), offset)
	n := max(min(end(ext)-from, uint64(limit)/uint64(size)*uint64(size)), uint64(size))
	if buf == nil {
		buf = new([]byte)
	}
	if room := int(n) + page.UncachedRoom; len(*buf) < room {
		*buf = vfs.AlignedBlock(room)
	}
	data, err = sn.file.ReadOnce(page.NoAt(int64(from), size), int(n), *buf)
	if err != nil {
		return 0, nil, fmt.Errorf("read snapshot at offset %d: %w", from, err)
	}
	sn.verify(i, ext, from, data)
	return from, data, nil
}

// Messages returns the number of messages in the snapshot. It includes unneeded messages that share an extent with
// needed messages.
func (sn *Snapshot) Messages(ctx context.Context) (uint64, error) {
	c := checkpoint.Open(sn.file, sn.pin, checkpoint.Options{
		CacheBytes: sn.s.o.MemoryBudget / 32,
		Pace:       sn.s.Pace(ctx, 0),
	})
	return c.CountMessages(ctx) // the snapshot owns the pin: do not call Close
}

// verify checks data before it is sent, unless a part before it was skipped (sn.stream). It records corruption for
// repair; the corrupt data is sent nevertheless. sn.mu must be held.
func (sn *Snapshot) verify(i int, ext page.Extent, from uint64, data []byte) {
	size := sn.file.PageSize()
	begin := uint64(page.OffsetOf(ext.First, size))
	switch {
	case i == 0 && from == begin:
		sn.stream = page.NewExtentStream(size)
	case sn.stream == nil || (from != sn.next && from != begin):
		sn.stream = nil // resumed in the middle
		return
	}
	sn.next = from + uint64(len(data))
	if err := sn.stream.Write(page.NoAt(int64(from), size), data); err != nil {
		sn.s.o.Events(events.SnapshotCorrupt{ID: sn.ID, Err: err})
		sn.s.repair.NoteError(err)
		sn.stream = nil
	}
}

// Suspend schedules Close in 2 minutes. ResumeSnapshot cancels it.
func (sn *Snapshot) Suspend() {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	if !sn.closed && sn.expire == nil {
		sn.expire = time.AfterFunc(snapshotIdle, sn.Close)
	}
}

// Close releases the checkpoint and the log. The snapshot can no longer be read or resumed.
func (sn *Snapshot) Close() {
	sn.s.snapshots.mu.Lock()
	delete(sn.s.snapshots.byID, sn.ID)
	sn.s.snapshots.mu.Unlock()
	sn.release()
}

func (sn *Snapshot) release() {
	sn.mu.Lock()
	defer sn.mu.Unlock()
	if sn.closed {
		return
	}
	sn.closed = true
	if sn.expire != nil {
		sn.expire.Stop()
	}
	sn.pin.Release()
	sn.hold.Release()
}

func (ss *snapshotSet) closeAll() {
	ss.mu.Lock()
	all := ss.byID
	ss.byID = nil
	ss.mu.Unlock()
	for _, snap := range all {
		snap.release()
	}
}
