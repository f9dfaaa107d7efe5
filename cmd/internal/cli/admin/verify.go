// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"errors"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// compareTime is the minimum time limit of a comparison without --deep, or of sites. It exceeds the 10 seconds for
// which a node waits for the record at which both are compared.
const compareTime = 15 * time.Second

var errDiffer = cli.WithHint(errors.New("the nodes differ, or messages cannot be read"),
	"`lockstep status` for conditions and their actions")

// VerifyCommand returns the `lockstep verify` command.
func VerifyCommand(env *cli.Env) *cobra.Command {
	var deep, full, site bool
	cmd := &cobra.Command{
		Use: "verify", GroupID: "operate",
		Short: "Compare the nodes and list corrupt messages",
		Long: `Compare the digests of all queues on both nodes, and list the corrupt messages that the nodes have detected, up
to 1,000 on each node. The standby must be in sync. A standalone node only lists its corrupt messages. With --deep, the
nodes first read all their data from disk, and compare the contents of all messages.

The nodes repair corrupt messages if the other node has an intact copy. If neither node has an intact copy, a backup or
a replica site can still have one. To discard the corrupt messages, use lockstep queue drop-corrupt.

With --site, only the digests of two sites are compared, and --addr can contain nodes of both sites.

The time limit is --timeout, but at least 15 seconds; with --deep, there is no limit. The exit code is 1 if the nodes or
sites differ, if messages or an index cannot be read, or if the comparison fails.`,
		Example: "  lockstep verify\n  lockstep verify --deep --full-speed\n  lockstep verify --site\n" +
			"  lockstep verify --output json | jq '.differences'",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if site {
				return verifySites(cmd.Context(), env)
			}
			return env.OnActive(cmd.Context(), func(ctx context.Context, n *admin.Node) error {
				if !deep { // a deep verification has no time limit
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, max(env.Timeout, compareTime))
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
	cmd.Flags().BoolVar(&deep, "deep", false, "also read all data of both nodes, and compare the contents of messages")
	cmd.Flags().BoolVar(&site, "site", false, "compare both sites instead of both nodes")
	cmd.Flags().BoolVar(&full, "full-speed", false,
		"with --deep: do not pause for clients; may slow them down")
	cmd.MarkFlagsMutuallyExclusive("site", "deep")
	cmd.MarkFlagsMutuallyExclusive("site", "full-speed")
	return cmd
}

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

type difference struct {
	Queue  string `json:"queue,omitempty"`
	Reason string `json:"reason"`
}

type verifiedNode struct {
	NodeID     string                `json:"node_id"`
	Name       string                `json:"name"`
	Corruption pairstatus.Corruption `json:"damage"`
	Corrupt    []corruptMessage      `json:"damaged"`
}

type corruptMessage struct {
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
			NodeID: n.GetNodeId(), Name: n.GetName(), Corruption: pairstatus.NewCorruption(n.GetDamage()),
			Corrupt: []corruptMessage{},
		}
		for _, m := range n.GetDamaged() {
			node.Corrupt = append(node.Corrupt, corruptMessage{
				Queue: m.GetQueue(), Sequence: m.GetSequence(), Lost: m.GetLost(), Since: m.GetSince().AsTime(),
				Reason: m.GetReason(),
			})
		}
		j.OK = j.OK && node.Corruption.CorruptMessages == 0 && node.Corruption.Index == ""
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
		return errDiffer
	}
	return nil
}

func printVerificationText(env *cli.Env, j *verification) error {
	if len(j.Differences) == 0 {
		label := "the digests of the nodes are equal"
		switch {
		case len(j.Nodes) == 1:
			label = "no other node to compare with"
		case j.Deep && j.ContentError == "":
			label = "the nodes are identical"
		}
		err := env.Print.Sentence("%s: %s, %s at LSN %d", label, output.Plural(j.Queues, "queue"),
			output.Plural(j.Messages, "message"), j.LSN)
		if err != nil {
			return err
		}
	}
	for _, d := range j.Differences {
		label := "DIFFERENT"
		if d.Queue != "" {
			label += ", queue " + d.Queue
		}
		if err := env.Print.Sentence("%s: %s", label, d.Reason); err != nil {
			return err
		}
	}
	if j.ContentError != "" {
		if err := env.Print.Sentence("message contents could not be compared: %s", j.ContentError); err != nil {
			return err
		}
	}
	var counts, corrupt [][]any
	for _, n := range j.Nodes {
		d := n.Corruption
		counts = append(counts, []any{
			n.Name, output.Count(d.ScrubbedPages), d.Scrubs, d.FoundPages, d.RepairedPages, d.FoundLog, d.RepairedLog,
			d.CorruptMessages, d.LostMessages,
		})
		for _, m := range n.Corrupt {
			corrupt = append(corrupt, []any{n.Name, m.Queue, m.Sequence, output.YesNo(m.Lost), m.Reason})
		}
	}
	header := []string{
		"Node", "Pages read", "Scrubs", "Corrupt", "Repaired", "Corrupt log", "Discarded",
		"Corrupt messages", "Lost",
	}
	if err := env.Print.Table(header, counts); err != nil || len(corrupt) == 0 {
		return err
	}
	return env.Print.Table([]string{"Node", "Queue", "Sequence", "Lost", "Reason"}, corrupt)
}
