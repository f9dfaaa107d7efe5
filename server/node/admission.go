// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"maps"
	"net"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/server"
	"github.com/lockstep-mq/lockstep/server/auth/admission"
)

const (
	peerResolveInterval = 5 * time.Second
	lookupLimit         = 2 * time.Second
	// reservedFiles is the number of file descriptors reserved for the store, the log, etcd and the other node.
	reservedFiles = 384
	// Requests that no handler has processed may use memory.budget divided by unprocessedFraction.
	unprocessedFraction = 8
)

func (n *node) admit(l net.Listener) *admission.Listener {
	most := n.cfg.Limits.Connections
	if files, ok := openFilesLimit(); ok && files < uint64(most)+reservedFiles {
		most = max(16, int(files)-reservedFiles)
		n.log.Warn("open-files limit allows fewer connections than limits.connections: raise it "+
			"(ulimit -n, LimitNOFILE of the unit)", zap.Uint64("open_files", files), zap.Int("connections", most))
	}
	return admission.New(l, admission.Options{
		Limits: func() admission.Limits {
			l := n.settings.Live().Limits
			return admission.Limits{
				Connections: min(l.Connections, most), PerAddress: l.ConnectionsPerAddress,
				Handshakes: l.Handshakes, HandshakeTimeout: l.HandshakeTimeout.Std(),
			}
		},
		IsPeer: func(host string) bool {
			hosts := n.peerHosts.Load()
			return hosts != nil && (*hosts)[host]
		},
		Plain:            n.cfg.TLS.Cert == "",
		UnprocessedBytes: n.cfg.Memory.Budget.Bytes() / unprocessedFraction,
		RequestBytes:     n.cfg.Limits.TransactionBytes.Bytes() + server.MessageSlackBytes,
		Logger:           n.log.Named("connections"),
	})
}

// watchPeerHosts updates peerHosts, the source addresses of the other node, until ctx ends.
func (n *node) watchPeerHosts(ctx context.Context) {
	ticker := time.NewTicker(peerResolveInterval)
	defer ticker.Stop()
	for {
		changed := n.runner.Changed()
		hosts := n.resolvePeer(ctx)
		n.peerHosts.Store(&hosts)
		select {
		case <-changed: // the other node may have a new address
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// resolvePeer returns the source addresses of the other node. It resolves the host names in the cluster record
// and in the announcements.
func (n *node) resolvePeer(ctx context.Context) map[string]bool {
	ctx, cancel := context.WithTimeout(ctx, lookupLimit)
	defer cancel()
	st := n.runner.Status()
	hosts := map[string]bool{}
	add := func(id uuid.UUID, address string) {
		host, _, err := net.SplitHostPort(address)
		if err != nil || id == st.Self.ID {
			return
		}
		hosts[host] = true
		if net.ParseIP(host) != nil || n.environment.Dial != nil {
			return
		}
		found, err := net.DefaultResolver.LookupHost(ctx, host)
		if err != nil { // keep the previous result, because it may still be valid
			if last := n.peerHosts.Load(); last != nil {
				maps.Copy(hosts, *last)
			}
		}
		for _, h := range found {
			hosts[h] = true
		}
	}
	if st.Record != nil {
		for _, other := range st.Record.Nodes {
			add(other.ID, other.Address)
		}
	}
	for _, l := range st.Live {
		add(l.Node.ID, l.Node.Address)
	}
	return hosts
}
