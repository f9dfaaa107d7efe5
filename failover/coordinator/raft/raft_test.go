// SPDX-License-Identifier: Apache-2.0

package raft_test

import (
	"strings"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/test/coordtest"
)

func contains(text, part string) bool { return strings.Contains(text, part) }

// awaitTrue polls without failing the test.
func awaitTrue(ok func() bool) bool {
	for end := time.Now().Add(bound); time.Now().Before(end); {
		if ok() {
			return true
		}
		<-time.After(2 * time.Millisecond)
	}
	return false
}

func TestConformance(t *testing.T) {
	t.Parallel()
	coordtest.RunSimulated(t, func(t *testing.T) coordtest.Fixture {
		c := startCluster(t)
		n := 0
		return coordtest.Fixture{
			Exact: true,
			Connect: func(*testing.T) failover.Coordinator {
				n++
				return c.voters[names()[n%3]].Connect()
			},
			Stop: func(*testing.T) {
				for _, name := range names() {
					c.net.isolate(name, true)
				}
			},
			Start: func(*testing.T) {
				for _, name := range names() {
					c.net.isolate(name, false)
				}
			},
		}
	})
}
