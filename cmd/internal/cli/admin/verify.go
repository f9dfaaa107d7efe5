// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

var errNotTheSame = errors.New("the two nodes differ, or messages cannot be read")

// VerifyCommand returns the `lockstep verify` command.
func VerifyCommand(env *cli.Env) *cobra.Command {
	var deep, full bool
	cmd := &cobra.Command{
		Use: "verify", GroupID: "operate",
		Short: "Compare what the two nodes hold, and list damaged messages",
		Long: `Compare the rolling digests of all queues of both nodes at the same record. That costs next to nothing; the active does it by
itself every verify.interval. With --deep both nodes also read every page and all of their logs from the disk, repair what is damaged, and
compare the content of all messages.

Messages that a node cannot read are listed. One that is damaged on one node is repaired from the other; one that is damaged on both
is lost: reading it fails with DATA_LOSS, consumers step over it, and "lockstep queue drop-damaged" gives it up.

The exit code is 1 when the nodes differ or a message cannot be read.`,
		Example: "  lockstep verify\n  lockstep verify --deep --full-speed\n  lockstep verify --output json | jq " +
			"'.differences'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.OnActive(cmd.Context(), func(ctx context.Context, n *client.Node) error {
				if !deep { // a deep verification has no time limit
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, max(env.Timeout, 15*time.Second))
					defer cancel()
				}
				r, err := n.Verify(ctx, &pb.VerifyRequest{Deep: deep, FullSpeed: full})
				if err != nil {
					return err
				}
				return printVerification(env, r)
			})
		},
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read all pages and logs of both nodes, too, and compare the content")
	cmd.Flags().BoolVar(&full, "full-speed", false, "with --deep: as fast as the disks can, instead of scrub.rate")
	return cmd
}

// verification is a comparison of the nodes, for programs.
type verification struct {
	OK           bool           `json:"ok"`
	Deep         bool           `json:"deep"`
	LSN          uint64         `json:"lsn"`
	Queues       uint64         `json:"queues"`
	Messages     uint64         `json:"messages"`
	Differences  []difference   `json:"differences"`
	ContentError string         `json:"content_error,omitempty"`
	Nodes        []verifiedNode `json:"nodes"`
}

// difference is a queue that differs between the nodes.
type difference struct {
	Queue  string `json:"queue,omitempty"`
	Reason string `json:"reason"`
}

// verifiedNode is the corruption found on a node.
type verifiedNode struct {
	NodeID  string            `json:"node_id"`
	Name    string            `json:"name"`
	Damage  pairstatus.Damage `json:"damage"`
	Damaged []damagedMessage  `json:"damaged"`
}

// damagedMessage is a message that cannot be read.
type damagedMessage struct {
	Queue    string    `json:"queue"`
	Sequence uint64    `json:"sequence"`
	Lost     bool      `json:"lost"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason"`
}

func newVerification(r *pb.VerifyResponse) verification {
	j := verification{
		OK: len(r.GetDifferences()) == 0 && r.GetContentError() == "", Deep: r.GetDeep(), LSN: r.GetLsn(),
		Queues:   r.GetQueues(),
		Messages: r.GetMessages(), Differences: []difference{}, ContentError: r.GetContentError(),
	}
	for _, d := range r.GetDifferences() {
		j.Differences = append(j.Differences, difference{Queue: d.GetQueue(), Reason: d.GetReason()})
	}
	for _, n := range r.GetNodes() {
		node := verifiedNode{
			NodeID: n.GetNodeId(), Name: n.GetName(), Damage: pairstatus.NewDamage(n.GetDamage()),
			Damaged: []damagedMessage{},
		}
		for _, m := range n.GetDamaged() {
			node.Damaged = append(node.Damaged, damagedMessage{
				Queue: m.GetQueue(), Sequence: m.GetSequence(), Lost: m.GetLost(), Since: m.GetSince().AsTime(),
				Reason: m.GetReason(),
			})
		}
		j.OK = j.OK && node.Damage.DamagedMessages == 0 && node.Damage.Index == ""
		j.Nodes = append(j.Nodes, node)
	}
	return j
}

func printVerification(env *cli.Env, r *pb.VerifyResponse) error {
	j := newVerification(r)
	if err := env.Print.Object(j); err != nil {
		return err
	}
	if !env.Print.JSON() {
		if err := printVerificationText(env, &j); err != nil {
			return err
		}
	}
	if !j.OK {
		return errNotTheSame
	}
	return nil
}

func printVerificationText(env *cli.Env, j *verification) error {
	if len(j.Differences) == 0 {
		what := "the nodes agree"
		if len(j.Nodes) == 1 {
			what = "there is no other node to compare with"
		}
		err := env.Print.Sentence("%s at LSN %d: %s, %s", what, j.LSN, output.Plural(j.Queues, "queue"),
			output.Plural(j.Messages, "message"))
		if err != nil {
			return err
		}
	}
	for _, d := range j.Differences {
		what := "DIFFERENT"
		if d.Queue != "" {
			what += ", queue " + d.Queue
		}
		if err := env.Print.Sentence("%s: %s", what, d.Reason); err != nil {
			return err
		}
	}
	if j.ContentError != "" {
		if err := env.Print.Sentence("the content of the messages could not be compared: %s",
			j.ContentError); err != nil {
			return err
		}
	}
	var counts, damaged [][]any
	for _, n := range j.Nodes {
		d := n.Damage
		counts = append(counts, []any{
			n.Name, output.Count(d.ScrubbedPages), d.Scrubs, d.FoundPages, d.RepairedPages, d.FoundLog, d.RepairedLog,
			d.DamagedMessages, d.LostMessages,
		})
		for _, m := range n.Damaged {
			damaged = append(damaged, []any{n.Name, m.Queue, m.Sequence, output.YesNo(m.Lost), m.Reason})
		}
	}
	header := []string{
		"Node", "Pages read", "Scrubs", "Damaged", "Repaired", "Log damaged", "Given up",
		"Messages damaged", "Lost",
	}
	if err := env.Print.Table(header, counts); err != nil || len(damaged) == 0 {
		return err
	}
	return env.Print.Table([]string{"Node", "Queue", "Sequence", "Lost", "Reason"}, damaged)
}
