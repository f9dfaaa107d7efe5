// SPDX-License-Identifier: Apache-2.0

// Package ratios measures ratios of rates within one run, and checks them against the ranges in ratios.json, which
// docs/decisions/measurements.md lists. A rate depends on the machine, a ratio on the program.
//
//	LOCKSTEP_RATIOS=3 go test -tags measure ./test/ratios -run TestRatios -v -timeout 90m
//
// executes all measurements in turn for LOCKSTEP_RATIOS rounds, takes the median of each ratio over the rounds,
// prints a table, and fails if a ratio is below or above its range. A ratio above its range means that the
// documentation is outdated. Further variables:
//
//	LOCKSTEP_PEERS   a directory with peers, as for `lockstep-lab compare`; without it, peers are skipped
//	LOCKSTEP_KEEP    a directory for the output of the measurements, one file each
//	LOCKSTEP_BINARY  a program to measure instead of one built from this module
//
// and -only is a regular expression of the names of ratios.
//
// The ranges are wide enough for a machine with other load: they detect a halved ratio, not a decrease by a tenth.
// When a range changes, ratios.json gets the new figures as well, and
//
//	go test ./test/ratios -update
//
// writes the table in docs/decisions/measurements.md.
package ratios
