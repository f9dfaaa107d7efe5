// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"time"

	"github.com/lockstep-mq/lockstep/server/api/apierror"
)

// When the session ends, requests with a known outcome are still answered on their streams.

const (
	// submitTimeout limits the wait for requests that are being submitted when the session ends.
	submitTimeout = 100 * time.Millisecond
	submitPoll    = time.Millisecond
)

// waitForFirst waits until the first request has arrived or the reader has ended. It returns false if the session
// ends first.
func (p *publishStream) waitForFirst() bool {
	select {
	case <-p.began:
		return true
	default:
	}
	select {
	case <-p.began:
		return true
	case <-p.session.Ended():
	}
	select {
	case <-p.began:
		return true
	default:
		return false
	}
}

// answered returns the next request if its outcome is known. Otherwise it returns nil.
func (p *publishStream) answered() *streamCall {
	p.awaitSubmit()
	if p.queued.Load() == 0 {
		return nil
	}
	select {
	case call, more := <-p.calls: // available, or will be added soon
		if more {
			p.queued.Add(-1)
		}
		if more && len(call.done) > 0 {
			return call
		}
	case <-p.stream.Context().Done():
	}
	return nil
}

// awaitSubmit waits until no request is being submitted, for at most submitTimeout. It does not wait if the client can
// switch to another node.
func (p *publishStream) awaitSubmit() {
	if e, ok := errors.AsType[*apierror.NotActiveError](p.session.Reason()); ok && e.ActiveAddress != "" {
		return
	}
	ticker := time.NewTicker(submitPoll)
	defer ticker.Stop()
	for start := time.Now(); time.Since(start) < submitTimeout; <-ticker.C {
		if p.submitMu.TryLock() {
			p.submitMu.Unlock()
			return
		}
	}
}

// lose ends the stream after the caller has lost a right. Requests that were already submitted are still answered.
func (p *publishStream) lose(reason error) {
	p.disconnecting.Do(func() {
		p.lostErr = reason
		close(p.lost)
		p.broken.Store(true)
	})
}

// submitted returns the next request that was submitted before the caller lost its right, or nil.
func (p *publishStream) submitted() *streamCall {
	if p.queued.Load() == 0 {
		return nil
	}
	select {
	case call, more := <-p.calls: // available, or will be added soon
		if !more {
			return nil
		}
		p.queued.Add(-1)
		return call
	case <-p.session.Ended():
	case <-p.stream.Context().Done():
	}
	return nil
}
