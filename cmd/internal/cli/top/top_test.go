// SPDX-License-Identifier: Apache-2.0

//go:build unix

package top_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/creack/pty"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
)

const testTimeout = time.Minute

// shown is `lockstep top` in its own process with a terminal.
type shown struct {
	t    *testing.T
	tty  *os.File
	seen *terminal
	done chan error
}

func show(t *testing.T, c clitest.CLI, width, height int, environ []string, args ...string) *shown {
	t.Helper()
	program, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), program, append([]string{"top", "--addr", c.Addr}, args...)...)
	cmd.Env = append(append(os.Environ(), "TERM=xterm-256color"), environ...)
	tty, err := pty.StartWithSize(cmd, &pty.Winsize{Rows: uint16(height), Cols: uint16(width)})
	require.NoError(t, err)
	s := &shown{t: t, tty: tty, seen: newTerminal(width, height), done: make(chan error, 1)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		_, _ = io.Copy(s.seen, tty) // ends with the process
	}()
	go func() { s.done <- cmd.Wait() }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = tty.Close()
		<-read
	})
	return s
}

// until waits until all texts are on the screen together.
func (s *shown) until(texts ...string) {
	s.t.Helper()
	deadline := time.Now().Add(testTimeout)
	for {
		text, lacks := s.seen.text(), ""
		for _, want := range texts {
			if !strings.Contains(text, want) {
				lacks = want
			}
		}
		if lacks == "" {
			return
		}
		select {
		case err := <-s.done:
			s.done <- err
			require.FailNow(s.t, "the program has exited", "%v\n%s", err, text)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			require.FailNow(s.t, "not shown: "+lacks, text)
		}
	}
}

func (s *shown) press(keys string) {
	s.t.Helper()
	_, err := s.tty.WriteString(keys)
	require.NoError(s.t, err)
}

// ends waits for the process to exit.
func (s *shown) ends() {
	s.t.Helper()
	select {
	case err := <-s.done:
		require.NoError(s.t, err, s.seen.text())
	case <-time.After(testTimeout):
		require.FailNow(s.t, "the program does not exit", s.seen.text())
	}
	s.seen.mu.Lock()
	defer s.seen.mu.Unlock()
	require.Empty(s.t, s.seen.unknown, "sequences that the emulated terminal does not support")
}

// top shows a pair, keeps running when the active is killed and restarted, and executes its key commands.
func TestTopDuringFailover(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	active, standby := clitest.InSync(t, p, c)
	c.OK("queue", "create", "orders", "-s", "billing")
	c.OK("queue", "create", "prices")
	s := show(t, c, 80, 24, nil, "--interval", "200ms")
	s.until("in sync: a, b", "etcd reachable", "2 queues by messages", "orders", "prices", "standby")
	s.press("S")
	s.until("Switch the active role from " + active.Name + " to " + standby.Name + "?")
	s.press("n")
	s.until("no changes made")

	// A publisher runs during the whole test.
	ctx, cancel := context.WithCancel(t.Context())
	published := make(chan error, 1)
	go func() { published <- publishContinuously(ctx, c) }()
	s.until("published ", "/s", "commit p50")
	s.press("/pric\r")
	s.until("1 queue by messages, with \"pric\"")
	s.press("\x1b")
	s.until("2 queues by messages")
	s.press("s")
	s.until("2 queues by published", "IN/S*")
	require.Eventually(t, func() bool { // the busiest queue is first
		_, below, _ := strings.Cut(s.seen.text(), "IN/S*")
		return strings.Index(below, "orders") < strings.Index(below, "prices") &&
			regexp.MustCompile(`orders +[\d,]+ +[1-9]`).MatchString(below)
	}, testTimeout, 10*time.Millisecond, s.seen.text())

	require.NoError(t, active.Kill())
	s.until("unreachable", "active-alone", "in sync: "+standby.Name+" ", "do: ")
	s.until("published ", "commit p50") // by the new active
	require.NoError(t, active.Start())
	s.until("in sync: a, b", "standby")

	s.press("\r")
	s.until("queue orders", "SUBSCRIPTION", "billing")
	s.press("\x1b")
	s.until("2 queues by published") // an escape directly followed by S would be Alt+S
	s.press("Sy")
	s.until(active.Address + " is now active")
	s.press("P")
	s.until("Pause the pair?")
	s.press("y")
	s.until("PAUSED", "automatic failover is disabled") // the status can show the pause before the call returns
	s.press("P")
	s.until("Resume the pair?")
	s.press("y")
	s.until("automatic failover is enabled")
	require.NotContains(t, c.OK("status"), "PAUSED")

	s.seen.resize(50, 14)
	require.NoError(t, pty.Setsize(s.tty, &pty.Winsize{Rows: 14, Cols: 50}))
	s.until("2 queues by published", "orders")
	s.press("?")
	s.until("lockstep top: keys")
	cancel()
	require.NoError(t, <-published)
	s.press("q")
	s.ends()
	require.True(t, s.seen.coloured)
}

// publishContinuously publishes until ctx ends. No publish may fail.
func publishContinuously(ctx context.Context, c clitest.CLI) error {
	cl, err := client.OpenWith(ctx, client.Options{Addresses: strings.Split(c.Addr, ",")})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer func() { _ = cl.Close() }()
	for ctx.Err() == nil {
		if _, err := cl.Publish(ctx, "orders", client.Message{Body: []byte("hello")}); err != nil && ctx.Err() == nil {
			return fmt.Errorf("publish: %w", err)
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	return nil
}

// top shows a standalone node, without colours if NO_COLOR is set, until Ctrl-C. With --once it prints one screen,
// and with JSON output one object.
func TestTopOfStandaloneNode(t *testing.T) {
	p, c := clitest.StartNodes(t, true)
	c.OK("publish", "orders", "one", "two", "--create")
	s := show(t, c, 80, 24, []string{"NO_COLOR=1"}, "--interval", "100ms")
	s.until("active-alone", "1 queue by messages", "orders", "2 messages")
	s.press("S")
	s.until("no node of a pair responds")
	s.press("\x03")
	s.ends()
	require.False(t, s.seen.coloured, "NO_COLOR is set")

	text := c.OK("top", "--once", "--interval", "100ms")
	require.Contains(t, text, "active-alone")
	require.Contains(t, text, "orders")
	require.NotContains(t, text, "\x1b")
	picture := c.Lines("top", "--interval", "100ms")
	require.Len(t, picture, 1)
	require.InDelta(t, 1, picture[0]["queues_total"], 0)
	require.NotNil(t, picture[0]["rates"])
	queues, _ := picture[0]["queues"].([]any)
	require.NotNil(t, queues[0].(map[string]any)["activity"].(map[string]any)["oldest_seconds"])
	_, stderr, code := c.Run("", "top")
	require.Equal(t, cli.ExitUsage, code)
	require.Contains(t, stderr, "--once")
	_, _, code = c.Run("", "top", "--once", "--interval", "1ms")
	require.Equal(t, cli.ExitUsage, code)
	require.NoError(t, p.Close())
	stdout, stderr, code := c.Run("", "top", "--once", "-o", "json")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, "lockstep doctor", "the hint for cli.ErrNoAnswer")
	var gone struct {
		Status struct {
			Nodes []struct{ Error string }
		}
	}
	require.NoError(t, json.NewDecoder(bytes.NewReader([]byte(stdout))).Decode(&gone))
	require.Contains(t, gone.Status.Nodes[0].Error, "refused")
}
