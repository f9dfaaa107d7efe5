// SPDX-License-Identifier: Apache-2.0

package queue

// tail holds the messages of a queue that are not in pages yet: a deque of records without gaps, in blocks, up to the
// queue's last message. A message that died in it is nil until it comes to the front.
type tail struct {
	first  uint64 // sequence of the first entry
	n      int
	head   int // of the first entry in blocks[0]
	blocks []tailBlock
	// entries below this sequence were handed out by Collect and must not be changed before they are flushed
	shared uint64
	bytes  int64
}

// tailBlock has records, and their CRC32C as far as it is known: nil if of none of them, otherwise 0 where it is not.
type tailBlock struct {
	records [][]byte
	sums    []uint32
}

func newTailBlock(entries int) tailBlock { return tailBlock{records: make([][]byte, 0, entries)} }

// push adds a record and its CRC32C, 0 if that is not known.
func (b *tailBlock) push(rec []byte, sum uint32) {
	if sum != 0 && b.sums == nil {
		b.sums = make([]uint32, len(b.records), cap(b.records))
	}
	b.records = append(b.records, rec)
	if b.sums != nil {
		b.sums = append(b.sums, sum)
	}
}

// part gives some of the records, with what is known of their checksums.
func (b *tailBlock) part(from, to int) (records [][]byte, sums []uint32) {
	if b.sums != nil {
		sums = b.sums[from:to:to]
	}
	return b.records[from:to:to], sums
}

const (
	// blockEntries is also the number of messages that a TailRun has at most: no more than a DeadRange can tell about.
	blockEntries = MaxRunSpan
	// entryBytes is what an entry costs beside its record.
	entryBytes = 24
	// keepEntries is the size up to which the block of a tail that became empty is kept: an idle queue is to stay
	// small.
	keepEntries = 4
)

func cost(rec []byte) int64 { return int64(len(rec)) + entryBytes }

// reserve makes room in an empty tail for n entries that are about to come.
func (t *tail) reserve(n int) {
	if len(t.blocks) == 0 || t.n == 0 && cap(t.blocks[0].records) < n {
		t.blocks = append(t.blocks[:0], newTailBlock(min(max(n, keepEntries), blockEntries)))
		t.head = 0
	}
}

// push adds a message and its CRC32C, 0 if that is not known.
func (t *tail) push(rec []byte, sum uint32) {
	k := len(t.blocks) - 1
	if k < 0 || len(t.blocks[k].records) == blockEntries {
		t.blocks = append(t.blocks, newTailBlock(blockEntries))
		k++
	}
	t.blocks[k].push(rec, sum)
	t.n++
	t.bytes += cost(rec)
}

func (t *tail) entry(seq uint64) *[]byte {
	if i := seq - t.first; seq >= t.first && i < uint64(t.n) {
		k := i + uint64(t.head)
		return &t.blocks[k/blockEntries].records[k%blockEntries]
	}
	return nil
}

// drop takes a dead message out of the tail and gives the bytes that are free now. One that was handed out stays until
// it was flushed.
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

// pop removes the first entry, which is dead or was flushed, and gives the bytes that are free now. It clears the
// entry: the rest of the block can stay for long, and would keep thousands of messages in memory.
func (t *tail) pop() (freed int64) {
	b := t.blocks[0].records
	if b[t.head] != nil {
		freed = cost(b[t.head])
		t.bytes -= freed
	}
	b[t.head] = nil
	t.first++
	t.head++
	t.n--
	if t.head < len(b) {
		return freed
	}
	if len(t.blocks) > 1 {
		k := copy(t.blocks, t.blocks[1:])
		t.blocks[k] = tailBlock{}
		t.blocks = t.blocks[:k]
	} else if blockFirst := t.first - uint64(len(b)); cap(b) <= keepEntries && blockFirst >= t.shared {
		t.blocks[0] = tailBlock{records: b[:0]}
	} else {
		t.blocks = nil
	}
	t.head = 0
	return freed
}

// trim pops what is dead at the front.
func (t *tail) trim() (freed int64) {
	for t.n > 0 && t.blocks[0].records[t.head] == nil {
		freed += t.pop()
	}
	return freed
}

// share hands out the first entries, at most max bytes of them but at least one, as one slice for each block.
func (t *tail) share(maxBytes int64, yield func(uint64, [][]byte, []uint32)) (taken int64) {
	seq, head, left := t.first, t.head, t.n
	if t.bytes <= maxBytes { // all of it: there is no need to look at each entry
		for i := range t.blocks {
			records, sums := t.blocks[i].part(head, len(t.blocks[i].records))
			yield(seq, records, sums)
			seq += uint64(len(records))
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
		for k < len(b) && taken < maxBytes {
			if b[k] != nil {
				taken += cost(b[k])
			}
			k++
		}
		records, sums := t.blocks[i].part(head, k)
		yield(seq, records, sums)
		seq += uint64(k - head)
		left -= k - head
		head = 0
	}
	t.shared = max(t.shared, seq)
	return taken
}
