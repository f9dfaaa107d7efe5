// SPDX-License-Identifier: Apache-2.0

package cert

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/lockstep-mq/lockstep/cmd/internal/cli"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
)

var errNone = errors.New("no certificate found")

type shown struct {
	// Source is the file or address. Number is the index of the certificate in the source, from 1.
	Source  string `json:"source"`
	Number  int    `json:"number"`
	Subject string `json:"subject"`
	// Names are the subject alternative names.
	Names  []string  `json:"names"`
	Issuer string    `json:"issuer"`
	Begins time.Time `json:"begins"`
	Ends   time.Time `json:"ends"`
	Valid  bool      `json:"valid"`
	CA     bool      `json:"authority"`
	// Usage contains "server" and "client" if the certificate is valid for servers and for clients.
	Usage  []string `json:"usage"`
	Serial string   `json:"serial"`
}

func showCommand(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use: "show FILE|HOST:PORT...", Short: "Show certificates in files or of a server",
		Long: `Show subject, names, issuer, validity and usage of the certificates in PEM files, or of those that a TLS
server presents. The certificates are not verified: the exit code is 0 even if one has expired.`,
		Example: `  lockstep cert show certs/node-a.pem
  lockstep cert show node-a.example.net:7420
  lockstep cert show certs/*.pem --output json`,
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, cancel := context.WithTimeout(cmd.Context(), env.Timeout)
			defer cancel()
			var errs []error
			for _, source := range args {
				errs = append(errs, show(ctx, env, source, time.Now()))
			}
			return errors.Join(errs...)
		},
	}
}

func show(ctx context.Context, env *cli.Env, source string, now time.Time) error {
	list, err := read(ctx, source)
	if err != nil {
		return err
	}
	for i, c := range list {
		if i > 0 {
			if err := env.Print.Sentence(""); err != nil {
				return err
			}
		}
		s := describe(c, source, i+1, now)
		if err := env.Print.Object(s); err != nil {
			return err
		}
		if err := env.Print.Pairs(s.pairs(now)); err != nil {
			return err
		}
	}
	return nil
}

// read reads the certificates in a file or, if the file does not exist, of the server at that address.
func read(ctx context.Context, source string) ([]*x509.Certificate, error) {
	raw, err := os.ReadFile(source)
	if err == nil {
		return decode(source, raw)
	}
	if _, _, notAddress := net.SplitHostPort(source); notAddress != nil || !errors.Is(err, os.ErrNotExist) ||
		strings.ContainsRune(source, os.PathSeparator) {
		return nil, fmt.Errorf("read the certificates: %w", err)
	}
	return ask(ctx, source)
}

// decode parses PEM. It ignores keys and other blocks.
func decode(source string, raw []byte) (list []*x509.Certificate, err error) {
	for block, rest := pem.Decode(raw); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != typeCert {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", source, len(list)+1, err)
		}
		list = append(list, c)
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s: %w in PEM format", source, errNone)
	}
	return list, nil
}

func ask(ctx context.Context, address string) (list []*x509.Certificate, err error) {
	d := tls.Dialer{Config: &tls.Config{
		//nolint:gosec // G402: the certificate is only shown, and no data is sent
		InsecureSkipVerify: true, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		VerifyConnection: func(s tls.ConnectionState) error {
			list = s.PeerCertificates
			return nil
		},
	}}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err == nil {
		_ = conn.Close()
	}
	if len(list) > 0 {
		return list, nil // the server may still require a client certificate
	}
	if err != nil {
		return nil, cli.WithHint(fmt.Errorf("connect to %s: %w", address, err),
			"another address if the server does not use TLS")
	}
	return nil, fmt.Errorf("%s: %w", address, errNone)
}

func describe(c *x509.Certificate, source string, number int, now time.Time) shown {
	s := shown{
		Source: source, Number: number, Subject: c.Subject.String(), Names: namesIn(c), Issuer: c.Issuer.String(),
		Begins: c.NotBefore.UTC(), Ends: c.NotAfter.UTC(), CA: c.IsCA, Usage: []string{},
		Serial: c.SerialNumber.Text(16),
		Valid:  !now.Before(c.NotBefore) && !now.After(c.NotAfter),
	}
	for _, u := range c.ExtKeyUsage {
		switch u {
		case x509.ExtKeyUsageServerAuth:
			s.Usage = append(s.Usage, "server")
		case x509.ExtKeyUsageClientAuth:
			s.Usage = append(s.Usage, "client")
		case x509.ExtKeyUsageAny:
			s.Usage = append(s.Usage, "server", "client")
		default:
		}
	}
	return s
}

func (s *shown) pairs(now time.Time) [][2]string {
	use := strings.Join(s.Usage, ", ")
	if s.CA {
		use = "CA"
	}
	left := "expired"
	switch {
	case now.Before(s.Begins):
		left = "not valid yet"
	case s.Valid:
		left = output.Plural(int(s.Ends.Sub(now)/day), "day") + " left"
	}
	return [][2]string{
		{"Certificate", fmt.Sprintf("%s, %d", s.Source, s.Number)},
		{"Subject", s.Subject},
		{"Names", strings.Join(s.Names, ", ")},
		{"Issuer", s.Issuer},
		{"Valid", fmt.Sprintf("%s to %s (%s)", s.Begins.Format(time.RFC3339), s.Ends.Format(time.RFC3339), left)},
		{"Usage", use},
	}
}
