// SPDX-License-Identifier: Apache-2.0

package queue

// tail contains the messages of a queue that are not in pages yet: a gapless deque of records, in blocks, up to the
// queue's last message. The entry of a dead message is nil, unless the message was collected and is not flushed yet.
type tail struct {
	first  uint64 // sequence of the first entry
	n      int
	head   int // index of the first entry in blocks[0]
	blocks []tailBlock
	// shared is the sequence below which entries were collected. These entries must not change before they are
	// flushed.
	shared uint64
	bytes  int64
}

// tailBlock contains records and their CRC32C. An unknown CRC32C is 0; sums is nil if all are unknown. If records is
// nil, the block has blockEntries entries of dead messages, which require no memory.
type tailBlock struct {
	records [][]byte
	sums    []uint32
}

func newTailBlock(entries int) tailBlock { return tailBlock{records: make([][]byte, 0, entries)} }

// entries returns the number of entries, including removed ones at the front.
func (b *tailBlock) entries() int {
	if b.records == nil {
		return blockEntries
	}
	return len(b.records)
}

// push appends a record. sum is its CRC32C, or 0 if unknown.
func (b *tailBlock) push(rec []byte, sum uint32) {
	if sum != 0 && b.sums == nil {
		b.sums = make([]uint32, len(b.records), cap(b.records))
	}
	b.records = append(b.records, rec)
	if b.sums != nil {
		b.sums = append(b.sums, sum)
	}
}

func (b *tailBlock) part(from, to int) (records [][]byte, sums []uint32) {
	if b.sums != nil {
		sums = b.sums[from:to:to]
	}
	return b.records[from:to:to], sums
}

const (
	// blockEntries limits the length of a TailRun.
	blockEntries = MaxExtentSpan
	// entryBytes is the overhead of an entry in addition to its record.
	entryBytes = 24
	// keepEntries is the maximum capacity of a block that an empty tail keeps.
	keepEntries = 4
)

func cost(rec []byte) int64 { return int64(len(rec)) + entryBytes }

func (t *tail) reserve(n int) {
	if len(t.blocks) == 0 || t.n == 0 && cap(t.blocks[0].records) < n {
		t.blocks = append(t.blocks[:0], newTailBlock(min(max(n, keepEntries), blockEntries)))
		t.head = 0
	}
}

// push appends a record. sum is its CRC32C, or 0 if unknown.
func (t *tail) push(rec []byte, sum uint32) {
	k := len(t.blocks) - 1
	if k < 0 || t.blocks[k].entries() == blockEntries {
		t.blocks = append(t.blocks, newTailBlock(blockEntries))
		k++
	}
	t.blocks[k].push(rec, sum)
	t.n++
	t.bytes += cost(rec)
}

// skip appends n entries of dead messages.
func (t *tail) skip(n uint64) {
	t.n += int(n)
	for n > 0 {
		k := len(t.blocks) - 1
		switch {
		case k >= 0 && t.blocks[k].entries() < blockEntries:
			t.blocks[k].push(nil, 0)
			n--
		case n >= blockEntries:
			t.blocks = append(t.blocks, tailBlock{})
			n -= blockEntries
		default:
			t.blocks = append(t.blocks, newTailBlock(blockEntries))
		}
	}
}

func (t *tail) entry(seq uint64) *[]byte {
	if i := seq - t.first; seq >= t.first && i < uint64(t.n) {
		k := i + uint64(t.head)
		if b := t.blocks[k/blockEntries].records; b != nil {
			return &b[k%blockEntries]
		}
	}
	return nil
}

// drop removes a dead message and returns the number of bytes freed. It does not remove a collected message, which
// must remain until it is flushed.
func (t *tail) drop(seq uint64) int64 {
	e := t.entry(seq)
	if e == nil || *e == nil || seq < t.shared {
		return 0
	}
	c := cost(*e)
	*e = nil
	t.bytes -= c
	return c
}

// pop removes the first entry, which is dead or flushed, and returns the number of bytes freed. It clears the entry.
func (t *tail) pop() (freed int64) {
	b, entries := t.blocks[0].records, t.blocks[0].entries()
	if b != nil {
		if b[t.head] != nil {
			freed = cost(b[t.head])
			t.bytes -= freed
		}
		b[t.head] = nil
	}
	t.first++
	t.head++
	t.n--
	if t.head < entries {
		return freed
	}
	if len(t.blocks) > 1 {
		k := copy(t.blocks, t.blocks[1:])
		t.blocks[k] = tailBlock{}
		t.blocks = t.blocks[:k]
	} else if blockFirst := t.first - uint64(len(b)); b != nil && cap(b) <= keepEntries && blockFirst >= t.shared {
		t.blocks[0] = tailBlock{records: b[:0]}
	} else {
		t.blocks = nil
	}
	t.head = 0
	return freed
}

func (t *tail) trim() (freed int64) {
	for t.n > 0 && t.dead() {
		freed += t.pop()
	}
	return freed
}

// dead reports whether the first entry is the entry of a dead message.
func (t *tail) dead() bool {
	if b := t.blocks[0].records; b != nil {
		return b[t.head] == nil
	}
	return true
}

// share yields the first entries, about maxBytes but at least one entry, as one slice per block. The yielded entries do
// not change until they are flushed.
func (t *tail) share(maxBytes int64, yield func(uint64, [][]byte, []uint32)) (taken int64) {
	seq, head, left := t.first, t.head, t.n
	if t.bytes <= maxBytes { // everything fits: no need to check each entry
		for i := range t.blocks {
			b := &t.blocks[i]
			if b.records != nil {
				records, sums := b.part(head, len(b.records))
				yield(seq, records, sums)
			}
			seq += uint64(b.entries() - head)
			head = 0
		}
		t.shared = max(t.shared, seq)
		return t.bytes
	}
	for i := range t.blocks {
		b := t.blocks[i].records
		if left == 0 || taken >= maxBytes {
			break
		}
		k := head
		if b == nil {
			k = blockEntries
		}
		for k < len(b) && taken < maxBytes {
			if b[k] != nil {
				taken += cost(b[k])
			}
			k++
		}
		if b != nil {
			records, sums := t.blocks[i].part(head, k)
			yield(seq, records, sums)
		}
		seq += uint64(k - head)
		left -= k - head
		head = 0
	}
	t.shared = max(t.shared, seq)
	return taken
}
