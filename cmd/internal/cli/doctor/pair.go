// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/google/uuid"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/client/admin"
	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
)

const offClock = 500 * time.Millisecond

func checkPair(_ context.Context, in *inspector) []Finding {
	id, err := datadir.ReadIdentity(vfs.OS(), in.cfg.Data.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return one(OK, "no store in "+in.cfg.Data.Dir+" yet", "", "")
	}
	if err != nil {
		return one(Problem, err.Error(), "the node does not start with this store: it quarantines it, or waits",
			"see docs/how-to/respond-to-conditions.md; if the other node is in sync, start this one: it copies everything from "+
				"the other node; otherwise keep this directory, and restore a backup to another one")
	}
	record, asked := in.pairRecord()
	measured := fmt.Sprintf("store of node %s, ", id.NodeID)
	if id.PairID == uuid.Nil {
		measured += "not in a pair yet"
	} else {
		measured += "of pair " + id.PairID.String()
	}
	switch {
	case in.cfg.Coordinator.Type == config.CoordinatorNone && id.PairID != uuid.Nil && !in.standalone():
		return one(Problem, measured, "the store belongs to a pair: the node does not start without a coordinator",
			"set coordinator.type as on the other node, or use another data.dir")
	case !asked:
		return one(OK, measured, "not compared with a cluster record", "")
	case record == nil && id.PairID != uuid.Nil:
		return one(Problem, measured+"; there is no cluster record", "etcd lost it, or coordinator.etcd.prefix belongs to "+
			"another pair: the node waits", "correct the prefix; if etcd was lost: lockstep pair adopt")
	case record != nil && id.PairID != uuid.Nil && id.PairID != record.PairID:
		return one(Problem, fmt.Sprintf("%s; the cluster record is of pair %s", measured, record.PairID),
			"the data directory belongs to another pair: the node refuses to start",
			"correct coordinator.etcd.prefix, or use another data.dir")
	case record != nil && id.PairID == uuid.Nil && foreignFiles(record, id.NodeID) >= 2:
		return one(Problem, measured, "the pair already has two other nodes: a third is refused",
			"use another prefix, or the data directory of a node of that pair")
	case id.MayHaveLost:
		return one(Warning, measured, "acknowledged messages may be lost: the node copies everything from the other node",
			"start the other node first")
	}
	return one(OK, measured, "", "")
}

// standalone reports whether the store belongs to a standalone node, which also has a pair ID.
func (in *inspector) standalone() bool {
	_, err := os.Stat(filepath.Join(in.cfg.Data.Dir, datadir.StandaloneName))
	return err == nil
}

func foreignFiles(r *failover.Record, id uuid.UUID) int {
	return len(slices.DeleteFunc(slices.Clone(r.Nodes), func(n failover.NodeInfo) bool { return n.ID == id }))
}

// checkPeer checks whether the other node is reachable with this node's TLS files, and compatible.
func checkPeer(ctx context.Context, in *inspector) []Finding {
	if in.cfg.Coordinator.Type == config.CoordinatorNone {
		return nil
	}
	address, name := in.peerAddress()
	if address == "" {
		return notChecked("address unknown: there is no cluster record; set --peer HOST:PORT")
	}
	f := in.queryPeer(ctx, address)
	f.Subject = address
	if name != "" {
		f.Subject = name + ", " + address
	}
	return []Finding{f}
}

func (in *inspector) peerAddress() (address, name string) {
	record, _ := in.pairRecord()
	if in.o.Peer != "" || record == nil {
		return in.o.Peer, ""
	}
	own := cmp.Or(in.cfg.Advertise, in.cfg.Listen)
	id, err := datadir.ReadIdentity(vfs.OS(), in.cfg.Data.Dir)
	for _, n := range record.Nodes {
		if err == nil && n.ID == id.NodeID || n.Address == own || n.Address == "" {
			continue
		}
		return n.Address, n.Name
	}
	return "", ""
}

func (in *inspector) queryPeer(ctx context.Context, address string) Finding {
	files := in.cfg.TLS.Files()
	c, err := client.OpenWith(ctx, client.Options{
		Addresses: []string{address}, FailFast: true,
		TLSFiles: client.TLSFiles{CA: files.CA, Cert: files.Cert, Key: files.Key},
	})
	if err != nil {
		return Finding{Verdict: NotChecked, Meaning: err.Error()}
	}
	defer func() { _ = c.Close() }()
	n, err := admin.New(c).Node(address)
	if err != nil {
		return Finding{Verdict: Problem, Measured: err.Error(), Meaning: "not a valid address", Do: "correct --peer"}
	}
	limited, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	_, _ = n.Status(limited) // establishes the connection
	start := time.Now()
	st, err := n.Status(limited)
	took := time.Since(start)
	switch {
	case errors.Is(err, client.ErrDenied):
		return Finding{Verdict: NotChecked, Measured: "it responds", Meaning: "it denies access to its status: " +
			shortest(err)}
	case err != nil && dial(ctx, address) != nil:
		return Finding{
			Verdict: Warning, Measured: shortest(err), Meaning: "it is not running yet, or cannot be reached",
			Do: "start it, or check its advertise address and the firewall between the nodes",
		}
	case err != nil:
		return Finding{
			Verdict: Problem, Measured: shortest(err), Meaning: "its port is open, but the nodes cannot communicate",
			Do: "use TLS on both or on neither, with certificates of the same CA that contain the names in advertise: " +
				"lockstep cert show " + address,
		}
	}
	return in.checkPeer(st, start, took)
}

func (in *inspector) checkPeer(st *pb.GetStatusResponse, start time.Time, took time.Duration) Finding {
	f := Finding{Verdict: OK, Measured: fmt.Sprintf("%s, %s, responds in %v", st.GetNode().GetName(), st.GetVersion(),
		took.Round(10*time.Microsecond))}
	bad := func(v Verdict, measured, meaning, do string) Finding {
		f.Verdict, f.Measured, f.Meaning, f.Do = v, f.Measured+measured, meaning, do
		return f
	}
	var offset time.Duration
	if st.GetNow() != nil {
		offset = st.GetNow().AsTime().Sub(start.Add(took / 2))
		f.Measured += fmt.Sprintf(", clock offset %v", offset.Round(time.Millisecond))
	}
	record, _ := in.pairRecord()
	id, err := datadir.ReadIdentity(vfs.OS(), in.cfg.Data.Dir)
	pair := st.GetPair().GetPairId()
	switch {
	case err == nil && st.GetNode().GetNodeId() == id.NodeID.String():
		return bad(Problem, "", "it is this node, or a node with a copy of its data directory: duplicate nodes are refused",
			"set --peer to the other node; if this is the other node, one of the two needs its own data directory")
	case record != nil && pair != "" && pair != record.PairID.String():
		return bad(Problem, ", of pair "+pair, "it belongs to another pair", "use the same etcd and the same "+
			"coordinator.etcd.prefix on both")
	case offset.Abs() > offClock+took:
		return bad(Warning, "", "delays, expiry and tokens depend on the clock of the active node: they jump at a "+
			"failover", "run NTP on both")
	case in.o.Version != "" && st.GetVersion() != in.o.Version:
		return bad(Warning, ", this program is "+in.o.Version, "releases may differ during an upgrade; new features "+
			"are disabled until both have the new one", "install the same release on both")
	}
	return f
}

func dial(ctx context.Context, address string) error {
	d := net.Dialer{Timeout: queryTimeout}
	conn, err := d.DialContext(ctx, "tcp", address)
	if err != nil {
		return err //nolint:wrapcheck // it contains the address
	}
	_ = conn.Close() // nothing was sent
	return nil
}
