// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"time"

	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// peerSecretKey is the metadata key of the pair's shared secret, which is replicated with the access rules. A caller
// that sends this secret is treated as the other node, unless certificates or peer tokens authenticate the nodes.
const peerSecretKey = "lockstep-peer-secret-bin" //nolint:gosec // a metadata key, not a secret

const peerPrincipal = "peer"

func (n *node) peerSecretIdentity(ctx context.Context) (*access.Identity, error) {
	if n.rules.PeerSecret() == nil {
		return nil, nil //nolint:nilnil // the pair has no secret yet
	}
	shown := metadata.ValueFromIncomingContext(ctx, peerSecretKey)
	if len(shown) != 1 || !n.rules.IsPeerSecret([]byte(shown[0])) {
		return nil, nil //nolint:nilnil // another caller, or the other node before it has the rules
	}
	return &access.Identity{Principal: peerPrincipal, Method: access.MethodPeerToken, Peer: true}, nil
}

type peerSecret struct{ rules *access.Rules }

func (p peerSecret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	secret := p.rules.PeerSecret()
	if len(secret) == 0 {
		return nil, nil //nolint:nilnil // the pair has no secret yet
	}
	return map[string]string{peerSecretKey: string(secret)}, nil
}

// RequireTransportSecurity returns false.
func (peerSecret) RequireTransportSecurity() bool { return false }

func (n *node) loadAccess() {
	if err := n.rules.LoadFrom(func() (uint64, []queue.AccessEntry) { return query.Access(n.store) }); err != nil {
		n.log.Error("some access rules cannot be decoded and have no effect; upgrade this node", zap.Error(err))
	}
	n.queues.RulesChanged()
}

// watchAccess reloads the rules and writes a checkpoint after each change, until ctx ends.
func (n *node) watchAccess(ctx context.Context) {
	changed, cancel := query.WatchAccess(n.store)
	defer cancel()
	for {
		n.loadAccess()
		select {
		case <-changed:
		case <-ctx.Done():
			return
		}
		n.loadAccess()
		t := n.rules.Table()
		n.log.Info("access rules changed", zap.Uint64("version", t.Version()), zap.Int("rules", len(t.Rules())),
			zap.Int("roles", len(t.Roles())), zap.Int("tokens", len(t.Tokens())), zap.Int("quotas", len(t.Quotas())))
		n.monitor.wake()
		if _, err := n.store.Checkpoint(ctx); err != nil && ctx.Err() == nil {
			n.log.Warn("checkpoint after a change of access rules failed; the next checkpoint includes them", zap.Error(err))
		}
	}
}

const (
	resetPollInterval = time.Second
	resetTimeout      = 10 * time.Second
)

// watchReset deletes all access rules and the replicated access mode when this node is active, if `lockstep access
// reset` has requested that. It retries until it succeeds, the marker is removed, or ctx ends. The rules are deleted
// only once, even if the marker cannot be removed.
func (n *node) watchReset(ctx context.Context) {
	marker := datadir.AccessReset(n.cfg.Data.Dir)
	if _, err := n.fs.Stat(marker); errors.Is(err, fs.ErrNotExist) {
		return // the marker is created only while the node is stopped
	}
	n.log.Warn("all access rules will be deleted when this node is active: requested by `lockstep access reset`",
		zap.String("marker", marker))
	ticker := time.NewTicker(resetPollInterval)
	defer ticker.Stop()
	for deleted := false; ; {
		var err error
		if !deleted {
			deleted, err = n.resetIfRequested(ctx, marker)
		}
		if errors.Is(err, fs.ErrNotExist) {
			n.log.Warn("access reset canceled: the marker was removed", zap.String("marker", marker))
			return
		}
		if deleted {
			if err = n.removeReset(marker); err == nil {
				return
			}
		}
		if err != nil {
			n.log.Error("access reset not completed", zap.Error(err))
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// resetIfRequested deletes the rules if this node is active. It returns fs.ErrNotExist if the marker was removed.
func (n *node) resetIfRequested(ctx context.Context, marker string) (deleted bool, err error) {
	if _, err := n.fs.Stat(marker); err != nil {
		return false, err
	}
	session := n.serving.Get()
	if session == nil {
		return false, nil
	}
	err = n.resetAccess(ctx, session)
	return err == nil, err
}

// removeReset removes the marker durably: if it returned after a power failure, the rules would be deleted again.
func (n *node) removeReset(marker string) error {
	if err := n.fs.Remove(marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return n.fs.SyncDir(n.cfg.Data.Dir)
}

func (n *node) resetAccess(ctx context.Context, session *session.Session) error {
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	version, entries := query.Access(n.store)
	var changes []txn.AccessChange
	for _, e := range entries {
		if e.Kind == access.KindRule || e.Kind == access.KindMode {
			changes = append(changes, txn.AccessChange{Kind: e.Kind, Name: []byte(e.Name), Remove: true})
		}
	}
	if len(changes) == 0 {
		n.log.Warn("no access rules to delete")
		return nil
	}
	r, err := txn.Propose(ctx, session.Primary, time.Now(), func(b *txn.Builder) { b.ChangeAccess(version, 0, changes) })
	if err != nil {
		return err
	}
	n.loadAccess()
	n.log.Error("all access rules deleted, requested by `lockstep access reset`", zap.Int("entries", len(changes)),
		zap.Uint64("lsn", r.LSN), zap.Bool("unrestricted", n.rules.Open()))
	return nil
}
