// SPDX-License-Identifier: Apache-2.0

package commands

import (
	"runtime"
	"runtime/debug"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/spf13/cobra"
)

func versionCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Print the version of this program, the Go release and the platform. To show the versions of the nodes, use
lockstep status --output json.`,
		Example: "  lockstep version --output json",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version string `json:"version"`
				Commit  string `json:"commit,omitempty"`
				Go      string `json:"go"`
				OS      string `json:"os"`
				Arch    string `json:"arch"`
			}{env.Version, buildSetting("vcs.revision"), runtime.Version(), runtime.GOOS, runtime.GOARCH}
			return env.Print.Result(v, "lockstep %s (%s, %s/%s)", v.Version, v.Go, v.OS, v.Arch)
		},
	}
}

// versionOfBuild returns the version embedded by the Go tool, for a build without a linker flag.
func versionOfBuild() string {
	if info, ok := debug.ReadBuildInfo(); ok && info.Main.Version != "" && info.Main.Version != "(devel)" {
		return info.Main.Version
	}
	return "devel"
}

func buildSetting(key string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	for _, s := range info.Settings {
		if s.Key == key {
			return s.Value
		}
	}
	return ""
}
