// SPDX-License-Identifier: Apache-2.0

// Package ratchet counts undesirable constructs per file. Its tests fail if a file has more such constructs than
// testdata allows:
//
//	realtime.txt   waits and time limits in real time in tests of the default tier
//	sentences.txt  assertions on sentences instead of codes, reasons and fields
//	prose.txt      words and phrases of words.txt in comments, strings and documents; see CONTRIBUTING.md
//
// The allowed counts may only decrease. After a count has decreased,
//
//	go test ./test/ratchet -update
//
// writes the new counts. It never raises a count. A new file starts at 0.
package ratchet
