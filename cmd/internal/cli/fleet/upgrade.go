// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

const (
	// upgradeInterval is the interval at which --wait checks the fleet.
	upgradeInterval = time.Second
	// switchoverTime is the time limit of a switchover, in addition to --timeout.
	switchoverTime = 10 * time.Second
)

var (
	errNotReady = cli.WithHint(errors.New("the fleet is not ready for the next step of the upgrade"),
		"`lockstep status` with the addresses of the pair for its conditions and their actions, or `--wait` to wait")
	errNeedsSwitchover = errors.New("the next step is a switchover")
)

type upgradeFlags struct {
	version, after         string
	ignore                 []string
	next, wait, switchover bool
}

func upgradeCommand(env *cli.Env) *cobra.Command {
	var f upgradeFlags
	cmd := &cobra.Command{
		Use: "upgrade", Short: "Show the next node to upgrade",
		Long: `Show the releases of all nodes of the fleet, and the next step of an upgrade to --version. Pairs are
upgraded one after the other: first the standby, then, after a switchover, the other node. The command installs no
software.

The exit code is 1 while the next step must wait, for example because a pair is not in sync, or a node reports a
warning or critical condition. --ignore excludes conditions. --wait waits until the next step is possible, regardless
of --timeout.

For scripts, --next prints only the address of the next node, or nothing when all nodes run the release (--output
json prints the whole status). If the next step is a switchover, --next fails. With --switchover, it executes the
switchover instead, and waits until the next step is possible, regardless of --timeout. --after is the address of the
node that was upgraded last: the next step must wait until this node runs the release.`,
		Example: `  lockstep fleet upgrade --version 0.4.0
  lockstep fleet upgrade --version 0.4.0 --next --wait --switchover --after a-2:7420
  lockstep fleet upgrade --version 0.4.0 --ignore backup-old --output json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if f.switchover && !f.next {
				return cli.Usage("--switchover requires --next")
			}
			return env.WithClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				return (&upgrader{env: env, c: c, upgradeFlags: f}).run(ctx)
			})
		},
	}
	cmd.Flags().StringVar(&f.version, "version", "", "release that all nodes should run, such as 0.4.0")
	cmd.Flags().StringVar(&f.after, "after", "", "address of the node that was upgraded last")
	cmd.Flags().StringSliceVar(&f.ignore, "ignore", nil, "names of conditions that are ignored")
	cmd.Flags().BoolVar(&f.next, "next", false, "only print the address of the next node")
	cmd.Flags().BoolVar(&f.wait, "wait", false, "wait until the next step is possible")
	cmd.Flags().BoolVar(&f.switchover, "switchover", false, "with --next: execute the switchover if it is the next step")
	_ = cmd.MarkFlagRequired("version") // fails only if the flag does not exist
	return cmd
}

// Actions of the next step of an upgrade.
const (
	actionUpgrade    = "upgrade"
	actionSwitchover = "switchover"
	actionNone       = "none"
)

// upgrade is the output of lockstep fleet upgrade.
type upgrade struct {
	Version string        `json:"version"`
	Nodes   []upgradeNode `json:"nodes"`
	// Action is upgrade, switchover or, if all nodes run the release Version, none.
	Action string `json:"action"`
	// Pair and Address are those of the node to upgrade, or of the active node before a switchover.
	Pair    string `json:"pair"`
	Address string `json:"address"`
	// Ready reports whether the next step is possible now. Otherwise, Problems are the reasons.
	Ready    bool     `json:"ready"`
	Problems []string `json:"problems"`
}

type upgradeNode struct {
	Pair    string `json:"pair"`
	Name    string `json:"name"`
	Address string `json:"address"`
	Role    string `json:"role"`
	Version string `json:"version"`
	// Upgraded reports whether the node runs the target release (upgrade.Version).
	Upgraded bool `json:"upgraded"`
}

type upgrader struct {
	upgradeFlags

	env *cli.Env
	c   *client.Client
}

func (u *upgrader) run(ctx context.Context) error {
	for wait := u.wait; ; {
		r, err := u.check(ctx)
		switch {
		case err != nil && (!wait || !errors.Is(err, client.ErrUnavailable)):
			return err
		case err == nil && r.Ready && u.switchover && r.Action == actionSwitchover:
			if err := u.switchOver(ctx, r); err != nil && !errors.Is(err, client.ErrOutcomeUnknown) {
				return fmt.Errorf("pair %s: %w", r.Pair, err)
			}
			wait = true // until the former active is in sync
		case err == nil && (r.Ready || !wait):
			return u.print(r)
		}
		if err := pause(ctx, upgradeInterval); err != nil {
			return err
		}
	}
}

func (u *upgrader) print(r *upgrade) error {
	var failed error
	switch {
	case !r.Ready && (u.next || u.env.Print.JSON()):
		failed = fmt.Errorf("%w: %s", errNotReady, strings.Join(r.Problems, "; "))
	case !r.Ready:
		failed = errNotReady
	case u.next && r.Action == actionSwitchover:
		failed = cli.WithHint(fmt.Errorf("%w of pair %s", errNeedsSwitchover, r.Pair),
			"`lockstep switchover --addr %s`, or add --switchover", r.Address)
	}
	if u.env.Print.JSON() {
		return errors.Join(u.env.Print.Object(r), failed)
	}
	if u.next {
		if failed != nil || r.Action == actionNone {
			return failed
		}
		return u.env.Print.Sentence("%s", r.Address)
	}
	rows := make([][]any, len(r.Nodes))
	for i, n := range r.Nodes {
		done := "no"
		if n.Upgraded {
			done = "yes"
		}
		rows[i] = []any{n.Pair, cmp.Or(n.Name, "-"), n.Address, n.Role, cmp.Or(n.Version, "-"), done}
	}
	text := fmt.Sprintf("\nnext: upgrade %s of pair %s", r.Address, r.Pair)
	switch {
	case !r.Ready:
		text = "\nPROBLEM: " + strings.Join(r.Problems, "\nPROBLEM: ")
	case r.Action == actionSwitchover:
		text = fmt.Sprintf("\nnext: lockstep switchover --addr %s (pair %s)", r.Address, r.Pair)
	case r.Action == actionNone:
		text = "\nall nodes run the release " + r.Version
	}
	return errors.Join(u.env.Print.Table([]string{"Pair", "Node", "Address", "Role", "Release", "Upgraded"}, rows),
		u.env.Print.Sentence("%s", text), failed)
}

// switchOver switches the active role of a pair over to the upgraded node.
func (u *upgrader) switchOver(ctx context.Context, r *upgrade) error {
	ctx, cancel := context.WithTimeout(ctx, u.env.Timeout+switchoverTime)
	defer cancel()
	node, err := cli.NodeAt(u.c, r.Address)
	if err != nil {
		return err
	}
	_, err = node.Switchover(ctx, switchoverTime)
	return err
}

// check returns the next step, and the reasons why it must wait.
func (u *upgrader) check(ctx context.Context) (*upgrade, error) {
	limited, cancel := context.WithTimeout(ctx, u.env.Timeout)
	defer cancel()
	answers, err := responding(limited, u.env, u.c)
	if err != nil {
		return nil, err
	}
	r := &upgrade{Version: trimVersion(u.version), Action: actionNone, Nodes: []upgradeNode{}, Problems: []string{}}
	r.addFleet(answers[0].fleet)
	moves, err := answers[0].node.Moves(limited)
	if err != nil {
		return nil, err
	}
	for _, m := range moves.GetMoves() {
		if m.GetPhase() < pb.MovePhase_MOVE_PHASE_DONE {
			r.problem("move %d from pair %s to pair %s has not ended", m.GetEpoch(), m.GetFrom(), m.GetTo())
		}
	}
	var steps []upgradeStep
	for _, p := range answers[0].fleet.GetPairs() {
		st := pairstatus.QueryPair(limited, u.c, p.GetAddresses(), min(u.env.Timeout, findTimeout))
		nodes := r.addPair(p.GetName(), &st, u.ignore)
		steps = append(steps, nextOf(p.GetName(), nodes))
	}
	r.choose(steps)
	r.checkAfter(u.after)
	r.Ready = len(r.Problems) == 0
	return r, nil
}

func trimVersion(v string) string { return strings.TrimPrefix(strings.TrimSpace(v), "v") }

func (r *upgrade) problem(format string, args ...any) {
	r.Problems = append(r.Problems, fmt.Sprintf(format, args...))
}

// addFleet adds the problems of the directory.
func (r *upgrade) addFleet(f *pb.GetFleetResponse) {
	d := f.GetDirectory()
	if d.GetProblem() != pb.DirectoryProblem_DIRECTORY_PROBLEM_UNSPECIFIED || !d.GetCurrent() {
		r.problem("the directory is %s (lockstep fleet status)",
			cmp.Or(enumText(d.GetProblem(), "DIRECTORY_PROBLEM_"), "not current"))
	}
	for _, p := range f.GetPairs() {
		if !p.GetLive() && d.GetCurrent() {
			r.problem("pair %s is not live", p.GetName())
		}
	}
}

// addPair adds the nodes of a pair and its problems.
func (r *upgrade) addPair(pair string, st *pairstatus.Status, ignore []string) (nodes []upgradeNode) {
	active := 0
	for i := range st.Nodes {
		n := &st.Nodes[i]
		out := upgradeNode{Pair: pair, Name: n.Name, Address: n.Address, Role: n.Role, Version: trimVersion(n.Version)}
		if n.Error != "" {
			out.Role = n.Unanswered()
			r.problem("node %s of pair %s: %s", n.Address, pair, n.Error)
		}
		if n.Maintenance != nil {
			r.problem("node %s of pair %s runs an operation: %s", n.Address, pair, n.Maintenance)
		}
		if out.Upgraded = n.Error == "" && out.Version == r.Version; pairstatus.BaseRole(n.Role) == pairstatus.Active {
			active++
		}
		nodes = append(nodes, out)
	}
	switch {
	case active != 1:
		r.problem("pair %s has %d active nodes", pair, active)
	case st.Pair != nil && len(st.Pair.InSync) < len(st.Nodes):
		r.problem("pair %s is not in sync", pair)
	}
	if st.Pair != nil && st.Pair.Paused != "" {
		r.problem("automatic failover of pair %s is paused", pair)
	}
	if st.PlanText != "" {
		r.problem("pair %s executes a plan: %s", pair, st.PlanText)
	}
	for _, c := range st.Conditions {
		if c.Severity != "info" && !slices.Contains(ignore, c.Condition) {
			r.problem("condition %s of pair %s", c.Condition, pair)
		}
	}
	slices.SortStableFunc(nodes, func(a, b upgradeNode) int { return cmp.Compare(a.Name, b.Name) })
	r.Nodes = append(r.Nodes, nodes...)
	return nodes
}

// upgradeStep is the next step in one pair.
type upgradeStep struct {
	pair, action, address string
	// begun reports whether a node of the pair runs the target release.
	begun bool
}

// nextOf returns the next step in a pair: nodes that are not active first.
func nextOf(pair string, nodes []upgradeNode) upgradeStep {
	s := upgradeStep{pair: pair, action: actionNone}
	for _, n := range nodes {
		s.begun = s.begun || n.Upgraded
		if n.Upgraded || s.action == actionUpgrade {
			continue
		}
		s.address = n.Address
		if s.action = actionUpgrade; pairstatus.BaseRole(n.Role) == pairstatus.Active && len(nodes) > 1 {
			s.action = actionSwitchover
		}
	}
	return s
}

// choose chooses the next step: that of a pair with an upgraded node, or else of the first pair.
func (r *upgrade) choose(steps []upgradeStep) {
	var next *upgradeStep
	for i := range steps {
		s := &steps[i]
		if s.action != actionNone && (next == nil || s.begun && !next.begun) {
			next = s
		}
	}
	if next != nil {
		r.Action, r.Pair, r.Address = next.action, next.pair, next.address
	}
}

// checkAfter adds a problem unless the node at the address, which was upgraded last, runs the target release.
func (r *upgrade) checkAfter(address string) {
	if address == "" {
		return
	}
	at := slices.IndexFunc(r.Nodes, func(n upgradeNode) bool { return n.Address == address })
	switch {
	case at < 0:
		r.problem("no node of the fleet has the address %s", address)
	case !r.Nodes[at].Upgraded:
		r.problem("node %s runs the release %s", address, cmp.Or(r.Nodes[at].Version, "that is unknown"))
	}
}
