// SPDX-License-Identifier: Apache-2.0

package member

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/fleet"
)

// maxReleases is the maximum number of names in releases.
const maxReleases = 100_000

// releases are the names to be released, oldest first.
type releases struct {
	wake chan struct{} // capacity 1

	mu   sync.Mutex // guards the fields below
	list []release
}

type release struct {
	queue string
	epoch uint64
}

// add appends a name. It returns false if the list is full.
func (r *releases) add(queue string, epoch uint64) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.list) >= maxReleases {
		return false
	}
	r.list = append(r.list, release{queue, epoch})
	signal(r.wake)
	return true
}

// take returns all names, and clears the list.
func (r *releases) take() (list []release) {
	r.mu.Lock()
	defer r.mu.Unlock()
	list, r.list = r.list, nil
	return list
}

func (r *releases) clear() { r.take() }

// Deleted releases the name of a queue after its deletion was committed. epoch is its ownership epoch, or 0 without a
// fleet. The call does not block: the entry in the directory is deleted in the background.
func (m *Manager) Deleted(queue string, epoch uint64) {
	if m == nil || epoch == 0 {
		return
	}
	if !m.releases.add(queue, epoch) {
		signal(m.due)
	}
}

// runReleases releases names until ctx ends. After an error, it leaves the remaining names to Reconcile.
func (m *Manager) runReleases(ctx context.Context, d *fleet.Directory) {
	for {
		select {
		case <-m.releases.wake:
		case <-ctx.Done():
			return
		}
		list := m.releases.take()
		for i, r := range list {
			err := d.Release(ctx, r.queue, r.epoch)
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				m.log.Warn("names of deleted queues not released, will be retried", zap.Int("names", len(list)-i),
					zap.Error(err))
				signal(m.due)
				break
			}
		}
	}
}
