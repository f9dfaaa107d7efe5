// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/progress"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/backup"
)

type saveSet struct {
	Name      string           `json:"name"`
	Path      string           `json:"path"`
	CreatedAt time.Time        `json:"created_at,omitzero"`
	Position  *output.Position `json:"position,omitempty"`
	PageSize  uint32           `json:"page_size,omitempty"`
	Bytes     uint64           `json:"bytes"`
	Messages  uint64           `json:"messages,omitempty"` // only in local listings, and after --verify
	Complete  bool             `json:"complete"`
	Problem   string           `json:"problem,omitempty"`
	Verified  bool             `json:"verified,omitempty"`
	// Recipients are the age public keys of an encrypted backup.
	Recipients []string  `json:"recipients,omitempty"`
	Check      *verified `json:"check,omitempty"`
}

func backupCommand(env *cli.Env) *cobra.Command {
	var w location
	var path, speed string
	var keep uint32
	var full bool
	cmd := &cobra.Command{
		Use: "backup", Short: "Back up a running node",
		Long: `Copy a snapshot of a running node, by default of the standby, to a directory on that node, or to an S3
bucket (settings backup.s3.* of the node). Older backups of the pair in the same location beyond the number in
--keep-generations are then deleted, and the archived log of the node that no remaining backup there needs. If
backup.path is set, backups to another location delete no archived log.`,
		Example: `  lockstep store backup
  lockstep store backup --path s3://backups/lockstep
  lockstep store backup --path /backup/lockstep --keep-generations 7
  lockstep store backup --node active --rate 50MiB
  lockstep store backup --full-speed`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := onNodePath(path); err != nil {
				return err
			}
			req := &pb.BackupRequest{Path: path, KeepGenerations: keep, FullSpeed: full}
			if speed != "" {
				n, err := config.ParseSize(speed)
				if err != nil {
					return cli.Usage("--rate: %v", err)
				}
				req.BytesPerSecond = uint64(n)
			}
			return onNode(cmd.Context(), env, w.node, func(ctx context.Context, t target) error {
				var set *pb.SaveSet
				start := time.Now()
				err := env.WithProgress(ctx, t.label(), func(show func(progress.Step)) (err error) {
					set, err = t.Backup(ctx, req, func(p *pb.Progress) { show(progress.StepOf(p)) })
					return err
				})
				if err != nil {
					return err
				}
				j := newBackup(set)
				return env.Print.Result(j, "%s: %s, %s, in %v", t.label(), j.Path, output.Bytes(j.Bytes),
					time.Since(start).Round(time.Millisecond))
			})
		},
	}
	w.register(cmd, false)
	cmd.Flags().StringVar(&path, "path", "",
		"backup directory on the node, or s3://BUCKET/PREFIX; default: the setting backup.path")
	cmd.Flags().Uint32Var(&keep, "keep-generations", 0,
		"number of complete backups to keep; 0: the setting backup.keep-generations")
	cmd.Flags().StringVar(&speed, "rate", "",
		"maximum read and write rate per second, such as 50MiB; also applies with --full-speed")
	cli.AddFullSpeed(cmd, &full)
	return cmd
}

func newBackup(s *pb.SaveSet) saveSet {
	j := saveSet{
		Name: s.GetName(), Path: s.GetPath(), PageSize: s.GetPageSize(), Bytes: s.GetBytes(), Complete: s.GetComplete(),
		Problem: s.GetProblem(), Recipients: s.GetRecipients(),
	}
	if s.GetCreatedAt() != nil {
		j.CreatedAt = s.GetCreatedAt().AsTime()
	}
	if p := s.GetPosition(); p != nil {
		j.Position = &output.Position{Term: p.GetTerm(), LSN: p.GetLsn(), Chain: fmt.Sprintf("%08x", p.GetChain())}
	}
	return j
}

func newLocalBackup(s backup.Set) saveSet {
	j := saveSet{Name: s.Name, Path: s.Path, Complete: s.Complete}
	if s.Problem != nil {
		j.Problem = s.Problem.Error()
	}
	if s.Complete {
		p := output.NewPosition(s.Manifest.Position)
		j.CreatedAt, j.Position, j.PageSize, j.Messages = s.Manifest.Created, &p, uint32(s.Manifest.PageSize),
			s.Manifest.Messages
		if e := s.Manifest.Encryption; e != nil {
			j.Recipients = e.Recipients
		}
		for _, f := range s.Manifest.Files {
			j.Bytes += uint64(f.Bytes)
		}
	}
	return j
}

type restoreFlags struct {
	dataDir, archive, toTime string
	toLSN                    uint64
	dryRun, replica          bool
	locations                locationFlags
}

func restoreCommand(env *cli.Env) *cobra.Command {
	var f restoreFlags
	cmd := &cobra.Command{
		Use: "restore BACKUP", Short: "Restore a backup, optionally to a point in time",
		Long: `Verify a backup and restore it to an empty data directory on this machine. BACKUP is the directory of the
backup, or s3://BUCKET/PREFIX/NAME. BACKUP can also be the directory or prefix that contains all backups: the latest
backup that is not later than --to-lsn or --to-time is then used.

With --archive, the archived log is applied up to --to-lsn or --to-time, or completely. A gap before the requested
point is an error. A point after the backup requires --archive.

The restored store belongs to no pair, and no existing pair accepts it. The node that starts with it can be the first
node of a new pair. With --replica, the new pair is a replica site; the backup must be of one of the two sites, and
newer than the last promotion.`,
		Example: `  lockstep store restore /backup/lockstep --data-dir /var/lib/lockstep
  lockstep store restore /backup/lockstep/20261121T004500Z-lsn000123-ps16384 --data-dir ./data --dry-run
  lockstep store restore /backup/lockstep --data-dir ./data --archive /archive/lockstep --to-time "2026-11-21 09:30:00"
  lockstep store restore s3://backups/lockstep --archive s3://backups/log/a --data-dir ./data --identity key.txt`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error { return restore(cmd.Context(), env, args[0], &f) },
	}
	f.locations.register(cmd, env)
	cmd.Flags().StringVar(&f.dataDir, "data-dir", "", "new data directory; must be empty or not exist")
	cmd.Flags().StringVar(&f.archive, "archive", "", "log archive directory, or s3://BUCKET/PREFIX/NODE")
	cmd.Flags().Uint64Var(&f.toLSN, "to-lsn", 0, "LSN of the last record to restore")
	cmd.Flags().StringVar(&f.toTime, "to-time", "",
		"time up to which transactions are restored: RFC 3339, or 2026-11-21 09:30:00 in local time")
	cmd.Flags().BoolVar(&f.dryRun, "dry-run", false,
		"verify the backup and the archive, and report the result; write nothing")
	cmd.Flags().BoolVar(&f.replica, "replica", false, "restore a replica of the primary site")
	cmd.MarkFlagsMutuallyExclusive("to-lsn", "to-time")
	for _, other := range []string{"archive", "dry-run"} {
		cmd.MarkFlagsMutuallyExclusive("replica", other)
	}
	return cmd
}

func parseTime(flag, text string) (time.Time, error) {
	if text == "" {
		return time.Time{}, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return t, nil
	}
	for _, form := range []string{time.DateTime, "2006-01-02T15:04:05", "2006-01-02 15:04"} {
		if t, err := time.ParseInLocation(form, text, time.Local); err == nil {
			return t, nil
		}
	}
	return time.Time{}, cli.Usage("%s %q: must be RFC 3339, or local time such as 2026-11-21 09:30:00", flag, text)
}

type restored struct {
	Set            saveSet         `json:"set"`
	DataDir        string          `json:"data_dir"`
	DryRun         bool            `json:"dry_run"`
	NodeID         string          `json:"node_id,omitempty"`
	StoreID        string          `json:"store_id,omitempty"`
	End            output.Position `json:"end"`
	EndTime        time.Time       `json:"end_time"`
	ArchiveRecords uint64          `json:"archive_records"`
	NeededBytes    uint64          `json:"needed_bytes"`
	AvailableBytes uint64          `json:"available_bytes"`
}

func restore(ctx context.Context, env *cli.Env, path string, f *restoreFlags) error {
	if f.dataDir == "" {
		return cli.Usage("--data-dir is required: an empty directory to restore to")
	}
	toTime, err := parseTime("--to-time", f.toTime)
	if err != nil {
		return err
	}
	for _, place := range []string{path, f.archive} {
		if err := checkThere(place); err != nil {
			return err
		}
	}
	location, set, err := chooseSet(ctx, &f.locations, path, f.toLSN, toTime)
	if err != nil {
		return err
	}
	o := backup.RestoreOptions{Location: location, ToLSN: f.toLSN, ToTime: toTime, DryRun: f.dryRun, Replica: f.replica}
	if o.Unseal, err = f.locations.unseal(); err != nil {
		return err
	}
	if f.archive != "" {
		if o.Archive, err = f.locations.open(f.archive); err != nil {
			return err
		}
	}
	var r backup.RestoreResult
	err = env.WithProgress(ctx, set.Name, func(show func(progress.Step)) (err error) {
		o.Progress = cli.ShowCheckpoint(show)
		r, err = backup.Restore(ctx, set.Name, f.dataDir, o)
		return err
	})
	if err != nil {
		return err
	}
	j := restored{
		Set: newLocalBackup(set), DataDir: f.dataDir, DryRun: f.dryRun, End: output.NewPosition(r.End),
		EndTime:        r.EndTime,
		ArchiveRecords: r.Records,
		NeededBytes:    r.NeededBytes, AvailableBytes: r.AvailableBytes,
	}
	if !f.dryRun {
		j.NodeID, j.StoreID = r.NodeID.String(), r.StoreID.String()
	}
	if err := env.Print.Object(j); err != nil {
		return err
	}
	verb := "restored"
	if f.dryRun {
		verb = "verified; a restore would contain"
	}
	// The number of messages excludes the archived records, because the node applies them at its start.
	content := output.Plural(r.Manifest.Messages, "message")
	if r.Records > 0 {
		content += " and " + output.Plural(r.Records, "later log record") + ", which add and remove messages"
	}
	err = env.Print.Sentence("%s: %s %s; page size %s, up to LSN %s, %s", set.Name, verb, content,
		output.Bytes(r.Manifest.PageSize), fmt.Sprint(r.End.LSN),
		r.EndTime.Local().Format(time.DateTime))
	if err != nil {
		return err
	}
	if f.dryRun {
		return env.Print.Sentence("  space required: %s, available: %s", output.Bytes(r.NeededBytes),
			output.Bytes(r.AvailableBytes))
	}
	return env.Print.Sentence("the store in %s is ready to start; it belongs to no pair", f.dataDir)
}

// chooseSet returns the backup at path, or else the newest suitable backup in path, with its location.
func chooseSet(
	ctx context.Context, locations *locationFlags, path string, toLSN uint64, toTime time.Time,
) (backup.Objects, backup.Set, error) {
	parent, name, err := locations.openParent(path)
	if err != nil {
		return nil, backup.Set{}, err
	}
	none := fmt.Errorf("%w: no complete backup in %s", backup.ErrNotFound, path)
	one := none
	if parent != nil {
		var set backup.Set
		if set, one = backup.Load(ctx, parent, name); one == nil {
			return parent, set, nil
		}
	}
	switch {
	case errors.Is(one, backup.ErrRemote):
		return nil, backup.Set{}, one
	case errors.Is(one, fs.ErrNotExist): // the manifest does not exist
		one = none
	}
	location, err := locations.open(path)
	if err != nil {
		return nil, backup.Set{}, err
	}
	sets, err := backup.List(ctx, location)
	if err != nil || len(sets) == 0 {
		return nil, backup.Set{}, errors.Join(one, err)
	}
	set, err := backup.Choose(sets, uuid.Nil, toLSN, toTime)
	if err != nil {
		return nil, backup.Set{}, fmt.Errorf("%s: %w", location.Path(""), err)
	}
	return location, set, nil
}
