// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"fmt"
	"io"
	"os"
	"sort"

	"github.com/lockstep-mq/lockstep/store/vfs"
)

// image shows a pack as the page file that it was made from, for page.OpenImage: what is not in it reads as zeros.
type image struct {
	vfs.File // the pack
	size     int64
	extents  []extent // in rising order
}

// extent is a stretch of the page file and where it is in the pack.
type extent struct {
	from, bytes int64
	at          int64
}

// openImage opens the pack for reading at the extents that an earlier pass found.
func openImage(fsys vfs.FS, dir string, m *Manifest, extents []extent) (*image, error) {
	file, err := fsys.OpenFile(join(dir, m.Files[0].Name), os.O_RDONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("read the backup: %w", err)
	}
	return &image{File: file, size: int64(m.FileBytes), extents: extents}, nil
}

// SizeBytes is the size of the page file.
func (im *image) SizeBytes() (int64, error) { return im.size, nil }

// ReadAt reads what is at the offset of the page file.
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
		if _, err := im.File.ReadAt(b[from-off:to-off], e.at+from-e.from); err != nil {
			return 0, fmt.Errorf("read the backup: %w", err)
		}
	}
	if int(n) < len(p) {
		return int(n), io.EOF
	}
	return int(n), nil
}
