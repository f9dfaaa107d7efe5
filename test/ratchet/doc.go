// SPDX-License-Identifier: Apache-2.0

// Package ratchet counts what the project wants less of, per file, and fails when a file has more of it than
// testdata allows:
//
//	realtime.txt  waits and bounds in real time in tests of the default tier
//	prose.txt     words and phrases of words.txt in comments, strings and documents; CONTRIBUTING.md says what to write
//
// The allowed counts may only become smaller. After lowering some,
//
//	go test ./test/ratchet -update
//
// writes the new counts; it never raises one. A new file has none.
package ratchet
