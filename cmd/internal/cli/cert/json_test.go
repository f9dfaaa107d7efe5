// SPDX-License-Identifier: Apache-2.0

package cert

import (
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/test/golden"
)

// TestJSON compares the JSON output with golden files.
func TestJSON(t *testing.T) {
	at := time.Date(2026, 11, 22, 0, 0, 0, 0, time.UTC)
	golden.JSON(t, "made", result{Directory: "certs", Certificates: []made{{
		Name: "node-a", For: "peer", Cert: "certs/node-a.pem", Key: "certs/node-a-key.pem", Names: []string{"a.test"},
		Ends: at,
	}}})
	golden.JSON(t, "shown", shown{
		Source: "certs/node-a.pem", Number: 1, Subject: "CN=node-a", Names: []string{"a.test"}, Issuer: "CN=ca",
		Begins: at, Ends: at.AddDate(1, 0, 0), Valid: true, Usage: []string{"client", "server"}, Serial: "1f",
	})
}
