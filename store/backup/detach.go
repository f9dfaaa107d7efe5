// SPDX-License-Identifier: Apache-2.0

package backup

import (
	"errors"
	"fmt"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/tree"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// detach makes the store in a directory the primary of a new lineage, and ends its membership in a fleet. state is
// the state of the store.
func detach(fsys vfs.FS, dir string, state *queue.State, lineage uuid.UUID) error {
	file, err := page.Open(fsys, datadir.PageFile(dir), page.Options{})
	if err != nil {
		return fmt.Errorf("detach the copy: %w", err)
	}
	key, value := state.DetachedSite(lineage)
	fleetKey, noFleet, member := state.DetachedFleet()
	for range 2 { // both checkpoints in the file, since a node uses the earlier one if the later one is corrupt
		if err = putKey(file, key, value); err == nil && member {
			err = putKey(file, fleetKey, noFleet)
		}
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("detach the copy: %w", err)
	}
	return nil
}

func putKey(file *page.File, key, value []byte) error {
	meta := file.Meta()
	all := tree.New(file, meta.Root, tree.Options{})
	edit := all.Edit()
	if err := edit.Put(key, value); err != nil {
		edit.Discard()
		return fmt.Errorf("change the index: %w", err)
	}
	if err := edit.Commit(); err != nil {
		return fmt.Errorf("change the index: %w", err)
	}
	root, err := all.Flush()
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	_, err = file.Checkpoint(page.Meta{
		Position: meta.Position, Root: root, CreatedMS: meta.CreatedMS, AppData: meta.AppData,
	})
	if err != nil {
		return fmt.Errorf("write a checkpoint: %w", err)
	}
	return nil
}
