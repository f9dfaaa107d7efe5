// SPDX-License-Identifier: Apache-2.0

//go:build measure

package ratios

import (
	"cmp"
	"flag"
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

var onlyFlag = flag.String("only", "", "measure only the ratios with names that match this regular expression")

// All measured ratios are within their ranges.
func TestRatios(t *testing.T) {
	text := cmp.Or(os.Getenv("LOCKSTEP_RATIOS"), "3")
	rounds, err := strconv.Atoi(text)
	require.NoError(t, err, "LOCKSTEP_RATIOS must be a number of rounds")
	require.Positive(t, rounds)
	e := expected(t)
	only, err := regexp.Compile(*onlyFlag)
	require.NoError(t, err)
	e.only(only)
	require.NotEmpty(t, e.Ratios, "no ratio matches %q", *onlyFlag)
	m := measurer{
		program: []string{program(t)}, peers: os.Getenv("LOCKSTEP_PEERS"), keep: os.Getenv("LOCKSTEP_KEEP"), log: t.Logf,
	}
	if m.peers != "" {
		require.DirExists(t, m.peers, "LOCKSTEP_PEERS")
	}
	if m.keep != "" {
		require.NoError(t, os.MkdirAll(m.keep, 0o750))
	}
	shown, failures := table(m.measure(t.Context(), e, rounds))
	t.Logf("medians of %d rounds:\n%s", rounds, shown)
	require.Zero(t, failures, "ratios out of range:\n%s", shown)
}
