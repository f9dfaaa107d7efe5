// SPDX-License-Identifier: Apache-2.0

// Package pairstatus requests the status of the nodes of a pair, and combines the responses: the newest cluster record,
// the plan, and each condition once. Its types are the format of `lockstep status --output json`.
package pairstatus

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Status is the status of all nodes.
type Status struct {
	Pair  *Pair          `json:"pair,omitempty"`
	Nodes []Node         `json:"nodes"`
	Plan  *progress.Plan `json:"plan,omitempty"`
	// Site is the role of the pair among two sites; nil without sites.
	Site *Site `json:"site,omitempty"`
	// Fleet is the membership of the pair in a fleet; nil without a fleet.
	Fleet *Fleet `json:"fleet,omitempty"`
	// Conditions contains each condition once, the most serious first.
	Conditions []Condition `json:"conditions"`

	PlanText     string            `json:"-"`
	siteOfActive bool              // Site was reported by the active
	names        map[string]string // node names by ID, including nodes that do not respond
}

// Pair is the cluster record.
type Pair struct {
	PairID               string    `json:"pair_id"`
	Config               uint64    `json:"config"`
	Term                 uint64    `json:"term"`
	Active               string    `json:"active"`
	InSync               []string  `json:"in_sync"`
	MinInSync            uint32    `json:"min_in_sync"`
	Coordinator          string    `json:"coordinator"`
	CoordinatorReachable bool      `json:"coordinator_reachable"`
	Paused               string    `json:"paused,omitempty"` // time and reason
	Forced               *Forced   `json:"forced,omitempty"`
	FailbackAt           time.Time `json:"failback_at,omitzero"` // when the active switches over to the preferred node
}

// Forced is the last forced failover.
type Forced struct {
	At       time.Time `json:"at"`
	By       string    `json:"by"`
	Reason   string    `json:"reason"`
	NodeID   string    `json:"node_id"`
	Term     uint64    `json:"term"`
	AfterLSN uint64    `json:"after_lsn"`
	Settled  bool      `json:"settled"`
}

// Node is the status of one node, or the error of the request.
type Node struct {
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

	DiskSize          uint64    `json:"disk_size"`
	StandbyLagBytes   uint64    `json:"standby_lag_bytes"`
	StandbyLagSeconds float64   `json:"standby_lag_seconds"`
	Activity          *Activity `json:"activity,omitempty"` // nil for a node up to 0.1.0

	Maintenance  *Maintenance  `json:"maintenance,omitempty"`
	Corruption   Corruption    `json:"damage"`
	Alarms       []Alarm       `json:"alarms"`
	LeftBehind   []Left        `json:"left_behind"`
	Certificates []Certificate `json:"certificates"`

	// Err is the error of the request; nil if the node responded.
	Err error `json:"-"`

	conditions []*pb.Condition // reported by this node
	now        time.Time       // time of the response by its clock
}

// Activity is the activity and resource usage of a node. Counters start at 0 when its process starts.
type Activity struct {
	Published         uint64    `json:"published"`
	PublishedBytes    uint64    `json:"published_bytes"`
	Delivered         uint64    `json:"delivered"`
	Acknowledged      uint64    `json:"acknowledged"`
	Transactions      uint64    `json:"transactions"`
	Consumers         uint64    `json:"consumers"`
	Connections       uint64    `json:"connections"`
	MemoryBytes       uint64    `json:"memory_bytes"`
	MemoryBudgetBytes uint64    `json:"memory_budget_bytes"`
	Commits           []Latency `json:"commits"`
}

// Latency is a histogram bucket of commit latencies.
type Latency struct {
	UpToMS float64 `json:"up_to_ms"`
	Count  uint64  `json:"count"`
}

// Alarm is a problem that an operator should check.
type Alarm struct {
	Kind    string    `json:"kind"`
	Message string    `json:"message"`
	Since   time.Time `json:"since"`
}

// Left is a file that a node retains but does not use. It may be the only copy of messages: see package status.
type Left struct {
	Path  string `json:"path"`
	Kind  string `json:"kind"`
	Bytes uint64 `json:"bytes"`
}

// Certificate is a certificate file that a node uses, or the last certificate that the witness presented to it.
type Certificate struct {
	Use     string    `json:"use"` // "node", "etcd", "raft", "metrics", "console", "site" or "witness"
	File    string    `json:"file"`
	CA      bool      `json:"authority"` // the file contains CA certificates
	Subject string    `json:"subject"`
	Ends    time.Time `json:"ends"`
}

// Maintenance is the running maintenance operation of a node, such as a rewrite or a backup.
type Maintenance struct {
	Operation  string    `json:"operation"`
	Since      time.Time `json:"since"`
	Phase      string    `json:"phase,omitempty"`
	DoneBytes  uint64    `json:"done_bytes"`
	TotalBytes uint64    `json:"total_bytes"`
}

// ShownRole returns the role for display. A standby that rewrites its page file is in sync, but must cancel the rewrite
// and apply the received records before a takeover.
func (n *Node) ShownRole() string {
	if n.Maintenance != nil && n.Maintenance.Operation == "rewrite" {
		return "maintaining (" + n.Role + ")"
	}
	return n.Role
}

// Unanswered returns the text displayed in place of the role of a node that did not respond.
func (n *Node) Unanswered() string {
	if Refuses(n.Err) {
		return "access denied"
	}
	return "unreachable"
}

// Refuses reports whether an error means that the node denied the caller access.
func Refuses(err error) bool {
	return errors.Is(err, client.ErrDenied) || errors.Is(err, client.ErrUnauthenticated)
}

func (m Maintenance) String() string {
	s := m.Operation
	if m.Phase != "" {
		s += ": " + m.Phase
	}
	if m.TotalBytes > 0 {
		s += fmt.Sprintf(" %d%%", min(m.DoneBytes, m.TotalBytes)*100/m.TotalBytes)
	}
	return s
}

// Answered returns the number of nodes that responded.
func (s Status) Answered() int {
	n := 0
	for _, node := range s.Nodes {
		if node.Error == "" {
			n++
		}
	}
	return n
}

// Answer is the response of one node, or the error of the request.
type Answer struct {
	Address  string
	Response *pb.GetStatusResponse
	Err      error
}

// QueryAll requests the status of all nodes concurrently, for at most timeout.
func QueryAll(ctx context.Context, c *client.Client, addrs []string, timeout time.Duration) Status {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	return Combine(queryAnswers(ctx, c, addrs))
}

// Combine creates a Status from the responses of the nodes.
func Combine(answers []Answer) Status {
	s := Status{Nodes: make([]Node, len(answers)), names: make(map[string]string)}
	pairs := make([]*pb.PairStatus, len(answers))
	plans := make([]*pb.Plan, len(answers))
	for i, a := range answers {
		if a.Err != nil {
			s.Nodes[i] = Node{Address: a.Address, Error: shortError(a.Err), Err: a.Err}
			continue
		}
		s.Nodes[i], pairs[i], plans[i] = newNode(a.Address, a.Response), a.Response.GetPair(), a.Response.GetPlan()
		s.addSite(a.Response.GetSite(), BaseRole(s.Nodes[i].Role) == Active)
		s.addFleet(a.Response.GetFleet(), BaseRole(s.Nodes[i].Role) == Active)
	}
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
			failback = p.GetFailbackAt().AsTime() // only the active reports it
		}
		if p.GetPairId() != "" && (s.Pair == nil || p.GetConfig() > s.Pair.Config) {
			s.Pair = newPair(p)
		}
	}
	if s.Pair != nil {
		s.Pair.FailbackAt = failback
	}
	return s
}

// addPlan sets the plan. The plan reported by the active takes precedence.
func (s *Status) addPlan(plans []*pb.Plan) {
	var plan *pb.Plan
	for i, p := range plans {
		if p != nil && (plan == nil || BaseRole(s.Nodes[i].Role) == Active) {
			plan = p
		}
	}
	if plan == nil {
		return
	}
	j := progress.NewPlan(plan, s.NodeName)
	s.Plan = &j
	if !admin.PlanEnded(plan) {
		s.PlanText = progress.DescribePlan(plan, s.NodeName)
	}
}

// NodeName returns the name of a node by its ID; the ID if the name is unknown.
func (s *Status) NodeName(id string) string {
	if i := slices.IndexFunc(s.Nodes, func(n Node) bool { return n.NodeID == id && n.Name != "" }); i >= 0 {
		return s.Nodes[i].Name
	}
	if name := s.names[id]; name != "" {
		return name
	}
	return id
}

// Query requests the status of one node.
func Query(ctx context.Context, c *client.Client, addr string) (*pb.GetStatusResponse, error) {
	n, err := admin.New(c).Node(addr)
	if err != nil {
		return nil, err
	}
	return n.Status(ctx)
}

func shortError(err error) string {
	s := err.Error()
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "no response"
	case strings.Contains(s, "connection refused"):
		return "connection refused"
	}
	if e, ok := errors.AsType[*client.Error](err); ok {
		return e.Message
	}
	return s
}

func roleName(r pb.Role) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")), "_", "-")
}

func newPair(p *pb.PairStatus) *Pair {
	j := &Pair{
		PairID: p.GetPairId(), Config: p.GetConfig(), Term: p.GetTerm(), MinInSync: p.GetMinInSync(),
		InSync:      []string{},
		Coordinator: p.GetCoordinator(), CoordinatorReachable: p.GetCoordinatorReachable(),
	}
	if w := p.GetPaused(); w != nil {
		j.Paused = "since " + output.LocalTime(w.GetSince().AsTime())
		if w.GetReason() != "" {
			j.Paused += ": " + w.GetReason()
		}
	}
	if f := p.GetForced(); f != nil {
		j.Forced = &Forced{
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

func newNode(addr string, r *pb.GetStatusResponse) Node {
	s := r.GetStore()
	j := Node{
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
		Corruption: NewCorruption(r.GetDamage()), Alarms: []Alarm{}, LeftBehind: []Left{}, Certificates: []Certificate{},
		DiskSize: s.GetDiskSize(), Activity: newActivity(r.GetActivity()),
		conditions: reportedConditions(r), now: r.GetNow().AsTime(),
	}
	for _, l := range s.GetUnusedFiles() {
		j.LeftBehind = append(j.LeftBehind, Left{Path: l.GetPath(), Kind: l.GetKind(), Bytes: l.GetBytes()})
	}
	for _, c := range r.GetCertificates() {
		j.Certificates = append(j.Certificates, Certificate{
			Use: c.GetUse(), File: c.GetFile(), CA: c.GetCa(), Subject: c.GetSubject(),
			Ends: c.GetEnds().AsTime(),
		})
	}
	for _, al := range r.GetAlarms() {
		j.Alarms = append(j.Alarms, Alarm{
			Kind: al.GetKind(), Message: al.GetMessage(),
			Since: al.GetSince().AsTime(),
		})
	}
	if r.GetStandby() != nil {
		j.Standby, j.StandbyLag = r.GetStandby().GetState(), r.GetStandby().GetLagRecords()
		j.StandbyLagBytes = r.GetStandby().GetLagBytes()
		j.StandbyLagSeconds = r.GetStandby().GetLagTime().AsDuration().Seconds()
	}
	if m := r.GetMaintenance(); m != nil {
		p := m.GetProgress()
		j.Maintenance = &Maintenance{
			Operation: m.GetOperation(), Since: m.GetSince().AsTime(), Phase: p.GetPhase(), DoneBytes: p.GetDoneBytes(),
			TotalBytes: p.GetTotalBytes(),
		}
	}
	return j
}

// Fingerprint returns a text that differs if the displayed status differs.
func (s Status) Fingerprint() string {
	text := fmt.Sprintf("%+v %s %+v %+v %+v", s.Pair, s.PlanText, s.Conditions, s.Site, s.Fleet)
	for _, n := range s.Nodes {
		n.conditions, n.Activity, n.now = nil, nil, time.Time{} // the conditions are in s; the rest always changes
		text += fmt.Sprintf(" %+v", n)
	}
	return text
}

// String describes the forced failover for an operator.
func (f *Forced) String() string {
	text := fmt.Sprintf("at %s by %s; records acknowledged by the other node after LSN %d may be lost; they are kept in "+
		"a file when that node returns",
		output.LocalTime(f.At), f.By, f.AfterLSN)
	if f.Reason != "" {
		text += " (" + f.Reason + ")"
	}
	return text
}

// Roles of nodes, which are also values of --node.
const (
	Standby = "standby"
	Active  = "active"
)

// BaseRole returns Active for an active with or without a standby, and other roles unchanged.
func BaseRole(role string) string {
	if role == "active-alone" {
		return Active
	}
	return role
}

// Corruption counts the data that a node has scrubbed, found corrupt, and repaired.
type Corruption struct {
	ScrubbedPages    uint64 `json:"scrubbed_pages"`
	ScrubbedLogBytes uint64 `json:"scrubbed_log_bytes"`
	Scrubs           uint64 `json:"scrubs"`
	FoundPages       uint64 `json:"found_pages"`
	FoundLog         uint64 `json:"found_log"`
	RepairedPages    uint64 `json:"repaired_pages"`
	RepairedLog      uint64 `json:"repaired_log"`
	RepairedMessages uint64 `json:"repaired_messages"`
	CorruptMessages  uint64 `json:"damaged_messages"`
	LostMessages     uint64 `json:"lost_messages"`
	Index            string `json:"index,omitempty"`
}

// NewCorruption converts the counters reported by a node.
func NewCorruption(d *pb.DamageStatus) Corruption {
	return Corruption{
		ScrubbedPages: d.GetScrubbedPages(), ScrubbedLogBytes: d.GetScrubbedLogBytes(), Scrubs: d.GetScrubs(),
		FoundPages: d.GetFoundPages(),
		FoundLog:   d.GetFoundLog(), RepairedPages: d.GetRepairedPages(), RepairedLog: d.GetRepairedLog(),
		RepairedMessages: d.GetRepairedMessages(),
		CorruptMessages:  d.GetDamagedMessages(), LostMessages: d.GetLostMessages(), Index: d.GetIndex(),
	}
}
