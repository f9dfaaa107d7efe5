// SPDX-License-Identifier: Apache-2.0

//go:build deep

package chaos

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// What some tests need of the machine, by the names that LOCKSTEP_REQUIRE takes.
const (
	needsNetns      = "netns"      // root, ip and iptables: networks in which packets vanish
	needsMount      = "mount"      // root: a small disk
	needsFreeze     = "freeze"     // root, mkfs.ext4 and loop devices: a file system whose writes can be made to wait
	needsFaultdisk  = "faultdisk"  // a binary with the build tag of that name
	needsFaultclock = "faultclock" // a binary whose time.Now was replaced (test/cluster/clock.go)
	needsHistory    = "history"    // the repository with the last release in it
)

// required tells whether LOCKSTEP_REQUIRE names what, or "all".
func required(what string) bool {
	names := strings.Split(os.Getenv("LOCKSTEP_REQUIRE"), ",")
	return slices.Contains(names, what) || slices.Contains(names, "all")
}

// lacks skips a test that needs something which is not there; if LOCKSTEP_REQUIRE names that, or "all", the test fails
// instead, so that a machine which ought to have it cannot pass without.
func lacks(t *testing.T, what, format string, args ...any) {
	t.Helper()
	if required(what) {
		t.Fatalf(what+" is required by LOCKSTEP_REQUIRE: "+format, args...)
	}
	t.Skipf(what+" is not there: "+format, args...)
}
