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
		"the same":                       {ProtocolVersion, OldestProtocol, nil, ProtocolVersion},
		"a build that names one version": {ProtocolVersion, 0, nil, ProtocolVersion},
		"a newer one that speaks ours":   {ProtocolVersion + 1, ProtocolVersion, nil, ProtocolVersion},
		"a newer one that does not":      {ProtocolVersion + 2, ProtocolVersion + 1, nil, 0},
		"an older one":                   {OldestProtocol - 1, OldestProtocol - 1, nil, 0},
		"too many features":              {ProtocolVersion, OldestProtocol, make([]string, maxFeatures+1), 0},
		"a feature that is no name": {
			ProtocolVersion, OldestProtocol,
			[]string{strings.Repeat("x", maxFeatureBytes+1)},
			0,
		},
		"features that we do not know": {ProtocolVersion, OldestProtocol, []string{"teleport"}, ProtocolVersion},
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
