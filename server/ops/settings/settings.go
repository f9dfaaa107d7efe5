// SPDX-License-Identifier: Apache-2.0

// Package settings manages the current settings of a node, which are its configuration and the changes made at run
// time. The changes are replicated like messages, except for min-in-sync, which is in the cluster record.
package settings

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
)

const (
	pollInterval = 250 * time.Millisecond
	keyMinInSync = "min-in-sync"
)

// Options configures New.
type Options struct {
	// Config is the configuration of the node. It contains the values of settings that were not changed at run time.
	Config  config.Config
	Store   *store.Store
	Manager *maintenance.Manager
	Runner  *failover.Runner
	// Use applies changed settings to the components of the node that have copies of the settings.
	Use    func(*config.Config)
	Logger *zap.Logger
}

// Settings manages the settings of a node. It is safe for concurrent use.
type Settings struct {
	o    Options
	live atomic.Pointer[config.Config]

	mu      sync.Mutex // guards the fields below
	applied []byte     // last applied internal entry
	begun   bool       // Apply was called; applied is valid
}

// New returns Settings with the configured values. Changes made before the start take effect when Apply or Run is
// called.
func New(o Options) *Settings {
	s := &Settings{o: o}
	s.live.Store(&o.Config)
	return s
}

// Live returns the current settings. They include the settings that cannot be changed at run time.
func (s *Settings) Live() *config.Config { return s.live.Load() }

// Run calls Apply periodically until ctx ends.
func (s *Settings) Run(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for {
		s.Apply()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// Apply applies the changes of the settings since the last call. If they are invalid on this node, it logs an error and
// keeps the current settings.
func (s *Settings) Apply() {
	s.mu.Lock()
	defer s.mu.Unlock()
	raw, _ := query.Meta(s.o.Store, maintenance.KeyRunning)
	if s.begun && bytes.Equal(raw, s.applied) {
		return
	}
	s.applied, s.begun = bytes.Clone(raw), true
	kept, err := s.o.Manager.Running()
	if err != nil {
		s.o.Logger.Error("cannot read run-time settings; keeping the current settings", zap.Error(err))
		return
	}
	next, err := s.o.Config.With(kept.Of(s.o.Store.Identity().NodeID))
	if err != nil {
		// The changes were validated on the other node, which may have other limits or a newer release. Keep the
		// current settings.
		s.o.Logger.Error("cannot use run-time settings on this node; keeping the current settings", zap.Error(err))
		return
	}
	next.Limits = next.Limits.Within(next.Memory.Budget.Bytes())
	before := s.live.Swap(&next)
	for _, r := range config.RunningSettings() {
		if was, is := before.Text(r.Key), next.Text(r.Key); was != is {
			s.o.Logger.Info("setting changed", zap.String("setting", r.Key), zap.String("from", was),
				zap.String("to", is))
		}
	}
	s.o.Use(&next)
}

// Setting is a setting that can be changed at run time, with its values on a node.
type Setting struct {
	// Key, Usage and Scope are the fields of the same names in config.Running.
	Key, Usage, Scope string
	// Value is the current value on this node; Configured is the value in its configuration.
	Value, Configured string
	Changed           bool // Value was set at run time
}

// List returns the settings that can be changed at run time.
func (s *Settings) List() []Setting {
	now := s.Live()
	var list []Setting
	kept, err := s.o.Manager.Running()
	values := kept.Of(s.o.Store.Identity().NodeID)
	for _, r := range config.RunningSettings() {
		_, changed := values[r.Key]
		one := Setting{
			Key: r.Key, Usage: r.Usage, Scope: string(r.Scope), Value: now.Text(r.Key),
			Configured: s.o.Config.Text(r.Key), Changed: changed && err == nil,
		}
		if rec := s.o.Runner.Status().Record; r.Key == keyMinInSync && rec != nil {
			one.Value, one.Changed = strconv.Itoa(rec.MinInSync), rec.MinInSyncSet != 0
		}
		list = append(list, one)
	}
	return list
}

// Change is a change of settings.
type Change struct {
	// Set contains the new values by key; Unset lists the settings to reset to the configuration.
	Set   map[string]string
	Unset []string
	// Node is the name or the UUID of the node to change. If it is empty, both nodes are changed. It must be empty
	// for settings with pair scope.
	Node string
}

// Change changes settings of one or both nodes. It must be called on the active, unless it changes only min-in-sync.
// If one of the values is invalid (apierror.ErrInvalid), nothing is changed.
func (s *Settings) Change(ctx context.Context, c Change) error {
	node, err := s.target(&c)
	if err != nil {
		return err
	}
	if _, err := s.o.Config.With(c.Set); err != nil {
		return apierror.Invalid(err)
	}
	minInSync, given := takeMinInSync(&c)
	others := len(c.Set)+len(c.Unset) > 0
	if given {
		if others { // the cluster record is changed only if the other changes are valid
			r, err := s.o.Manager.Running()
			if err == nil {
				err = s.edit(&r, node, &c)
			}
			if err != nil {
				return err
			}
		}
		if err := s.changeMinInSync(ctx, minInSync); err != nil {
			return err
		}
	}
	if !others {
		return nil
	}
	_, err = s.o.Manager.UpdateRunning(ctx, func(r *maintenance.RunningSettings) error { return s.edit(r, node, &c) })
	if err != nil {
		return err
	}
	s.Apply()
	return nil
}

// edit applies c to r, for one node or, if node is uuid.Nil, for both. In the second case, it removes the values of
// individual nodes. If it resets a setting of one node, a value for both nodes becomes a value of the other node. It
// returns an error if the resulting settings are invalid.
func (s *Settings) edit(r *maintenance.RunningSettings, node uuid.UUID, c *Change) error {
	set := func(key, text string) {
		r.Set(node, key, text)
		if node == uuid.Nil { // the new value replaces those of individual nodes
			for id := range maps.Clone(r.Nodes) {
				r.Set(id, key, "")
			}
		}
	}
	for key, text := range c.Set {
		set(key, text)
	}
	for _, key := range c.Unset {
		if common := r.Pair[key]; node != uuid.Nil && common != "" {
			s.splitCommon(r, key, common)
		}
		set(key, "")
	}
	// The new values are valid, but values set earlier may not be valid on this node.
	for id := range r.Nodes {
		if _, err := s.o.Config.With(r.Of(id)); err != nil {
			return apierror.Invalid(err)
		}
	}
	if _, err := s.o.Config.With(r.Pair); err != nil {
		return apierror.Invalid(err)
	}
	return nil
}

// splitCommon replaces a value for both nodes with values of the individual nodes.
func (s *Settings) splitCommon(r *maintenance.RunningSettings, key, common string) {
	r.Set(uuid.Nil, key, "")
	st := s.o.Runner.Status()
	for _, n := range protoconv.KnownNodes(&st) {
		if r.Nodes[n.ID][key] == "" {
			r.Set(n.ID, key, common)
		}
	}
}

// target validates the keys of c. It returns the node to change, or uuid.Nil for both nodes.
func (s *Settings) target(c *Change) (uuid.UUID, error) {
	for _, key := range slices.AppendSeq(slices.Clone(c.Unset), maps.Keys(c.Set)) {
		r, err := config.FindRunning(key)
		if err != nil {
			return uuid.Nil, apierror.Invalid(err)
		}
		if r.Scope == config.ScopePair && c.Node != "" {
			return uuid.Nil, fmt.Errorf("%w: %s is set for both nodes: omit the node", apierror.ErrInvalid, key)
		}
	}
	if c.Node == "" {
		return uuid.Nil, nil
	}
	if s.o.Config.Alone() {
		return s.o.Store.Identity().NodeID, nil
	}
	st := s.o.Runner.Status()
	return protoconv.FindNode(&st, c.Node)
}

// takeMinInSync removes min-in-sync from c, and returns its new value, 0 for the configured one. given reports whether
// c contained it. The caller has validated the value.
func takeMinInSync(c *Change) (value int, given bool) {
	text, set := c.Set[keyMinInSync]
	if !set && !slices.Contains(c.Unset, keyMinInSync) {
		return 0, false
	}
	if set {
		value, _ = strconv.Atoi(text)
	}
	c.Set, c.Unset = maps.Clone(c.Set), slices.Clone(c.Unset)
	delete(c.Set, keyMinInSync)
	c.Unset = slices.DeleteFunc(c.Unset, func(key string) bool { return key == keyMinInSync })
	return value, true
}

// changeMinInSync changes min-in-sync in the cluster record; 0 restores the configured value.
func (s *Settings) changeMinInSync(ctx context.Context, value int) error {
	if s.o.Config.Alone() {
		return fmt.Errorf("%w: %s does not apply to a single node", apierror.ErrInvalid, keyMinInSync)
	}
	return s.o.Runner.SetMinInSync(ctx, value, s.o.Config.MinInSync)
}
