// SPDX-License-Identifier: Apache-2.0

// Package tree is a copy-on-write B+tree of byte keys and values in the pages of a page file.
//
// # What it is made for
//
// One writer and any number of readers, none of which waits for the other. A View is the tree at one instant; it never
// changes. An Edit makes a new version out of the current one: it copies the nodes on the paths to what it changes, in
// memory, and Commit publishes the result with one atomic store. Flush gives the nodes that are in memory only
// ("dirty") pages of their own, all of them with a few large writes, and frees the pages of the nodes that they
// replaced. Nothing is overwritten, so that a checkpoint is the root that Flush returned.
//
// # Nodes
//
// A node is one run of pages (store/page), of about Options.NodeBytes; a value that is longer than that makes its leaf
// a longer run. Keys in a node are stored without the prefix that they share. A node that is filled in rising order, at
// the end of the tree or anywhere in it, is left full when it is split; one that is filled in random order is split in
// the middle. A node that has become small is merged with a neighbour, so that a queue which is consumed from the left
// leaves nothing behind. A range is deleted without reading the leaves that lie wholly in it.
//
// # Memory
//
// Clean nodes are kept in a cache of Options.CacheBytes, the least recently used go first. Dirty nodes stay until
// Flush: Stats.DirtyBytes tells when it is time for it. Keys and values that are handed out are parts of nodes; they
// must not be changed, and stay valid as long as they are referred to.
//
// # Pages that are being read
//
// Flush frees pages that an older View may still read. A caller that uses a View across a Flush must therefore take a
// guard before it calls Tree.View, and release it when done with the View:
//
//	guard := file.ReadGuard()
//	defer guard.Release()
//	view := tree.View()
//
// A View of a tree that was made for a pinned checkpoint's root needs only the pin. The writer's own Edit needs
// nothing.
package tree
