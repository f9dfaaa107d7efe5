// SPDX-License-Identifier: Apache-2.0

package prepared

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const (
	// maxWait bounds how long it takes until a transaction is looked at whose time is over, when clocks are changed.
	maxWait = time.Minute
	// timeoutPage is how many transactions are looked at together.
	timeoutPage = 100
)

// SetTimeout has transactions rolled back that were prepared for so long; 0: never.
func (m *Manager) SetTimeout(timeout time.Duration) {
	if time.Duration(m.timeout.Swap(int64(timeout))) == timeout {
		return
	}
	select {
	case m.woken <- struct{}{}:
	default:
	}
}

// Name of what Sweep does: *Manager is a task of package sweep.
func (m *Manager) Name() string { return "roll back prepared transactions whose time is over" }

// Woken receives when the time-out has changed.
func (m *Manager) Woken() <-chan struct{} { return m.woken }

// Sweep rolls back what was prepared for longer than the time-out, by the clock of this node, and tells when to look
// again.
func (m *Manager) Sweep(ctx context.Context) (wait time.Duration, err error) {
	timeout := time.Duration(m.timeout.Load())
	if timeout <= 0 {
		return time.Hour, nil
	}
	for {
		list, _, _, err := m.store.PreparedList(0, timeoutPage)
		if err != nil {
			return 0, err
		}
		for i := range list {
			age := time.Since(time.UnixMilli(list[i].TimeMS))
			if age < timeout {
				return min(timeout-age, maxWait), nil
			}
			if err := m.expire(ctx, &list[i], timeout); err != nil {
				return 0, err
			}
		}
		if len(list) < timeoutPage {
			return min(timeout, maxWait), nil
		}
	}
}

// expire rolls one back, unless it is decided by now.
func (m *Manager) expire(ctx context.Context, p *store.PreparedInfo, timeout time.Duration) error {
	_, err := m.Decide(ctx, Decision{XID: p.XID, By: txn.ByTimeout, Number: p.LSN})
	switch code := txn.OK; {
	case errors.As(err, &code):
		return nil // the coordinator was quicker
	case err != nil:
		return err
	}
	m.log.Warn("a prepared transaction was rolled back because its coordinator did not decide within "+
		"txn.prepared-timeout; the coordinator is told when it decides", zap.String("xid", p.XID),
		zap.Duration("txn.prepared-timeout", timeout))
	return nil
}
