// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package s3

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/stretchr/testify/require"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/test/certs"
	"github.com/lockstep-mq/lockstep/test/harness"
	"github.com/lockstep-mq/lockstep/test/harness/faultproxy"
)

// A bucket satisfies the contract over TLS. If another CA issued the server certificate, or the scheme is wrong,
// requests return an error with the cause, without retries.
func TestTLS(t *testing.T) {
	s := startTLS(t)
	s.makeBucket(minio.MakeBucketOptions{})
	o := options(t, s.endpoint())
	o.CA = s.ca
	contract(t, openStore(t, "sets", o))

	const longest = time.Hour // a request that is retried would exceed the timeout of the test
	other, no := options(t, s.endpoint()), options(t, s.endpoint())
	other.RetryFor, no.RetryFor = longest, longest
	other.CA = certs.New(t, "another CA").File
	plain := options(t, "http://"+s.addr)
	plain.RetryFor = time.Second
	for _, refused := range []struct {
		name string
		with backup.Objects
		text string
	}{
		{"another CA", openStore(t, "sets", other), "certificate"},
		{"no CA", openStore(t, "sets", no), "certificate"},
		{"no TLS", openStore(t, "sets", plain), ""},
	} {
		_, err := refused.with.List(t.Context(), "")
		require.ErrorIs(t, err, backup.ErrRemote, refused.name)
		require.Contains(t, err.Error(), refused.text, refused.name)
		require.NotContains(t, err.Error(), secretKey)
	}
}

// bucketWorld is a pair with its backups and archive in a bucket.
type bucketWorld struct {
	t      *testing.T
	binary string
	store  map[string]string // the settings for the bucket
	pair   *harness.Pair
}

// program returns the path of the program: LOCKSTEP_BINARY, or one built from this module.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("LOCKSTEP_BINARY"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "lockstep")
	out, err := exec.CommandContext(t.Context(), "go", "build", "-o", path,
		"github.com/lockstep-mq/lockstep/cmd/lockstep").CombinedOutput()
	require.NoError(t, err, string(out))
	return path
}

// start starts a pair in a directory, which may already contain data of node a.
func (w *bucketWorld) start(dir string) (active, standby *harness.Node) {
	w.t.Helper()
	all := harness.SmallNodes()
	maps.Copy(all, w.store)
	all["backup.path"], all["wal.archive"] = "s3://"+bucket+"/sets", "s3://"+bucket+"/log"
	all["wal.archive-interval"] = "1s"
	var err error
	ctx, cancel := context.WithTimeout(w.t.Context(), bound)
	defer cancel()
	w.pair, err = harness.Start(ctx, harness.Options{
		Binary: w.binary, Dir: dir, EtcdNoSync: true, Settings: all, AFirst: true,
	})
	require.NoError(w.t, err)
	pair := w.pair
	w.t.Cleanup(func() { require.NoError(w.t, pair.KillAll()) })
	active, standby, err = w.pair.WaitInSync(ctx)
	require.NoError(w.t, err)
	return active, standby
}

// run runs a command. If the command uses no node, the caller passes the flags of bucketFlags.
func (w *bucketWorld) run(args ...string) (string, error) {
	cmd := exec.CommandContext(w.t.Context(), w.binary, append(args, "--timeout="+bound.String())...)
	cmd.Env = append(harness.Environment(), "LOCKSTEP_ADDR="+strings.Join(w.pair.Addresses(), ","))
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%v: %w: %s", args, err, errs.String())
	}
	return out.String(), nil
}

func (w *bucketWorld) ok(args ...string) string {
	w.t.Helper()
	out, err := w.run(args...)
	require.NoError(w.t, err)
	return out
}

// bucketFlags returns the flags that configure the bucket for a command without a node.
func (w *bucketWorld) bucketFlags() (flags []string) {
	for key, value := range w.store {
		flags = append(flags, "--"+strings.ReplaceAll(key, ".", "-")+"="+value)
	}
	return flags
}

// publisher publishes numbered messages until it is stopped, and counts the acknowledged messages.
type publisher struct {
	stop  context.CancelFunc
	acked chan int
}

func (w *bucketWorld) publish() *publisher {
	w.t.Helper()
	c, err := client.OpenWith(w.t.Context(), client.Options{Addresses: w.pair.Addresses()})
	require.NoError(w.t, err)
	_, _, err = admin.New(c).CreateQueue(w.t.Context(), "orders", admin.CreateQueueOptions{})
	require.NoError(w.t, err)
	ctx, stop := context.WithCancel(w.t.Context())
	p := &publisher{stop: stop, acked: make(chan int, 1)}
	filler := strings.Repeat("x", 4000)
	go func() {
		n := 0
		for ctx.Err() == nil {
			// Each publish is retried until it succeeds, and stores its message once despite failures.
			_, err := c.Publish(context.WithoutCancel(ctx), "orders",
				client.Message{Body: fmt.Appendf(nil, "%06d %s", n, filler)})
			if err != nil {
				break
			}
			n++
		}
		_ = c.Close()
		p.acked <- n
	}()
	return p
}

// If the active is killed while the standby writes a backup to a bucket over TLS, the backup completes, and the new
// active continues the archive. A new pair restored from the bucket contains each acknowledged message once.
func TestBackupDuringFailover(t *testing.T) {
	s := startTLS(t)
	s.makeBucket(minio.MakeBucketOptions{})
	o := options(t, s.endpoint())
	link, err := faultproxy.Listen(s.addr)
	require.NoError(t, err)
	t.Cleanup(func() { _ = link.Close() })
	w := &bucketWorld{t: t, binary: program(t), store: map[string]string{
		"backup.s3.endpoint": "https://" + link.Address(), "backup.s3.ca": s.ca, "backup.s3.path-style": "true",
		"backup.s3.access-key-file": o.AccessKeyFile, "backup.s3.secret-key-file": o.SecretKeyFile,
	}}
	active, standby := w.start(t.TempDir())
	p := w.publish()
	// The messages suffice for a kill during the backup, and for a restore with records after the backup.
	require.Eventually(t, func() bool {
		st, err := standby.Status(t.Context())
		return err == nil && st.GetStore().GetMessageBytes() > 6<<20
	}, bound, 50*time.Millisecond)
	made := make(chan error, 1)
	go func() {
		_, err := w.run("store", "backup", "--node", standby.Address, "--rate", "1MiB")
		made <- err
	}()
	s.waitForMark()
	link.Cut() // the backup cannot end before the active is killed
	select {
	case err := <-made:
		require.FailNow(t, "the backup ended before the active was killed", "%v", err)
	default:
	}
	require.NoError(t, active.Kill())
	link.Heal()
	ctx, cancel := context.WithTimeout(t.Context(), bound)
	defer cancel()
	now, err := w.pair.WaitActive(ctx)
	require.NoError(t, err)
	require.Equal(t, standby.Name, now.Name)
	require.NoError(t, <-made, "a backup must not depend on the active node")
	w.moreMessages(now, 200) // only the archive contains them
	p.stop()
	acked := <-p.acked
	require.Greater(t, acked, 1000)

	var flushed struct {
		Directory string `json:"directory"`
		LastLSN   uint64 `json:"last_lsn"`
	}
	require.NoError(t, json.Unmarshal([]byte(w.ok("store", "flush-archive", "--node", now.Address, "--output", "json")),
		&flushed))
	require.Equal(t, "s3://"+bucket+"/log/"+now.Name, strings.TrimSuffix(flushed.Directory, "/"))
	var set struct {
		Path     string `json:"path"`
		Position struct {
			LSN uint64 `json:"lsn"`
		} `json:"position"`
		Check struct {
			Restorable bool   `json:"restorable"`
			Problem    string `json:"archive_problem"`
			Reach      struct {
				LSN uint64 `json:"lsn"`
			} `json:"reach"`
		} `json:"check"`
	}
	require.NoError(t, json.Unmarshal([]byte(w.ok("store", "backups", "--node", now.Address, "--verify", "--full-speed",
		"--output", "json")), &set))
	require.True(t, set.Check.Restorable)
	require.Empty(t, set.Check.Problem)
	require.Equal(t, flushed.LastLSN, set.Check.Reach.LSN, "the check by the node must reach the same LSN")
	require.Greater(t, flushed.LastLSN, set.Position.LSN)
	require.NoError(t, w.pair.KillAll())

	dir := t.TempDir()
	w.ok(append([]string{
		"store", "restore", "s3://" + bucket + "/sets", "--archive", flushed.Directory, "--data-dir",
		filepath.Join(dir, "a", "data"),
	}, w.bucketFlags()...)...)
	w.start(dir)
	w.requireMessages(acked)
}

// moreMessages waits until the given number of further messages is stored.
func (w *bucketWorld) moreMessages(n *harness.Node, count uint64) {
	w.t.Helper()
	first, err := n.Status(w.t.Context())
	require.NoError(w.t, err)
	require.Eventually(w.t, func() bool {
		st, err := n.Status(w.t.Context())
		return err == nil && st.GetStore().GetMessages() >= first.GetStore().GetMessages()+count
	}, bound, 20*time.Millisecond)
}

// waitForMark waits until a backup is running.
func (s *server) waitForMark() {
	s.t.Helper()
	require.Eventually(s.t, func() bool {
		found, err := filepath.Glob(filepath.Join(s.dir, "root", bucket, "sets", ".partial-*"))
		return err == nil && len(found) > 0
	}, bound, 5*time.Millisecond)
}

// requireMessages checks that the queue contains all messages up to a number, in order, each once.
func (w *bucketWorld) requireMessages(acked int) {
	w.t.Helper()
	c, err := client.OpenWith(w.t.Context(), client.Options{Addresses: w.pair.Addresses()})
	require.NoError(w.t, err)
	defer func() { require.NoError(w.t, c.Close()) }()
	n := 0
	for m, err := range c.Browse(w.t.Context(), "orders", client.BrowseOptions{}) {
		require.NoError(w.t, err)
		require.Equal(w.t, fmt.Sprintf("%06d", n), string(m.Body[:6]))
		n++
	}
	require.Equal(w.t, acked, n)
	w.t.Logf("all %d acknowledged messages are in the new pair", n)
}
