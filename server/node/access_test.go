// SPDX-License-Identifier: Apache-2.0

package node_test

import (
	"context"
	"crypto/sha256"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	calls "github.com/lockstep-mq/lockstep/server/auth"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/config"
	"github.com/lockstep-mq/lockstep/server/node"
	"github.com/lockstep-mq/lockstep/server/observe/conditions"
	"github.com/lockstep-mq/lockstep/store/datadir"
	"github.com/lockstep-mq/lockstep/store/vfs"
	"github.com/lockstep-mq/lockstep/test/vfs/faultfs"
)

// principalKey is the metadata key of the caller's principal.
const principalKey = "test-principal"

// byName authenticates the caller by the principal in the metadata: a name, optionally followed by a colon and
// groups, or "peer".
func byName(ctx context.Context) (*access.Identity, error) {
	shown := metadata.ValueFromIncomingContext(ctx, principalKey)
	if len(shown) != 1 {
		return nil, nil //nolint:nilnil // no principal
	}
	name, groups, _ := strings.Cut(shown[0], ":")
	id := &access.Identity{Principal: name, Method: access.MethodCertificate}
	if groups == "peer" {
		id.Peer = true
	} else if groups != "" {
		id.Groups = strings.Split(groups, ",")
	}
	return id, nil
}

// as returns the context of a call by a principal.
func as(ctx context.Context, principal string) context.Context {
	return metadata.AppendToOutgoingContext(ctx, principalKey, principal)
}

// startNamed starts a node that authenticates callers with byName.
func startNamed(t *testing.T, c config.Config) *testNode {
	t.Helper()
	return startIn(t, c, node.Options{Environment: node.Environment{Authenticators: []calls.Authenticator{byName}}})
}

func startNamedAlone(t *testing.T, change func(*config.Config)) *testNode {
	t.Helper()
	c := settings(t, "a")
	c.Access.Operators = []string{"root"}
	if change != nil {
		change(&c)
	}
	n := startNamed(t, c)
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	return n
}

func (n *testNode) access() pb.AccessServiceClient { return pb.NewAccessServiceClient(n.conn) }

// grant grants rights on queues to a principal. root is the caller.
func (n *testNode) grant(principal, queue string, rights ...pb.AccessRight) {
	n.t.Helper()
	_, err := n.access().Grant(as(n.t.Context(), "root"), &pb.GrantRequest{Rule: &pb.AccessRule{
		Principal: principal, Queue: queue, Rights: rights,
	}})
	require.NoError(n.t, err)
}

func (n *testNode) revoke(principal, queue string, rights ...pb.AccessRight) {
	n.t.Helper()
	_, err := n.access().Revoke(as(n.t.Context(), "root"), &pb.RevokeRequest{Rule: &pb.AccessRule{
		Principal: principal, Queue: queue, Rights: rights,
	}})
	require.NoError(n.t, err)
}

const (
	mayPublish = pb.AccessRight_ACCESS_RIGHT_PUBLISH
	mayConsume = pb.AccessRight_ACCESS_RIGHT_CONSUME
	mayBrowse  = pb.AccessRight_ACCESS_RIGHT_BROWSE
	mayManage  = pb.AccessRight_ACCESS_RIGHT_MANAGE
	mayOperate = pb.AccessRight_ACCESS_RIGHT_OPERATE
)

func (n *testNode) createAs(principal, queue string) error {
	_, err := n.queues.CreateQueue(as(n.t.Context(), principal), &pb.CreateQueueRequest{Name: queue})
	return err
}

func (n *testNode) publishAs(principal, queue string, bodies ...string) error {
	req := &pb.PublishRequest{Queue: queue}
	for _, b := range bodies {
		req.Messages = append(req.Messages, &pb.Message{Body: []byte(b)})
	}
	_, err := n.queues.Publish(as(n.t.Context(), principal), req)
	return err
}

func denied(t *testing.T, err error, reports ...string) {
	t.Helper()
	require.Equal(t, codes.PermissionDenied, status.Code(err), "%v", err)
	for _, s := range reports {
		require.Contains(t, err.Error(), s)
	}
}

// After the first rule is created, only callers with a matching right are permitted.
func TestRulesRestrictCallers(t *testing.T) { simulated(t, testRulesRestrictCallers) }

func testRulesRestrictCallers(t *testing.T) {
	n := startNamedAlone(t, nil)
	require.NoError(t, n.createAs("alice", "orders.eu"), "open")
	require.NoError(t, n.createAs("alice", "dead"), "open")
	n.grant("alice", "orders.*", mayPublish)
	require.NoError(t, n.publishAs("alice", "orders.eu", "one"))
	denied(
		t,
		n.publishAs("alice", "dead", "x"),
		`"alice" has no right to publish queue "dead"`,
		"lockstep access grant",
	)
	denied(t, n.publishAs("bob", "orders.eu", "x"), `"bob"`)
	denied(t, n.createAs("alice", "orders.us"), "manage")
	_, err := n.queues.Publish(t.Context(), &pb.PublishRequest{Queue: "orders.eu"})
	denied(t, err, "client certificate")

	// The details of the error contain the reason in machine-readable form.
	st := status.Convert(n.publishAs("alice", "dead", "x"))
	require.Len(t, st.Details(), 1)
	info, _ := st.Details()[0].(*errdetails.ErrorInfo)
	require.Equal(t, "DENIED", info.GetReason())
	require.Equal(t, map[string]string{"principal": "alice", "right": "publish", "queue": "dead"}, info.GetMetadata())

	// The right to manage one queue does not permit writes to another queue through that queue.
	n.grant("mallory", "mine/*", mayManage, mayConsume)
	_, err = n.queues.CreateQueue(as(t.Context(), "mallory"), &pb.CreateQueueRequest{
		Name: "mine/q", Config: &pb.QueueConfig{MaxDeliveries: 1, DeadLetter: "dead"},
	})
	denied(t, err, "dead_letter", `publish queue "dead"`)
	require.NoError(t, n.createAs("mallory", "mine/q"))
	_, err = n.queues.SetForwards(as(t.Context(), "mallory"), &pb.SetForwardsRequest{
		Queue: "mine/q", Forwards: []*pb.Forward{{To: "dead"}},
	})
	denied(t, err, "forward 0", `publish queue "dead"`)
	_, err = n.queues.Commit(as(t.Context(), "mallory"), &pb.CommitRequest{Operations: []*pb.Operation{
		{
			Kind: &pb.Operation_Ack{
				Ack: &pb.AckOperation{Queue: "mine/q", Ranges: []*pb.SequenceRange{{First: 1, Last: 1}}},
			},
		},
		{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: "dead", Messages: []*pb.Message{{}}}}},
	}})
	denied(t, err, "operation 1", `publish queue "dead"`)

	// ListQueues returns the queues on which the caller has any right.
	list, err := n.queues.ListQueues(as(t.Context(), "mallory"), &pb.ListQueuesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetQueues(), 1)
	require.Equal(t, "mine/q", list.GetQueues()[0].GetName())
	list, err = n.queues.ListQueues(as(t.Context(), "root"), &pb.ListQueuesRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetQueues(), 3)
	_, err = n.queues.GetQueue(as(t.Context(), "mallory"), &pb.GetQueueRequest{Name: "dead"})
	denied(t, err)

	// A replay requires the right to publish to the target queue.
	n.grant("janitor", "dead", mayManage)
	_, err = n.queues.ReplayDeadLetters(
		as(t.Context(), "janitor"),
		&pb.ReplayDeadLettersRequest{Queue: "dead", To: "mine/q"},
	)
	denied(t, err, "to:", `publish queue "mine/q"`)
}

// A caller may decide a prepared transaction only with the rights that the transaction requires.
func TestPreparedRights(t *testing.T) { simulated(t, testPreparedRights) }

func testPreparedRights(t *testing.T) {
	n := startNamedAlone(t, nil)
	require.NoError(t, n.createAs("root", "q"))
	n.grant("bank", "q", mayPublish)
	n.grant("other", "other", mayPublish)
	prepare := func(identity, xid string) error {
		_, err := n.queues.Prepare(as(t.Context(), identity), &pb.PrepareRequest{Xid: xid, Operations: []*pb.Operation{
			{Kind: &pb.Operation_Publish{Publish: &pb.PublishOperation{Queue: "q", Messages: []*pb.Message{{}}}}},
		}})
		return err
	}
	denied(t, prepare("other", "x1"))
	require.NoError(t, prepare("bank", "x1"))
	_, err := n.queues.CommitPrepared(as(t.Context(), "other"), &pb.CommitPreparedRequest{Xid: "x1"})
	denied(t, err, `publish queue "q"`)
	_, err = n.queues.RollbackPrepared(as(t.Context(), "bank"), &pb.RollbackPreparedRequest{Xid: "x1", Heuristic: true})
	denied(t, err, "operate")
	_, err = n.queues.CommitPrepared(as(t.Context(), "bank"), &pb.CommitPreparedRequest{Xid: "x1"})
	require.NoError(t, err)
}

// If a right is revoked, the streams that use it end within a second. Other streams continue.
func TestLostRightEndsStreams(t *testing.T) { simulated(t, testLostRightEndsStreams) }

func testLostRightEndsStreams(t *testing.T) {
	n := startNamedAlone(t, nil)
	for _, q := range []string{"a", "b"} {
		require.NoError(t, n.createAs("root", q))
	}
	open := func(identity string, queues ...string) pb.QueueService_PublishStreamClient {
		s, err := n.queues.PublishStream(as(t.Context(), identity))
		require.NoError(t, err)
		for i, q := range queues {
			require.NoError(t, s.Send(&pb.PublishStreamRequest{Correlation: uint64(i + 1), Publish: &pb.PublishRequest{
				Queue: q, Messages: []*pb.Message{{Body: []byte("x")}},
			}}))
			resp, err := s.Recv()
			require.NoError(t, err)
			require.Nil(t, resp.GetError())
		}
		return s
	}
	attach := func(identity, queue string) pb.QueueService_ConsumeClient {
		s, err := n.queues.Consume(as(t.Context(), identity))
		require.NoError(t, err)
		require.NoError(t, s.Send(&pb.ConsumeRequest{
			Attach: &pb.Attach{Queue: queue},
		}))
		resp, err := s.Recv()
		require.NoError(t, err)
		require.True(t, resp.GetAttached())
		return s
	}
	beforeRules := open("carol", "a") // opened before the first rule, when every caller has all rights
	n.grant("alice", "*", mayPublish, mayConsume)
	_, err := beforeRules.Recv()
	denied(t, err, "rules changed", `"carol"`, `publish queue "a"`)

	n.grant("bob", "b", mayPublish, mayConsume)
	losing, losingConsumer := open("alice", "b", "a"), attach("alice", "a")
	staying, stayingConsumer := open("bob", "b"), attach("bob", "b")

	// A publish to a queue for which the client has no right is refused, but the stream stays open.
	require.NoError(t, staying.Send(&pb.PublishStreamRequest{Correlation: 9, Publish: &pb.PublishRequest{
		Queue: "a", Messages: []*pb.Message{{}},
	}}))
	resp, err := staying.Recv()
	require.NoError(t, err)
	require.Equal(t, "DENIED", resp.GetError().GetReason())
	require.EqualValues(t, codes.PermissionDenied, resp.GetError().GetCode())

	start := time.Now()
	n.revoke("alice", "*")
	_, err = losing.Recv()
	denied(t, err, "access rules changed")
	_, err = losingConsumer.Recv()
	denied(t, err, "access rules changed")
	took(t, 0, start)
	_, err = n.queues.GetQueue(as(t.Context(), "alice"), &pb.GetQueueRequest{Name: "a"})
	denied(t, err)

	require.NoError(t, staying.Send(&pb.PublishStreamRequest{Correlation: 10, Publish: &pb.PublishRequest{
		Queue: "b", Messages: []*pb.Message{{Body: []byte("continues")}},
	}}))
	resp, err = staying.Recv()
	require.NoError(t, err)
	require.Nil(t, resp.GetError())
	require.NoError(t, stayingConsumer.Send(&pb.ConsumeRequest{Credit: 10}))
	got, err := stayingConsumer.Recv()
	require.NoError(t, err)
	require.NotEmpty(t, got.GetMessages())
}

// A caller cannot remove its own operator right without confirmation.
func TestLockOut(t *testing.T) { simulated(t, testLockOut) }

func testLockOut(t *testing.T) {
	n := startNamedAlone(t, func(c *config.Config) { c.Access.Operators, c.Data.Dir = nil, t.TempDir() })
	grant := func(identity string, rule *pb.AccessRule, lockOut bool) error {
		_, err := n.access().Grant(as(t.Context(), identity), &pb.GrantRequest{Rule: rule, LockOut: lockOut})
		return err
	}
	operate := &pb.AccessRule{Principal: "alice", Rights: []pb.AccessRight{mayOperate}}
	other := &pb.AccessRule{Principal: "bob", Queue: "q", Rights: []pb.AccessRight{mayPublish}}
	err := grant("alice", other, false)
	require.Equal(t, codes.FailedPrecondition, status.Code(err))
	require.Contains(t, err.Error(), "alice operate")
	_, err = n.access().Grant(t.Context(), &pb.GrantRequest{Rule: operate})
	require.Equal(t, codes.FailedPrecondition, status.Code(err), "an anonymous caller has no principal")
	require.Contains(t, err.Error(), "access.operators")
	require.NoError(t, grant("alice", operate, false))
	require.NoError(t, grant("alice", other, false))
	denied(t, grant("bob", other, true))

	revoke := func(lockOut bool) error {
		_, err := n.access().Revoke(as(t.Context(), "alice"), &pb.RevokeRequest{Rule: operate, LockOut: lockOut})
		return err
	}
	require.Equal(t, codes.FailedPrecondition, status.Code(revoke(false)))
	_, err = n.access().PutRole(as(t.Context(), "alice"), &pb.PutRoleRequest{Role: &pb.AccessRole{
		Name: "op", Rights: []pb.AccessRight{mayOperate},
	}})
	require.NoError(t, err)
	require.NoError(t, grant("alice", &pb.AccessRule{Principal: "alice", Roles: []string{"op"}}, false))
	_, err = n.access().PutRole(as(t.Context(), "alice"), &pb.PutRoleRequest{Role: &pb.AccessRole{
		Name: "op", Rights: []pb.AccessRight{mayBrowse},
	}})
	require.NoError(t, err, "the rule also grants the right")
	require.NoError(t, revoke(true))
	denied(t, grant("alice", operate, true), "operate")

	// An operator can request the deletion of the rules while the node is stopped. The node deletes them when it is
	// active.
	n.stop()
	marker := filepath.Join(n.config.Data.Dir, "access.reset")
	require.NoError(t, os.WriteFile(marker, nil, 0o600))
	n = startNamed(t, n.config)
	require.Eventually(t, func() bool { return grant("alice", operate, false) == nil }, testTimeout, 5*time.Millisecond)
	require.Eventually(t, func() bool {
		_, err := os.Stat(marker)
		return os.IsNotExist(err)
	}, testTimeout, 5*time.Millisecond)
	identity, err := n.access().ListAccess(as(t.Context(), "alice"), &pb.ListAccessRequest{})
	require.NoError(t, err)
	require.Len(t, identity.GetRules(), 1)
	require.Len(t, identity.GetRoles(), 1, "roles are kept, since they grant no rights without a rule")
}

// A requested deletion of the rules is canceled by the removal of its marker, even while the node runs.
func TestResetCanceled(t *testing.T) { simulated(t, testResetCanceled) }

func testResetCanceled(t *testing.T) {
	etcd := startEtcd(t)
	var nodes []*testNode
	for _, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		c.Access.Operators = []string{"root"}
		if name == "b" {
			c.Data.Dir = t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(c.Data.Dir, datadir.AccessResetName), nil, 0o600))
		}
		nodes = append(nodes, startNamed(t, c))
		nodes[0].waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	}
	a, b := nodes[0], nodes[1]
	root := as(t.Context(), "root")
	b.waitForAs(root, pb.Role_ROLE_STANDBY)
	a.grant("alice", "q", mayPublish)
	require.NoError(t, os.Remove(filepath.Join(b.config.Data.Dir, datadir.AccessResetName)))
	_, err := a.admin.Switchover(root, &pb.SwitchoverRequest{})
	require.NoError(t, err)
	b.waitForAs(root, pb.Role_ROLE_ACTIVE)
	b.grant("bob", "q", mayPublish)
	time.Sleep(5 * time.Second) //nolint:forbidigo // simulated time
	got, err := b.access().ListAccess(root, &pb.ListAccessRequest{})
	require.NoError(t, err)
	require.Len(t, got.GetRules(), 2)
}

// The rules are deleted only once if the marker cannot be removed, or another process has removed it.
func TestResetOnce(t *testing.T) { simulated(t, testResetOnce) }

func testResetOnce(t *testing.T) {
	for _, refused := range []error{fs.ErrPermission, fs.ErrNotExist} {
		n := startNamedAlone(t, nil)
		n.grant("alice", "q", mayPublish)
		n.stop()
		marker := datadir.AccessReset(n.config.Data.Dir)
		require.NoError(t, vfs.WriteFileAtomic(diskOf(t), marker, nil))
		disk := faultfs.New(diskOf(t))
		disk.SetHook(func(op faultfs.Op) error {
			if op.Kind == faultfs.OpRemove && op.Name == marker {
				return refused
			}
			return nil
		})
		n = startIn(t, n.config, node.Options{
			FS: disk, Environment: node.Environment{Authenticators: []calls.Authenticator{byName}},
		})
		root := as(t.Context(), "root")
		rules := func() []*pb.AccessRule {
			got, err := n.access().ListAccess(root, &pb.ListAccessRequest{})
			if err != nil {
				return []*pb.AccessRule{{}} // not active yet
			}
			return got.GetRules()
		}
		require.Eventually(t, func() bool { return len(rules()) == 0 }, testTimeout, 5*time.Millisecond)
		n.grant("bob", "q", mayPublish)
		time.Sleep(5 * time.Second) //nolint:forbidigo // simulated time
		require.Len(t, rules(), 1, refused)
		n.stop()
		n = startNamed(t, n.config)
		n.waitForAs(root, pb.Role_ROLE_ACTIVE_ALONE)
		time.Sleep(5 * time.Second) //nolint:forbidigo // simulated time
		require.Len(t, rules(), 1, "after a restart, with the marker")
		n.stop()
	}
}

// A caller that uses a token cannot revoke its last one without confirmation, although the rules grant it the right.
// The error recommends another token with the groups of the caller.
func TestLockOutByLastToken(t *testing.T) { simulated(t, testLockOutByLastToken) }

func testLockOutByLastToken(t *testing.T) {
	c := settings(t, "a")
	c.Access.Operators = []string{"admin"}
	n := startIn(t, c, node.Options{Environment: node.Environment{Authenticators: []calls.Authenticator{
		func(ctx context.Context) (*access.Identity, error) {
			id, err := byName(ctx)
			if id != nil {
				id.Method = access.MethodToken
			}
			return id, err
		},
	}}})
	n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
	root := as(t.Context(), "root:ops")
	_, err := n.access().Grant(as(t.Context(), "admin"), &pb.GrantRequest{Rule: &pb.AccessRule{
		Group: "ops", Rights: []pb.AccessRight{pb.AccessRight_ACCESS_RIGHT_OPERATE},
	}, LockOut: true})
	require.NoError(t, err)
	create := func(name string, options ...func(*pb.AccessToken)) {
		sum := sha256.Sum256([]byte(name))
		token := &pb.AccessToken{Name: name, Principal: "root", Groups: []string{"ops"}, Sha256: sum[:]}
		for _, o := range options {
			o(token)
		}
		_, err := n.access().CreateToken(root, &pb.CreateTokenRequest{Token: token})
		require.NoError(t, err)
	}
	create("first")
	create("expired", func(t *pb.AccessToken) { t.ExpiresAt = timestamppb.New(time.Now().Add(time.Second)) })
	create("other", func(t *pb.AccessToken) { t.Principal = "alice" })
	create("ungrouped", func(t *pb.AccessToken) { t.Groups = nil })
	time.Sleep(2 * time.Second) //nolint:forbidigo // simulated time
	_, err = n.access().RevokeToken(root, &pb.RevokeTokenRequest{Name: "first"})
	require.Equal(t, pb.ErrorReason_ERROR_REASON_LOCK_OUT, reasonOf(err))
	require.Contains(t, err.Error(), "--group ops")
	require.NotContains(t, err.Error(), "access grant")
	create("second")
	_, err = n.access().RevokeToken(root, &pb.RevokeTokenRequest{Name: "first"})
	require.NoError(t, err)
	_, err = n.access().RevokeToken(root, &pb.RevokeTokenRequest{Name: "second", LockOut: true})
	require.NoError(t, err)
}

// Invalid requests are rejected with a reason, and retries are idempotent.
func TestAccessRequests(t *testing.T) { simulated(t, testAccessRequests) }

func testAccessRequests(t *testing.T) {
	n := startNamedAlone(t, nil)
	ctx := as(t.Context(), "root")
	require.NoError(t, n.createAs("root", "q"))
	sum := sha256.Sum256([]byte("lsk_secret"))
	long := strings.Repeat("x", 256)
	for name, tt := range map[string]struct {
		call    func() error
		code    codes.Code
		reports string
	}{
		"no subject": {
			grantOf(ctx, n, &pb.AccessRule{Queue: "q", Rights: []pb.AccessRight{1}}),
			codes.InvalidArgument, "either a principal or a group",
		},
		"two subjects": {
			grantOf(ctx, n, &pb.AccessRule{Principal: "a", Group: "b"}), codes.InvalidArgument,
			"either a principal or a group",
		},
		"no rights": {grantOf(ctx, n, &pb.AccessRule{Principal: "a"}), codes.InvalidArgument, "no rights or roles"},
		"no queue": {
			grantOf(ctx, n, &pb.AccessRule{Principal: "a", Rights: []pb.AccessRight{1}}),
			codes.InvalidArgument, "requires a queue or a pattern",
		},
		"no such right": {
			grantOf(ctx, n, &pb.AccessRule{Principal: "a", Queue: "q", Rights: []pb.AccessRight{99}}),
			codes.InvalidArgument, "unknown right 99",
		},
		"no such role": {
			grantOf(ctx, n, &pb.AccessRule{Principal: "a", Roles: []string{"x"}}), codes.NotFound,
			`no role "x"`,
		},
		"long principal": {
			grantOf(ctx, n, &pb.AccessRule{Principal: long, Queue: "q", Rights: []pb.AccessRight{1}}),
			codes.InvalidArgument, "256 bytes",
		},
		"not printable": {
			grantOf(ctx, n, &pb.AccessRule{Principal: "a\n", Queue: "q", Rights: []pb.AccessRight{1}}),
			codes.InvalidArgument, "non-printable",
		},
		"no rule": {func() error {
			_, err := n.access().Revoke(ctx, &pb.RevokeRequest{Rule: &pb.AccessRule{Principal: "nobody", Queue: "q"}})
			return err
		}, codes.NotFound, `no rule for principal "nobody" and queue "q"`},
		"no token": {func() error {
			_, err := n.access().RevokeToken(ctx, &pb.RevokeTokenRequest{Name: "none"})
			return err
		}, codes.NotFound, "no token"},
		"no quota": {func() error {
			_, err := n.access().DeleteQuota(ctx, &pb.DeleteQuotaRequest{Queue: "none"})
			return err
		}, codes.NotFound, "no quota"},
		"empty quota": {func() error {
			_, err := n.access().PutQuota(ctx, &pb.PutQuotaRequest{Quota: &pb.AccessQuota{Queue: "q"}})
			return err
		}, codes.InvalidArgument, "empty quota"},
		"empty role": {func() error {
			_, err := n.access().PutRole(ctx, &pb.PutRoleRequest{Role: &pb.AccessRole{Name: "r"}})
			return err
		}, codes.InvalidArgument, "no rights"},
		"token without hash": {func() error {
			_, err := n.access().CreateToken(ctx, &pb.CreateTokenRequest{Token: &pb.AccessToken{
				Name:      "t",
				Principal: "p",
			}})
			return err
		}, codes.InvalidArgument, "sha256"},
		"token of anonymous": {func() error {
			_, err := n.access().CreateToken(ctx, &pb.CreateTokenRequest{Token: &pb.AccessToken{
				Name: "t", Principal: "anonymous", Sha256: sum[:],
			}})
			return err
		}, codes.InvalidArgument, "reserved"},
		"test without queue": {func() error {
			_, err := n.access().TestAccess(ctx, &pb.TestAccessRequest{Right: mayPublish})
			return err
		}, codes.InvalidArgument, "queue"},
	} {
		err := tt.call()
		require.Equal(t, tt.code, status.Code(err), "%s: %v", name, err)
		require.Contains(t, err.Error(), tt.reports, name)
	}

	// INV-10: a repeated request is executed once. A different request with the same sequence is rejected.
	p := &pb.Producer{Id: "p", Sequence: 1}
	req := &pb.CreateTokenRequest{Token: &pb.AccessToken{Name: "t", Principal: "p", Sha256: sum[:]}, Producer: p}
	first, err := n.access().CreateToken(ctx, req)
	require.NoError(t, err)
	require.Empty(t, first.GetToken().GetSha256())
	require.Equal(t, "root", first.GetToken().GetCreatedBy())
	p.Retry = true
	again, err := n.access().CreateToken(ctx, req)
	require.NoError(t, err)
	require.Equal(t, first.GetVersion(), again.GetVersion())
	req.Token.Principal = "q"
	_, err = n.access().CreateToken(ctx, req)
	require.Equal(t, codes.InvalidArgument, status.Code(err))
	req.Producer = nil
	_, err = n.access().CreateToken(ctx, req)
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.Equal(t, pb.ErrorReason_ERROR_REASON_TOKEN_EXISTS, reasonOf(err))
	req.Token.Name = "other"
	_, err = n.access().CreateToken(ctx, req)
	require.Equal(t, codes.AlreadyExists, status.Code(err))
	require.Contains(t, err.Error(), "same SHA-256")
	list, err := n.access().ListAccess(ctx, &pb.ListAccessRequest{})
	require.NoError(t, err)
	require.Len(t, list.GetTokens(), 1)
	require.Empty(t, list.GetTokens()[0].GetSha256(), "hashes are not shown")
}

func grantOf(ctx context.Context, n *testNode, rule *pb.AccessRule) func() error {
	return func() error {
		_, err := n.access().Grant(ctx, &pb.GrantRequest{Rule: rule})
		return err
	}
}

// TestAccess returns the rules that grant a right on a queue, to any principal or to a given principal.
func TestTestAccess(t *testing.T) { simulated(t, testTestAccess) }

func testTestAccess(t *testing.T) {
	n := startNamedAlone(t, nil)
	ctx := as(t.Context(), "root")
	query := func(req *pb.TestAccessRequest) *pb.TestAccessResponse {
		resp, err := n.access().TestAccess(ctx, req)
		require.NoError(t, err)
		return resp
	}
	require.True(t, query(&pb.TestAccessRequest{Right: mayPublish, Queue: "orders.eu", Principal: "x"}).GetOpen())
	n.grant("alice", "orders.*", mayPublish)
	n.grant("bob", "orders.eu", mayConsume)
	_, err := n.access().Grant(ctx, &pb.GrantRequest{Rule: &pb.AccessRule{
		Group: "eu-*", Queue: "*.eu", Rights: []pb.AccessRight{mayPublish},
	}})
	require.NoError(t, err)
	all := query(&pb.TestAccessRequest{Right: mayPublish, Queue: "orders.eu"})
	require.True(t, all.GetAllowed())
	require.Len(t, all.GetRules(), 2)
	require.Equal(t, []string{"root"}, all.GetOperators())
	require.False(t, query(&pb.TestAccessRequest{Right: mayPublish, Queue: "orders.eu", Principal: "bob"}).GetAllowed())
	eu := query(&pb.TestAccessRequest{Right: mayPublish, Queue: "orders.eu", Principal: "bob", Groups: []string{"eu-1"}})
	require.True(t, eu.GetAllowed())
	require.Equal(t, "eu-*", eu.GetRules()[0].GetGroup())
	require.True(t, query(&pb.TestAccessRequest{Right: mayOperate, Principal: "root"}).GetAllowed())

	me, err := n.access().WhoAmI(as(t.Context(), "bob:eu-1"), &pb.WhoAmIRequest{})
	require.NoError(t, err)
	require.Equal(t, "bob", me.GetPrincipal())
	require.Equal(t, []string{"eu-1"}, me.GetGroups())
	require.Equal(t, "certificate", me.GetMethod())
	require.Len(t, me.GetRules(), 2)
	me, err = n.access().WhoAmI(t.Context(), &pb.WhoAmIRequest{})
	require.NoError(t, err, "a caller without rights can query its rights")
	require.Equal(t, "anonymous", me.GetPrincipal())
}

// Rules are the same on both nodes, survive a switchover and a restart, and apply on the standby. Calls between
// the nodes remain permitted.
func TestRulesOfAPair(t *testing.T) { simulated(t, testRulesOfAPair) }

func testRulesOfAPair(t *testing.T) {
	etcd := startEtcd(t)
	var nodes []*testNode
	for _, name := range []string{"a", "b"} {
		c := settingsOfPair(t, name, etcd)
		c.Access.Operators = []string{"root"}
		n := startNamed(t, c)
		nodes = append(nodes, n)
		if name == "a" {
			n.waitFor(pb.Role_ROLE_ACTIVE_ALONE)
		}
	}
	a, b := nodes[0], nodes[1]
	root := as(t.Context(), "root")
	b.waitForAs(root, pb.Role_ROLE_STANDBY)
	require.NoError(t, a.createAs("root", "q"))
	a.grant("alice", "q", mayPublish)
	require.NoError(t, a.publishAs("alice", "q", "one"))

	// Within a second, the rules apply to administrative calls on the standby.
	require.Eventually(t, func() bool {
		_, err := b.admin.Checkpoint(as(t.Context(), "alice"), &pb.CheckpointRequest{})
		return status.Code(err) == codes.PermissionDenied
	}, time.Second, 5*time.Millisecond)
	_, err := b.admin.Checkpoint(root, &pb.CheckpointRequest{})
	require.NoError(t, err)
	_, err = b.admin.GetStatus(t.Context(), &pb.GetStatusRequest{})
	denied(t, err)

	// Calls between the nodes are not refused.
	report, err := a.admin.Verify(root, &pb.VerifyRequest{Deep: true})
	require.NoError(t, err)
	require.NotEmpty(t, report.GetNodes())
	_, err = a.admin.Switchover(root, &pb.SwitchoverRequest{})
	require.NoError(t, err)
	b.waitForAs(root, pb.Role_ROLE_ACTIVE)
	require.NoError(t, b.publishAs("alice", "q", "two"))
	denied(t, b.publishAs("bob", "q", "x"))

	a.stop()
	a = startNamed(t, a.config)
	_, err = a.admin.GetStatus(as(t.Context(), "bob"), &pb.GetStatusRequest{})
	denied(t, err)
	a.waitForAs(root, pb.Role_ROLE_STANDBY)
	b.waitForAs(root, pb.Role_ROLE_ACTIVE) // b may become active later than a becomes the standby
	report, err = b.admin.Verify(root, &pb.VerifyRequest{Deep: true})
	require.NoError(t, err)
	b.revoke("alice", "q")
	denied(t, b.publishAs("alice", "q", "x"))
	require.NotNil(t, report)
}

// waitForAs is like waitFor, but uses the context of a caller that has rights.
func (n *testNode) waitForAs(ctx context.Context, role pb.Role) {
	n.t.Helper()
	var last *pb.GetStatusResponse
	require.Eventually(n.t, func() bool {
		resp, err := n.admin.GetStatus(ctx, &pb.GetStatusRequest{})
		last = resp
		return err == nil && resp.GetRole() == role
	}, testTimeout, 5*time.Millisecond, "%v", last)
}

// A node that remote clients can reach reports access-unrestricted until its first rule is created.
func TestUnrestrictedAccessCondition(t *testing.T) { simulated(t, testUnrestrictedAccessCondition) }

func testUnrestrictedAccessCondition(t *testing.T) {
	n := startNamedAlone(
		t,
		func(c *config.Config) { c.Listen, c.Advertise, c.Insecure = "0.0.0.0:0", "127.0.0.1:7420", true },
	)
	n.waitCondition(conditions.AccessUnrestricted, "a", true)
	_, err := n.access().Grant(as(t.Context(), "root"), &pb.GrantRequest{Rule: &pb.AccessRule{
		Principal: "anonymous", Rights: []pb.AccessRight{mayOperate},
	}})
	require.NoError(t, err)
	n.waitCondition(conditions.AccessUnrestricted, "a", false)
}

// With access.mode deny and no rules, only operators have rights.
func TestDenyWithoutRules(t *testing.T) { simulated(t, testDenyWithoutRules) }

func testDenyWithoutRules(t *testing.T) {
	c := settings(t, "a")
	c.Access = config.Access{Mode: "deny", Operators: []string{"root"}}
	n := startNamed(t, c)
	n.waitForAs(as(t.Context(), "root"), pb.Role_ROLE_ACTIVE_ALONE)
	require.NoError(t, n.createAs("root", "q"))
	denied(t, n.publishAs("alice", "q", "x"), `"alice"`)
	n.grant("alice", "q", mayPublish)
	require.NoError(t, n.publishAs("alice", "q", "x"))
	n.revoke("alice", "q")
	denied(t, n.publishAs("alice", "q", "x"))
}
