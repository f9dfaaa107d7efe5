// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sort"
)

// image presents a pack as the page file from which the pack was made, for page.OpenImage. Pages that are not in the
// pack read as zeros.
type image struct {
	readOnly
	pack    Object
	name    string
	size    int64
	extents []extent // in ascending order
}

type readOnly struct{}

var errReadOnly = errors.New("backup is read-only")

func (readOnly) WriteAt([]byte, int64) (int, error)     { return 0, errReadOnly }
func (readOnly) WriteVec(int64, ...[]byte) (int, error) { return 0, errReadOnly }
func (readOnly) Sync() error                            { return errReadOnly }
func (readOnly) SyncRange(int64, int64) error           { return errReadOnly }
func (readOnly) Truncate(int64) error                   { return errReadOnly }
func (readOnly) Allocate(int64, int64) error            { return errReadOnly }

// extent is a range of the page file. at is its position in the pack.
type extent struct {
	from, bytes int64
	at          int64
}

func openImage(
	ctx context.Context, place Objects, set string, m *Manifest, extents []extent, with Unsealer,
) (*image, error) {
	name := inFolder(set, m.Files[0].Name)
	pack, err := openPlain(ctx, place, name, m.Encryption, with)
	if err != nil {
		return nil, fmt.Errorf("read backup: %w", err)
	}
	return &image{pack: pack, name: place.Path(name), size: int64(m.FileBytes), extents: extents}, nil
}

func (im *image) Name() string { return im.name }

func (im *image) Close() error { return im.pack.Close() } //nolint:wrapcheck // the error of the pack

func (im *image) SizeBytes() (int64, error) { return im.size, nil }

func (im *image) ReadAt(p []byte, off int64) (int, error) {
	n := int64(len(p))
	if off+n > im.size {
		n = max(im.size-off, 0)
	}
	b := p[:n]
	clear(b)
	i := sort.Search(len(im.extents), func(i int) bool { return im.extents[i].from+im.extents[i].bytes > off })
	for ; i < len(im.extents) && im.extents[i].from < off+n; i++ {
		e := im.extents[i]
		from, to := max(e.from, off), min(e.from+e.bytes, off+n)
		if _, err := im.pack.ReadAt(b[from-off:to-off], e.at+from-e.from); err != nil {
			return 0, fmt.Errorf("read backup: %w", err)
		}
	}
	if int(n) < len(p) {
		return int(n), io.EOF
	}
	return int(n), nil
}
