package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/lockstep/internal/pair"
)

// asProgram makes the test binary be the lockstep command: pair runs nodes by starting its own executable again.
const asProgram = "TEST_BINARY_IS_LOCKSTEP"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
		code := execute(ctx, os.Args[1:], &environment{
			stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr, environ: os.Environ(), lookup: os.LookupEnv,
		})
		stop()
		os.Exit(code)
	}
	if err := os.Setenv(asProgram, "1"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// cli runs commands against some nodes.
type cli struct {
	t    *testing.T
	addr string
}

// run runs one command line and returns what it printed, and its exit code.
func (c cli) run(stdin string, args ...string) (stdout, stderr string, code int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	defer cancel()
	var out, err bytes.Buffer
	code = execute(ctx, args, &environment{
		stdin: strings.NewReader(stdin), stdout: &out, stderr: &err,
		lookup: func(name string) (string, bool) { return c.addr, name == envAddr && c.addr != "" },
	})
	return out.String(), err.String(), code
}

// ok runs a command that must succeed.
func (c cli) ok(args ...string) string {
	c.t.Helper()
	stdout, stderr, code := c.run("", args...)
	require.Equal(c.t, exitOK, code, "%v: %s%s", args, stdout, stderr)
	return stdout
}

// lines runs a command with --output json and decodes each line.
func (c cli) lines(args ...string) []map[string]any {
	c.t.Helper()
	var list []map[string]any
	for line := range strings.Lines(c.ok(append(args, "--output", "json")...)) {
		v := map[string]any{}
		require.NoError(c.t, json.Unmarshal([]byte(line), &v), line)
		list = append(list, v)
	}
	return list
}

// startNodes runs a pair or a standalone node until the test ends.
func startNodes(t *testing.T, standalone bool) (*pair.Pair, cli) {
	t.Helper()
	return startNodesWith(t, standalone, smallNodes())
}

func startNodesWith(t *testing.T, standalone bool, settings map[string]string) (*pair.Pair, cli) {
	t.Helper()
	p, err := pair.Start(t.Context(), pair.Options{Dir: t.TempDir(), Standalone: standalone, Settings: settings})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c, err := client.Open(t.Context(), client.Options{Addresses: p.Addresses()})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	require.NoError(t, p.WaitReady(ctx, c, nil))
	return p, cli{t: t, addr: strings.Join(p.Addresses(), ",")}
}
