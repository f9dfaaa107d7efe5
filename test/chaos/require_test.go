// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// Machine capabilities that some tests require, named as in LOCKSTEP_REQUIRE.
const (
	needsNetns      = "netns"      // root, ip and iptables: networks in which packets are dropped
	needsMount      = "mount"      // root: a small disk
	needsFreeze     = "freeze"     // root, mkfs.ext4 and loop devices: a filesystem that can be frozen
	needsFaultdisk  = "faultdisk"  // a binary built with the tag faultdisk
	needsFaultclock = "faultclock" // a binary with a modified time.Now (test/cluster/clock.go)
	needsHistory    = "history"    // the repository with the last release in it
)

// required reports whether LOCKSTEP_REQUIRE contains a capability, or "all".
func required(label string) bool {
	names := strings.Split(os.Getenv("LOCKSTEP_REQUIRE"), ",")
	return slices.Contains(names, label) || slices.Contains(names, "all")
}

// missingFeature skips a test if the required capability is missing. If LOCKSTEP_REQUIRE contains the capability, or
// "all", the test fails instead.
func missingFeature(t *testing.T, label, format string, args ...any) {
	t.Helper()
	if required(label) {
		t.Fatalf(label+" is required by LOCKSTEP_REQUIRE: "+format, args...)
	}
	t.Skipf(label+" is missing: "+format, args...)
}
