// SPDX-License-Identifier: Apache-2.0

package demo

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// fleet returns the pairs of a fleet. The first one has the directory and the key prefix of a single pair, so that a
// pair can become a fleet.
func (f *devFlags) fleet(ctx context.Context) ([]devPair, error) {
	free, err := freePorts(ctx, "--listen-b", f.listen[1], 2*(f.pairs-1), f.listen[:])
	if err != nil {
		return nil, err
	}
	pairs := []devPair{{Options: harness.Options{Dir: f.dir, Listen: f.listen}}}
	for i := range f.pairs - 1 {
		pairs = append(pairs, devPair{Options: harness.Options{
			Dir: filepath.Join(f.dir, pairName(i+1)), Listen: [2]string(free[2*i:]),
		}})
	}
	for i := range pairs {
		p := &pairs[i]
		p.name, p.fleet, p.ports = pairName(i), true, make(served)
		p.settings = map[string]string{"fleet.pair": p.name}
		if i > 0 {
			p.settings["coordinator.etcd.prefix"] = "/lockstep/" + p.name
		}
	}
	return pairs, nil
}

func pairName(i int) string { return fmt.Sprintf("pair-%d", i+1) }

// joinFleet waits until all pairs are members of the fleet.
func joinFleet(ctx context.Context, pairs []devPair) error {
	for i := range pairs {
		p := &pairs[i]
		problem := ""
		err := p.pair.Wait(ctx, p.name+" is a member of the fleet", func(all []*pb.GetStatusResponse) bool {
			joined := len(all) > 0
			for _, st := range all {
				f := st.GetFleet()
				joined = joined && f.GetFleetId() != "" && f.GetDirectoryCurrent() && f.GetProblem() == ""
				if f.GetProblem() != "" {
					problem = f.GetProblem()
				}
			}
			return joined
		})
		if err != nil && problem != "" {
			return fmt.Errorf("%w: %s", err, problem)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func printFleet(w io.Writer, pairs []devPair) {
	fmt.Fprintf(w, "\nA fleet of %d pairs runs until Ctrl-C; %s.\n", len(pairs), pairs[0].pair.Coordinator())
	for i := range pairs {
		printNodes(w, &pairs[i])
	}
	if url := jmsURL(pairs[:1]); url != "" {
		fmt.Fprintf(w, "  AMQP 1.0 of %s, for Qpid JMS   %s\n", pairs[0].name, url)
	}
	fmt.Fprintf(w, `
Try in another terminal:
  export %s=%s
  lockstep queue create orders
  lockstep publish orders "first message"
  lockstep fleet queues
  lockstep consume orders
  lockstep fleet status
  kill -9 %d
`, cli.EnvAddr, strings.Join(pairs[0].pair.Addresses(), ","), pairs[len(pairs)-1].pair.Nodes[0].PID())
}
