// SPDX-License-Identifier: Apache-2.0

package site

import (
	"context"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// named is a node of the site with the given name.
type named struct {
	pb.UnimplementedSiteServiceServer

	site      string
	addresses []string
}

func (n *named) GetSite(context.Context, *pb.GetSiteRequest) (*pb.GetSiteResponse, error) {
	return &pb.GetSiteResponse{Site: &pb.SiteState{Name: n.site, Addresses: n.addresses}}, nil
}

func serveNode(t *testing.T, n *named) string {
	t.Helper()
	l, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	require.NoError(t, err)
	s := grpc.NewServer()
	pb.RegisterSiteServiceServer(s, n)
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		require.NoError(t, <-served)
	})
	return l.Addr().String()
}

// A node of this site is not treated as a node of the other site. Addresses of this site in the response of the
// other site are ignored.
func TestRemoteIsNotThisSite(t *testing.T) {
	own := serveNode(t, &named{site: "west"})
	other := serveNode(t, &named{site: "east", addresses: []string{"pod-0:7420", "pod-1:7420"}})
	open := func(configured ...string) *remote {
		r := newRemote(&Options{
			Name: "west", Remote: configured, Addresses: func() []string { return []string{"pod-0:7420"} },
		})
		t.Cleanup(r.close)
		return r
	}

	_, _, err := open(own).find(t.Context())
	require.ErrorIs(t, err, ErrUnreachable)
	require.ErrorIs(t, err, ErrRole)

	r := open(own, other)
	address, state, err := r.find(t.Context())
	require.NoError(t, err)
	require.Equal(t, other, address)
	require.Equal(t, "east", state.GetName())
	require.Equal(t, []string{own, other, "pod-1:7420"}, r.addresses())
}
