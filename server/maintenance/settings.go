// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/store/page"
)

// Defaults are what a node's configuration says.
type Defaults struct {
	// PageSizeMax bounds recommendations, in bytes.
	PageSizeMax int
	// ResizeOnStartup and CompactOnStartup ask this node alone, once each time that they are turned on.
	ResizeOnStartup, CompactOnStartup bool
	// BackupPath is the directory of save-sets; empty for none. BackupKeep is how many are kept.
	BackupPath string
	BackupKeep int
	// AutotuneWindow is a time of day such as "02:00-05:00"; empty turns autotune off. AutotuneMinGain is in percent.
	AutotuneWindow  string
	AutotuneMinGain int
}

// Settings are the pair's as a node sees them.
type Settings struct {
	// PageSizeCurrent of this node, PageSizeRecommended by the last scan (0: none yet), PageSizeMax: in bytes.
	PageSizeCurrent, PageSizeRecommended, PageSizeMax int
	// ResizeOnStartup and CompactOnStartup are asked for and not yet done by every node.
	ResizeOnStartup, CompactOnStartup bool
	// BackupPath and BackupKeep say where backups go, and how many are kept.
	BackupPath string
	BackupKeep int
	// AutotuneWindow and AutotuneMinGain: see Defaults.
	AutotuneWindow  string
	AutotuneMinGain int
}

// Change of settings: what is nil stays.
type Change struct {
	PageSizeMax                       *int
	ResizeOnStartup, CompactOnStartup *bool
	BackupPath                        *string
	BackupKeep                        *int
	AutotuneWindow                    *string
	AutotuneMinGain                   *int
}

// pairSettings is the entry: what was set, and nothing else.
type pairSettings struct {
	PageSizeMax     *int            `json:"page_size_max,omitempty"`
	BackupPath      *string         `json:"backup_path,omitempty"`
	BackupKeep      *int            `json:"backup_keep_generations,omitempty"`
	AutotuneWindow  *string         `json:"autotune_window,omitempty"`
	AutotuneMinGain *int            `json:"autotune_min_gain_percent,omitempty"`
	Recommended     int             `json:"page_size_recommended,omitempty"`
	Startup         *startupRequest `json:"startup,omitempty"`
}

// startupRequest asks each node to do something at its next start.
type startupRequest struct {
	// ID makes it happen once on each node.
	ID string `json:"id"`
	// Resize to the recommended size, Compact: what is wanted.
	Resize  bool `json:"resize,omitempty"`
	Compact bool `json:"compact,omitempty"`
	// Done are the nodes that have done it.
	Done []uuid.UUID `json:"done,omitempty"`
}

// Settings gives the settings as this node knows them.
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
		AutotuneWindow:  or(p.AutotuneWindow, d.AutotuneWindow),
		AutotuneMinGain: or(p.AutotuneMinGain, d.AutotuneMinGain),
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

// Update changes settings of the pair. Only on the active. ErrSetting for a value that cannot be used; then nothing is
// changed.
func (m *Manager) Update(ctx context.Context, c Change) (Settings, error) {
	if err := c.check(); err != nil {
		return Settings{}, err
	}
	if c.BackupPath != nil && *c.BackupPath != "" {
		if err := m.checkBackupPath(*c.BackupPath); err != nil { // the other node looks when it makes one
			return Settings{}, err
		}
	}
	p, err := change(ctx, m, keySettings, func(p *pairSettings) error {
		set(&p.PageSizeMax, c.PageSizeMax)
		set(&p.BackupPath, c.BackupPath)
		set(&p.BackupKeep, c.BackupKeep)
		set(&p.AutotuneWindow, c.AutotuneWindow)
		set(&p.AutotuneMinGain, c.AutotuneMinGain)
		p.ask(c.ResizeOnStartup, c.CompactOnStartup)
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

// ask changes the request for the next start. Something that was not asked for before begins a new request: a node that
// has done the old one has not done this.
func (p *pairSettings) ask(resize, compact *bool) {
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
	case c.AutotuneMinGain != nil && (*c.AutotuneMinGain < 1 || *c.AutotuneMinGain > 99):
		return fmt.Errorf("%w: maintenance.autotune.min-gain: %d is not between 1 and 99 percent", ErrSetting,
			*c.AutotuneMinGain)
	}
	if c.AutotuneWindow != nil {
		if _, err := ParseWindow(*c.AutotuneWindow); err != nil {
			return err
		}
	}
	return nil
}

// Report takes note of what the other node has done. Only on the active.
func (m *Manager) Report(ctx context.Context, r Report) error {
	_, err := change(ctx, m, keySettings, func(p *pairSettings) error {
		changed := false
		if r.Recommended != 0 && r.Recommended != p.Recommended {
			p.Recommended, changed = r.Recommended, true
		}
		if s := p.Startup; s != nil && s.ID == r.StartupID && !slices.Contains(s.Done, r.Node) {
			s.Done, changed = append(s.Done, r.Node), true
			if m.node.Alone() || len(s.Done) >= pairSize {
				p.Startup = nil // both have done it
			}
		}
		if !changed {
			return errUnchanged
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("take note of what node %s has done: %w", r.Node, err)
	}
	return nil
}

// pairSize is the number of nodes of a pair.
const pairSize = 2

// Window is a time of day. The zero Window is none.
type Window struct{ from, to time.Duration }

// ParseWindow reads a window such as "02:00-05:00" or "23:00-01:30"; empty text gives none. ErrSetting if it is not
// one.
func ParseWindow(text string) (Window, error) {
	if text == "" {
		return Window{}, nil
	}
	var h1, m1, h2, m2 int
	n, err := fmt.Sscanf(text, "%d:%d-%d:%d", &h1, &m1, &h2, &m2)
	w := Window{from: clock(h1, m1), to: clock(h2, m2)}
	if err != nil || n != 4 || fmt.Sprintf("%02d:%02d-%02d:%02d", h1, m1, h2, m2) != text || w.from < 0 || w.to < 0 ||
		w.from == w.to {
		return Window{}, fmt.Errorf("%w: maintenance.autotune.window: %q is no time of day such as 02:00-05:00",
			ErrSetting, text)
	}
	return w, nil
}

// clock gives the time since midnight, or something negative.
func clock(h, m int) time.Duration {
	if h < 0 || h > 23 || m < 0 || m > 59 {
		return -1
	}
	return time.Duration(h)*time.Hour + time.Duration(m)*time.Minute
}

// Contains tells whether t, in its own zone, is in the window, and gives the day on which that window began.
func (w Window) Contains(t time.Time) (day string, ok bool) {
	if w.from == w.to {
		return "", false
	}
	at := clock(t.Hour(), t.Minute())
	switch {
	case w.from < w.to:
		ok = at >= w.from && at < w.to
	case at >= w.from:
		ok = true
	case at < w.to:
		ok, t = true, t.AddDate(0, 0, -1)
	}
	return t.Format(time.DateOnly), ok
}
