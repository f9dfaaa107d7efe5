// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"time"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc/metadata"

	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
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
	maxResetBytes     = 4 << 10

	// lastResetField begins the line that the node adds to a marker: the ID of the last reset before its start.
	lastResetField = "last reset: "
)

// accessReset is a request of `lockstep access reset`.
type accessReset struct {
	marker string
	last   string // ID of the last reset of the pair when the node was first started with the marker; empty without one
}

// requestedReset returns the request of `lockstep access reset`, or nil. It adds the last reset of the pair to the
// marker, so that the request has no effect after a later reset, even if this node is restarted.
func (n *node) requestedReset() *accessReset {
	r := &accessReset{marker: datadir.AccessReset(n.cfg.Data.Dir), last: n.lastReset()}
	content, err := vfs.ReadFile(n.fs, r.marker, maxResetBytes)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // the marker is created only while the node is stopped
	}
	if _, last, ok := strings.Cut(string(content), lastResetField); ok {
		r.last = strings.TrimSpace(last)
	} else if err == nil {
		err = vfs.WriteFileAtomic(n.fs, r.marker, append(content, lastResetField+r.last+"\n"...))
	}
	if err != nil {
		n.log.Error("last reset not added to the request for an access reset: after a restart, this node would delete "+
			"the rules even if the other node has already deleted them", zap.String("marker", r.marker), zap.Error(err))
	}
	return r
}

// lastReset returns the ID of the last reset that this node has applied, or an empty string.
func (n *node) lastReset() string {
	_, entries := query.Access(n.store)
	for _, e := range entries {
		if e.Kind == access.KindReset {
			return string(e.Value)
		}
	}
	return ""
}

// watchReset deletes all access rules and the replicated access mode when this node is active, if `lockstep access
// reset` has requested that. It retries until it succeeds, the marker is removed, the other node has deleted the rules,
// or ctx ends. The rules are deleted only once, even if the marker cannot be removed.
func (n *node) watchReset(ctx context.Context, r *accessReset) {
	if r == nil {
		return
	}
	n.log.Warn("all access rules will be deleted when this node is active: requested by `lockstep access reset`",
		zap.String("marker", r.marker))
	ticker := time.NewTicker(resetPollInterval)
	defer ticker.Stop()
	for done := false; ; {
		var err error
		if !done {
			done, err = n.resetIfRequested(ctx, r)
		}
		if errors.Is(err, fs.ErrNotExist) {
			n.log.Warn("access reset canceled: the marker was removed", zap.String("marker", r.marker))
			return
		}
		if done {
			if err = n.removeReset(r.marker); err == nil {
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

// resetIfRequested deletes the rules if this node is active. done is true if the request is complete: this node, or the
// other node since the request, has deleted the rules. It returns fs.ErrNotExist if the marker was removed.
func (n *node) resetIfRequested(ctx context.Context, r *accessReset) (done bool, err error) {
	if _, err := n.fs.Stat(r.marker); err != nil {
		return false, err
	}
	if last := n.lastReset(); last != r.last {
		n.log.Warn("access reset not required: all access rules were deleted by another reset since this node was started",
			zap.String("reset", last), zap.String("marker", r.marker))
		return true, nil
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

// resetAccess deletes the rules and stores the ID of the reset, so that a request on the other node has no effect.
func (n *node) resetAccess(ctx context.Context, session *session.Session) error {
	ctx, cancel := context.WithTimeout(ctx, resetTimeout)
	defer cancel()
	version, entries := query.Access(n.store)
	id := uuid.NewString()
	changes := []txn.AccessChange{{Kind: access.KindReset, Name: []byte(access.ResetName), Value: []byte(id)}}
	for _, e := range entries {
		if e.Kind == access.KindRule || e.Kind == access.KindMode {
			changes = append(changes, txn.AccessChange{Kind: e.Kind, Name: []byte(e.Name), Remove: true})
		}
	}
	r, err := txn.Propose(ctx, session.Primary, time.Now(), func(b *txn.Builder) { b.ChangeAccess(version, 0, changes) })
	if err != nil {
		return err
	}
	n.loadAccess()
	n.log.Error("all access rules deleted, requested by `lockstep access reset`", zap.Int("entries", len(changes)-1),
		zap.String("reset", id), zap.Uint64("lsn", r.LSN), zap.Bool("unrestricted", n.rules.Open()))
	return nil
}
