// SPDX-License-Identifier: Apache-2.0

package site_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/golden"
)

// lockstep verify --site runs with the addresses of either site, or of both.
func TestVerify(t *testing.T) {
	s := startRoles(t)
	equal := &pb.VerifySitesResponse{
		Primary: "east", Replica: "west", Epoch: 3, Logical: 4567, PrimaryLsn: 4567, ReplicaLsn: 4600, Queues: 2,
		Messages: 48113, Held: durationpb.New(40 * time.Millisecond),
	}
	s.east.verified, s.west.verified = equal, equal
	var text strings.Builder
	for _, addr := range []string{s.east.address, s.west.address, s.west.address + "," + s.east.address} {
		c := clitest.CLI{T: t, Addr: addr}
		text.WriteString(c.OK("verify", "--site"))
		require.Equal(t, true, c.Lines("verify", "--site")[0]["ok"])
	}
	equal.Differences = []*pb.SiteDifference{
		{
			Queue: "orders", Primary: &pb.SiteQueueDigest{Name: "orders", Digest: 0xfe, NextSequence: 12, Messages: 3},
			Replica: &pb.SiteQueueDigest{Name: "orders", Digest: 0xff, NextSequence: 12, Messages: 3},
		},
		{Queue: "bills", Primary: &pb.SiteQueueDigest{Name: "bills", Digest: 7, NextSequence: 1}},
		{Primary: &pb.SiteQueueDigest{Digest: 1}, Replica: &pb.SiteQueueDigest{Digest: 2}},
	}
	for _, args := range [][]string{{"verify", "--site"}, {"verify", "--site", "-o", "json"}} {
		stdout, _, code := s.east.cli(t).Run("", args...)
		require.Equal(t, cli.ExitError, code)
		text.WriteString(stdout)
	}
	golden.Text(t, "verify.txt", text.String())

	s.east.refuse = refusal(t, pb.ErrorReason_ERROR_REASON_SITE_NOT_COMPARED)
	_, stderr, code := s.east.cli(t).Run("", "verify", "--site")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "\nTry ")
	for _, flag := range []string{"--deep", "--full-speed"} {
		_, _, code = s.east.cli(t).Run("", "verify", "--site", flag)
		require.Equal(t, cli.ExitUsage, code)
	}
}
