// SPDX-License-Identifier: Apache-2.0

//go:build unix

package simulation

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/harness/historycheck"
	"github.com/lockstep-mq/lockstep/test/vfs/memfs"
)

// restoreNextTo replaces the disk of a node with a restored backup. A restored store belongs to no pair, but the
// coordinator has a cluster record. The node reports a condition and waits until the operator restores its original
// disk. The other node behaves as if the node were down.
func (w *world) restoreNextTo(ctx context.Context, h *historycheck.History, m diskMove, victim, other *host) error {
	by, err := w.restoredBackup(ctx, victim)
	if err != nil {
		return err
	}
	down := []*host{victim, other}
	if m.Order == otherUp {
		down = down[:1]
	}
	if both, err := w.crash(ctx, m, down...); err != nil || !both && m.Order != otherUp {
		return err
	}
	sleep(ctx, m.Down)
	own := victim.put(by)
	since := h.Now()
	if m.Order == otherFirst || m.Order == together {
		other.restart()
	}
	victim.restart()
	w.record("%s is started with a restored backup", victim.name)
	if m.Order == movedFirst {
		sleep(ctx, m.Gap)
		other.restart()
	}
	sleep(ctx, operatorAfter)
	if at, ok := h.AckedAfter(since, ""); ok && m.Order == alone {
		return fmt.Errorf("%s serves at %v with a store that belongs to no pair", victim.name, at)
	}
	if w.reports(ctx, victim, conditions.RecordRejected) == nil {
		return fmt.Errorf("%s does not report a condition for its restored backup", victim.name)
	}
	victim.shutDown()
	w.countMove(m.Move.String())
	victim.put(own)
	return nil
}

// shutDown stops a node, or prevents its next start, and keeps it down.
func (h *host) shutDown() {
	h.mu.Lock()
	h.down, h.lost = true, false
	r := h.run
	if !r.killed {
		h.endLocked(r)
	}
	h.mu.Unlock()
	<-r.done
}

// restoredBackup creates a disk from a backup of a node.
func (w *world) restoredBackup(ctx context.Context, h *host) (*volume, error) {
	dir, err := os.MkdirTemp("", "lockstep-backup-") // nodes write their backups to the real disk
	if err != nil {
		return nil, fmt.Errorf("backup of %s: %w", h.name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }()
	stream, err := pb.NewMaintenanceServiceClient(w.ConnTo(h.address)).Backup(ctx, &pb.BackupRequest{Path: dir})
	for err == nil {
		_, err = stream.Recv()
	}
	if !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("backup of %s: %w", h.name, err)
	}
	sets, err := backup.List(ctx, backup.Directory(nil, dir))
	if err != nil || len(sets) != 1 {
		return nil, fmt.Errorf("backup of %s: %d backups: %w", h.name, len(sets), err)
	}
	v := newVolume()
	set := "/" + sets[0].Name
	if err := copyIn(v.mem, sets[0].Path, set); err != nil {
		return nil, fmt.Errorf("backup of %s: %w", h.name, err)
	}
	if _, err := backup.Restore(ctx, set, "/data", backup.RestoreOptions{FS: v.mem}); err != nil {
		return nil, fmt.Errorf("restore a backup of %s: %w", h.name, err)
	}
	return v, nil
}

// copyIn copies the files of a directory from the real disk.
func copyIn(mem *memfs.FS, from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := mem.MkdirAll(to, 0o750); err != nil {
		return err
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(from, e.Name()))
		if err != nil {
			return err
		}
		f, err := mem.OpenFile(filepath.Join(to, e.Name()), os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = f.WriteAt(b, 0)
		if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
			return err
		}
	}
	return mem.SyncDir(to)
}
