// SPDX-License-Identifier: Apache-2.0

//go:build unix

package serve

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/test/certs"
)

// serveCheck runs serve with a settings file and --check.
func serveCheck(t *testing.T, settings string) (stderr string, code int) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "node.yaml")
	require.NoError(t, os.WriteFile(file, []byte(settings), 0o600))
	var stdout, errs bytes.Buffer
	env := &cli.Env{Process: cli.Process{
		Stdin: &bytes.Buffer{}, Stdout: &stdout, Stderr: &errs,
		Lookup: func(string) (string, bool) { return "", false },
	}}
	code = cli.Run(t.Context(), env, cli.Root(env, Command(env)), []string{"serve", "--config", file, "--check"})
	return errs.String(), code
}

// --check accepts valid settings, rejects invalid ones, and starts nothing.
func TestCheck(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	base := fmt.Sprintf("data: {dir: %s}\nlisten: 127.0.0.1:0\ncoordinator: {type: none}\n", dir)
	stderr, code := serveCheck(t, base)
	require.Equal(t, cli.ExitOK, code, stderr)

	ca := certs.New(t, "ours")
	_, cert, key := ca.Issue(t, "a")
	stderr, code = serveCheck(t, base+fmt.Sprintf("tls: {cert: %s, key: %s, ca: %s}\n", cert, key, ca.File))
	require.Equal(t, cli.ExitOK, code, stderr)

	for name, wrong := range map[string]string{
		"unknown setting": "limts: {}\n",
		"value":           "memory: {budget: much}\n",
		"missing file":    fmt.Sprintf("tls: {cert: %s, key: %s, ca: %s.missing}\n", cert, key, ca.File),
		"recipient":       "backup: {recipients: [age1wrong]}\n",
	} {
		stderr, code := serveCheck(t, base+wrong)
		require.NotEqual(t, cli.ExitOK, code, "%s: %s", name, stderr)
	}
	require.NoDirExists(t, dir)
}

// checkRestart runs the program on the disk with the arguments of the process and --check, and returns its error.
func TestCheckRestart(t *testing.T) {
	program := func(script string) string {
		file := filepath.Join(t.TempDir(), "lockstep")
		require.NoError(t, os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o700))
		return file
	}
	args := []string{"serve", "--config", "node.yaml"}
	ok := program(`test "$*" = "serve --config node.yaml --check"`)
	require.NoError(t, checkRestart(t.Context(), ok, args))
	require.Error(t, checkRestart(t.Context(), ok, args[:1]), "it has other arguments")

	refused := program("echo 'lockstep: node.yaml:3: limts is not a setting' >&2; " +
		"echo 'Try `lockstep --help`' >&2; exit 2")
	err := checkRestart(t.Context(), refused, args)
	require.Error(t, err)
	require.True(t, strings.HasPrefix(err.Error(), "node.yaml:3:"), err)
	require.NotContains(t, err.Error(), "Try")

	require.Error(t, checkRestart(t.Context(), filepath.Join(t.TempDir(), "missing"), args))
	former := program("echo 'lockstep: unknown flag: --check' >&2; exit 2")
	require.NoError(t, checkRestart(t.Context(), former, args), "a release without the flag cannot be checked")
}
