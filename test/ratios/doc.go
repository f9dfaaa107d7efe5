// SPDX-License-Identifier: Apache-2.0

// Package ratios measures ratios of rates within one run, and checks them against the ranges in ratios.json, which
// docs/decisions/measurements.md lists. A rate depends on the machine, a ratio on the program. It has tests only.
//
//	LOCKSTEP_RATIOS=3 go test -tags measure ./test/ratios -run TestRatios -v -timeout 90m
//
// does all measurements in turn, as many rounds as LOCKSTEP_RATIOS says, takes the median of each ratio over the
// rounds, prints a table, and fails when a ratio is below or above its range: a ratio that got better than the range
// means that what the documentation says is no longer so. Further variables:
//
//	LOCKSTEP_PEERS   a directory with peers, as `lockstep-lab compare` takes it; without one they are skipped
//	LOCKSTEP_KEEP    a directory for what the measurements printed, a file each
//	LOCKSTEP_BINARY  a program to measure instead of one that is built of this module
//
// and -only takes a regular expression of the names of ratios.
//
// The ranges are as wide as a machine with other work on it needs: they find what became half as good, not what became
// a tenth worse. Where one is changed, ratios.json gets the new figures as well, and
//
//	go test ./test/ratios -update
//
// writes the table in docs/decisions/measurements.md.
package ratios
