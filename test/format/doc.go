// SPDX-License-Identifier: Apache-2.0

// Package format tests that the file formats are stable. A scenario writes every operation, every kind of value and
// every kind of file, and readers that follow store/FORMAT.md read these files.
//
// Below testdata are
//
//	current/     readable dumps of the current program's output, byte for byte
//	v0.1.0/      the files that release 0.1.0 wrote (files.zip), and their dumps
//	packed/      stores with small messages in extents of several pages (files.zip), and their content:
//	             see packed_test.go
//
// The first two have identity.txt, log.txt (segments, blocks, records, operations, the tail and the intent of a
// truncation), pages.txt (header, meta slots, extents), tree.txt (the values of a checkpoint), snapshot.txt (the pieces
// that another node receives), backup.txt (a backup), archive.txt, and content.txt: the state that the program reads
// from all of them. In a dump, a text line precedes the bytes in hex. Of more than 640 bytes, the first 64 and the
// SHA-256 are shown.
//
// A change of the written format changes the dumps in current:
//
//	go test ./test/format -update
//
// That diff is part of the change, and shows the data that older programs will have to read. The directories of
// releases never change, nor does packed. A release adds its own directory, from its commit:
//
//	go test ./test/format -run TestReleases -release v0.2.0
package format
