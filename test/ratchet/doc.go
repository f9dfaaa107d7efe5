// SPDX-License-Identifier: Apache-2.0

// Package ratchet counts undesirable constructs per file, and fails when a file has more of them than testdata
// allows:
//
//	realtime.txt   waits and bounds in real time in tests of the default tier
//	sentences.txt  assertions on sentences instead of codes, reasons and fields
//	prose.txt      words and phrases of words.txt in comments, strings and documents; see CONTRIBUTING.md
//
// The allowed counts may only decrease. After lowering some,
//
//	go test ./test/ratchet -update
//
// writes the new counts; it never raises one. A new file starts at 0.
package ratchet
