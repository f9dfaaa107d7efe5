// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"fmt"
	"maps"

	"github.com/google/uuid"
)

// KeyRunning is the key of the replicated entry with the settings changed at run time.
const KeyRunning = "settings/running"

// RunningSettings contains setting values by key. This package does not interpret them.
type RunningSettings struct {
	Pair map[string]string `json:"pair,omitempty"` // for both nodes
	// Nodes contains the values for individual nodes, by node ID. They take precedence over Pair.
	Nodes map[uuid.UUID]map[string]string `json:"nodes,omitempty"`
}

// Of returns the values that apply to a node.
func (r *RunningSettings) Of(node uuid.UUID) map[string]string {
	values := maps.Clone(r.Pair)
	if values == nil {
		values = make(map[string]string)
	}
	maps.Copy(values, r.Nodes[node])
	return values
}

// Set changes a value of one node or, if node is uuid.Nil, of the pair. An empty text removes the value.
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

// UpdateRunning calls fn to change the settings that Running returns, and commits them. It must be called on the
// active. If fn returns an error, nothing is changed.
func (m *Manager) UpdateRunning(ctx context.Context, fn func(*RunningSettings) error) (RunningSettings, error) {
	r, err := change(ctx, m, KeyRunning, fn)
	if err != nil {
		return r, fmt.Errorf("change the settings: %w", err)
	}
	return r, nil
}
