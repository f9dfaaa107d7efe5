// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// siteNames are the names of the two sites. The first one is the primary after the first start.
var siteNames = [2]string{"east", "west"}

// connectTimeout limits the wait until the sites reach each other. Sites with diverged logs never connect.
const connectTimeout = 30 * time.Second

// devPair is a pair of lockstep dev.
type devPair struct {
	harness.Options

	name     string // name of the site, or of the pair in its fleet; empty for a single pair
	fleet    bool   // the pair is a member of a fleet
	settings map[string]string
	ports    served
	pair     *harness.Pair // set after the start
	// Set by connectSites.
	role      pb.SiteRole
	connected bool // the site is connected to the other site
}

// label returns the name of a node, with its site or pair if there are several.
func (s *devPair) label(n *harness.Node) string {
	if s.name == "" {
		return n.Name
	}
	return s.name + "/" + n.Name
}

// twoSites returns the pairs of both sites. They share a token in the data directory.
func (f *devFlags) twoSites(ctx context.Context) ([]devPair, error) {
	west, err := freePorts(ctx, "--listen-site", f.listenSite, 2, f.listen[:])
	if err != nil {
		return nil, err
	}
	token := filepath.Join(f.dir, "site-token")
	if err := createToken(token); err != nil {
		return nil, err
	}
	sites := []devPair{
		{Options: harness.Options{Dir: f.dir, Listen: f.listen}},
		{Options: harness.Options{Dir: filepath.Join(f.dir, siteNames[1]), Listen: [2]string(west)}},
	}
	for i := range sites {
		s, other := &sites[i], &sites[1-i]
		s.name, s.ports = siteNames[i], make(served)
		s.settings = map[string]string{
			"site.name": s.name, "site.remote": strings.Join(other.Listen[:], ","), "site.token-file": token,
		}
	}
	return sites, nil
}

// createToken creates a file with a random secret, if it does not exist.
func createToken(name string) error {
	_, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		err = os.WriteFile(name, []byte(rand.Text()+"\n"), 0o600)
	}
	if err != nil {
		return fmt.Errorf("token of the sites: %w", err)
	}
	return nil
}

// connectSites makes the second site the replica of the first one, unless the second site has a role from an earlier
// start. It waits for at most connectTimeout until the sites are connected, and sets the fields role and connected of
// both. It does not fail if the sites are not connected by then.
func connectSites(ctx context.Context, sites []devPair) error {
	role, err := sites[1].readRole(ctx)
	if err != nil {
		return err
	}
	if role == pb.SiteRole_SITE_ROLE_UNSPECIFIED {
		primary, err := sites[0].pair.WaitActive(ctx)
		if err != nil {
			return err
		}
		replica, err := sites[1].pair.WaitActive(ctx)
		if err != nil {
			return err
		}
		request := &pb.DemoteSiteRequest{ReplicaOf: primary.Address}
		if _, err := pb.NewSiteServiceClient(replica.Conn()).DemoteSite(ctx, request); err != nil {
			return cli.WithHint(fmt.Errorf("make site %s the replica of %s: %w", sites[1].name, sites[0].name, err),
				"`--dir` with a new directory")
		}
	}
	wait, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	for i := range sites {
		if err := sites[i].waitConnected(wait); err != nil && wait.Err() == nil {
			return err
		}
	}
	for i := range sites {
		if sites[i].role, err = sites[i].readRole(ctx); err != nil {
			return err
		}
	}
	return nil
}

// waitConnected waits until this site has the state of the other site. If this site is a replica, it also waits until
// the site receives the log of the primary.
func (s *devPair) waitConnected(ctx context.Context) error {
	return s.pair.Wait(ctx, "site "+s.name+" connected to the other one", func(all []*pb.GetStatusResponse) bool {
		for i, st := range all {
			if st.GetRole() != pb.Role_ROLE_ACTIVE && st.GetRole() != pb.Role_ROLE_ACTIVE_ALONE {
				continue
			}
			resp, err := pb.NewSiteServiceClient(s.pair.Nodes[i].Conn()).GetSite(ctx, &pb.GetSiteRequest{})
			s.connected = err == nil && resp.GetRemote() != nil && resp.GetError() == "" &&
				(resp.GetSite().GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY || resp.GetReplication().GetConnected())
		}
		return s.connected
	})
}

func (s *devPair) readRole(ctx context.Context) (pb.SiteRole, error) {
	active, err := s.pair.WaitActive(ctx)
	if err != nil {
		return 0, err
	}
	st, err := active.Status(ctx)
	if err != nil {
		return 0, err
	}
	return st.GetSite().GetRole(), nil
}

func printSites(w io.Writer, sites []devPair) {
	fmt.Fprint(w, "\nTwo sites run until Ctrl-C:\n")
	var all []string
	primary, other := &sites[0], &sites[1]
	if other.role == pb.SiteRole_SITE_ROLE_PRIMARY {
		primary, other = other, primary
	}
	for i := range sites {
		s := &sites[i]
		role := strings.ToLower(strings.TrimPrefix(s.role.String(), "SITE_ROLE_"))
		fmt.Fprintf(w, "site %s is the %s; %s\n", s.name, role, s.pair.Coordinator())
		printNodes(w, s)
		if !s.connected {
			fmt.Fprintf(w, "  site %s is not connected to the other site: see lockstep site status\n", s.name)
		}
		all = append(all, s.pair.Addresses()...)
	}
	if url := jmsURL(sites); url != "" {
		fmt.Fprintf(w, "AMQP 1.0, for Qpid JMS   %s\n", url)
	}
	pids := make([]string, len(primary.pair.Nodes))
	for i, n := range primary.pair.Nodes {
		pids[i] = strconv.Itoa(n.PID())
	}
	fmt.Fprintf(w, `
Try in another terminal:
  export %s=%s
  lockstep queue create orders
  lockstep publish orders "first message"
  lockstep site status
  lockstep site switch --to %s
  kill -9 %s
  lockstep site promote --addr %s --reason "%s is lost"
`, cli.EnvAddr, strings.Join(all, ","), other.name, strings.Join(pids, " "),
		strings.Join(other.pair.Addresses(), ","), primary.name)
}

func printNodes(w io.Writer, s *devPair) {
	for _, n := range s.pair.Nodes {
		fmt.Fprintf(w, "  node %s   %s   process %d   log %s\n", s.label(n), n.Address, n.PID(), n.LogFile())
	}
	for _, n := range s.pair.Nodes {
		if at := s.ports[n.Name][consoleSetting]; at != "" {
			fmt.Fprintf(w, "  console of node %s   http://%s/\n", s.label(n), at)
		}
	}
}
