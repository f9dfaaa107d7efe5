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

// DefaultMaxPageSize is the default of ScanOptions.MaxPageSize.
const DefaultMaxPageSize = 32 << 10

// ScanOptions configures a scan.
type ScanOptions struct {
	// MaxPageSize is the maximum page size to recommend, in bytes: a multiple of 2048, at most 1 MiB; 0 selects
	// DefaultMaxPageSize.
	MaxPageSize int
	// Progress, if not nil, is called periodically.
	Progress func(Progress)
}

// ScanResult contains the statistics of a checkpoint and the recommended page size.
type ScanResult struct {
	Time       time.Time    `json:"time"`
	Checkpoint uint64       `json:"checkpoint"`
	Position   lsn.Position `json:"position"`
	// PageSize and FileBytes describe the current file. MaxPageSize is the maximum page size to recommend.
	PageSize    int    `json:"page_size"`
	MaxPageSize int    `json:"max_page_size"`
	FileBytes   uint64 `json:"file_bytes"`
	Pages       uint64 `json:"pages"`
	UsedPages   uint64 `json:"used_pages"`
	// Messages counts the messages that at least one subscription needs. MessageBytes is the size of their records,
	// which contain a short header, the attributes, the properties and the body.
	Messages     uint64 `json:"messages"`
	MessageBytes uint64 `json:"message_bytes"`
	// DeadMessages counts messages that are stored but not needed. A rewrite omits them.
	DeadMessages uint64       `json:"dead_messages"`
	DeadBytes    uint64       `json:"dead_bytes"`
	Histogram    []SizeBucket `json:"histogram"`
	// Candidates are the results of rewrites with different page sizes, including the current one, in ascending order.
	Candidates  []Candidate `json:"candidates"`
	Recommended int         `json:"recommended"`
	Note        string      `json:"note"`
	// GainBytes is the reduction of page.db by a rewrite with the recommended size: a resize or, for the current size, a
	// compact.
	GainBytes int64 `json:"gain_bytes"`
	// DamagedMessages counts messages that are needed but unreadable. Problems describes the first 1000 corrupt extents
	// and other problems. If all needed messages of an extent are unreadable, their sizes are estimated as the mean size
	// in the extent.
	DamagedMessages uint64   `json:"damaged_messages"`
	Problems        []string `json:"problems,omitempty"`
}

// SizeBucket counts messages of similar size.
type SizeBucket struct {
	// FromBytes and ToBytes are inclusive.
	FromBytes int    `json:"from_bytes"`
	ToBytes   int    `json:"to_bytes"`
	Messages  uint64 `json:"messages"`
	Bytes     uint64 `json:"bytes"`
}

// Candidate is a page size and the result of a rewrite with it. The result is exact unless messages are unreadable.
type Candidate struct {
	PageSize  int    `json:"page_size"`
	FileBytes uint64 `json:"file_bytes"`
	Pages     uint64 `json:"pages"`
	Extents   uint64 `json:"runs"` // number of message extents; each is read with one I/O
	// MessagePages, IndexPages (the tree) and OtherPages (the bitmap of used pages) are the parts of Pages.
	MessagePages uint64 `json:"message_pages"`
	IndexPages   uint64 `json:"index_pages"`
	OtherPages   uint64 `json:"other_pages"`
	// PaddingBytes counts unused bytes at the ends of message extents. WasteBytes counts all bytes of the file except
	// messages.
	PaddingBytes uint64 `json:"padding_bytes"`
	WasteBytes   uint64 `json:"waste_bytes"`
}

// Scan reads all messages to find the optimal page size. Corruption of messages and of the message index is part of
// the result. An error means that the scan could not be completed.
func (c *Checkpoint) Scan(ctx context.Context, o ScanOptions) (ScanResult, error) {
	if o.MaxPageSize == 0 {
		o.MaxPageSize = DefaultMaxPageSize
	}
	if err := page.CheckPageSize(o.MaxPageSize); err != nil {
		return ScanResult{}, fmt.Errorf("scan: maximum page size: %w", err)
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
