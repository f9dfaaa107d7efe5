// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// ReceiveOptions configures Receive.
type ReceiveOptions struct {
	FS vfs.FS // by default the operating system's filesystem
	// Name identifies the snapshot in the identity of the new store. It must not be empty.
	Name   string
	Header store.SnapshotHeader
	// Next returns the next piece of the page file, as store.Snapshot.ReadNext does on the sending node. The pieces are in
	// ascending order of offset; Next returns io.EOF after the last one. The data must be valid until the next call.
	Next func() (offset uint64, data []byte, err error)
	// Lineage is the ID of the group of sites to which the snapshot must belong.
	Lineage uuid.UUID
	// Detached, if set, is the ID of a new group of sites. The store then becomes the primary of that group instead of a
	// replica. In that case Lineage is uuid.Nil if the snapshot is from a pair without sites.
	Detached     uuid.UUID
	SegmentBytes int64 // segment size of the new log; 0 selects the default
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
}

// Received is the result of Receive.
type Received struct {
	NodeID, StoreID uuid.UUID // of the new store
	Messages        uint64    // number of messages in the store
	// NeededBytes and AvailableBytes are amounts of disk space.
	NeededBytes, AvailableBytes uint64
}

// Receive creates a data directory from a snapshot of a primary site. The new store is a replica of that site and
// continues after the position of the snapshot. With ReceiveOptions.Detached, the store is independent of the source,
// which can then be a primary, a replica or a pair without sites. When Receive returns nil, everything is durable and
// the whole page file has been checked.
//
// The requirements for the directory, its new identity, and its state after an error are those of Restore.
//
// Errors include datadir.ErrNotEmpty, ErrCorrupt (a piece is missing or does not match the header, the content is
// inconsistent, or it has another lineage), page.ErrCorrupt, page.ErrNewerVersion, ErrNoSites, ErrNoSpace, the error
// of Next, and the error of ctx.
func Receive(ctx context.Context, target string, o ReceiveOptions) (Received, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	var res Received
	if err := datadir.CheckRestore(o.FS, target); err != nil {
		return res, err
	}
	var err error
	res.NeededBytes = neededBytes(o.Header.DataBytes, 0, o.SegmentBytes)
	if res.AvailableBytes, err = checkFree(o.FS, target, res.NeededBytes); err != nil {
		return res, err
	}
	err = fillDir(o.FS, target, o.Name, func(t *datadir.RestoreTarget) error {
		res.NodeID, res.StoreID = t.NodeID(), t.StoreID()
		if err := o.writePages(ctx, target, t.StoreID()); err != nil {
			return err
		}
		found, err := checkPages(ctx, o.FS, target, o.Progress)
		if err != nil {
			return err
		}
		if n := len(found.report.Problems); n > 0 {
			return fmt.Errorf("%w: snapshot has %d problems, first: %s", ErrCorrupt, n, found.report.Problems[0])
		}
		if site := found.state.Site(); site.Lineage != o.Lineage {
			return fmt.Errorf("%w: snapshot belongs to lineage %s, not %s", ErrCorrupt, site.Lineage, o.Lineage)
		}
		res.Messages = found.report.Messages
		log, err := createLog(o.FS, target, t.StoreID(), o.SegmentBytes, o.Header.Position)
		if err != nil {
			return err
		}
		w := logWriter{log: log, end: o.Header.Position}
		if o.Detached != uuid.Nil {
			err = detach(o.FS, target, found.state, o.Detached)
		} else {
			err = w.follow(found.state)
		}
		if err == nil {
			err = w.finish()
		}
		return errors.Join(err, log.Close())
	})
	return res, err
}

func (o *ReceiveOptions) writePages(ctx context.Context, dir string, id uuid.UUID) error {
	var imp *page.Importer
	var next, bytes uint64
	for {
		if err := ctx.Err(); err != nil {
			return o.failed(imp, fmt.Errorf("receive snapshot: %w", err))
		}
		offset, data, err := o.Next()
		switch {
		case errors.Is(err, io.EOF):
			return o.finish(imp, bytes)
		case err != nil:
			return o.failed(imp, err)
		case offset < next || imp == nil && offset != 0:
			return o.failed(imp, fmt.Errorf("%w: piece at offset %d after one that ended at %d", ErrCorrupt, offset, next))
		case imp == nil:
			imp, err = o.begin(dir, id, data)
		default:
			err = imp.WriteAt(int64(offset), data)
		}
		if err != nil {
			return o.failed(imp, fmt.Errorf("receive snapshot: %w", err))
		}
		next, bytes = offset+uint64(len(data)), bytes+uint64(len(data))
		reportBytes(o.Progress, "copy", bytes, o.Header.DataBytes)
	}
}

func (o *ReceiveOptions) begin(dir string, id uuid.UUID, meta []byte) (*page.Importer, error) {
	imp, err := page.NewImporter(o.FS, datadir.PageFile(dir), page.ImportOptions{
		Meta: meta, PageSize: o.Header.PageSize, FileBytes: int64(o.Header.FileBytes), StoreID: id,
	})
	if err != nil {
		return nil, err
	}
	if at := imp.Meta().Position; at != o.Header.Position {
		return imp, fmt.Errorf("%w: announced for %v, contains %v", ErrCorrupt, o.Header.Position, at)
	}
	return imp, nil
}

func (o *ReceiveOptions) finish(imp *page.Importer, bytes uint64) error {
	if imp == nil || bytes != o.Header.DataBytes {
		return o.failed(imp, fmt.Errorf("%w: snapshot of %d bytes announced, %d received", ErrCorrupt, o.Header.DataBytes,
			bytes))
	}
	if err := imp.Finish(); err != nil {
		return fmt.Errorf("receive snapshot: %w", err)
	}
	return nil
}

func (o *ReceiveOptions) failed(imp *page.Importer, err error) error {
	if imp != nil {
		imp.Abort()
	}
	return err
}
