// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	etcdserver "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/lockstep-mq/lockstep/client"
	"github.com/lockstep-mq/lockstep/cmd/internal/output"
	"github.com/lockstep-mq/lockstep/failover"
	"github.com/lockstep-mq/lockstep/failover/coordinator/raft"
	"github.com/lockstep-mq/lockstep/proto/tlsfiles"
	"github.com/lockstep-mq/lockstep/server/config"
)

const (
	queries  = 5                      // per endpoint
	slowEtcd = 100 * time.Millisecond // a takeover requires one write
)

func checkEtcd(ctx context.Context, in *inspector) []Finding {
	if in.cfg.Coordinator.Type != config.CoordinatorEtcd {
		return nil
	}
	e := &in.cfg.Coordinator.Etcd
	c := clientv3.Config{
		Endpoints: e.Endpoints, DialTimeout: e.DialTimeout.Std(), Username: e.Username, Password: e.Password,
		Logger: zap.NewNop(), Context: ctx,
	}
	source, err := secured(tlsfiles.Files{CA: e.TLS.CA, Cert: e.TLS.Cert, Key: e.TLS.Key})
	if err != nil {
		return notChecked("coordinator.etcd.tls: %v", err)
	}
	if source != nil {
		c.TLS = source.Dial()
	}
	client, err := clientv3.New(c)
	if err != nil {
		return one(Problem, err.Error(), "without etcd, the node cannot obtain a role", "correct coordinator.etcd")
	}
	defer func() { _ = client.Close() }()
	all := make([]Finding, len(e.Endpoints))
	var requests sync.WaitGroup
	for i, endpoint := range e.Endpoints {
		requests.Go(func() {
			all[i] = queryEndpoint(ctx, client, endpoint)
			all[i].Subject = endpoint
		})
	}
	requests.Wait()
	if !slices.ContainsFunc(all, func(f Finding) bool { return f.Verdict != Problem }) {
		return all
	}
	return append(append(all, membersOf(ctx, client, len(e.Endpoints))), in.recordIn(ctx, client))
}

func queryEndpoint(ctx context.Context, client *clientv3.Client, endpoint string) Finding {
	var times []time.Duration
	var st *clientv3.StatusResponse
	_, location, hasScheme := strings.Cut(endpoint, "://")
	if !hasScheme {
		location = endpoint
	}
	if err := dial(ctx, location); err != nil { // etcd's client only reports a timeout
		return Finding{
			Verdict: Problem, Measured: shortest(err),
			Meaning: "etcd cannot be reached: without a quorum, no node can take over",
			Do:      "check that it runs, its address, and the firewall",
		}
	}
	for range queries {
		limited, cancel := context.WithTimeout(ctx, queryTimeout)
		start := time.Now()
		got, err := client.Status(limited, endpoint)
		cancel()
		if err != nil {
			return Finding{
				Verdict: Problem, Measured: shortest(err),
				Meaning: "its port is open, but it does not respond: without a " +
					"quorum, no node can take over",
				Do: "if it uses TLS: https:// in the endpoint, and coordinator.etcd.tls; if it requires a user: " +
					"coordinator.etcd.username; else check its log",
			}
		}
		st, times = got, append(times, time.Since(start))
	}
	slices.Sort(times)
	median := times[len(times)/2]
	f := Finding{Verdict: OK, Measured: fmt.Sprintf("etcd %s, responds in %v", st.Version,
		median.Round(10*time.Microsecond))}
	switch {
	case len(st.Errors) > 0:
		f.Verdict, f.Measured = Problem, f.Measured+", reports: "+strings.Join(st.Errors, ", ")
		f.Meaning = "it accepts no writes: no node can take over"
		f.Do = "etcdctl alarm list, etcdctl defrag, etcdctl alarm disarm"
	case strings.HasPrefix(st.Version, "2.") || strings.HasPrefix(st.Version, "3.0.") ||
		strings.HasPrefix(st.Version, "3.1.") || strings.HasPrefix(st.Version, "3.2.") ||
		strings.HasPrefix(st.Version, "3.3."):
		f.Verdict, f.Meaning, f.Do = Problem, "it is older than 3.4", "upgrade etcd"
	case median > slowEtcd:
		f.Verdict, f.Meaning = Warning, "a failover requires several round trips to etcd"
		f.Do = "move etcd closer to the nodes, to a machine with a fast disk"
	}
	return f
}

func membersOf(ctx context.Context, client *clientv3.Client, endpoints int) Finding {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	r, err := client.MemberList(ctx)
	if err != nil {
		return Finding{Subject: "members", Verdict: NotChecked, Meaning: "members unknown: " + shortest(err)}
	}
	voting := len(slices.DeleteFunc(slices.Clone(r.Members), func(m *etcdserver.Member) bool { return m.IsLearner }))
	f := Finding{
		Subject: "members", Verdict: OK,
		Measured: fmt.Sprintf("%s, %s configured", output.Plural(voting, "member"), output.Plural(endpoints, "endpoint")),
		Meaning:  fmt.Sprintf("%d of them may fail", (voting-1)/2),
	}
	switch {
	case voting < 3:
		f.Verdict, f.Meaning = Warning, "if one member fails, no node can take over, and the pair only works while both "+
			"nodes are up"
		f.Do = "run three members, on three machines"
	case endpoints < voting:
		f.Verdict, f.Meaning = Warning, "not all members are configured: if the configured ones fail, the node has no "+
			"coordinator"
		f.Do = "list all of them in coordinator.etcd.endpoints"
	}
	return f
}

func (in *inspector) recordIn(ctx context.Context, client *clientv3.Client) Finding {
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	prefix := strings.TrimRight(in.cfg.Coordinator.Etcd.Prefix, "/")
	f := Finding{Subject: "record at " + prefix}
	r, err := client.Get(ctx, prefix+"/record")
	if err != nil {
		f.Verdict, f.Measured, f.Meaning = Problem, shortest(err), "the node cannot read the cluster record"
		f.Do = "grant the etcd user read and write access to " + prefix
		return f
	}
	if len(r.Kvs) == 0 {
		in.keepRecord(nil)
		f.Verdict, f.Measured, f.Meaning = OK, "none yet", "the first node that starts creates a new pair"
		return f
	}
	record, err := failover.DecodeRecord(r.Kvs[0].Value)
	if err != nil {
		f.Verdict, f.Measured, f.Meaning = Problem, err.Error(), "the cluster record has an unknown format"
		f.Do = "use a separate prefix for each pair, or the release that wrote it"
		return f
	}
	in.keepRecord(&record)
	f.Verdict, f.Measured = OK, fmt.Sprintf("pair %s, term %d", record.PairID, record.Term)
	return f
}

func checkVoters(ctx context.Context, in *inspector) []Finding {
	r := &in.cfg.Coordinator.Raft
	if in.cfg.Coordinator.Type != config.CoordinatorRaft {
		return nil
	}
	o := raft.AdminOptions{Voters: r.Voters}
	source, err := secured(tlsfiles.Files{CA: r.TLS.CA, Cert: r.TLS.Cert, Key: r.TLS.Key})
	if err != nil {
		return notChecked("coordinator.raft.tls: %v", err)
	}
	if source != nil {
		o.TLS = &raft.TLS{Receive: source.Receive, Dial: source.Dial, Names: r.TLS.Names}
	}
	var all []Finding
	own := cmp.Or(r.Advertise, r.Listen)
	for _, v := range r.Voters {
		if v == own {
			continue
		}
		f := Finding{Subject: v}
		start := time.Now()
		if err := dial(ctx, v); err != nil {
			f.Verdict, f.Measured = Warning, shortest(err)
			f.Meaning, f.Do = "it is not listening yet, or cannot be reached",
				"start it, or check the address and the firewall"
		} else {
			f.Verdict, f.Measured = OK, fmt.Sprintf("reached in %v", time.Since(start).Round(10*time.Microsecond))
		}
		all = append(all, f)
	}
	f := Finding{Subject: "quorum"}
	admin, err := raft.NewAdmin(o)
	if err != nil {
		f.Verdict, f.Measured, f.Do = Problem, err.Error(), "correct coordinator.raft"
		return append(all, f)
	}
	defer func() { err = errors.Join(err, admin.Close()) }()
	ctx, cancel := context.WithTimeout(ctx, queryTimeout)
	defer cancel()
	members, err := admin.Members(ctx)
	switch {
	case err != nil:
		f.Verdict, f.Measured = Warning, shortest(err)
		if errors.Is(err, raft.ErrNoQuorum) {
			f.Measured = "no leader within " + queryTimeout.String()
		}
		f.Meaning = "no quorum yet: no node can obtain a role until two of the three voters run"
		f.Do = "start the other voters; to list them, use lockstep pair voters"
	case len(members) != len(r.Voters):
		f.Verdict, f.Measured = Warning, fmt.Sprintf("%d voters, %d configured", len(members), len(r.Voters))
		f.Meaning, f.Do = "the quorum differs from the configuration", "check lockstep pair voters, and correct "+
			"coordinator.raft.voters"
	default:
		f.Verdict, f.Measured = OK, output.Plural(len(members), "voter")
	}
	return append(all, f)
}

// shortest returns the text of an error on one line, without its context if possible.
func shortest(err error) string {
	text := err.Error()
	if e, ok := errors.AsType[*client.Error](err); ok {
		text = e.Message
	}
	text = strings.Join(strings.Fields(text), " ")
	if errors.Is(err, context.DeadlineExceeded) && !strings.Contains(text, "refused") ||
		strings.Contains(text, context.DeadlineExceeded.Error()) {
		return "no response within " + queryTimeout.String()
	}
	return text
}
