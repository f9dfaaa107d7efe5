// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A starting voter participates after one round in which one member responded, and the other member did not respond
// until the timeout.
func TestSilentVoterDelaysStartOnce(t *testing.T) {
	began := time.Now()
	members, known := []string{"b:1", "w:1"}, map[string]hello{}
	v := &Voter{opts: Options{RequestTimeout: time.Second}, hellos: make(map[string]receivedHello)}
	require.False(t, v.hasEnoughHellos(members, known, began.Add(10*time.Second)), "no member has responded")

	began = began.Add(10 * time.Second)
	known["b:1"] = hello{}
	v.hellos["b:1"] = receivedHello{polled: began, at: began.Add(5 * time.Millisecond)}
	require.False(t, v.hasEnoughHellos(members, known, began.Add(999*time.Millisecond)), "one member may still respond")
	require.True(t, v.hasEnoughHellos(members, known, began.Add(time.Second)))

	v.firstResponse = time.Time{}
	known["w:1"] = hello{}
	v.hellos["w:1"] = v.hellos["b:1"]
	require.True(t, v.hasEnoughHellos(members, known, began.Add(5*time.Millisecond)), "all members have responded")
}
