// SPDX-License-Identifier: Apache-2.0

// Package backup implements backups of a running store, verification, an archive of the log, and restore into a new
// data directory.
//
// # Backups
//
// A backup is a directory. Its name contains the start time (UTC), the LSN and the page size of the backup:
//
//	20261121T004500Z-lsn000123-ps16384/
//	  pages.pack      the used pages of one checkpoint (see pack.go)
//	  manifest.json   description, with size and SHA-256 of the other file and its own SHA-256
//
// Run verifies the checksum of every page, and fails if a page is corrupt. The manifest is written last and completes
// the backup; older generations are removed only after the manifest is durable. While a backup is being made or
// removed, a marker, .partial-<name> or .removed-<name>, exists next to it. A later Run removes the leftovers of a
// crash.
//
// # Locations
//
// Backups and archives are objects in a location (Objects): a directory (Directory), or a bucket of an S3 server
// (package server/objectstore/s3). With a Sealer they are encrypted: a backup of format 2 contains pages.pack.age and
// lists its recipients.
//
// # Log archive
//
// An Archiver copies applied records from the log to separate files. Each file is complete and synced before it gets
// its name. The Archiver retains the log from the first record that is not archived. While archiving fails,
// ArchiveOptions.MaxHoldBytes limits the size of the retained log. Frames are archived unchanged. Markers in the
// archive record the gaps that no backup covers (see archive.go).
//
// # Restore
//
// Restore verifies the backup and the required part of the archive before it changes anything. It then fills an empty
// directory with a page file and a log that ends with the requested record. store.Open, and Apply up to the end of
// that log, produce the state at that record. The identity is new.
//
// # Sharing
//
// Several nodes may share a backup path: generations are counted separately for each pair. In a directory, a lock
// permits only one Run or Archiver at a time. A bucket has no lock; each node must run at most one Run at a time. An
// archive belongs to one node.
package backup
