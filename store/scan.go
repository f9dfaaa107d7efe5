package store

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/pace"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// DefaultMaxPageSize bounds what a scan recommends when nothing else is asked for, in bytes.
const DefaultMaxPageSize = 32 << 10

// ScanOptions say what to look for.
type ScanOptions struct {
	// MaxPageSize bounds the recommendation, in bytes: a multiple of 2048, at most 1 MiB; 0 stands for
	// DefaultMaxPageSize.
	MaxPageSize int
	// Progress, if not nil, is called now and then from the calling goroutine.
	Progress func(Progress)
}

// ScanResult is what a scan found in a checkpoint, and what page size it recommends.
type ScanResult struct {
	// Time of the scan, and the checkpoint that was looked at.
	Time       time.Time    `json:"time"`
	Checkpoint uint64       `json:"checkpoint"`
	Position   lsn.Position `json:"position"`
	// PageSize and FileBytes of page.db as it is, MaxPageSize what the recommendation was bounded by.
	PageSize    int    `json:"page_size"`
	MaxPageSize int    `json:"max_page_size"`
	FileBytes   uint64 `json:"file_bytes"`
	// Pages that the file has room for, and how many are in use.
	Pages     uint64 `json:"pages"`
	UsedPages uint64 `json:"used_pages"`
	// Messages that some subscription wants, and the bytes that they take: body, properties and a few bytes of header.
	Messages     uint64 `json:"messages"`
	MessageBytes uint64 `json:"message_bytes"`
	// DeadMessages and DeadBytes are stored, but nobody wants them: a rewrite leaves them out.
	DeadMessages uint64 `json:"dead_messages"`
	DeadBytes    uint64 `json:"dead_bytes"`
	// Histogram of the sizes of the wanted messages: the buckets that are not empty, by rising size.
	Histogram []SizeBucket `json:"histogram"`
	// Candidates by rising page size: how large a rewrite would make the file. The present page size is among them.
	Candidates []Candidate `json:"candidates"`
	// Recommended page size, and why, in a sentence.
	Recommended int    `json:"recommended"`
	Note        string `json:"note"`
	// GainBytes is by how much a rewrite with the recommended size makes page.db smaller: a resize, or, when it is the
	// present size, a compact.
	GainBytes int64 `json:"gain_bytes"`
	// DamagedMessages are wanted and cannot be read. They are counted with the mean size of their page. Problems say
	// where.
	DamagedMessages uint64   `json:"damaged_messages"`
	Problems        []string `json:"problems,omitempty"`
}

// SizeBucket counts messages of similar size.
type SizeBucket struct {
	// FromBytes and ToBytes bound the size, both included.
	FromBytes int `json:"from_bytes"`
	ToBytes   int `json:"to_bytes"`
	// Messages in the bucket, and the sum of their sizes.
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Candidate is a page size, and the file that a rewrite with it would give: exactly, not an estimate.
type Candidate struct {
	// PageSize in bytes.
	PageSize int `json:"page_size"`
	// FileBytes is the size of the file, Pages how many pages it has.
	FileBytes uint64 `json:"file_bytes"`
	Pages     uint64 `json:"pages"`
	// Runs of messages; each is read with one I/O.
	Runs uint64 `json:"runs"`
	// MessagePages, IndexPages (the tree) and OtherPages (the map of used pages) add up to Pages.
	MessagePages uint64 `json:"message_pages"`
	IndexPages   uint64 `json:"index_pages"`
	OtherPages   uint64 `json:"other_pages"`
	// PaddingBytes are unused at the ends of message pages; WasteBytes is all that is not messages.
	PaddingBytes uint64 `json:"padding_bytes"`
	WasteBytes   uint64 `json:"waste_bytes"`
}

// Scan writes a checkpoint and reads all of its messages to find the page size that suits them. Online: no transaction
// waits for it. Damage is part of the result; the error says that the scan could not go on.
func (s *Store) Scan(ctx context.Context, o ScanOptions) (ScanResult, error) {
	if err := s.checkpointIfRoom(ctx); err != nil {
		return ScanResult{}, err
	}
	file, pin, err := s.pinFile()
	if err != nil {
		return ScanResult{}, err
	}
	r, err := scanFile(ctx, file, pin, s.o.MemoryBudget/16, s.Pace(ctx, 0), o)
	if gone := s.stillUses(file); gone != nil {
		return ScanResult{}, gone
	}
	if err != nil {
		return ScanResult{}, err
	}
	err = r.measure(s.o.FS, s.o.Dir)
	return r, err
}

// checkpointIfRoom writes a checkpoint, and is content with the last one on a full disk: what is to be done may be the
// way out.
func (s *Store) checkpointIfRoom(ctx context.Context) error {
	_, err := s.Checkpoint(ctx)
	if errors.Is(err, page.ErrFull) || errors.Is(err, syscall.ENOSPC) {
		return nil
	}
	return err
}

// ScanDir scans the page file of a node that is not running. Read-only.
func ScanDir(ctx context.Context, fsys vfs.FS, dir string, o ScanOptions) (_ ScanResult, err error) {
	file, done, err := openOffline(fsys, dir)
	if err != nil {
		return ScanResult{}, err
	}
	defer func() {
		if cerr := done(); err == nil {
			err = cerr
		}
	}()
	r, err := scanFile(ctx, file, file.Pin(), offlineCacheBytes, nil, o)
	if err != nil {
		return ScanResult{}, err
	}
	err = r.measure(fsys, dir)
	return r, err
}

// measure fills in how large page.db is, and with that the recommendation.
func (r *ScanResult) measure(fsys vfs.FS, dir string) error {
	info, err := fsys.Stat(filepath.Join(dir, pageFileName))
	if err != nil {
		return fmt.Errorf("look at page.db: %w", err)
	}
	r.FileBytes = uint64(info.SizeBytes)
	r.recommend()
	return nil
}

// scanFile scans a pinned checkpoint and releases the pin.
func scanFile(
	ctx context.Context, file *page.File, pin *page.Pin, cacheBytes int64, pace *pace.Pacer, o ScanOptions,
) (ScanResult, error) {
	if o.MaxPageSize == 0 {
		o.MaxPageSize = DefaultMaxPageSize
	}
	if err := page.CheckPageSize(o.MaxPageSize); err != nil {
		pin.Release()
		return ScanResult{}, fmt.Errorf("scan: largest page size: %w", err)
	}
	p, err := openPinned(file, pin, cacheBytes, pace)
	if err != nil {
		return ScanResult{}, fmt.Errorf("scan: %w", err)
	}
	defer p.close()
	v := survey{
		file: file, view: p.view, meta: p.meta, live: liveness{state: p.state, lock: noLock{}},
		meter: meter{report: o.Progress}, tolerant: true, pace: pace,
	}
	v.meter.now.TotalMessages, v.meter.now.TotalBytes = p.state.Messages(), p.state.Bytes()
	for q := range p.state.Queues {
		v.queues = append(v.queues, q.ID())
	}
	slices.Sort(v.queues)
	v.meter.phase("scan", p.meta.UsedPages)
	sizes := candidateSizes(p.meta.PageSize, o.MaxPageSize)
	candidates, err := v.run(ctx, sizes)
	if err != nil {
		return ScanResult{}, fmt.Errorf("scan: %w", err)
	}
	v.meter.phase("done", p.meta.UsedPages)
	r := v.result
	r.Time, r.Checkpoint, r.Position = time.Now().UTC(), p.meta.Checkpoint, p.meta.Position
	r.PageSize, r.MaxPageSize, r.Pages, r.UsedPages = p.meta.PageSize, o.MaxPageSize, p.meta.Pages, p.meta.UsedPages
	r.Candidates, r.Histogram = candidates, v.histogram.buckets()
	return r, nil
}

// candidateSizes are the page sizes worth a look: every one there is up to 32 KiB, then in steps of an eighth.
func candidateSizes(current, limit int) []int {
	var sizes []int
	for n := page.MinPageBytes; n <= limit; n += max(page.MinPageBytes, n/8/page.MinPageBytes*page.MinPageBytes) {
		sizes = append(sizes, n)
	}
	sizes = append(sizes, limit/page.MinPageBytes*page.MinPageBytes, current)
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// liveness tells which messages of a run somebody wants.
type liveness struct {
	state *queue.State
	lock  sync.Locker // held while the state is looked at
}

type noLock struct{}

func (noLock) Lock()   {}
func (noLock) Unlock() {}

// aliveSet has a bit for each sequence of a run that somebody wants.
type aliveSet struct {
	first uint64
	bits  [queue.MaxRunSpan / 64]uint64
	n     uint64
}

func (a *aliveSet) has(seq uint64) bool {
	i := seq - a.first
	return i < queue.MaxRunSpan && a.bits[i/64]>>(i%64)&1 == 1
}

// of fills in a for a run. It returns ErrDataLoss if the index has what cannot be.
func (l *liveness) of(e *indexEntry, a *aliveSet) error {
	if e.span > queue.MaxRunSpan {
		return fmt.Errorf("%w: queue %d, sequence %d: a run of %d sequences", ErrDataLoss, e.queue, e.first, e.span)
	}
	clear(a.bits[:(e.span+63)/64])
	a.first, a.n = e.first, 0
	l.lock.Lock()
	defer l.lock.Unlock()
	q := l.state.Queue(e.queue)
	if q == nil {
		return fmt.Errorf("%w: page %d belongs to queue %d, which is not there", ErrDataLoss, e.run.First, e.queue)
	}
	end := min(e.first+e.span, q.NextSequence())
	for seq := q.NextAlive(e.first); seq < end; seq = q.NextAlive(seq + 1) {
		a.bits[(seq-e.first)/64] |= 1 << ((seq - e.first) % 64)
		a.n++
	}
	return nil
}

// survey reads the messages of a checkpoint and simulates rewrites with several page sizes at once.
type survey struct {
	file      *page.File
	view      *tree.View
	meta      page.Meta
	live      liveness
	meter     meter
	tolerant  bool     // of damage, which is counted; otherwise it ends the survey
	queues    []uint64 // for a tolerant one
	sims      []*simulation
	histogram histogram
	result    ScanResult // only what is counted
	alive     aliveSet
	pace      *pace.Pacer
	mu        sync.Mutex // guards result.Problems
}

// run returns a candidate for each page size.
func (v *survey) run(ctx context.Context, sizes []int) ([]Candidate, error) {
	for _, size := range sizes {
		v.sims = append(v.sims, newSimulation(size, v.meta.Checkpoint+1))
	}
	if err := v.feed(ctx, nil, []byte{indexLetter}); err != nil {
		return nil, err
	}
	w := walk{file: v.file, view: v.view, pace: v.pace}
	if v.tolerant {
		w.queues = v.queues
		w.broken = func(id uint64, err error) { v.problem("index of queue %d: %v", id, err) }
	} else {
		w.skip = func(e *indexEntry) bool { _, ok := e.recordSize(); return ok }
	}
	if err := w.each(ctx, v.count); err != nil {
		return nil, err
	}
	for _, s := range v.sims {
		if err := s.endRun(); err != nil {
			return nil, err
		}
	}
	if err := v.feed(ctx, []byte{indexLetter + 1}, nil); err != nil {
		return nil, err
	}
	candidates := make([]Candidate, 0, len(v.sims))
	for _, s := range v.sims {
		c, err := s.candidate()
		if err != nil {
			return nil, err
		}
		candidates = append(candidates, c)
	}
	return candidates, nil
}

// feed puts the part of the tree that is not the index into the simulated ones.
func (v *survey) feed(ctx context.Context, from, to []byte) error {
	return copyEntries(ctx, v.view, from, to, func(key, value []byte) error {
		for _, s := range v.sims {
			if err := s.index.bulk.Put(key, value); err != nil {
				return err
			}
		}
		return v.pace.Did(ctx, len(key)+len(value))
	})
}

// copyEntries calls put for each entry of a range of the tree.
func copyEntries(ctx context.Context, view *tree.View, from, to []byte, put func(key, value []byte) error) error {
	it := view.Scan(from, to)
	for it.Next() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("copy the tree: %w", err)
		}
		if err := put(it.Key(), it.Value()); err != nil {
			return fmt.Errorf("copy the tree: %w", err)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("copy the tree: %w", err)
	}
	return nil
}

func (v *survey) problem(format string, args ...any) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if len(v.result.Problems) < maxProblems {
		v.result.Problems = append(v.result.Problems, fmt.Sprintf(format, args...))
	}
}

// count counts the messages of one run.
func (v *survey) count(e *indexEntry, payload []byte, err error) error {
	if lerr := v.live.of(e, &v.alive); lerr != nil {
		if !v.tolerant {
			return lerr
		}
		v.problem("%v", lerr)
		return nil
	}
	before, found := v.result.MessageBytes, uint64(0)
	switch size, single := e.recordSize(); {
	case err == nil && payload == nil && single:
		err = v.message(e, e.first, size)
	case err == nil:
		err = recordSizes(payload, func(seq uint64, size int) error {
			if v.alive.has(seq) {
				found++
			}
			return v.message(e, seq, size)
		})
		if err == nil && found != v.alive.n {
			err = fmt.Errorf("%w: %d messages are wanted and %d are there", ErrDataLoss, v.alive.n, found)
		}
	}
	if err != nil {
		if err := v.damaged(e, err, found); err != nil {
			return err
		}
	}
	v.meter.did(uint64(e.run.Pages), v.alive.n, v.result.MessageBytes-before)
	return nil
}

// damaged notes a run that cannot be read, and counts its messages, if none was found, by what the index says of them.
func (v *survey) damaged(e *indexEntry, err error, found uint64) error {
	err = fmt.Errorf("%w: queue %d, sequences %d to %d: %w", ErrDataLoss, e.queue, e.first, e.last(), err)
	if !v.tolerant {
		return err
	}
	v.problem("%v", err)
	v.result.DamagedMessages += v.alive.n - found
	for i := range e.span {
		if found > 0 {
			break
		}
		if seq := e.first + i; v.alive.has(seq) {
			for _, s := range v.sims {
				if err := s.message(e.queue, seq, int(e.bytes/e.count)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// message counts one stored message.
func (v *survey) message(e *indexEntry, seq uint64, size int) error {
	if !v.alive.has(seq) {
		v.result.DeadMessages++
		v.result.DeadBytes += uint64(size)
		return nil
	}
	v.result.Messages++
	v.result.MessageBytes += uint64(size)
	v.histogram.add(size)
	for _, s := range v.sims {
		if err := s.message(e.queue, seq, size); err != nil {
			return err
		}
	}
	return nil
}

// histogram counts sizes in two buckets for each power of two: 64–95, 96–127, 128–191, …
type histogram [2 * 64]SizeBucket

func (h *histogram) add(size int) {
	n := uint64(max(size, 2))
	k := bits.Len64(n) - 1
	i := 2 * k
	if n >= 3<<(k-1) {
		i++
	}
	h[i].Messages++
	h[i].Bytes += uint64(size)
}

func (h *histogram) buckets() []SizeBucket {
	out := []SizeBucket{}
	from := func(i int) int {
		if i%2 == 1 {
			return 3 << (i/2 - 1)
		}
		return 1 << (i / 2)
	}
	for i := range h {
		if b := h[i]; b.Messages > 0 {
			b.FromBytes, b.ToBytes = from(i), from(i+1)-1
			out = append(out, b)
		}
	}
	return out
}

// recommend picks the page size that makes the smallest file among those that are allowed and cost nothing: no more
// space than a rewrite with the present size and than page.db has now, and no more reads. The limit bounds what a
// resize goes to; a present size above it is kept rather than given up at a loss. A gain of less than a hundredth is
// none: a resize that brings nothing is not worth its I/O.
func (r *ScanResult) recommend() {
	current := r.candidate(r.PageSize)
	if r.Messages+r.DamagedMessages == 0 {
		r.recommendEmpty(current)
		return
	}
	var best, smallest *Candidate
	for i := range r.Candidates {
		c := &r.Candidates[i]
		if c.PageSize > r.MaxPageSize || c == current {
			continue
		}
		if smallest == nil || c.FileBytes < smallest.FileBytes {
			smallest = c
		}
		if c.Runs <= current.Runs+current.Runs/100 && (best == nil || c.FileBytes < best.FileBytes) {
			best = c
		}
	}
	keep := best == nil || best.FileBytes+current.FileBytes/100 >= current.FileBytes || best.FileBytes > r.FileBytes
	switch {
	case !keep:
		r.choose(best, fmt.Sprintf("a resize to %d makes page.db %d bytes, with the present page size a compact "+
			"makes it %d", best.PageSize,
			best.FileBytes, current.FileBytes))
	case r.PageSize > r.MaxPageSize:
		r.choose(current, fmt.Sprintf("the present page size is kept, although it is above the limit of %d: %s; "+
			"lockstep store resize --page-size does it all the same", r.MaxPageSize, current.against(smallest)))
	case smallest != nil && smallest.FileBytes+current.FileBytes/100 < current.FileBytes:
		r.choose(current, "the present page size is kept: "+current.against(smallest))
	default:
		r.choose(current, "nothing is gained by another page size")
	}
	if c := r.candidate(r.Recommended); c == current && r.GainBytes > int64(r.FileBytes/100) {
		r.Note += fmt.Sprintf("; a compact makes page.db %d bytes instead of %d", c.FileBytes, r.FileBytes)
	}
}

// recommendEmpty is recommend for a store without messages: another page size costs nothing, and brings nothing but
// what the limit asks for.
func (r *ScanResult) recommendEmpty(current *Candidate) {
	if r.PageSize <= r.MaxPageSize {
		r.choose(current, "no messages are stored: the present page size is kept")
		return
	}
	largest := current
	for i := range r.Candidates {
		if c := &r.Candidates[i]; c.PageSize <= r.MaxPageSize {
			largest = c
		}
	}
	r.choose(largest, "no messages are stored, and the present page size is above the limit")
}

// candidate finds one by its page size.
func (r *ScanResult) candidate(pageSize int) *Candidate {
	i := slices.IndexFunc(r.Candidates, func(c Candidate) bool { return c.PageSize == pageSize })
	return &r.Candidates[i]
}

func (r *ScanResult) choose(c *Candidate, why string) {
	r.Recommended, r.Note = c.PageSize, why
	r.GainBytes = int64(r.FileBytes) - int64(c.FileBytes)
}

// against says what another page size would cost.
func (c *Candidate) against(other *Candidate) string {
	return fmt.Sprintf("the smallest page.db that is allowed, with %d, has %d bytes and is read with %d reads, and "+
		"with %d it has %d bytes and %d reads",
		other.PageSize, other.FileBytes, other.Runs, c.PageSize, c.FileBytes, c.Runs)
}
