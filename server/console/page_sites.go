// SPDX-License-Identifier: Apache-2.0

package console

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/ops/site/siteloss"
)

func sitesPage() Page {
	h := &history{}
	return Page{
		Path: "/sites", Title: "Sites", Key: "i", Right: "operate", Template: "sites", Live: true,
		Offered: func(st *pb.GetStatusResponse) bool { return st.GetSite() != nil },
		Load: func(ctx context.Context, v *View) (any, error) {
			d, err := loadSites(ctx, v)
			if err != nil {
				return nil, err
			}
			d.chart(ctx, v, h)
			return d, nil
		},
		Actions: []Action{{
			Name: "switch", Title: "Switch to the other site", Right: "operate", Dialog: "switch",
			Load: withSites(loadSwitch), Do: withSites(doSwitch),
		}},
	}
}

// withSites is like withActive, but passes a client of SiteService.
func withSites[T any](
	fn func(context.Context, *View, pb.SiteServiceClient) (T, error),
) func(context.Context, *View) (T, error) {
	return withActive(pb.NewSiteServiceClient, fn)
}

type sitesView struct {
	Known bool // the pair has a role in a group of sites, or site.name is set
	// Sites contains this site and, if it is known, the other site.
	Sites []*oneSite
	Link  link
	// Replication is nil unless this site is a replica with an active that responds.
	Replication *pb.SiteReplication
	// Contact is the time since the last contact with the primary. Loss describes the transactions that a promotion at
	// this time would lose.
	Contact    time.Duration
	Loss       string
	Lag        *chart
	Error      string
	Files      []lostFile
	Conditions []*pb.Condition
	// CanSwitch reports whether this site is a primary and the other site a replica.
	CanSwitch bool
	Commands  []siteCommand
}

// oneSite is the state of one site, as known to this site.
type oneSite struct {
	*pb.SiteState

	Own   bool
	State label
	// Last is the position of the last known record. At is the time of the state.
	Last *pb.Position
	At   *timestamppb.Timestamp
}

func newOneSite(s *pb.SiteState) *oneSite {
	return &oneSite{SiteState: s, State: siteRoleOf(s.GetRole()), Last: s.GetApplied(), At: s.GetNow()}
}

// Title returns the name of a site. If the name is unknown, it returns a description.
func (s *oneSite) Title() string {
	return cmp.Or(s.GetName(), map[bool]string{true: "this site", false: "other site"}[s.Own])
}

// lostFile is a file with records that a promoted site or node does not have.
type lostFile struct {
	*pb.UnusedFile

	Node string
}

// siteCommand is a command line for a change that the console does not perform.
type siteCommand struct{ Title, Text, Line string }

// getSite returns the state of both sites, as reported by the active or, if no node is active, by this node.
func (v *View) getSite(ctx context.Context) (*pb.GetSiteResponse, error) {
	cc, err := v.Active(ctx)
	if errors.Is(err, errNoActive) {
		cc, err = v.Own(), nil
	}
	if err != nil {
		return nil, err
	}
	return pb.NewSiteServiceClient(cc).GetSite(ctx, &pb.GetSiteRequest{})
}

func loadSites(ctx context.Context, v *View) (*sitesView, error) {
	st, err := v.getSite(ctx)
	if err != nil {
		return nil, err
	}
	own, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	d := newSites(st, own.GetSite())
	d.addNodes(nodes)
	return d, nil
}

// newSites creates the view from the response of a node and from info, which contains the addresses of the other
// site. info is nil if the pair has no sites.
func newSites(st *pb.GetSiteResponse, info *pb.SiteInfo) *sitesView {
	here, there := newOneSite(st.GetSite()), newOneSite(st.GetRemote())
	here.Own = true
	d := &sitesView{
		Known: info != nil, Sites: []*oneSite{here}, Replication: st.GetReplication(), Error: plain(st.GetError()),
	}
	if there.SiteState == nil {
		there.SiteState = &pb.SiteState{Addresses: info.GetRemoteAddresses()}
		there.State = label{"not responding", "bad"}
	}
	if len(there.GetAddresses()) > 0 {
		d.Sites = append(d.Sites, there)
	}
	d.Link.ToFirst = here.GetRole() == pb.SiteRole_SITE_ROLE_REPLICA
	d.Link.State = label{"responds", "info"}
	if d.Error != "" || st.GetRemote() == nil {
		d.Link.State = label{"not responding", "bad"}
	}
	if r := d.Replication; r != nil {
		d.addReplication(st, r, there)
	}
	d.CanSwitch = here.GetRole() == pb.SiteRole_SITE_ROLE_PRIMARY && there.GetRole() == pb.SiteRole_SITE_ROLE_REPLICA
	d.Commands = siteCommands(here, there)
	return d
}

func (d *sitesView) addReplication(st *pb.GetSiteResponse, r *pb.SiteReplication, primary *oneSite) {
	d.Link.State = label{"not connected", "bad"}
	if r.GetConnected() {
		d.Link.State = label{"connected", "good"}
	}
	// primary contains the state at the start of the stream: use the newer end of the log in r.
	if r.GetConnected() && r.GetHeardAt().AsTime().After(primary.At.AsTime()) {
		primary.Last, primary.At = r.GetPrimaryEnd(), r.GetHeardAt()
	}
	if r.GetHeardAt() != nil {
		d.Link.Lag = lagText(r)
	}
	loss := siteloss.New(st, nil)
	d.Contact = time.Duration(loss.AgeSeconds * float64(time.Second))
	d.Loss = loss.Text(func(t time.Time) string { return clockTime(t) })
}

// lagText returns the lag in records, in bytes and in seconds, as text.
func lagText(r *pb.SiteReplication) []string {
	return []string{
		formatNumber(r.GetLagRecords()) + " records", formatBytes(r.GetLagBytes()),
		formatNumber(r.GetLag().AsDuration().Seconds()) + " s",
	}
}

// addNodes adds the conditions about sites and the files with lost transactions that the nodes of the pair
// report.
func (d *sitesView) addNodes(nodes []*nodeView) {
	for _, c := range mergeConditions(nodes) {
		if strings.HasPrefix(c.GetKind(), "site-") ||
			slices.Contains([]string{"superseded-by-site", "two-primaries", "digests-differ"}, c.GetKind()) {
			d.Conditions = append(d.Conditions, c)
		}
	}
	for _, n := range nodes {
		for _, f := range n.Status.GetStore().GetUnusedFiles() {
			if f.GetKind() == "cut-log" {
				d.Files = append(d.Files, lostFile{f, n.Name()})
			}
		}
	}
}

// siteCommands returns the command lines of the changes that the role of this site permits.
func siteCommands(here, there *oneSite) (list []siteCommand) {
	other := "ADDRESS"
	if known := there.GetAddresses(); len(known) > 0 {
		other = known[0]
	}
	at := " --addr " + strings.Join(here.GetAddresses(), ",")
	demote := siteCommand{
		"Make this site a replica", "It follows the other site, unless this site has transactions that the other " +
			"site lacks. Then the command fails, and a former primary saves these transactions to a file: copy it, then " +
			"set this site up again with lockstep site seed.",
		"lockstep site demote" + at + " --replica-of " + other,
	}
	promote := siteCommand{
		"Promote this site without the primary", "Use it only if the other site is lost: transactions that this site has " +
			"not received are lost.",
		"lockstep site promote" + at + " --reason TEXT",
	}
	switch role := here.GetRole(); {
	case role == pb.SiteRole_SITE_ROLE_REPLICA:
		return []siteCommand{{
			"Switch to this site", "Nothing is lost. The console of the primary offers it as well.",
			"lockstep site switch" + at + " --to " + cmp.Or(here.GetName(), "SITE"),
		}, promote}
	case role == pb.SiteRole_SITE_ROLE_STOPPED:
		return []siteCommand{promote, demote}
	case role == pb.SiteRole_SITE_ROLE_PRIMARY &&
		(there.GetRole() != pb.SiteRole_SITE_ROLE_PRIMARY || here.GetEpoch() > there.GetEpoch()):
		return nil
	default: // no group of sites, or a primary with the lower of two epochs
		return []siteCommand{demote}
	}
}

// chart adds a chart of the lag.
func (d *sitesView) chart(ctx context.Context, v *View, h *history) {
	r := d.Replication
	if r == nil {
		return
	}
	now := point{at: v.server.o.Now()}
	if r.GetConnected() && r.GetHeardAt() != nil {
		now.values[lineLag] = new(r.GetLag().AsDuration().Seconds())
	}
	h.add("sites", now)
	points := h.points(ctx, "sites", "", periods[0], func(context.Context) (grpc.ClientConnInterface, error) {
		return nil, errNoActive
	})
	d.Lag = new(chartOf(points, "number", 180, line{"seconds", lineLag}))
}

type switchView struct{ From, To string }

func loadSwitch(ctx context.Context, _ *View, sites pb.SiteServiceClient) (any, error) {
	st, err := sites.GetSite(ctx, &pb.GetSiteRequest{})
	switch {
	case err != nil:
		return nil, err
	case st.GetSite().GetRole() != pb.SiteRole_SITE_ROLE_PRIMARY:
		return nil, invalid("This site is not a primary. Use the console of the primary.")
	case st.GetRemote().GetRole() != pb.SiteRole_SITE_ROLE_REPLICA:
		return nil, invalid("The other site is not a replica, or it has not responded yet.")
	}
	return &switchView{st.GetSite().GetName(), st.GetRemote().GetName()}, nil
}

func doSwitch(ctx context.Context, v *View, sites pb.SiteServiceClient) (Done, error) {
	r, err := sites.SwitchSite(ctx, &pb.SwitchSiteRequest{To: v.Get("to")})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: fmt.Sprintf("Site %s is the primary in epoch %d. No site accepted writes for %s.",
		r.GetPrimary(), r.GetEpoch(), durationText(r.GetPause()))}, nil
}
