// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package amqp

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/harness"
)

// All of Joram's JMS tests pass with a pair and Qpid JMS 1.x, except those that testdata/joram.txt excludes.
// LOCKSTEP_JORAM is the command of Joram.java, to which the pair's URL is appended, and LOCKSTEP_JORAM_JAR is the
// jar with the tests. LOCKSTEP_JORAM_ONLY selects tests by parts of their names.
func TestJoram(t *testing.T) {
	command := program(t, "LOCKSTEP_JORAM")
	w := newWorld(t, t.TempDir(), nil, nil)
	url := fmt.Sprintf("failover:(amqp://%s,amqp://%s)?failover.maxReconnectAttempts=20", w.urls["a"], w.urls["b"])
	only := strings.Fields(os.Getenv("LOCKSTEP_JORAM_ONLY"))
	cmd, in, lines := begin(t, slices.Concat(command, []string{url, os.Getenv("LOCKSTEP_JORAM_JAR")}, only))
	want, got := joramTests(joramList, only), map[string]string{}
	for lines.Scan() {
		f := strings.Split(lines.Text(), "\t")
		switch {
		case f[0] == "admin" && len(f) == 3:
			_, err := io.WriteString(in, w.administer(t, f[1], f[2])+"\n")
			require.NoError(t, err)
		case f[0] == "test" && len(f) == 5:
			got[f[1]] = ""
			if f[2] != "passed" {
				got[f[1]] = cmp.Or(f[4], "no reason")
			}
			t.Logf("%s %s, %s ms %s", f[2], f[1], f[3], f[4])
		default:
			t.Logf("%s", lines.Text())
		}
	}
	require.NoError(t, cmd.Wait())
	failed := joramErrors(want, got)
	t.Logf("Joram: %d of %d passed", len(want)-len(failed), len(want))
	require.Empty(t, failed)
}

// program returns the command in an environment variable, or skips the test.
func program(t *testing.T, variable string) []string {
	t.Helper()
	command := strings.Fields(os.Getenv(variable))
	if len(command) == 0 {
		t.Skip(variable + " is not set: see test/amqp/run.sh")
	}
	return command
}

// begin starts a program with a line-based protocol.
func begin(t *testing.T, command []string) (*exec.Cmd, io.WriteCloser, *bufio.Scanner) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
	cmd.Env, cmd.Stderr = harness.Environment(), os.Stderr
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	return cmd, in, bufio.NewScanner(out)
}

// administer executes an administrative request of a test, and returns "ok" or the error.
func (w *world) administer(t *testing.T, operation, name string) string {
	var err error
	q := w.queues(t)
	switch operation {
	case "create-queue":
		_, err = q.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: name})
	case "create-topic":
		_, err = q.CreateQueue(t.Context(), &pb.CreateQueueRequest{Name: name, Topic: true})
	case "delete-queue", "delete-topic":
		_, err = q.DeleteQueue(t.Context(), &pb.DeleteQueueRequest{Name: name})
	default:
		return "unknown operation"
	}
	if err != nil {
		return strings.ReplaceAll(err.Error(), "\n", " ")
	}
	return "ok"
}
