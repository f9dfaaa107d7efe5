// SPDX-License-Identifier: Apache-2.0

// Package backup copies a running store to a save-set, checks save-sets, keeps an archive of the log, and builds a new
// data directory from them.
//
// # Save-sets
//
// A save-set is a directory whose name says when it was begun (UTC), which LSN it holds and with which page size:
//
//	20261121T004500Z-lsn000123-ps16384/
//	  pages.pack      the pages in use of one checkpoint (see pack.go)
//	  manifest.json   what it is, with the size and SHA-256 of the other file, and its own
//
// Run reads a pinned checkpoint, so that no transaction waits for it, and verifies the checksum of every page as it
// goes by: a page that is damaged at the source ends the backup, and never pushes a good generation out. The manifest
// is put last, and with it the set is complete; older generations go only after that is durable. What is listed as good
// was therefore written completely. A mark, .partial-<name> or .removed-<name>, is beside a set that is being made or
// removed; the next Run removes what a crash leaves behind.
//
// # Places
//
// Sets and archives are objects of a place, Objects: a directory (Directory), or a bucket of an S3 server, in package
// server/objects/s3. With a Sealer they are encrypted: a set of format 2 has pages.pack.age, and says to whom.
//
// # The archive of the log
//
// An Archiver copies records that are applied, hence committed for good, from the log to files of their own, each
// complete and durable before it gets its name. It holds the log from the first record that is not archived: nothing is
// recycled before. Frames are archived as they are; their chain of checksums proves that the archive is without a gap
// and that it continues exactly the checkpoint of a save-set.
//
// # Restore
//
// Restore verifies the set and the part of the archive that it needs before it changes anything, and then fills an
// empty directory with a page file and, behind it, a log that ends with the last wanted record. store.Open and Apply up
// to the end give the state at that record. The identity is new: no member of the old pair, and no node's standby.
//
// # Sharing
//
// A backup path may be shared by several nodes: generations are counted for each pair on its own, and one Run at a time
// works in it. An archive belongs to one node.
package backup
