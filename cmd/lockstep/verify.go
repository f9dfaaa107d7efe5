package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

var errNotTheSame = errors.New("the two nodes differ, or messages cannot be read")

func (a *app) verifyCommand() *cobra.Command {
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
			return a.onActive(cmd.Context(), func(ctx context.Context, n *client.Node) error {
				if !deep { // otherwise it takes as long as it takes
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, max(a.timeout, 15*time.Second))
					defer cancel()
				}
				r, err := n.Verify(ctx, &pb.VerifyRequest{Deep: deep, FullSpeed: full})
				if err != nil {
					return err
				}
				return a.printVerification(r)
			})
		},
	}
	cmd.Flags().BoolVar(&deep, "deep", false, "read all pages and logs of both nodes, too, and compare the content")
	cmd.Flags().BoolVar(&full, "full-speed", false, "with --deep: as fast as the disks can, instead of scrub.rate")
	return cmd
}

// onActive calls fn with the active node.
func (a *app) onActive(ctx context.Context, fn func(context.Context, *client.Node) error) error {
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		find, cancel := context.WithTimeout(ctx, a.timeout)
		active, err := c.WaitActive(find)
		cancel()
		if err != nil {
			return err
		}
		n, err := nodeAt(c, active.Address)
		if err != nil {
			return err
		}
		return fn(ctx, n)
	})
}

// verificationJSON is a comparison for programs.
type verificationJSON struct {
	OK           bool               `json:"ok"`
	Deep         bool               `json:"deep"`
	LSN          uint64             `json:"lsn"`
	Queues       uint64             `json:"queues"`
	Messages     uint64             `json:"messages"`
	Differences  []differenceJSON   `json:"differences"`
	ContentError string             `json:"content_error,omitempty"`
	Nodes        []verifiedNodeJSON `json:"nodes"`
}

// differenceJSON is a queue that is not the same on both nodes.
type differenceJSON struct {
	Queue  string `json:"queue,omitempty"`
	Reason string `json:"reason"`
}

// verifiedNodeJSON is what is damaged on a node.
type verifiedNodeJSON struct {
	NodeID  string               `json:"node_id"`
	Name    string               `json:"name"`
	Damage  damageJSON           `json:"damage"`
	Damaged []damagedMessageJSON `json:"damaged"`
}

// damageJSON counts.
type damageJSON struct {
	ScrubbedPages    uint64 `json:"scrubbed_pages"`
	ScrubbedLogBytes uint64 `json:"scrubbed_log_bytes"`
	Scrubs           uint64 `json:"scrubs"`
	FoundPages       uint64 `json:"found_pages"`
	FoundLog         uint64 `json:"found_log"`
	RepairedPages    uint64 `json:"repaired_pages"`
	RepairedLog      uint64 `json:"repaired_log"`
	RepairedMessages uint64 `json:"repaired_messages"`
	DamagedMessages  uint64 `json:"damaged_messages"`
	LostMessages     uint64 `json:"lost_messages"`
	Index            string `json:"index,omitempty"`
}

// damagedMessageJSON is a message that cannot be read.
type damagedMessageJSON struct {
	Queue    string    `json:"queue"`
	Sequence uint64    `json:"sequence"`
	Lost     bool      `json:"lost"`
	Since    time.Time `json:"since"`
	Reason   string    `json:"reason"`
}

func toDamageJSON(d *pb.DamageStatus) damageJSON {
	return damageJSON{
		ScrubbedPages: d.GetScrubbedPages(), ScrubbedLogBytes: d.GetScrubbedLogBytes(), Scrubs: d.GetScrubs(),
		FoundPages: d.GetFoundPages(),
		FoundLog:   d.GetFoundLog(), RepairedPages: d.GetRepairedPages(), RepairedLog: d.GetRepairedLog(),
		RepairedMessages: d.GetRepairedMessages(),
		DamagedMessages:  d.GetDamagedMessages(), LostMessages: d.GetLostMessages(), Index: d.GetIndex(),
	}
}

func toVerificationJSON(r *pb.VerifyResponse) verificationJSON {
	j := verificationJSON{
		OK: len(r.GetDifferences()) == 0 && r.GetContentError() == "", Deep: r.GetDeep(), LSN: r.GetLsn(),
		Queues:   r.GetQueues(),
		Messages: r.GetMessages(), Differences: []differenceJSON{}, ContentError: r.GetContentError(),
	}
	for _, d := range r.GetDifferences() {
		j.Differences = append(j.Differences, differenceJSON{Queue: d.GetQueue(), Reason: d.GetReason()})
	}
	for _, n := range r.GetNodes() {
		node := verifiedNodeJSON{
			NodeID: n.GetNodeId(), Name: n.GetName(), Damage: toDamageJSON(n.GetDamage()),
			Damaged: []damagedMessageJSON{},
		}
		for _, m := range n.GetDamaged() {
			node.Damaged = append(node.Damaged, damagedMessageJSON{
				Queue: m.GetQueue(), Sequence: m.GetSequence(), Lost: m.GetLost(), Since: m.GetSince().AsTime(),
				Reason: m.GetReason(),
			})
		}
		j.OK = j.OK && node.Damage.DamagedMessages == 0 && node.Damage.Index == ""
		j.Nodes = append(j.Nodes, node)
	}
	return j
}

func (a *app) printVerification(r *pb.VerifyResponse) error {
	j := toVerificationJSON(r)
	if err := a.print.Object(j); err != nil {
		return err
	}
	if !a.print.JSON() {
		if err := a.printVerificationText(&j); err != nil {
			return err
		}
	}
	if !j.OK {
		return errNotTheSame
	}
	return nil
}

func (a *app) printVerificationText(j *verificationJSON) error {
	if len(j.Differences) == 0 {
		what := "the nodes agree"
		if len(j.Nodes) == 1 {
			what = "there is no other node to compare with"
		}
		err := a.print.Sentence("%s at LSN %d: %s, %s", what, j.LSN, out.Plural(j.Queues, "queue"),
			out.Plural(j.Messages, "message"))
		if err != nil {
			return err
		}
	}
	for _, d := range j.Differences {
		what := "DIFFERENT"
		if d.Queue != "" {
			what += ", queue " + d.Queue
		}
		if err := a.print.Sentence("%s: %s", what, d.Reason); err != nil {
			return err
		}
	}
	if j.ContentError != "" {
		if err := a.print.Sentence("the content of the messages could not be compared: %s",
			j.ContentError); err != nil {
			return err
		}
	}
	var counts, damaged [][]any
	for _, n := range j.Nodes {
		d := n.Damage
		counts = append(counts, []any{
			n.Name, out.Count(d.ScrubbedPages), d.Scrubs, d.FoundPages, d.RepairedPages, d.FoundLog, d.RepairedLog,
			d.DamagedMessages, d.LostMessages,
		})
		for _, m := range n.Damaged {
			damaged = append(damaged, []any{n.Name, m.Queue, m.Sequence, out.YesNo(m.Lost), m.Reason})
		}
	}
	header := []string{
		"Node", "Pages read", "Scrubs", "Damaged", "Repaired", "Log damaged", "Given up",
		"Messages damaged", "Lost",
	}
	if err := a.print.Table(header, counts); err != nil || len(damaged) == 0 {
		return err
	}
	return a.print.Table([]string{"Node", "Queue", "Sequence", "Lost", "Reason"}, damaged)
}

func (a *app) queueDropDamaged() *cobra.Command {
	var dry, yes bool
	cmd := &cobra.Command{
		Use: "drop-damaged NAME", Short: "Give up the messages of a queue that no node can read",
		Long: `Acknowledge, for all subscriptions, the messages of a queue that cannot be read on either node, or on the one that stands alone, as
"lockstep verify" lists them. They are lost for good, and are no longer counted in the queue. Messages that may still be repaired are left
alone. After a restart a node has to find damage again: "lockstep verify --deep" reads everything.`,
		Example: "  lockstep queue drop-damaged orders --dry-run\n  lockstep queue drop-damaged orders",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.onActive(cmd.Context(), func(ctx context.Context, n *client.Node) error {
				seen, err := a.confirmDropDamaged(ctx, n, args[0], yes || dry)
				if err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, a.timeout)
				defer cancel()
				r, err := n.DropDamaged(ctx, &pb.DropDamagedRequest{Queue: args[0], DryRun: dry, Only: seen})
				if err != nil {
					return err
				}
				sequences := append([]uint64{}, r.GetSequences()...)
				if err := a.print.Object(map[string]any{"sequences": sequences, "dry_run": dry}); err != nil {
					return err
				}
				if len(sequences) == 0 {
					return a.print.Sentence("no message of %s is known to be damaged and beyond repair", args[0])
				}
				did := "gave up"
				if dry {
					did = "would give up"
				}
				return a.print.Sentence("%s %s of %s: %s", did, out.Plural(len(sequences), "message"), args[0],
					fmt.Sprint(sequences))
			})
		},
	}
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say which messages it would be")
	addYes(cmd, &yes)
	return cmd
}

// confirmDropDamaged asks if there are messages to give up, and returns those that were asked about; none if nobody was
// asked.
func (a *app) confirmDropDamaged(ctx context.Context, n *client.Node, queue string, yes bool) ([]uint64, error) {
	if yes || !a.asks() {
		return nil, nil
	}
	look, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	r, err := n.DropDamaged(look, &pb.DropDamagedRequest{Queue: queue, DryRun: true})
	if err != nil || len(r.GetSequences()) == 0 {
		return nil, err
	}
	return r.GetSequences(), a.confirm(ctx, yes,
		"Give up %s of queue %s? What cannot be read now could then not be repaired any more.",
		out.Plural(len(r.GetSequences()), "message"), queue)
}
