// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The replace command in messages is complete, even with TLS.
func TestReplaceCommand(t *testing.T) {
	v := &Voter{opts: Options{Voters: []string{"h:1", "h:2", "h:3"}}}
	require.Equal(t, "lockstep pair replace id h:3", v.replaceCommand("id", "h:3"))
	v.opts.TLS = &TLS{CA: "ca.pem", Cert: "a.pem", Key: "a-key.pem"}
	require.Equal(t, "lockstep pair replace id h:3 --voters h:1,h:2,h:3 --raft-ca ca.pem --raft-cert a.pem "+
		"--raft-key a-key.pem", v.replaceCommand("id", "h:3"))
}
