// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/server/ops/site"
	"github.com/lockstep-mq/lockstep/server/peerclient"
)

const sitePrincipal = "site"

func (n *node) newSite() {
	n.site = site.New(site.Options{
		Name: n.cfg.Site.Name, Remote: n.cfg.Site.Remote, Dial: n.siteDialOptions(), Store: n.store,
		Logger: n.log.Named("site"), Addresses: n.pairAddresses, Supported: func() error { return n.supports("sites") },
		NotActive: func() error { return n.notActive() }, Changed: func() { n.monitor.wake() },
		Space: n.fileSpace,
	})
	n.site.SetMaxLag(n.cfg.Site.MaxLag.Std())
}

// siteStatus returns the status of the site, for the status, the conditions and the metrics. It returns nil without
// site.name, unless the pair has a role in a group of sites.
func (n *node) siteStatus() *conditions.Site {
	if !n.site.Configured() {
		return nil
	}
	st := n.site.Status()
	out := &conditions.Site{
		Name: st.Name, Role: st.State.Role, Epoch: st.State.Epoch, Active: st.Active, Superseded: st.Superseded(),
		Err: st.Err, Behind: errors.Is(st.Err, site.ErrBehind), Diverged: errors.Is(st.Err, site.ErrDiverged),
		WritesHeld: st.Lag.Held, WriteLag: st.Lag.Age, MaxLag: st.Lag.Limit,
		Replication: conditions.SiteReplication{
			Connected: st.Progress.Connected, HeardAt: st.Progress.HeardAt, Lag: st.Progress.Lag,
			LagRecords: st.Progress.LagRecords, LagBytes: st.Progress.LagBytes,
			ReceivedBytes: st.Progress.ReceivedBytes, Connections: st.Progress.Connections,
		},
	}
	if st.Remote != nil {
		out.Remote = &conditions.RemoteSite{
			Name: st.Remote.GetName(), Role: st.RemoteRole(), Epoch: st.Remote.GetEpoch(),
		}
	}
	return out
}

// difference returns the known difference between the nodes or, if none is known, between the sites. It returns "" if
// the nodes and the sites are not known to differ.
func (n *node) difference() string {
	return cmp.Or(n.maintenance.Difference(), n.site.Difference())
}

func (n *node) siteDialOptions() []grpc.DialOption {
	return n.environment.dialOptions(site.DialOptions(n.secrets.site, n.secrets.siteToken))
}

// supports returns an error if a node of the pair does not support the log records of sites and fleets. feature is the
// name of the feature in the error.
func (n *node) supports(feature string) error {
	st := n.runner.Status()
	if missing, is := st.MissingFeature(failover.FeatureQueues); is {
		return fmt.Errorf("%w: %s", apierror.ErrFeature, missing.Message("does not support "+feature))
	}
	return nil
}

// pairAddresses returns the addresses of the nodes of this pair.
func (n *node) pairAddresses() []string { return addressesOf(n.advertise, n.runner.Status()) }

// addressesOf returns the addresses of the nodes of a pair. own is the address of this node.
func addressesOf(own string, st failover.Status) []string {
	addresses := []string{own}
	if st.Record == nil {
		return addresses
	}
	add := func(address string) {
		if address != "" && !slices.Contains(addresses, address) {
			addresses = append(addresses, address)
		}
	}
	for _, info := range st.Record.Nodes {
		add(info.Address)
	}
	for _, l := range st.Live { // a standby can be in sync before the record contains its address
		if _, member := st.Record.Member(l.Node.ID); member {
			add(l.Node.Address)
		}
	}
	return addresses
}

func (n *node) siteTokenIdentity(ctx context.Context) (*access.Identity, error) {
	if tokens := n.secrets.siteToken; tokens != nil && peerclient.Sent(ctx, site.TokenKey, tokens) {
		return &access.Identity{Principal: sitePrincipal, Method: access.MethodSiteToken, Site: true}, nil
	}
	return nil, nil //nolint:nilnil // another caller
}

// refusal returns the error that rejects clients while this pair serves no queues, or nil.
func (n *node) refusal() *apierror.NotActiveError {
	if refusal := n.site.Refusal(); refusal != nil {
		return refusal
	}
	return n.fleet.Refusal()
}

// runSite starts to serve clients, or stops serving them, after each change of the site's role, until ctx ends.
func (n *node) runSite(ctx context.Context) {
	for {
		changed := n.store.SiteChanged()
		n.plane.serveByRole() //nolint:contextcheck // a session lives as long as the role
		n.runner.Notify()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
	}
}
