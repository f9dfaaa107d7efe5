// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"testing"

	"github.com/lockstep-mq/lockstep/cmd/internal/profiles"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	golden.JSON(t, "profile", newShown("production", &profiles.Profile{
		Addresses: []string{"a:7420", "b:7420"}, CA: "/ca.pem", Certificate: "/c.pem", Key: "/k.pem",
		Token: "lsk_01234567890123456789ABCD", TokenFile: "/token",
	}, "production"))
}
