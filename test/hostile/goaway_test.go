// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// A stopping node sends GOAWAY on each connection, and ends its streams with a status, before it closes the connection.
func TestGoAway(t *testing.T) {
	_, active, _, _ := victim(t, nil)
	a := &attacker{plan: plan{Address: active.Address}, tally: map[string]*tally{}}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	h := a.connect(ctx, "goaway")
	require.NotNil(t, h, "%v", a.tally)
	defer func() { _ = h.Close() }()
	require.NoError(t, h.call(1, pb.AdminService_WatchStatus_FullMethodName))
	require.NoError(t, h.WriteData(1, true, framed(nil)))
	stopped := make(chan error, 1)
	go func() { stopped <- active.Stop() }()
	status, goAway := "", false
	for {
		f, err := h.ReadFrame()
		if err != nil {
			break
		}
		switch f := f.(type) {
		case *http2.GoAwayFrame:
			require.Equal(t, http2.ErrCodeNo, f.ErrCode)
			goAway = true
		case *http2.MetaHeadersFrame:
			for _, field := range f.Fields {
				if field.Name == "grpc-status" {
					status = field.Value
				}
			}
		}
	}
	require.NoError(t, <-stopped)
	require.True(t, goAway, "no GOAWAY before the end of the connection")
	require.NotEmpty(t, status, "the stream ended without a status")
}
