// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"io"

	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// MetaDump is what a page file says about itself and its last checkpoint.
type MetaDump struct {
	// Path of the file.
	Path string
	// Meta of the last checkpoint.
	Meta page.Meta
	// StoreID in the header.
	StoreID [16]byte
	// Recovery tells what is to be said of the meta slots.
	Recovery page.Recovery
}

// DumpMeta tells what header and meta slots say.
func (c *Checkpoint) DumpMeta() MetaDump {
	return MetaDump{Path: c.file.Path(), Meta: c.meta, StoreID: c.file.StoreID(), Recovery: c.file.Recovery()}
}

// PageDump is what is in a page.
type PageDump struct {
	// Run that begins at the page, and what it holds.
	Run  page.Run
	Kind page.Kind
	// Payload in bytes.
	Payload []byte
	// Queue and Messages, for a run of messages.
	Queue    uint64
	Messages []MessageDump
}

// MessageDump describes a message in a page.
type MessageDump struct {
	// Sequence in its queue.
	Sequence uint64
	// Message itself.
	Message txn.Message
}

// DumpPage reads and verifies the run that begins at a page.
func (c *Checkpoint) DumpPage(no page.No) (PageDump, error) {
	file := c.file
	if no == 0 || uint64(no) > c.meta.Pages {
		return PageDump{}, fmt.Errorf("there is no page %d: the file has pages 1 to %d", no, c.meta.Pages)
	}
	head := make([]byte, file.PageSize())
	if err := file.ReadPages(no, head); err != nil {
		return PageDump{}, fmt.Errorf("read page %d: %w", no, err)
	}
	h, err := page.PeekRun(head)
	if err != nil {
		return PageDump{}, fmt.Errorf("page %d: %w; it may be free, or lie in the middle of a run", no, err)
	}
	if h.Run.First != no {
		return PageDump{}, fmt.Errorf("page %d says that it is page %d: it lies in the middle of a run, or its write "+
			"went astray", no, h.Run.First)
	}
	d := PageDump{Run: h.Run}
	if d.Kind, d.Payload, err = file.ReadRun(h.Run, nil); err != nil {
		return d, fmt.Errorf("page %d: %w", no, err)
	}
	if d.Kind == page.KindPacked || d.Kind == page.KindLarge {
		err = d.decode()
	}
	return d, err
}

// decode reads the messages of a run.
func (d *PageDump) decode() error {
	r, err := index.NewRunReader(d.Payload)
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

// WriteTree writes the keys of the checkpoint's tree, one a line, for those who debug the format.
func (c *Checkpoint) WriteTree(ctx context.Context, w io.Writer) error {
	it := c.view.Scan(nil, nil)
	for it.Next() {
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("walk the tree: %w", err)
		}
		if _, err := fmt.Fprintf(w, "%q\t%x\n", it.Key(), it.Value()); err != nil {
			return fmt.Errorf("write the tree: %w", err)
		}
	}
	if err := it.Err(); err != nil {
		return fmt.Errorf("walk the tree: %w", err)
	}
	return nil
}
