// SPDX-License-Identifier: Apache-2.0

package raft

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	hraft "github.com/hashicorp/raft"
	"go.uber.org/zap"
)

// RecoverOptions configures Recover.
type RecoverOptions struct {
	// Dir is the directory of the surviving voter, which must not be running.
	Dir string
	// Address is the voter's new address; if empty, the address is unchanged. It is required if the voter was not a
	// member.
	Address    string
	By, Reason string
	Logger     *zap.Logger
}

// Recovery is the result of Recover, and the content of the marker recovery-<n>.json in the voter's directory.
type Recovery struct {
	Time    time.Time `json:"time"`
	By      string    `json:"by"`
	Reason  string    `json:"reason"`
	ID      string    `json:"id"`
	OldID   string    `json:"old_id"`
	Address string    `json:"address"`
	Lost    []Member  `json:"lost"`
	// LastIndex is the last index of the log. Later entries that the lost members have committed are lost.
	LastIndex  uint64 `json:"last_index"`
	Revision   int64  `json:"revision"`
	Recoveries uint64 `json:"recoveries"`
	Marker     string `json:"-"`
}

// Recover makes a surviving voter the only member of its cluster, if the other two are permanently lost. Entries that
// they committed without it are lost, so the record may be outdated. The operator must ensure that the other two
// voters never run again with their disks.
//
// The voter gets a new ID, so that no other voter of the old cluster can communicate with it. A voter of the old
// cluster that detects the recovery is fenced. Recover returns ErrInUse or ErrNoState if the directory cannot be used.
func Recover(o RecoverOptions) (_ Recovery, err error) {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	rlog := newRaftLog(o.Logger.Named("raft"))
	if _, err := os.Stat(filepath.Join(o.Dir, logFile)); err != nil {
		return Recovery{}, fmt.Errorf("recover %s: %w: %w", o.Dir, ErrNoState, err)
	}
	d, err := openDisk(o.Dir, false, rlog)
	if err != nil {
		return Recovery{}, err
	}
	defer func() { err = errors.Join(err, d.close()) }()
	conf := raftConfig(d.id, DefaultElectionTimeout, rlog)
	_, trans := hraft.NewInmemTransport("")
	defer trans.Close()
	if empty, err := d.empty(); err != nil || empty {
		return Recovery{}, errors.Join(fmt.Errorf("recover %s: %w", o.Dir, ErrNoState), err)
	}
	before, err := hraft.GetConfiguration(conf, newFSM(), d.store, d.store, d.snaps, trans)
	if err != nil {
		return Recovery{}, fmt.Errorf("recover %s: read the members: %w", o.Dir, err)
	}
	rec := Recovery{
		Time: time.Now().UTC(), By: o.By, Reason: o.Reason, OldID: d.id, Address: o.Address,
		Lost: []Member{},
	}
	for _, s := range before.Servers {
		switch {
		case string(s.ID) != d.id:
			rec.Lost = append(rec.Lost, Member{
				ID: string(s.ID), Address: string(s.Address), Kind: kindOf(string(s.ID)),
				Voter: s.Suffrage == hraft.Voter,
			})
		case o.Address == "":
			rec.Address = string(s.Address)
		}
	}
	if err := checkAddress(rec.Address); err != nil {
		return Recovery{}, fmt.Errorf("recover %s: voter was not a member, so its address is required: %w", o.Dir, err)
	}
	if err := d.recover(&rec, rlog, o.Logger); err != nil {
		return Recovery{}, err
	}
	return rec, nil
}

// recover executes the recovery. If it is interrupted, Recover can be called again.
func (d *disk) recover(rec *Recovery, rlog raftLog, log *zap.Logger) error {
	last, err := d.lastIndex()
	if err != nil {
		return err
	}
	if err := d.rename(kindOf(d.id)); err != nil {
		return err
	}
	rec.ID = d.id
	f := newFSM()
	f.recovering = true
	conf := raftConfig(d.id, DefaultElectionTimeout, rlog)
	_, trans := hraft.NewInmemTransport("")
	defer trans.Close()
	alone := hraft.Configuration{Servers: []hraft.Server{{
		ID:      hraft.ServerID(d.id),
		Address: hraft.ServerAddress(rec.Address),
	}}}
	if err := hraft.RecoverCluster(conf, f, d.store, d.store, d.snaps, trans, alone); err != nil {
		return fmt.Errorf("recover %s: %w", d.dir, err)
	}
	kept := f.now.Get()
	rec.LastIndex, rec.Revision, rec.Recoveries = last, kept.at(), kept.Recoveries+1
	rec.Marker = filepath.Join(d.dir, fmt.Sprintf("recovery-%d.json", rec.Recoveries))
	raw, err := json.MarshalIndent(rec, "", "  ")
	if err != nil {
		return fmt.Errorf("recover %s: %w", d.dir, err)
	}
	if err := os.WriteFile(rec.Marker, append(raw, '\n'), 0o600); err != nil {
		return fmt.Errorf("recover %s: voter is recovered, but its marker was not written: %w", d.dir, err)
	}
	log.Warn("quorum recovered by force: this voter is the only member of the cluster",
		zap.Any("recovery", rec))
	return nil
}
