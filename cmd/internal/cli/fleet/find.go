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
	"sync"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// findTimeout limits the search for nodes, of which some may be unreachable.
const findTimeout = 5 * time.Second

// answer is the response of a node, or the error of the request.
type answer struct {
	address string
	node    *admin.Node
	fleet   *pb.GetFleetResponse
	status  *pb.GetStatusResponse // nil if it was not requested
	err     error
}

func (a *answer) current() bool { return a.err == nil && a.fleet.GetDirectory().GetCurrent() }

// complete reports whether the directory certainly contains all registered pairs.
func (a *answer) complete() bool {
	d := a.fleet.GetDirectory()
	return a.current() && d.GetProblem() == pb.DirectoryProblem_DIRECTORY_PROBLEM_UNSPECIFIED && len(d.GetMalformed()) == 0
}

// query requests the state of the fleet from nodes, concurrently.
func query(ctx context.Context, env *cli.Env, c *client.Client, addresses []string, withStatus bool) []answer {
	ctx, cancel := context.WithTimeout(ctx, min(env.Timeout, findTimeout))
	defer cancel()
	answers := make([]answer, len(addresses))
	var queries sync.WaitGroup
	for i, address := range addresses {
		queries.Go(func() {
			a := &answers[i]
			a.address = address
			if a.node, a.err = cli.NodeAt(c, address); a.err != nil {
				return
			}
			if a.fleet, a.err = a.node.Fleet(ctx); a.err == nil && withStatus {
				a.status, a.err = a.node.Status(ctx)
			}
		})
	}
	queries.Wait()
	return answers
}

// responding returns the answers of the nodes in --addr that have responded, those with a current copy of the directory
// first. Without any, it returns an error.
func responding(ctx context.Context, env *cli.Env, c *client.Client) ([]answer, error) {
	addresses, err := env.Addresses()
	if err != nil {
		return nil, err
	}
	answers := query(ctx, env, c, addresses, false)
	failed := failure(answers)
	answers = slices.DeleteFunc(answers, func(a answer) bool { return a.err != nil })
	if len(answers) == 0 {
		return nil, failed
	}
	slices.SortStableFunc(answers, func(a, b answer) int {
		switch {
		case a.current() == b.current():
			return 0
		case a.current():
			return -1
		}
		return 1
	})
	return answers, nil
}

// failure returns the error of nodes that all failed: that of a node that has responded, if any.
func failure(answers []answer) error {
	var failed error
	for _, a := range answers {
		if failed == nil || a.err != nil && unreachable(failed) && !unreachable(a.err) {
			failed = a.err
		}
	}
	return failed
}

func unreachable(err error) bool {
	e, ok := errors.AsType[*client.Error](err)
	return !ok || e.Reason == ""
}

// change calls fn with the nodes in --addr, one after the other, until a node is able to use etcd. fn must be
// idempotent.
func change(ctx context.Context, env *cli.Env, fn func(context.Context, answer) error) error {
	return env.WithTimeout(ctx, func(ctx context.Context, c *client.Client) error {
		answers, err := responding(ctx, env, c)
		if err != nil {
			return err
		}
		for _, a := range answers {
			if err = fn(ctx, a); !errors.Is(err, client.ErrUnavailable) || ctx.Err() != nil {
				return err
			}
		}
		return cli.WithHint(err, "`lockstep fleet status` to show the state of the directory, then repeat the command")
	})
}

// member is a pair of the fleet, with its active node.
type member struct {
	name  string
	node  *admin.Node // nil: the pair has no active node that responds
	err   error       // why node is nil
	fleet *pb.GetFleetResponse
}

// members returns the pairs of the nodes at the addresses, sorted by name, and the errors of nodes that have not
// responded. It contacts the active nodes of these pairs even if they are not at one of the addresses.
func members(
	ctx context.Context, env *cli.Env, c *client.Client, addresses []string,
) (pairs []member, failed []answer) {
	answers := query(ctx, env, c, addresses, true)
	if more := activeElsewhere(answers); len(more) > 0 {
		answers = append(answers, query(ctx, env, c, more, true)...)
	}
	byName := map[string]*member{}
	for _, a := range answers {
		if a.err != nil {
			failed = append(failed, a)
			continue
		}
		name := a.fleet.GetPair()
		m := cmp.Or(byName[name], &member{name: name, fleet: a.fleet})
		if byName[name] = m; m.node == nil && isActive(a.status) {
			m.node, m.fleet = a.node, a.fleet
		}
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		m := byName[name]
		if m.node == nil {
			m.err = cli.WithHint(fmt.Errorf("no node of pair %s is active", name), "`lockstep status` with the addresses of "+
				"the pair, to show nodes, conditions and actions")
		}
		pairs = append(pairs, *m)
	}
	return pairs, failed
}

func isActive(st *pb.GetStatusResponse) bool {
	switch st.GetRole() {
	case pb.Role_ROLE_ACTIVE, pb.Role_ROLE_ACTIVE_ALONE, pb.Role_ROLE_BLOCKED:
		return true
	default:
		return false
	}
}

// activeElsewhere returns the addresses of active nodes that were not queried, according to the nodes of their pairs.
func activeElsewhere(answers []answer) (addresses []string) {
	for _, a := range answers {
		for _, n := range a.status.GetPair().GetNodes() {
			known := slices.ContainsFunc(answers, func(o answer) bool { return o.address == n.GetAddress() })
			if n.GetActive() && n.GetAddress() != "" && !known && !slices.Contains(addresses, n.GetAddress()) {
				addresses = append(addresses, n.GetAddress())
			}
		}
	}
	return addresses
}

// registered returns the addresses of the registered pairs that are not among the given pairs.
func registered(pairs []member) (addresses []string) {
	for _, m := range pairs {
		for _, p := range m.fleet.GetPairs() {
			known := slices.ContainsFunc(pairs, func(o member) bool { return o.name == p.GetName() })
			for _, address := range p.GetAddresses() {
				if !known && !slices.Contains(addresses, address) {
					addresses = append(addresses, address)
				}
			}
		}
	}
	return addresses
}

func names(pairs []member) []string {
	out := make([]string, len(pairs))
	for i, m := range pairs {
		out[i] = m.name
	}
	return out
}

func describe(failed []answer) string {
	texts := make([]string, len(failed))
	for i, a := range failed {
		texts[i] = fmt.Sprintf("%s: %v", a.address, a.err)
		if pairstatus.Refuses(a.err) {
			texts[i] = a.address + ": access denied"
		}
	}
	return strings.Join(texts, "\n")
}
