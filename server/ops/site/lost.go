// SPDX-License-Identifier: Apache-2.0

package site

import (
	"errors"
	"fmt"
	"io"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// A former primary may have transactions after the origin of the promoted site. These transactions are written to a
// file in its data directory, like the transactions that a forced failover discards.

// lost is the result of the last check for transactions that the promoted site lacks.
type lost struct {
	origin, end lsn.Position // checked range: the origin, and the last applied record of the log
	err         *apierror.LostError
}

// nothingAfter returns a LostError if this log contains transactions with an effect after a position. It first saves
// these transactions to a file; if that fails, LostError.Err is set. If the log does not contain the position,
// LostError.Incomplete is set. In that case, nothingAfter returns ErrDiverged if there are no such transactions, or if
// the position is after the end of the log. The caller must hold the role (lockRole).
func (m *Manager) nothingAfter(at lsn.Position) error {
	end := m.o.Store.Applied()
	if m.lost.err != nil && m.lost.origin == at && m.lost.end == end {
		return m.lost.err
	}
	after, incomplete := at.LSN, ""
	start := m.o.Store.LogStart()
	have, ok := m.o.Store.PositionOf(at.LSN)
	switch {
	case ok && have == at, at == start:
	case ok:
		incomplete = fmt.Sprintf("record %v differs, so earlier ones may be missing at the primary as well", have)
	case at.LSN < start.LSN:
		after, incomplete = start.LSN, fmt.Sprintf("the log begins after record %d: earlier ones are not in the file",
			start.LSN)
	default:
		return fmt.Errorf("%w: record %v is not in its log", ErrDiverged, at)
	}
	tail, err := m.transactionsAfter(after)
	switch {
	case err != nil:
		return err
	case tail.n == 0 && incomplete == "":
		return nil
	case tail.n == 0:
		return fmt.Errorf("%w: record %v is not in its log", ErrDiverged, at)
	}
	e := &apierror.LostError{Origin: at.String(), Transactions: tail.n, Incomplete: incomplete}
	saved, err := m.saveLost(after, &tail)
	if err != nil {
		e.Err = err
		return e
	}
	e.File, e.First, e.Last = saved.File, saved.Before.LSN+1, saved.Last.LSN
	m.lost = lost{at, end, e}
	return e
}

// saveLost writes the records after an LSN to a file, unless an earlier call has already saved them. It returns a
// description of the file.
func (m *Manager) saveLost(after uint64, t *tail) (store.CopiedTail, error) {
	saved, err := m.o.Store.FindTail(after, t.last.LSN)
	if err != nil || saved.File != "" {
		return saved, err
	}
	if m.o.Space != nil {
		if err := m.o.Space(t.bytes); err != nil {
			return saved, err
		}
	}
	if saved, err = m.o.Store.CopyTail(after); err == nil {
		m.log.Warn("saved transactions that the promoted site lacks", zap.Uint64("transactions", t.n),
			zap.Uint64("from", saved.Before.LSN+1), zap.Stringer("up_to", saved.Last), zap.String("kept_in", saved.File),
			zap.String("hint", "show them with lockstep store dump-log"))
	}
	return saved, err
}

// tail describes the transactions with an effect in a part of the log.
type tail struct {
	n     uint64
	last  lsn.Position // position of the last transaction; zero if n is 0
	bytes uint64       // size of all records in the part
}

// lastTransaction returns the position of the last transaction with an effect in the log. If the log has none, it
// returns the position before the first record.
func (m *Manager) lastTransaction() (lsn.Position, error) {
	start := m.o.Store.LogStart()
	t, err := m.transactionsAfter(start.LSN)
	if err != nil || t.n == 0 {
		return start, err
	}
	return t.last, nil
}

// transactionsAfter returns the tail of the log after an LSN.
func (m *Manager) transactionsAfter(after uint64) (t tail, err error) {
	r, err := m.o.Store.ReadLog(after + 1)
	if err != nil {
		return t, fmt.Errorf("read the log: %w", err)
	}
	var c effects
	for {
		f, err := r.Next()
		if errors.Is(err, io.EOF) {
			t.n, t.last = c.end(m.o.Store.Site().Role)
			return t, nil
		}
		if err != nil {
			return t, fmt.Errorf("read the log: %w", err)
		}
		t.bytes += uint64(wal.FrameBytes(len(f.Payload)))
		c.add(&f)
	}
}
