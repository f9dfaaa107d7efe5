package node

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"strconv"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/admin"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/maintenance"
	"github.com/lockstep-mq/lockstep/server/maintenance/rpc"
	"github.com/lockstep-mq/lockstep/server/wire"
)

// This file has the settings changed while the node runs. They are kept with the pair's messages, but for min-in-sync,
// which is in the pair's record: it has to be changeable while writes are refused because of it.

const (
	// runningPoll is how often a node looks whether a setting was changed.
	runningPoll = 250 * time.Millisecond
	keyMin      = "min-in-sync"
)

// live are the settings as they hold now. What cannot be changed while the node runs is in cfg as well.
func (n *node) live() *config.Config { return n.running.Load() }

// watchRunning applies what was changed, until ctx ends.
func (n *node) watchRunning(ctx context.Context) {
	ticker := time.NewTicker(runningPoll)
	defer ticker.Stop()
	for {
		n.applyRunning()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// applyRunning applies what was changed since the last time.
func (n *node) applyRunning() {
	n.runningMu.Lock()
	defer n.runningMu.Unlock()
	raw, _ := n.store.Meta(maintenance.KeyRunning)
	if n.runningSeen && bytes.Equal(raw, n.runningRaw) {
		return
	}
	n.runningRaw, n.runningSeen = bytes.Clone(raw), true
	kept, err := n.maintenance.Running()
	if err != nil {
		n.log.Error("the settings that were changed while the nodes ran cannot be read; those of the configuration "+
			"hold", zap.Error(err))
		return
	}
	next, err := n.cfg.With(kept.Of(n.store.Identity().NodeID))
	if err != nil {
		// The other node has other limits, or is of a newer release: what holds now goes on.
		n.log.Error("settings that were changed while the nodes ran cannot be used on this node", zap.Error(err))
		return
	}
	next.Limits = limitsWithin(next.Limits, next.Memory.Budget.Bytes())
	before := n.running.Swap(&next)
	for _, s := range config.RunningSettings() {
		if was, is := before.Text(s.Key), next.Text(s.Key); was != is {
			n.log.Info("setting changed", zap.String("setting", s.Key), zap.String("from", was), zap.String("to", is))
		}
	}
	n.use(&next)
}

// use hands the settings to those who keep a copy.
func (n *node) use(c *config.Config) {
	if n.setLogLevel != nil {
		n.setLogLevel(c.Log.Level)
	}
	n.store.SetBackgroundPercent(int(c.Maintenance.BackgroundShare))
	if n.queues != nil {
		n.queues.SetLimits(c.Limits)
	}
	p := n.plane
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.session != nil {
		p.session.SetLimits(c.Limits)
	}
}

// RunningSettings as they hold on this node.
func (n *node) RunningSettings() []rpc.RunningSetting {
	now := n.live()
	var list []rpc.RunningSetting
	kept, err := n.maintenance.Running()
	values := kept.Of(n.store.Identity().NodeID)
	for _, r := range config.RunningSettings() {
		_, changed := values[r.Key]
		s := rpc.RunningSetting{
			Key: r.Key, Usage: r.Usage, Scope: string(r.Scope), Value: now.Text(r.Key), Configured: n.cfg.Text(r.Key),
			Changed: changed && err == nil,
		}
		if rec := n.runner.Status().Record; r.Key == keyMin && rec != nil {
			s.Value, s.Changed = strconv.Itoa(rec.MinInSync), rec.MinInSyncSet != 0
		}
		list = append(list, s)
	}
	return list
}

// ChangeRunning changes some of them.
func (n *node) ChangeRunning(ctx context.Context, c rpc.RunningChange) error {
	node, err := n.meant(&c)
	if err != nil {
		return err
	}
	if _, err := n.cfg.With(c.Set); err != nil {
		return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
	}
	if err := n.changeMinInSync(ctx, &c); err != nil || len(c.Set)+len(c.Unset) == 0 {
		return err
	}
	_, err = n.maintenance.UpdateRunning(ctx, func(r *maintenance.RunningSettings) error {
		for key, text := range c.Set {
			r.Set(node, key, text)
			if node == uuid.Nil {
				clearNodes(r, key)
			}
		}
		for _, key := range c.Unset {
			r.Set(node, key, "")
			if node == uuid.Nil {
				clearNodes(r, key)
			}
		}
		// Together with what is kept they may contradict each other.
		for id := range r.Nodes {
			if _, err := n.cfg.With(r.Of(id)); err != nil {
				return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
			}
		}
		if _, err := n.cfg.With(r.Pair); err != nil {
			return fmt.Errorf("%w: %w", wire.ErrInvalid, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	n.applyRunning()
	return nil
}

// clearNodes takes a value away that nodes have for themselves: it was set for both.
func clearNodes(r *maintenance.RunningSettings, key string) {
	for id := range maps.Clone(r.Nodes) {
		r.Set(id, key, "")
	}
}

// meant checks the keys and finds the node; uuid.Nil for both.
func (n *node) meant(c *rpc.RunningChange) (uuid.UUID, error) {
	keys := append([]string{}, c.Unset...)
	for key := range c.Set {
		keys = append(keys, key)
	}
	for _, key := range keys {
		r, err := config.FindRunning(key)
		if err != nil {
			return uuid.Nil, fmt.Errorf("%w: %w", wire.ErrInvalid, err)
		}
		if r.Scope == config.ScopePair && c.Node != "" {
			return uuid.Nil, fmt.Errorf("%w: %s is the same on both nodes: leave the node away", wire.ErrInvalid, key)
		}
	}
	if c.Node == "" {
		return uuid.Nil, nil
	}
	if n.alone() {
		return n.store.Identity().NodeID, nil
	}
	st := n.runner.Status()
	return admin.NodeCalled(&st, c.Node) //nolint:wrapcheck // says what it is
}

// changeMinInSync does the part that is in the pair's record, and takes it out of the change.
func (n *node) changeMinInSync(ctx context.Context, c *rpc.RunningChange) error {
	text, set := c.Set[keyMin]
	wanted := 0
	if set {
		wanted, _ = strconv.Atoi(text) // it was checked
	}
	var rest []string
	unset := false
	for _, key := range c.Unset {
		if key == keyMin {
			unset = true
			continue
		}
		rest = append(rest, key)
	}
	if !set && !unset {
		return nil
	}
	c.Set, c.Unset = maps.Clone(c.Set), rest
	delete(c.Set, keyMin)
	if n.alone() {
		return fmt.Errorf("%w: %s means nothing on a node that runs alone", wire.ErrInvalid, keyMin)
	}
	return n.runner.SetMinInSync(ctx, wanted, n.cfg.MinInSync)
}
