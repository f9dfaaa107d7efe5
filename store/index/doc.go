// SPDX-License-Identifier: Apache-2.0

// Package index implements the storage format of messages in a page file: the index entries with their positions, and
// the extents that contain them.
package index
