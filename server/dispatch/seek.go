// SPDX-License-Identifier: Apache-2.0

package dispatch

// Seek has commit move a subscription, with nothing of it being delivered or settled meanwhile. If commit returns nil,
// its consumers are ended with ErrMoved. If not, the subscription may have been moved or not, and they are ended with
// ErrClosed: they attach again, and repeat what was not confirmed. commit must not return before the outcome is
// certain, or the registry is about to be closed.
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
		d.running.Wait() // what it was about to commit is in the log, or never will be
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
