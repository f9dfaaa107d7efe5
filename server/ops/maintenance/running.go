// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"maps"

	"github.com/google/uuid"
)

// KeyRunning is the key of the settings changed at run time. They are stored with the pair's messages, so that both
// nodes have them, even after a restart and in a new copy of the store.
const KeyRunning = "settings/running"

// RunningSettings contains setting values by name. This package does not interpret them.
type RunningSettings struct {
	Pair map[string]string `json:"pair,omitempty"` // for both nodes
	// Nodes contains the values for single nodes, by node ID. They take precedence over Pair.
	Nodes map[uuid.UUID]map[string]string `json:"nodes,omitempty"`
}

// Of returns the values for a node.
func (r *RunningSettings) Of(node uuid.UUID) map[string]string {
	values := maps.Clone(r.Pair)
	if values == nil {
		values = make(map[string]string)
	}
	maps.Copy(values, r.Nodes[node])
	return values
}

// Set changes a value of one node, or, with uuid.Nil, of the pair. An empty string removes it.
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

// Running returns the settings changed at run time, as applied on this node.
func (m *Manager) Running() (RunningSettings, error) {
	r, _, err := read[RunningSettings](m, KeyRunning)
	return r, err
}

// UpdateRunning changes the settings of Running. It must be called on the active. If fn returns an error, nothing is
// changed.
func (m *Manager) UpdateRunning(ctx context.Context, fn func(*RunningSettings) error) (RunningSettings, error) {
	r, err := change(ctx, m, KeyRunning, fn)
	if err != nil {
		return r, fmt.Errorf("change the settings: %w", err)
	}
	return r, nil
}
