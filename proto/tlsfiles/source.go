// SPDX-License-Identifier: Apache-2.0

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
	// lookInterval is how long what was read from the files is used without looking at them again.
	lookInterval = time.Second
	// openAttempts is how often Open reads files whose key does not belong to the certificate, and openPause how long
	// it waits in between: they may be replaced one after the other at this very moment.
	openAttempts = 5
	openPause    = 50 * time.Millisecond
)

// Errors of Open and Reload.
var (
	// ErrIncomplete is returned when a certificate is named without its key, or a key without its certificate.
	ErrIncomplete = errors.New("cert and key go together; only one of them is set")
	// ErrContent is returned when a file has no certificate, or a key does not belong to its certificate.
	ErrContent = errors.New("the file cannot be used")
	// errPair is ErrContent of a certificate and a key that cannot be used together.
	errPair = fmt.Errorf("%w", ErrContent)
)

// Files in PEM.
type Files struct {
	// CA has the authorities that the certificates of others are checked against. Empty: those of the system.
	CA string
	// Cert and Key are shown to others: a certificate, with those between it and its authority behind it, and its key.
	// Both empty: none is shown.
	Cert, Key string
}

// Empty tells whether no file is named.
func (f Files) Empty() bool { return f == Files{} }

// Options of Open.
type Options struct {
	Files
	// MinVersion of TLS, such as tls.VersionTLS12; 0 is TLS 1.3.
	MinVersion uint16
	// Told is called when a new content of the files is used (nil) and when it cannot be (why), once for each change;
	// nil: nothing is told. It must not call the source.
	Told func(error)
}

// Source is what some files hold, as far as it can be used. It may be used by many goroutines at once.
type Source struct {
	o       Options
	current atomic.Pointer[material]
	looked  atomic.Int64 // when the files were last looked at, in Unix nanoseconds

	mu      sync.Mutex // held while the files are read; guards what follows
	seen    content    // what the last look found, usable or not
	trouble error      // why seen is not used; nil: it is
	told    bool       // trouble was told
	refused atomic.Pointer[error]
}

// content is what the files hold, as bytes.
type content struct {
	ca, cert, key []byte
	err           error
}

func (c *content) equal(d *content) bool {
	return c.err == nil && d.err == nil && bytes.Equal(c.ca, d.ca) && bytes.Equal(c.cert, d.cert) &&
		bytes.Equal(c.key, d.key)
}

// material is a content that can be used. It is never changed.
type material struct {
	certificate *tls.Certificate // nil: none
	roots       *x509.CertPool   // nil: the system's
	ends        []Certificate
}

// Certificate is a file with certificates.
type Certificate struct {
	// File they are in, and whether it is the authorities' file.
	File      string
	Authority bool
	// Subject of the one that ends first, and the time when it Ends.
	Subject string
	Ends    time.Time
}

// Open reads the files. Errors name the one that cannot be used. A certificate and a key that do not go together are
// read again for a fifth of a second, since they may be being replaced.
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

// Files that are read.
func (s *Source) Files() Files { return s.o.Files }

// Look reads the files again if the last time is a second ago or more. A content that cannot be used is told when two
// looks in a row have found it: certificate and key may be replaced one after the other.
func (s *Source) Look() {
	now := time.Now().UnixNano()
	if now-s.looked.Load() < int64(lookInterval) {
		return
	}
	// What another goroutine is reading is as good.
	if !s.mu.TryLock() {
		return
	}
	defer s.mu.Unlock()
	s.looked.Store(now)
	s.read(false)
}

// Reload reads the files now. The error is why their content cannot be used; what was read before is used then.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked.Store(time.Now().UnixNano())
	s.read(true)
	return s.trouble
}

// Refused says why the content of the files is not used; nil if it is. It does not look at them.
func (s *Source) Refused() error {
	if err := s.refused.Load(); err != nil {
		return *err
	}
	return nil
}

// Certificates that are used, one for each file: the one that ends first.
func (s *Source) Certificates() []Certificate { return s.current.Load().ends }

// read takes what the files hold now. mu is held.
func (s *Source) read(atOnce bool) {
	found := read(s.o.Files)
	if found.equal(&s.seen) {
		s.tell(atOnce || s.trouble != nil)
		return
	}
	m, err := found.load(s.o.Files)
	if err == nil {
		err = m.mayFollow(s.current.Load())
	}
	again := s.trouble != nil && err != nil && s.trouble.Error() == err.Error()
	s.seen, s.trouble, s.told = found, err, again && s.told
	if err != nil {
		s.tell(atOnce || again)
		return
	}
	s.current.Store(m)
	s.refused.Store(nil)
	if s.o.Told != nil {
		s.o.Told(nil)
	}
}

// tell says once why the files are not used, if it is time. mu is held.
func (s *Source) tell(now bool) {
	if s.trouble == nil || !now {
		return
	}
	err := s.trouble
	s.refused.Store(&err)
	if !s.told && s.o.Told != nil {
		s.o.Told(err)
	}
	s.told = true
}

// read reads the files that are named.
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

// load makes what connections need.
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

// note remembers which certificate of a file ends first.
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

// mayFollow refuses a certificate that has ended while the one before has not: it would be a step back.
func (m *material) mayFollow(before *material) error {
	if m.certificate == nil || before.certificate == nil {
		return nil
	}
	now := time.Now()
	ends := m.certificate.Leaf.NotAfter
	if now.After(ends) && !now.After(before.certificate.Leaf.NotAfter) {
		return fmt.Errorf("cert: %w: the new certificate has ended at %s", ErrContent, ends.Format(time.RFC3339))
	}
	return nil
}
