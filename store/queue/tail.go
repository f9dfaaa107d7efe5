// SPDX-License-Identifier: Apache-2.0

package queue

// tail holds the messages of a queue that are not in pages yet: a deque of records without gaps, in blocks, up to the
// queue's last message. A message that died in it is nil until it comes to the front.
type tail struct {
	first  uint64 // sequence of the first entry
	n      int
	head   int // of the first entry in blocks[0]
	blocks [][][]byte
	// entries below this sequence were handed out by Collect and must not be changed before they are flushed
	shared uint64
	bytes  int64
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
	if len(t.blocks) == 0 || t.n == 0 && cap(t.blocks[0]) < n {
		t.blocks = append(t.blocks[:0], make([][]byte, 0, min(max(n, keepEntries), blockEntries)))
		t.head = 0
	}
}

func (t *tail) push(rec []byte) {
	k := len(t.blocks) - 1
	if k < 0 || len(t.blocks[k]) == blockEntries {
		t.blocks = append(t.blocks, make([][]byte, 0, blockEntries))
		k++
	}
	t.blocks[k] = append(t.blocks[k], rec)
	t.n++
	t.bytes += cost(rec)
}

func (t *tail) entry(seq uint64) *[]byte {
	if i := seq - t.first; seq >= t.first && i < uint64(t.n) {
		k := i + uint64(t.head)
		return &t.blocks[k/blockEntries][k%blockEntries]
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
	b := t.blocks[0]
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
		t.blocks[k] = nil
		t.blocks = t.blocks[:k]
	} else if blockFirst := t.first - uint64(len(b)); cap(b) <= keepEntries && blockFirst >= t.shared {
		t.blocks[0] = b[:0]
	} else {
		t.blocks = nil
	}
	t.head = 0
	return freed
}

// trim pops what is dead at the front.
func (t *tail) trim() (freed int64) {
	for t.n > 0 && t.blocks[0][t.head] == nil {
		freed += t.pop()
	}
	return freed
}

// share hands out the first entries, at most max bytes of them but at least one, as one slice for each block.
func (t *tail) share(maxBytes int64, yield func(first uint64, records [][]byte)) (taken int64) {
	seq, head, left := t.first, t.head, t.n
	if t.bytes <= maxBytes { // all of it: there is no need to look at each entry
		for _, b := range t.blocks {
			yield(seq, b[head:len(b):len(b)])
			seq += uint64(len(b) - head)
			head = 0
		}
		t.shared = max(t.shared, seq)
		return t.bytes
	}
	for _, b := range t.blocks {
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
		yield(seq, b[head:k:k])
		seq += uint64(k - head)
		left -= k - head
		head = 0
	}
	t.shared = max(t.shared, seq)
	return taken
}
