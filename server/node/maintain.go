// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"go.uber.org/zap"
	"google.golang.org/grpc"

	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/objectstore"
	"github.com/lockstep-mq/lockstep/server/observe/nodestatus"
	"github.com/lockstep-mq/lockstep/server/ops/maintenance"
	"github.com/lockstep-mq/lockstep/server/ops/scrub"
	"github.com/lockstep-mq/lockstep/server/ops/settings"
	"github.com/lockstep-mq/lockstep/server/peerclient"
	"github.com/lockstep-mq/lockstep/store/backup"
	"github.com/lockstep-mq/lockstep/store/txn"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

// startArchive prepares the encryption and the locations of backups, and starts the log archiver if wal.archive is
// set. It returns a function that stops the archiver.
func (n *node) startArchive() (stop func() error, err error) {
	n.objects = objectstore.New(n.cfg.Backup.S3, n.cfg.Memory.Budget, n.log.Named("backup"))
	if n.seal, err = objectstore.ParseRecipients(n.cfg.Backup.Recipients); err != nil {
		return nil, fmt.Errorf("backup.recipients: %w", err)
	}
	if n.cfg.WAL.Archive == "" {
		return func() error { return nil }, nil
	}
	at, err := backup.ParseLocation(n.cfg.WAL.Archive)
	if err == nil {
		at = objectstore.ArchiveFolder(at, n.cfg.Node.Name)
		n.archive, err = n.objects.Open(at)
	}
	if err != nil {
		return nil, fmt.Errorf("archive the log (wal.archive): %w", err)
	}
	n.archiveDir = at.Dir
	a, err := backup.StartArchiver(n.store, backup.ArchiveOptions{
		Location: n.archive, Seal: n.seal, Interval: n.cfg.WAL.ArchiveEvery.Std(),
		MaxHoldBytes: n.cfg.WAL.ArchiveHold.Bytes(), Logger: n.log.Named("archive"),
	})
	if err != nil {
		return nil, fmt.Errorf("archive the log in %s (wal.archive): %w", n.cfg.WAL.Archive, err)
	}
	n.archiver = a
	return func() error {
		if err := a.Close(); err != nil {
			n.log.Error("end of the log not archived; it is archived at the next start", zap.Error(err))
		}
		return nil
	}, nil
}

func (n *node) newMaintenance(fs vfs.FS) (err error) {
	n.peers = peerclient.NewPeers(append(slices.Clip(n.environment.dialOptions(n.dialOptions)),
		grpc.WithPerRPCCredentials(peerSecret{n.rules}))...)
	var restart func()
	if n.canRestart {
		restart = func() {
			select {
			case n.restart <- struct{}{}:
			default: // a restart is already pending
			}
		}
	}
	n.maintenance, err = maintenance.New(maintenance.Options{
		Restart: restart, CheckRestart: n.checkRestart,
		Store: n.store, Node: maintainedNode{n}, Peers: n.peers, FS: fs, DataDir: n.cfg.Data.Dir,
		Archive: n.archive, Archiver: n.archiver, Location: n.objects.Open, Seal: n.seal,
		Software: "lockstep " + n.version, Logger: n.log.Named("maintenance"),
		RewriteBytesPerSecond: func() int64 { return n.settings.Live().Maintenance.RewriteRate.Bytes() },
		Defaults: maintenance.Defaults{
			PageSizeMax: int(n.cfg.PageSizeMax), ResizeOnStartup: n.cfg.Resize, CompactOnStartup: n.cfg.Compact,
			BackupPath: n.cfg.Backup.Path, BackupKeep: n.cfg.Backup.KeepGenerations,
		},
	})
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	n.settings = settings.New(settings.Options{
		Config: n.cfg, Store: n.store, Manager: n.maintenance, Runner: n.runner, Use: n.use, Logger: n.log,
	})
	n.guard = scrub.New(scrub.Options{
		Store: n.store, Settings: n.settings, Runner: n.runner, Manager: n.maintenance, Peers: n.peers,
		Serving: n.serving, Resync: n.plane.resync, HandOver: maintainedNode{n}.HandOver, Logger: n.log,
	})
	return nil
}

// use applies changed settings to the components of the node that have copies of the settings.
func (n *node) use(c *config.Config) {
	if n.setLogLevel != nil {
		n.setLogLevel(c.Log.Level)
	}
	n.store.SetBackgroundPercent(int(c.Maintenance.BackgroundShare))
	if n.queues != nil {
		n.queues.SetLimits(c.Limits)
	}
	n.site.SetMaxLag(c.Site.MaxLag.Std())
	n.plane.mu.Lock() // a session created concurrently has the new settings, or is visible below
	defer n.plane.mu.Unlock()
	if session := n.serving.Get(); session != nil {
		session.SetLimits(c.Limits)
		session.Prepared.SetTimeout(c.Txn.PreparedTimeout.Std())
	}
}

// runMachine runs the failover machine. A standalone node first executes the operations that are requested for
// its start.
func (n *node) runMachine(ctx context.Context) error {
	if n.alone() {
		if err := n.maintenance.BeforeServing(ctx); err != nil {
			return fmt.Errorf("start: %w", err)
		}
	}
	return n.runner.Run(ctx)
}

func (n *node) alone() bool { return n.cfg.Alone() }

func (n *node) addMaintenance(st *nodestatus.Node) {
	if a, ok := n.maintenance.Activity(); ok {
		st.Maintenance = &a
	}
	plan, err := n.maintenance.Plan()
	if err != nil {
		n.log.Warn("plan cannot be read", zap.Error(err))
	}
	st.Plan = plan
}

// maintainedNode implements maintenance.Node for the node.
type maintainedNode struct{ n *node }

var _ maintenance.Node = maintainedNode{}

func (u maintainedNode) Pair() failover.Status    { return u.n.runner.Status() }
func (u maintainedNode) Changed() <-chan struct{} { return u.n.runner.Changed() }
func (u maintainedNode) Alone() bool              { return u.n.alone() }

func (u maintainedNode) Serving() (term uint64, ok bool) {
	s := u.n.serving.Get()
	if s == nil {
		return 0, false
	}
	return s.Primary.Status().Term, true
}

func (u maintainedNode) Commit(ctx context.Context, payload []byte) (*txn.Result, error) {
	s, err := u.n.serving.Session()
	if err != nil {
		return nil, err
	}
	return s.Primary.CommitExempt(ctx, payload) // exempt, so that the lag limit can be changed while it blocks writes
}

func (u maintainedNode) Standby() (maintenance.Standby, bool) {
	s := u.n.serving.Get()
	if s == nil {
		return maintenance.Standby{}, false
	}
	st := s.Primary.Status()
	if st.Standby == nil {
		return maintenance.Standby{}, false
	}
	return maintenance.Standby{
		Node: st.Standby.Member.Node, Required: st.Standby.Required, AppliedLSN: st.Standby.AppliedLSN,
		CommitLSN: st.CommitLSN,
	}, true
}

func (u maintainedNode) HandOver(ctx context.Context) error {
	_, err := u.n.switchover(ctx, uuid.Nil)
	return err
}
