package store

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// pinned is a checkpoint that is kept from changing, opened for reading beside the live store.
type pinned struct {
	file  *page.File
	pin   *page.Pin
	meta  page.Meta
	view  *tree.View
	state *queue.State
	pace  *pace.Pacer // of whoever reads it
}

// openPinned loads the state of a pinned checkpoint. The pin is released with the result, or at once on an error.
func openPinned(file *page.File, pin *page.Pin, cacheBytes int64, pace *pace.Pacer) (*pinned, error) {
	meta := pin.Meta()
	view := tree.New(file, meta.Root, tree.Options{CacheBytes: cacheBytes}).View()
	state, err := loadState(view, meta)
	if err != nil {
		pin.Release()
		return nil, err
	}
	return &pinned{file: file, pin: pin, meta: meta, view: view, state: state, pace: pace}, nil
}

func (p *pinned) close() { p.pin.Release() }

// runs calls fn for each indexed run of the checkpoint with its payload, which is valid during the call.
func (p *pinned) runs(ctx context.Context, fn func(e indexEntry, payload []byte, err error) error) error {
	var buf []byte
	it := p.view.Scan([]byte{indexLetter}, []byte{indexLetter + 1})
	for it.Next() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("walk the store: %w", err)
		}
		e, err := decodeIndexEntry(it.Key(), it.Value())
		if err != nil {
			return err
		}
		size := int(e.run.Pages) * p.file.PageSize()
		if cap(buf) < size {
			buf = make([]byte, size)
		}
		_, payload, err := p.file.ReadRun(e.run, buf[:size])
		if err := fn(e, payload, err); err != nil {
			return err
		}
		if err := p.pace.Did(ctx, size); err != nil {
			return fmt.Errorf("walk the store: %w", err)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("walk the store: %w", err)
	}
	return nil
}

// Digest is a hash of a store's logical content.
type Digest struct {
	// Position that the content stands at.
	Position lsn.Position
	// Content covers queues, subscriptions, acknowledgements, producers and every message that is still wanted. It does
	// not depend on page size or page numbers: two nodes that applied the same log have the same.
	Content [sha256.Size]byte
	// Messages that it covers.
	Messages uint64
}

// Digest writes a checkpoint, reads all of it and hashes its logical content. Online: no transaction waits for it. It
// returns ErrDataLoss if a message cannot be read.
func (s *Store) Digest(ctx context.Context) (Digest, error) {
	if _, err := s.Checkpoint(ctx); err != nil {
		return Digest{}, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return Digest{}, err
	}
	d, err := digestFile(ctx, file, pin, s.o.MemoryBudget/16, s.Pace(ctx, 0))
	if gone := s.stillUses(file); gone != nil {
		return Digest{}, gone
	}
	return d, err
}

// SetBackgroundPercent changes Options.BackgroundPercent for work that begins from now on.
func (s *Store) SetBackgroundPercent(percent int) { s.background.Store(int32(percent)) }

// Pace gives the limits of work in the background that ctx is for: its share of the time (Options.BackgroundPercent)
// and, if not 0, how many bytes per second it may read and write.
func (s *Store) Pace(ctx context.Context, bytesPerSecond int64) *pace.Pacer {
	l := pace.Limits{Percent: int(s.background.Load()), BytesPerSecond: bytesPerSecond}
	if pace.IsFullSpeed(ctx) {
		l.Percent = 0
	}
	return pace.New(l)
}

// pinFile pins the last durable checkpoint for something that takes long. It keeps neither Close nor Install waiting:
// they close the file, reads of it fail from then on, and stillUses says why.
func (s *Store) pinFile() (*page.File, *page.Pin, error) {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if err := s.usable(); err != nil {
		return nil, nil, err
	}
	return s.file, s.file.Pin(), nil
}

// stillUses returns an error if file was closed since pinFile, so that what was read of it means nothing. A file that a
// rewrite replaced stays open as long as it is pinned.
func (s *Store) stillUses(file *page.File) error {
	s.ioMu.RLock()
	defer s.ioMu.RUnlock()
	if s.closed.Load() {
		return ErrClosed
	}
	if s.file != file && errors.Is(file.ReadPages(1, nil), page.ErrClosed) {
		return fmt.Errorf("%w: page.db was replaced while it was read; try again", ErrSnapshotGone)
	}
	return nil
}

// digestFile hashes a pinned checkpoint and releases the pin.
func digestFile(
	ctx context.Context, file *page.File, pin *page.Pin, cacheBytes int64, pace *pace.Pacer,
) (Digest, error) {
	p, err := openPinned(file, pin, cacheBytes, pace)
	if err != nil {
		return Digest{}, err
	}
	defer p.close()
	return p.digest(ctx)
}

func (p *pinned) digest(ctx context.Context) (Digest, error) {
	h := sha256.New()
	for key, value := range p.state.All {
		hashField(h, key)
		hashField(h, value)
	}
	d := Digest{Position: p.meta.Position}
	err := p.runs(ctx, func(e indexEntry, payload []byte, err error) error {
		if err != nil {
			return fmt.Errorf("%w: queue %d, sequences %d to %d: %w", ErrDataLoss, e.queue, e.first, e.last(), err)
		}
		n, err := p.hashRun(h, e, payload)
		d.Messages += n
		return err
	})
	h.Sum(d.Content[:0])
	return d, err
}

// hashRun hashes the messages of a run that some subscription still wants; which dead ones share a page with them
// depends on the page size.
func (p *pinned) hashRun(h hash.Hash, e indexEntry, payload []byte) (n uint64, err error) {
	q := p.state.Queue(e.queue)
	if q == nil {
		return 0, fmt.Errorf("%w: page %d belongs to queue %d, which is not there", ErrDataLoss, e.run.First, e.queue)
	}
	r, err := newRunReader(payload)
	if err != nil {
		return 0, err
	}
	var head [16]byte
	for {
		seq, record, ok, err := r.next()
		if err != nil || !ok {
			return n, err
		}
		if q.Dead(seq) {
			continue
		}
		binary.LittleEndian.PutUint64(head[:], e.queue)
		binary.LittleEndian.PutUint64(head[8:], seq)
		hashField(h, head[:])
		hashField(h, record)
		n++
	}
}

// hashField hashes a field with its length, so that fields cannot run into each other.
func hashField(h hash.Hash, b []byte) {
	var size [8]byte
	binary.LittleEndian.PutUint64(size[:], uint64(len(b)))
	h.Write(size[:])
	h.Write(b)
}
