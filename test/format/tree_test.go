// SPDX-License-Identifier: Apache-2.0

package format

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"strings"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// treeKinds contains the kinds of tree entries, by the first letter of the key.
var treeKinds = map[byte]struct {
	name     string
	describe func(key, value *reader) string
}{
	'a': {"acknowledgements", describeAcks},
	'b': {"sizes", describeSizes},
	'd': {"delivery counts", describeCounts},
	'f': {"forwards", func(key, value *reader) string {
		version := value.u8()
		rules, err := txn.DecodeForwards(value.rest())
		return fmt.Sprintf("queue %d, version %d, %+v, %v", key.be64(), version, rules, err)
	}},
	'h': {"delayed messages", describeDelayed},
	'i': {"index of messages", describeIndex},
	'k': {"entry", func(key, value *reader) string {
		return fmt.Sprintf("key %q, version %d, value %s", key.rest(), value.u8(), text(value.rest()))
	}},
	'l': {"priorities", describeLanes},
	'm': {"state", func(_, value *reader) string {
		return fmt.Sprintf("version %d, next queue %d, producers forgotten %d, digest %016x", value.u8(),
			value.uvarint(),
			value.uvarint(), value.u64())
	}},
	'o': {"fleet", func(_, value *reader) string {
		version := value.u8()
		s := fmt.Sprintf("version %d, fleet %x, pair %q, join epoch %d, maximum epoch %d", version, value.take(16),
			value.text(), value.uvarint(), value.uvarint())
		if version == 2 {
			s += fmt.Sprintf(", import epoch %d, unfenced epoch %d", value.uvarint(), value.uvarint())
		}
		return s
	}},
	'p': {"producer", describeProducer},
	'q': {"queue", func(key, value *reader) string {
		version := value.u8()
		s := fmt.Sprintf("queue %d, version %d", key.be64(), version)
		if version == 2 {
			s += fmt.Sprintf(", epoch %d", value.uvarint())
		}
		s += fmt.Sprintf(", name %q, config %v, next sequence %d, next subscription %d, messages %d, bytes %d, digest %016x",
			value.text(), value.list(), value.uvarint(), value.uvarint(), value.uvarint(), value.uvarint(), value.u64())
		if len(value.b) > 0 {
			s += fmt.Sprintf(", dropped %d, expired %d", value.uvarint(), value.uvarint())
		}
		return s
	}},
	'r': {"site", func(_, value *reader) string {
		s := fmt.Sprintf("version %d, role %d, flags %d, lineage %x, epoch %d", value.u8(), value.u8(), value.u8(),
			value.take(16), value.uvarint())
		for _, name := range []string{"upstream", "origin"} {
			s += fmt.Sprintf(", %s term %d LSN %d chain %08x", name, value.uvarint(), value.uvarint(), le32(value.take(4)))
		}
		return s + fmt.Sprintf(", promoted at LSN %d, logical number %d, last loss in epoch %d, stop at LSN %d, "+
			"canceled up to LSN %d, offset %d", value.uvarint(), value.uvarint(), value.uvarint(), value.uvarint(),
			value.uvarint(), value.u64())
	}},
	's': {"subscription", func(key, value *reader) string {
		s := fmt.Sprintf("queue %d, subscription %d, version %d, name %q, start %d, floor %d", key.be64(), key.be32(),
			value.u8(), value.text(), value.uvarint(), value.uvarint())
		if len(value.b) > 0 {
			s += ", options " + text(value.rest())
		}
		return s
	}},
	't': {"schedule", func(key, _ *reader) string {
		return fmt.Sprintf("time %d, queue %d, sequence %d, kind %d", key.be64(), key.be64(), key.be64(), key.u8())
	}},
	'e': {"message ID", func(key, value *reader) string {
		return fmt.Sprintf("queue %d, first %d, hash %x: sequence +%d, time %+d, number +%d", key.be64(), key.be64(),
			key.take(16), value.uvarint(), value.varint(), value.uvarint())
	}},
	'g': {"message IDs", func(key, value *reader) string {
		s := fmt.Sprintf("queue %d, version %d, duplicates %d, next %d, valid from time %d and number %d", key.be64(),
			value.u8(), value.uvarint(), value.uvarint(), value.varint(), value.uvarint())
		for range value.uvarint() {
			s += fmt.Sprintf(", from sequence %d, time %d to %+d, number %d, entries %d", value.uvarint(), value.varint(),
				value.varint(), value.uvarint(), value.uvarint())
		}
		return s
	}},
	'u': {"pauses", func(key, value *reader) string {
		s := fmt.Sprintf("queue %d, version %d", key.be64(), value.u8())
		for range value.uvarint() {
			s += fmt.Sprintf(", subscription %d, directions %d, by %q, reason %q, time %d", value.uvarint(), value.u8(),
				value.text(), value.text(), value.uvarint())
		}
		return s
	}},
	'w': {"move", func(key, value *reader) string {
		epoch, version, state := key.be64(), value.u8(), value.u8()
		s := fmt.Sprintf("epoch %d, version %d, state %d, pair %q", epoch, version, state, value.text())
		for range value.uvarint() {
			s += fmt.Sprintf(", queue +%d", value.uvarint())
			if state == 2 {
				s += fmt.Sprintf(" from queue %d, messages %d, flags %d, after %q", value.uvarint(), value.uvarint(), value.u8(),
					value.text())
			}
		}
		return s
	}},
	'x': {"prepared", describePrepared},
	'y': {"policy", func(key, value *reader) string {
		return fmt.Sprintf("pattern %q, version %d, priority %d, defaults %v, limits %v", key.rest(), value.u8(),
			value.uvarint(), value.list(), value.list())
	}},
	'z': {"access", func(key, value *reader) string {
		version := value.u8()
		if len(key.b) == 0 {
			return fmt.Sprintf("version %d, the table is of LSN %d", version, value.uvarint())
		}
		return fmt.Sprintf("kind %c, name %q, version %d, value %s", key.u8(), key.rest(), version, text(value.rest()))
	}},
}

// tree writes all entries of the tree: the checkpoint without the messages.
func (d *dumper) tree() {
	f := openPages(d, read(d.t, d.fsys, nodeDir+"/page.db"))
	f.walk(f.root, func(page.Extent) {}, func(key, value []byte) {
		kind, known := treeKinds[key[0]]
		require.True(d.t, known, "key of an unknown kind: %q", key)
		d.seen[keyKind(key[0])] = true
		k, v := &reader{b: key[1:]}, &reader{b: value}
		label := kind.describe(k, v)
		require.Empty(d.t, k.b, "%s: unparsed bytes of the key", label)
		require.Empty(d.t, v.b, "%s: unparsed bytes of the value", label)
		d.line(0, "%c %s: %s", key[0], kind.name, label)
		d.line(1, "key %x", key)
		d.hex(1, value)
	})
}

func describeAcks(key, value *reader) string {
	s := fmt.Sprintf("queue %d, subscription %d, chunk %d: ", key.be64(), key.be32(), key.be64())
	if len(value.b) == 0 {
		return s + "all"
	}
	n := 0
	for range 64 {
		n += bits.OnesCount64(value.u64())
	}
	return s + fmt.Sprintf("%d of 4096", n)
}

func describeSizes(key, value *reader) string {
	s := fmt.Sprintf("queue %d, chunk %d, from group %d:", key.be64(), key.be64(), value.u8())
	groups, messages, bytes, exact := 0, uint64(0), uint64(0), ""
	for ; len(value.b) > 0; groups++ {
		n := value.u8()
		messages += uint64(n &^ 128)
		switch {
		case n >= 128:
			exact += fmt.Sprintf(", sizes of group %d:", groups)
			for alive := value.u64(); alive != 0; alive &= alive - 1 {
				size := value.uvarint()
				bytes += size
				exact += fmt.Sprintf(" %d has %d", bits.TrailingZeros64(alive), size)
			}
		case n > 0:
			bytes += value.uvarint()
		}
	}
	return s + fmt.Sprintf(" %d groups, %d messages, %d bytes", groups, messages, bytes) + exact
}

func describeLanes(key, value *reader) string {
	s := fmt.Sprintf("queue %d, chunk %d:", key.be64(), key.be64())
	mask := uint16(value.u8())
	mask |= uint16(value.u8()) << 8
	several := mask&(mask-1) != 0
	for lane := range 16 {
		if mask>>lane&1 == 0 {
			continue
		}
		if s += fmt.Sprintf(" %d", lane); !several {
			return s + " only"
		}
		n := 0
		for range 64 {
			n += bits.OnesCount64(value.u64())
		}
		s += fmt.Sprintf(" (%d messages)", n)
	}
	return s
}

func describeDelayed(key, value *reader) string {
	s := fmt.Sprintf("queue %d, chunk %d:", key.be64(), key.be64())
	n := value.uvarint()
	if n > 64 {
		for range 64 {
			value.u64()
		}
		return s + fmt.Sprintf(" %d of 4096", n)
	}
	for range n {
		s += fmt.Sprintf(" +%d", value.uvarint())
	}
	return s
}

func describeCounts(key, value *reader) string {
	var s strings.Builder
	fmt.Fprintf(&s, "queue %d, subscription %d, chunk %d:", key.be64(), key.be32(), key.be64())
	for range value.uvarint() {
		fmt.Fprintf(&s, " +%d released %d times,", value.uvarint(), value.uvarint())
	}
	return strings.TrimSuffix(s.String(), ",")
}

func describeIndex(key, value *reader) string {
	return fmt.Sprintf("queue %d, first sequence %d: span %d, page %d, pages %d, checkpoint %d, messages %d, bytes %d",
		key.be64(), key.be64(), value.uvarint(), value.uvarint(), value.uvarint(), value.uvarint(), value.uvarint(),
		value.uvarint())
}

func describeProducer(key, value *reader) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%q, version %d, epoch %d, ", key.rest(), value.u8(), value.uvarint())
	sequence := value.uvarint()
	fmt.Fprintf(&s, "floor %d, last used at LSN %d", sequence, value.uvarint())
	lsn := int64(0)
	for range value.uvarint() {
		sequence += value.uvarint()
		lsn += value.varint()
		code := value.u8()
		fmt.Fprintf(&s, "; sequence %d at LSN %d: code %d", sequence, lsn, code)
		if code != 0 && code != 255 {
			fmt.Fprintf(&s, ", operation %d", int64(value.uvarint())-1)
			continue
		}
		for range value.uvarint() {
			fmt.Fprintf(&s, ", first %d id %d changed %d", value.uvarint(), value.uvarint(), value.uvarint())
			if code != 255 {
				continue
			}
			for range value.uvarint() {
				fmt.Fprintf(&s, " duplicate %+d %+d", value.uvarint(), value.varint())
			}
		}
	}
	return s.String()
}

func describePrepared(key, value *reader) string {
	kind := key.u8()
	s := fmt.Sprintf("LSN %d, ", key.be64())
	switch kind {
	case 'p':
		return s + fmt.Sprintf("piece %d, %d bytes", key.be32(), len(value.rest()))
	case 'o':
		return s + fmt.Sprintf("outcome, version %d, xid %q, time %d, committed %d, decided by %d", value.u8(), value.text(),
			value.u64(), value.u8(), value.u8())
	}
	return s + fmt.Sprintf("version %d, xid %q, time %d, bytes %d, CRC %x", value.u8(), value.text(), value.u64(),
		value.uvarint(), value.take(4))
}

// reader reads fields from the front of a key or a value. Missing bytes are read as 0.
type reader struct{ b []byte }

func (r *reader) take(n int) []byte {
	v := make([]byte, n)
	r.b = r.b[copy(v, r.b):]
	return v
}

func (r *reader) u8() byte     { return r.take(1)[0] }
func (r *reader) u64() uint64  { return le64(r.take(8)) }
func (r *reader) be64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) be32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) rest() []byte { return r.take(len(r.b)) }
func (r *reader) text() string { return string(r.take(int(r.uvarint()))) }

func (r *reader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b)
	r.b = r.b[max(n, 0):]
	return v
}

func (r *reader) varint() int64 {
	v, n := binary.Varint(r.b)
	r.b = r.b[max(n, 0):]
	return v
}

// list reads a count, and then that number of fields.
func (r *reader) list() (all []uint64) {
	for range r.u8() {
		all = append(all, r.uvarint())
	}
	return all
}
