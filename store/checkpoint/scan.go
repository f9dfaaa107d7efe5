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

// DefaultMaxPageSize is the default limit of the recommended page size, in bytes.
const DefaultMaxPageSize = 32 << 10

// ScanOptions are the options of a scan.
type ScanOptions struct {
	// MaxPageSize limits the recommendation, in bytes: a multiple of 2048, at most 1 MiB; 0 means DefaultMaxPageSize.
	MaxPageSize int
	// Progress, if not nil, is called periodically from the calling goroutine.
	Progress func(Progress)
}

// ScanResult contains the statistics of a checkpoint and the recommended page size.
type ScanResult struct {
	// Time is the time of the scan; Checkpoint and Position identify the checkpoint.
	Time       time.Time    `json:"time"`
	Checkpoint uint64       `json:"checkpoint"`
	Position   lsn.Position `json:"position"`
	// PageSize and FileBytes describe the current page.db. MaxPageSize is the limit of the recommendation.
	PageSize    int    `json:"page_size"`
	MaxPageSize int    `json:"max_page_size"`
	FileBytes   uint64 `json:"file_bytes"`
	// Pages is the number of pages of the file, UsedPages the number in use.
	Pages     uint64 `json:"pages"`
	UsedPages uint64 `json:"used_pages"`
	// Messages is the number of messages that a subscription needs, MessageBytes their size: body, properties and a
	// few bytes of header.
	Messages     uint64 `json:"messages"`
	MessageBytes uint64 `json:"message_bytes"`
	// DeadMessages and DeadBytes are stored but not needed by a subscription: a rewrite omits them.
	DeadMessages uint64 `json:"dead_messages"`
	DeadBytes    uint64 `json:"dead_bytes"`
	// Histogram of the sizes of needed messages: the non-empty buckets, by rising size.
	Histogram []SizeBucket `json:"histogram"`
	// Candidates are the file sizes after a rewrite, by rising page size. The current page size is included.
	Candidates []Candidate `json:"candidates"`
	// Recommended is the recommended page size, Note the reason, as a sentence.
	Recommended int    `json:"recommended"`
	Note        string `json:"note"`
	// GainBytes is the reduction of page.db by a rewrite with the recommended size: a resize or, for the current size,
	// a compact.
	GainBytes int64 `json:"gain_bytes"`
	// DamagedMessages is the number of needed messages that cannot be read. They are counted with the mean size of
	// their page. Problems contains their positions.
	DamagedMessages uint64   `json:"damaged_messages"`
	Problems        []string `json:"problems,omitempty"`
}

// SizeBucket counts messages of similar size.
type SizeBucket struct {
	// FromBytes and ToBytes are the bounds of the size, both inclusive.
	FromBytes int `json:"from_bytes"`
	ToBytes   int `json:"to_bytes"`
	// Messages is the number of messages in the bucket, Bytes the sum of their sizes.
	Messages uint64 `json:"messages"`
	Bytes    uint64 `json:"bytes"`
}

// Candidate is a page size and the exact result of a rewrite with it.
type Candidate struct {
	// PageSize in bytes.
	PageSize int `json:"page_size"`
	// FileBytes is the size of the file, Pages its number of pages.
	FileBytes uint64 `json:"file_bytes"`
	Pages     uint64 `json:"pages"`
	// Extents is the number of message extents; each is read with one I/O.
	Extents uint64 `json:"runs"`
	// MessagePages, IndexPages (the tree) and OtherPages (the bitmap of used pages) add up to Pages.
	MessagePages uint64 `json:"message_pages"`
	IndexPages   uint64 `json:"index_pages"`
	OtherPages   uint64 `json:"other_pages"`
	// PaddingBytes are unused bytes at the ends of message extents. WasteBytes are all bytes other than messages.
	PaddingBytes uint64 `json:"padding_bytes"`
	WasteBytes   uint64 `json:"waste_bytes"`
}

// Scan reads all messages of the checkpoint to find the optimal page size. Corruption is part of the result; the error
// means that the scan could not be completed.
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
	m.Expect(c.state.Messages(), c.state.Bytes())
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

// candidateSizes returns the page sizes to simulate: every size up to 32 KiB, then in steps of an eighth.
func candidateSizes(current, limit int) []int {
	var sizes []int
	for n := page.MinPageBytes; n <= limit; n += max(page.MinPageBytes, n/8/page.MinPageBytes*page.MinPageBytes) {
		sizes = append(sizes, n)
	}
	sizes = append(sizes, limit/page.MinPageBytes*page.MinPageBytes, current)
	slices.Sort(sizes)
	return slices.Compact(sizes)
}

// histogram counts sizes in two buckets per power of two: 64–95, 96–127, 128–191, …
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
