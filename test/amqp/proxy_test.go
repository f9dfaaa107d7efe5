// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/test/harness"
)

// Clients that cannot reach the addresses that the nodes advertise continue with their configured addresses after the
// active is killed.
func TestForeignClientsBehindProxy(t *testing.T) {
	dir := t.TempDir()
	all := clients(t, dir)
	if !slices.ContainsFunc(all, func(c client) bool { return c.chosen }) {
		t.Skip("no client is configured to run the cases that take seconds")
	}
	unreachable, err := harness.ReservePort()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unreachable.Close()) })
	w := newWorld(t, dir, map[string]string{"amqp.advertise": unreachable.Address()}, nil)
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			for range attempts(t, 1) {
				a := startAdapter(t, c.command)
				r := &run{world: w, t: t, a: a, name: c.name}
				r.perform(func(r *run) { r.killWhilePublishingTo(r.name) })
				_ = a.in.Close()
			}
		})
	}
}
