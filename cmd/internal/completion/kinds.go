// SPDX-License-Identifier: Apache-2.0

package completion

import (
	"context"
	"slices"

	"github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
)

func kinds() map[string]kind {
	return map[string]kind{
		"queue":        {find: queues},
		"subscription": {find: subscriptions},
		"job":          {find: jobs},
		"schedule":     {find: schedules},
		"node":         {find: nodeNames},
		"site":         {find: siteNames},
		"pair":         {find: pairNames},
		"transaction":  {find: transactions},
		"token":        {find: rules((*pb.ListAccessResponse).GetTokens, (*pb.AccessToken).GetName)},
		"role":         {find: rules((*pb.ListAccessResponse).GetRoles, (*pb.AccessRole).GetName)},
		"quota":        {find: rules((*pb.ListAccessResponse).GetQuotas, (*pb.AccessQuota).GetQueue)},
		"address":      {local: true, find: func(_ context.Context, a *asked) ([]string, error) { return a.env.Addresses() }},
		"profile":      {local: true, find: profileNames},
		"output": {local: true, find: func(context.Context, *asked) ([]string, error) {
			return []string{"table", "json"}, nil
		}},
		"setting": {local: true, find: func(context.Context, *asked) (all []string, err error) {
			for _, s := range config.RunningSettings() {
				all = append(all, s.Key)
			}
			return all, nil
		}},
	}
}

func queues(ctx context.Context, a *asked) (all []string, err error) {
	list, err := admin.New(a.client).ListQueues(ctx, admin.ListOptions{Prefix: a.prefix, Limit: most})
	for i := range list.Queues {
		all = append(all, list.Queues[i].Name)
	}
	return all, err
}

func subscriptions(ctx context.Context, a *asked) (all []string, err error) {
	if a.queue == "" {
		return nil, nil
	}
	q, err := admin.New(a.client).GetQueue(ctx, a.queue)
	for i := range q.Subscriptions {
		all = append(all, q.Subscriptions[i].Name)
	}
	return all, err
}

func jobs(ctx context.Context, a *asked) (all []string, err error) {
	list, err := admin.New(a.client).Jobs(ctx)
	for _, j := range list {
		all = append(all, j.GetName())
	}
	return all, err
}

func schedules(ctx context.Context, a *asked) (all []string, err error) {
	list, err := admin.New(a.client).Schedules(ctx, "")
	for _, s := range list {
		all = append(all, s.GetName())
	}
	return all, err
}

// nodeNames returns the node names reported by the first node that responds. It queries one node after the other,
// because some may be unreachable.
func nodeNames(ctx context.Context, a *asked) ([]string, error) {
	nodes, err := a.env.Nodes(a.client)
	for _, n := range nodes {
		st, statusErr := n.Status(ctx)
		if err = statusErr; err != nil {
			continue
		}
		all := []string{}
		for _, node := range st.GetPair().GetNodes() {
			all = append(all, node.GetName())
		}
		if len(all) == 0 {
			all = append(all, st.GetNode().GetName())
		}
		slices.Sort(all)
		return all, nil
	}
	return nil, err
}

// siteNames returns the site names reported by the first node that responds.
func siteNames(ctx context.Context, a *asked) ([]string, error) {
	nodes, err := a.env.Nodes(a.client)
	for _, n := range nodes {
		r, siteErr := n.Site(ctx)
		if err = siteErr; err != nil {
			continue
		}
		var all []string
		for _, s := range []*pb.SiteState{r.GetSite(), r.GetRemote()} {
			if s.GetName() != "" {
				all = append(all, s.GetName())
			}
		}
		slices.Sort(all)
		return all, nil
	}
	return nil, err
}

// pairNames returns the names of the pairs of the fleet, as reported by the first node that responds.
func pairNames(ctx context.Context, a *asked) ([]string, error) {
	nodes, err := a.env.Nodes(a.client)
	for _, n := range nodes {
		r, fleetErr := n.Fleet(ctx)
		if err = fleetErr; err != nil {
			continue
		}
		var all []string
		for _, p := range r.GetPairs() {
			all = append(all, p.GetName())
		}
		return all, nil
	}
	return nil, err
}

func transactions(ctx context.Context, a *asked) (all []string, err error) {
	for t, err := range admin.New(a.client).ListPrepared(ctx) {
		if err != nil {
			return all, err
		}
		all = append(all, t.XID)
	}
	return all, nil
}

// rules returns a function that lists names from the access rules. Only an operator may list the rules.
func rules[T any](
	list func(*pb.ListAccessResponse) []T, name func(T) string,
) func(context.Context, *asked) ([]string, error) {
	return func(ctx context.Context, a *asked) (all []string, err error) {
		r, err := admin.New(a.client).ListAccess(ctx)
		for _, one := range list(r) {
			all = append(all, name(one))
		}
		return all, err
	}
}

func profileNames(_ context.Context, a *asked) (all []string, err error) {
	file, err := a.env.Profiles()
	if err != nil {
		return nil, err
	}
	return file.Names(), nil
}
