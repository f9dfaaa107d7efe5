// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const switchoverTime = 20 * time.Second

const maxReasonBytes = 200

func pairPage() Page {
	h := &history{}
	return Page{
		Path: "/pair", Title: "Pair", Key: "p", Right: "any", Template: "pair", Live: true,
		Load: func(ctx context.Context, v *View) (any, error) {
			d, err := loadPair(ctx, v)
			if err != nil {
				return nil, err
			}
			d.charts(ctx, v, h)
			return d, nil
		},
		Actions: []Action{
			{
				Name: "switchover", Title: "Switch over", Right: "operate", Dialog: "switchover", Load: loadSwitchover,
				Do: doSwitchover,
			},
			{Name: "pause", Title: "Pause pair", Right: "operate", Dialog: "pause", Do: doPause},
			{Name: "resume", Title: "Resume pair", Right: "operate", Dialog: "resume", Do: doResume},
			{
				Name: "force", Title: "Force failover", Right: "operate", Dialog: "force", Danger: true, Confirm: true,
				Load: loadForce, Do: doForce,
			},
		},
	}
}

type pairView struct {
	rights

	Own   *pb.GetStatusResponse
	Pair  *pb.PairStatus
	Alone bool // the node is standalone
	Nodes []*nodeView
	// Active is the node that serves clients or, if no node does, the active in the cluster record. Standby is the other
	// node, regardless of its role. Each is nil if there is no such node.
	Active, Standby *nodeView
	Link            link
	Totals          *nodeView // node that provides the totals of the queues
	Rates, Depth    chart
	Periods         []periodLink
	// NoActive reports whether no node serves clients.
	NoActive bool
	Site     *siteView // nil if the pair has no sites
}

// siteView is the role of the pair in a group of two sites.
type siteView struct {
	Info *pb.SiteInfo
	Role label
	// Lag describes the lag of a replica, or contains the error without a connection. It is empty if the lag is
	// unknown, or if the session may not read it.
	Lag []string
}

type link struct {
	State   label
	Lag     []string
	ToFirst bool // the first node receives the stream
}

func loadPair(ctx context.Context, v *View) (*pairView, error) {
	nodes, err := v.nodes(ctx)
	if err != nil {
		return nil, err
	}
	own, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	may, err := v.rights(ctx)
	if err != nil {
		return nil, err
	}
	d := &pairView{rights: may, Own: own, Pair: own.GetPair(), Nodes: nodes, Alone: len(own.GetPair().GetNodes()) == 0}
	d.Alone = d.Alone || d.Pair.GetCoordinator() == "none"
	for i, n := range nodes {
		if n.serves() || d.Alone {
			d.Active = n
			d.Link.ToFirst = i > 0
			continue
		}
		if d.Active == nil && n.Info.GetActive() && !anyServes(nodes) {
			d.Active, d.Link.ToFirst = n, i > 0
			continue
		}
		d.Standby = n
	}
	d.NoActive = !d.Alone && !anyServes(nodes)
	d.Totals = d.Active
	if d.Totals == nil || d.Totals.Status == nil {
		d.Totals = &nodeView{Status: own}
	}
	d.Link.State, d.Link.Lag = linkOf(d)
	d.Site = v.site(ctx, d)
	return d, nil
}

// site returns the site role that d.Totals reports. d.Totals is the active or, without an active, this node.
func (v *View) site(ctx context.Context, d *pairView) *siteView {
	info := d.Totals.Status.GetSite()
	if info == nil {
		return nil
	}
	s := &siteView{Info: info, Role: siteRoleOf(info.GetRole())}
	if info.GetRole() != pb.SiteRole_SITE_ROLE_REPLICA || !d.May("operate") {
		return s
	}
	resp, err := v.getSite(ctx)
	if err != nil {
		return s
	}
	switch r := resp.GetReplication(); {
	case r.GetConnected():
		s.Lag = lagText(r)
	case r != nil:
		s.Role, s.Lag = label{"replica, not connected", "bad"}, []string{resp.GetError()}
	}
	return s
}

func siteRoleOf(r pb.SiteRole) label {
	switch r {
	case pb.SiteRole_SITE_ROLE_PRIMARY:
		return label{"primary", "good"}
	case pb.SiteRole_SITE_ROLE_REPLICA:
		return label{"replica", "info"}
	case pb.SiteRole_SITE_ROLE_STOPPED:
		return label{"stopped", "bad"}
	default:
		return label{"no replica yet", "info"}
	}
}

func (d *pairView) charts(ctx context.Context, v *View, h *history) {
	now := point{at: v.server.o.Now()}
	if r := d.Totals.Rates; r != nil {
		now.values[linePublished], now.values[lineDelivered] = new(r.Published), new(r.Delivered)
		now.values[lineAcknowledged] = new(r.Acknowledged)
	}
	now.values[lineMessages] = new(float64(d.Totals.Status.GetStore().GetMessages()))
	h.add("pair", now)
	points := h.points(ctx, "pair", "", v.period(), v.Active)
	d.Rates = chartOf(points, "number", 180, rateLines()...)
	d.Depth = chartOf(points, "count", 180, line{"messages", lineMessages})
	d.Periods = v.periodLinks("/pair")
}

func (n *nodeView) serves() bool { return n.Status != nil && serving(n.Status.GetRole()) }

func anyServes(nodes []*nodeView) bool { return slices.ContainsFunc(nodes, (*nodeView).serves) }

func linkOf(d *pairView) (label, []string) {
	st := d.Active.statusOrNil().GetStandby()
	switch {
	case d.Alone:
		return label{"alone", "info"}, nil
	case d.Active == nil || d.Active.Status == nil:
		return label{"no active node", "bad"}, nil
	case st == nil:
		return label{"no standby", "bad"}, nil
	}
	lag := []string{
		formatNumber(st.GetLagRecords()) + " records", formatBytes(st.GetLagBytes()),
		formatNumber(st.GetLagTime().AsDuration().Seconds()) + " s",
	}
	if st.GetState() == "in-sync" {
		return label{"in sync", "good"}, lag
	}
	return label{strings.ReplaceAll(st.GetState(), "-", " "), "warn"}, lag
}

func (n *nodeView) statusOrNil() *pb.GetStatusResponse {
	if n == nil {
		return nil
	}
	return n.Status
}

// Disk returns the used percentage of the filesystem that contains the node's store.
func (n *nodeView) Disk() int {
	st := n.Status.GetStore()
	if st.GetDiskSize() == 0 {
		return 0
	}
	return percent(st.GetDiskSize()-min(st.GetDiskFree(), st.GetDiskSize()), st.GetDiskSize())
}

func (n *nodeView) DiskClass() string {
	st := n.Status.GetStore()
	switch free, low := st.GetDiskFree(), n.Status.GetDiskLowWatermark(); {
	case free < low:
		return "bad"
	case free < 2*low || n.Disk() >= 90:
		return "warn"
	}
	return ""
}

func (n *nodeView) Memory() int {
	a := n.Status.GetActivity()
	return percent(a.GetMemoryBytes(), a.GetMemoryBudgetBytes())
}

func (n *nodeView) MemoryClass() string {
	if n.Memory() >= 100 {
		return "warn"
	}
	return ""
}

// AlarmCount returns the number of conditions that a node reports with a severity above info.
func (n *nodeView) AlarmCount() int {
	count := 0
	for _, c := range n.Status.GetConditions() {
		if c.GetSeverity() > pb.Severity_SEVERITY_INFO {
			count++
		}
	}
	return count
}

type switchoverView struct{ From, To *nodeView }

func loadSwitchover(ctx context.Context, v *View) (any, error) {
	p, err := loadPair(ctx, v)
	if err != nil {
		return nil, err
	}
	if p.Alone || p.Active == nil || p.Standby == nil {
		return nil, invalid("No standby for a switchover: both nodes must be connected and in sync.")
	}
	return &switchoverView{From: p.Active, To: p.Standby}, nil
}

func doSwitchover(ctx context.Context, v *View) (Done, error) {
	r, err := pb.NewAdminServiceClient(v.Own()).Switchover(ctx, &pb.SwitchoverRequest{
		To: v.Get("to"), Timeout: durationpb.New(switchoverTime),
	})
	if err != nil {
		return Done{}, err
	}
	if r.GetAlready() {
		return Done{Message: "The node is already active; nothing was done."}, nil
	}
	return Done{Message: fmt.Sprintf("Switched over: %s is active in term %d. Acknowledgements were interrupted "+
		"for %s.", r.GetActiveAddress(), r.GetTerm(), durationText(r.GetPause()))}, nil
}

func doPause(ctx context.Context, v *View) (Done, error) {
	if len(v.Get("reason")) > maxReasonBytes {
		return Done{}, invalid(fmt.Sprintf("The reason has %d bytes; maximum %d.", len(v.Get("reason")),
			maxReasonBytes))
	}
	_, err := pb.NewAdminServiceClient(v.Own()).SetPaused(ctx, &pb.SetPausedRequest{Paused: true, Reason: v.Get("reason")})
	return Done{Message: "The pair is paused: the standby does not take over automatically."}, err
}

func doResume(ctx context.Context, v *View) (Done, error) {
	_, err := pb.NewAdminServiceClient(v.Own()).SetPaused(ctx, &pb.SetPausedRequest{})
	return Done{Message: "The pair is resumed: the standby takes over automatically while it is in sync."}, err
}

// loadForce queries the node for the messages that a forced failover would lose.
func loadForce(ctx context.Context, v *View) (any, error) {
	cc, err := v.Node(ctx, v.Get("node"))
	if err != nil {
		return nil, err
	}
	return pb.NewAdminServiceClient(cc).ForceFailover(ctx, &pb.ForceFailoverRequest{
		By: v.by(), Reason: v.Get("reason"),
	})
}

// by returns the name of the user who requests an operation.
func (v *View) by() string {
	by := v.Principal + " (console)"
	return strings.ToValidUTF8(by[:min(len(by), maxReasonBytes)], "")
}

func doForce(ctx context.Context, v *View) (Done, error) {
	cc, err := v.Node(ctx, v.Get("node"))
	if err != nil {
		return Done{}, err
	}
	admin := pb.NewAdminServiceClient(cc)
	plan, err := admin.ForceFailover(ctx, &pb.ForceFailoverRequest{By: v.by(), Reason: v.Get("reason")})
	if err != nil {
		return Done{}, err
	}
	if v.Form.Get("confirm") != plan.GetNodeName() {
		return Done{}, invalid("Type " + plan.GetNodeName() + ", the name of the new active node.")
	}
	if fmt.Sprint(plan.GetConfig()) != v.Form.Get("config") {
		return Done{}, invalid("The cluster record has changed since the dialog was opened. Reopen it to see " +
			"the messages that would be lost now.")
	}
	r, err := admin.ForceFailover(ctx, &pb.ForceFailoverRequest{
		Confirm: true, AcceptDataLoss: true, Config: plan.GetConfig(), By: v.by(), Reason: v.Get("reason"),
	})
	if err != nil {
		return Done{}, err
	}
	return Done{Message: fmt.Sprintf("Node %s becomes active in term %d.", r.GetNodeName(), r.GetTerm())}, nil
}
