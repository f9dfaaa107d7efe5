// SPDX-License-Identifier: Apache-2.0

// Package checkpoint reads a pinned checkpoint of a page file. It iterates over its messages (Checkpoint.Extents),
// verifies it, hashes its content, simulates other page sizes, and dumps its content. It depends on pages and tree, not
// on the store: the file may be that of a running node (store.Store.ReadCheckpoint), of a stopped one (ReadDir) or in a
// backup (ReadFile).
package checkpoint
