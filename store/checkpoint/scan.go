// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"math/bits"
	"slices"
	"time"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
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
	// DeadMessages and DeadBytes are stored, but no subscription wants them: a rewrite leaves them out.
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

// Scan reads all messages of the checkpoint to find the page size that suits them. Damage is part of the result; the
// error says that the scan could not go on.
func (c *Checkpoint) Scan(ctx context.Context, o ScanOptions) (ScanResult, error) {
	if o.MaxPageSize == 0 {
		o.MaxPageSize = DefaultMaxPageSize
	}
	if err := page.CheckPageSize(o.MaxPageSize); err != nil {
		return ScanResult{}, fmt.Errorf("scan: largest page size: %w", err)
	}
	live, err := c.Live()
	if err != nil {
		return ScanResult{}, fmt.Errorf("scan: %w", err)
	}
	m := NewMeter(o.Progress)
	m.Expect(live.state.Messages(), live.state.Bytes())
	m.Phase("scan", c.meta.UsedPages)
	v := survey{c: c, live: live, meter: m, tolerant: true}
	if err := v.run(ctx, candidateSizes(c.meta.PageSize, o.MaxPageSize)); err != nil {
		return ScanResult{}, fmt.Errorf("scan: %w", err)
	}
	m.Phase("done", c.meta.UsedPages)
	size, err := c.file.SizeBytes()
	if err != nil {
		return ScanResult{}, fmt.Errorf("scan: %w", err)
	}
	r := ScanResult{
		Time: time.Now().UTC(), Checkpoint: c.meta.Checkpoint, Position: c.meta.Position,
		PageSize: c.meta.PageSize, MaxPageSize: o.MaxPageSize, FileBytes: size,
		Pages: c.meta.Pages, UsedPages: c.meta.UsedPages,
		Messages: v.found.Messages, MessageBytes: v.found.MessageBytes,
		DeadMessages: v.found.DeadMessages, DeadBytes: v.found.DeadBytes,
		Histogram: v.histogram.buckets(), Candidates: v.found.Candidates,
		DamagedMessages: v.damagedMessages, Problems: v.problems,
	}
	r.recommend()
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
