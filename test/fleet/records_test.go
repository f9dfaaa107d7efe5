// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// record is a committed operation of a move in the log of a pair. It may have had no effect, such as a repetition.
type record struct {
	lsn    uint64
	timeMS int64 // time at which the active created the transaction
	code   txn.OpCode
	epoch  uint64
	other  string   // other pair, for a fence and the start of an import
	queues []string // for the start of an import
}

// logs contains the operations of moves in the logs of all nodes.
type logs struct {
	w       *world
	next    map[*harness.Node]uint64 // LSN from which the log of a node is not read yet
	records map[*harness.Node][]record
}

func newLogs(w *world) *logs {
	return &logs{w: w, next: map[*harness.Node]uint64{}, records: map[*harness.Node][]record{}}
}

// read reads the committed records that were added to the logs since the last call. A log that starts after the
// last record, because the node received a snapshot, is no longer read.
func (l *logs) read() {
	t := l.w.t
	t.Helper()
	for _, p := range l.w.pairs {
		complete := 0
		for _, n := range p.Nodes {
			if l.next[n] == math.MaxUint64 {
				continue
			}
			s, err := n.Status(limited(t))
			require.NoError(t, err)
			if l.readNode(n, s.GetStore().GetCommitLsn()) {
				complete++
			} else {
				l.next[n] = math.MaxUint64
				t.Logf("the log of node %s of pair %s is incomplete", n.Name, p.name)
			}
		}
		require.Positive(t, complete, "no complete log of pair %s: increase keptLog", p.name)
	}
}

// readNode reads the log of a node up to an LSN. It returns false if it is incomplete.
func (l *logs) readNode(n *harness.Node, to uint64) (complete bool) {
	t := l.w.t
	t.Helper()
	dir := datadir.LogDir(n.DataDir())
	names, err := vfs.OS().ReadDir(dir)
	require.NoError(t, err)
	type segment struct {
		path  string
		first uint64
	}
	var segments []segment
	for _, name := range names {
		digits, is := strings.CutSuffix(name, ".seg")
		if first, err := strconv.ParseUint(digits, 10, 64); is && err == nil {
			segments = append(segments, segment{filepath.Join(dir, name), first})
		}
	}
	slices.SortFunc(segments, func(a, b segment) int { return cmp.Compare(a.first, b.first) })
	next := max(l.next[n], 1)
	var reader txn.Reader
	for i, s := range segments {
		if i+1 < len(segments) && segments[i+1].first <= next {
			continue
		}
		if s.first > next {
			return false
		}
		_, err := wal.InspectFile(vfs.OS(), s.path, func(it wal.Item) error {
			at := it.Frame.Pos.LSN
			switch {
			case it.Seal || at < next:
				return nil
			case at > to:
				return io.EOF
			case at > next:
				return fmt.Errorf("%s: record %d follows record %d", s.path, at, next-1)
			}
			next++
			if it.Frame.Kind != wal.KindTxn {
				return nil
			}
			return l.decode(n, &reader, it.Frame)
		})
		if err != nil && !errors.Is(err, io.EOF) {
			require.NoError(t, err)
		}
	}
	require.Greater(t, next, to, "log of node %s in %s", n.Name, n.Dir)
	l.next[n] = next
	return true
}

func (l *logs) decode(n *harness.Node, reader *txn.Reader, f wal.Frame) error {
	if err := reader.Reset(f.Payload); err != nil {
		return fmt.Errorf("record %d: %w", f.Pos.LSN, err)
	}
	for range reader.Ops() {
		op, err := reader.Next()
		if err != nil {
			return fmt.Errorf("record %d: %w", f.Pos.LSN, err)
		}
		if !op.Code.Moves() || op.Code == txn.OpImport || op.Code == txn.OpImportState {
			continue
		}
		r := record{lsn: f.Pos.LSN, timeMS: reader.TimeMS(), code: op.Code, epoch: op.Number, other: string(op.Name)}
		if op.Code == txn.OpImportBegin {
			for q := range op.Moved {
				r.queues = append(r.queues, q.Name)
			}
		}
		l.records[n] = append(l.records[n], r)
	}
	return nil
}

// of returns the records of a pair. The logs of its nodes, as far as they are complete, must be equal.
func (l *logs) of(p *pair) []record {
	l.w.t.Helper()
	a, b := l.records[p.Nodes[0]], l.records[p.Nodes[1]]
	if l.next[p.Nodes[0]] == math.MaxUint64 || l.next[p.Nodes[1]] == math.MaxUint64 {
		if len(a) > len(b) {
			return a
		}
		return b
	}
	n := min(l.next[p.Nodes[0]], l.next[p.Nodes[1]])
	before := func(all []record) []record {
		return slices.DeleteFunc(slices.Clone(all), func(r record) bool { return r.lsn >= n })
	}
	require.Equal(l.w.t, before(a), before(b), "records of the nodes of pair %s", p.name)
	if len(a) > len(b) {
		return a
	}
	return b
}

// all returns the records of all pairs, by the name of the pair.
func (l *logs) all() map[string][]record {
	l.w.t.Helper()
	all := map[string][]record{}
	for _, p := range l.w.pairs {
		all[p.name] = l.of(p)
	}
	return all
}

// unfinished returns an error if a move in the logs has not ended.
func (l *logs) unfinished() error {
	for pair, all := range l.all() {
		for _, r := range all {
			if r.code == txn.OpImportBegin && len(find(all, r.epoch, txn.OpForgetMove)) == 0 {
				return fmt.Errorf("move %d to pair %s has not ended", r.epoch, pair)
			}
		}
	}
	return nil
}
