// SPDX-License-Identifier: Apache-2.0

package twophase

import (
	"context"
	"errors"
	"time"

	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/txn"
	"go.uber.org/zap"
)

const (
	// maxWait is the maximum time between checks.
	maxWait     = time.Minute
	timeoutPage = 100
)

// SetTimeout sets the time after which prepared transactions are rolled back. 0 disables the timeout.
func (m *Manager) SetTimeout(timeout time.Duration) {
	if time.Duration(m.timeout.Swap(int64(timeout))) == timeout {
		return
	}
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Name implements expiry.Task.
func (m *Manager) Name() string { return "roll back expired prepared transactions" }

// Wake returns a channel that receives a value when the timeout has changed.
func (m *Manager) Wake() <-chan struct{} { return m.wake }

// RunOnce rolls back the transactions that were prepared longer ago than the timeout, by the clock of this node. It
// returns the time until the next check.
func (m *Manager) RunOnce(ctx context.Context) (wait time.Duration, err error) {
	timeout := time.Duration(m.timeout.Load())
	if timeout <= 0 {
		return time.Hour, nil
	}
	for {
		list, _, _, err := query.PreparedList(m.store, 0, timeoutPage)
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

func (m *Manager) expire(ctx context.Context, p *query.PreparedInfo, timeout time.Duration) error {
	_, err := m.Decide(ctx, Decision{XID: p.XID, By: txn.ByTimeout, Number: p.LSN})
	switch code := txn.OK; {
	case errors.As(err, &code):
		return nil // the coordinator has decided it in the meantime
	case err != nil:
		return err
	}
	m.log.Warn("prepared transaction rolled back: no decision within txn.prepared-timeout; a later "+
		"decision of its coordinator fails", zap.String("xid", p.XID),
		zap.Duration("txn.prepared-timeout", timeout))
	return nil
}
