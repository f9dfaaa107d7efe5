// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A decoy is a process unrelated to the pair. Attacks on it measure how an attacker on the same machine affects a
// legitimate client.

const envDecoy = "HOSTILE_DECOY" // if set, run as the decoy

// runDecoy accepts connections, and reads from them, until its input ends.
func runDecoy() error {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println(l.Addr())
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_ = c.SetDeadline(time.Now().Add(time.Second))
				_, _ = io.Copy(io.Discard, c)
				_ = c.Close()
			}()
		}
	}()
	_, err = io.Copy(io.Discard, os.Stdin)
	_ = l.Close()
	return err
}

// decoy starts a decoy, which runs until the test ends, and returns its address.
func decoy(t *testing.T) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), envDecoy+"=1")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = in.Close()
		_ = cmd.Wait() // the process may have been killed with the test's context
	})
	return strings.TrimSpace(line)
}
