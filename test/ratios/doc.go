// SPDX-License-Identifier: Apache-2.0

// Package ratios measures ratios of rates, and checks them against the ranges in ratios.json, which
// docs/decisions/measurements.md lists. Rates depend on the machine; ratios depend mostly on the program.
//
//	LOCKSTEP_RATIOS=3 go test -tags measure ./test/ratios -run TestRatios -v -timeout 90m
//
// executes LOCKSTEP_RATIOS rounds of all measurements, computes the median of each ratio, prints a table, and fails
// if a ratio is out of range. A ratio above its range means that the documentation is outdated. Further variables:
//
//	LOCKSTEP_PEERS   a directory with peers, as for `lockstep-lab compare`; without it, peers are skipped
//	LOCKSTEP_KEEP    a directory for the output of the measurements, one file per command and round
//	LOCKSTEP_BINARY  a program to measure instead of one built from this module
//
// With -only, a regular expression, only ratios with matching names are measured.
//
// The ranges are wide enough for a machine with other load: they detect a ratio that has halved, but not one that has
// decreased by a tenth. To change a range, add the new measured values to ratios.json. Then
//
//	go test ./test/ratios -update
//
// updates the table in docs/decisions/measurements.md.
package ratios
