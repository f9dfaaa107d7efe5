// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"maps"

	"github.com/google/uuid"
)

// This file keeps the settings that were changed while the nodes run: with the pair's messages, so that both nodes have
// them, also after a restart and in a new copy of the store.

// KeyRunning is the entry.
const KeyRunning = "settings/running"

// RunningSettings are values by the names of the settings, as texts. What they mean is not this package's business.
type RunningSettings struct {
	// Pair holds for both nodes.
	Pair map[string]string `json:"pair,omitempty"`
	// Nodes holds for one node each, and wins over Pair.
	Nodes map[uuid.UUID]map[string]string `json:"nodes,omitempty"`
}

// Of gives what holds for a node.
func (r *RunningSettings) Of(node uuid.UUID) map[string]string {
	values := maps.Clone(r.Pair)
	if values == nil {
		values = make(map[string]string)
	}
	maps.Copy(values, r.Nodes[node])
	return values
}

// Set changes a value: of one node, or, with uuid.Nil, of the pair. An empty text takes it away.
func (r *RunningSettings) Set(node uuid.UUID, key, text string) {
	values := r.Pair
	if node != uuid.Nil {
		values = r.Nodes[node]
	}
	values = maps.Clone(values)
	if values == nil {
		values = make(map[string]string)
	}
	if values[key] = text; text == "" {
		delete(values, key)
	}
	if node == uuid.Nil {
		r.Pair = values
		return
	}
	if r.Nodes == nil {
		r.Nodes = make(map[uuid.UUID]map[string]string)
	}
	if r.Nodes[node] = values; len(values) == 0 {
		delete(r.Nodes, node)
	}
}

// Running gives the settings that were changed while the nodes run, as this node knows them.
func (m *Manager) Running() (RunningSettings, error) {
	r, _, err := read[RunningSettings](m, KeyRunning)
	return r, err
}

// UpdateRunning changes them. Only on the active. When fn returns an error nothing is changed.
func (m *Manager) UpdateRunning(ctx context.Context, fn func(*RunningSettings) error) (RunningSettings, error) {
	r, err := change(ctx, m, KeyRunning, fn)
	if err != nil {
		return r, fmt.Errorf("change the settings: %w", err)
	}
	return r, nil
}
