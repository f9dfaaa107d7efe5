// SPDX-License-Identifier: Apache-2.0

// Package secretfile implements shared secrets in a file, which is read again when it changes. Secrets are compared in
// constant time, and never appear in errors or logs.
package secretfile

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// minBytes prevents guessing.
	minBytes      = 16
	maxFileBytes  = 64 << 10
	maxSecrets    = 16
	checkInterval = time.Second // minimum
)

// ErrContent is returned for a file without a valid secret, or with an invalid one.
var ErrContent = errors.New("invalid secret file")

// File is safe for concurrent use.
type File struct {
	path      string
	reported  func(error)
	now       atomic.Pointer[secrets]
	refused   atomic.Pointer[error]
	checkedAt atomic.Int64

	mu sync.Mutex // held while the file is read
}

type secrets struct { // immutable
	raw   string // content of the file
	first string
	sums  [][sha256.Size]byte
}

// Open reads a file of secrets, one per line; empty lines and lines that begin with # are ignored. reported, unless
// nil, is called with nil when new content is used, and once with the error when it is invalid.
func Open(path string, reported func(error)) (*File, error) {
	f := &File{path: path, reported: reported}
	s, err := read(path)
	if err != nil {
		return nil, err
	}
	f.now.Store(s)
	f.checkedAt.Store(time.Now().UnixNano())
	return f, nil
}

// First returns the secret to present to others.
func (f *File) First() string {
	f.Check()
	return f.now.Load().first
}

// Holds reports whether a secret is in the file. The time depends only on the file.
func (f *File) Holds(secret string) bool {
	f.Check()
	sum, found := sha256.Sum256([]byte(secret)), 0
	for _, s := range f.now.Load().sums {
		found |= subtle.ConstantTimeCompare(s[:], sum[:])
	}
	return found == 1
}

// Check reads the file again if the last read is at least checkInterval ago.
func (f *File) Check() {
	now := time.Now().UnixNano()
	if now-f.checkedAt.Load() < int64(checkInterval) || !f.mu.TryLock() {
		return
	}
	defer f.mu.Unlock()
	f.checkedAt.Store(now)
	_ = f.read() // passed to reported
}

// Reload reads the file now. If the content is invalid, it returns an error and the previous secrets stay in use.
func (f *File) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checkedAt.Store(time.Now().UnixNano())
	return f.read()
}

// Refused returns why the content of the file is not used, or nil. It does not read the file.
func (f *File) Refused() error {
	if err := f.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// read requires that mu is held.
func (f *File) read() error {
	s, err := read(f.path)
	before := f.Refused()
	if err != nil {
		f.refused.Store(&err)
		if f.reported != nil && (before == nil || before.Error() != err.Error()) {
			f.reported(err)
		}
		return err
	}
	f.refused.Store(nil)
	if s.raw == f.now.Load().raw {
		return nil
	}
	f.now.Store(s)
	if f.reported != nil {
		f.reported(nil)
	}
	return nil
}

// read returns errors without the file's content.
func read(path string) (*secrets, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read the secrets: %w", err)
	}
	if info.Size() > maxFileBytes {
		return nil, fmt.Errorf("%w: %s has more than %d bytes", ErrContent, path, maxFileBytes)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the secrets: %w", err)
	}
	s := &secrets{raw: string(raw)}
	number := 0
	for line := range strings.Lines(s.raw) {
		number++
		secret := strings.TrimSpace(line)
		if secret == "" || strings.HasPrefix(secret, "#") {
			continue
		}
		if problem := problemOf(secret); problem != "" {
			return nil, fmt.Errorf("%w: %s, line %d: %s", ErrContent, path, number, problem)
		}
		if s.first == "" {
			s.first = secret
		}
		s.sums = append(s.sums, sha256.Sum256([]byte(secret)))
	}
	switch {
	case len(s.sums) == 0:
		return nil, fmt.Errorf("%w: %s has no secret; write one per line, for example from `openssl rand -hex 32`",
			ErrContent, path)
	case len(s.sums) > maxSecrets:
		return nil, fmt.Errorf("%w: %s has more than %d secrets", ErrContent, path, maxSecrets)
	}
	return s, nil
}

func problemOf(secret string) string {
	if len(secret) < minBytes {
		return fmt.Sprintf("secret must have at least %d characters", minBytes)
	}
	for _, c := range []byte(secret) {
		if c <= ' ' || c > '~' {
			return "secret must have printable ASCII characters and no spaces"
		}
	}
	return ""
}
