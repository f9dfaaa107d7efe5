// SPDX-License-Identifier: Apache-2.0

// Package format holds the formats of the files still. It has tests only: a scenario that writes every operation, every
// kind of value and every kind of file, and readers of these files that follow store/FORMAT.md.
//
// Below testdata are
//
//	current/     readable dumps of what today's program writes, byte for byte
//	v0.1.0/      the files that release 0.1.0 wrote (files.zip), and the dumps of them
//	packed/      stores with small messages in runs of several pages (files.zip), and their content: see packed_test.go
//
// The first two have identity.txt, log.txt (segments, blocks, records, operations, the tail and the intent of a cut),
// pages.txt (header, meta slots, runs), tree.txt (the values of a checkpoint), snapshot.txt (the pieces that another
// node receives), backup.txt (a save-set), archive.txt, and content.txt: what the program makes of all that. In a dump,
// a line in words comes before the bytes in hex; of more than 640 bytes the first 64 and the SHA-256 are there.
//
// A change of what is written changes the dumps in current:
//
//	go test ./test/format -update
//
// That diff belongs to the change, and shows what older programs will have to read. The directories of releases never
// change, nor does packed. A release adds its own, from the commit that it is made of:
//
//	go test ./test/format -run TestReleases -release v0.2.0
package format
