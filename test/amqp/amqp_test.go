// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"os"
	"strings"
	"testing"
)

// testCase is one case, which all clients run.
type testCase struct {
	name  string
	long  bool     // takes seconds
	needs []string // required capabilities of the client
	run   func(r *run)
}

// Third-party clients pass all cases that they support.
func TestForeignClients(t *testing.T) {
	dir := t.TempDir()
	all := clients(t, dir)
	w := newWorld(t, dir, map[string]string{"limits.queues": "1000"}, nil)
	only := os.Getenv("LOCKSTEP_AMQP_CASE")
	for _, c := range all {
		t.Run(c.name, func(t *testing.T) {
			passed, cannot := 0, []string{}
			for _, one := range append(cases(), failovers()...) {
				if one.long && !c.chosen || only != "" && !strings.Contains(one.name, only) {
					continue
				}
				if t.Failed() && w.dead() {
					t.Fatal("a node exited unexpectedly")
				}
				a := startAdapter(t, c.command)
				if !a.able(one.needs) {
					cannot = append(cannot, one.name)
					_ = a.in.Close()
					continue
				}
				if t.Run(one.name, func(t *testing.T) {
					a.t = t
					r := &run{world: w, t: t, a: a, name: c.name + "." + strings.ReplaceAll(one.name, " ", "-")}
					r.perform(one.run)
				}) {
					passed++
				}
				_ = a.in.Close()
			}
			t.Logf("%s: %d cases passed; not supported by the client: %s", c.name, passed, strings.Join(cannot, ", "))
		})
	}
}
