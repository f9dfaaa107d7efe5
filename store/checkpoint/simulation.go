// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/tree"
)

// simulation computes the size of a rewritten page file. It uses the packing, tree and bitmap of a rewrite, but writes
// nothing.
type simulation struct {
	index.Packing
	pageSize int
	room     int
	born     uint64
	index    index.Writer
	pages    uint64
	extents  uint64
	msgPages uint64
	nodes    uint64 // pages of tree nodes
	payload  uint64 // bytes in message pages, including extent headers
	records  uint64 // bytes of messages only
}

func newSimulation(pageSize int, born uint64) *simulation {
	s := &simulation{pageSize: pageSize, room: index.Room(pageSize), born: born}
	s.index = index.Writer{Bulk: tree.NewBulk(s, tree.Options{})}
	return s
}

func (s *simulation) PageSize() int { return s.pageSize }

func (s *simulation) WriteNode(payloadBytes int, _ func([]byte) []byte) (page.Extent, error) {
	ext := s.take(payloadBytes)
	s.nodes += uint64(ext.Pages)
	return ext, nil
}

func (s *simulation) take(payloadBytes int) page.Extent {
	ext := page.Extent{First: page.No(s.pages + 1), Pages: page.PagesFor(s.pageSize, payloadBytes), Born: s.born}
	s.pages += uint64(ext.Pages)
	return ext
}

func (s *simulation) message(queueID, seq uint64, size int) error {
	if !s.Takes(queueID, seq, size, s.room) {
		if err := s.endExtent(); err != nil {
			return err
		}
		s.Begin(queueID, seq)
	}
	s.Add(seq, size)
	s.records += uint64(size)
	return nil
}

func (s *simulation) endExtent() error {
	if s.Count == 0 {
		return nil
	}
	ext := s.take(s.Size)
	s.extents++
	s.msgPages += uint64(ext.Pages)
	s.payload += uint64(s.Size) + page.ExtentHeaderBytes
	e := s.Entry(ext)
	s.Count = 0
	return s.index.Put(e)
}

func (s *simulation) candidate() (Candidate, error) {
	if _, err := s.index.Bulk.Finish(); err != nil {
		return Candidate{}, err
	}
	total, bitmap, fileBytes := page.BuiltSize(s.pageSize, s.pages)
	c := Candidate{
		PageSize: s.pageSize, FileBytes: uint64(fileBytes), Pages: total, Extents: s.extents,
		MessagePages: s.msgPages, IndexPages: s.nodes, OtherPages: bitmap,
	}
	c.PaddingBytes = s.msgPages*uint64(s.pageSize) - s.payload
	c.WasteBytes = c.FileBytes - s.records
	return c, nil
}
