// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/backup"
)

type listFlags struct {
	location

	locations    locationFlags
	path, set    string
	verify, full bool
}

func backupsCommand(env *cli.Env) *cobra.Command {
	var f listFlags
	cmd := &cobra.Command{
		Use: "backups [PATH]", Short: "List and verify backups",
		Long: `List the backups of a running node, latest first, including interrupted ones. With PATH, list the backups in
a directory on this machine, or in an S3 bucket (s3://BUCKET/PREFIX), without a node.

With --verify, all complete backups, or the one in --set, are read; the exit code is 1 if one of them cannot be
restored. A node cannot verify encrypted backups: use PATH and --identity.`,
		Example: `  lockstep store backups
  lockstep store backups --node a --verify
  lockstep store backups --verify --set 20261121T004500Z-lsn000123-ps16384
  lockstep store backups /backup/lockstep --verify
  lockstep store backups s3://backups/lockstep --backup-s3-endpoint https://s3.example.com:9000
  lockstep store backups s3://backups/lockstep --config /etc/lockstep/node.yaml --verify --identity key.txt`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 && (f.path != "" || cmd.Flags().Changed("node")) {
				return cli.Usage("--node and --path apply to running nodes, PATH to this machine")
			}
			if (f.set != "" || f.full) && !f.verify {
				return cli.Usage("--set and --full-speed require --verify")
			}
			if len(args) > 0 {
				return localBackups(cmd.Context(), env, args[0], &f)
			}
			if err := onNodePath(f.path); err != nil {
				return err
			}
			return onNode(cmd.Context(), env, f.node, func(ctx context.Context, t target) error {
				return nodeBackups(ctx, env, t, &f)
			})
		},
	}
	f.register(cmd, false)
	f.locations.register(cmd, env)
	cmd.Flags().StringVar(&f.path, "path", "",
		"backup directory on the node, or s3://BUCKET/PREFIX; default: the setting backup.path")
	cmd.Flags().BoolVar(&f.verify, "verify", false, "read and verify all complete backups")
	cmd.Flags().StringVar(&f.set, "set", "", "with --verify: only the backup with this name")
	cli.AddFullSpeed(cmd, &f.full)
	return cmd
}

type verified struct {
	Restorable  bool             `json:"restorable"`
	Messages    uint64           `json:"messages,omitempty"`
	NeededBytes uint64           `json:"needed_bytes,omitempty"`
	Archive     string           `json:"archive,omitempty"`
	Gap         string           `json:"archive_problem,omitempty"`
	Reach       *output.Position `json:"reach,omitempty"`
	ReachTime   time.Time        `json:"reach_time,omitzero"`
}

func nodeBackups(ctx context.Context, env *cli.Env, t target, f *listFlags) error {
	asked, cancel := context.WithTimeout(ctx, env.Timeout)
	defer cancel()
	sets, err := t.Backups(asked, f.path)
	if err != nil {
		return err
	}
	list, broken, found := []saveSet{}, 0, false
	for _, s := range sets {
		if f.set != "" && s.GetName() != f.set {
			continue
		}
		found = true
		j := newBackup(s)
		if f.verify && s.GetComplete() {
			if err := verifyOnNode(ctx, env, t, f, &j); err != nil {
				return err
			}
			if !j.Verified {
				broken++
			}
		}
		list = append(list, j)
	}
	if f.set != "" && !found {
		return fmt.Errorf("%w: %q is not a backup of %s (lockstep store backups)", admin.ErrBackupNotFound, f.set,
			t.label())
	}
	return endSets(env, t.label(), list, broken)
}

func verifyOnNode(ctx context.Context, env *cli.Env, t target, f *listFlags, j *saveSet) error {
	var r *pb.VerifyBackupResult
	err := env.WithProgress(ctx, j.Name, func(show func(progress.Step)) (err error) {
		r, err = t.VerifyBackup(ctx, &pb.VerifyBackupRequest{Path: f.path, Name: j.Name, FullSpeed: f.full},
			func(p *pb.Progress) { show(progress.StepOf(p)) })
		return err
	})
	if err != nil {
		return err
	}
	recordVerified(j, r)
	return nil
}

func recordVerified(j *saveSet, r *pb.VerifyBackupResult) {
	j.Verified = r.GetRestorable()
	j.Check = &verified{Restorable: r.GetRestorable()}
	if !r.GetRestorable() {
		j.Complete, j.Problem = false, r.GetProblem()
		return
	}
	j.Messages = r.GetMessages()
	j.Check.Messages, j.Check.NeededBytes = r.GetMessages(), r.GetNeededBytes()
	j.Check.Archive, j.Check.Gap = r.GetArchive(), r.GetArchiveProblem()
	if p := r.GetReach(); p != nil {
		j.Check.Reach = &output.Position{Term: p.GetTerm(), LSN: p.GetLsn(), Chain: fmt.Sprintf("%08x", p.GetChain())}
	}
	if r.GetReachTime() != nil {
		j.Check.ReachTime = r.GetReachTime().AsTime()
	}
}

// endSets prints the backups. It returns an error if any of them cannot be restored.
func endSets(env *cli.Env, label string, list []saveSet, broken int) error {
	if err := printSets(env, label, list); err != nil {
		return err
	}
	if broken > 0 {
		return cli.WithHint(fmt.Errorf("%s: %s cannot be restored", label, output.Plural(broken, "backup")),
			"`lockstep store backup` to create a new backup")
	}
	return nil
}

func localBackups(ctx context.Context, env *cli.Env, path string, f *listFlags) error {
	if err := checkThere(path); err != nil {
		return err
	}
	location, err := f.locations.open(path)
	if err != nil {
		return err
	}
	with, err := f.locations.unseal()
	if err != nil {
		return err
	}
	sets, err := backup.List(ctx, location)
	if err != nil {
		return err
	}
	list, broken := []saveSet{}, 0
	for _, s := range slices.Backward(sets) {
		if f.set != "" && s.Name != f.set {
			continue
		}
		j := newLocalBackup(s)
		if f.verify && s.Complete {
			err := env.WithProgress(ctx, s.Name, func(show func(progress.Step)) error {
				_, err := backup.Verify(ctx, s.Name, backup.VerifyOptions{
					Location: location, Unseal: with, Progress: cli.ShowCheckpoint(show),
				})
				return err
			})
			if ctx.Err() != nil {
				return err
			}
			j.Verified = err == nil
			if err != nil {
				broken++
				j.Complete, j.Problem = false, err.Error()
			}
		}
		list = append(list, j)
	}
	if f.set != "" && len(list) == 0 {
		return fmt.Errorf("%w: %q is not in %s", backup.ErrNotFound, f.set, path)
	}
	return endSets(env, path, list, broken)
}

func printSets(env *cli.Env, label string, list []saveSet) error {
	if env.Print.JSON() {
		if err := output.Objects(env.Print, list); err != nil {
			return err
		}
		return nil
	}
	if len(list) == 0 {
		return env.Print.Sentence("%s: no backups", label)
	}
	rows := make([][]any, 0, len(list))
	for _, j := range list {
		state := "complete"
		switch {
		case !j.Complete:
			state = "NOT USABLE: " + j.Problem
		case j.Verified:
			state = "verified" + reachText(j.Check)
		}
		made, lsn, size := "", "", ""
		if !j.CreatedAt.IsZero() {
			made = j.CreatedAt.Local().Format(time.DateTime)
		}
		if j.Position != nil {
			lsn = output.Count(j.Position.LSN)
		}
		if j.PageSize > 0 {
			size = output.Bytes(uint64(j.PageSize))
		}
		if len(j.Recipients) > 0 && j.Complete {
			state += ", encrypted"
		}
		rows = append(rows, []any{j.Name, made, lsn, size, output.Bytes(j.Bytes), state})
	}
	return env.Print.Table([]string{"Backup", "Created", ">LSN", ">Page size", ">Size", "State"}, rows)
}

// reachText describes how far the log archive extends a backup.
func reachText(v *verified) string {
	switch {
	case v == nil || v.Archive == "":
		return ""
	case v.Gap != "":
		return fmt.Sprintf("; with the archive up to LSN %s: %s", output.Count(v.Reach.LSN), v.Gap)
	default:
		return fmt.Sprintf("; with the archive up to LSN %s, %s", output.Count(v.Reach.LSN),
			v.ReachTime.Local().Format(time.DateTime))
	}
}
