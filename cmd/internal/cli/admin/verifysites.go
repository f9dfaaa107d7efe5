// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"fmt"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

var errSitesDiffer = cli.WithHint(errors.New("the sites differ"),
	"`lockstep status` with the addresses of the replica, for the action of the condition digests-differ")

func verifySites(ctx context.Context, env *cli.Env) error {
	return env.OnActiveOfSites(ctx, func(ctx context.Context, n *admin.Node) error {
		ctx, cancel := context.WithTimeout(ctx, max(env.Timeout, compareTime))
		defer cancel()
		r, err := n.VerifySites(ctx)
		if err != nil {
			return err
		}
		return printSites(env, r)
	})
}

// sitesVerification is the output of lockstep verify --site.
type sitesVerification struct {
	OK          bool             `json:"ok"`
	Primary     string           `json:"primary"`
	Replica     string           `json:"replica"`
	Epoch       uint64           `json:"epoch"`
	Transaction uint64           `json:"transaction"` // logical number
	PrimaryLSN  uint64           `json:"primary_lsn"`
	ReplicaLSN  uint64           `json:"replica_lsn"`
	Queues      uint64           `json:"queues"`
	Messages    uint64           `json:"messages"`
	HeldMS      float64          `json:"held_ms"`
	Differences []siteDifference `json:"differences"`
}

// siteDifference describes a queue that differs. Primary or Replica is nil if the queue is missing at that site. If
// Queue is empty, the state outside of queues differs.
type siteDifference struct {
	Queue   string       `json:"queue,omitempty"`
	Primary *queueDigest `json:"primary"`
	Replica *queueDigest `json:"replica"`
}

type queueDigest struct {
	Name         string `json:"name,omitempty"`
	Digest       string `json:"digest"` // hexadecimal
	NextSequence uint64 `json:"next_sequence"`
	Messages     uint64 `json:"messages"`
}

func newQueueDigest(d *pb.SiteQueueDigest) *queueDigest {
	if d == nil {
		return nil
	}
	return &queueDigest{
		Name: d.GetName(), Digest: fmt.Sprintf("%016x", d.GetDigest()), NextSequence: d.GetNextSequence(),
		Messages: d.GetMessages(),
	}
}

func newSitesVerification(r *pb.VerifySitesResponse) sitesVerification {
	j := sitesVerification{
		OK: len(r.GetDifferences()) == 0, Primary: r.GetPrimary(), Replica: r.GetReplica(), Epoch: r.GetEpoch(),
		Transaction: r.GetLogical(), PrimaryLSN: r.GetPrimaryLsn(), ReplicaLSN: r.GetReplicaLsn(), Queues: r.GetQueues(),
		Messages: r.GetMessages(), HeldMS: output.Milliseconds(r.GetHeld().AsDuration()), Differences: []siteDifference{},
	}
	for _, d := range r.GetDifferences() {
		j.Differences = append(j.Differences, siteDifference{
			Queue: d.GetQueue(), Primary: newQueueDigest(d.GetPrimary()), Replica: newQueueDigest(d.GetReplica()),
		})
	}
	return j
}

func printSites(env *cli.Env, r *pb.VerifySitesResponse) error {
	j := newSitesVerification(r)
	if err := env.Print.Object(j); err != nil {
		return err
	}
	if !env.Print.JSON() {
		if err := printSitesText(env, &j); err != nil {
			return err
		}
	}
	if !j.OK {
		return errSitesDiffer
	}
	return nil
}

func printSitesText(env *cli.Env, j *sitesVerification) error {
	label := "equal"
	if !j.OK {
		label = "DIFFERENT"
	}
	if err := env.Print.Sentence("%s and %s are %s: %s, %s at transaction %d (LSN %d at %s, %d at %s)", j.Primary,
		j.Replica, label, output.Plural(j.Queues, "queue"), output.Plural(j.Messages, "message"), j.Transaction,
		j.PrimaryLSN, j.Primary, j.ReplicaLSN, j.Replica); err != nil || j.OK {
		return err
	}
	var rows [][]any
	for _, d := range j.Differences {
		name := d.Queue
		if name == "" {
			name = "(state outside of queues)"
		}
		rows = append(rows, d.Primary.row(name, j.Primary), d.Replica.row(name, j.Replica))
	}
	return env.Print.Table([]string{"Queue", "Site", "Digest", "Next sequence", "Messages"}, rows)
}

func (d *queueDigest) row(queue, site string) []any {
	if d == nil {
		return []any{queue, site, "missing", "", ""}
	}
	return []any{queue, site, d.Digest, d.NextSequence, d.Messages}
}
