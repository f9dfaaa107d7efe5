// SPDX-License-Identifier: Apache-2.0

package mover

import (
	"context"
	"fmt"
	"time"

	"github.com/lockstep-mq/lockstep/replication"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// pipelineDepth is the maximum number of unfinished transactions of a pipeline.
const pipelineDepth = 4

// pipeline commits transactions in order, several at a time. One goroutine uses it. The context limits all waits.
type pipeline struct {
	ctx       context.Context //nolint:containedctx // limited to the lifetime of the pipeline
	p         *replication.Primary
	outcomes  chan outcome
	pending   int
	committed func(bytes uint64) // called after a commit; optional
}

type outcome struct {
	bytes uint64
	err   error
}

func newPipeline(ctx context.Context, p *replication.Primary) *pipeline {
	return &pipeline{ctx: ctx, p: p, outcomes: make(chan outcome, pipelineDepth)}
}

// submit adds a transaction with messages of the given size. The error may be that of an earlier transaction.
func (l *pipeline) submit(bytes uint64, fill func(*txn.Builder)) error {
	if l.pending == pipelineDepth {
		if err := l.wait(); err != nil {
			return err
		}
	}
	payload, err := txn.Build(time.Now(), fill)
	if err != nil {
		return fmt.Errorf("encode a transaction: %w", err)
	}
	err = l.p.Submit(l.ctx, payload, func(r *txn.Result, err error) {
		if err == nil {
			err = r.Err()
		}
		l.outcomes <- outcome{bytes, err} // does not block
	})
	if err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	l.pending++
	return nil
}

func (l *pipeline) wait() error {
	select {
	case o := <-l.outcomes:
		l.pending--
		if o.err != nil {
			return fmt.Errorf("commit: %w", o.err)
		}
		if l.committed != nil {
			l.committed(o.bytes)
		}
		return nil
	case <-l.ctx.Done():
		return l.ctx.Err()
	}
}

// finish waits for all transactions. It stops waiting if the context ends. It returns failed, the error of the
// caller, or else the first error of a transaction.
func (l *pipeline) finish(failed error) error {
	for l.pending > 0 && l.ctx.Err() == nil {
		if err := l.wait(); failed == nil {
			failed = err
		}
	}
	if failed == nil && l.pending > 0 {
		failed = l.ctx.Err()
	}
	return failed
}
