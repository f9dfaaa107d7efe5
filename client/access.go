// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TokenPrefix begins the tokens that NewToken makes.
const TokenPrefix = "lsk_"

// tokenBytes is how many random bytes a token has.
const tokenBytes = 32

// NewToken makes a token that CreateToken can make known to a pair: a secret of 256 random bits.
func NewToken() string {
	var secret [tokenBytes]byte
	_, _ = rand.Read(secret[:]) // it never fails
	return TokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
}

func accessService(cc *grpc.ClientConn) pb.AccessServiceClient { return pb.NewAccessServiceClient(cc) }

// WhoAmI tells whom the active node takes this client for, and what it may do. Errors: ErrUnavailable, ErrDenied.
func (c *Client) WhoAmI(ctx context.Context) (resp *pb.WhoAmIResponse, err error) {
	err = c.do(ctx, "who am I", nil, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = accessService(cc).WhoAmI(ctx, &pb.WhoAmIRequest{})
		return err
	})
	return resp, err
}

// ListAccess returns all rules, roles, quotas, and tokens without their hashes. It needs the right to operate. Errors:
// ErrUnavailable, ErrDenied.
func (c *Client) ListAccess(ctx context.Context) (resp *pb.ListAccessResponse, err error) {
	err = c.do(ctx, "list the rules", nil, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = accessService(cc).ListAccess(ctx, &pb.ListAccessRequest{})
		return err
	})
	return resp, err
}

// TestAccess tells whether somebody may do something, or everybody who may. It needs the right to operate. Errors:
// ErrUnavailable, ErrDenied, ErrInvalid.
func (c *Client) TestAccess(ctx context.Context, req *pb.TestAccessRequest) (resp *pb.TestAccessResponse, err error) {
	err = c.do(ctx, "test the rules", nil, func(ctx context.Context, cc *grpc.ClientConn) (err error) {
		resp, err = accessService(cc).TestAccess(ctx, req)
		return err
	})
	return resp, err
}

// Grant adds rights and roles to a rule, or makes it. With lockOut it is done although this client loses its own right
// to operate by that. The calls that change rules need the right to operate, and can be made again after
// ErrOutcomeUnknown with the Request that they were given, if any. Errors of all of them: ErrRefused when the rules
// were changed at the same time, when this client would lose its own right to operate, and while one of the nodes does
// not know rules; ErrInvalid, ErrNoRule, ErrLimit, ErrDenied, ErrUnavailable.
func (c *Client) Grant(ctx context.Context, rule *pb.AccessRule, lockOut bool, as ...*Request) (*pb.AccessRule, error) {
	resp, err := changeBy(ctx, c, "grant", &pb.GrantRequest{Rule: rule, LockOut: lockOut}, as, accessService,
		pb.AccessServiceClient.Grant)
	return resp.GetRule(), err
}

// Revoke takes rights and roles away from a rule; all of them if rule names none. It returns what is left of the rule;
// nil for nothing. lockOut as in Grant.
func (c *Client) Revoke(
	ctx context.Context, rule *pb.AccessRule, lockOut bool, as ...*Request,
) (*pb.AccessRule, error) {
	resp, err := changeBy(ctx, c, "revoke", &pb.RevokeRequest{Rule: rule, LockOut: lockOut}, as, accessService,
		pb.AccessServiceClient.Revoke)
	return resp.GetRule(), err
}

// PutRole makes a role, or replaces it. lockOut as in Grant.
func (c *Client) PutRole(
	ctx context.Context, role *pb.AccessRole, lockOut bool, as ...*Request,
) (*pb.AccessRole, error) {
	resp, err := changeBy(ctx, c, "role "+role.GetName(), &pb.PutRoleRequest{Role: role, LockOut: lockOut}, as,
		accessService, pb.AccessServiceClient.PutRole)
	return resp.GetRole(), err
}

// DeleteRole removes a role that no rule has.
func (c *Client) DeleteRole(ctx context.Context, name string, as ...*Request) error {
	_, err := changeBy(ctx, c, "delete role "+name, &pb.DeleteRoleRequest{Name: name}, as, accessService,
		pb.AccessServiceClient.DeleteRole)
	return err
}

// CreateToken makes a token known to the pair, which NewToken has made: who shows it is the principal that info names.
// The pair learns its SHA-256 only.
func (c *Client) CreateToken(
	ctx context.Context, token string, info *pb.AccessToken, as ...*Request,
) (*pb.AccessToken, error) {
	const least = 32
	if len(token) < least {
		return nil, fmt.Errorf("create token %s: %w: a token of %d bytes can be guessed; take NewToken", info.GetName(),
			ErrInvalid, len(token))
	}
	info = proto.CloneOf(info)
	sum := sha256.Sum256([]byte(token))
	info.Sha256 = sum[:]
	resp, err := changeBy(ctx, c, "create token "+info.GetName(), &pb.CreateTokenRequest{Token: info}, as, accessService,
		pb.AccessServiceClient.CreateToken)
	return resp.GetToken(), err
}

// RevokeToken makes a token invalid, by its name. lockOut as in Grant.
func (c *Client) RevokeToken(ctx context.Context, name string, lockOut bool, as ...*Request) error {
	_, err := changeBy(ctx, c, "revoke token "+name, &pb.RevokeTokenRequest{Name: name, LockOut: lockOut}, as,
		accessService, pb.AccessServiceClient.RevokeToken)
	return err
}

// PutQuota sets the quota of a queue pattern.
func (c *Client) PutQuota(ctx context.Context, quota *pb.AccessQuota, as ...*Request) (*pb.AccessQuota, error) {
	resp, err := changeBy(ctx, c, "quota of "+quota.GetQueue(), &pb.PutQuotaRequest{Quota: quota}, as, accessService,
		pb.AccessServiceClient.PutQuota)
	return resp.GetQuota(), err
}

// DeleteQuota removes the quota of a queue pattern.
func (c *Client) DeleteQuota(ctx context.Context, pattern string, as ...*Request) error {
	_, err := changeBy(ctx, c, "delete the quota of "+pattern, &pb.DeleteQuotaRequest{Queue: pattern}, as, accessService,
		pb.AccessServiceClient.DeleteQuota)
	return err
}
