// SPDX-License-Identifier: Apache-2.0

package store

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type setting struct {
	name string
	get  func(*pb.MaintenanceSettings) any
	set  func(r *pb.UpdateSettingsRequest, value string) error // nil: read-only
	help string
}

func (s setting) text(all *pb.MaintenanceSettings) string {
	v := s.get(all)
	text := fmt.Sprint(v)
	switch n, isNumber := v.(uint32); {
	case isNumber && strings.HasPrefix(s.name, "page-size-") && n > 0:
		return output.Bytes(uint64(n))
	case text == "":
		return "-"
	}
	return text
}

func settings() []setting {
	return []setting{
		{"page-size-current", func(s *pb.MaintenanceSettings) any { return s.GetPageSizeCurrent() }, nil, "read-only"},
		{
			"page-size-recommended", func(s *pb.MaintenanceSettings) any { return s.GetPageSizeRecommended() }, nil,
			"read-only; set by a scan, 0: none yet",
		},
		{
			"page-size-max", func(s *pb.MaintenanceSettings) any { return s.GetPageSizeMax() },
			func(r *pb.UpdateSettingsRequest, v string) error {
				n, err := cli.ParsePageSize("page-size-max", v)
				r.PageSizeMax = &n
				return err
			}, "maximum recommended page size",
		},
		{
			"resize-on-startup", func(s *pb.MaintenanceSettings) any { return s.GetResizeOnStartup() },
			func(r *pb.UpdateSettingsRequest, v string) error {
				return setBool(&r.ResizeOnStartup, v)
			}, "each node resizes once, at its next start",
		},
		{
			"compact-on-startup", func(s *pb.MaintenanceSettings) any { return s.GetCompactOnStartup() },
			func(r *pb.UpdateSettingsRequest, v string) error {
				return setBool(&r.CompactOnStartup, v)
			}, "each node compacts once, at its next start",
		},
		{
			"backup.path", func(s *pb.MaintenanceSettings) any { return s.GetBackupPath() },
			func(r *pb.UpdateSettingsRequest, v string) error {
				r.BackupPath = &v
				return nil
			}, "backup directory on each node, or s3://BUCKET/PREFIX",
		},
		{
			"backup.keep-generations", func(s *pb.MaintenanceSettings) any { return s.GetBackupKeepGenerations() },
			func(r *pb.UpdateSettingsRequest, v string) error {
				return setNumber(&r.BackupKeepGenerations, v)
			}, "number of backups to keep",
		},
	}
}

func setBool(dst **bool, text string) error {
	v, err := strconv.ParseBool(text)
	if err != nil {
		return cli.Usage("%q is not a boolean: use true or false", text)
	}
	*dst = &v
	return nil
}

func setNumber(dst **uint32, text string) error {
	v, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return cli.Usage("%q is not a number", text)
	}
	n := uint32(v)
	*dst = &n
	return nil
}

// findSetting returns a setting by its name. The prefix "maintenance." is optional.
func findSetting(name string) (setting, error) {
	var names []string
	for _, s := range settings() {
		if name == s.name || name == "maintenance."+s.name {
			return s, nil
		}
		names = append(names, s.name)
	}
	return setting{}, cli.Usage("unknown setting %q; the settings are: %s", name, strings.Join(names, ", "))
}

func settingsCommand(env *cli.Env) *cobra.Command {
	cmd := &cobra.Command{
		Use: "settings", Short: "Manage maintenance settings",
		Long: `The pair stores maintenance settings with its messages: they are the same on both nodes. Stored values of
page-size-max and backup.* take precedence over the configuration files. resize-on-startup and compact-on-startup are
reset when all nodes of the pair have completed the operation.`,
		Args: cli.KnownSubcommand,
		RunE: cli.NeedsSubcommand,
	}
	cmd.AddCommand(getSettingCommand(env), setSettingCommand(env))
	return cmd
}

func getSettingCommand(env *cli.Env) *cobra.Command {
	var node string
	cmd := &cobra.Command{
		Use: "get [NAME]", Short: "Show all settings, or one",
		Long: `Show the maintenance settings of the pair. For page-size-max and backup.*, if the pair has stored no value,
the value in the configuration of the node in --node is shown.`,
		Example: "  lockstep store settings get\n  lockstep store settings get page-size-current --node a",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var one setting
			if len(args) > 0 {
				var err error
				if one, err = findSetting(args[0]); err != nil {
					return err
				}
			}
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				s, err := readSettings(ctx, env, c, node)
				switch {
				case err != nil:
					return err
				case one.get == nil:
					return printSettings(env, s)
				}
				return env.Print.Result(map[string]any{one.name: one.get(s)}, "%s", one.text(s))
			})
		},
	}
	cmd.Flags().StringVar(&node, "node", pairstatus.Active,
		"node to query: standby, active, a node name or an address")
	return cmd
}

func readSettings(ctx context.Context, env *cli.Env, c *client.Client, node string) (*pb.MaintenanceSettings, error) {
	if node == pairstatus.Active {
		return admin.New(c).MaintenanceSettings(ctx)
	}
	t, err := chooseNode(ctx, env, c, node)
	if err != nil {
		return nil, err
	}
	return t.Settings(ctx)
}

func setSettingCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "set NAME VALUE", Short: "Change a maintenance setting",
		Long: `Change a maintenance setting of the pair. The value applies to both nodes, and survives restarts. To list
the settings, use lockstep store settings get.`,
		Example: `  lockstep store settings set page-size-max 64KiB
  lockstep store settings set resize-on-startup true
  lockstep store settings set backup.path /backup/lockstep`,
		Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			s, err := findSetting(args[0])
			if err != nil {
				return err
			}
			if s.set == nil {
				return cli.Usage("%s is read-only: scans and rewrites set it", s.name)
			}
			req := &pb.UpdateSettingsRequest{}
			if err := s.set(req, args[1]); err != nil {
				return err
			}
			return env.WithPairTimeout(cmd.Context(), func(ctx context.Context, c *client.Client) error {
				now, err := admin.New(c).UpdateMaintenanceSettings(ctx, req)
				if err != nil {
					return err
				}
				return env.Print.Result(settingsMap(now), "%s is %s", s.name, s.text(now))
			})
		},
	}
}

func settingsMap(now *pb.MaintenanceSettings) map[string]any {
	m := make(map[string]any)
	for _, s := range settings() {
		m[s.name] = s.get(now)
	}
	return m
}

func printSettings(env *cli.Env, now *pb.MaintenanceSettings) error {
	if env.Print.JSON() {
		return env.Print.Object(settingsMap(now))
	}
	rows := make([][]any, 0, len(settings()))
	for _, s := range settings() {
		rows = append(rows, []any{s.name, s.text(now), s.help})
	}
	return env.Print.Table([]string{"Setting", "Value", "Description"}, rows)
}
