package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/rolling"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func (a *app) statusCommand() *cobra.Command {
	var watch bool
	var interval time.Duration
	cmd := &cobra.Command{
		Use: "status", GroupID: "operate",
		Short: "Show what both nodes are and know",
		Long: `Show role, positions and content of each node, and the pair's record. Nodes that do not answer are shown, too.
The exit code is 1 when no node answers. With --watch it is shown again until Ctrl-C: on a terminal in place, with rates, and otherwise
whenever it changed.`,
		Example: "  lockstep status\n  lockstep status --watch\n  lockstep status --output json | jq '.nodes[].role'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if watch {
					return a.watchStatus(ctx, c, interval)
				}
				s := a.askStatus(ctx, c, min(a.timeout, 2*time.Second))
				if err := a.printStatus(s); err != nil {
					return err
				}
				if s.answered() == 0 {
					return errors.New("no node answers; are the addresses right (--addr, " + envAddr + ")?")
				}
				return nil
			})
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again whenever it changed")
	cmd.Flags().DurationVar(&interval, "interval", 500*time.Millisecond, "with --watch: how often to look")
	return cmd
}

// statusJSON is the status of all nodes for programs.
type statusJSON struct {
	Pair  *pairJSON  `json:"pair,omitempty"`
	Nodes []nodeJSON `json:"nodes"`
	Plan  *planJSON  `json:"plan,omitempty"` // the last rolling operation
	// Conditions of the pair and of both nodes, each once, the most serious first.
	Conditions []conditionJSON `json:"conditions"`

	plan  string            // the same in words, while it is under way
	names map[string]string // of the nodes of the pair, by their ids, also of those that do not answer
}

// pairJSON is the pair's record.
type pairJSON struct {
	PairID               string      `json:"pair_id"`
	Config               uint64      `json:"config"`
	Term                 uint64      `json:"term"`
	Active               string      `json:"active"`
	InSync               []string    `json:"in_sync"`
	MinInSync            uint32      `json:"min_in_sync"`
	Coordinator          string      `json:"coordinator"`
	CoordinatorReachable bool        `json:"coordinator_reachable"`
	Paused               string      `json:"paused,omitempty"` // since when and why
	Forced               *forcedJSON `json:"forced,omitempty"`
	FailbackAt           time.Time   `json:"failback_at,omitzero"` // when the active hands over to the preferred node
}

// forcedJSON is the last forced failover.
type forcedJSON struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Reason   string    `json:"reason"`
	NodeID   string    `json:"node_id"`
	Term     uint64    `json:"term"`
	AfterLSN uint64    `json:"after_lsn"`
	Settled  bool      `json:"settled"`
}

// nodeJSON is one node.
type nodeJSON struct {
	Address       string    `json:"address"`
	Error         string    `json:"error,omitempty"`
	Name          string    `json:"name,omitempty"`
	NodeID        string    `json:"node_id,omitempty"`
	Role          string    `json:"role,omitempty"`
	Reason        string    `json:"reason,omitempty"`
	InSync        bool      `json:"in_sync"`
	Version       string    `json:"version,omitempty"`
	StartedAt     time.Time `json:"started_at,omitzero"`
	Term          uint64    `json:"term"`
	LogEnd        uint64    `json:"log_end"`
	LogDurable    uint64    `json:"log_durable"`
	LogFirst      uint64    `json:"log_first"`
	LogBytes      uint64    `json:"log_bytes"`
	Commit        uint64    `json:"commit"`
	Applied       uint64    `json:"applied"`
	Checkpoint    uint64    `json:"checkpoint"`
	CheckpointLSN uint64    `json:"checkpoint_lsn"`
	PageSize      uint32    `json:"page_size"`
	Pages         uint64    `json:"pages"`
	PagesUsed     uint64    `json:"pages_used"`
	Queues        uint64    `json:"queues"`
	Messages      uint64    `json:"messages"`
	MessageBytes  uint64    `json:"message_bytes"`
	Sync          string    `json:"sync,omitempty"`
	DiskFree      uint64    `json:"disk_free"`
	Standby       string    `json:"standby,omitempty"`
	StandbyLag    uint64    `json:"standby_lag"`

	Maintenance *maintenanceJSON `json:"maintenance,omitempty"`
	Damage      damageJSON       `json:"damage"`
	Alarms      []alarmJSON      `json:"alarms"`
	LeftBehind  []leftJSON       `json:"left_behind"`

	conditions []*pb.Condition // what this node told
}

// alarmJSON is something that an operator should look at.
type alarmJSON struct {
	Kind    string    `json:"kind"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// leftJSON is what a node keeps and does not use: it may be removed.
type leftJSON struct {
	Path  string `json:"path"`
	Kind  string `json:"kind"`
	Bytes uint64 `json:"bytes"`
}

// maintenanceJSON is what a node does to its page file now.
type maintenanceJSON struct {
	Operation  string    `json:"operation"`
	Since      time.Time `json:"since"`
	Phase      string    `json:"phase,omitempty"`
	DoneBytes  uint64    `json:"done_bytes"`
	TotalBytes uint64    `json:"total_bytes"`
}

// shownRole is the role as people are to see it: a standby that rewrites its page file stays in sync, but has to drop
// the rewrite and apply what came in meanwhile before it can take over.
func (n *nodeJSON) shownRole() string {
	if n.Maintenance != nil && n.Maintenance.Operation == "rewrite" {
		return "maintaining (" + n.Role + ")"
	}
	return n.Role
}

func (m maintenanceJSON) String() string {
	s := m.Operation
	if m.Phase != "" {
		s += ": " + m.Phase
	}
	if m.TotalBytes > 0 {
		s += fmt.Sprintf(" %d%%", min(m.DoneBytes, m.TotalBytes)*100/m.TotalBytes)
	}
	return s
}

func (s statusJSON) answered() int {
	n := 0
	for _, node := range s.Nodes {
		if node.Error == "" {
			n++
		}
	}
	return n
}

// askStatus asks all nodes at the same time.
func (a *app) askStatus(ctx context.Context, c *client.Client, timeout time.Duration) statusJSON {
	addrs, err := a.addresses()
	if err != nil {
		return statusJSON{}
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	s := statusJSON{Nodes: make([]nodeJSON, len(addrs))}
	pairs := make([]*pb.PairStatus, len(addrs))
	plans := make([]*pb.Plan, len(addrs))
	var wg sync.WaitGroup
	for i, addr := range addrs {
		wg.Go(func() {
			resp, err := nodeStatus(ctx, c, addr)
			if err != nil {
				s.Nodes[i] = nodeJSON{Address: addr, Error: shortError(err)}
				return
			}
			s.Nodes[i], pairs[i], plans[i] = toNodeJSON(addr, resp), resp.GetPair(), resp.GetPlan()
		})
	}
	wg.Wait()
	s.names = make(map[string]string)
	for _, p := range pairs {
		for _, n := range p.GetNodes() {
			s.names[n.GetNodeId()] = n.GetName()
		}
	}
	s.addPlan(plans)
	s.addConditions(pairs)
	var failback time.Time
	for _, p := range pairs {
		if p.GetFailbackAt() != nil {
			failback = p.GetFailbackAt().AsTime() // only the active knows
		}
		// The newest record that somebody knows.
		if p.GetPairId() != "" && (s.Pair == nil || p.GetConfig() > s.Pair.Config) {
			s.Pair = toPairJSON(p)
		}
	}
	if s.Pair != nil {
		s.Pair.FailbackAt = failback
	}
	return s
}

// addPlan takes the plan from the active node, or from whoever knows it.
func (s *statusJSON) addPlan(plans []*pb.Plan) {
	var plan *pb.Plan
	for i, p := range plans {
		if p != nil && (plan == nil || baseRole(s.Nodes[i].Role) == nodeActive) {
			plan = p
		}
	}
	if plan == nil {
		return
	}
	j := toPlanJSON(plan, s.nodeName)
	s.Plan = &j
	if !client.PlanEnded(plan) {
		s.plan = rolling.Describe(plan, s.nodeName)
	}
}

// nodeName finds the name of a node by its id.
func (s *statusJSON) nodeName(id string) string {
	if i := slices.IndexFunc(s.Nodes, func(n nodeJSON) bool { return n.NodeID == id && n.Name != "" }); i >= 0 {
		return s.Nodes[i].Name
	}
	if name := s.names[id]; name != "" {
		return name
	}
	return id
}

func nodeStatus(ctx context.Context, c *client.Client, addr string) (*pb.GetStatusResponse, error) {
	n, err := nodeAt(c, addr)
	if err != nil {
		return nil, err
	}
	return n.Status(ctx)
}

// shortError gives the last part of an error, which says what the system says.
func shortError(err error) string {
	s := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no answer"
	case strings.Contains(s, "connection refused"):
		return "connection refused"
	}
	return s
}

func roleName(r pb.Role) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")), "_", "-")
}

func toPairJSON(p *pb.PairStatus) *pairJSON {
	j := &pairJSON{
		PairID: p.GetPairId(), Config: p.GetConfig(), Term: p.GetTerm(), MinInSync: p.GetMinInSync(),
		InSync:      []string{},
		Coordinator: p.GetCoordinator(), CoordinatorReachable: p.GetCoordinatorReachable(),
	}
	if w := p.GetPaused(); w != nil {
		j.Paused = "since " + localTime(w.GetSince().AsTime())
		if w.GetReason() != "" {
			j.Paused += ": " + w.GetReason()
		}
	}
	if f := p.GetForced(); f != nil {
		j.Forced = &forcedJSON{
			At: f.GetAt().AsTime(), By: f.GetBy(), Reason: f.GetReason(), NodeID: f.GetNodeId(), Term: f.GetTerm(),
			AfterLSN: f.GetAfterLsn(), Settled: f.GetSettled(),
		}
	}
	for _, n := range p.GetNodes() {
		if n.GetActive() {
			j.Active = n.GetName()
		}
		if n.GetInSync() {
			j.InSync = append(j.InSync, n.GetName())
		}
	}
	slices.Sort(j.InSync)
	return j
}

func toNodeJSON(addr string, r *pb.GetStatusResponse) nodeJSON {
	s := r.GetStore()
	j := nodeJSON{
		Address: addr, Name: r.GetNode().GetName(), NodeID: r.GetNode().GetNodeId(), Role: roleName(r.GetRole()),
		Reason: r.GetReason(),
		InSync: r.GetNode().GetInSync(), Version: r.GetVersion(), StartedAt: r.GetStartedAt().AsTime(),
		Term:   s.GetLogEnd().GetTerm(),
		LogEnd: s.GetLogEnd().GetLsn(), LogDurable: s.GetLogDurable().GetLsn(), LogFirst: s.GetLogFirstLsn(),
		LogBytes: s.GetLogBytes(),
		Commit:   s.GetCommitLsn(), Applied: s.GetAppliedLsn(), Checkpoint: s.GetCheckpoint(),
		CheckpointLSN: s.GetCheckpointLsn(),
		PageSize:      s.GetPageSize(), Pages: s.GetPages(), PagesUsed: s.GetPagesUsed(), Queues: s.GetQueues(),
		Messages:     s.GetMessages(),
		MessageBytes: s.GetMessageBytes(), Sync: s.GetSync(), DiskFree: s.GetDiskFree(),
		Damage: toDamageJSON(r.GetDamage()), Alarms: []alarmJSON{}, LeftBehind: []leftJSON{},
		conditions: toldConditions(r),
	}
	for _, l := range s.GetLeftBehind() {
		j.LeftBehind = append(j.LeftBehind, leftJSON{Path: l.GetPath(), Kind: l.GetKind(), Bytes: l.GetBytes()})
	}
	for _, al := range r.GetAlarms() {
		j.Alarms = append(j.Alarms, alarmJSON{
			Kind: al.GetKind(), Message: al.GetMessage(),
			Since: al.GetSince().AsTime(),
		})
	}
	if r.GetStandby() != nil {
		j.Standby, j.StandbyLag = r.GetStandby().GetState(), r.GetStandby().GetLagRecords()
	}
	if m := r.GetMaintenance(); m != nil {
		p := m.GetProgress()
		j.Maintenance = &maintenanceJSON{
			Operation: m.GetOperation(), Since: m.GetSince().AsTime(), Phase: p.GetPhase(), DoneBytes: p.GetDoneBytes(),
			TotalBytes: p.GetTotalBytes(),
		}
	}
	return j
}

func (a *app) printStatus(s statusJSON) error {
	if a.print.JSON() {
		return a.print.Object(s)
	}
	if err := a.printNodes(s); err != nil {
		return err
	}
	if err := a.printConditions(s.Conditions); err != nil {
		return err
	}
	if err := a.printLeft(s); err != nil {
		return err
	}
	if s.Pair == nil {
		return nil
	}
	reachable := "reachable"
	if !s.Pair.CoordinatorReachable {
		reachable = "NOT reachable"
	}
	err := a.print.Sentence("\npair %s: term %d, config %d, in sync: %s; coordinator %s is %s",
		s.Pair.PairID, s.Pair.Term, s.Pair.Config, strings.Join(s.Pair.InSync, " and "), s.Pair.Coordinator, reachable)
	if err == nil && s.Pair.Paused != "" {
		err = a.print.Sentence("PAUSED %s; no standby takes over by itself: lockstep resume", s.Pair.Paused)
	}
	if err == nil {
		err = a.printChanges(s)
	}
	if err != nil || s.plan == "" {
		return err
	}
	return a.print.Sentence("%s", s.plan)
}

// fingerprint differs when there is something new to show.
func (s statusJSON) fingerprint() string {
	text := fmt.Sprintf("%+v %s %+v", s.Pair, s.plan, s.Conditions)
	for _, n := range s.Nodes {
		n.conditions = nil // they are in s
		text += fmt.Sprintf(" %+v", n)
	}
	return text
}
