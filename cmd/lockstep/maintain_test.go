package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
)

// fillForScan puts messages into a queue that pages of 2 KiB do not suit.
func fillForScan(t *testing.T, c cli, messages int) {
	t.Helper()
	cl, err := client.Open(t.Context(), client.Options{Addresses: strings.Split(c.addr, ",")})
	require.NoError(t, err)
	defer func() { require.NoError(t, cl.Close()) }()
	_, _, err = cl.CreateQueue(t.Context(), "orders", client.CreateQueueOptions{})
	require.NoError(t, err)
	p, err := cl.NewProducer(t.Context(), client.ProducerOptions{})
	require.NoError(t, err)
	body := make([]byte, 4200)
	for range messages {
		require.NoError(t, p.PublishAsync(t.Context(), "orders", client.Message{Body: body},
			func(_ client.Receipt, err error) {
				if err != nil {
					t.Error(err)
				}
			}))
	}
	require.NoError(t, p.Flush(t.Context()))
}

// TestMaintenance: all of it on a pair, as an operator would do it.
func TestMaintenance(t *testing.T) {
	p, c := startNodes(t, false)
	fillForScan(t, c, 2000)

	require.Contains(t, c.ok("store", "plan"), "no rolling operation")
	_, stderr, code := c.run("", "store", "resize")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "lockstep store scan")
	text := c.ok("store", "scan")
	for _, want := range []string{
		"(standby): 2,000 messages", "4.0 KiB – 6.0 KiB", "████", "← recommended", "present",
		"lockstep store resize --rolling",
	} {
		require.Contains(t, text, want)
	}
	scan := c.lines("store", "scan")[0]
	require.InDelta(t, 2048, scan["page_size"], 0)
	recommended, _ := scan["recommended"].(float64)
	require.Greater(t, recommended, 4000.0)
	require.NotEmpty(t, scan["histogram"])
	require.NotEmpty(t, scan["candidates"])

	require.Contains(t, c.ok("store", "settings", "set", "page-size-max", "16KiB"), "16384")
	require.Contains(t, c.ok("store", "settings", "get", "page-size-max"), "16384")
	require.Contains(t, c.ok("store", "settings", "get"), "page-size-recommended")
	require.InDelta(t, 16384, c.lines("store", "settings", "get")[0]["page-size-max"], 0)
	_, _, code = c.run("", "store", "settings", "set", "backup.keep-generations", "0")
	require.Equal(t, exitError, code, "the node refuses it")

	dry := c.ok("store", "resize", "--rolling", "--dry-run", "--page-size", "8KiB")
	require.Equal(t, 2, strings.Count(dry, "pages of 2.0 KiB → 8.0 KiB, 2,000 messages"), dry)
	require.Equal(t, 2, strings.Count(dry, "space needed meanwhile: "), dry)
	before := activeAddress(t, c)
	stdout, stderr, code := c.run("", "store", "resize", "--rolling", "--page-size", "8KiB", "--switch-back")
	require.Equal(t, exitOK, code, "%s%s", stdout, stderr)
	require.Contains(t, stdout, "resize to pages of 8.0 KiB: both nodes are done")
	require.Contains(t, stderr, "node a: done, pages of 8.0 KiB")
	require.Contains(t, stderr, "node b: done, pages of 8.0 KiB")
	require.Equal(t, before, activeAddress(t, c), "the role was given back")
	plan := c.lines("store", "plan")[0]
	require.Equal(t, "done", plan["state"])
	require.ElementsMatch(t, []any{"a", "b"}, plan["done_nodes"])
	status := c.lines("status")[0]
	inStatus, _ := status["plan"].(map[string]any)
	require.Equal(t, "done", inStatus["state"])
	require.NotContains(t, c.ok("status"), "resize", "it has ended")
	require.Contains(t, c.ok("store", "plan", "--watch"), "both nodes are done")
	_, _, code = c.run("", "store", "plan", "--cancel")
	require.Equal(t, exitError, code, "it has ended")
	for _, node := range []string{"a", "b"} {
		require.Contains(t, c.ok("store", "settings", "get", "page-size-current", "--node", node), "8192")
		require.Contains(t, c.ok("store", "drop-old", "--node", node), "freed")
		require.Contains(t, c.ok("store", "drop-old", "--node", node), "nothing to remove")
	}

	compact := c.ok("store", "compact", "--node", "standby")
	require.Contains(t, compact, "pages of 8.0 KiB → 8.0 KiB, 2,000 messages")
	require.Contains(t, compact, "page.db_old")
	_, stderr, code = c.run("", "store", "compact", "--node", "active")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "role")
	require.Contains(t, c.ok("store", "shrink", "--node", p.Nodes[0].Address), "page.db")
	require.Contains(t, c.ok("store", "shrink", "--dry-run"), "page.db")
	_, stderr, code = c.run("", "store", "scan", "--node", "c")
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "a (")
	backups(t, c)
}

// backups makes some, lists them, and restores one.
func backups(t *testing.T, c cli) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "sets")
	_, stderr, code := c.run("", "store", "backup", "--path", "relative")
	require.Equal(t, exitUsage, code, stderr)
	require.Contains(t, c.ok("store", "backup", "--path", dir), "-ps8192")
	require.Contains(t, c.ok("store", "settings", "set", "backup.path", dir), dir)
	require.Contains(t, c.ok("store", "backup", "--node", "active", "--rate", "500MiB"), dir)
	require.Len(t, c.lines("store", "backups"), 2)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "20200101T000000Z-lsn000001-ps2048"), 0o750))
	require.Contains(t, c.ok("store", "backups", dir), "NOT USABLE")
	require.Contains(t, c.ok("store", "backups", dir, "--verify"), "verified")

	data := filepath.Join(t.TempDir(), "data")
	require.Contains(t, c.ok("store", "restore", dir, "--data-dir", data, "--dry-run"),
		"a restore would give 2,000 messages")
	require.NoDirExists(t, data)
	restored := c.lines("store", "restore", dir, "--data-dir", data)[0]
	require.NotEmpty(t, restored["store_id"])
	require.Contains(t, c.ok("store", "check", data), "is sound: 2,000 messages")
	require.Contains(t, c.ok("store", "scan", "--data-dir", data), "2,000 messages")
	require.Contains(t, c.ok("store", "resize", "--data-dir", data, "--page-size", "4KiB", "--dry-run"),
		"8.0 KiB → 4.0 KiB")
	require.Contains(t, c.ok("store", "drop-old", "--data-dir", data), "nothing to remove")
	_, stderr, code = c.run("", "store", "restore", dir, "--data-dir", data)
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "empty")
	_, stderr, code = c.run("", "store", "restore", filepath.Dir(data), "--data-dir", filepath.Join(data, "x"))
	require.Equal(t, exitError, code, stderr)
}

// TestJobs: they are kept, run and remembered.
func TestJobs(t *testing.T) {
	_, c := startNodes(t, true)
	fillForScan(t, c, 10)
	require.Contains(t, c.ok("job", "list"), "no jobs")
	require.Contains(t, c.ok("job", "put", "nightly", "--kind", "scan", "--schedule", "0 2 * * *"),
		"job nightly runs next at")
	require.Contains(t, c.ok("job", "put", "tidy", "--kind", "shrink", "--schedule", "@daily", "--paused"), "paused")
	_, stderr, code := c.run("", "job", "put", "broken", "--kind", "scan", "--schedule", "sometimes")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "sometimes")
	require.Contains(t, c.ok("job", "history", "nightly"), "did not run yet")
	require.Contains(t, c.ok("job", "run", "nightly"), "job nightly: ok")
	runs := c.lines("job", "history", "nightly")
	require.Len(t, runs, 1)
	require.Equal(t, "ok", runs[0]["outcome"])
	require.Contains(t, c.ok("job", "history", "nightly"), "ok")
	require.Len(t, c.lines("job", "list"), 2)
	require.Contains(t, c.ok("job", "list"), "0 2 * * *")
	c.ok("job", "delete", "tidy")
	_, stderr, code = c.run("", "job", "run", "tidy")
	require.Equal(t, exitError, code)
	require.Contains(t, stderr, "no such job")
	_, _, code = c.run("", "job", "history", "tidy")
	require.Equal(t, exitError, code)
}

// TestCancelRolling: the first Ctrl-C cancels the plan safely and waits for that.
func TestCancelRolling(t *testing.T) {
	settings := smallNodes()
	settings["maintenance-rewrite-rate"] = "64KiB" // it takes minutes, if it is not cancelled
	_, c := startNodesWith(t, false, settings)
	fillForScan(t, c, 2000)
	ctx, interrupt := context.WithTimeout(t.Context(), 60*time.Second)
	defer interrupt()
	var stdout strings.Builder
	stderr := &watchedWriter{want: "rewrites its page file", seen: interrupt}
	code := execute(ctx, []string{"store", "compact", "--rolling", "--output", "json"}, &environment{
		stdin: strings.NewReader(""), stdout: &stdout, stderr: stderr,
		lookup: func(name string) (string, bool) { return c.addr, name == envAddr },
	})
	var plan map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout.String()), &plan), "%s%s", stdout.String(), stderr.text.String())
	require.Contains(t, stderr.text.String(), "Ctrl-C again")
	require.Equal(t, exitError, code)
	require.Equal(t, "cancelled", plan["state"])
	require.Equal(t, "cancelled", c.lines("store", "plan")[0]["state"])
	c.ok("store", "check")
}

// watchedWriter calls seen when it was written what is wanted.
type watchedWriter struct {
	text strings.Builder
	want string
	seen func()
}

func (w *watchedWriter) Write(b []byte) (int, error) {
	w.text.Write(b)
	if strings.Contains(string(b), w.want) {
		w.seen()
	}
	return len(b), nil
}
