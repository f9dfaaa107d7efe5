// SPDX-License-Identifier: Apache-2.0

package format

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"path"
	"reflect"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/wal"
)

// blocksAt is the offset of the first block of a segment.
const blocksAt = 4096

// log writes the segments of the log, the truncated tail, and the intent of the truncation.
func (d *dumper) log() {
	for _, name := range names(d.t, d.fsys, nodeDir) {
		switch {
		case path.Ext(name) == ".seg":
			d.segment(name)
		case path.Base(name) == "cut.intent.seen":
			d.intent(read(d.t, d.fsys, name))
		}
	}
}

func (d *dumper) intent(b []byte) {
	d.line(0, "cut.intent: version %d, op %d, new end %s, seal %d, segment %d, zero from %d to %d, header at %d",
		le32(b[8:]), le32(b[12:]), position(b[32:]), le32(b[52:]), le64(b[56:]), le64(b[64:]), le64(b[72:]),
		le64(b[80:]))
	d.hex(1, b)
}

func (d *dumper) segment(name string) {
	b := read(d.t, d.fsys, name)
	shown := path.Base(name)
	if strings.HasPrefix(shown, "cut-") {
		shown = "cut tail"
	}
	d.line(0, "%s: version %d, first LSN %d, previous %s", shown, le32(b[8:]), le64(b[32:]), position(b[40:]))
	d.hex(1, b[:64])
	d.zero(b[64:blocksAt], "the rest of a segment header")
	prev := lsn.Position{Term: le64(b[40:]), LSN: le64(b[48:]), Chain: le32(b[56:])}
	for b = b[blocksAt:]; len(b) >= 32 && string(b[:4]) == "lLBK"; {
		length, flags, durable, first := le32(b[8:]), le32(b[12:]), le64(b[16:]), le64(b[24:])
		if first != prev.LSN+1 {
			break
		}
		label := fmt.Sprintf("block: %d bytes of frames", length)
		if flags&1 != 0 {
			label = "seal"
		}
		commit := "not recorded"
		if behind := flags >> 1; behind != 0 {
			commit = fmt.Sprint(first - uint64(behind))
		}
		d.line(1, "%s, first LSN %d, durable LSN %d, commit LSN %s", label, first, durable, commit)
		d.hex(2, b[:32])
		frames := b[32 : 32+length]
		for b = b[32+length:]; len(frames) > 0; {
			f, rest, err := wal.DecodeFrame(frames, prev)
			require.NoError(d.t, err)
			d.seen[recordKind(f.Kind)] = true
			d.line(2, "LSN %d, term %d, kind %d (%s)", f.Pos.LSN, f.Pos.Term, uint8(f.Kind), f.Kind)
			d.hex(3, frames[:wal.FrameHeaderBytes])
			d.record(f)
			prev, frames = f.Pos, rest
		}
	}
}

func (d *dumper) record(f wal.Frame) {
	if f.Kind == wal.KindTxn {
		d.transaction(f.Payload)
	}
	d.hex(3, f.Payload)
}

// transaction writes the operations of a transaction.
func (d *dumper) transaction(payload []byte) {
	var r txn.Reader
	require.NoError(d.t, r.Reset(payload))
	head := fmt.Sprintf("transaction of %d operations, time %d", r.Ops(), r.TimeMS())
	if p, ok := r.Producer(); ok {
		head += fmt.Sprintf(", producer %q epoch %d sequence %d", p.ID, p.Epoch, p.Sequence)
	}
	if s := r.Site(); s != nil {
		d.line(3, "envelope: lineage %s, epoch %d, upstream %v, logical number %d", s.Lineage, s.Epoch, s.Upstream, s.Logical)
	}
	d.line(3, "%s", head)
	for {
		op, err := r.Next()
		if errors.Is(err, io.EOF) {
			return
		}
		require.NoError(d.t, err)
		d.seen[opKind(op.Code)] = true
		if op.Config != nil {
			d.seeConfig(reflect.ValueOf(*op.Config))
		}
		d.line(4, "%s", operation(op))
		d.messages(op)
	}
}

func (d *dumper) seeConfig(config reflect.Value) {
	for i := range config.NumField() {
		if !config.Field(i).IsZero() {
			d.seen[configKind(config.Type().Field(i))] = true
		}
	}
}

// config returns the values of all fields that releases before 0.2.0 support, and of the other fields that are set.
func config(c txn.Config) string {
	s := fmt.Sprintf("MaxMessages:%d MaxBytes:%d", c.MaxMessages, c.MaxBytes)
	for i, v := txn.ConfigMask(0), reflect.ValueOf(c); int(i) < v.NumField(); i++ {
		if field := v.Field(int(i)); 1<<i&txn.PlainFields == 0 && !field.IsZero() {
			s += fmt.Sprintf(" %s:%d", v.Type().Field(int(i)).Name, field.Uint())
		}
	}
	return "{" + s + "}"
}

// operation returns a description of an operation in one line.
func operation(op *txn.Op) string {
	s := fmt.Sprintf("%s %d:", op.Code, uint8(op.Code))
	switch op.Code {
	case txn.OpCreateQueue:
		s += fmt.Sprintf(" name %q, config %s, subscriptions", op.Name, config(*op.Config))
		for name := range op.Subscriptions {
			s += fmt.Sprintf(" %q", name)
		}
		if op.Own() != op.Config.Fields() {
			s += fmt.Sprintf(", own %#x", op.Own())
		}
	case txn.OpAlterQueue:
		s += fmt.Sprintf(" queue %d, config %s", op.Queue, config(*op.Config))
		if op.Mask != txn.PlainFields {
			s += fmt.Sprintf(", mask %#x", op.Mask)
		}
		if op.Own() != op.Config.Fields()&op.Mask {
			s += fmt.Sprintf(", own %#x", op.Own())
		}
	case txn.OpPolicy:
		if p, set := op.Policy(); set {
			s += fmt.Sprintf(" pattern %q, priority %d, defaults %s, limits %s", op.Name, p.Priority, config(p.Defaults),
				config(p.Limits))
		} else {
			s += fmt.Sprintf(" pattern %q, delete", op.Name)
		}
	case txn.OpDeleteQueue:
		s += fmt.Sprintf(" queue %d, if empty %v", op.Queue, op.IfEmpty)
	case txn.OpCreateSubscription:
		s += fmt.Sprintf(" queue %d, name %q, start %d", op.Queue, op.Name, op.Start)
	case txn.OpCreateSubscriptionWith:
		s += fmt.Sprintf(" queue %d, name %q, start %d, options %s", op.Queue, op.Name, op.Start,
			options(op.SubscriptionOptions()))
	case txn.OpPause:
		p, resume := op.Pause()
		s += fmt.Sprintf(" queue %d, subscription %d, resume %v, publish %v, deliver %v, by %q, reason %q", op.Queue, op.Sub,
			resume, p.Publish, p.Deliver, p.By, p.Reason)
	case txn.OpAlterSubscription:
		c := op.SubscriptionChange()
		s += fmt.Sprintf(" queue %d, subscription %d, filter %v, fields %#x, options %s", op.Queue, op.Sub, c.Filter,
			c.Fields, options(c.Options))
	case txn.OpMove:
		s += fmt.Sprintf(" queue %d, subscription %d, target %d, sequences", op.Queue, op.Sub, op.Target)
		for sequence := range op.Moves {
			s += fmt.Sprintf(" %d", sequence)
		}
	case txn.OpSeek:
		s += fmt.Sprintf(" queue %d, subscription %d, sequence %d, config %s", op.Queue, op.Sub, op.Sequence,
			config(*cmp.Or(op.Config, &txn.Config{})))
	case txn.OpForward:
		s += fmt.Sprintf(" queue %d, target %d, move %v, messages", op.Queue, op.Target, op.Move)
		for i := range op.Forwarded(0) {
			s += fmt.Sprintf(" %d", i)
		}
	case txn.OpSetForwards:
		rules, err := txn.DecodeForwards(op.Raw)
		s += fmt.Sprintf(" queue %d, %+v, %v", op.Queue, rules, err)
	case txn.OpDue:
		for e := range op.Dues {
			s += fmt.Sprintf(" kind %d at %d queue %d sequence %d,", e.Kind, e.TimeMS, e.Queue, e.Sequence)
		}
		s = strings.TrimSuffix(s, ",")
	case txn.OpPublish:
		s += fmt.Sprintf(" queue %d, %d messages", op.Queue, op.Count)
	case txn.OpPrepare:
		s += fmt.Sprintf(" xid %q, a transaction of %d bytes", op.Name, len(op.Raw))
	case txn.OpCommitPrepared, txn.OpRollbackPrepared:
		s += fmt.Sprintf(" xid %q, decided by %d, prepared by record %d", op.Name, op.By, op.Number)
	case txn.OpAccess:
		s += fmt.Sprintf(" expected version %d, asked %08x, changes", op.Number, op.Requested)
		for c := range op.AccessChanges {
			s += fmt.Sprintf(" %c %q", c.Kind, c.Name)
			if c.Remove {
				s += " removed,"
				continue
			}
			s += fmt.Sprintf(" = %s,", text(c.Value))
		}
		s = strings.TrimSuffix(s, ",")
	case txn.OpSite:
		c := op.SiteChange()
		s += fmt.Sprintf(" %s, expected epoch %d, lineage %s, epoch %d, upstream %v, logical number %d, stopped %v", c.Action,
			c.Expected, c.Lineage, c.Epoch, c.Upstream, c.Logical, c.Stopped)
	case txn.OpFleet:
		c := op.FleetChange()
		s += fmt.Sprintf(" %s, fleet %s, pair %q, epoch %d", c.Action, c.ID, c.Pair, c.Epoch)
	case txn.OpOwn:
		s += fmt.Sprintf(" name %q, epoch %d", op.Name, op.Number)
	case txn.OpFence, txn.OpUnfence, txn.OpDropMoved, txn.OpImportBegin, txn.OpImport, txn.OpImportState, txn.OpTakeMoved,
		txn.OpCancelImport, txn.OpForgetMove:
		s += moveOperation(op)
	case txn.OpSwapMeta:
		s += fmt.Sprintf(" key %q, expected version %d, value %s", op.Name, op.Number, text(op.Raw))
	case txn.OpPutMeta, txn.OpDeleteMeta:
		s += fmt.Sprintf(" key %q, value %s", op.Name, text(op.Raw))
	default:
		s += fmt.Sprintf(" queue %d, subscription %d", op.Queue, op.Sub)
		for r := range op.Ranges {
			s += fmt.Sprintf(", %d to %d", r.First, r.Last)
		}
	}
	return s
}

func moveOperation(op *txn.Op) string {
	s := fmt.Sprintf(" epoch %d, queue %d, from %d, name %q, last %v", op.Number, op.Queue, op.Sequence, op.Name, op.Last)
	for q := range op.Moved {
		s += fmt.Sprintf(", %+v", q)
	}
	for sequence := range op.Moves {
		s += fmt.Sprintf(", sequence %d", sequence)
	}
	for p := range op.StatePairs {
		s += fmt.Sprintf(", %x = %x", p.Key, p.Value)
	}
	return s
}

// shownMessages is the maximum number of messages per publish in a dump.
const shownMessages = 4

func (d *dumper) messages(op *txn.Op) {
	for _, record := range op.Moves {
		if record != nil {
			d.message(5, "message", record)
		}
	}
	n := 0
	for record := range op.Records {
		if n++; n > shownMessages {
			d.line(5, "…")
			return
		}
		d.message(5, "message", record)
	}
}

func (d *dumper) message(level int, label string, record []byte) {
	m, err := txn.DecodeMessage(record)
	require.NoError(d.t, err)
	s := fmt.Sprintf("%s: time %d, body %s", label, m.TimestampMS, text(m.Body))
	for k, v := range m.Properties {
		s += fmt.Sprintf(", property %q=%q", k, v)
	}
	for tag, value := range m.Texts {
		s += fmt.Sprintf(", %s %q", tag, value)
	}
	for tag, value := range m.Numbers {
		s += fmt.Sprintf(", %s %d", tag, value)
	}
	for k, v := range m.Values {
		s += fmt.Sprintf(", typed property %q=%v", k, v.Any())
	}
	if l := m.DeadLetter(); l != nil {
		s += fmt.Sprintf(", dead letter %+v", *l)
	}
	d.line(level, "%s", s)
}

// options returns the filter and, if any, the policy fields of a subscription.
func options(o txn.SubscriptionOptions) string {
	s := fmt.Sprintf("{Filter:%s}", o.Filter)
	if o.Own != 0 {
		s += fmt.Sprintf(" own %#x of config %s", o.Own, config(o.Policy))
	}
	return s
}
