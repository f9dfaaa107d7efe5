// SPDX-License-Identifier: Apache-2.0

package maintenance

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Keys of internal entries.
const (
	keySettings = "maintenance/settings"
	keyPlan     = "maintenance/plan"
	keyVerify   = "maintenance/verify" // never stored: deleting it has no effect, see push
	keyJob      = "maintenance/job/"
	keyRuns     = "maintenance/runs/"
)

// errUnchanged is returned by the function passed to change if the entry is unchanged. Nothing is then committed.
var errUnchanged = errors.New("unchanged")

// read decodes the internal entry with the given key, as applied on this node. ok is false if the entry does not exist.
func read[T any](m *Manager, key string) (v T, ok bool, err error) {
	raw, ok := query.Meta(m.store, key)
	if !ok {
		return v, false, nil
	}
	if err := json.Unmarshal(raw, &v); err != nil {
		return v, false, fmt.Errorf("internal entry %s cannot be decoded; it was written by another version: %w", key,
			err)
	}
	return v, true, nil
}

// change reads the internal entry with the given key (the zero value if it does not exist), calls fn to change it,
// commits the result, and returns it. If fn returns an error, nothing is committed. change returns that error unless it
// is errUnchanged. If this node does not serve clients, change returns replication.ErrNotActive.
func change[T any](ctx context.Context, m *Manager, key string, fn func(*T) error) (T, error) {
	if err := m.committing.Acquire(ctx, 1); err != nil {
		var none T
		return none, fmt.Errorf("another change of internal entries is not committed yet: %w", err)
	}
	defer m.committing.Release(1)
	// Check Serving before the read: if it reports true, all committed entries are applied. Commit fails if the term
	// ends after the read.
	if _, ok := m.node.Serving(); !ok {
		var none T
		return none, replication.ErrNotActive
	}
	v, _, err := read[T](m, key)
	if err != nil {
		return v, err
	}
	if err := fn(&v); errors.Is(err, errUnchanged) {
		return v, nil
	} else if err != nil {
		return v, err
	}
	raw, err := json.Marshal(v)
	if err != nil {
		return v, fmt.Errorf("encode %s: %w", key, err)
	}
	return v, m.commit(ctx, func(b *txn.Builder) { b.PutMeta(key, raw) })
}

func (m *Manager) commit(ctx context.Context, fill func(*txn.Builder)) error {
	if _, err := txn.Propose(ctx, m.node, m.o.Now(), fill); err != nil {
		return fmt.Errorf("commit internal entries: %w", err)
	}
	return nil
}
