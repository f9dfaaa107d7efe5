// SPDX-License-Identifier: Apache-2.0

package replication

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNegotiate(t *testing.T) {
	for name, c := range map[string]struct {
		newest, oldest uint32
		features       []string
		negotiated     uint32
	}{
		"the same version":                        {ProtocolVersion, OldestProtocol, nil, ProtocolVersion},
		"a node with one version":                 {ProtocolVersion, 0, nil, ProtocolVersion},
		"a newer node that supports this version": {ProtocolVersion + 1, ProtocolVersion, nil, ProtocolVersion},
		"a newer node that does not":              {ProtocolVersion + 2, ProtocolVersion + 1, nil, 0},
		"an older node":                           {OldestProtocol - 1, OldestProtocol - 1, nil, 0},
		"too many features":                       {ProtocolVersion, OldestProtocol, make([]string, maxFeatures+1), 0},
		"a feature with a long name": {
			ProtocolVersion, OldestProtocol,
			[]string{strings.Repeat("x", maxFeatureBytes+1)},
			0,
		},
		"unknown features": {ProtocolVersion, OldestProtocol, []string{"unknown"}, ProtocolVersion},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := negotiate(c.newest, c.oldest, c.features)
			if c.negotiated == 0 {
				require.ErrorIs(t, err, ErrProtocol)
				return
			}
			require.NoError(t, err)
			require.Equal(t, c.negotiated, got.Protocol)
			require.Empty(t, got.Features)
		})
	}
	require.Equal(t, []string{"b", "c"}, common([]string{"a", "c", "b"}, []string{"b", "c", "d"}))
}
