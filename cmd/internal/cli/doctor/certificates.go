// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
)

const soon = 14 * 24 * time.Hour

type use struct {
	name  string // prefix of the settings
	files tlsfiles.Files
	// host is the host in the address that clients and other nodes use. If empty, it is not checked.
	host string
	// usages are the required key usages.
	usages []x509.ExtKeyUsage
	// clientCA means that files.CA only verifies the certificates of clients.
	clientCA bool
}

func uses(c *config.Config) []use {
	host := func(addresses ...string) string {
		for _, a := range addresses {
			if h, _, err := net.SplitHostPort(a); err == nil && h != "" && !net.ParseIP(h).IsUnspecified() {
				return h
			}
		}
		return ""
	}
	both := []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	all := []use{{name: "tls", files: c.TLS.Files(), host: host(c.Advertise, c.Listen), usages: both}}
	e := c.Coordinator.Etcd.TLS
	all = append(all, use{
		name:   "coordinator.etcd.tls",
		files:  tlsfiles.Files{CA: e.CA, Cert: e.Cert, Key: e.Key},
		usages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if c.Coordinator.Type == config.CoordinatorRaft {
		r := c.Coordinator.Raft
		all = append(all, use{
			name:   "coordinator.raft.tls",
			files:  tlsfiles.Files{CA: r.TLS.CA, Cert: r.TLS.Cert, Key: r.TLS.Key},
			host:   host(r.Advertise, r.Listen),
			usages: both,
		})
	}
	if !c.Metrics.TLS.Own {
		all = append(all, use{name: "metrics.tls", files: c.MetricsFiles(), clientCA: true})
	}
	if !c.Console.TLS.Own {
		all = append(all, use{name: "console.tls", files: c.ConsoleFiles(), clientCA: true})
	}
	return all
}

// checkCertificates checks the key, the permissions of the key file, the validity, the issuer and the names of each
// configured certificate. It reports only the first problem of a certificate.
func checkCertificates(_ context.Context, in *inspector) []Finding {
	var all []Finding
	for _, u := range uses(&in.cfg) {
		if u.files.Empty() {
			continue
		}
		for _, f := range append([]Finding{u.check(in.now)}, u.keyMode()...) {
			f.Subject = u.name
			all = append(all, f)
		}
	}
	if !in.cfg.TLS.On() {
		f := Finding{Subject: "tls", Verdict: OK, Measured: "none", Meaning: "the node listens on this machine only"}
		if open := in.cfg.Unencrypted(); len(open) > 0 {
			f = Finding{
				Subject: "tls", Verdict: Warning, Measured: "none, and insecure is set",
				Meaning: "other users of the network can read and change the traffic, including messages, tokens and replication",
				Do:      "create a CA and certificates with lockstep cert init; then set tls.cert, tls.key and tls.ca",
			}
		}
		all = append([]Finding{f}, all...)
	}
	return all
}

func (u *use) check(now time.Time) Finding {
	problem := func(measured, meaning, do string) Finding {
		return Finding{Verdict: Problem, Measured: measured, Meaning: meaning, Do: do}
	}
	var roots *x509.CertPool
	if u.files.CA != "" {
		raw, err := os.ReadFile(u.files.CA)
		if err != nil {
			return problem(err.Error(), "the CA certificates cannot be read", "correct "+u.name+".ca, or its permissions")
		}
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(raw) {
			return problem(u.files.CA+" contains no PEM certificate", "certificates cannot be verified", "correct "+u.name+".ca")
		}
	}
	if u.files.Cert == "" {
		return Finding{Verdict: OK, Measured: "CA certificates only, " + u.files.CA}
	}
	pair, err := tls.LoadX509KeyPair(u.files.Cert, u.files.Key)
	if err != nil {
		return problem(err.Error(), "certificate and key cannot be used", "correct "+u.name+".cert and "+u.name+
			".key: they must match; to show a certificate, use lockstep cert show")
	}
	leaf := pair.Leaf
	measured := fmt.Sprintf("%s of %s, until %s", u.files.Cert, leaf.Subject, leaf.NotAfter.Format(time.DateOnly))
	if now.Before(leaf.NotBefore) {
		return problem(measured, "it is not valid before "+leaf.NotBefore.Format(time.RFC3339), "check the clock, or wait")
	}
	if now.After(leaf.NotAfter) {
		return problem(measured, "it has expired, and is refused", "create a new one with lockstep cert issue")
	}
	if f := u.chain(pair, roots, now); f != nil && !u.clientCA {
		f.Measured = measured + f.Measured
		return *f
	}
	if u.host != "" {
		if err := leaf.VerifyHostname(u.host); err != nil {
			return problem(measured+", names: "+namesOf(leaf), fmt.Sprintf("clients and the other node connect to %s, "+
				"which the certificate does not contain: they refuse it", u.host),
				"issue one for that name (lockstep cert issue), or set advertise to a name in the certificate")
		}
	}
	if leaf.NotAfter.Sub(now) < soon {
		return Finding{
			Verdict: Warning, Measured: measured, Meaning: "it expires soon", Do: "create a new one; the node reloads it",
		}
	}
	return Finding{Verdict: OK, Measured: measured + ", names: " + namesOf(leaf)}
}

// keyMode returns a finding if other users can access the key file.
func (u *use) keyMode() []Finding {
	if u.files.Key == "" {
		return nil
	}
	st, err := os.Stat(u.files.Key)
	if err != nil || st.Mode().Perm()&0o026 == 0 {
		return nil
	}
	return one(Warning, fmt.Sprintf("%s, %v", u.files.Key, st.Mode().Perm()),
		"other users of this machine can read or change the key", "chmod 640 "+u.files.Key)
}

// chain checks the issuer and the key usages. It returns nil if both are valid, or if no CA is configured.
func (u *use) chain(pair tls.Certificate, roots *x509.CertPool, now time.Time) *Finding {
	if roots == nil {
		return nil
	}
	between := x509.NewCertPool()
	for _, raw := range pair.Certificate[1:] {
		if c, err := x509.ParseCertificate(raw); err == nil {
			between.AddCert(c)
		}
	}
	for _, usage := range u.usages {
		_, err := pair.Leaf.Verify(x509.VerifyOptions{
			Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
		})
		if err == nil {
			continue
		}
		f := &Finding{Verdict: Problem, Measured: ": " + err.Error()}
		if strings.Contains(err.Error(), "incompatible key usage") {
			f.Meaning = "a node is a server and a client of the other node: its certificate must be valid for both"
			f.Do = "create one with lockstep cert issue --peer"
		} else {
			f.Meaning = "it was not issued by the CA in " + u.files.CA + ": peers that verify it with this CA refuse it"
			f.Do = "use one issued by that CA, with intermediate certificates in the same file, or correct " + u.name + ".ca"
		}
		return f
	}
	return nil
}

func namesOf(c *x509.Certificate) string {
	names := append([]string(nil), c.DNSNames...)
	for _, ip := range c.IPAddresses {
		names = append(names, ip.String())
	}
	for _, uri := range c.URIs {
		names = append(names, uri.String())
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// secured loads TLS files. It returns nil if TLS is not configured.
func secured(files tlsfiles.Files) (*tlsfiles.Source, error) {
	if files.Empty() {
		return nil, nil //nolint:nilnil // no TLS is no error
	}
	return tlsfiles.Open(tlsfiles.Options{Files: files})
}
