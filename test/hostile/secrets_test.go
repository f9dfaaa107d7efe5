// SPDX-License-Identifier: Apache-2.0

//go:build unix && deep

package hostile

import (
	"context"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/lockstep-mq/lockstep/client"
	clientadmin "github.com/lockstep-mq/lockstep/client/admin"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/test/cluster"
)

// Planted secrets. Each is long enough to prevent accidental matches.
const (
	secretBody     = "PLANTED-body-3f9c"
	secretProperty = "PLANTED-property-81ab"
	secretKey      = "PLANTED-key-55d0"
	secretBytes    = "PLANTED-bytes-07ce"
	secretToken    = "PLANTED-token-of-a-client-c4e1"
	secretPeer     = "PLANTED-token-of-the-peer-92be"
	secretMetrics  = "PLANTED-token-of-the-metrics-1d7f"
	secretAccess   = "PLANTED-access-key-of-S3-77c2"
	secretValue    = "PLANTED-secret-key-of-S3-e9d4"
)

// findings returns the planted secrets in a text.
func findings(text string) (found []string) {
	for _, secret := range []string{
		secretBody, secretProperty, secretKey, secretBytes, secretToken, secretPeer, secretMetrics,
		secretAccess, secretValue,
	} {
		for _, form := range []string{
			secret, base64.StdEncoding.EncodeToString([]byte(secret))[:16], hex.EncodeToString([]byte(secret)),
			fmt.Sprint([]byte(secret)),
		} {
			if i := strings.Index(text, form); i >= 0 {
				found = append(found, fmt.Sprintf("%s: …%s…", secret, text[max(0, i-200):min(len(text), i+200)]))
			}
		}
	}
	return found
}

// With debug logging, no bodies, properties and tokens in requests from clients, operators and nodes appear in logs,
// audit records, status, metrics, profiles, command lines and errors.
func TestSecretsAreRedacted(t *testing.T) {
	dir := t.TempDir()
	secret := func(name, content string) string {
		file := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(file, []byte(content+"\n"), 0o600))
		return file
	}
	p, active, standby, port := victim(t, map[string]string{
		"log.level": "debug", "audit.file": filepath.Join(dir, "audit.jsonl"), "memory.budget": "64MiB",
		"peer-token-file": secret("peer", secretPeer), "metrics.token-file": secret("metrics", secretMetrics),
		"limits.message-bytes": "64KiB",
		"backup.path":          "s3://backups/sets", "backup.s3.endpoint": "http://127.0.0.1:1",
		"backup.s3.retry-for": "100ms", "backup.s3.access-key-file": secret("access-key", secretAccess),
		"backup.s3.secret-key-file": secret("secret-key", secretValue),
	})
	ctx, cancel := context.WithTimeout(t.Context(), 2*bound)
	defer cancel()
	k, err := p.NewClient(ctx)
	require.NoError(t, err)
	defer func() { _ = k.Close() }()
	var seen strings.Builder
	record := func(err error) {
		if err != nil {
			fmt.Fprintln(&seen, err)
		}
	}
	flows(ctx, t, k, active, record)
	administration(ctx, active, record)
	// Repeat the requests with the other node active.
	_, err = pb.NewAdminServiceClient(active.Conn()).Switchover(ctx, &pb.SwitchoverRequest{})
	require.NoError(t, err)
	require.NoError(t, active.Kill())
	record(func() error { _, err := k.Publish(ctx, "no such queue", message("q")); return err }())
	require.NoError(t, active.Start())
	_, _, err = p.WaitInSync(ctx)
	require.NoError(t, err)

	for _, n := range []*cluster.Node{active, standby} {
		log, err := os.ReadFile(n.LogFile())
		require.NoError(t, err)
		require.Contains(t, string(log), "role changed")
		require.Empty(t, findings(string(log)), "the log of %s", n.Name)
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", n.PID()))
		if err == nil {
			require.Empty(t, findings(string(line)), "the command line of %s", n.Name)
		}
		st, err := n.Status(ctx)
		require.NoError(t, err)
		require.Empty(t, findings(protojson.Format(st)), "the status of %s", n.Name)
	}
	files, err := filepath.Glob(filepath.Join(dir, "audit*"))
	require.NoError(t, err)
	var records strings.Builder
	for _, f := range files {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		records.Write(b)
	}
	require.Contains(t, records.String(), "CreateQueue")
	require.Contains(t, records.String(), `"outcome":"refused"`)
	require.Empty(t, findings(records.String()), "the audit")
	for _, path := range []string{"/metrics", "/debug/pprof/cmdline", "/debug/pprof/goroutine?debug=2", "/readyz"} {
		require.Empty(t, findings(get(t, "http://"+port+path)), "%s", path)
	}
	require.NotEmpty(t, seen.String())
	require.Empty(t, findings(seen.String()), "errors of clients")
}

// get requests a URL of the metrics port with the metrics token, and returns the response.
func get(t *testing.T, url string) string {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer "+secretMetrics)
	resp, err := http.DefaultClient.Do(req)
	require.NoError(t, err)
	defer func() { _ = resp.Body.Close() }()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return string(b)
}

func message(more string) client.Message {
	return client.Message{
		Body: []byte(secretBody + more), Properties: map[string]string{secretKey: secretProperty},
		Subject: secretProperty, CorrelationID: secretProperty,
	}
}

// flows publishes and consumes messages with valid and invalid requests.
func flows(ctx context.Context, t *testing.T, k *client.Client, active *cluster.Node, record func(error)) {
	t.Helper()
	_, _, err := clientadmin.New(k).CreateQueue(ctx, "dead", clientadmin.CreateQueueOptions{})
	require.NoError(t, err)
	_, _, err = clientadmin.New(k).CreateQueue(ctx, "q", clientadmin.CreateQueueOptions{Config: clientadmin.QueueConfig{
		DeadLetter: "dead", MaxDeliveries: 2, MaxMessages: 20,
	}})
	require.NoError(t, err)
	for i := range 30 { // until the queue is full
		limited, cancel := context.WithTimeout(ctx, 2*time.Second)
		_, err := k.Publish(limited, "q", message(fmt.Sprint(i)))
		cancel()
		record(err)
	}
	_, err = k.Publish(ctx, "q", message(strings.Repeat(secretBody, 10_000)))
	require.Error(t, err, "too large")
	record(err)
	_, err = k.Publish(ctx, secretName(), message(""))
	record(err)
	_, err = k.Begin().Publish("q", message("txn")).Commit(ctx)
	record(err)
	record(k.Begin().Publish("dead", message("prepared")).Prepare(ctx, "x1"))
	_, err = clientadmin.New(k).CommitPrepared(ctx, "x1")
	record(err)
	co, err := k.Consume(ctx, "q", client.ConsumerOptions{})
	require.NoError(t, err)
	for i := range 6 {
		d, err := co.Receive(ctx)
		require.NoError(t, err)
		switch i % 3 {
		case 0:
			record(d.AckSync(ctx))
		case 1:
			d.Nack()
		default:
			d.Reject()
		}
	}
	record(co.Close())
	for _, err := range k.Browse(ctx, "dead", client.BrowseOptions{}) {
		record(err)
		break
	}
	_, err = clientadmin.New(k).ReplayDeadLetters(ctx, "dead", clientadmin.ReplayOptions{})
	record(err)
	// Send invalid requests, and a token without an issuer, with a plain gRPC client.
	shown := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secretToken)
	queues := pb.NewQueueServiceClient(active.Conn())
	for _, c := range []context.Context{ctx, shown} {
		for _, m := range []*pb.Message{
			{Body: []byte(secretBody)},
			{Body: []byte(secretBody), Properties: map[string]string{strings.Repeat(secretKey, 100): secretProperty}},
			{Body: []byte(secretBody), Properties: map[string]string{secretKey: secretProperty + "\xff"}},
		} {
			_, err := queues.Publish(c, &pb.PublishRequest{Queue: "q", Messages: []*pb.Message{m}})
			record(err)
		}
	}
}

// secretName returns an invalid queue name. Names are not secret.
func secretName() string { return "a name with spaces" }

// administration sends the requests of operators, without a token and with an invalid token.
func administration(ctx context.Context, active *cluster.Node, record func(error)) {
	maintenance := pb.NewMaintenanceServiceClient(active.Conn())
	shown := metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+secretToken)
	admin, queues := pb.NewAdminServiceClient(active.Conn()), pb.NewQueueServiceClient(active.Conn())
	for _, c := range []context.Context{ctx, shown} {
		_, err := admin.Checkpoint(c, &pb.CheckpointRequest{})
		record(err)
		_, err = admin.Verify(c, &pb.VerifyRequest{})
		record(err)
		_, err = queues.PurgeQueue(c, &pb.PurgeQueueRequest{Name: "dead"})
		record(err)
		_, err = queues.CreateQueue(c, &pb.CreateQueueRequest{Name: "q"})
		record(err)
		_, err = maintenance.ListBackups(c, &pb.ListBackupsRequest{})
		record(err)
		_, err = maintenance.ListBackups(c, &pb.ListBackupsRequest{
			Path: "s3://" + secretAccess + ":" + secretValue + "@backups/sets",
		})
		record(err)
		backup, err := maintenance.Backup(c, &pb.BackupRequest{})
		for err == nil {
			_, err = backup.Recv()
		}
		record(err)
		_, err = pb.NewReplicationServiceClient(active.Conn()).Handshake(c, &pb.HandshakeRequest{})
		record(err)
	}
}
