// SPDX-License-Identifier: Apache-2.0

package dispatch

// Seek calls commit to move a subscription, and blocks its deliveries and settlements until commit returns. If commit
// returns nil, its consumers end with ErrMoved. Otherwise the outcome is unknown, and they end with ErrClosed: they
// attach again, and repeat unconfirmed outcomes. commit must not return before the outcome is certain or the registry
// is about to be closed.
func (r *Registry) Seek(key Key, commit func() error) error {
	r.mu.Lock()
	if r.closed != nil {
		r.mu.Unlock()
		return r.closed
	}
	d := r.byKey[key]
	delete(r.byKey, key)
	r.moving[key]++
	r.mu.Unlock()
	if d != nil {
		d.cancel()
		d.running.Wait() // its last batch is in the log now, or never will be
	}
	err := commit()
	if d != nil && err == nil {
		d.stop(ErrMoved)
	} else if d != nil {
		d.stop(ErrClosed)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.moving[key]--; r.moving[key] == 0 {
		delete(r.moving, key)
	}
	return err
}
