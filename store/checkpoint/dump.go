// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"fmt"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// MetaDump is the metadata of a page file and its last checkpoint.
type MetaDump struct {
	Path     string
	Meta     page.Meta
	StoreID  [16]byte
	Recovery page.Recovery
}

// DumpMeta returns the metadata of the page file and the checkpoint.
func (c *Checkpoint) DumpMeta() MetaDump {
	return MetaDump{Path: c.file.Path(), Meta: c.meta, StoreID: c.file.StoreID(), Recovery: c.file.Recovery()}
}

// PageDump describes the extent that begins at a page.
type PageDump struct {
	// Extent and Kind are from the header of the extent. Payload is the raw content. Queue and Messages are its decoded
	// form, and are set only for an extent of messages.
	Extent   page.Extent
	Kind     page.Kind
	Payload  []byte
	Queue    uint64
	Messages []MessageDump
}

// MessageDump describes a message in an extent.
type MessageDump struct {
	Sequence uint64
	Message  txn.Message
}

// DumpPage reads and verifies the extent that begins at a page.
func (c *Checkpoint) DumpPage(no page.No) (PageDump, error) {
	file := c.file
	if no == 0 || uint64(no) > c.meta.Pages {
		return PageDump{}, fmt.Errorf("page %d not found: the file has pages 1 to %d", no, c.meta.Pages)
	}
	head := make([]byte, file.PageSize())
	if err := file.ReadPages(no, head); err != nil {
		return PageDump{}, fmt.Errorf("read page %d: %w", no, err)
	}
	h, err := page.PeekExtent(head)
	if err != nil {
		return PageDump{}, fmt.Errorf("page %d: %w; it may be free, or inside an extent", no, err)
	}
	if h.Extent.First != no {
		return PageDump{}, fmt.Errorf("page %d has page number %d: it is inside an extent, or its write "+
			"was misdirected", no, h.Extent.First)
	}
	d := PageDump{Extent: h.Extent}
	if d.Kind, d.Payload, err = file.ReadExtent(h.Extent, nil); err != nil {
		return d, fmt.Errorf("page %d: %w", no, err)
	}
	if d.Kind == page.KindPacked || d.Kind == page.KindLarge {
		err = d.decode()
	}
	return d, err
}

func (d *PageDump) decode() error {
	r, err := index.NewExtentReader(d.Payload)
	if err != nil {
		return err
	}
	d.Queue = r.Queue
	for {
		seq, record, ok, err := r.Next()
		if err != nil || !ok {
			return err
		}
		m, err := txn.DecodeMessage(record)
		if err != nil {
			return fmt.Errorf("%w: sequence %d: %w", index.ErrDataLoss, seq, err)
		}
		d.Messages = append(d.Messages, MessageDump{Sequence: seq, Message: m})
	}
}
