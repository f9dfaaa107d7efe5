// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package real

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/proto/reason"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

const (
	primary = pb.SiteRole_SITE_ROLE_PRIMARY
	replica = pb.SiteRole_SITE_ROLE_REPLICA
	stopped = pb.SiteRole_SITE_ROLE_STOPPED

	linkDelay     = 20 * time.Millisecond
	linkBandwidth = 20 << 20
)

// site is a pair. Its nodes advertise the addresses of relays, which delay the requests of the other site only.
type site struct {
	name   string
	pair   *harness.Pair
	ports  [2]*harness.Port
	links  [2]*faultproxy.Relay
	amqp   [2]*harness.Port
	start  []string // command that starts its nodes; nil for none
	direct bool     // its nodes advertise their own addresses: no relay is used
	parent string   // directory for its data, or empty for the directory of the test
	dirs   int      // created so far
}

// advertised returns the addresses that the nodes advertise.
func (s *site) advertised() []string {
	if s.direct {
		return []string{s.ports[0].Address(), s.ports[1].Address()}
	}
	return []string{s.links[0].Address(), s.links[1].Address()}
}

// addresses returns the advertised addresses as the value of a setting.
func (s *site) addresses() string { return strings.Join(s.advertised(), ",") }

// owns reports whether a node of the site has the address.
func (s *site) owns(address string) bool {
	for i := range 2 {
		if address == s.ports[i].Address() || address == s.links[i].Address() {
			return true
		}
	}
	return false
}

// world contains the two sites of a test.
type world struct {
	t          *testing.T
	dir        string
	binary     string
	token      string
	settings   map[string]string
	east, west *site
}

// newWorld starts two sites, east as the primary and west as its replica, with these queues.
func newWorld(t *testing.T, settings map[string]string, queues ...string) *world {
	t.Helper()
	w := newSites(t, settings)
	w.begin(queues...)
	return w
}

// begin starts both sites.
func (w *world) begin(queues ...string) {
	w.t.Helper()
	w.start(w.east)
	w.start(w.west)
	w.inSync()
	w.create(queues...)
	w.demote(w.west)
	w.follows(w.west)
}

// create creates queues at east, the primary.
func (w *world) create(queues ...string) {
	w.t.Helper()
	active, _ := w.active(w.t.Context(), w.east)
	for _, q := range queues {
		_, err := pb.NewQueueServiceClient(active.Conn()).CreateQueue(w.t.Context(), &pb.CreateQueueRequest{Name: q})
		require.NoError(w.t, err)
	}
}

// newSites returns two sites that are not started.
func newSites(t *testing.T, settings map[string]string) *world {
	t.Helper()
	dir, err := os.MkdirTemp(os.Getenv("LOCKSTEP_KEEP"), "lockstep-"+t.Name()+"-")
	require.NoError(t, err)
	w := &world{
		t: t, dir: dir, binary: binary, token: filepath.Join(dir, "token"), settings: settings,
		east: &site{name: "east"}, west: &site{name: "west"},
	}
	require.NoError(t, os.WriteFile(w.token, []byte(strings.Repeat("secret", 8)+"\n"), 0o600))
	for _, s := range w.sites() {
		for i := range 2 {
			s.ports[i], err = harness.ReservePort()
			require.NoError(t, err)
			s.links[i], err = faultproxy.Listen(s.ports[i].Address())
			require.NoError(t, err)
			s.amqp[i], err = harness.ReservePort()
			require.NoError(t, err)
		}
		s.shape(linkBandwidth)
	}
	t.Cleanup(w.close)
	return w
}

// shape sets the bandwidth of requests of the other site.
func (s *site) shape(bytesPerSecond int64) {
	for i := range 2 {
		s.links[i].SetShape(faultproxy.Shape{
			Delay: linkDelay, BytesPerSecond: bytesPerSecond,
			Only: func(path string) bool { return strings.HasPrefix(path, "/lockstep.v1.SiteService/") },
		})
	}
}

// cut holds the data of requests of the other site to this site.
func (s *site) cut() {
	for i := range 2 {
		s.links[i].CutShaped()
	}
}

// heal ends cut. The held data is lost, as are all connections to the site through its relays.
func (s *site) heal() {
	for i := range 2 {
		s.links[i].Reset()
		s.links[i].HealShaped()
	}
}

func (w *world) sites() []*site { return []*site{w.east, w.west} }

func (w *world) other(s *site) *site {
	if s == w.east {
		return w.west
	}
	return w.east
}

// nextDir returns a new directory for the data of a site.
func (w *world) nextDir(s *site) string {
	s.dirs++
	return filepath.Join(cmp.Or(s.parent, w.dir), fmt.Sprintf("%s-%d", s.name, s.dirs))
}

// start starts a site with empty nodes.
func (w *world) start(s *site) { w.startIn(s, w.nextDir(s)) }

// startIn starts a site. The data in the directory a/data, if any, is the content of the pair.
func (w *world) startIn(s *site, dir string) {
	w.t.Helper()
	settings := harness.SmallNodes()
	maps.Copy(settings, map[string]string{
		"site.name": s.name, "site.remote": w.other(s).addresses(), "site.token-file": w.token, "insecure": "true",
	})
	maps.Copy(settings, w.settings)
	address := map[string]string{"a": s.ports[0].Address(), "b": s.ports[1].Address()}
	advertised := s.advertised()
	var err error
	s.pair, err = harness.Start(limited(w.t), harness.Options{
		Binary: w.binary, Dir: dir, Settings: settings, EtcdNoSync: true, AFirst: true,
		NodeSettings: map[string]map[string]string{
			"a": {"advertise": advertised[0], "amqp.listen": s.amqp[0].Address()},
			"b": {"advertise": advertised[1], "amqp.listen": s.amqp[1].Address()},
		},
		Placement: func(name, _ string) (harness.Placement, error) {
			return harness.Placement{Address: address[name], Command: s.start}, nil
		},
	})
	require.NoError(w.t, err, "see %s", w.dir)
}

func (w *world) close() {
	for _, s := range w.sites() {
		if s.pair != nil {
			for _, n := range s.pair.Nodes {
				if w.t.Failed() && n.Running() {
					_ = n.Dump()
				}
			}
			if err := s.pair.KillAll(); err != nil {
				w.t.Log(err)
			}
		}
		for i := range 2 {
			_ = s.links[i].Close()
			_ = s.ports[i].Close()
			_ = s.amqp[i].Close()
		}
	}
	if w.t.Failed() {
		w.t.Logf("kept: %s", w.dir)
		return
	}
	_ = os.RemoveAll(w.dir)
}

// client returns a client with the addresses of both sites. Its connections are not delayed.
func (w *world) client() *client.Client {
	w.t.Helper()
	direct := map[string]string{}
	var addresses []string
	for _, s := range w.sites() {
		for i := range 2 {
			direct[s.links[i].Address()] = s.ports[i].Address()
			addresses = append(addresses, s.ports[i].Address())
		}
	}
	c, err := client.OpenWith(w.t.Context(), client.Options{
		Addresses: addresses,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
			if to := direct[address]; to != "" {
				address = to
			}
			var d net.Dialer
			return d.DialContext(ctx, "tcp", address)
		})},
	})
	require.NoError(w.t, err)
	w.t.Cleanup(func() { _ = c.Close() })
	return c
}

// inSync waits until both pairs are in sync.
func (w *world) inSync() {
	w.t.Helper()
	for _, s := range w.sites() {
		_, _, err := s.pair.WaitInSync(limited(w.t))
		require.NoError(w.t, err, "site %s, see %s", s.name, w.dir)
	}
}

func service(n *harness.Node) pb.SiteServiceClient { return pb.NewSiteServiceClient(n.Conn()) }

// active returns the active node of a site and the state that it reports; nil if none responds.
func (w *world) active(ctx context.Context, s *site) (*harness.Node, *pb.SiteState) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	type answer struct {
		node  *harness.Node
		state *pb.SiteState
	}
	answers := make(chan answer, 2)
	for _, n := range s.pair.Nodes {
		go func() {
			resp, err := service(n).GetSite(ctx, &pb.GetSiteRequest{Local: true})
			if err != nil {
				answers <- answer{}
				return
			}
			answers <- answer{n, resp.GetSite()}
		}()
	}
	for range 2 {
		if a := <-answers; a.node != nil {
			return a.node, a.state
		}
	}
	return nil, nil
}

// has reports whether the active of a site reports a role.
func (w *world) has(ctx context.Context, s *site, role pb.SiteRole) bool {
	_, state := w.active(ctx, s)
	return state != nil && state.GetRole() == role
}

// demote makes a site the replica of the other site.
func (w *world) demote(s *site) {
	w.t.Helper()
	var err error
	eventually(w.t, "demotion of "+s.name, func(ctx context.Context) bool {
		n, _ := w.active(ctx, s)
		if n == nil {
			return false
		}
		_, err = service(n).DemoteSite(ctx, &pb.DemoteSiteRequest{})
		return err == nil || reasonOf(err) == pb.ErrorReason_ERROR_REASON_SITE_DIVERGED
	})
	require.NoError(w.t, err)
}

// follows waits until a site is a replica that receives the log of the other site.
func (w *world) follows(s *site) {
	w.t.Helper()
	eventually(w.t, s.name+" follows", func(ctx context.Context) bool {
		_, r := w.replication(ctx, s)
		return r.GetConnected()
	})
}

// replication returns the status of a replica; nil if its active does not respond.
func (w *world) replication(ctx context.Context, s *site) (*pb.SiteState, *pb.SiteReplication) {
	n, state := w.active(ctx, s)
	if n == nil || state.GetRole() != replica {
		return state, nil
	}
	resp, err := service(n).GetSite(ctx, &pb.GetSiteRequest{})
	if err != nil {
		return nil, nil
	}
	return resp.GetSite(), resp.GetReplication()
}

// equal waits until all nodes of both sites have the same content. No client may publish.
func (w *world) equal() {
	w.t.Helper()
	var last []string
	eventually(w.t, "equal digests", func(ctx context.Context) bool {
		last = nil
		for _, s := range w.sites() {
			for _, n := range s.pair.Nodes {
				resp, err := pb.NewAdminServiceClient(n.Conn()).GetQueueDigests(ctx, &pb.GetQueueDigestsRequest{})
				if err != nil {
					return false
				}
				last = append(last, fmt.Sprint(resp.GetDigest(), resp.GetQueues()))
			}
		}
		return len(slices.Compact(slices.Clone(last))) == 1
	})
	w.t.Log("equal content on four nodes: ", last[0])
}

func reasonOf(err error) pb.ErrorReason { return reason.Parse(infoOf(err).GetReason()) }

func metadataOf(err error) map[string]string { return infoOf(err).GetMetadata() }

func infoOf(err error) *errdetails.ErrorInfo {
	for _, d := range status.Convert(err).Details() {
		if info, ok := d.(*errdetails.ErrorInfo); ok {
			return info
		}
	}
	return nil
}
