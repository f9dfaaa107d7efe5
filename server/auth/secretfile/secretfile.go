// SPDX-License-Identifier: Apache-2.0

// Package secretfile implements shared secrets in a file. The file is read again when it changes. Secrets are
// compared in constant time, and do not appear in errors or logs.
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
	// minBytes is the minimum size of a secret.
	minBytes      = 16
	maxFileBytes  = 64 << 10
	maxSecrets    = 16
	checkInterval = time.Second // minimum interval between two checks of the file
)

// ErrContent is returned for a file that is too large, has an invalid secret, or has no secret or too many of them.
var ErrContent = errors.New("invalid secret file")

// File is a file of secrets. It is safe for concurrent use.
type File struct {
	path      string
	onChange  func(error)
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

// Open reads a file of secrets, one per line. Empty lines and lines that begin with # are ignored. If onChange is not
// nil, it is called with nil when new content is used. If the file cannot be read or its content is invalid, onChange
// is called with the error, once until the error changes.
func Open(path string, onChange func(error)) (*File, error) {
	f := &File{path: path, onChange: onChange}
	s, err := read(path)
	if err != nil {
		return nil, err
	}
	f.now.Store(s)
	f.checkedAt.Store(time.Now().UnixNano())
	return f, nil
}

// First returns the first secret in the file, which this node presents to other nodes.
func (f *File) First() string {
	f.Check()
	return f.now.Load().first
}

// Contains reports whether a secret is in the file. Its running time depends only on the file and on the length of
// secret.
func (f *File) Contains(secret string) bool {
	f.Check()
	sum, found := sha256.Sum256([]byte(secret)), 0
	for _, s := range f.now.Load().sums {
		found |= subtle.ConstantTimeCompare(s[:], sum[:])
	}
	return found == 1
}

// Check reads the file if the last read is at least checkInterval ago.
func (f *File) Check() {
	now := time.Now().UnixNano()
	if now-f.checkedAt.Load() < int64(checkInterval) || !f.mu.TryLock() {
		return
	}
	defer f.mu.Unlock()
	f.checkedAt.Store(now)
	_ = f.read() // the error is passed to onChange
}

// Reload reads the file immediately. If the file cannot be read or its content is invalid, it returns an error, and the
// previous secrets remain in use.
func (f *File) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.checkedAt.Store(time.Now().UnixNano())
	return f.read()
}

// Refused returns the error of the last read of the file, or nil if the content is used. It does not read the file.
func (f *File) Refused() error {
	if err := f.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// read reads the file and uses its content if it is valid. The caller must hold mu.
func (f *File) read() error {
	s, err := read(f.path)
	before := f.Refused()
	if err != nil {
		f.refused.Store(&err)
		if f.onChange != nil && (before == nil || before.Error() != err.Error()) {
			f.onChange(err)
		}
		return err
	}
	f.refused.Store(nil)
	if s.raw == f.now.Load().raw {
		return nil
	}
	f.now.Store(s)
	if f.onChange != nil {
		f.onChange(nil)
	}
	return nil
}

// read reads and parses a file of secrets. Its errors do not contain secrets.
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
		return nil, fmt.Errorf("%w: %s contains no secret; write one per line, such as the output of `openssl rand -hex 32`",
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
			return "secret must consist of printable ASCII characters without spaces"
		}
	}
	return ""
}
