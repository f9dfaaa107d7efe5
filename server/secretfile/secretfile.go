// SPDX-License-Identifier: Apache-2.0

// Package secretfile reads secrets that two ends share from a file, and again when it changes. They are compared in a
// time that does not depend on them, and are in no error and no log line.
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
	// minBytes is how long a secret must be at least: one that is guessed is none.
	minBytes = 16
	// maxFileBytes bounds the file, and maxSecrets the secrets in it.
	maxFileBytes = 64 << 10
	maxSecrets   = 16
	// lookInterval is how long what was read is used without looking at the file again.
	lookInterval = time.Second
)

// ErrContent is returned when a file has no secret, or one that cannot be used.
var ErrContent = errors.New("the file cannot be used")

// File holds the secrets of a file. It may be used by many goroutines at once.
type File struct {
	path    string
	told    func(error)
	now     atomic.Pointer[secrets]
	refused atomic.Pointer[error]
	looked  atomic.Int64

	mu sync.Mutex // held while the file is read
}

// secrets are never changed.
type secrets struct {
	raw   string // the file
	first string
	sums  [][sha256.Size]byte
}

// Open reads a file of secrets, one on each line; empty lines and those that begin with # are passed over. told is
// called when a new content is used (nil), and once when it cannot be (why); nil: nothing is told.
func Open(path string, told func(error)) (*File, error) {
	f := &File{path: path, told: told}
	s, err := read(path)
	if err != nil {
		return nil, err
	}
	f.now.Store(s)
	f.looked.Store(time.Now().UnixNano())
	return f, nil
}

// First is the secret to show to others.
func (f *File) First() string {
	f.Look()
	return f.now.Load().first
}

// Holds tells whether a secret is one of the file's. How long that takes depends on the file alone.
func (f *File) Holds(secret string) bool {
	f.Look()
	sum, found := sha256.Sum256([]byte(secret)), 0
	for _, s := range f.now.Load().sums {
		found |= subtle.ConstantTimeCompare(s[:], sum[:])
	}
	return found == 1
}

// Look reads the file again if the last time is a second ago or more.
func (f *File) Look() {
	now := time.Now().UnixNano()
	if now-f.looked.Load() < int64(lookInterval) || !f.mu.TryLock() {
		return
	}
	defer f.mu.Unlock()
	f.looked.Store(now)
	_ = f.read() // it is told
}

// Reload reads the file now. The error is why its content cannot be used; what was read before is used then.
func (f *File) Reload() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looked.Store(time.Now().UnixNano())
	return f.read()
}

// Refused says why the content of the file is not used; nil if it is. It does not look at the file.
func (f *File) Refused() error {
	if err := f.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// read takes what the file holds now. mu is held.
func (f *File) read() error {
	s, err := read(f.path)
	before := f.Refused()
	if err != nil {
		f.refused.Store(&err)
		if f.told != nil && (before == nil || before.Error() != err.Error()) {
			f.told(err)
		}
		return err
	}
	f.refused.Store(nil)
	if s.raw == f.now.Load().raw {
		return nil
	}
	f.now.Store(s)
	if f.told != nil {
		f.told(nil)
	}
	return nil
}

// read reads a file. Its errors have nothing of the content.
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
		return nil, fmt.Errorf("%w: %s has no secret; write one on a line, such as from `openssl rand -hex 32`",
			ErrContent, path)
	case len(s.sums) > maxSecrets:
		return nil, fmt.Errorf("%w: %s has more than %d secrets", ErrContent, path, maxSecrets)
	}
	return s, nil
}

// problemOf says what is wrong with a secret; empty: nothing.
func problemOf(secret string) string {
	if len(secret) < minBytes {
		return fmt.Sprintf("a secret has at least %d characters", minBytes)
	}
	for _, c := range []byte(secret) {
		if c <= ' ' || c > '~' {
			return "a secret has printable ASCII characters and no spaces"
		}
	}
	return ""
}
