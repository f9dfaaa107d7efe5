// SPDX-License-Identifier: Apache-2.0

// Package page implements the page file: fixed-size pages, allocated in extents (Extent). A checkpoint is a consistent
// and durable set of extents. The package does not interpret their payload.
//
// # Layout
//
//	offset 0        header, 4 KiB: page size and store id; rewritten only if corrupt
//	offset 16 KiB   meta slot 0, 16 KiB   \ a checkpoint overwrites the slot that does not contain
//	offset 32 KiB   meta slot 1, 16 KiB   / the last durable checkpoint
//	offset 64 KiB   page 1, page 2, …
//
// An extent is 1..n consecutive pages with one 32-byte header in the first page. It is the unit of writing, reading and
// freeing. A bitmap with one bit per page defines the pages that a checkpoint uses. The bitmap itself is stored in
// pages, in chunks of one page. Directory pages contain the positions of the chunks, and the meta slot contains the
// positions of the directory pages.
//
// # Invariants
//
//   - A page reachable from one of the two valid meta slots is never overwritten. An extent freed while checkpoint n is
//     built stays unchanged until n+1 is durable; the older slot is then n. It also stays unchanged until every Pin or
//     Guard under which it may be read is released.
//   - A page number and the number of the checkpoint in which it was allocated (Extent.Born) identify one content
//     permanently. Open begins a new checkpoint number, so pages left by a crash cannot be mistaken for later ones. A
//     reference with Born therefore detects lost and misdirected writes.
//   - The bitmap of a checkpoint has a bit set for exactly the pages reachable from its meta slot. This requires that
//     the caller frees unreferenced pages before it calls Checkpoint.
//
// # Concurrency
//
// All methods of File are safe for concurrent use. An allocation or a free, by any goroutine, belongs to the next
// checkpoint that begins (Checkpoint, BeginCheckpoint).
package page
