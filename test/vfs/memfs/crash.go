// SPDX-License-Identifier: Apache-2.0

package memfs

import "math/rand"

// CrashClone returns a copy of m in a state that a power failure could leave: with all synced data, and a random part
// of the unsynced data, chosen by rng. With a nil rng, only synced data survives. The same history and state of rng
// give the same clone. CrashClone does not change m.
//
// Each sector of 512 bytes survives independently: a later write may survive although an earlier one is lost. Changes
// of names are atomic, and survive in the order of the operations on each file. The clone has no locks.
func (m *FS) CrashClone(rng *rand.Rand) *FS {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &crash{rng: rng, nodes: map[*inode]*inode{}}
	clone := New()
	clone.capacityBytes = m.capacityBytes
	clone.root = c.node(m.root)
	c.names(m.pending)
	clone.adopt(clone.root, map[*inode]bool{})
	return clone
}

type crash struct {
	rng   *rand.Rand
	nodes map[*inode]*inode // old → new
}

// chance returns the probability with which unsynced data survives. It often returns 0 or 1: most bugs occur if all or
// nothing survives, which is very unlikely with independent draws for each sector.
func (c *crash) chance() float64 {
	if c.rng == nil {
		return 0
	}
	switch c.rng.Intn(4) {
	case 0:
		return 0
	case 1:
		return 1
	default:
		return c.rng.Float64()
	}
}

func (c *crash) keep(chance float64) bool {
	switch chance {
	case 0:
		return false
	case 1:
		return true
	default:
		return c.rng.Float64() < chance
	}
}

// node returns the new inode for an old inode. A directory contains only the synced names.
func (c *crash) node(old *inode) *inode {
	if n := c.nodes[old]; n != nil {
		return n
	}
	if !old.isDir() {
		n := c.file(old)
		c.nodes[old] = n
		return n
	}
	n := newDir()
	c.nodes[old] = n
	for _, name := range sortedNames(old.synced) {
		n.synced[name] = c.node(old.synced[name])
	}
	return n
}

// names applies a random part of the pending changes of names.
func (c *crash) names(pending []*nameOp) {
	chance := c.chance()
	lost := map[*inode]bool{} // inodes with a lost operation; their later operations cannot survive
	for _, op := range pending {
		survives := c.keep(chance)
		for _, change := range op.changes {
			if lost[change.node] || lost[change.old] {
				survives = false
			}
		}
		if survives {
			op.makeDurable(c.node)
			continue
		}
		for _, change := range op.changes {
			for _, n := range []*inode{change.node, change.old} {
				if n != nil {
					lost[n] = true
				}
			}
		}
	}
}

// file returns a new inode with the synced content and a random part of the unsynced content.
func (c *crash) file(old *inode) *inode {
	chance := c.chance()
	n := &inode{chunks: make([]chunk, len(old.chunks)), sizeBytes: old.syncedSize}
	if old.sizeBytes != old.syncedSize && c.keep(chance) {
		n.sizeBytes = c.size(old, chance)
	}
	n.syncedSize = n.sizeBytes
	for i := range old.chunks {
		data := old.chunks[i].synced
		if old.chunks[i].dirty && chance > 0 {
			data = c.merge(&old.chunks[i], chance)
		}
		if int64(i)*chunkBytes >= n.sizeBytes {
			data = nil
		}
		n.chunks[i] = chunk{live: data, synced: data, allocated: old.chunks[i].allocated || data != nil}
	}
	n.cutBeyondSize()
	return n
}

// size returns the surviving size of a file with an unsynced size: the new size or, if the file has grown, possibly a
// random size between the old and the new size.
func (c *crash) size(old *inode, chance float64) int64 {
	if chance == 1 || old.sizeBytes < old.syncedSize || c.rng.Intn(2) == 0 {
		return old.sizeBytes
	}
	between := old.syncedSize + c.rng.Int63n(old.sizeBytes-old.syncedSize+1)
	return max(old.syncedSize, between/sectorBytes*sectorBytes)
}

func (c *crash) merge(chunk *chunk, chance float64) *chunkData {
	var data chunkData
	if chunk.synced != nil {
		data = *chunk.synced
	}
	for from := 0; from < chunkBytes; from += sectorBytes {
		if !c.keep(chance) {
			continue
		}
		sector := data[from : from+sectorBytes]
		if chunk.live != nil {
			copy(sector, chunk.live[from:])
		} else {
			clear(sector)
		}
	}
	return &data
}

// cutBeyondSize zeroes the part of the last chunk beyond the file size, and drops later chunks.
func (n *inode) cutBeyondSize() {
	last := int((n.sizeBytes + chunkBytes - 1) / chunkBytes)
	if last < len(n.chunks) {
		n.chunks = n.chunks[:last]
	}
	in := n.sizeBytes % chunkBytes
	if in == 0 || last > len(n.chunks) || last == 0 {
		return
	}
	chunk := &n.chunks[last-1]
	if chunk.live == nil || allZero(chunk.live[in:]) {
		return
	}
	data := *chunk.live
	clear(data[in:])
	chunk.live, chunk.synced = &data, &data
}

// adopt makes the surviving names current, and counts names and used space.
func (m *FS) adopt(n *inode, seen map[*inode]bool) {
	n.names++
	if seen[n] {
		return
	}
	seen[n] = true
	for _, name := range sortedNames(n.synced) {
		n.entries[name] = n.synced[name]
		m.adopt(n.synced[name], seen)
	}
	for i := range n.chunks {
		if n.chunks[i].allocated {
			m.usedBytes += chunkBytes
		}
	}
}
