// SPDX-License-Identifier: Apache-2.0

//go:build deep || measure

package guard

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/proto/codec"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/store/crc"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// asNode is the environment variable that makes the test binary run as a node, with the settings in its value. The
// process is separate, so that allocations of the client and the test are not counted.
const asNode = "GUARD_TEST_BINARY_IS_A_NODE"

const (
	// testTimeout limits the wait for an event.
	testTimeout = 2 * time.Minute
	// pollEvery is the interval at which a condition is polled.
	pollEvery = 5 * time.Millisecond
)

// nodeSettings are the settings of a node of a test.
type nodeSettings struct {
	Name, Dir string
	Endpoints []string // endpoints of etcd; if empty, the node is standalone
	// Serial makes the node also count the allocations of its serial sections, by profiling each allocation.
	Serial bool
}

// counts are the totals of a node since its start.
type counts struct {
	Allocations  uint64
	WrittenBytes int64
	Syncs        uint64
	// Copied and Summed are the copied and the checksummed bytes of large messages.
	Copied, Summed uint64
	// Serial contains the allocations of the serial sections, if counted.
	Serial map[string]int64 `json:",omitempty"`
}

func (c counts) since(before counts) counts {
	return counts{
		c.Allocations - before.Allocations, c.WrittenBytes - before.WrittenBytes, c.Syncs - before.Syncs,
		c.Copied - before.Copied, c.Summed - before.Summed, nil,
	}
}

func TestMain(m *testing.M) {
	text := os.Getenv(asNode)
	if text == "" {
		os.Exit(m.Run())
	}
	var s nodeSettings
	err := json.Unmarshal([]byte(text), &s)
	if s.Serial {
		runtime.MemProfileRate = 1
	}
	if err == nil {
		err = runNode(s, os.Stdin, os.Stdout)
	}
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// runNode runs a node until in ends. It prints its address, and then its counts for each line read from in.
func runNode(s nodeSettings, in io.Reader, out io.Writer) error {
	large := crc.StartCounts()
	codec.CountCopies(crc.Copied)
	codec.Poison() // to detect a body that was released too early
	c := config.Default()
	c.Metrics.Listen = "127.0.0.1:0" // metrics must not add a countable cost
	c.Node.Name, c.Data.Dir, c.Listen = s.Name, s.Dir, "127.0.0.1:0"
	c.Coordinator.Type = config.CoordinatorNone
	if len(s.Endpoints) > 0 {
		c.Coordinator.Type, c.Coordinator.Etcd.Endpoints = config.CoordinatorEtcd, s.Endpoints
	}
	c.Sync, c.Disk.LowWatermark = "off", 0
	c.Checkpoint.Interval = config.Duration(time.Hour) // timers must not affect the counts
	fs, written := countingFS()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	ready := make(chan node.Ready, 1)
	go func() {
		ended <- node.Run(ctx, c, zap.NewNop(), node.Options{
			Version: "guard", FS: fs,
			OnReady: func(r node.Ready) { ready <- r },
		})
	}()
	select {
	case r := <-ready:
		_, _ = fmt.Fprintln(out, r.Address)
	case err := <-ended:
		return err
	}
	encoder := json.NewEncoder(out)
	for lines := bufio.NewScanner(in); lines.Scan(); {
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		if err := encoder.Encode(counts{
			m.Mallocs, written.Load(), fs.Count(faultfs.OpSync), large.Copied.Load(), large.Summed.Load(),
			serialAllocations(s.Serial),
		}); err != nil {
			return err
		}
	}
	cancel()
	return <-ended
}

// countingFS returns the disk's filesystem, and a counter of the bytes written to it.
func countingFS() (*faultfs.FS, *atomic.Int64) {
	fs, written := faultfs.New(vfs.OS()), &atomic.Int64{}
	fs.SetHook(func(op faultfs.Op) error {
		if op.Kind == faultfs.OpWrite {
			written.Add(op.Length)
		}
		return nil
	})
	return fs, written
}

// process is a node in a separate process.
type process struct {
	t       *testing.T
	address string
	in      io.WriteCloser
	out     *bufio.Reader
}

// startNode starts a node, and stops it when the test ends.
func startNode(t *testing.T, name string, endpoints []string) *process {
	t.Helper()
	return start(t, nodeSettings{Name: name, Endpoints: endpoints})
}

func start(t *testing.T, s nodeSettings) *process {
	t.Helper()
	s.Dir = filepath.Join(t.TempDir(), s.Name)
	text, err := json.Marshal(s)
	require.NoError(t, err)
	cmd := exec.Command(os.Args[0]) // this program, which exits when its input ends
	cmd.Env, cmd.Stderr = append(os.Environ(), asNode+"="+string(text)), os.Stderr
	p := &process{t: t}
	p.in, err = cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	p.out = bufio.NewReader(out)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		require.NoError(t, p.in.Close())
		require.NoError(t, cmd.Wait())
	})
	p.address = strings.TrimSpace(p.line())
	return p
}

func (p *process) line() string {
	p.t.Helper()
	line, err := p.out.ReadString('\n')
	require.NoError(p.t, err)
	return line
}

// counts requests and returns the node's counts.
func (p *process) counts() (c counts) {
	p.t.Helper()
	_, err := fmt.Fprintln(p.in, "counts")
	require.NoError(p.t, err)
	require.NoError(p.t, json.Unmarshal([]byte(p.line()), &c))
	return c
}
