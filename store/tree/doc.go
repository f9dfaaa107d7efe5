// SPDX-License-Identifier: Apache-2.0

// Package tree implements a copy-on-write B+tree of byte keys and values in the pages of a page file.
//
// # Concurrency
//
// There is one writer and any number of readers, which do not block each other. A View is an immutable version of the
// tree. An Edit creates a new version from the current one: it copies the nodes on the paths to its changes, in
// memory, and Commit publishes the result with one atomic store. Flush writes the nodes that are only in memory
// ("dirty") to new pages, with a few large writes, and frees the pages of the replaced nodes. Nothing is overwritten,
// so the root returned by Flush is a checkpoint.
//
// # Nodes
//
// A node is one extent (store/page) of about Options.NodeBytes; a longer value makes its leaf a longer extent. Keys in
// a node are stored without their common prefix. A node filled in rising order, at the end of the tree or elsewhere,
// is left full when it is split; one filled in random order is split in the middle. A small node is merged with a
// neighbour, so a queue that is consumed from the left leaves no nodes behind. A range is deleted without reading the
// leaves that are entirely inside it.
//
// # Memory
//
// Clean nodes are kept in an LRU cache of Options.CacheBytes. Dirty nodes stay until Flush. Returned keys and
// values are parts of nodes; they must not be changed, and stay valid as long as they are referenced.
//
// # Pages being read
//
// Flush frees pages that an older View may still read. A caller that uses a View across a Flush must therefore take a
// guard before it calls Tree.View, and release it after use of the View:
//
//	guard := file.ReadGuard()
//	defer guard.Release()
//	view := tree.View()
//
// A View of a tree created for a pinned checkpoint's root needs only the pin. The writer's own Edit needs neither.
package tree
