// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"go.uber.org/zap"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/etcd"
	"github.com/lockstep-mq/lockstep/failover/coordinator/memory"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/objectstore"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/events"
	"github.com/lockstep-mq/lockstep/store/page"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/store/wal"
)

const frameSlackBytes = 1 << 20

// listen opens a TCP listener. It adds advice to common errors.
func listen(ctx context.Context, address string) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	switch {
	case err == nil:
		return l, nil
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("%w: %s is in use by another process; stop it, or configure another port: %w",
			ErrListen, address, err)
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		return nil, fmt.Errorf("%w: this machine has no address %s; configure a local address: %w", ErrListen,
			address, err)
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("%w: no permission for %s; ports below 1024 require a privilege, configure a higher "+
			"port: %w", ErrListen, address, err)
	default:
		return nil, fmt.Errorf("%w on %s: %w", ErrListen, address, err)
	}
}

func advertised(cfg config.Config, bound net.Addr) (string, error) {
	if cfg.Advertise != "" {
		return cfg.Advertise, nil
	}
	_, port, err := net.SplitHostPort(bound.String())
	if err != nil {
		return "", fmt.Errorf("%w: bound address %s is not host:port: %w", ErrListen, bound, err)
	}
	host, _, err := net.SplitHostPort(cfg.Listen)
	if err != nil {
		return "", fmt.Errorf("%w: listen %s is not host:port: %w", ErrListen, cfg.Listen, err)
	}
	if ip := net.ParseIP(host); host == "" || (ip != nil && ip.IsUnspecified()) {
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("%w: listen has no host and the host name is not available; set advertise: %w",
				ErrListen, err)
		}
	}
	return net.JoinHostPort(host, port), nil
}

func openStore(
	cfg config.Config, fs vfs.FS, bootID string, onEvent func(events.Event),
) (*store.Store, error) {
	mode, err := wal.ParseSyncMode(cfg.Sync)
	if err != nil {
		return nil, fmt.Errorf("%w: sync: %w", config.ErrInvalid, err)
	}
	cache, err := store.ParsePageCache(cfg.Memory.PageCache)
	if err != nil {
		return nil, fmt.Errorf("%w: memory.page-cache: %w", config.ErrInvalid, err)
	}
	s, err := store.Open(store.Options{
		FS: fs, Dir: cfg.Data.Dir, PageSize: int(cfg.PageSize), Sync: mode, SyncInterval: cfg.SyncEvery.Std(),
		MemoryBudget: StoreMemory(cfg.Memory.Budget.Bytes()), PageCache: cache,
		CheckpointBytes:    cfg.Checkpoint.Bytes.Bytes(),
		CheckpointInterval: cfg.Checkpoint.Interval.Std(), LogKeepBytes: logKeepBytes(cfg),
		SegmentBytes: cfg.WAL.SegmentBytes.Bytes(), MaxFrameBytes: txn.MaxTransactionBytes + frameSlackBytes,
		ReplaceDamaged:    cfg.Coordinator.Type != config.CoordinatorNone,
		ReplaceUnknown:    cfg.Coordinator.Type != config.CoordinatorNone && !markedStandalone(fs, cfg.Data.Dir),
		BackgroundPercent: int(cfg.Maintenance.BackgroundShare), BootID: bootID, Events: onEvent,
	})
	if err == nil {
		return s, nil
	}
	hint := ""
	switch {
	case errors.Is(err, page.ErrNewerVersion), errors.Is(err, wal.ErrNewerVersion):
		hint = "; data was written by a newer version of lockstep: start that version. Only if the other node is in sync, " +
			"move everything in the directory, except raft, elsewhere instead: this node then copies everything from the " +
			"other node"
	case errors.Is(err, datadir.ErrIdentityLost):
		hint = ". If this is not the directory of a node, correct data.dir"
	case errors.Is(err, os.ErrPermission):
		hint = "; the directory must belong to the user of the lockstep process"
	}
	return nil, fmt.Errorf("open the store in %s: %w%s", cfg.Data.Dir, err, hint)
}

// openCoordinator creates the client of the coordinator. It does not wait for a connection.
func openCoordinator(
	cfg config.Config, fs vfs.FS, id failover.Identity, self failover.NodeInfo, kept *secrets, env Environment,
	logger *zap.Logger,
) (failover.Coordinator, error) {
	if cfg.Coordinator.Type == config.CoordinatorNone {
		if err := markStandalone(fs, cfg.Data.Dir, id); err != nil {
			return nil, err
		}
		return memory.Standalone(id, self).Connect(), nil
	}
	if cfg.Coordinator.Type == config.CoordinatorRaft {
		return openRaft(cfg.Coordinator.Raft, cfg.Data.Dir, kept.voters(), env, logger)
	}
	e := cfg.Coordinator.Etcd
	o := etcd.Options{
		Endpoints: e.Endpoints, Prefix: e.Prefix, Username: e.Username, Password: e.Password,
		RequestTimeout: e.DialTimeout.Std(), Logger: logger,
	}
	if kept.etcd != nil {
		o.TLS, o.Credentials = kept.etcd.Dial(), kept.etcd.Credentials(nil)
	}
	c, err := etcd.Open(o)
	if err != nil {
		return nil, fmt.Errorf("%w: coordinator.etcd: %w", config.ErrInvalid, err)
	}
	return c, nil
}

// openRaft starts the voter of this node and connects to the quorum through it.
func openRaft(
	r config.Raft, dataDir string, secure *raft.TLS, env Environment, logger *zap.Logger,
) (failover.Coordinator, error) {
	o := raft.Options{
		Dir: r.Dir, Listen: r.Listen, Advertise: r.Advertise, Voters: r.Voters, Kind: raft.KindNode,
		Logger: logger.Named("raft"), TLS: secure, Bind: env.Listen, Dial: env.Dial,
	}
	if o.Dir == "" {
		o.Dir = filepath.Join(dataDir, "raft")
	}
	c, err := raft.Open(o)
	if err != nil {
		return nil, fmt.Errorf("coordinator.raft: %w", err)
	}
	return c, nil
}

// markedStandalone reports whether a data directory is marked as that of a standalone node. If the check fails, it
// returns true.
func markedStandalone(fs vfs.FS, dir string) bool {
	_, err := fs.Stat(filepath.Join(dir, datadir.StandaloneName))
	return !errors.Is(err, os.ErrNotExist)
}

// markStandalone marks a new or restored data directory as that of a standalone node. It returns ErrStandaloneData
// for the data directory of a pair.
func markStandalone(fs vfs.FS, dir string, id failover.Identity) error {
	name := filepath.Join(dir, datadir.StandaloneName)
	if _, err := fs.Stat(name); err == nil {
		return nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("stat %s: %w", name, err)
	}
	// A restored store belongs to no pair.
	if !id.Empty() && !id.Restored {
		return fmt.Errorf("%w: %s belongs to pair %s, whose other node may serve the same queues; start it "+
			"with its coordinator, "+
			"or, if that pair is permanently lost, create an empty file %s", ErrStandaloneData, dir, id.PairID, name)
	}
	f, err := fs.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	if err := errors.Join(f.Sync(), f.Close(), fs.SyncDir(dir)); err != nil {
		return fmt.Errorf("create %s: %w", name, err)
	}
	return nil
}

// withAdvice wraps an error that matches store.ErrOtherPair with failover.ErrOtherPair.
func withAdvice(err error) error {
	if err == nil || !errors.Is(err, store.ErrOtherPair) {
		return err
	}
	return fmt.Errorf("%w: %w", failover.ErrOtherPair, err)
}

// logKeepBytes returns how many bytes of the log are kept for a standby and for the other site; -1 for none. The
// store interprets 0 as its default.
func logKeepBytes(cfg config.Config) int64 {
	if n := max(cfg.WAL.KeepBytes.Bytes(), cfg.Site.KeepBytes.Bytes()); n > 0 {
		return n
	}
	return -1
}

// Check validates the settings and the files with certificates, keys and secrets. It does not open the data
// directory or a port.
func Check(cfg config.Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if _, err := openSecrets(&cfg, zap.NewNop()); err != nil {
		return err
	}
	if _, err := objectstore.ParseRecipients(cfg.Backup.Recipients); err != nil {
		return fmt.Errorf("backup.recipients: %w", err)
	}
	return nil
}
