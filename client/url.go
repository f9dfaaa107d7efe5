// SPDX-License-Identifier: Apache-2.0

package client

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"
)

const (
	scheme      = "lockstep://"
	defaultPort = "7420"
)

// ParseURL returns the options of a URL:
//
//	lockstep://[TOKEN@]HOST[:PORT][,HOST[:PORT]...][?PARAMETER=VALUE[&...]]
//
// HOST and PORT are [Options].Addresses; the default port is 7420. TOKEN is [Options].Token. Characters with a meaning
// in URLs are percent-encoded. The parameters are:
//
//	tls=true                    encrypt connections; implied by the next three parameters
//	tls-ca=FILE                 CA certificates; default: the system's CAs
//	tls-cert=FILE, tls-key=FILE client certificate
//	token-file=FILE             Options.TokenFile
//	allow-plaintext-token=true  Options.AllowPlaintextToken
//	fail-fast=true              Options.FailFast
//	fixed-addresses=true        Options.FixedAddresses
//	probe-interval=DURATION     Options.ProbeInterval, such as 500ms
//	retry-min=DURATION          Options.RetryMin
//	retry-max=DURATION          Options.RetryMax
//	max-message-bytes=NUMBER    Options.MaxMessageBytes
//
// Other options can be set in the result, for [OpenWith]. The error wraps [ErrInvalid]; it does not contain the token.
func ParseURL(rawURL string) (Options, error) {
	var o Options
	rest, found := strings.CutPrefix(rawURL, scheme)
	if !found {
		return o, fmt.Errorf("%w: the URL does not begin with %s", ErrInvalid, scheme)
	}
	rest, query, _ := strings.Cut(rest, "?")
	if i := strings.LastIndexByte(rest, '@'); i >= 0 {
		token, err := url.PathUnescape(rest[:i])
		if err != nil {
			return o, fmt.Errorf("%w: the token in the URL is not percent-encoded correctly", ErrInvalid)
		}
		o.Token, rest = token, rest[i+1:]
	}
	for host := range strings.SplitSeq(strings.TrimSuffix(rest, "/"), ",") {
		if _, _, err := net.SplitHostPort(host); err != nil {
			host = net.JoinHostPort(strings.Trim(host, "[]"), defaultPort)
		}
		o.Addresses = append(o.Addresses, host)
	}
	values, err := url.ParseQuery(query)
	if err != nil {
		return o, fmt.Errorf("%w: parameters of the URL: %w", ErrInvalid, err)
	}
	err = o.setParameters(values)
	return o, err
}

func (o *Options) setParameters(values url.Values) error {
	encrypt := values.Has("tls-ca") || values.Has("tls-cert") || values.Has("tls-key")
	parameters := map[string]func(string) error{
		"tls":                   flag(&encrypt),
		"tls-ca":                text(&o.TLSFiles.CA),
		"tls-cert":              text(&o.TLSFiles.Cert),
		"tls-key":               text(&o.TLSFiles.Key),
		"token-file":            text(&o.TokenFile),
		"allow-plaintext-token": flag(&o.AllowPlaintextToken),
		"fail-fast":             flag(&o.FailFast),
		"fixed-addresses":       flag(&o.FixedAddresses),
		"probe-interval":        duration(&o.ProbeInterval),
		"retry-min":             duration(&o.RetryMin),
		"retry-max":             duration(&o.RetryMax),
		"max-message-bytes":     number(&o.MaxMessageBytes),
	}
	for name, all := range values {
		set, known := parameters[name]
		if !known {
			return fmt.Errorf("%w: unknown parameter %q of the URL", ErrInvalid, name)
		}
		if len(all) > 1 {
			return fmt.Errorf("%w: parameter %s of the URL is set twice", ErrInvalid, name)
		}
		if err := set(all[0]); err != nil {
			return fmt.Errorf("%w: parameter %s of the URL: %w", ErrInvalid, name, err)
		}
	}
	files := o.TLSFiles.CA != "" || o.TLSFiles.Cert != "" || o.TLSFiles.Key != ""
	switch {
	case files && !encrypt:
		return fmt.Errorf("%w: the URL has tls=false and TLS files", ErrInvalid)
	case encrypt && !files:
		o.TLS = &tls.Config{MinVersion: tls.VersionTLS13}
	}
	return nil
}

func text(to *string) func(string) error {
	return func(s string) error {
		*to = s
		return nil
	}
}

func flag(to *bool) func(string) error {
	return func(s string) (err error) {
		if *to, err = strconv.ParseBool(s); err != nil {
			return errors.New("true or false expected")
		}
		return nil
	}
}

func duration(to *time.Duration) func(string) error {
	return func(s string) (err error) {
		if *to, err = time.ParseDuration(s); err != nil {
			return errors.New("duration expected, such as 500ms")
		}
		return nil
	}
}

func number(to *int) func(string) error {
	return func(s string) (err error) {
		if *to, err = strconv.Atoi(s); err != nil {
			return errors.New("number expected")
		}
		return nil
	}
}
