// SPDX-License-Identifier: Apache-2.0

// Package rpc implements lockstep.v1.AccessService, which manages access rules. A change is committed only if the
// access table has not changed since the node read it.
package rpc

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/crc32"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/lockstep-mq/lockstep/failover"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/apierror"
	"github.com/lockstep-mq/lockstep/server/api/protoconv"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/server/delivery/session"
	"github.com/lockstep-mq/lockstep/store"
	"github.com/lockstep-mq/lockstep/store/query"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const peerSecretBytes = 32

// Options configures New.
type Options struct {
	Serving *session.Current // contains a session while this node is active
	Store   *store.Store
	Rules   *access.Rules
	Load    func()                               // updates Rules from the store
	Used    func(pattern string) *pb.AccessQuota // returns the usage of the queues that match a pattern
	Alone   bool                                 // the node is standalone
}

// Service implements lockstep.v1.AccessService.
type Service struct {
	pb.UnimplementedAccessServiceServer

	o  Options
	mu sync.Mutex // held from the read of the table until its change is committed
}

// New creates the service.
func New(o Options) *Service { return &Service{o: o} }

type request interface {
	proto.Message
	GetProducer() *pb.Producer
}

type plan func(t *access.Table) ([]txn.AccessChange, error)

// change executes a request and returns the version of the table. In a pair, the first change also adds the peer
// secret. If the same request was executed before, change returns the stored result (INV-10).
func (s *Service) change(ctx context.Context, req request, lockOut bool, decide plan) (version uint64, err error) {
	session, err := s.o.Serving.Session()
	if err != nil {
		return 0, err
	}
	if err := s.o.Serving.Require(session, failover.FeatureAccess); err != nil {
		return 0, err
	}
	producer, err := protoconv.Producer(req.GetProducer())
	if err != nil {
		return 0, err
	}
	asked := checksum(req)
	s.mu.Lock()
	defer s.mu.Unlock()
	prior, err := query.Lookup(s.o.Store, producer, req.GetProducer().GetRetry(), nil)
	if err != nil {
		return 0, err
	}
	if prior != nil {
		if err := s.checkSame(producer, prior, asked); err != nil {
			return 0, err
		}
		return result(&prior.Result, true)
	}
	at, entries := query.Access(s.o.Store)
	table, err := access.Compile(at, entries)
	if err != nil {
		return 0, fmt.Errorf("%w; upgrade this node before changing rules", err)
	}
	changes, err := decide(table)
	if err != nil {
		return 0, err
	}
	if !s.o.Alone && !table.HasPeerSecret() {
		secret := [peerSecretBytes]byte{}
		_, _ = rand.Read(secret[:]) // never returns an error
		changes = append(changes, txn.AccessChange{Kind: access.KindPeer, Name: []byte(access.PeerName), Value: secret[:]})
	}
	if !lockOut {
		if err := s.checkLockOut(ctx, at, entries, changes); err != nil {
			return 0, err
		}
	}
	var b txn.Builder
	b.Begin(nil, time.Now().UnixMilli(), producer)
	b.ChangeAccess(at, asked, changes)
	payload, err := b.Finish()
	if err != nil {
		return 0, fmt.Errorf("encode the change: %w", err)
	}
	r, err := session.Primary.Commit(ctx, payload)
	if err != nil {
		return 0, err
	}
	s.o.Load() // the rules must apply before the caller receives the response
	return result(r, producer != nil)
}

func result(r *txn.Result, kept bool) (uint64, error) {
	if err := apierror.Refusal(r, kept); err != nil {
		return 0, err
	}
	return r.LSN, nil
}

func (s *Service) checkLockOut(ctx context.Context, at uint64, entries []queue.AccessEntry, changes []txn.AccessChange,
) error {
	id := access.FromContext(ctx)
	next, err := access.Compile(at, after(entries, changes))
	if err != nil {
		return err
	}
	rules := s.o.Rules.WithTable(next)
	if rules.May(id, access.Operate, "") == nil {
		operates := func(t *pb.AccessToken) bool {
			expired := t.GetExpiresAt() != nil && !time.Now().Before(t.GetExpiresAt().AsTime())
			by := &access.Identity{Principal: t.GetPrincipal(), Groups: t.GetGroups(), Method: access.MethodToken}
			return t.GetPrincipal() == id.Principal && !expired && rules.May(by, access.Operate, "") == nil
		}
		if id.Method != access.MethodToken || slices.ContainsFunc(sorted(next.Tokens()), operates) {
			return nil
		}
		groups := ""
		if len(id.Groups) > 0 {
			groups = " --group " + strings.Join(id.Groups, ",")
		}
		return fmt.Errorf("%w: %q would have no token with the operate right; create another one first: lockstep access "+
			"token create NAME --principal %s%s; or force the change with --lock-out", access.ErrLockOut, id.Principal,
			id.Principal, groups)
	}
	if id.Principal == access.Anonymous {
		return fmt.Errorf("%w: caller has neither a client certificate nor a token, and would lose the operate right. "+
			"Grant operate to your user, log in and try again; or add "+
			"the user to the setting access.operators; or force the change with --lock-out", access.ErrLockOut)
	}
	return fmt.Errorf("%w: %q would lose the operate right; grant it first: lockstep access grant %s operate; or force "+
		"the change with --lock-out", access.ErrLockOut, id.Principal, id.Principal)
}

func after(entries []queue.AccessEntry, changes []txn.AccessChange) []queue.AccessEntry {
	type name struct {
		kind byte
		name string
	}
	changed := make(map[name]bool, len(changes))
	var next []queue.AccessEntry
	for i := range changes {
		c := &changes[i]
		changed[name{c.Kind, string(c.Name)}] = true
		if !c.Remove {
			next = append(next, queue.AccessEntry{Kind: c.Kind, Name: string(c.Name), Value: c.Value})
		}
	}
	for _, e := range entries {
		if !changed[name{e.Kind, e.Name}] {
			next = append(next, e)
		}
	}
	return next
}

// checksum returns a checksum of a request without its producer. It returns 0 only if the request cannot be
// encoded.
func checksum(req request) uint32 {
	bare := proto.Clone(req).ProtoReflect()
	bare.Clear(bare.Descriptor().Fields().ByName("producer"))
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(bare.Interface())
	if err != nil {
		return 0 // unreachable: the request was decoded before
	}
	sum := crc32.Checksum(append([]byte(bare.Descriptor().Name()), raw...), crc32.MakeTable(crc32.Castagnoli))
	return max(sum, 1) // 0 means unknown
}

// checkSame returns an error if a different request has used the producer's sequence. It compares the checksums of
// the two requests. It returns nil if the checksum of the earlier request is no longer stored.
func (s *Service) checkSame(p *txn.Producer, prior *query.Prior, asked uint32) error {
	known := prior.Fingerprint
	if known == 0 && prior.Result.Code == txn.OK {
		known = query.LoggedFingerprint(s.o.Store, prior.Result.LSN)
	}
	op := txn.Op{Code: txn.OpAccess, Requested: asked}
	if known == 0 || known == op.Fingerprint(0, crc32.MakeTable(crc32.Castagnoli)) {
		return nil
	}
	return fmt.Errorf("%w: sequence %d of producer %q was used for another request; a retry must send the "+
		"same request, a new request must use the next sequence", apierror.ErrSequenceReused, p.Sequence, p.ID)
}

// status converts an error to a gRPC status. If the node is not active, the status contains the address of the active
// node, if known.
func (s *Service) status(op string, err error) error {
	return apierror.ToStatus(fmt.Errorf("%s: %w", op, apierror.WithRedirect(err, s.o.Serving.NotActive)))
}

func put(kind byte, name string, m proto.Message) ([]txn.AccessChange, error) {
	raw, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", apierror.ErrInvalid, err)
	}
	if len(raw) > txn.MaxAccessValueBytes {
		return nil, fmt.Errorf("%w: entry has %d bytes, maximum is %d; use globs, groups or roles", access.ErrInvalid,
			len(raw), txn.MaxAccessValueBytes)
	}
	return []txn.AccessChange{{Kind: kind, Name: []byte(name), Value: raw}}, nil
}

func remove(kind byte, name string) []txn.AccessChange {
	return []txn.AccessChange{{Kind: kind, Name: []byte(name), Remove: true}}
}

func by(ctx context.Context) (string, *timestamppb.Timestamp) {
	return access.FromContext(ctx).Principal, timestamppb.New(time.Now().Truncate(time.Millisecond))
}
