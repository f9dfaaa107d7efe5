// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const logInterval = time.Minute

// raftLog forwards the raft library's log to zap. Errors become warnings, at most once a minute per message. All
// other messages become debug messages, including errors that only mean that another voter does not respond.
type raftLog struct {
	hclog.Logger // implements the remaining methods

	log  *zap.Logger
	args []any

	mu   *sync.Mutex // guards the fields below
	last map[string]time.Time
}

func newRaftLog(log *zap.Logger) raftLog {
	return raftLog{
		Logger: hclog.NewNullLogger(), log: log.WithOptions(zap.WithCaller(false)), mu: new(sync.Mutex),
		last: make(map[string]time.Time),
	}
}

func (l raftLog) Log(level hclog.Level, msg string, args ...any) {
	to := zapcore.DebugLevel
	if level >= hclog.Error && !isPeerMessage(msg) {
		to = zapcore.WarnLevel
	}
	if to > zapcore.DebugLevel && !l.due(msg) {
		to = zapcore.DebugLevel
	}
	if entry := l.log.Check(to, msg); entry != nil {
		entry.Write(l.fields(args)...)
	}
}

// isPeerMessage reports whether a message only means that another voter does not respond.
func isPeerMessage(msg string) bool {
	for _, prefix := range []string{
		"failed to heartbeat", "failed to appendEntries", "failed to make request", "failed to pipeline",
		"failed to start pipeline",
		"failed to send snapshot", "failed to flush", "failed to decode incoming", "failed to accept",
		"peer has newer term",
	} {
		if strings.HasPrefix(msg, prefix) {
			return true
		}
	}
	return false
}

func (l raftLog) due(msg string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if time.Since(l.last[msg]) < logInterval && !l.last[msg].IsZero() {
		return false
	}
	l.last[msg] = time.Now()
	return true
}

func (l raftLog) fields(args []any) []zap.Field {
	args = append(l.args[:len(l.args):len(l.args)], args...)
	out := make([]zap.Field, 0, len(args)/2)
	for i := 0; i+1 < len(args); i += 2 {
		if key, ok := args[i].(string); ok {
			out = append(out, zap.Any(key, args[i+1]))
		}
	}
	return out
}

func (l raftLog) Trace(msg string, args ...any) { l.Log(hclog.Trace, msg, args...) }

func (l raftLog) Debug(msg string, args ...any) { l.Log(hclog.Debug, msg, args...) }

func (l raftLog) Info(msg string, args ...any) { l.Log(hclog.Info, msg, args...) }

func (l raftLog) Warn(msg string, args ...any) { l.Log(hclog.Warn, msg, args...) }

func (l raftLog) Error(msg string, args ...any) { l.Log(hclog.Error, msg, args...) }

func (l raftLog) With(args ...any) hclog.Logger {
	l.args = append(l.args[:len(l.args):len(l.args)], args...)
	return l
}

func (l raftLog) Named(string) hclog.Logger { return l }

func (l raftLog) ResetNamed(string) hclog.Logger { return l }
