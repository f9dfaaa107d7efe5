// SPDX-License-Identifier: Apache-2.0

// Package checkpoint reads one checkpoint of a page file that a pin keeps from changing: it walks over its messages
// (Checkpoint.Runs, the one way), checks it, hashes its content, measures what other page sizes would bring, and shows
// what is in it. It knows pages and tree, and not the store: the file may be that of a running node
// (store.Store.ReadCheckpoint), of one that is stopped (ReadDir) or in a backup (ReadFile).
package checkpoint
