// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

var errProblems = cli.WithHint(errors.New("the fleet has problems"),
	"`lockstep status` with the addresses of each pair that has a problem, for its conditions and their actions")

func statusCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show the directory, the pairs and the placement rules",
		Long: `Show the state of the directory, the registered pairs and the placement rules, according to one node in
--addr. Free is the space that is available for messages of the pair. The exit code is 1 if the command reports a
problem.`,
		Example: "  lockstep fleet status\n  lockstep fleet status --output json | jq '.pairs[] | {name, queues}'",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				answers, err := responding(ctx, env, c)
				if err != nil {
					return err
				}
				r := newReport(answers)
				if err := printReport(env, &r); err != nil {
					return err
				}
				if len(r.Problems) > 0 {
					return errProblems
				}
				return nil
			})
		},
	}
}

// report is the output of lockstep fleet status.
type report struct {
	// Node is the address of the node that responded, and Pair is its pair.
	Node    string `json:"node"`
	Pair    string `json:"pair"`
	FleetID string `json:"fleet_id"`
	// Current reports whether the copy of the directory receives changes.
	Current   bool   `json:"current"`
	LastEpoch uint64 `json:"last_epoch"`
	Queues    uint64 `json:"queues"`
	// Problem is the reason why no queues can be created: unavailable, lost, restored, rebuilding, not-member or
	// malformed. It is empty if queues can be created.
	Problem  string     `json:"problem"`
	Pairs    []pairInfo `json:"pairs"`
	Rules    []ruleInfo `json:"rules"`
	Problems []string   `json:"problems"`
}

// pairInfo is a registered pair.
type pairInfo struct {
	Name      string            `json:"name"`
	PairID    string            `json:"pair_id"`
	State     string            `json:"state"`
	Live      bool              `json:"live"`
	Queues    uint64            `json:"queues"`
	Addresses []string          `json:"addresses"`
	Labels    map[string]string `json:"labels"`
	Capacity  uint64            `json:"capacity_bytes"`
	// Load is nil if the pair is not live.
	Load *loadInfo `json:"load,omitempty"`
}

type loadInfo struct {
	Queues      uint64  `json:"queues"`
	StoredBytes uint64  `json:"stored_bytes"`
	FreeBytes   uint64  `json:"free_bytes"`
	PublishRate float64 `json:"publish_rate"`
}

// ruleInfo is a placement rule.
type ruleInfo struct {
	Pattern string            `json:"pattern"`
	Pair    string            `json:"pair,omitempty"`
	Labels  map[string]string `json:"labels,omitempty"`
}

// enumText returns the name of a value in the output, without the prefix of the enumeration.
func enumText(value fmt.Stringer, prefix string) string {
	text := strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(value.String(), prefix)), "_", "-")
	if text == "unspecified" {
		return ""
	}
	return text
}

func newPairInfo(p *pb.FleetPair) pairInfo {
	info := pairInfo{
		Name: p.GetName(), PairID: p.GetPairId(), State: enumText(p.GetState(), "PAIR_STATE_"), Live: p.GetLive(),
		Queues: p.GetQueues(), Addresses: append([]string{}, p.GetAddresses()...), Labels: map[string]string{},
		Capacity: p.GetCapacityBytes(),
	}
	maps.Copy(info.Labels, p.GetLabels())
	if l := p.GetLoad(); l != nil {
		info.Load = &loadInfo{
			Queues: l.GetQueues(), StoredBytes: l.GetStoredBytes(), FreeBytes: l.GetFreeBytes(),
			PublishRate: l.GetPublishRate(),
		}
	}
	return info
}

// newReport returns the state according to the first node, and the problems of all nodes.
func newReport(answers []answer) report {
	f := answers[0].fleet
	d := f.GetDirectory()
	r := report{
		Node: answers[0].address, Pair: f.GetPair(), FleetID: d.GetFleetId(), Current: d.GetCurrent(),
		LastEpoch: d.GetLastEpoch(), Queues: d.GetQueues(), Problem: enumText(d.GetProblem(), "DIRECTORY_PROBLEM_"),
		Pairs: []pairInfo{}, Rules: []ruleInfo{}, Problems: []string{},
	}
	for _, p := range f.GetPairs() {
		r.Pairs = append(r.Pairs, newPairInfo(p))
	}
	for _, rule := range f.GetRules() {
		r.Rules = append(r.Rules, ruleInfo{rule.GetPattern(), rule.GetPair(), rule.GetLabels()})
	}
	r.addProblems(d)
	for _, a := range answers {
		r.addMembership(a.fleet)
	}
	return r
}

func (r *report) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

func (r *report) addProblems(d *pb.FleetDirectory) {
	switch d.GetProblem() { //nolint:exhaustive // malformed values are listed below
	case pb.DirectoryProblem_DIRECTORY_PROBLEM_UNAVAILABLE:
		r.problem("the node does not reach etcd, and its copy of the directory may be outdated: %s", d.GetError())
	case pb.DirectoryProblem_DIRECTORY_PROBLEM_LOST, pb.DirectoryProblem_DIRECTORY_PROBLEM_RESTORED,
		pb.DirectoryProblem_DIRECTORY_PROBLEM_REBUILDING:
		r.problem("no queues can be created until all pairs have contributed to lockstep fleet rebuild: %s", d.GetError())
	case pb.DirectoryProblem_DIRECTORY_PROBLEM_NOT_MEMBER:
		r.problem("pair %s has not joined the fleet", r.Pair)
	}
	for _, text := range d.GetMalformed() {
		r.problem("malformed value in etcd: %s", text)
	}
	for _, p := range r.Pairs {
		if !p.Live && r.Current {
			r.problem("pair %s has no active node, or does not reach etcd", p.Name)
		}
	}
}

// addMembership adds the problems in the membership of a pair, as reported by its active.
func (r *report) addMembership(f *pb.GetFleetResponse) {
	m := f.GetMembership()
	switch {
	case m.GetLeft():
		r.problem("pair %s has left the fleet: remove fleet.pair from the settings of its nodes", f.GetPair())
	case m.GetPair() != "" && m.GetPair() != f.GetPair():
		r.problem("fleet.pair is %s, but the pair has joined the fleet as %s", f.GetPair(), m.GetPair())
	case m.GetError() != "":
		r.problem("pair %s does not update the directory: %s", f.GetPair(), m.GetError())
	}
	if c := m.GetConflicts(); len(c) > 0 {
		r.problem("pair %s has %s that the directory assigns to other pairs, such as %s (pair %s)", f.GetPair(),
			output.Plural(m.GetConflictsTotal(), "queue"), c[0].GetQueue(), c[0].GetPair())
	}
}

func printReport(env *cli.Env, r *report) error {
	if env.Print.JSON() {
		return env.Print.Object(r)
	}
	err := env.Print.Sentence("fleet %s: %s, %s, as known to %s of pair %s\n", cmp.Or(r.FleetID, "without an ID"),
		output.Plural(len(r.Pairs), "pair"), output.Plural(r.Queues, "queue"), r.Node, r.Pair)
	if err != nil {
		return err
	}
	rows := make([][]any, len(r.Pairs))
	for i, p := range r.Pairs {
		rows[i] = []any{p.Name, p.State, liveText(p.Live), p.Queues, p.free(), strings.Join(p.Addresses, ", ")}
	}
	if err := env.Print.Table([]string{"Pair", "State", "Live", "Queues", ">Free", "Nodes"}, rows); err != nil {
		return err
	}
	if len(r.Rules) > 0 {
		rows = make([][]any, len(r.Rules))
		for i, rule := range r.Rules {
			rows[i] = []any{rule.Pattern, rule.target()}
		}
		err := errors.Join(env.Print.Sentence(""), env.Print.Table([]string{"New queues", "Created on"}, rows))
		if err != nil {
			return err
		}
	}
	if len(r.Problems) > 0 {
		return env.Print.Sentence("\nPROBLEM: %s", strings.Join(r.Problems, "\nPROBLEM: "))
	}
	return nil
}

func liveText(live bool) string {
	if live {
		return "yes"
	}
	return "NO"
}

func (p *pairInfo) free() string {
	if p.Load == nil {
		return "-"
	}
	return output.Bytes(p.Load.FreeBytes)
}

// target describes the pairs of a rule.
func (r *ruleInfo) target() string {
	if r.Pair != "" {
		return "pair " + r.Pair
	}
	return "pairs with " + labelText(r.Labels)
}

func labelText(labels map[string]string) string {
	texts := make([]string, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, k+"="+labels[k])
	}
	return strings.Join(texts, ", ")
}

func pairsCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "pairs", Short: "List the pairs with load and labels",
		Long: `List the registered pairs with their load, labels and IDs, according to one node in --addr. Each pair
updates its load every 5 seconds. The load of a pair that is not live is not shown.`,
		Example: "  lockstep fleet pairs\n  lockstep fleet pairs --output json | jq .labels",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				answers, err := responding(ctx, env, c)
				if err != nil {
					return err
				}
				r := newReport(answers)
				return printPairs(env, r.Pairs)
			})
		},
	}
}

func printPairs(env *cli.Env, pairs []pairInfo) error {
	if env.Print.JSON() {
		return output.Objects(env.Print, pairs)
	}
	rows := make([][]any, len(pairs))
	for i, p := range pairs {
		stored, capacity, rate := "-", "-", "-"
		if p.Load != nil {
			stored, rate = output.Bytes(p.Load.StoredBytes), fmt.Sprintf("%.0f", p.Load.PublishRate)
		}
		if p.Capacity > 0 {
			capacity = output.Bytes(p.Capacity)
		}
		rows[i] = []any{
			p.Name, p.State, liveText(p.Live), p.Queues, stored, p.free(), capacity, rate,
			cmp.Or(labelText(p.Labels), "-"), p.PairID,
		}
	}
	return env.Print.Table([]string{
		"Pair", "State", "Live", "Queues", ">Stored", ">Free", ">Capacity", ">Published/s", "Labels", "Pair ID",
	}, rows)
}
