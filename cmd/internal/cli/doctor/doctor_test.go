// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd/embedded"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// inspect returns an inspector for a valid configuration to which change was applied.
func inspect(t *testing.T, change func(*config.Config)) *inspector {
	t.Helper()
	cfg := config.Default()
	cfg.Coordinator.Type, cfg.Data.Dir = config.CoordinatorNone, filepath.Join(t.TempDir(), "data")
	require.NoError(t, os.Mkdir(cfg.Data.Dir, 0o700))
	cfg.Listen = "127.0.0.1:0"
	change(&cfg)
	in := &inspector{o: Options{Config: cfg}, cfg: cfg, now: time.Now()}
	in.place, in.made = nearest(cfg.Data.Dir)
	return in
}

// reported checks a finding. Each finding except an OK one has a meaning, and a problem has a recommended action.
func reported(t *testing.T, f Finding, v Verdict, words ...string) {
	t.Helper()
	text := fmt.Sprintf("%+v", f)
	require.Equal(t, v, f.Verdict, text)
	for _, w := range words {
		require.Contains(t, text, w)
	}
	if v != OK {
		require.NotEmpty(t, f.Meaning, text)
	}
	if v == Problem || v == Warning {
		require.NotEmpty(t, f.Do, text)
	}
}

func TestDirectory(t *testing.T) {
	in := inspect(t, func(*config.Config) {})
	dir := in.cfg.Data.Dir
	check := func() Finding { return checkDirectory(t.Context(), in)[0] }
	reported(t, check(), OK, dir)
	require.NoError(t, os.Chmod(dir, 0o755))
	reported(t, check(), Warning, "chmod 750")
	require.NoError(t, os.Chmod(dir, 0o777))
	reported(t, check(), Problem, "other users", "chmod 750")
	require.NoError(t, os.Chmod(dir, 0o750)) // the mode used by a node
	reported(t, check(), OK)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, left, "the check leaves no file")

	in = inspect(t, func(c *config.Config) { c.Data.Dir = filepath.Join(c.Data.Dir, "a", "b") })
	require.False(t, in.made)
	reported(t, check(), OK, "does not exist yet")
	_, err = os.Stat(in.cfg.Data.Dir)
	require.ErrorIs(t, err, os.ErrNotExist, "no directory is created")
	in = inspect(t, func(c *config.Config) {
		c.Data.Dir = filepath.Join(c.Data.Dir, "file")
		require.NoError(t, os.WriteFile(c.Data.Dir, nil, 0o600))
	})
	reported(t, check(), Problem, "is a file")
	if _, err := os.Stat("/proc/self"); err == nil { // where no file can be created
		in = inspect(t, func(c *config.Config) { c.Data.Dir = "/proc/self" })
		reported(t, check(), Problem, "/proc/self")
		reported(t, checkSync(t.Context(), in)[0], Problem)
	}
}

func TestSpace(t *testing.T) {
	in := inspect(t, func(*config.Config) {})
	check := func() Finding { return checkSpace(t.Context(), in)[0] }
	in.cfg.Disk.LowWatermark = 1 << 60
	reported(t, check(), Problem, "disk.low-watermark")
	in.cfg.Disk.LowWatermark, in.cfg.WAL.KeepBytes = 0, 1<<60
	reported(t, check(), Warning, "wal.keep-bytes")
	in.cfg.WAL.KeepBytes, in.cfg.Checkpoint.Bytes, in.cfg.WAL.SegmentBytes = 0, 0, 0
	reported(t, check(), OK, "free")
}

func TestSync(t *testing.T) {
	in := inspect(t, func(*config.Config) {})
	f := checkSync(t.Context(), in)[0]
	require.Contains(t, f.Measured, fmt.Sprintf("%d writes", syncs))
	in.owner = 1
	require.Contains(t, checkSync(t.Context(), in)[0].Measured, fmt.Sprintf("%d writes", concurrentSyncs))
	in.cfg.Disk.StallTimeout = 1
	reported(t, checkSync(t.Context(), in)[0], Problem, "disk.stall-timeout")
	in.cfg.Disk.StallTimeout, in.cfg.Sync = config.Duration(time.Hour), "off"
	reported(t, checkSync(t.Context(), in)[0], OK, "do not wait")
	left, err := os.ReadDir(in.place)
	require.NoError(t, err)
	require.Empty(t, left)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	reported(t, checkSync(ctx, in)[0], Problem)
}

func TestMemory(t *testing.T) {
	const gibibyte = 1 << 30
	for _, c := range []struct {
		budget, machine, group uint64
		verdict                Verdict
		want                   string
	}{
		{gibibyte, 4 * gibibyte, 0, OK, "the machine has 4.0 GiB"},
		{gibibyte, 4 * gibibyte, 2 * gibibyte, OK, "the control group has 2.0 GiB"},
		{2 * gibibyte, 64 * gibibyte, gibibyte, Problem, "the control group has 1.0 GiB"},
		{9 * gibibyte, 10 * gibibyte, 0, Warning, "the machine"},
		{gibibyte, 2 * gibibyte, 64 * gibibyte, OK, "the machine"},
		{gibibyte, 0, 0, NotChecked, "unknown"},
	} {
		reported(t, memoryFinding(c.budget, c.machine, c.group)[0], c.verdict, c.want)
	}
	in := inspect(t, func(c *config.Config) { c.Memory.Budget = 1 << 60 })
	if f := checkMemory(t.Context(), in)[0]; f.Verdict != NotChecked {
		reported(t, f, Problem, "memory.budget")
	}
	in.cfg.Limits.Connections = 1 << 40
	if f := checkOpenFiles(t.Context(), in)[0]; f.Verdict != NotChecked {
		reported(t, f, Warning, "LimitNOFILE")
	}
}

func TestPorts(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = taken.Close() }()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := free.Addr().String()
	require.NoError(t, free.Close())
	in := inspect(t, func(c *config.Config) {
		c.Listen, c.Metrics.Listen, c.AMQP.Listen = taken.Addr().String(), address, taken.Addr().String()
	})
	all := checkPorts(t.Context(), in)
	require.Len(t, all, 3)
	reported(t, all[0], Problem, "listen", "is in use by")
	reported(t, all[1], OK, "metrics.listen", "is free")
	reported(t, all[2], Problem, "amqp.listen", "is in use by")
	if runtime.GOOS == "linux" { // elsewhere, the owner is unknown
		pid := portOwner(taken.Addr().(*net.TCPAddr).Port)
		require.Equal(t, os.Getpid(), pid)
		require.Contains(t, all[0].Measured, fmt.Sprint(os.Getpid()))
		in.owner = pid
		reported(t, checkPorts(t.Context(), in)[0], OK, "by the node with this data directory")
	}
	_, port, err := net.SplitHostPort(taken.Addr().String())
	require.NoError(t, err)
	reported(t, in.port(t.Context(), net.JoinHostPort("192.0.2.1", port)), Problem, "advertise")
	reported(t, in.port(t.Context(), "nowhere"), Problem, "host:port")
	reported(t, in.port(t.Context(), "127.0.0.1:0"), OK)
}

func TestCertificates(t *testing.T) {
	ours, theirs := certs.New(t, "ours"), certs.New(t, "theirs")
	year := &x509.Certificate{
		DNSNames: []string{"node-a"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotBefore: time.Now().Add(-time.Hour),
		NotAfter: time.Now().AddDate(1, 0, 0),
	}
	_, good, goodKey := ours.IssueFrom(t, "good", year)
	_, hour, hourKey := ours.Issue(t, "hour", "node-a")
	_, over, overKey := ours.IssueFrom(t, "over", &x509.Certificate{
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	})
	_, early, earlyKey := ours.IssueFrom(t, "early", &x509.Certificate{
		NotBefore: time.Now().Add(time.Hour), NotAfter: time.Now().Add(2 * time.Hour),
	})
	_, foreign, foreignKey := theirs.IssueFrom(t, "strange", &x509.Certificate{
		DNSNames: []string{"node-a"}, NotBefore: year.NotBefore, NotAfter: year.NotAfter,
	})
	garbage := filepath.Join(t.TempDir(), "garbage.pem")
	require.NoError(t, os.WriteFile(garbage, []byte("garbage"), 0o600))
	for _, f := range []string{goodKey, hourKey, overKey, earlyKey, foreignKey} {
		require.NoError(t, os.Chmod(f, 0o600))
	}
	for name, c := range map[string]struct {
		ca, cert, key, advertise string
		verdict                  Verdict
		want                     string
	}{
		"good":           {ours.File, good, goodKey, "node-a:7420", OK, "node-a"},
		"good address":   {ours.File, good, goodKey, "", OK, "127.0.0.1"},
		"wrong name":     {ours.File, good, goodKey, "node-b:7420", Problem, "node-b"},
		"expires soon":   {ours.File, hour, hourKey, "node-a:7420", Warning, "expires soon"},
		"expired":        {ours.File, over, overKey, "", Problem, "expired"},
		"not valid yet":  {ours.File, early, earlyKey, "", Problem, "not valid before"},
		"other key":      {ours.File, good, hourKey, "", Problem, "they must match"},
		"other CA":       {ours.File, foreign, foreignKey, "node-a:7420", Problem, "not issued by the CA"},
		"no file":        {ours.File, good + "x", goodKey, "", Problem, "cert show"},
		"no CA file":     {garbage + "x", good, goodKey, "", Problem, "CA certificates"},
		"no certificate": {garbage, good, goodKey, "", Problem, "PEM"},
	} {
		t.Run(name, func(t *testing.T) {
			in := inspect(t, func(cfg *config.Config) {
				cfg.TLS.CA, cfg.TLS.Cert, cfg.TLS.Key, cfg.Advertise = c.ca, c.cert, c.key, c.advertise
			})
			all := checkCertificates(t.Context(), in)
			require.Len(t, all, 1)
			reported(t, all[0], c.verdict, c.want)
		})
	}
	in := inspect(t, func(c *config.Config) { c.TLS.CA, c.TLS.Cert, c.TLS.Key = ours.File, good, goodKey })
	for _, mode := range []os.FileMode{0o644, 0o660, 0o602} {
		require.NoError(t, os.Chmod(goodKey, mode))
		all := checkCertificates(t.Context(), in)
		require.Len(t, all, 2)
		reported(t, all[0], OK, "node-a")
		reported(t, all[1], Warning, "chmod 640")
		require.Equal(t, "tls", all[1].Subject)
	}
	require.NoError(t, os.Chmod(goodKey, 0o640)) // root:lockstep, as installed by a package
	reported(t, checkCertificates(t.Context(), in)[0], OK, "node-a")
	// A client certificate is not sufficient for a node.
	template := *year
	pair := ours.Client(t, "client", func(c *x509.Certificate) { c.NotAfter = template.NotAfter })
	var err error
	pair.Leaf, err = x509.ParseCertificate(pair.Certificate[0])
	require.NoError(t, err)
	u := use{name: "tls", usages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	f := u.chain(pair, ours.Pool(), time.Now())
	require.NotNil(t, f)
	reported(t, *f, Problem, "valid for both")

	// The certificates of clients of the metrics and the console can have a different CA than those of the server.
	in = inspect(t, func(c *config.Config) {
		c.Metrics.TLS.CA, c.Metrics.TLS.Cert, c.Metrics.TLS.Key = ours.File, foreign, foreignKey
		c.Console.TLS.CA, c.Console.TLS.Cert, c.Console.TLS.Key = ours.File, over, overKey
	})
	all := checkCertificates(t.Context(), in)
	require.Len(t, all, 3)
	reported(t, all[1], OK, "node-a")
	reported(t, all[2], Problem, "expired")
	require.Equal(t, "console.tls", all[2].Subject)

	in = inspect(t, func(*config.Config) {})
	reported(t, checkCertificates(t.Context(), in)[0], OK, "this machine only")
	in.cfg.Listen, in.cfg.Insecure = "0.0.0.0:7420", true
	reported(t, checkCertificates(t.Context(), in)[0], Warning, "cert init")
}

// A readable key does not hide that the certificate has expired.
func TestExpiredCertificateWithReadableKey(t *testing.T) {
	ca := certs.New(t, "ca")
	_, cert, key := ca.IssueFrom(t, "expired", &x509.Certificate{
		NotBefore: time.Now().Add(-2 * time.Hour), NotAfter: time.Now().Add(-time.Hour),
	})
	require.NoError(t, os.Chmod(key, 0o644))
	in := inspect(t, func(c *config.Config) { c.TLS.CA, c.TLS.Cert, c.TLS.Key = ca.File, cert, key })
	all := checkCertificates(t.Context(), in)
	require.Len(t, all, 2)
	reported(t, all[0], Problem, "expired")
	reported(t, all[1], Warning, "chmod 640")
}

// A clock offset does not hide that the other node belongs to another pair.
func TestPeerOfAnotherPairWithClockOffset(t *testing.T) {
	in := inspect(t, func(*config.Config) {})
	in.keepRecord(&failover.Record{PairID: uuid.New()})
	status := func(pair uuid.UUID) *pb.GetStatusResponse {
		return &pb.GetStatusResponse{
			Now: timestamppb.New(in.now.Add(time.Minute)), Pair: &pb.PairStatus{PairId: pair.String()},
		}
	}
	reported(t, in.checkPeer(status(in.record.PairID), in.now, 0), Warning, "offset 1m0s", "NTP")
	reported(t, in.checkPeer(status(uuid.New()), in.now, 0), Problem, "offset 1m0s", "another pair")
}

func TestEtcd(t *testing.T) {
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: t.TempDir(), UnsafeNoFsync: true})
	require.NoError(t, err)
	defer func() { _ = server.Close() }()
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and sends nothing
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	in := inspect(t, func(c *config.Config) {
		c.Coordinator.Type = config.CoordinatorEtcd
		c.Coordinator.Etcd.Endpoints = []string{server.Address(), "127.0.0.1:1", silent.Addr().String()}
	})
	all := checkEtcd(t.Context(), in)
	require.Len(t, all, 5)
	reported(t, all[0], OK, "etcd 3.", "responds in")
	reported(t, all[1], Problem, "refused", "firewall")
	reported(t, all[2], Problem, "no response", "TLS")
	reported(t, all[3], Warning, "1 member", "run three")
	reported(t, all[4], OK, "none yet")
	_, asked := in.pairRecord()
	require.True(t, asked)
	in.cfg.Coordinator.Etcd.Endpoints = []string{"127.0.0.1:1"}
	require.Len(t, checkEtcd(t.Context(), in), 1)
	in.cfg.Coordinator.Type = config.CoordinatorNone
	require.Empty(t, checkEtcd(t.Context(), in))
}

// On this machine each check returns a verdict and the observed value.
func TestEveryCheck(t *testing.T) {
	in := inspect(t, func(*config.Config) {})
	all := Run(t.Context(), Options{Config: in.cfg})
	seen := map[string]bool{}
	for _, f := range all {
		seen[f.Check] = true
		reported(t, f, f.Verdict)
		require.True(t, f.Measured != "" || f.Verdict == NotChecked, "%+v", f)
	}
	for _, name := range strings.Split("clock,filesystem,free space,data directory,disk sync,ports,certificates,memory,"+
		"open files,kernel,processors,pair", ",") {
		require.True(t, seen[name], name)
	}
}
