// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli/plan"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/checkpoint"
	"github.com/lockstep-mq/lockstep/store/rewrite"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

type rewriteFlags struct {
	location
	kind       pb.PlanKind
	pageSize   string
	dryRun     bool
	rolling    bool
	switchBack bool
	detach     bool
}

func (f *rewriteFlags) register(cmd *cobra.Command) {
	f.location.register(cmd, true)
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false, "only report the result and the required space")
	cmd.Flags().BoolVar(&f.rolling, "rolling", false,
		"rewrite both nodes of a pair, one at a time, with a switchover in between")
	cmd.Flags().BoolVar(&f.switchBack, "switch-back", false, "with --rolling: switch the active role back at the end")
	cmd.Flags().BoolVar(&f.detach, "detach", false, "with --rolling: start the plan and return immediately")
	cmd.MarkFlagsMutuallyExclusive("rolling", "node")
	cmd.MarkFlagsMutuallyExclusive("rolling", "data-dir")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "detach")
}

func resizeCommand(env *cli.Env) *cobra.Command {
	f := rewriteFlags{kind: pb.PlanKind_PLAN_KIND_RESIZE}
	cmd := &cobra.Command{
		Use: "resize", Short: "Rewrite page.db with another page size",
		Long: `Rewrite page.db with the recommended or the given page size.

With --rolling, the pair rewrites both nodes: first the standby and, after a switchover, the other node. This plan
continues after failures of nodes and of this command; to show it, use lockstep store plan. Without --rolling, only
the node in --node is rewritten, which must not be the active. Ctrl-C cancels the rewrite or the plan at the next
safe point.

The old file is kept as page.db_old, and replaces an earlier one; to delete it, use lockstep store drop-old. For a
standalone node, use the setting resize-on-startup (lockstep store settings).

With --dry-run, nothing is changed, and the exit code is 1 if the disk space is insufficient. --data-dir requires
--dry-run and --page-size.`,
		Example: `  lockstep store resize --rolling
  lockstep store resize --rolling --switch-back --page-size 16KiB
  lockstep store resize --dry-run
  lockstep store resize --node b --page-size 8KiB`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return rewriteOnline(cmd.Context(), env, f) },
	}
	f.register(cmd)
	cmd.Flags().StringVar(&f.pageSize, "page-size", "",
		"new page size, a multiple of 2KiB; default: the setting page-size-recommended")
	return cmd
}

func compactCommand(env *cli.Env) *cobra.Command {
	f := rewriteFlags{kind: pb.PlanKind_PLAN_KIND_COMPACT}
	cmd := &cobra.Command{
		Use: "compact", Short: "Rewrite page.db without gaps",
		Long: `Rewrite page.db without gaps; the page size stays the same. For --rolling, --node, --dry-run and the old
file, see lockstep store resize. For a standalone node, use the setting compact-on-startup (lockstep store settings).
--data-dir requires --dry-run.`,
		Example: `  lockstep store compact --rolling
  lockstep store compact --dry-run --node a
  lockstep store compact --dry-run --data-dir /var/lib/lockstep`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return rewriteOnline(cmd.Context(), env, f) },
	}
	f.register(cmd)
	return cmd
}

func rewriteOnline(ctx context.Context, env *cli.Env, f rewriteFlags) error {
	pageSize, err := cli.ParsePageSize("--page-size", f.pageSize)
	switch {
	case err != nil:
		return err
	case !f.rolling && (f.switchBack || f.detach):
		return cli.Usage("--switch-back and --detach require --rolling")
	case f.dataDir != "" && !f.dryRun:
		return cli.Usage("a stopped node rewrites its page file when it starts: start it with " +
			"--resize-on-startup or --compact-on-startup; for a report of the result, use --dry-run")
	case f.dataDir != "" && pageSize == 0 && f.kind == pb.PlanKind_PLAN_KIND_RESIZE:
		return cli.Usage("--data-dir requires --page-size; for a recommendation, use lockstep store scan --data-dir")
	case f.dataDir != "":
		return planOffline(ctx, env, f.dataDir, int(pageSize))
	}
	return env.WithPair(ctx, func(ctx context.Context, c *client.Client) error {
		switch {
		case f.rolling && f.dryRun:
			return dryRunBoth(ctx, env, c, f, pageSize)
		case f.rolling:
			return plan.Run(ctx, env, c, &pb.StartPlanRequest{
				Kind: f.kind, PageSize: pageSize,
				SwitchBack: f.switchBack,
			},
				f.detach)
		}
		t, err := chooseNode(ctx, env, c, f.node)
		if err != nil {
			return err
		}
		r, err := rewriteNode(ctx, env, t, f, pageSize)
		if err != nil {
			return err
		}
		return printRewrite(env, t.label(), f.dryRun, r)
	})
}

func rewriteNode(
	ctx context.Context, env *cli.Env, t target, f rewriteFlags, pageSize uint32,
) (r *pb.RewriteResult, err error) {
	if pageSize == 0 && f.kind == pb.PlanKind_PLAN_KIND_RESIZE {
		s, err := t.Settings(ctx)
		if err != nil {
			return nil, err
		}
		if pageSize = s.GetPageSizeRecommended(); pageSize == 0 {
			return nil, cli.WithHint(errors.New("no page size is recommended yet"),
				"`lockstep store scan` to get a recommendation, or `--page-size` to set a page size")
		}
	}
	err = env.WithProgress(ctx, t.label(), func(show func(progress.Step)) (err error) {
		r, err = t.Rewrite(ctx, &pb.RewriteRequest{PageSize: pageSize, DryRun: f.dryRun},
			func(p *pb.Progress) { show(progress.StepOf(p)) })
		return err
	})
	return r, err
}

func dryRunBoth(ctx context.Context, env *cli.Env, c *client.Client, f rewriteFlags, pageSize uint32) error {
	f.dryRun = true
	for _, role := range []string{pairstatus.Standby, pairstatus.Active} {
		t, err := chooseNode(ctx, env, c, role)
		if err != nil {
			return err
		}
		if pairstatus.BaseRole(t.status.Role) != role {
			return cli.WithHint(fmt.Errorf("a rolling operation requires both nodes in sync; no node is %s", role),
				"`lockstep status` to show the nodes")
		}
		r, err := rewriteNode(ctx, env, t, f, pageSize)
		if err != nil {
			return err
		}
		if err := printRewrite(env, t.label(), true, r); err != nil {
			return err
		}
	}
	return nil
}

type rewritten struct {
	Store           string  `json:"store"`
	DryRun          bool    `json:"dry_run"`
	PageSizeBefore  uint32  `json:"page_size_before"`
	PageSizeAfter   uint32  `json:"page_size_after"`
	FileBytesBefore uint64  `json:"file_bytes_before"`
	FileBytesAfter  uint64  `json:"file_bytes_after"`
	NeededBytes     uint64  `json:"needed_bytes"`
	AvailableBytes  uint64  `json:"available_bytes"`
	Enough          bool    `json:"enough_space"`
	Messages        uint64  `json:"messages"`
	Seconds         float64 `json:"seconds,omitempty"`
	MBPerSecond     float64 `json:"mb_per_s,omitempty"`
}

func printRewrite(env *cli.Env, label string, dryRun bool, r *pb.RewriteResult) error {
	took := r.GetTook().AsDuration()
	j := rewritten{
		Store: label, DryRun: dryRun, PageSizeBefore: r.GetPageSizeBefore(), PageSizeAfter: r.GetPageSizeAfter(),
		FileBytesBefore: r.GetFileBytesBefore(), FileBytesAfter: r.GetFileBytesAfter(), NeededBytes: r.GetNeededBytes(),
		AvailableBytes: r.GetAvailableBytes(), Enough: !dryRun || r.GetNeededBytes() <= r.GetAvailableBytes(),
		Messages: r.GetMessages(), Seconds: took.Seconds(),
	}
	if !dryRun && took > 0 {
		j.MBPerSecond = float64(j.FileBytesAfter) / 1e6 / j.Seconds
	}
	return showRewrite(env, j, took)
}

func showRewrite(env *cli.Env, j rewritten, took time.Duration) error {
	if err := env.Print.Object(j); err != nil {
		return err
	}
	label := fmt.Sprintf("page.db %s, pages of %s → %s, %s", sizeChange(j.FileBytesBefore, j.FileBytesAfter),
		output.Bytes(uint64(j.PageSizeBefore)), output.Bytes(uint64(j.PageSizeAfter)), output.Plural(j.Messages, "message"))
	if !j.DryRun {
		if took > 0 {
			label += fmt.Sprintf(", in %v (%.0f MB/s)", took.Round(time.Millisecond), j.MBPerSecond)
		}
		return env.Print.Sentence("%s: %s\nthe old file is kept as page.db_old; to delete it, use lockstep store drop-old",
			j.Store, label)
	}
	if err := env.Print.Sentence("%s: dry run: %s", j.Store, label); err != nil {
		return err
	}
	if err := env.Print.Sentence("  temporary space required: %s, available: %s", output.Bytes(j.NeededBytes),
		output.Bytes(j.AvailableBytes)); err != nil {
		return err
	}
	if !j.Enough {
		return fmt.Errorf("%s: insufficient disk space: %s required, %s available", j.Store, output.Bytes(j.NeededBytes),
			output.Bytes(j.AvailableBytes))
	}
	return nil
}

// planOffline performs a dry run for a stopped node. A pageSize of 0 selects the current one.
func planOffline(ctx context.Context, env *cli.Env, dir string, pageSize int) error {
	var p rewrite.Plan
	err := env.WithProgress(ctx, dir, func(show func(progress.Step)) (err error) {
		p, err = rewrite.PlanDir(ctx, vfs.OS(), dir,
			rewrite.Options{PageSize: pageSize, Progress: func(p checkpoint.Progress) {
				showStore(show, p)
			}})
		return err
	})
	if err != nil {
		return err
	}
	return showRewrite(env, rewritten{
		Store: dir, DryRun: true, PageSizeBefore: uint32(p.FromPageSize), PageSizeAfter: uint32(p.PageSize),
		FileBytesBefore: p.FileBytes,
		FileBytesAfter:  p.File.FileBytes, NeededBytes: p.NeedBytes + p.ReserveBytes,
		AvailableBytes: p.AvailableBytes + p.OldFileBytes,
		Enough:         p.Err() == nil, Messages: p.Messages,
	}, 0)
}

func shrinkCommand(env *cli.Env) *cobra.Command {
	var w location
	var dryRun bool
	cmd := &cobra.Command{
		Use: "shrink", Short: "Release free space at the end of page.db",
		Long: `Release free pages at the end of page.db of a running node to the filesystem. Up to 64 MiB of messages are
first moved from the end into gaps. To remove all gaps, use lockstep store compact.`,
		Example: "  lockstep store shrink\n  lockstep store shrink --node active --dry-run",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return onNode(cmd.Context(), env, w.node, func(ctx context.Context, t target) error {
				r, err := t.Shrink(ctx, dryRun)
				if err != nil {
					return err
				}
				err = env.Print.Object(map[string]any{
					"store": t.label(), "dry_run": dryRun, "file_bytes_before": r.GetFileBytesBefore(),
					"file_bytes_after": r.GetFileBytesAfter(),
				})
				if err != nil {
					return err
				}
				would := ""
				if dryRun {
					would = "dry run: "
				}
				before, after := r.GetFileBytesBefore(), r.GetFileBytesAfter()
				if after >= before { // larger: checkpoints have used space
					return env.Print.Sentence("%s: no free space to release; page.db has %s", t.label(),
						output.Bytes(after))
				}
				return env.Print.Sentence("%s: %spage.db %s", t.label(), would, sizeChange(before, after))
			})
		},
	}
	w.register(cmd, false)
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only report the expected size of page.db")
	return cmd
}

func dropOldCommand(env *cli.Env) *cobra.Command {
	var w location
	var yes bool
	cmd := &cobra.Command{
		Use: "drop-old", Short: "Delete page.db_old after a rewrite",
		Long: `Delete page.db_old, the previous page file of a node. Rewrites and installations of a snapshot keep this
file. AFTER A FAILURE, IT MAY BE THE ONLY COPY OF MESSAGES until both nodes are in sync, and after a forced failover
even then: check with lockstep status, and copy it first. On a terminal, the command asks for confirmation.`,
		Example: "  lockstep store drop-old\n  lockstep store drop-old --node active\n" +
			"  lockstep store drop-old --data-dir /var/lib/lockstep",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			show := func(label string, n uint64) error {
				if err := env.Print.Object(map[string]any{"store": label, "bytes": n}); err != nil {
					return err
				}
				if n == 0 {
					return env.Print.Sentence("%s: nothing to delete", label)
				}
				return env.Print.Sentence("%s: freed %s", label, output.Bytes(n))
			}
			question := "Delete the files that the last rewrite or snapshot of %s replaced? They cannot be restored. After " +
				"a forced failover, they may be the only copy of discarded messages."
			if w.dataDir != "" {
				if err := env.Confirm(cmd.Context(), yes, question, w.dataDir); err != nil {
					return err
				}
				n, err := rewrite.DropOldDir(vfs.OS(), w.dataDir)
				if err != nil {
					return err
				}
				return show(w.dataDir, n)
			}
			return onNode(cmd.Context(), env, w.node, func(ctx context.Context, t target) error {
				if err := env.Confirm(ctx, yes, question, t.label()); err != nil {
					return err
				}
				ctx, cancel := context.WithTimeout(ctx, env.Timeout)
				defer cancel()
				n, err := t.DropOld(ctx)
				if err != nil {
					return err
				}
				return show(t.label(), n)
			})
		},
	}
	w.register(cmd, true)
	cli.AddYes(cmd, &yes)
	return cmd
}
