// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/page"
)

// Defaults contains the values of a node's configuration.
type Defaults struct {
	// PageSizeMax is the maximum page size, in bytes, that a scan recommends, unless it recommends the current page
	// size.
	PageSizeMax int
	// ResizeOnStartup and CompactOnStartup request an operation on this node only. The operation is executed once
	// each time the setting is enabled.
	ResizeOnStartup, CompactOnStartup bool
	BackupPath                        string // empty for none
	BackupKeep                        int    // number of backups to keep
}

// Settings contains the pair's settings as applied on a node. Page sizes are in bytes. PageSizeRecommended is 0
// without a recommendation.
type Settings struct {
	PageSizeCurrent, PageSizeRecommended, PageSizeMax int
	// ResizeOnStartup and CompactOnStartup report whether Update has requested the operation and not all nodes have
	// executed it. They ignore requests in the configuration (Defaults).
	ResizeOnStartup, CompactOnStartup bool
	BackupPath                        string
	BackupKeep                        int
}

// Change contains new values of settings. A nil field leaves its setting unchanged.
type Change struct {
	PageSizeMax                       *int
	ResizeOnStartup, CompactOnStartup *bool
	BackupPath                        *string
	BackupKeep                        *int
}

type pairSettings struct {
	PageSizeMax *int            `json:"page_size_max,omitempty"`
	BackupPath  *string         `json:"backup_path,omitempty"`
	BackupKeep  *int            `json:"backup_keep_generations,omitempty"`
	Recommended int             `json:"page_size_recommended,omitempty"`
	Startup     *startupRequest `json:"startup,omitempty"`
}

// startupRequest requests operations at the next start of each node. Each node executes the operations of a request
// only once, identified by ID.
type startupRequest struct {
	ID string `json:"id"`
	// Resize requests a change to the recommended page size. Compact requests a compaction.
	Resize  bool `json:"resize,omitempty"`
	Compact bool `json:"compact,omitempty"`
	// Done contains the nodes that have executed the request.
	Done []uuid.UUID `json:"done,omitempty"`
}

// Settings returns the settings as applied on this node.
func (m *Manager) Settings() (Settings, error) {
	p, _, err := read[pairSettings](m, keySettings)
	if err != nil {
		return Settings{}, err
	}
	return m.effective(&p)
}

func (m *Manager) effective(p *pairSettings) (Settings, error) {
	stats, err := m.store.Stats()
	if err != nil {
		return Settings{}, fmt.Errorf("settings: %w", err)
	}
	d := &m.o.Defaults
	s := Settings{
		PageSizeCurrent: stats.PageSize, PageSizeRecommended: p.Recommended,
		PageSizeMax: or(p.PageSizeMax, d.PageSizeMax),
		BackupPath:  or(p.BackupPath, d.BackupPath), BackupKeep: or(p.BackupKeep, d.BackupKeep),
	}
	if p.Startup != nil {
		s.ResizeOnStartup, s.CompactOnStartup = p.Startup.Resize, p.Startup.Compact
	}
	return s, nil
}

func or[T any](v *T, def T) T {
	if v != nil {
		return *v
	}
	return def
}

// Update changes settings of the pair. It must be called on the active. If a value is invalid, it returns ErrSetting
// and changes nothing.
func (m *Manager) Update(ctx context.Context, c Change) (Settings, error) {
	if err := c.check(); err != nil {
		return Settings{}, err
	}
	if c.BackupPath != nil && *c.BackupPath != "" {
		if _, err := m.checkBackupPath(*c.BackupPath); err != nil { // the other node checks it at its own backup
			return Settings{}, err
		}
	}
	p, err := change(ctx, m, keySettings, func(p *pairSettings) error {
		set(&p.PageSizeMax, c.PageSizeMax)
		set(&p.BackupPath, c.BackupPath)
		set(&p.BackupKeep, c.BackupKeep)
		p.requestStart(c.ResizeOnStartup, c.CompactOnStartup)
		return nil
	})
	if err != nil {
		return Settings{}, fmt.Errorf("change the settings: %w", err)
	}
	return m.effective(&p)
}

func set[T any](dst **T, v *T) {
	if v != nil {
		*dst = v
	}
}

// requestStart changes the request for the next start. A newly requested operation gets a new ID.
func (p *pairSettings) requestStart(resize, compact *bool) {
	var now startupRequest
	if p.Startup != nil {
		now = *p.Startup
	}
	next := startupRequest{
		ID: now.ID, Resize: or(resize, now.Resize), Compact: or(compact, now.Compact),
		Done: now.Done,
	}
	switch {
	case !next.Resize && !next.Compact:
		p.Startup = nil
		return
	case next.Resize && !now.Resize || next.Compact && !now.Compact || len(now.Done) > 0 &&
		(resize != nil || compact != nil):
		next.ID, next.Done = uuid.NewString(), nil
	}
	p.Startup = &next
}

func (c *Change) check() error {
	switch {
	case c.PageSizeMax != nil && page.CheckPageSize(*c.PageSizeMax) != nil:
		return fmt.Errorf("%w: page-size-max: %w", ErrSetting, page.CheckPageSize(*c.PageSizeMax))
	case c.BackupKeep != nil && (*c.BackupKeep < 1 || *c.BackupKeep > 10_000):
		return fmt.Errorf("%w: backup.keep-generations: %d is not between 1 and 10000", ErrSetting, *c.BackupKeep)
	}
	return nil
}

// Report records operations that a node has completed. It must be called on the active.
func (m *Manager) Report(ctx context.Context, r Report) error {
	_, err := change(ctx, m, keySettings, func(p *pairSettings) error {
		changed := false
		if r.Recommended != 0 && r.Recommended != p.Recommended {
			p.Recommended, changed = r.Recommended, true
		}
		if s := p.Startup; s != nil && s.ID == r.StartupID && !slices.Contains(s.Done, r.Node) {
			s.Done, changed = append(s.Done, r.Node), true
			if m.node.Alone() || len(s.Done) >= pairSize {
				p.Startup = nil // all nodes have executed the request
			}
		}
		if !changed {
			return errUnchanged
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("store the report of node %s: %w", r.Node, err)
	}
	return nil
}

const pairSize = 2
