// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/auth/secretfile"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
)

// secrets contains the certificates, keys and tokens of this node, and the CAs and tokens that it accepts.
// Changed files are read again: they are checked once per second, and on each new connection.
type secrets struct {
	// Each of the following is nil if it is not configured.
	own, etcd, raft, metrics, console, site *tlsfiles.Source
	peerToken, metricsToken, siteToken      *secretfile.File
	fleetToken                              *secretfile.File
	raftNames                               []string
	all                                     []watchedFiles

	mu    sync.Mutex // guards the fields below
	shown map[string]*voterCertificate
}

// voterCertificate is the certificate that the voter at an address presented last.
type voterCertificate struct {
	cert    *x509.Certificate
	witness bool // the voter is the witness; a node reports its own certificate
}

type watchedFiles struct {
	of     string // "node", "etcd", "raft", "metrics", "console", "site", or the name of a setting
	source interface {
		Check()
		Reload() error
		Refused() error
	}
}

func openSecrets(cfg *config.Config, log *zap.Logger) (*secrets, error) {
	s := &secrets{raftNames: cfg.Coordinator.Raft.TLS.Names}
	etcd, voters := cfg.Coordinator.Etcd.TLS, cfg.Coordinator.Raft.TLS
	for _, f := range []struct {
		to       **tlsfiles.Source
		of, key  string
		files    tlsfiles.Files
		version  uint16
		isNeeded bool
	}{
		{&s.own, "node", "tls", cfg.TLS.Files(), cfg.TLS.Version(), cfg.TLS.On()},
		{
			&s.etcd, "etcd", "coordinator.etcd.tls",
			tlsfiles.Files{CA: etcd.CA, Cert: etcd.Cert, Key: etcd.Key},
			cfg.TLS.Version(), cfg.UsesEtcd(),
		},
		{
			&s.raft, "raft", "coordinator.raft.tls",
			tlsfiles.Files{CA: voters.CA, Cert: voters.Cert, Key: voters.Key},
			0,
			cfg.Coordinator.Type == config.CoordinatorRaft,
		},
		{
			&s.metrics, "metrics", "metrics.tls", cfg.MetricsFiles(), cfg.TLS.Version(),
			cfg.Metrics.Listen != "" && !cfg.Metrics.TLS.Own,
		},
		{
			&s.console, "console", "console.tls", cfg.ConsoleFiles(), cfg.TLS.Version(),
			cfg.Console.Listen != "" && !cfg.Console.TLS.Own,
		},
		{
			&s.site, "site", "site.ca",
			tlsfiles.Files{CA: cmp.Or(cfg.Site.CA, cfg.TLS.CA), Cert: cfg.TLS.Cert, Key: cfg.TLS.Key},
			cfg.TLS.Version(), len(cfg.Site.Remote) > 0 && (cfg.Site.CA != "" || cfg.TLS.On()),
		},
	} {
		if !f.isNeeded || f.files.Empty() {
			continue
		}
		source, err := tlsfiles.Open(tlsfiles.Options{Files: f.files, MinVersion: f.version, OnChange: logReload(log, f.key)})
		if err != nil {
			return nil, fmt.Errorf("%w: %s: %w", config.ErrInvalid, f.key, err)
		}
		*f.to = source
		s.all = append(s.all, watchedFiles{of: f.of, source: source})
	}
	if cfg.Metrics.TLS.Own {
		s.metrics = s.own
	}
	if cfg.Console.TLS.Own {
		s.console = s.own
	}
	if err := s.openTokens(cfg, log); err != nil {
		return nil, err
	}
	return s, nil
}

func (s *secrets) openTokens(cfg *config.Config, log *zap.Logger) error {
	for _, f := range []struct {
		to        **secretfile.File
		key, path string
	}{
		{&s.peerToken, "peer-token-file", cfg.PeerToken},
		{&s.metricsToken, "metrics.token-file", cfg.Metrics.Token},
		{&s.siteToken, "site.token-file", cfg.Site.TokenFile},
		{&s.fleetToken, "fleet.token-file", cfg.Fleet.TokenFile},
	} {
		if f.path == "" {
			continue
		}
		file, err := secretfile.Open(f.path, logReload(log, f.key))
		if err != nil {
			return fmt.Errorf("%w: %s: %w", config.ErrInvalid, f.key, err)
		}
		*f.to = file
		s.all = append(s.all, watchedFiles{of: f.key, source: file})
	}
	return nil
}

func logReload(log *zap.Logger, key string) func(error) {
	return func(err error) {
		if err == nil {
			log.Info("changed files loaded", zap.String("setting", key))
			return
		}
		log.Error("changed files are invalid, previous content stays in use",
			zap.String("setting", key), zap.Error(err))
	}
}

func (s *secrets) check() {
	for _, f := range s.all {
		f.source.Check()
	}
}

func (s *secrets) reload() error {
	var errs []error
	for _, f := range s.all {
		errs = append(errs, f.source.Reload())
	}
	return errors.Join(errs...)
}

// run reloads all files on each request, until ctx is done.
func (s *secrets) run(ctx context.Context, requests <-chan struct{}, log *zap.Logger) {
	for {
		select {
		case <-requests:
			if s.reload() == nil { // reload has logged the errors
				log.Info("certificates, keys and secrets reloaded")
			}
		case <-ctx.Done():
			return
		}
	}
}

func (s *secrets) certificates() []conditions.Certificate {
	if s == nil {
		return nil
	}
	var list []conditions.Certificate
	for _, f := range s.all {
		source, ok := f.source.(*tlsfiles.Source)
		if !ok {
			continue
		}
		for _, c := range source.Certificates() {
			list = append(list, conditions.Certificate{
				Use: f.of, File: c.File, CA: c.Authority, Subject: c.Subject, Ends: c.Ends,
			})
		}
	}
	return append(list, s.witnessCertificates()...)
}

// voters returns the TLS configuration of connections between voters. It returns nil without TLS.
func (s *secrets) voters() *raft.TLS {
	if s == nil || s.raft == nil {
		return nil
	}
	files := s.raft.Files()
	return &raft.TLS{
		Receive: s.raft.Receive, Dial: s.raft.Dial, Names: s.raftNames, Shown: s.recordVoterCertificate,
		CA: files.CA, Cert: files.Cert, Key: files.Key,
	}
}

func (s *secrets) recordVoterCertificate(address string, cert *x509.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown == nil {
		s.shown = make(map[string]*voterCertificate)
	}
	if s.shown[address] == nil {
		s.shown[address] = &voterCertificate{}
	}
	s.shown[address].cert = cert
}

func (s *secrets) members(witness map[string]bool) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for address, voter := range s.shown {
		if is, known := witness[address]; known {
			voter.witness = is
		} else {
			delete(s.shown, address)
		}
	}
}

func (s *secrets) witnessCertificates() (list []conditions.Certificate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, address := range slices.Sorted(maps.Keys(s.shown)) {
		if voter := s.shown[address]; voter.witness {
			list = append(list, conditions.Certificate{
				Use: "witness", File: address, Subject: voter.cert.Subject.String(), Ends: voter.cert.NotAfter,
			})
		}
	}
	return list
}

func (s *secrets) refused() (list []conditions.Credential) {
	for _, kept := range s.all {
		if err := kept.source.Refused(); err != nil {
			list = append(list, conditions.Credential{Use: kept.of, Err: err})
		}
	}
	return list
}
