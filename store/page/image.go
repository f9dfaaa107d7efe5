// SPDX-License-Identifier: Apache-2.0

package page

import "github.com/lockstep-mq/lockstep/store/vfs"

// OpenImage opens a checkpoint that is not in a page file, such as in a backup: image serves reads at the pages'
// offsets in a page file. The result is read-only and owns image. Nothing is verified before it is read.
func OpenImage(path string, image vfs.File, meta Meta) *File {
	f := &File{
		path: path, file: image, geo: geometry{pageSize: meta.PageSize}, storeID: meta.StoreID, readOnly: true,
		durable: meta,
		older:   meta.Checkpoint,
	}
	f.readers.guards, f.readers.pins = make(map[uint64]int), make(map[uint64]int)
	f.building.Store(meta.Checkpoint + 1)
	f.pages.Store(meta.Pages)
	return f
}
