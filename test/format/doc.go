// SPDX-License-Identifier: Apache-2.0

// Package format tests that the file formats are stable. A scenario writes every operation, every kind of value and
// every kind of file. Readers that follow store/FORMAT.md then read these files.
//
// The directories below testdata are
//
//	current/     readable dumps of the current program's output, byte for byte
//	v0.1.0/      files written by release 0.1.0 (files.zip), and their dumps
//	packed/      stores with small messages in extents of several pages (files.zip), and their contents;
//	             see packed_test.go
//
// The directories current and v0.1.0 contain these dumps:
//
//	identity.txt  the identity file
//	log.txt       segments, blocks, records, operations, the tail and the intent of a truncation
//	pages.txt     header, meta slots and extents of the page file
//	tree.txt      the values of a checkpoint
//	snapshot.txt  the pieces that another node receives
//	backup.txt    a backup
//	archive.txt   a log archive
//	content.txt   the state that the program reads from all files
//
// In a dump, a text line precedes the bytes in hex. For values of more than 640 bytes, a dump contains the first 64
// bytes and the SHA-256.
//
// A change of the written format changes the dumps in current:
//
//	go test ./test/format -update
//
// That diff is part of the change, and shows the data that older programs must read. The directories of releases, and
// packed, never change. For each release, this command adds a directory from the release's commit:
//
//	go test ./test/format -run TestReleases -release v0.2.0
package format
