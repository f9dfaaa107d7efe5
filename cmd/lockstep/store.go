package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/out"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/lsn"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

func (a *app) storeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "store", GroupID: "operate",
		Short: "Look after the files of a store: page size, backups, checks",
		Long: `Maintenance is done by running nodes, the standby if nothing else is said, while messages go on. With --data-dir some of
it works on the files of a node that is stopped: the directory that was given as data.dir.

` + "`check`, `digest` and the `dump` commands" + ` read the files of a stopped node and change nothing; ` + "`check` and `digest`" + ` without a
directory ask the running nodes.`,
		Args: knownSubcommand,
		RunE: needsSubcommand,
	}
	cmd.AddGroup(&cobra.Group{ID: "maintain", Title: "Maintain:"}, &cobra.Group{ID: "look", Title: "Look:"})
	for _, c := range []*cobra.Command{
		a.storeScan(), a.storeResize(), a.storeCompact(), a.storePlan(), a.storeShrink(), a.storeDropOld(),
		a.storeBackup(), a.storeBackups(),
		a.storeRestore(), a.storeFlushArchive(), a.storeSettings(),
	} {
		c.GroupID = "maintain"
		cmd.AddCommand(c)
	}
	for _, l := range []struct {
		command *cobra.Command
		need    bool // of a directory
		rest    int  // arguments after it
	}{
		{a.storeCheck(), false, 0},
		{a.storeDigest(), false, 0},
		{a.storeDumpMeta(), true, 0},
		{a.storeDumpPage(), true, 1},
		{a.storeDumpLog(), true, 0},
	} {
		l.command.GroupID = "look"
		takeDir(l.command, l.need, l.rest)
		cmd.AddCommand(l.command)
	}
	return cmd
}

// checkJSON is the outcome of a check for programs.
type checkJSON struct {
	Store      string   `json:"store"`
	Sound      bool     `json:"sound"`
	Problems   []string `json:"problems"`
	Pages      uint64   `json:"pages"`
	Messages   uint64   `json:"messages"`
	Checkpoint uint64   `json:"checkpoint,omitempty"`
	LSN        uint64   `json:"lsn,omitempty"`
}

func (a *app) storeCheck() *cobra.Command {
	var full bool
	cmd := &cobra.Command{
		Use: "check", Short: "Read a whole store and report what is wrong",
		Long: `Read everything that the last checkpoint refers to: every page is used once or free, every page and every message
reads back as it was written, every message that a subscription still wants is there. The exit code is 1 if not.`,
		Example: "  lockstep store check --data-dir /var/lib/lockstep\n  lockstep store check\n  lockstep store " +
			"check --full-speed",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				r, err := store.CheckDir(cmd.Context(), vfs.OS(), args[0], a.checkProgress())
				if err != nil {
					return err
				}
				return a.printCheck(checkJSON{
					Store: args[0], Problems: r.Problems, Pages: r.Pages, Messages: r.Messages,
					Checkpoint: r.Checkpoint, LSN: r.LSN,
				})
			}
			return a.onEachNode(cmd.Context(), func(ctx context.Context, n *client.Node) error {
				progress := a.checkProgress()
				r, err := n.Check(ctx, &pb.CheckRequest{FullSpeed: full},
					func(r progressOf) { progress(r.GetPagesDone(), r.GetPagesTotal()) })
				if err != nil {
					return err
				}
				return a.printCheck(checkJSON{
					Store: n.Address(), Problems: r.GetProblems(), Pages: r.GetPagesDone(),
					Messages: r.GetMessages(),
				})
			})
		},
	}
	registerFullSpeed(cmd, &full)
	return cmd
}

// onEachNode calls fn for each node, and goes on after an error.
func (a *app) onEachNode(ctx context.Context, fn func(context.Context, *client.Node) error) error {
	addrs, err := a.addresses()
	if err != nil {
		return err
	}
	return a.withClient(ctx, func(ctx context.Context, c *client.Client) error {
		var errs []error
		for _, addr := range addrs {
			n, err := nodeAt(c, addr)
			if err == nil {
				err = fn(ctx, n)
			}
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
}

// checkProgress shows how far a check is, on a terminal.
func (a *app) checkProgress() func(done, total uint64) {
	if !isTerminal(a.stderr) {
		return func(uint64, uint64) {}
	}
	last := time.Now()
	return func(done, total uint64) {
		if now := time.Now(); now.Sub(last) > 200*time.Millisecond {
			last = now
			fmt.Fprintf(a.stderr, "\r\x1b[K%s of %s pages", out.Count(done), out.Count(total))
		}
	}
}

func (a *app) printCheck(c checkJSON) error {
	if isTerminal(a.stderr) {
		fmt.Fprint(a.stderr, "\r\x1b[K")
	}
	c.Sound = len(c.Problems) == 0
	if c.Problems == nil {
		c.Problems = []string{}
	}
	if err := a.print.Object(c); err != nil {
		return err
	}
	for _, p := range c.Problems {
		if err := a.print.Sentence("%s: %s", c.Store, p); err != nil {
			return err
		}
	}
	if !c.Sound {
		return fmt.Errorf("%s: found %s; take the store from the other node: stop this one, move its directory away "+
			"and start it", c.Store, out.Plural(len(c.Problems), "problem"))
	}
	return a.print.Sentence("%s is sound: %s in %s", c.Store, out.Plural(c.Messages, "message"),
		out.Plural(c.Pages, "page"))
}

func (a *app) storeDigest() *cobra.Command {
	return &cobra.Command{
		Use: "digest", Short: "Hash the logical content of a store",
		Long: `Two stores with the same digest at the same LSN hold the same queues, subscriptions, acknowledgements and messages.
The digest of a directory is that of its last checkpoint.`,
		Example: "  lockstep store digest\n  lockstep store digest --data-dir /var/lib/lockstep",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			show := func(where, content string, lsn, messages uint64) error {
				v := map[string]any{"store": where, "content": content, "lsn": lsn, "messages": messages}
				if err := a.print.Object(v); err != nil {
					return err
				}
				return a.print.Sentence("%s  %s  LSN %d, %s", content, where, lsn, out.Plural(messages, "message"))
			}
			if len(args) > 0 {
				d, err := store.DigestDir(cmd.Context(), vfs.OS(), args[0])
				if err != nil {
					return err
				}
				return show(args[0], fmt.Sprintf("%x", d.Content), d.Position.LSN, d.Messages)
			}
			return a.onEachNode(cmd.Context(), func(ctx context.Context, n *client.Node) error {
				d, err := n.Digest(ctx)
				if err != nil {
					return err
				}
				return show(n.Address(), d.GetContent(), d.GetLsn(), d.GetMessages())
			})
		},
	}
}

// positionJSON names a log record.
type positionJSON struct {
	Term  uint64 `json:"term"`
	LSN   uint64 `json:"lsn"`
	Chain string `json:"chain"`
}

func toPositionJSON(p lsn.Position) positionJSON {
	return positionJSON{Term: p.Term, LSN: p.LSN, Chain: fmt.Sprintf("%08x", p.Chain)}
}

// metaJSON is what a store says about itself.
type metaJSON struct {
	Path        string       `json:"path"`
	NodeID      string       `json:"node_id"`
	StoreID     string       `json:"store_id"`
	PairID      string       `json:"pair_id,omitempty"`
	Incarnation uint64       `json:"incarnation"`
	FenceConfig uint64       `json:"fence_config"`
	FenceTerm   uint64       `json:"fence_term"`
	MayHaveLost bool         `json:"may_have_lost"`
	PageSize    int          `json:"page_size"`
	Pages       uint64       `json:"pages"`
	PagesUsed   uint64       `json:"pages_used"`
	Checkpoint  uint64       `json:"checkpoint"`
	Position    positionJSON `json:"position"`
	Root        uint64       `json:"root_page"`
	RootPages   uint32       `json:"root_pages"`
	CreatedAt   time.Time    `json:"created_at"`
	Slot        int          `json:"slot"`
	OtherSlot   string       `json:"other_slot"`
}

func (a *app) storeDumpMeta() *cobra.Command {
	return &cobra.Command{
		Use: "dump-meta", Short: "Show the identity of a stopped node and its last checkpoint",
		Example: "  lockstep store dump-meta --data-dir /var/lib/lockstep",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			d, err := store.DumpMeta(vfs.OS(), args[0])
			if err != nil {
				return err
			}
			id, err := store.ReadIdentity(vfs.OS(), args[0])
			if err != nil {
				return err
			}
			m := d.Meta
			j := metaJSON{
				Path: d.Path, NodeID: id.NodeID.String(), StoreID: uuid.UUID(d.StoreID).String(),
				Incarnation: id.Incarnation,
				FenceConfig: id.Fence.Config, FenceTerm: id.Fence.Term, MayHaveLost: id.MayHaveLost,
				PageSize: m.PageSize, Pages: m.Pages, PagesUsed: m.UsedPages, Checkpoint: m.Checkpoint,
				Position: toPositionJSON(m.Position),
				Root:     uint64(m.Root.First), RootPages: m.Root.Pages, CreatedAt: time.UnixMilli(m.CreatedMS).UTC(),
				Slot: d.Recovery.Slot, OtherSlot: "valid",
			}
			if id.PairID != uuid.Nil {
				j.PairID = id.PairID.String()
			}
			if d.Recovery.Other != nil {
				j.OtherSlot = d.Recovery.Other.Error()
			}
			if err := a.print.Object(j); err != nil {
				return err
			}
			return a.print.Pairs([][2]string{
				{"File", j.Path},
				{"Node", j.NodeID},
				{"Store", fmt.Sprintf("%s, incarnation %d", j.StoreID, j.Incarnation)},
				{"Pair", j.PairID},
				{"Fence", fmt.Sprintf("config %d, term %d", j.FenceConfig, j.FenceTerm)},
				{"May have lost", out.YesNo(j.MayHaveLost)},
				{"Page size", out.Bytes(j.PageSize)},
				{"Pages", fmt.Sprintf("%s, %s in use", out.Count(j.Pages), out.Count(j.PagesUsed))},
				{"Checkpoint", fmt.Sprintf("%d, made %s, in slot %d", j.Checkpoint,
					j.CreatedAt.Local().Format(time.DateTime), j.Slot)},
				{"Other slot", j.OtherSlot},
				{"Position", fmt.Sprintf("LSN %d, term %d, chain %s", j.Position.LSN, j.Position.Term,
					j.Position.Chain)},
				{"Root", fmt.Sprintf("page %d, %d pages", j.Root, j.RootPages)},
			})
		},
	}
}

// pageJSON is a run of pages.
type pageJSON struct {
	Page         uint64        `json:"page"`
	Pages        uint32        `json:"pages"`
	Born         uint64        `json:"born"`
	Kind         string        `json:"kind"`
	PayloadBytes int           `json:"payload_bytes"`
	Queue        uint64        `json:"queue,omitempty"`
	Messages     []messageJSON `json:"messages,omitempty"`
}

func (a *app) storeDumpPage() *cobra.Command {
	return &cobra.Command{
		Use: "dump-page PAGE", Short: "Show what a page of a stopped node holds",
		Long:    "Show and verify the run of pages that begins with the page. Pages are numbered from 1.",
		Example: "  lockstep store dump-page 17 --data-dir /var/lib/lockstep",
		Args:    cobra.ExactArgs(2),
		RunE: func(_ *cobra.Command, args []string) error {
			no, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil {
				return usage("PAGE %q is no number", args[1])
			}
			d, err := store.DumpPage(vfs.OS(), args[0], page.No(no))
			if err != nil {
				return err
			}
			j := pageJSON{
				Page: uint64(d.Run.First), Pages: d.Run.Pages, Born: d.Run.Born, Kind: d.Kind.String(),
				PayloadBytes: len(d.Payload), Queue: d.Queue,
			}
			rows := make([][]any, 0, len(d.Messages))
			for _, m := range d.Messages {
				s := toStored(m.Sequence, m.Message)
				j.Messages = append(j.Messages, toMessageJSON(fmt.Sprint(d.Queue), s, true))
				rows = append(rows, []any{
					s.Sequence, s.PublishedAt.Local().Format(time.DateTime), len(s.Body),
					propertiesText(s.Properties), bodyText(s.Body),
				})
			}
			if err := a.print.Object(j); err != nil {
				return err
			}
			err = a.print.Sentence("page %d: %s, %d pages, written for checkpoint %d, %s of payload", j.Page, j.Kind,
				j.Pages, j.Born, out.Bytes(j.PayloadBytes))
			if err != nil || len(rows) == 0 {
				return err
			}
			if err := a.print.Sentence("messages of queue number %d:", d.Queue); err != nil {
				return err
			}
			return a.print.Table([]string{"Sequence", "Published", "Bytes", "Properties", "Body"}, rows)
		},
	}
}
