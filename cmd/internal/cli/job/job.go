// SPDX-License-Identifier: Apache-2.0

// Package job implements the commands for scheduled jobs.
package job

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Command returns the `lockstep job` command.
func Command(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "job", GroupID: "operate",
		Short: "Schedule maintenance jobs",
		Long: `Jobs are stored by the pair, and started by the active node. A job does not start again while it is still
running. A run that was due while no node was active starts when a node is active again. If it is then more than 10
minutes late, it is recorded as skipped.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(listCommand(env), putCommand(env), deleteCommand(env), runCommand(env), historyCommand(env))
	return cmd
}

type jobState struct {
	Name     string    `json:"name"`
	Schedule string    `json:"schedule"`
	Kind     string    `json:"kind"`
	On       string    `json:"on,omitempty"`
	Paused   bool      `json:"paused"`
	NextRun  time.Time `json:"next_run,omitzero"`
	LastRun  *jobRun   `json:"last_run,omitempty"`
}

type jobRun struct {
	Job       string    `json:"job,omitempty"`
	StartedAt time.Time `json:"started_at"`
	Seconds   float64   `json:"seconds"`
	Outcome   string    `json:"outcome"`
	Detail    string    `json:"detail,omitempty"`
	Node      string    `json:"node,omitempty"`
}

func newJobState(j *pb.Job) jobState {
	r := jobState{Name: j.GetName(), Schedule: j.GetSchedule(), Kind: j.GetKind(), On: j.GetOn(), Paused: j.GetPaused()}
	if j.GetNextRun() != nil {
		r.NextRun = j.GetNextRun().AsTime()
	}
	if h := j.GetHistory(); len(h) > 0 {
		last := newJobRun("", h[0])
		r.LastRun = &last
	}
	return r
}

func newJobRun(job string, r *pb.JobRun) jobRun {
	return jobRun{
		Job: job, StartedAt: r.GetStartedAt().AsTime(), Seconds: r.GetTook().AsDuration().Seconds(),
		Outcome: r.GetOutcome(), Detail: r.GetDetail(),
		Node: r.GetNode(),
	}
}

func listCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List jobs with their next and last run",
		Long:    `List each job with its kind, nodes (--on), schedule, next run and last result.`,
		Example: "  lockstep job list\n  lockstep job list --output json",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				jobs, err := admin.New(c).Jobs(ctx)
				if err != nil {
					return err
				}
				rows := make([][]any, 0, len(jobs))
				for _, job := range jobs {
					j := newJobState(job)
					if err := env.Print.Object(j); err != nil {
						return err
					}
					next, last := output.LocalTime(j.NextRun), "-"
					if j.Paused {
						next = "paused"
					}
					if j.LastRun != nil {
						last = output.LocalTime(j.LastRun.StartedAt) + ": " + j.LastRun.Outcome
					}
					rows = append(rows, []any{j.Name, j.Kind, j.On, j.Schedule, next, last})
				}
				if len(rows) == 0 {
					return env.Print.Sentence("no jobs; to create one, use lockstep job put nightly --kind backup " +
						"--schedule \"0 2 * * *\"")
				}
				return env.Print.Table([]string{"Job", "Kind", "On", "Schedule", "Next run", "Last run"}, rows)
			})
		},
	}
}

func jobKinds() []string { return []string{"scan", "shrink", "backup", "compact", "verify"} }
func jobNodes() []string { return []string{"", pairstatus.Standby, pairstatus.Active, "both"} }

func putCommand(env *cli.Env) *cobra.Command {
	var job pb.Job
	cmd := &cobra.Command{
		Use: "put NAME", Short: "Create or replace a job",
		Long: `Create a job, or replace the job with that name and keep its history. The schedule has the five fields of
cron (minute, hour, day of month, month, day of week), or is @hourly, @daily, @weekly, @monthly, @yearly, or an
interval such as @every 6h. Clock times are in the local time zone of the active node.

A scan, shrink or backup is the operation of the same name in lockstep store. If a pair has no available standby,
such a job runs on the active; with --on standby, the run is skipped instead. A compact job works like lockstep store
compact --rolling. A verify job compares the contents of both nodes.`,
		Example: `  lockstep job put nightly --kind backup --schedule "0 2 * * *"
  lockstep job put tidy --kind shrink --schedule @daily --on both
  lockstep job put check --kind verify --schedule "0 4 * * 0" --paused`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			job.Name = args[0]
			switch {
			case job.GetSchedule() == "" || job.GetKind() == "":
				return cli.Usage("--kind and --schedule are required")
			case !slices.Contains(jobKinds(), job.GetKind()):
				return cli.Usage("--kind %q: must be one of %s", job.GetKind(), strings.Join(jobKinds(), ", "))
			case !slices.Contains(jobNodes(), job.GetOn()):
				return cli.Usage("--on %q: must be standby, active or both", job.GetOn())
			}
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				now, err := admin.New(c).PutJob(ctx, &job)
				if err != nil {
					return err
				}
				j := newJobState(now)
				if err := env.Print.Object(j); err != nil {
					return err
				}
				if j.Paused {
					return env.Print.Sentence("stored job %s, paused", j.Name)
				}
				return env.Print.Sentence("job %s runs next at %s", j.Name, output.LocalTime(j.NextRun))
			})
		},
	}
	cmd.Flags().StringVar(&job.Schedule, "schedule", "",
		"cron expression with five fields, or @hourly, @daily, @weekly, @monthly, @yearly or @every DURATION")
	cmd.Flags().StringVar(&job.Kind, "kind", "", "operation: "+strings.Join(jobKinds(), ", "))
	cmd.Flags().StringVar(&job.On, "on", "",
		"nodes of a scan, shrink or backup: standby, active or both; default: both for shrink, otherwise standby")
	cmd.Flags().BoolVar(&job.Paused, "paused", false, "store the job as paused")
	return cmd
}

func deleteCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "delete NAME", Aliases: []string{"rm"}, Short: "Delete a job and its history",
		Long:    `Delete a job and its history. A running job continues until it ends.`,
		Example: "  lockstep job delete nightly",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if err := admin.New(c).DeleteJob(ctx, args[0]); err != nil {
					return err
				}
				return env.Print.Result(map[string]string{"deleted": args[0]}, "deleted job %s", args[0])
			})
		},
	}
}

func runCommand(env *cli.Env) *cobra.Command {
	var detach bool
	cmd := &cobra.Command{
		Use: "run NAME", Short: "Run a job now and wait",
		Long: `Run a job now, even if it is paused, and wait until it ends. A compact job ends when its rolling plan
ends; to watch the plan, use lockstep store plan --watch. The exit code is 1 if the job failed or was skipped. With
--detach, the command does not wait for the plan of a compact job; it waits for all other jobs.`,
		Example: "  lockstep job run nightly\n  lockstep job run pack --detach",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithPair(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				if _, err := env.WaitActive(ctx, c); err != nil {
					return err
				}
				before, err := lastRun(ctx, c, args[0], env.Timeout)
				if err != nil {
					return err
				}
				run, err := admin.New(c).RunJob(ctx, args[0])
				if err != nil && !errors.Is(err, client.ErrUnavailable) {
					return err
				}
				if err != nil || run.GetOutcome() == outcomeRunning && !detach {
					if run, err = followRun(ctx, env, c, args[0], before, err); err != nil {
						return err
					}
				}
				return printRun(env, newJobRun(args[0], run))
			})
		},
	}
	cmd.Flags().BoolVar(&detach, "detach", false, "do not wait for the plan of a compact job")
	return cmd
}

func printRun(env *cli.Env, j jobRun) error {
	if err := env.Print.Object(j); err != nil {
		return err
	}
	text := fmt.Sprintf("job %s: %s in %.1f s", j.Job, j.Outcome, j.Seconds)
	if j.Detail != "" {
		text += ": " + j.Detail
	}
	if err := env.Print.Sentence("%s", text); err != nil {
		return err
	}
	failed := map[string]string{"failed": "failed", outcomeSkipped: "was skipped"}[j.Outcome]
	if failed == "" {
		return nil
	}
	return cli.WithHint(fmt.Errorf("job %s %s", j.Job, failed), "`lockstep job run %s` again when the reason is resolved",
		j.Job)
}

const (
	outcomeRunning = "running"
	outcomeSkipped = "skipped"
	runPoll        = 500 * time.Millisecond
)

func lastRun(ctx context.Context, c *client.Client, name string, timeout time.Duration) (*pb.JobRun, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	jobs, err := admin.New(c).Jobs(ctx)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(jobs, func(j *pb.Job) bool { return j.GetName() == name })
	if i < 0 {
		return nil, fmt.Errorf("job %s: %w", name, admin.ErrNoJob)
	}
	if len(jobs[i].GetHistory()) == 0 {
		return nil, nil // the job has not run yet
	}
	return jobs[i].GetHistory()[0], nil
}

var errNotStarted = errors.New("no run has started; to list the runs, use lockstep job history")

// followRun waits for the end of the first run that started after the given one. cause is the error of the request
// that started the run, if any. In this case, the run may not exist.
func followRun(
	ctx context.Context, env *cli.Env, c *client.Client, name string, before *pb.JobRun, cause error,
) (*pb.JobRun, error) {
	ticker := time.NewTicker(runPoll)
	defer ticker.Stop()
	for start := time.Now(); ; {
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		run, err := lastRun(ctx, c, name, env.Timeout)
		if err != nil {
			return nil, errors.Join(cause, err)
		}
		started := run.GetStartedAt().AsTime()
		fresh := run != nil && (before == nil || started.After(before.GetStartedAt().AsTime()))
		switch waited := time.Since(start); {
		case !fresh && waited > env.Timeout && cause == nil:
			return nil, errNotStarted
		case !fresh && waited > env.Timeout:
			return nil, cause
		case !fresh, run.GetOutcome() == outcomeRunning:
		case run.GetOutcome() == outcomeSkipped && cause != nil && waited < env.Timeout:
			// A role change interrupted the run; it restarts shortly.
		default:
			return run, nil
		}
	}
}

func historyCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "history NAME", Short: "List the last runs of a job",
		Long:    `List the last 20 runs of a job, latest first, with outcome, duration, node and details.`,
		Example: "  lockstep job history nightly",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				jobs, err := admin.New(c).Jobs(ctx)
				if err != nil {
					return err
				}
				i := slices.IndexFunc(jobs, func(j *pb.Job) bool { return j.GetName() == args[0] })
				if i < 0 {
					return fmt.Errorf("job %s: %w", args[0], admin.ErrNoJob)
				}
				name := env.NodeNamer(ctx, c)
				rows := make([][]any, 0, len(jobs[i].GetHistory()))
				for _, r := range jobs[i].GetHistory() {
					j := newJobRun(args[0], r)
					j.Node = name(j.Node)
					if err := env.Print.Object(j); err != nil {
						return err
					}
					rows = append(rows, []any{
						output.LocalTime(j.StartedAt), j.Outcome, fmt.Sprintf("%.1f s", j.Seconds),
						j.Node, j.Detail,
					})
				}
				if len(rows) == 0 {
					return env.Print.Sentence("job %s has not run yet", args[0])
				}
				return env.Print.Table([]string{"Started", "Outcome", "Took", "Node", "Detail"}, rows)
			})
		},
	}
}
