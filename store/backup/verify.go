// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/throttle"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// VerifyOptions configures Verify.
type VerifyOptions struct {
	FS vfs.FS
	// Location, if not nil, contains the backup. Verify then expects the name of the backup instead of its directory.
	Location Objects
	Unseal   Unsealer
	// ChecksumsOnly skips the check of the pages' content. That check reads the backup a second time.
	ChecksumsOnly bool
	// BytesPerSecond limits the rate of reads for the checksums, if not 0. Pace, if not nil, limits all reads.
	BytesPerSecond int64
	Pace           *throttle.Pacer
	// Progress, if not nil, is called periodically.
	Progress func(checkpoint.Progress)
}

// VerifyReport is the result of Verify for a valid backup.
type VerifyReport struct {
	Manifest Manifest
	Bytes    uint64
	// Messages and Pages are the numbers of messages and pages checked; 0 with ChecksumsOnly.
	Messages uint64
	Pages    uint64
}

// Verify checks that the manifest of a backup is valid and that the files match it. Unless ChecksumsOnly is set, it
// also checks the content of the pages with checkpoint.Checkpoint.Check. Errors include ErrIncomplete, ErrCorrupt,
// ErrNewerVersion, page.ErrCorrupt, ErrEncrypted, ErrIdentity, ErrRemote, and the error of ctx.
func Verify(ctx context.Context, dir string, o VerifyOptions) (VerifyReport, error) {
	place, set := o.Location, dir
	if place == nil {
		place, set = setIn(o.FS, dir)
	}
	m, err := loadFiles(ctx, place, set)
	if err != nil {
		return VerifyReport{}, err
	}
	return verify(ctx, place, set, &m, o)
}

func verify(ctx context.Context, place Objects, set string, m *Manifest, o VerifyOptions) (VerifyReport, error) {
	rep := VerifyReport{Manifest: *m, Bytes: uint64(m.Files[0].Bytes)}
	meta, extents, err := verifyPack(ctx, place, set, m, o)
	if err != nil || o.ChecksumsOnly {
		return rep, err
	}
	im, err := openImage(ctx, place, set, m, extents, o.Unseal)
	if err != nil {
		return rep, err
	}
	file := page.OpenImage(im.name, im, meta)
	c := checkpoint.Open(file, file.Pin(), checkpoint.Options{Pace: o.Pace})
	found, err := c.Check(ctx, func(done, total uint64) { reportPages(o.Progress, done, total) })
	c.Close()
	if err = errors.Join(err, file.Close()); err != nil {
		return rep, fmt.Errorf("check %s: %w", place.Path(set), err)
	}
	rep.Messages, rep.Pages = found.Messages, found.Pages
	return rep, reportError(place.Path(set), m, &found)
}

func reportError(dir string, m *Manifest, found *checkpoint.Report) error {
	if n := len(found.Problems); n > 0 {
		return fmt.Errorf("%w: %s: %d problems, first: %s", ErrCorrupt, dir, n, found.Problems[0])
	}
	if found.Messages != m.Messages {
		return fmt.Errorf("%w: %s: %d messages, the manifest has %d", ErrCorrupt, dir, found.Messages,
			m.Messages)
	}
	return nil
}

// verifyPack reads the pack, verifies all checksums, and compares it with the manifest. It returns the metadata of
// the checkpoint and the positions of all extents.
func verifyPack(
	ctx context.Context, place Objects, set string, m *Manifest, o VerifyOptions,
) (meta page.Meta, extents []extent, err error) {
	r, err := openPack(ctx, place, set, m, o.Unseal)
	if err != nil {
		return meta, nil, err
	}
	defer func() { err = errors.Join(err, r.close()) }()
	limit := newLimiter(o.BytesPerSecond)
	var bytes uint64
	err = r.each(ctx, func(offset uint64, data []byte, at int64) error {
		bytes += uint64(len(data))
		if err := wait(ctx, limit, len(data)); err != nil {
			return err
		}
		if err := o.Pace.Did(ctx, 0); err != nil {
			return err
		}
		reportBytes(o.Progress, "verify", bytes, m.DataBytes)
		if offset == 0 {
			var err error
			meta, err = decodeMeta(data, m)
			return err
		}
		extents = append(extents, extent{from: int64(offset), bytes: int64(len(data)), at: at})
		if offset+uint64(len(data)) > m.FileBytes {
			return r.damaged("pages beyond the end of the page file")
		}
		return nil
	})
	if err == nil && (len(extents) == 0 && meta.PageSize == 0 || bytes != m.DataBytes) {
		err = r.damaged("%d bytes of pages, the manifest has %d", bytes, m.DataBytes)
	}
	return meta, extents, err
}

// decodeMeta decodes the checkpoint's metadata and compares it with the manifest.
func decodeMeta(raw []byte, m *Manifest) (page.Meta, error) {
	meta, err := page.DecodeMeta(raw)
	if err != nil {
		return meta, fmt.Errorf("%w: %s: %w", ErrCorrupt, packName, err)
	}
	if meta.Position != m.Position || meta.PageSize != m.PageSize || uint64(meta.FileBytes()) != m.FileBytes ||
		meta.Checkpoint != m.Checkpoint {
		return meta, fmt.Errorf("%w: %s contains checkpoint %d at %v with pages of %d bytes, "+
			"the manifest has %d at %v with %d", ErrCorrupt, packName, meta.Checkpoint, meta.Position, meta.PageSize,
			m.Checkpoint, m.Position, m.PageSize)
	}
	return meta, nil
}

func reportBytes(fn func(checkpoint.Progress), phase string, done, total uint64) {
	if fn != nil {
		fn(checkpoint.Progress{Phase: phase, Bytes: done, TotalBytes: total})
	}
}

func reportPages(fn func(checkpoint.Progress), done, total uint64) {
	if fn != nil {
		fn(checkpoint.Progress{Phase: "check", Pages: done, TotalPages: total})
	}
}
