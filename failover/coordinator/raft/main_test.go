// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"flag"
	"os"
	"testing"
)

// TestMain runs the tests in parallel: they wait for elections and timeouts, and use little CPU.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
