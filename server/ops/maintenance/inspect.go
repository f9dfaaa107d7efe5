// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"fmt"

	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/pager"
)

// Limits of the number of regions of a page map.
const (
	PageMapRegions = 256  // default number of regions
	PageMapMost    = 4096 // maximum number of regions; for more, PageMap returns ErrSetting
)

// PageMap returns the usage of this node's page file in at most the given number of regions. 0 means
// PageMapRegions.
func (m *Manager) PageMap(ctx context.Context, regions uint32) (pager.PageMap, error) {
	if regions > PageMapMost {
		return pager.PageMap{}, fmt.Errorf("%w: page map of %d regions, maximum is %d", ErrSetting,
			regions, PageMapMost)
	}
	return m.store.PageMap(ctx, int(cmp.Or(regions, PageMapRegions)))
}

// VerifyRequest selects a backup.
type VerifyRequest struct {
	// Path is the location of the backups. If it is empty, the configured location is used.
	Path string
	// Name is the name of the backup in that location. If it is empty, the newest complete backup is selected.
	Name string
}

// VerifyReport is the result of VerifyBackup.
type VerifyReport struct {
	backup.CheckReport

	Archive string // location of this node's log archive; empty without an archive
}

// VerifyBackup reads a backup of this node and reports whether it can be restored. It also reports the latest time to
// which the backup can be restored with this node's archive. It runs online. A backup that cannot be restored is
// reported in the result, not as an error. While another operation runs, VerifyBackup returns ErrBusy.
func (m *Manager) VerifyBackup(
	ctx context.Context, req VerifyRequest, progress func(checkpoint.Progress),
) (VerifyReport, error) {
	place, err := m.location(req.Path)
	if err != nil {
		return VerifyReport{}, err
	}
	defer closeObjects(place)
	ctx, op, err := m.begin(ctx, opVerify, "", progress)
	if err != nil {
		return VerifyReport{}, err
	}
	defer m.end(op)
	r := VerifyReport{}
	if m.o.Archive != nil {
		r.Archive = m.o.Archive.Path("")
	}
	r.CheckReport, err = backup.CheckSet(ctx, place, req.Name, backup.CheckOptions{
		Archive: m.o.Archive, Pace: m.store.Pace(ctx, 0), Progress: m.backupProgress(op),
	})
	if err != nil {
		return r, fmt.Errorf("verify a backup: %w", cause(ctx, err))
	}
	return r, nil
}
