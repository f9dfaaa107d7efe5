// SPDX-License-Identifier: Apache-2.0

// Package tlsfiles implements TLS configurations from PEM files, which are read again when they change. Open
// connections are unaffected.
//
// The files are checked when a connection starts and by Check, at most once per second, and on each call of Reload.
// They are opened by name each time, so that a swapped symbolic link (Kubernetes does this with a mounted secret)
// counts as a change. Invalid new content is rejected as a whole: the previous content stays in use, Refused returns
// the reason, and Options.OnChange is called.
package tlsfiles

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// lookInterval is the minimum interval between two checks of the files.
	lookInterval = time.Second
	// openAttempts is the number of attempts of Open to read a matching certificate and key, openPause apart: the files
	// may be in the middle of a replacement.
	openAttempts = 5
	openPause    = 50 * time.Millisecond
)

var (
	// ErrIncomplete is returned when a certificate is configured without its key, or vice versa.
	ErrIncomplete = errors.New("cert and key must both be set")
	// ErrContent is returned when a file contains no certificate, a key does not match its certificate, or a new
	// certificate has expired.
	ErrContent = errors.New("invalid file")
	// errPair is ErrContent for a certificate and a key that do not match.
	errPair = fmt.Errorf("%w", ErrContent)
)

// Files are the names of PEM files.
type Files struct {
	// CA is the file with the CAs that verify peer certificates. Default: the CAs of the system.
	CA string
	// Cert, if not empty, is the file with a certificate, followed by its intermediate CAs. Key is the file with its
	// private key.
	Cert, Key string
}

// Empty reports whether no file is configured.
func (f Files) Empty() bool { return f == Files{} }

// Options configures Open.
type Options struct {
	Files
	// MinVersion is the minimum TLS version, such as tls.VersionTLS12; 0 is TLS 1.3.
	MinVersion uint16
	// OnChange, if not nil, is called once per change, with nil when new content is used, and with the error when it is
	// invalid. It must not call the source.
	OnChange func(error)
}

// Source is the last valid content of the files. It is safe for concurrent use.
type Source struct {
	o       Options
	current atomic.Pointer[material]
	looked  atomic.Int64 // time of the last check, in Unix nanoseconds

	mu       sync.Mutex // held while the files are read; guards the fields below
	seen     content    // found by the last check, valid or not
	trouble  error      // why seen is not used
	notified bool       // OnChange was called with trouble
	refused  atomic.Pointer[error]
}

type content struct {
	ca, cert, key []byte
	err           error
}

func (c *content) equal(d *content) bool {
	return c.err == nil && d.err == nil && bytes.Equal(c.ca, d.ca) && bytes.Equal(c.cert, d.cert) &&
		bytes.Equal(c.key, d.key)
}

// material is the parsed content of valid files. It is immutable.
type material struct {
	certificate *tls.Certificate // nil: none
	roots       *x509.CertPool   // nil: the system's
	ends        []Certificate
}

// Certificate describes a certificate file.
type Certificate struct {
	File      string
	Authority bool
	// Subject and Ends are the subject and the expiry of the certificate that expires first.
	Subject string
	Ends    time.Time
}

// Open reads the files. Errors name the invalid file. If certificate and key do not match, it retries for a fifth
// of a second, because they may be in the middle of a replacement.
func Open(o Options) (*Source, error) {
	if (o.Cert == "") != (o.Key == "") {
		return nil, ErrIncomplete
	}
	if o.MinVersion == 0 {
		o.MinVersion = tls.VersionTLS13
	}
	s := &Source{o: o}
	var m *material
	var err error
	for attempt := 1; ; attempt++ {
		s.seen = read(o.Files)
		if m, err = s.seen.load(o.Files); err == nil {
			break
		}
		if attempt == openAttempts || !errors.Is(err, errPair) {
			return nil, err
		}
		<-time.After(openPause)
	}
	s.current.Store(m)
	s.looked.Store(time.Now().UnixNano())
	return s, nil
}

// Files returns the files of the source.
func (s *Source) Files() Files { return s.o.Files }

// Check reads the files again if the last check is at least lookInterval ago. Invalid content is reported only if two
// consecutive checks find it: certificate and key may be replaced separately.
func (s *Source) Check() {
	now := time.Now().UnixNano()
	if now-s.looked.Load() < int64(lookInterval) {
		return
	}
	// A concurrent read by another goroutine is sufficient.
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	s.looked.Store(now)
	s.read(false)
}

// Reload reads the files now. It returns an error if the content is invalid; the previous content then stays in use.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked.Store(time.Now().UnixNano())
	s.read(true)
	return s.trouble
}

// Refused returns the reason why the current content of the files is not used, or nil. It does not read the files.
func (s *Source) Refused() error {
	if err := s.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// Certificates returns, for each file in use, the certificate that expires first.
func (s *Source) Certificates() []Certificate { return s.current.Load().ends }

// read checks the files and applies new content. It reports invalid content immediately if atOnce is set, otherwise
// only when a second check finds the same content or the same error. mu is held.
func (s *Source) read(atOnce bool) {
	found := read(s.o.Files)
	if found.equal(&s.seen) {
		s.report(atOnce || s.trouble != nil)
		return
	}
	m, err := found.load(s.o.Files)
	if err == nil {
		err = m.mayFollow(s.current.Load())
	}
	again := s.trouble != nil && err != nil && s.trouble.Error() == err.Error()
	s.seen, s.trouble, s.notified = found, err, again && s.notified
	if err != nil {
		s.report(atOnce || again)
		return
	}
	s.current.Store(m)
	s.refused.Store(nil)
	if s.o.OnChange != nil {
		s.o.OnChange(nil)
	}
}

// report passes the error of the files to OnChange once, if now is set. mu is held.
func (s *Source) report(now bool) {
	if s.trouble == nil || !now {
		return
	}
	err := s.trouble
	s.refused.Store(&err)
	if !s.notified && s.o.OnChange != nil {
		s.o.OnChange(err)
	}
	s.notified = true
}

func read(f Files) (c content) {
	one := func(what, file string) []byte {
		if file == "" || c.err != nil {
			return nil
		}
		raw, err := os.ReadFile(file)
		if err != nil {
			c.err = fmt.Errorf("%s: %w", what, err)
		}
		return raw
	}
	c.ca, c.cert, c.key = one("ca", f.CA), one("cert and key", f.Cert), one("cert and key", f.Key)
	return c
}

func (c *content) load(f Files) (*material, error) {
	if c.err != nil {
		return nil, c.err
	}
	m := &material{}
	if f.CA != "" {
		m.roots = x509.NewCertPool()
		if !m.roots.AppendCertsFromPEM(c.ca) {
			return nil, fmt.Errorf("ca: %w: %s has no certificate in PEM", ErrContent, f.CA)
		}
		m.note(f.CA, true, c.ca)
	}
	if f.Cert != "" {
		pair, err := tls.X509KeyPair(c.cert, c.key)
		if err != nil {
			return nil, fmt.Errorf("cert and key: %w: %s and %s: %w", errPair, f.Cert, f.Key, err)
		}
		m.certificate = &pair
		m.note(f.Cert, false, c.cert)
	}
	return m, nil
}

func (m *material) note(file string, authority bool, raw []byte) {
	var first *x509.Certificate
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		c, err := x509.ParseCertificate(block.Bytes)
		if err == nil && (first == nil || c.NotAfter.Before(first.NotAfter)) {
			first = c
		}
	}
	if first != nil {
		m.ends = append(m.ends, Certificate{
			File: file, Authority: authority, Subject: first.Subject.String(), Ends: first.NotAfter,
		})
	}
}

// mayFollow rejects an expired certificate if the previous one has not expired.
func (m *material) mayFollow(before *material) error {
	if m.certificate == nil || before.certificate == nil {
		return nil
	}
	now := time.Now()
	ends := m.certificate.Leaf.NotAfter
	if now.After(ends) && !now.After(before.certificate.Leaf.NotAfter) {
		return fmt.Errorf("cert: %w: the new certificate expired at %s", ErrContent, ends.Format(time.RFC3339))
	}
	return nil
}
