// SPDX-License-Identifier: Apache-2.0

//go:build deep

package guard

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

const mib = 1 << 20

// served is a node in a separate process, started as an operator would start it.
type served struct {
	t       *testing.T
	cmd     *exec.Cmd
	address string
}

// lines is a writer that forwards the first line, and discards the rest.
type lines struct {
	once  sync.Once
	first chan string
	buf   bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.buf.Write(p)
	if line, _, ok := strings.Cut(l.buf.String(), "\n"); ok {
		l.once.Do(func() { l.first <- line })
		l.buf.Reset()
	}
	return len(p), nil
}

// serve starts a standalone node with a memory budget.
func serve(t *testing.T, budgetBytes int) *served {
	t.Helper()
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	cmd := exec.CommandContext(ctx, binary, "serve", "--standalone", "--data-dir", filepath.Join(t.TempDir(), "data"),
		"--listen", "127.0.0.1:0", "--memory-budget", strconv.Itoa(budgetBytes), "--sync", "off",
		"--disk-low-watermark", "0",
		"--log-level", "error")
	out := &lines{first: make(chan string, 1)}
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		cancel()
		_ = cmd.Wait()
	})
	select {
	case line := <-out.first:
		return &served{t: t, cmd: cmd, address: line[strings.LastIndex(line, " ")+1:]}
	case <-time.After(testTimeout):
		t.Fatal("the node has not logged its address")
		return nil
	}
}

// peak returns the peak resident memory of the process in bytes, as measured by the kernel.
func (p *served) peak() int {
	p.t.Helper()
	return peakOf(p.t, p.cmd.Process.Pid)
}

func peakOf(t *testing.T, pid int) int {
	t.Helper()
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, rest, ok := strings.Cut(string(raw), "VmHWM:")
	require.True(t, ok)
	kib, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return kib << 10
}

// Limits from docs/explanation/memory.md for a small budget, with a margin for a busy machine. A value below the
// minimum means that memory was not measured. Measured values are in MiB.
const (
	minSmall, smallMost = 40 * mib, 176 * mib // measured: 124 to 135
	minLarge, largeMost = 64 * mib, 416 * mib // measured 8 times: 275 to 351, including 40 for the executable file
	activeMost          = 704 * mib           // measured 8 times: 315 to 450; once 662, with more messages
	standbyMost         = 320 * mib           // measured 8 times: 198 to 235
)

// A node's memory stays within its limit while a backlog of four times the budget is written and read.
func TestMemoryOfSmallMessages(t *testing.T) {
	const budget, backlog, body = 64 * mib, 256 * mib, 1 << 10
	p, c := servedAndClient(t, budget)
	fill(t, c, backlog/body, body)
	published := p.peak()
	drain(t, c, backlog/body)
	t.Logf("budget of %d MiB: %d MiB after publishing, %d MiB after consuming", budget/mib, published/mib,
		p.peak()/mib)
	within(t, p.peak(), minSmall, smallMost)
}

// A node's memory stays within its limit with messages of the maximum size, each as large as the budget.
func TestMemoryOfLargeMessages(t *testing.T) {
	const budget, body, count = 64 * mib, 64*mib - 4096, 5
	p, c := servedAndClient(t, budget)
	for range count {
		fill(t, c, 1, body)
	}
	published := p.peak()
	drain(t, c, count)
	t.Logf("budget of %d MiB: %d MiB after publishing, %d MiB after consuming", budget/mib, published/mib,
		p.peak()/mib)
	within(t, p.peak(), minLarge, largeMost)
}

// The memory of both nodes stays within its limits while three clients publish messages of the maximum size, and two
// other clients consume. Each message is as large as the budget.
func TestMemoryOfLargeMessagesOnAPair(t *testing.T) {
	if testing.Short() {
		t.Skip("the test takes more than ten seconds")
	}
	const budget, body, publishers, each = 64 * mib, 64*mib - 4096, 3, 2
	binary, err := cluster.Build(t.Context(), t.TempDir())
	require.NoError(t, err)
	p, err := cluster.Start(t.Context(), cluster.Options{Binary: binary, Dir: t.TempDir(), Settings: map[string]string{
		"memory.budget": strconv.Itoa(budget), "sync": "off", "log.level": "error", "disk.low-watermark": "0",
		"wal.segment-bytes": "",
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	active, standby, err := p.WaitInSync(t.Context())
	require.NoError(t, err)
	open := func() *client.Client {
		c, err := client.OpenWith(t.Context(), client.Options{Addresses: p.Addresses()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	_, _, err = admin.New(open()).CreateQueue(t.Context(), "q", admin.CreateQueueOptions{})
	require.NoError(t, err)
	var clients sync.WaitGroup
	for range publishers {
		c := open()
		clients.Go(func() { fill(t, c, each, body) })
	}
	for range 2 {
		c := open()
		clients.Go(func() { drain(t, c, 1) })
	}
	clients.Wait()
	a, s := peakOf(t, active.PID()), peakOf(t, standby.PID())
	t.Logf("budget of %d MiB: active %d MiB, standby %d MiB", budget/mib, a/mib, s/mib)
	within(t, a, minLarge, activeMost)
	within(t, s, minLarge, standbyMost)
}

func within(t *testing.T, got, least, most int) {
	t.Helper()
	require.GreaterOrEqual(t, got, least, "memory was not measured")
	if raceFactor == 1 {
		require.LessOrEqual(t, got, most, "%d MiB", got/mib)
	}
}

func servedAndClient(t *testing.T, budgetBytes int) (*served, *client.Client) {
	t.Helper()
	if testing.Short() {
		t.Skip("the test takes more than ten seconds")
	}
	p := serve(t, budgetBytes)
	c, err := client.OpenWith(t.Context(), client.Options{Addresses: []string{p.address}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	_, _, err = admin.New(c).CreateQueue(t.Context(), "q", admin.CreateQueueOptions{})
	require.NoError(t, err)
	return p, c
}

func fill(t *testing.T, c *client.Client, n, bodyBytes int) {
	t.Helper()
	producer, err := c.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	body := bytes.Repeat([]byte("x"), bodyBytes)
	for range n {
		producer.PublishAsync(t.Context(), "q", client.Message{Body: body})
	}
	require.NoError(t, producer.Flush(t.Context()))
	require.NoError(t, producer.Close())
}

func drain(t *testing.T, c *client.Client, n int) {
	t.Helper()
	consumer, err := c.Consume(t.Context(), "q", client.ConsumerOptions{Prefetch: 4})
	require.NoError(t, err)
	for range n {
		d, err := consumer.Receive(t.Context())
		require.NoError(t, err)
		d.Ack()
	}
	require.NoError(t, consumer.Close())
}
