// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/store/index"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/units"
)

const configID = "configuration"

type startupWork struct {
	id              string // ID of the pair's request; empty if only the configuration requests operations
	resize, compact bool
	// configResize and configCompact are the operations requested by the configuration.
	configResize, configCompact bool
}

func (w *startupWork) any() bool { return w.resize || w.compact || w.configResize || w.configCompact }

// BeforeServing applies the log of a standalone node, and executes the operations requested for its start. If an
// operation fails, the error is logged, the operation remains requested, and BeforeServing returns nil. An error
// means that the log could not be applied.
func (m *Manager) BeforeServing(ctx context.Context) error {
	if err := m.store.Apply(m.store.Durable().LSN, nil); err != nil {
		return fmt.Errorf("apply the log: %w", err)
	}
	m.mu.Lock()
	m.starting = true
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.starting = false
	}()
	if err := m.runStartup(ctx); err != nil && ctx.Err() == nil {
		m.log.Error("requested startup operation failed; the request stays pending", zap.Error(err))
	}
	return nil
}

// afterStart waits until this node is an in-sync standby, or a standalone node that serves. A standby then executes the
// operations requested for its start; a standalone node has done so in BeforeServing. afterStart reports the completed
// operations to the active. If a node of a pair becomes active first, the operations remain requested for its next
// start.
func (m *Manager) afterStart(ctx context.Context) {
	for {
		changed := m.node.Changed()
		role := m.node.Pair().Role
		if _, serving := m.node.Serving(); role == failover.RoleStandby || m.node.Alone() && serving {
			break
		}
		if role.Acts() && !m.node.Alone() || !m.wait(ctx, changed, nil, 0) {
			return
		}
	}
	if !m.node.Alone() {
		m.awaitApplied(ctx)
		if err := m.runStartup(ctx); err != nil && ctx.Err() == nil {
			m.log.Error("requested startup operation failed; the request stays pending", zap.Error(err))
			return
		}
	}
	m.reportStartDone(ctx)
}

// awaitApplied waits until this standby has applied its log up to the current end. It stops waiting when the node is
// no longer a standby.
func (m *Manager) awaitApplied(ctx context.Context) {
	tick := time.NewTicker(standbyPoll)
	defer tick.Stop()
	for goal := m.store.End().LSN; m.store.Applied().LSN < goal && m.node.Pair().Role == failover.RoleStandby; {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (m *Manager) startupRequested() (w startupWork, err error) {
	w.configResize, w.configCompact, err = m.local.config(m.o.Defaults.ResizeOnStartup, m.o.Defaults.CompactOnStartup)
	if err != nil {
		return w, err
	}
	p, _, err := read[pairSettings](m, keySettings)
	if err != nil || p.Startup == nil {
		return w, err
	}
	self := m.node.Pair().Self.ID
	if !slices.Contains(p.Startup.Done, self) && !m.local.done(p.Startup.ID, m.store.Identity().Incarnation) {
		w.id, w.resize, w.compact = p.Startup.ID, p.Startup.Resize, p.Startup.Compact
	}
	return w, nil
}

// runStartup executes the requested operations and records that they are done.
func (m *Manager) runStartup(ctx context.Context) error {
	w, err := m.startupRequested()
	if err != nil || !w.any() {
		return err
	}
	settings, err := m.Settings()
	if err != nil {
		return err
	}
	size := 0
	if w.resize || w.configResize {
		size, err = m.sizeAtStart(ctx, settings)
	}
	if err == nil && (size != 0 || w.compact || w.configCompact) {
		_, err = m.rewriteAtStart(ctx, RewriteRequest{PageSize: size, PlanID: w.id})
	}
	if err != nil {
		return fmt.Errorf("%s: %w", cmp.Or(w.id, configID), err)
	}
	if w.id != "" && !m.local.done(w.id, m.store.Identity().Incarnation) {
		err = m.local.recordStep(doneStep{
			ID: w.id, PageSize: settings.PageSizeCurrent, At: m.o.Now(), Incarnation: m.store.Identity().Incarnation,
		})
	}
	if w.configResize || w.configCompact {
		err = errors.Join(err, m.local.configDone(m.o.Defaults.ResizeOnStartup, m.o.Defaults.CompactOnStartup))
	}
	return err
}

// sizeAtStart returns the page size of a requested resize. If the resize is skipped, sizeAtStart logs the reason and
// returns 0.
func (m *Manager) sizeAtStart(ctx context.Context, s Settings) (int, error) {
	size, current := s.PageSizeRecommended, zap.Int("page_size", s.PageSizeCurrent)
	switch size {
	case 0:
		m.log.Warn("requested startup resize skipped: no page size is recommended; run `lockstep store scan`, and request "+
			"the resize again", current)
		return 0, nil
	case s.PageSizeCurrent:
		m.log.Info("requested startup resize skipped: page size is already the recommended one", current)
		return 0, nil
	}
	reason, err := m.lossAtStart(ctx, size)
	if err != nil || reason == "" {
		return size, err
	}
	m.log.Warn("requested startup resize skipped: page.db would grow; run a new scan", zap.String("reason", reason))
	return 0, nil
}

func (m *Manager) lossAtStart(ctx context.Context, pageSize int) (string, error) {
	p, err := m.store.Maintenance().PlanRewrite(ctx, rewrite.Options{PageSize: pageSize})
	switch {
	case errors.Is(err, index.ErrDataLoss), err == nil && p.NeedBytes <= p.FileBytes:
		return "", nil
	case err != nil:
		return "", fmt.Errorf("plan the resize: %w", err)
	}
	return fmt.Sprintf("with page size %d, page.db would have %s instead of %s", pageSize, units.Bytes(p.NeedBytes),
		units.Bytes(p.FileBytes)), nil
}

func (m *Manager) rewriteAtStart(ctx context.Context, req RewriteRequest) (RewriteResult, error) {
	m.log.Info("rewriting page.db at startup, as requested", zap.Int("page_size", req.PageSize))
	r, err := m.Rewrite(ctx, req, nil)
	if err == nil {
		m.log.Info("page.db rewritten at startup", zap.Int("page_size", r.PageSizeAfter),
			zap.Uint64("bytes_before", r.FileBytesBefore),
			zap.Uint64("bytes", r.FileBytesAfter), zap.Duration("took", r.Duration))
	}
	return r, err
}

// reportStartDone reports to the active that this node has executed the operations requested for its start. It
// retries until this node has applied the report.
func (m *Manager) reportStartDone(ctx context.Context) {
	entries, unwatch := query.WatchMeta(m.store)
	defer unwatch()
	for {
		changed := m.node.Changed()
		p, _, err := read[pairSettings](m, keySettings)
		self := m.node.Pair().Self.ID
		if err != nil || p.Startup == nil || slices.Contains(p.Startup.Done, self) ||
			!m.local.done(p.Startup.ID, m.store.Identity().Incarnation) {
			return
		}
		if err := m.report(ctx, Report{Node: self, StartupID: p.Startup.ID}); err != nil {
			m.log.Debug("completion not reported to the active", zap.Error(err))
		}
		if !m.wait(ctx, changed, entries, time.Second) {
			return
		}
	}
}
