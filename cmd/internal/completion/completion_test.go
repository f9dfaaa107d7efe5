// SPDX-License-Identifier: Apache-2.0

package completion_test

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
)

// complete returns the completions for the last of the words, as requested by a shell.
func complete(t *testing.T, c clitest.CLI, words ...string) []string {
	t.Helper()
	stdout, stderr, code := c.Run("", append([]string{"__complete"}, words...)...)
	require.Equal(t, cli.ExitOK, code, stderr)
	var all []string
	for line := range strings.Lines(stdout) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, ":") {
			name, _, _ := strings.Cut(line, "\t")
			all = append(all, name)
		}
	}
	return all
}

// Completion returns the names that the nodes currently report, for each kind of argument.
func TestNamesFromNodes(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	clitest.InSync(t, p, c)
	c.OK("queue", "create", "orders", "-s", "billing", "-s", "audit")
	c.OK("queue", "create", "prices")
	c.OK("job", "put", "nightly", "--kind", "scan", "--schedule", "@daily")
	c.OK("schedule", "put", "tick", "--every", "24h", "--queue", "orders")
	for line, want := range map[string]string{
		"schedule run |":                      "tick",
		"schedule put s --queue |":            "orders prices",
		"publish |":                           "orders prices",
		"publish or|":                         "orders",
		"consume |":                           "orders prices",
		"browse p|":                           "prices",
		"request |":                           "orders prices",
		"queue show |":                        "orders prices",
		"queue delete |":                      "orders prices",
		"queue list o|":                       "orders",
		"queue create |":                      "",
		"queue create new --dead-letter |":    "orders prices",
		"queue move orders --to |":            "orders prices",
		"queue show orders |":                 "",
		"consume orders --subscription |":     "audit billing",
		"consume orders -s b|":                "billing",
		"queue purge orders --subscription=|": "audit billing",
		"subscription delete |":               "orders prices",
		"subscription delete orders |":        "audit billing",
		"subscription create orders |":        "",
		"job run |":                           "nightly",
		"job history n|":                      "nightly",
		"switchover --to |":                   "a b",
		"switchover --from b|":                "b",
		"settings set log.|":                  "log.level",
		"status --output |":                   "table json",
		"checkpoint |":                        strings.ReplaceAll(c.Addr, ",", " "),
		"pair adopt |":                        strings.ReplaceAll(c.Addr, ",", " "),
		"pair add |":                          "",
	} {
		words := strings.Split(strings.TrimSuffix(line, "|"), " ")
		got := complete(t, c, words...)
		require.ElementsMatch(t, strings.Fields(want), got, line)
	}
	// The standby alone is sufficient, and one unreachable node has no effect.
	addresses := strings.Split(c.Addr, ",")
	for _, address := range addresses {
		c.Addr = address
		require.Equal(t, []string{"orders", "prices"}, complete(t, c, "publish", ""))
	}
	c.Addr = "127.0.0.1:1," + addresses[0]
	require.Equal(t, []string{"a", "b"}, complete(t, c, "switchover", "--to", ""))
	c.Addr = ""
	require.Equal(t, []string{"orders"}, complete(t, c, "--addr", addresses[0], "publish", "o"), "as specified by flags")
	inBash(t, addresses[0])
}

// inBash completes in a real shell, if it is installed.
func inBash(t *testing.T, address string) {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Log("bash is not installed: its script is not tested")
		return
	}
	program, err := os.Executable()
	require.NoError(t, err)
	bin := t.TempDir()
	require.NoError(t, os.Symlink(program, filepath.Join(bin, "lockstep")))
	// Replaces the package bash-completion, which may not be installed.
	script := `
_get_comp_words_by_ref() {
  cur=${COMP_WORDS[COMP_CWORD]}; prev=${COMP_WORDS[COMP_CWORD-1]}; words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD
}
source <(lockstep completion bash)
COMP_WORDS=(lockstep consume orders -s b); COMP_CWORD=4
COMP_LINE="lockstep consume orders -s b"; COMP_POINT=${#COMP_LINE}
COMP_TYPE=9; COMP_KEY=9
__start_lockstep lockstep b -s
printf '%s\n' "${COMPREPLY[@]}"
`
	cmd := exec.CommandContext(t.Context(), bash, "--norc", "-c", script)
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), cli.EnvAddr+"="+address)
	out, err := cmd.Output() // compopt fails, because no completion is in progress
	require.NoError(t, err, string(out))
	require.Equal(t, "billing", strings.TrimSpace(string(out)))
}

// completion prints a script for each shell.
func TestScripts(t *testing.T) {
	c := clitest.CLI{T: t}
	for _, shell := range []string{"bash", "zsh", "fish"} {
		require.Contains(t, c.OK("completion", shell), "__complete", shell)
	}
}

// If no node is reachable, or a node does not respond, the result is empty without an error, within a second.
func TestWithoutResponse(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	for name, address := range map[string]string{
		"none": "127.0.0.1:1", "silent": silent.Addr().String(), "nonsense": "nonsense",
	} {
		t.Run(name, func(t *testing.T) {
			c := clitest.CLI{T: t, Addr: address}
			for _, words := range [][]string{
				{"publish", ""},
				{"consume", "q", "-s", ""},
				{"job", "run", ""},
				{"switchover", "--to", ""},
				{"access", "token", "revoke", ""},
				{"txn", "commit", ""},
			} {
				stdout, _, code := c.Run("", append([]string{"__complete"}, words...)...)
				require.Equal(t, cli.ExitOK, code)
				require.True(t, strings.HasPrefix(stdout, ":"), "%v: %s", words, stdout)
			}
		})
	}
}

func TestNumberOfNamesIsLimited(t *testing.T) {
	_, c := clitest.StartNodes(t, true)
	cl, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{c.Addr}})
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	for i := range 250 {
		_, _, err := admin.New(cl).CreateQueue(t.Context(), fmt.Sprintf("queue-%03d", i), admin.CreateQueueOptions{})
		require.NoError(t, err)
	}
	require.Len(t, complete(t, c, "publish", ""), 200)
	require.Len(t, complete(t, c, "publish", "queue-24"), 10)
}

// Each command that takes the name of an existing object completes it.
func TestCommandsCompleteNames(t *testing.T) {
	root := commands.Root(&cli.Env{Process: cli.Process{Lookup: func(string) (string, bool) { return "", false }}})
	seen := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
		first := strings.Fields(cmd.Use + " -")[1]
		if strings.Trim(first, "[]") == "QUEUE" || first == "NAME" && cmd.Name() != "create" &&
			!strings.Contains(cmd.CommandPath(), "store settings") {
			require.NotNil(t, cmd.ValidArgsFunction, cmd.CommandPath())
			seen++
		}
	}
	walk(root)
	require.Greater(t, seen, 20)
}
