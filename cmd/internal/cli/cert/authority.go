// SPDX-License-Identifier: Apache-2.0

package cert

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
)

const (
	// early is subtracted from the start of a certificate's validity, to tolerate clock skew.
	early     = 5 * time.Minute
	day       = 24 * time.Hour
	serialLen = 128 // bits
	typeCert  = "CERTIFICATE"
	typeKey   = "PRIVATE KEY"
)

type caFiles struct {
	cert *x509.Certificate
	key  crypto.Signer
}

type request struct {
	name string
	peer bool
	days int
	dns  []string
	ips  []net.IP
	uris []*url.URL
}

func (r *request) add(name string) error {
	if strings.Contains(name, "://") {
		u, err := url.Parse(name)
		if err != nil || u.Scheme == "" || u.Host == "" {
			return cli.Usage("%q is not a URI that a certificate can contain", name)
		}
		r.uris = append(r.uris, u)
		return nil
	}
	if ip := net.ParseIP(name); ip != nil {
		r.ips = append(r.ips, ip)
		return nil
	}
	if name == "" || len(name) > 253 || strings.ContainsAny(name, " /\\:,\"'") {
		return cli.Usage("%q is not a DNS name, IP address or URI", name)
	}
	r.dns = append(r.dns, name)
	return nil
}

func newCA(dir string, days int) (*caFiles, made, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, made{}, fmt.Errorf("create a key: %w", err)
	}
	template, err := template("Lockstep development CA", days)
	if err != nil {
		return nil, made{}, err
	}
	template.IsCA, template.BasicConstraintsValid, template.MaxPathLenZero = true, true, true
	template.KeyUsage = x509.KeyUsageCertSign | x509.KeyUsageCRLSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, made{}, fmt.Errorf("create the CA: %w", err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, made{}, fmt.Errorf("create the CA: %w", err)
	}
	m, err := write(dir, caName, cert, key)
	m.For = "authority"
	return &caFiles{cert: cert, key: key}, m, err
}

func openCA(dir string) (*caFiles, error) {
	pair, err := tls.LoadX509KeyPair(certFile(dir, caName), keyFile(dir, caName))
	if errors.Is(err, os.ErrNotExist) {
		return nil, cli.WithHint(err, "`lockstep cert init` to create a CA, or `--dir` to set its directory")
	}
	if err != nil {
		return nil, fmt.Errorf("read the CA in %s: %w", dir, err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%s: not a CA certificate", certFile(dir, caName))
	}
	if now := time.Now(); now.After(pair.Leaf.NotAfter) {
		return nil, cli.WithHint(fmt.Errorf("%s: the CA expired at %s", certFile(dir, caName),
			pair.Leaf.NotAfter.Format(time.RFC3339)), "`lockstep cert init` in another directory to create a new CA")
	}
	return &caFiles{cert: pair.Leaf, key: key}, nil
}

func (a *caFiles) issue(dir string, r *request) (made, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return made{}, fmt.Errorf("create a key: %w", err)
	}
	t, err := template(r.name, r.days)
	if err != nil {
		return made{}, err
	}
	if t.NotAfter.After(a.cert.NotAfter) {
		t.NotAfter = a.cert.NotAfter
	}
	t.DNSNames, t.IPAddresses, t.URIs = r.dns, r.ips, r.uris
	t.KeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if r.peer {
		t.ExtKeyUsage = append(t.ExtKeyUsage, x509.ExtKeyUsageServerAuth)
	}
	der, err := x509.CreateCertificate(rand.Reader, t, a.cert, &key.PublicKey, a.key)
	if err != nil {
		return made{}, fmt.Errorf("create the certificate %s: %w", r.name, err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		return made{}, fmt.Errorf("create the certificate %s: %w", r.name, err)
	}
	m, err := write(dir, r.name, cert, key)
	if m.For = "client"; r.peer {
		m.For = "peer"
	}
	return m, err
}

func template(name string, days int) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), serialLen-1))
	if err != nil {
		return nil, fmt.Errorf("create a serial number: %w", err)
	}
	now := time.Now().UTC().Truncate(time.Second)
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name}, NotBefore: now.Add(-early),
		NotAfter: now.Add(time.Duration(days) * day),
	}, nil
}

// mayWrite creates the directory if it is missing. It returns errExists if a certificate or key file with one of the
// names exists.
func mayWrite(dir string, names []string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("create the directory: %w", err)
	}
	for _, name := range names {
		for _, file := range []string{certFile(dir, name), keyFile(dir, name)} {
			if _, err := os.Lstat(file); err == nil {
				return exists(file)
			}
		}
	}
	return nil
}

func write(dir, name string, cert *x509.Certificate, key *ecdsa.PrivateKey) (made, error) {
	raw, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return made{}, fmt.Errorf("write the key: %w", err)
	}
	m := made{Name: name, Cert: certFile(dir, name), Key: keyFile(dir, name), Names: namesIn(cert), Ends: cert.NotAfter}
	return m, errors.Join(writeNew(m.Key, typeKey, raw, 0o600), writeNew(m.Cert, typeCert, cert.Raw, 0o644))
}

func writeNew(file, kind string, raw []byte, mode os.FileMode) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if errors.Is(err, os.ErrExist) {
		return exists(file)
	}
	if err != nil {
		return fmt.Errorf("write: %w", err)
	}
	var b bytes.Buffer
	err = pem.Encode(&b, &pem.Block{Type: kind, Bytes: raw})
	if err == nil {
		_, err = f.Write(b.Bytes())
	}
	if err := errors.Join(err, f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return nil
}

func namesIn(cert *x509.Certificate) []string {
	names := make([]string, 0, len(cert.DNSNames)+len(cert.IPAddresses)+len(cert.URIs))
	for _, u := range cert.URIs {
		names = append(names, u.String())
	}
	names = append(names, cert.DNSNames...)
	for _, ip := range cert.IPAddresses {
		names = append(names, ip.String())
	}
	return names
}
