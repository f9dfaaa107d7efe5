// SPDX-License-Identifier: Apache-2.0

package etcd_test

import (
	"flag"
	"os"
	"testing"
)

// TestMain permits four parallel tests, because the tests wait for leases and timeouts, and use little CPU.
func TestMain(m *testing.M) {
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}
