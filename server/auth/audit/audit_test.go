// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// sink is an audit file with writes that can fail.
type sink struct{ write func([]byte) (int, error) }

func (s sink) Write(b []byte) (int, error) { return s.write(b) }
func (sink) Close() error                  { return nil }

func open(t *testing.T, o Options) *Log {
	t.Helper()
	o.Node, o.LSN, o.Logger = "a", func() uint64 { return 7 }, zap.NewNop()
	l, err := Open(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Close()) })
	return l
}

func call(method string, err error) auth.Call {
	return auth.Call{
		Identity: &access.Identity{Principal: "ann", Groups: []string{"ops"}, Method: access.MethodCertificate},
		Method:   method, Request: &pb.SetPausedRequest{Paused: true}, Began: time.Now(), Err: err,
	}
}

const paused = pb.AdminService_SetPaused_FullMethodName

// A record contains the caller, the method and the outcome of a call. It is written to the file, and is available
// after a restart.
func TestRecordsAreKept(t *testing.T) { synctest.Test(t, testRecordsAreKept) }

func testRecordsAreKept(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	l := open(t, Options{File: file, MaxBytes: 1 << 20, Keep: 2})
	l.Observe(context.Background(), call(paused, nil))
	l.Observe(context.Background(), call(paused, status.Error(codes.FailedPrecondition, "no record")))
	l.Observe(context.Background(), call(paused, status.Error(codes.PermissionDenied, "ann may not operate")))
	start := time.Now()
	require.NoError(t, l.Close())
	require.Zero(t, time.Since(start))
	b, err := os.ReadFile(file)
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	require.Len(t, lines, 3)
	var first map[string]any
	require.NoError(t, json.Unmarshal([]byte(lines[0]), &first))
	require.Equal(t, "ann", first["principal"])
	require.Equal(t, "certificate", first["authentication"])
	require.Equal(t, "lockstep.v1.AdminService/SetPaused", first["method"])
	require.Equal(t, map[string]any{"paused": true}, first["arguments"])
	require.Equal(t, "done", first["outcome"])
	require.EqualValues(t, 7, first["lsn"])
	require.Contains(t, lines[1], `"outcome":"failed","code":"FAILED_PRECONDITION",`)
	require.Contains(t, lines[2], `"outcome":"refused","code":"PERMISSION_DENIED",`)
	info, err := os.Stat(file)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())

	again := open(t, Options{File: file, MaxBytes: 1 << 20, Keep: 2})
	records, next, missed, _ := again.Read(again.Newest(2))
	require.Len(t, records, 2)
	require.EqualValues(t, 3, next)
	require.Zero(t, missed)
	require.Equal(t, "no record", records[0].Error)
	require.Equal(t, []string{"ops"}, records[0].Groups)
}

// The file is rotated before it exceeds MaxBytes. Only the newest rotated files are kept. Other files are not
// removed.
func TestRotation(t *testing.T) { synctest.Test(t, testRotation) }

func testRotation(t *testing.T) {
	dir := t.TempDir()
	other := filepath.Join(dir, "audit-notes.jsonl")
	require.NoError(t, os.WriteFile(other, []byte("kept"), 0o600))
	o := Options{File: filepath.Join(dir, "audit.jsonl"), MaxBytes: 1 << 20, Keep: 2}
	l := open(t, o)
	for range 20 {
		for range 1000 { // about 300 bytes each
			l.Observe(context.Background(), call(paused, nil))
		}
		time.Sleep(time.Second) //nolint:forbidigo // simulated time, in which the records are written
	}
	require.NoError(t, l.Close())
	require.Zero(t, l.Stats().Lost)
	require.Empty(t, l.Stats().Error)
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	names := make([]string, len(entries))
	for i, e := range entries {
		names[i] = e.Name()
		info, err := e.Info()
		require.NoError(t, err)
		require.LessOrEqual(t, info.Size(), o.MaxBytes)
	}
	require.Len(t, names, 4, "the file, two rotated files and an unrelated file")
	require.Equal(t, []string{"audit-notes.jsonl", "audit.jsonl"}, names[2:])

	// A failed rotation loses one record.
	require.NoError(t, os.WriteFile(o.File, make([]byte, 1<<20), 0o600))
	l = open(t, o)
	require.NoError(t, os.Remove(o.File))
	l.Observe(context.Background(), call(paused, nil))
	synctest.Wait()
	require.EqualValues(t, 1, l.Stats().Lost)
	require.Contains(t, l.Stats().Error, "audit.jsonl")
	l.Observe(context.Background(), call(paused, nil))
	synctest.Wait()
	require.Empty(t, l.Stats().Error)
}

// Open fails if the file cannot be created.
func TestInvalidFile(t *testing.T) {
	_, err := Open(Options{File: filepath.Join(t.TempDir(), "no", "such", "dir"), Logger: zap.NewNop()})
	require.Error(t, err)
	require.Contains(t, err.Error(), "audit.file")
}

// A blocked write to the file does not block calls. Records that do not fit in the queue are not
// written to the file, and the loss is reported.
func TestSlowDisk(t *testing.T) { synctest.Test(t, testSlowDisk) }

func testSlowDisk(t *testing.T) {
	hang := make(chan struct{})
	l := open(t, Options{Write: sink{func(b []byte) (int, error) {
		<-hang
		return len(b), nil
	}}})
	start := time.Now()
	l.Observe(context.Background(), call(paused, nil))
	synctest.Wait() // the write of the first record is blocked
	for range queueRecords + 99 {
		l.Observe(context.Background(), call(paused, nil))
	}
	require.Zero(t, time.Since(start))
	st := l.Stats()
	require.EqualValues(t, 99, st.Lost)
	require.Contains(t, st.Error, "too slow")
	require.EqualValues(t, queueRecords+100, st.Records)
	records, _, missed, _ := l.Read(0)
	require.Len(t, records, memoryRecords, "the newest records are in memory")
	require.EqualValues(t, queueRecords+100-memoryRecords, missed)
	close(hang)
	synctest.Wait()
	require.Empty(t, l.Stats().Error)
	require.EqualValues(t, 99, l.Stats().Lost)
}

// All records observed before Close are written before Close returns, even on a slow disk.
func TestCloseWritesTheQueue(t *testing.T) { synctest.Test(t, testCloseWritesTheQueue) }

func testCloseWritesTheQueue(t *testing.T) {
	const lines, each = 3, 500 * time.Millisecond
	written := 0
	l := open(t, Options{Write: sink{func(b []byte) (int, error) {
		time.Sleep(each) //nolint:forbidigo // simulated time
		written++
		return len(b), nil
	}}})
	for range lines {
		l.Observe(context.Background(), call(paused, nil))
	}
	start := time.Now()
	require.NoError(t, l.Close())
	require.Equal(t, lines, written)
	require.Equal(t, lines*each, time.Since(start))
	require.Zero(t, l.Stats().Lost)
}

// A record that cannot be written is lost. The error is reported until a record is written again.
func TestFullDisk(t *testing.T) { synctest.Test(t, testFullDisk) }

func testFullDisk(t *testing.T) {
	full, noSpace := true, errors.New("no space left on device")
	l := open(t, Options{Write: sink{func(b []byte) (int, error) {
		if full {
			return 0, noSpace
		}
		return len(b), nil
	}}})
	l.Observe(context.Background(), call(paused, nil))
	synctest.Wait()
	require.EqualValues(t, 1, l.Stats().Lost)
	require.Contains(t, l.Stats().Error, noSpace.Error())
	full = false // the lost record is not written later
	l.Observe(context.Background(), call(paused, nil))
	synctest.Wait()
	require.Empty(t, l.Stats().Error)
	require.EqualValues(t, 1, l.Stats().Lost)
}

// Repeated denied calls of the same kind are counted in one record. The number of kinds in memory is limited.
func TestRefusalsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := open(t, Options{Write: sink{func(b []byte) (int, error) { return len(b), nil }}})
		refused := call(paused, status.Error(codes.PermissionDenied, "no"))
		for range 1000 {
			l.Observe(context.Background(), refused)
		}
		records, next, _, _ := l.Read(0)
		require.Len(t, records, 1)
		other := refused
		other.Identity = &access.Identity{Principal: "bob"}
		l.Observe(context.Background(), other)
		time.Sleep(suppressTime + time.Second) //nolint:forbidigo // simulated time
		l.Observe(context.Background(), refused)
		records, _, _, _ = l.Read(next)
		require.Len(t, records, 3, "the record of bob, the count of suppressed calls, and the new record")
		require.Equal(t, "bob", records[0].Principal)
		require.EqualValues(t, 999, records[1].Repeated)
		require.Equal(t, "ann", records[1].Principal)
		for i := range 2 * maxKinds {
			other.Identity = &access.Identity{Principal: fmt.Sprint("x", i)}
			l.Observe(context.Background(), other)
		}
		require.LessOrEqual(t, len(l.kinds), maxKinds+1)
	})
}

var _ io.WriteCloser = sink{}
