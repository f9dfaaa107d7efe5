// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"crypto/sha256"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/store/txn"
)

const maxGroups = 32 // maximum number of groups of a token

// CreateToken creates a token. The request contains only the hash of the token.
func (s *Service) CreateToken(ctx context.Context, req *pb.CreateTokenRequest) (*pb.CreateTokenResponse, error) {
	token := proto.CloneOf(req.GetToken())
	err := checkToken(token)
	var version uint64
	if err == nil {
		version, err = s.change(ctx, req, false, func(t *access.Table) ([]txn.AccessChange, error) {
			if at := token.GetExpiresAt(); at != nil && !at.AsTime().After(time.Now()) {
				return nil, fmt.Errorf("%w: expires_at %s is in the past", access.ErrInvalid, at.AsTime().Format(time.RFC3339))
			}
			if t.Tokens()[token.GetName()] != nil {
				return nil, fmt.Errorf("%w: %q; revoke it first, or use another name",
					access.ErrTokenExists, token.GetName())
			}
			if _, _, _, known := t.Token([sha256.Size]byte(token.GetSha256())); known {
				return nil, fmt.Errorf("%w: token of another name has the same SHA-256", access.ErrTokenExists)
			}
			token.CreatedBy, token.CreatedAt = by(ctx)
			return put(access.KindToken, token.GetName(), token)
		})
	}
	if err != nil {
		return nil, s.status("create the token", err)
	}
	return &pb.CreateTokenResponse{Token: withoutHash(token), Version: version}, nil
}

func checkToken(t *pb.AccessToken) error {
	if err := txn.CheckName(t.GetName()); err != nil {
		return err
	}
	if err := checkText("principal", t.GetPrincipal(), false); err != nil {
		return err
	}
	if t.GetPrincipal() == access.Anonymous {
		return fmt.Errorf("%w: %q is reserved for callers without credentials", access.ErrInvalid, access.Anonymous)
	}
	if n := len(t.GetGroups()); n > maxGroups {
		return fmt.Errorf("%w: %d groups, maximum is %d", access.ErrInvalid, n, maxGroups)
	}
	for _, g := range t.GetGroups() {
		if err := checkText("group", g, false); err != nil {
			return err
		}
	}
	if len(t.GetSha256()) != sha256.Size {
		return fmt.Errorf("%w: sha256 has %d bytes; must be the SHA-256 of the token, 32 bytes",
			access.ErrInvalid, len(t.GetSha256()))
	}
	if t.ExpiresAt != nil && !t.GetExpiresAt().IsValid() {
		return fmt.Errorf("%w: expires_at is not a valid time", access.ErrInvalid)
	}
	return nil
}

func withoutHash(t *pb.AccessToken) *pb.AccessToken {
	t = proto.CloneOf(t)
	t.Sha256 = nil
	return t
}

// RevokeToken revokes a token.
func (s *Service) RevokeToken(ctx context.Context, req *pb.RevokeTokenRequest) (*pb.RevokeTokenResponse, error) {
	version, err := s.change(ctx, req, req.GetLockOut(), func(t *access.Table) ([]txn.AccessChange, error) {
		if t.Tokens()[req.GetName()] == nil {
			return nil, fmt.Errorf("%w: no token %q", access.ErrNotFound, req.GetName())
		}
		return remove(access.KindToken, req.GetName()), nil
	})
	if err != nil {
		return nil, s.status("revoke the token", err)
	}
	return &pb.RevokeTokenResponse{Version: version}, nil
}

// PutQuota sets the quota of a queue pattern.
func (s *Service) PutQuota(ctx context.Context, req *pb.PutQuotaRequest) (*pb.PutQuotaResponse, error) {
	quota := proto.CloneOf(req.GetQuota())
	err := checkText("queue", quota.GetQueue(), false)
	if err == nil &&
		quota.GetQueues()|quota.GetBytes()|quota.GetMessagesPerSecond()|quota.GetConnections() == 0 {
		err = fmt.Errorf("%w: empty quota; set queues, bytes, messages_per_second or connections", access.ErrInvalid)
	}
	var version uint64
	if err == nil {
		version, err = s.change(ctx, req, false, func(_ *access.Table) ([]txn.AccessChange, error) {
			quota.ChangedBy, quota.ChangedAt = by(ctx)
			return put(access.KindQuota, quota.GetQueue(), quota)
		})
	}
	if err != nil {
		return nil, s.status("set the quota", err)
	}
	return &pb.PutQuotaResponse{Quota: quota, Version: version}, nil
}

// DeleteQuota deletes the quota of a queue pattern.
func (s *Service) DeleteQuota(ctx context.Context, req *pb.DeleteQuotaRequest) (*pb.DeleteQuotaResponse, error) {
	version, err := s.change(ctx, req, false, func(t *access.Table) ([]txn.AccessChange, error) {
		if !slices.ContainsFunc(t.Quotas(), func(q *pb.AccessQuota) bool { return q.GetQueue() == req.GetQueue() }) {
			return nil, fmt.Errorf("%w: no quota for %q", access.ErrNotFound, req.GetQueue())
		}
		return remove(access.KindQuota, req.GetQueue()), nil
	})
	if err != nil {
		return nil, s.status("delete the quota", err)
	}
	return &pb.DeleteQuotaResponse{Version: version}, nil
}
