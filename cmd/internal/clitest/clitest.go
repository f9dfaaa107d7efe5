// SPDX-License-Identifier: Apache-2.0

// Package clitest runs `lockstep` commands in tests, with nodes that are real processes.
package clitest

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/commands"
	"github.com/lockstep-mq/lockstep/cmd/internal/pairstatus"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/stretchr/testify/require"
)

// asProgram is the environment variable that makes the test binary run as the program under test. The harness needs
// it, because it starts nodes with the executable of the test.
const asProgram = "TEST_BINARY_IS_LOCKSTEP"

// Program runs one command line of a program and returns the exit code.
type Program func(ctx context.Context, args []string, process cli.Process) int

// Main is the TestMain of a package with tests that start nodes or run commands in processes.
func Main(m *testing.M) { MainOf(m, commands.Run) }

// MainOf is Main for a program other than lockstep.
func MainOf(m *testing.M, program Program) {
	if os.Getenv(asProgram) != "" && !fuzzes() {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := program(ctx, os.Args[1:], cli.Process{
			Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr, Environ: os.Environ(), Lookup: os.LookupEnv,
		})
		stop()
		os.Exit(code)
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// fuzzes reports whether this process is a worker of go test -fuzz, which inherits the environment of the tests.
func fuzzes() bool { return slices.Contains(os.Args[1:], "-test.fuzzworker") }

// CLI runs commands with a set of nodes.
type CLI struct {
	T *testing.T
	// Addr is the value of cli.EnvAddr; empty means not set.
	Addr string
	// Env contains additional environment variables.
	Env map[string]string
	// Program is the program to run; nil means lockstep.
	Program Program
}

// runBound is the maximum duration of a command. Only a command that hangs exceeds it: commands with time limits,
// such as demo, end earlier with a specific error.
const runBound = 5 * time.Minute

// Run runs one command line and returns its output and exit code.
func (c CLI) Run(stdin string, args ...string) (stdout, stderr string, code int) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), runBound)
	defer cancel()
	var out, err bytes.Buffer
	program := c.Program
	if program == nil {
		program = commands.Run
	}
	code = program(ctx, args, c.Process(strings.NewReader(stdin), &out, &err))
	return out.String(), err.String(), code
}

// Process returns a process with c.Addr and c.Env as its environment.
func (c CLI) Process(stdin io.Reader, stdout, stderr io.Writer) cli.Process {
	return cli.Process{
		Stdin: stdin, Stdout: stdout, Stderr: stderr,
		Lookup: func(name string) (string, bool) {
			if name == cli.EnvAddr && c.Addr != "" {
				return c.Addr, true
			}
			value, ok := c.Env[name]
			return value, ok
		},
	}
}

// OK runs a command that must succeed, and returns its standard output.
func (c CLI) OK(args ...string) string {
	c.T.Helper()
	stdout, stderr, code := c.Run("", args...)
	require.Equal(c.T, cli.ExitOK, code, "%v: %s%s", args, stdout, stderr)
	return stdout
}

// Lines runs a command that must succeed with --output json, and decodes each line of its output.
func (c CLI) Lines(args ...string) []map[string]any {
	c.T.Helper()
	var list []map[string]any
	for line := range strings.Lines(c.OK(append(args, "--output", "json")...)) {
		v := map[string]any{}
		require.NoError(c.T, json.Unmarshal([]byte(line), &v), line)
		list = append(list, v)
	}
	return list
}

// StartNodes runs a pair or a standalone node until the test ends. It returns when the nodes are ready.
func StartNodes(t *testing.T, standalone bool) (*harness.Pair, CLI) {
	t.Helper()
	return StartNodesWith(t, standalone, harness.SmallNodes())
}

// StartNodesWith is StartNodes with settings for the nodes.
func StartNodesWith(t *testing.T, standalone bool, settings map[string]string) (*harness.Pair, CLI) {
	t.Helper()
	p, err := harness.Start(t.Context(), harness.Options{Dir: t.TempDir(), Standalone: standalone, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, nil))
	return p, CLI{T: t, Addr: strings.Join(p.Addresses(), ",")}
}

// Answering runs a command as if on a terminal, with typed as the operator's input.
func (c CLI) Answering(typed string, args ...string) (stdout, stderr string, code int) {
	c.T.Helper()
	ctx, cancel := context.WithTimeout(c.T.Context(), runBound)
	defer cancel()
	var out, err bytes.Buffer
	p := c.Process(strings.NewReader(typed), &out, &err)
	p.Terminal = func() bool { return true }
	code = commands.Run(ctx, args, p)
	return out.String(), err.String(), code
}

// FillForScan creates the queue orders and publishes messages to it. For these messages, a scan recommends pages
// larger than 2 KiB.
func FillForScan(t *testing.T, c CLI, messages int) {
	t.Helper()
	cl, err := client.OpenWith(t.Context(), client.Options{Addresses: strings.Split(c.Addr, ",")})
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	_, _, err = admin.New(cl).CreateQueue(t.Context(), "orders", admin.CreateQueueOptions{})
	require.NoError(t, err)
	p, err := cl.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	body := make([]byte, 4200)
	for range messages {
		p.PublishAsync(t.Context(), "orders", client.Message{Body: body})
	}
	require.NoError(t, p.Flush(t.Context()))
}

// InSync waits until both nodes of a pair are in sync, and returns the active and the standby.
func InSync(t *testing.T, p *harness.Pair, c CLI) (active, standby *harness.Node) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(c.OK("status"), "in sync: a and b") }, 20*time.Second,
		10*time.Millisecond)
	active = p.Find(ActiveAddress(t, c))
	for _, n := range p.Nodes {
		if n != active {
			standby = n
		}
	}
	return active, standby
}

// WatchedWriter collects the written text, and calls Seen for each write that contains Want.
type WatchedWriter struct {
	Text strings.Builder
	Want string
	Seen func()
}

// Write implements io.Writer.
func (w *WatchedWriter) Write(b []byte) (int, error) {
	w.Text.Write(b)
	if strings.Contains(string(b), w.Want) {
		w.Seen()
	}
	return len(b), nil
}

// ActiveAddress waits until a node serves clients, and returns its address. Just after a switchover, the new active
// may still wait for its standby.
func ActiveAddress(t *testing.T, c CLI) (address string) {
	t.Helper()
	require.Eventually(t, func() bool {
		var status pairstatus.Status
		require.NoError(t, json.Unmarshal([]byte(c.OK("status", "-o", "json")), &status))
		for _, n := range status.Nodes {
			if n.Role == "active" || n.Role == "active-alone" {
				address = n.Address
			}
		}
		return address != ""
	}, 10*time.Second, 10*time.Millisecond)
	return address
}

// Logged returns the current content of a node's log file.
func Logged(t *testing.T, n *harness.Node) string {
	t.Helper()
	b, err := os.ReadFile(n.LogFile())
	require.NoError(t, err)
	return string(b)
}
