// SPDX-License-Identifier: Apache-2.0

// Package page is the page file: fixed-size pages, handed out in runs, of which a checkpoint is a consistent and
// durable set. It knows nothing about what the pages hold.
//
// # Layout
//
//	offset 0        header, 4 KiB: page size and store id; never written again
//	offset 16 KiB   meta slot 0, 16 KiB   \ a checkpoint overwrites the one that does not hold
//	offset 32 KiB   meta slot 1, 16 KiB   / the last durable checkpoint
//	offset 64 KiB   page 1, page 2, …
//
// A run is 1..n neighbouring pages with one 32-byte header in the first; it is the unit of writing, reading and
// freeing. A bitmap with one bit per page says which pages a checkpoint uses. It is kept in pages itself, in chunks of
// one page; directory pages say where the chunks are, and the meta slot says where the directory pages are.
//
// # What holds at any instant
//
//   - A page that one of the two valid meta slots can reach is never overwritten. A run that is freed while
//     checkpoint n is being built stays as it is until n+1 is durable (the older slot is n then), and no Pin or Guard
//     that may still look at it is held.
//   - A page number together with the number of the checkpoint that was being built (Run.Born) names one content for
//     good: Open begins a new checkpoint number, so what a crash left behind can never be mistaken for what was
//     written later. A reference that carries Born therefore finds out about a write that was lost or that went
//     elsewhere.
//   - The bitmap of a checkpoint has a bit set for exactly those pages that are reachable from its meta slot, provided
//     that the caller frees what it no longer refers to before it calls Checkpoint.
//
// # Use
//
// One goroutine allocates, writes, frees and calls Checkpoint; any number of them read. Every method is safe to be
// called at any time, but what Alloc and Free did belongs to the next Checkpoint call, from whichever goroutine.
package page
