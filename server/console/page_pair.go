// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// pairPage shows both nodes.
func pairPage() Page {
	return Page{
		Path: "/pair", Title: "Pair", Key: "p", Right: "any", Template: "pair", Live: true, Load: loadPair,
	}
}

// pairView is what the page Pair shows.
type pairView struct {
	Status *pb.GetStatusResponse
	Nodes  []*pb.NodeStatus
}

func loadPair(ctx context.Context, v *View) (any, error) {
	st, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	d := &pairView{Status: st, Nodes: st.GetPair().GetNodes()}
	if len(d.Nodes) == 0 {
		d.Nodes = []*pb.NodeStatus{st.GetNode()}
	}
	return d, nil
}
