package main

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
)

func (a *app) switchoverCommand() *cobra.Command {
	var within time.Duration
	cmd := &cobra.Command{
		Use: "switchover", GroupID: "operate",
		Short: "Hand the active role to the other node, without losing or refusing anything",
		Long: `The active node lets the standby catch up to the last message, gives the role over and follows. Clients see a short
pause. If it is not done within --within, the role stays where it is.`,
		Example: "  lockstep switchover",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withClient(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				find, cancel := context.WithTimeout(ctx, a.timeout)
				active, err := c.WaitActive(find)
				cancel()
				if err != nil {
					return err
				}
				n, err := c.Node(active.Address)
				if err != nil {
					return err
				}
				ctx, cancel = context.WithTimeout(ctx, within+a.timeout)
				defer cancel()
				r, err := n.Switchover(ctx, within)
				if err != nil {
					return err
				}
				pause := r.GetPause().AsDuration()
				err = a.print.Object(map[string]any{
					"active_node": r.GetActiveNode(), "active_address": r.GetActiveAddress(), "term": r.GetTerm(), "pause_ms": milliseconds(pause),
				})
				if err != nil {
					return err
				}
				return a.print.Sentence("%s is active now, in term %d; clients waited %v", r.GetActiveAddress(), r.GetTerm(), pause.Round(100*time.Microsecond))
			})
		},
	}
	cmd.Flags().DurationVar(&within, "within", 10*time.Second, "undo it when it takes longer")
	return cmd
}

func (a *app) checkpointCommand() *cobra.Command {
	return &cobra.Command{
		Use: "checkpoint [ADDRESS]", GroupID: "operate",
		Short:   "Write a checkpoint now, on both nodes or on one",
		Long:    "Write a checkpoint of the page file now. Nodes do that by themselves; a checkpoint before a stop makes the next start faster.",
		Example: "  lockstep checkpoint\n  lockstep checkpoint 127.0.0.1:7421",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			addrs, err := a.addresses()
			if err != nil {
				return err
			}
			if len(args) > 0 {
				addrs = args
			}
			return a.withTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				for _, addr := range addrs {
					n, err := c.Node(addr)
					if err != nil {
						return err
					}
					r, err := n.Checkpoint(ctx)
					if err != nil {
						return err
					}
					if err := a.print.Object(map[string]any{"address": addr, "checkpoint": r.GetCheckpoint(), "lsn": r.GetLsn()}); err != nil {
						return err
					}
					if err := a.print.Sentence("%s: checkpoint %d at LSN %d", addr, r.GetCheckpoint(), r.GetLsn()); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}

// milliseconds with three digits after the point, for programs.
func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
