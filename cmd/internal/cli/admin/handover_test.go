// SPDX-License-Identifier: Apache-2.0

package admin_test

import (
	"context"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/clitest"
	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// sequential publishes messages one at a time until it is stopped, like a simple application.
type sequential struct {
	stop    context.CancelFunc
	done    chan struct{}
	stored  int
	longest time.Duration
	errs    []error
}

func publishSequentially(t *testing.T, c *client.Client, queue string) *sequential {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &sequential{stop: stop, done: make(chan struct{})}
	start := make(chan struct{})
	go func() {
		defer close(s.done)
		for ctx.Err() == nil {
			call, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			sent := time.Now()
			_, err := c.Publish(call, queue, client.Message{Body: []byte("x")})
			s.longest = max(s.longest, time.Since(sent))
			cancel()
			if err != nil {
				s.errs = append(s.errs, err)
				continue
			}
			if s.stored++; s.stored == 100 {
				close(start)
			}
		}
	}()
	t.Cleanup(func() { stop(); <-s.done })
	select {
	case <-start:
	case <-time.After(20 * time.Second):
		t.Fatal("no message was published")
	}
	return s
}

func (s *sequential) end() {
	s.stop()
	<-s.done
}

// A stopping active hands over its role to the in-sync standby before it exits. A publisher receives no error.
func TestStopHandsOver(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	c.OK("queue", "create", "q")
	cl, err := client.OpenWith(t.Context(), client.Options{Addresses: p.Addresses()})
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	stored := 0
	for range 3 {
		active, standby := clitest.InSync(t, p, c)
		before := len(clitest.Logged(t, standby))
		s := publishSequentially(t, cl, "q")
		require.NoError(t, active.Stop())
		require.Equal(t, standby.Address, clitest.ActiveAddress(t, c))
		s.end()
		require.Empty(t, s.errs)
		require.Equal(t, []string{string(failover.CodeSwitchover)}, takeovers(clitest.Logged(t, standby)[before:]))
		t.Logf("%d messages; the longest call took %v", s.stored, s.longest)
		stored += s.stored
		require.NoError(t, active.Start())
	}
	require.InDelta(t, stored, c.Lines("queue", "show", "q")[0]["messages"], 0)
}

// The handover can be disabled by a setting. A node does not wait for a standby that is not running.
func TestStopWithoutHandOver(t *testing.T) {
	settings := harness.SmallNodes()
	settings["shutdown.handover"] = "false"
	p, c := clitest.StartNodesWith(t, false, settings)
	active, standby := clitest.InSync(t, p, c)
	require.NoError(t, active.Stop())
	require.Eventually(t, func() bool { return clitest.ActiveAddress(t, c) == standby.Address }, time.Minute,
		10*time.Millisecond)
	codes := takeovers(clitest.Logged(t, standby))
	require.NotEmpty(t, codes)
	require.NotContains(t, codes, string(failover.CodeSwitchover))
	require.NoError(t, standby.Stop(), "alone")
}

var takeoverCode = regexp.MustCompile(`"to": "ACTIVATING", "code": "([a-z-]+)"`)

// takeovers returns the codes of the role changes to ACTIVATING in a log.
func takeovers(log string) (codes []string) {
	for _, m := range takeoverCode.FindAllStringSubmatch(log, -1) {
		codes = append(codes, m[1])
	}
	return codes
}

// Nodes and a witness keep running after SIGHUP, and log a hint.
func TestHangup(t *testing.T) {
	p, err := harness.Start(t.Context(), harness.Options{Dir: t.TempDir(), Raft: true, Settings: harness.SmallNodes()})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	c := clitest.CLI{T: t, Addr: strings.Join(p.Addresses(), ",")}
	c.OK("queue", "create", "q", "--timeout", "30s")
	for _, n := range []*harness.Node{p.Nodes[0], p.Nodes[1], p.Witness} {
		require.NoError(t, syscall.Kill(n.PID(), syscall.SIGHUP))
		require.Eventually(t, func() bool { return strings.Contains(clitest.Logged(t, n), "SIGHUP") }, time.Minute,
			10*time.Millisecond)
		require.NoError(t, n.Failure())
		require.NotZero(t, n.PID())
	}
}

// With --to and --from the command is idempotent: it does nothing if the role is already at the target.
func TestSwitchoverToNode(t *testing.T) {
	p, c := clitest.StartNodes(t, false)
	active, standby := clitest.InSync(t, p, c)
	id := func(n *harness.Node) string {
		for _, v := range c.Lines("status")[0]["nodes"].([]any) {
			if v := v.(map[string]any); v["address"] == n.Address {
				return v["node_id"].(string)
			}
		}
		return ""
	}
	switchover := func(flag, node string, to *harness.Node, already bool) {
		t.Helper()
		r := c.Lines("switchover", flag, node)[0]
		require.Equal(t, to.Address, r["active_address"], "%s %s", flag, node)
		require.Equal(t, already, r["already"], "%s %s", flag, node)
	}
	switchover("--to", active.Name, active, true)
	switchover("--from", standby.Name, active, true)
	require.Equal(t, active.Address, clitest.ActiveAddress(t, c))

	switchover("--from", active.Name, standby, false)
	switchover("--from", active.Name, standby, true)
	clitest.InSync(t, p, c)
	switchover("--to", id(active), active, false)
	switchover("--to", id(active), active, true)

	_, stderr, code := c.Run("", "switchover", "--to", "neither")
	require.Equal(t, cli.ExitError, code)
	require.Contains(t, stderr, `"neither"`)
	require.Contains(t, stderr, id(active))
	_, _, code = c.Run("", "switchover", "--to", "a", "--from", "b")
	require.Equal(t, cli.ExitUsage, code)
}
