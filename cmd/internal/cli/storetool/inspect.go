// SPDX-License-Identifier: Apache-2.0

// Package storetool implements the read-only `lockstep store` commands for the files of a stopped node: check, digest
// and the dumps. The first two can also query running nodes.
package storetool

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// Commands returns the commands of the package.
func Commands(env *cli.Env) []*cobra.Command {
	var all []*cobra.Command
	for _, l := range []struct {
		command *cobra.Command
		need    bool // a directory is required
		rest    int  // number of arguments after it
	}{
		{checkCommand(env), false, 0},
		{digestCommand(env), false, 0},
		{dumpMetaCommand(env), true, 0},
		{dumpPageCommand(env), true, 1},
		{dumpLogCommand(env), true, 0},
	} {
		takeDir(l.command, l.need, l.rest)
		all = append(all, l.command)
	}
	return all
}

type checked struct {
	Store      string   `json:"store"`
	Sound      bool     `json:"sound"`
	Problems   []string `json:"problems"`
	Pages      uint64   `json:"pages"`
	Messages   uint64   `json:"messages"`
	Checkpoint uint64   `json:"checkpoint,omitempty"`
	LSN        uint64   `json:"lsn,omitempty"`
}

func checkCommand(env *cli.Env) *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use: "check", Short: "Check a whole store for corruption",
		Long: `Check a store for corruption: each page must be used once or be free, checksums must match, and no
unacknowledged message may be missing. Without --data-dir, the nodes in --addr check their stores one after the
other, while they run. With --data-dir, the command checks the last checkpoint of a stopped node. The exit code is 1
if a check finds problems or fails.`,
		Example: "  lockstep store check --data-dir /var/lib/lockstep\n  lockstep store check\n" +
			"  lockstep store check --full-speed",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				var r checkpoint.Report
				err := checkpoint.ReadDir(vfs.OS(), args[0], func(c *checkpoint.Checkpoint) (err error) {
					r, err = c.Check(cmd.Context(), checkProgress(env))
					return err
				})
				if err != nil {
					return err
				}
				return printCheck(env, checked{
					Store: args[0], Problems: r.Problems, Pages: r.Pages, Messages: r.Messages,
					Checkpoint: r.Checkpoint, LSN: r.LSN,
				})
			}
			return onEachNode(cmd.Context(), env, func(ctx context.Context, n *admin.Node) error {
				progress := checkProgress(env)
				r, err := n.Check(ctx, &pb.CheckRequest{FullSpeed: full},
					func(r progressOf) { progress(r.GetPagesDone(), r.GetPagesTotal()) })
				if err != nil {
					return err
				}
				return printCheck(env, checked{
					Store: n.Address(), Problems: r.GetProblems(), Pages: r.GetPagesDone(),
					Messages: r.GetMessages(),
				})
			})
		},
	}
	cli.AddFullSpeed(cmd, &full)
	return cmd
}

// onEachNode calls fn for each node, and continues after an error.
func onEachNode(ctx context.Context, env *cli.Env, fn func(context.Context, *admin.Node) error) error {
	return env.WithClient(ctx, func(ctx context.Context, c *client.Client) error {
		nodes, err := env.Nodes(c)
		errs := []error{err}
		for _, n := range nodes {
			errs = append(errs, fn(ctx, n))
		}
		return errors.Join(errs...)
	})
}

func checkProgress(env *cli.Env) func(done, total uint64) {
	if !output.IsTerminal(env.Stderr) {
		return func(uint64, uint64) {}
	}
	last := time.Now()
	return func(done, total uint64) {
		if now := time.Now(); now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(env.Stderr, "\r\x1b[K%s of %s pages", output.Count(done), output.Count(total))
		}
	}
}

func printCheck(env *cli.Env, c checked) error {
	if output.IsTerminal(env.Stderr) {
		fmt.Fprint(env.Stderr, "\r\x1b[K")
	}
	c.Sound = len(c.Problems) == 0
	if c.Problems == nil {
		c.Problems = []string{}
	}
	if err := env.Print.Object(c); err != nil {
		return err
	}
	for _, p := range c.Problems {
		if err := env.Print.Sentence("%s: %s", c.Store, p); err != nil {
			return err
		}
	}
	if !c.Sound {
		return cli.WithHint(fmt.Errorf("%s: %s found", c.Store, output.Plural(len(c.Problems), "problem")),
			"`lockstep status`. Only if the other node is in sync, stop this node, move everything in its data directory, "+
				"except raft, away and start it again: it copies the store from the other node. Otherwise, keep the "+
				"directory, and restore a backup with `lockstep store restore`")
	}
	return env.Print.Sentence("%s is valid: %s in %s", c.Store, output.Plural(c.Messages, "message"),
		output.Plural(c.Pages, "page"))
}

func digestCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "digest", Short: "Compute the digest of a store",
		Long: `Compute a digest of the content of each node in --addr or, with --data-dir, of the last checkpoint of a
stopped node. Two stores with the same digest at the same LSN contain the same queues, subscriptions,
acknowledgements and messages. To compare running nodes at the same LSN, use lockstep verify.`,
		Example: "  lockstep store digest\n  lockstep store digest --data-dir /var/lib/lockstep",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			show := func(location, content string, lsn, messages uint64) error {
				v := map[string]any{"store": location, "content": content, "lsn": lsn, "messages": messages}
				return env.Print.Result(v, "%s  %s  LSN %d, %s", content, location, lsn, output.Plural(messages, "message"))
			}
			if len(args) > 0 {
				var d checkpoint.Digest
				err := checkpoint.ReadDir(vfs.OS(), args[0], func(c *checkpoint.Checkpoint) (err error) {
					d, err = c.Digest(cmd.Context())
					return err
				})
				if err != nil {
					return err
				}
				return show(args[0], fmt.Sprintf("%x", d.Content), d.Position.LSN, d.Messages)
			}
			return onEachNode(cmd.Context(), env, func(ctx context.Context, n *admin.Node) error {
				d, err := n.Digest(ctx)
				if err != nil {
					return err
				}
				return show(n.Address(), d.GetContent(), d.GetLsn(), d.GetMessages())
			})
		},
	}
}

type metaDump struct {
	Path        string          `json:"path"`
	NodeID      string          `json:"node_id"`
	StoreID     string          `json:"store_id"`
	PairID      string          `json:"pair_id,omitempty"`
	Incarnation uint64          `json:"incarnation"`
	FenceConfig uint64          `json:"fence_config"`
	FenceTerm   uint64          `json:"fence_term"`
	MayHaveLost bool            `json:"may_have_lost"`
	PageSize    int             `json:"page_size"`
	Pages       uint64          `json:"pages"`
	PagesUsed   uint64          `json:"pages_used"`
	Checkpoint  uint64          `json:"checkpoint"`
	Position    output.Position `json:"position"`
	Root        uint64          `json:"root_page"`
	RootPages   uint32          `json:"root_pages"`
	CreatedAt   time.Time       `json:"created_at"`
	Slot        int             `json:"slot"`
	OtherSlot   string          `json:"other_slot"`
}

func dumpMetaCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "dump-meta", Short: "Show identity and checkpoint of a stopped node",
		Long: `Show the identity of a stopped node (node, store, pair, fence) and its last checkpoint. For a running node,
use lockstep status.`,
		Example: "  lockstep store dump-meta --data-dir /var/lib/lockstep",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			var d checkpoint.MetaDump
			err := checkpoint.ReadDir(vfs.OS(), args[0], func(c *checkpoint.Checkpoint) error {
				d = c.DumpMeta()
				return nil
			})
			if err != nil {
				return err
			}
			id, err := datadir.ReadIdentity(vfs.OS(), args[0])
			if err != nil {
				return err
			}
			m := d.Meta
			j := metaDump{
				Path: d.Path, NodeID: id.NodeID.String(), StoreID: uuid.UUID(d.StoreID).String(),
				Incarnation: id.Incarnation,
				FenceConfig: id.Fence.Config, FenceTerm: id.Fence.Term, MayHaveLost: id.MayHaveLost,
				PageSize: m.PageSize, Pages: m.Pages, PagesUsed: m.UsedPages, Checkpoint: m.Checkpoint,
				Position: output.NewPosition(m.Position),
				Root:     uint64(m.Root.First), RootPages: m.Root.Pages, CreatedAt: time.UnixMilli(m.CreatedMS).UTC(),
				Slot: d.Recovery.Slot, OtherSlot: "valid",
			}
			if id.PairID != uuid.Nil {
				j.PairID = id.PairID.String()
			}
			if d.Recovery.Other != nil {
				j.OtherSlot = d.Recovery.Other.Error()
			}
			if err := env.Print.Object(j); err != nil {
				return err
			}
			return env.Print.Pairs([][2]string{
				{"File", j.Path},
				{"Node", j.NodeID},
				{"Store", fmt.Sprintf("%s, incarnation %d", j.StoreID, j.Incarnation)},
				{"Pair", j.PairID},
				{"Fence", fmt.Sprintf("config %d, term %d", j.FenceConfig, j.FenceTerm)},
				{"May have lost data", output.YesNo(j.MayHaveLost)},
				{"Page size", output.Bytes(j.PageSize)},
				{"Pages", fmt.Sprintf("%s, %s in use", output.Count(j.Pages), output.Count(j.PagesUsed))},
				{"Checkpoint", fmt.Sprintf("%d, created %s, in slot %d", j.Checkpoint,
					j.CreatedAt.Local().Format(time.DateTime), j.Slot)},
				{"Other slot", j.OtherSlot},
				{"Position", fmt.Sprintf("LSN %d, term %d, chain %s", j.Position.LSN, j.Position.Term,
					j.Position.Chain)},
				{"Root", fmt.Sprintf("page %d, %s", j.Root, output.Plural(j.RootPages, "page"))},
			})
		},
	}
}

type pageDump struct {
	Page         uint64           `json:"page"`
	Pages        uint32           `json:"pages"`
	Born         uint64           `json:"born"`
	Kind         string           `json:"kind"`
	PayloadBytes int              `json:"payload_bytes"`
	Queue        uint64           `json:"queue,omitempty"`
	Messages     []output.Message `json:"messages,omitempty"`
}

func dumpPageCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "dump-page PAGE", Short: "Show a page of a stopped node",
		Long:    `Verify and show the extent (one or more pages) that begins at page PAGE. Pages are numbered from 1.`,
		Example: "  lockstep store dump-page 17 --data-dir /var/lib/lockstep",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			no, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil {
				return cli.Usage("PAGE %q: must be a number", args[1])
			}
			var d checkpoint.PageDump
			err = checkpoint.ReadDir(vfs.OS(), args[0], func(c *checkpoint.Checkpoint) (err error) {
				d, err = c.DumpPage(page.No(no))
				return err
			})
			if err != nil {
				return err
			}
			j := pageDump{
				Page: uint64(d.Extent.First), Pages: d.Extent.Pages, Born: d.Extent.Born, Kind: d.Kind.String(),
				PayloadBytes: len(d.Payload), Queue: d.Queue,
			}
			rows := make([][]any, 0, len(d.Messages))
			for _, m := range d.Messages {
				s := toStored(m.Sequence, m.Message)
				j.Messages = append(j.Messages, output.NewMessage(fmt.Sprint(d.Queue), s, true))
				rows = append(rows, []any{
					s.Sequence, s.PublishedAt.Local().Format(time.DateTime), output.Bytes(len(s.Body)),
					output.StoredProperties(&s), output.Body(s.Body),
				})
			}
			if err := env.Print.Object(j); err != nil {
				return err
			}
			err = env.Print.Sentence("page %d: %s, %s, written for checkpoint %d, %s of payload", j.Page, j.Kind,
				output.Plural(j.Pages, "page"), j.Born, output.Bytes(j.PayloadBytes))
			if err != nil || len(rows) == 0 {
				return err
			}
			if err := env.Print.Sentence("messages of the queue with ID %d:", d.Queue); err != nil {
				return err
			}
			return env.Print.Table([]string{"Sequence", "Published", "Size", "Properties", "Body"}, rows)
		},
	}
}

// takeDir adds --data-dir to a command. For compatibility, the directory is also accepted as the first argument. If
// need is set, the directory is required. rest is the number of arguments after the directory.
func takeDir(cmd *cobra.Command, need bool, rest int) {
	var dir string
	run := cmd.RunE
	cmd.Flags().StringVar(&dir, "data-dir", "", "data directory of a stopped node")
	cmd.Args = func(_ *cobra.Command, args []string) error {
		switch n := len(args); {
		case dir != "" && n > rest:
			return cli.Usage("the directory is given twice, as an argument and as --data-dir")
		case dir != "" && n == rest, dir == "" && n == rest+1, dir == "" && n == 0 && !need:
			return nil
		case dir == "" && n <= rest:
			return cli.Usage("--data-dir is required: the directory of a stopped node")
		default:
			return cli.Usage("expected %s, got %d arguments", cmd.UseLine(), n)
		}
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if dir != "" {
			args = append([]string{dir}, args...)
		}
		return run(cmd, args)
	}
}
