// SPDX-License-Identifier: Apache-2.0

package admin

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/lockstep-mq/lockstep/client"
	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// TokenPrefix is the prefix of tokens created by [NewToken].
const TokenPrefix = "lsk_"

const tokenBytes = 32

// NewToken creates a token with a secret of 256 random bits. [Client.CreateToken] registers it with a pair.
func NewToken() string {
	var secret [tokenBytes]byte
	_, _ = rand.Read(secret[:]) // it never fails
	return TokenPrefix + base64.RawURLEncoding.EncodeToString(secret[:])
}

func accessService(cc *grpc.ClientConn) pb.AccessServiceClient { return pb.NewAccessServiceClient(cc) }

// WhoAmI returns the principal and the permissions that the active node assigns to this client.
func (c *Client) WhoAmI(ctx context.Context) (*pb.WhoAmIResponse, error) {
	return call(ctx, c.conns.Read, "whoami", &pb.WhoAmIRequest{}, accessService, pb.AccessServiceClient.WhoAmI)
}

// ListAccess returns all rules, roles, quotas and tokens. Tokens are returned without their hashes. ListAccess
// requires the operate permission.
func (c *Client) ListAccess(ctx context.Context) (*pb.ListAccessResponse, error) {
	return call(ctx, c.conns.Read, "list the rules", &pb.ListAccessRequest{}, accessService,
		pb.AccessServiceClient.ListAccess)
}

// TestAccess reports whether a principal has a permission, and returns the rules that grant it. If the request has
// neither a principal nor groups, it returns all rules that grant the permission. TestAccess requires the operate
// permission.
func (c *Client) TestAccess(ctx context.Context, req *pb.TestAccessRequest) (*pb.TestAccessResponse, error) {
	return call(ctx, c.conns.Read, "test the rules", req, accessService, pb.AccessServiceClient.TestAccess)
}

// Grant adds permissions and roles to a rule, and creates the rule if necessary. With lockOut, the change is made
// even if this client loses its own operate permission. All calls that change rules require the operate permission.
// Errors include [client.ErrRefused] if the rules were changed concurrently, if this client would lose its own
// operate permission, or if a node does not support rules; [client.ErrInvalid]; [ErrNoRule] if a role in rule does
// not exist; [client.ErrLimit].
func (c *Client) Grant(ctx context.Context, rule *pb.AccessRule, lockOut bool) (*pb.AccessRule, error) {
	resp, err := changeBy(ctx, c, "grant", &pb.GrantRequest{Rule: rule, LockOut: lockOut}, accessService,
		pb.AccessServiceClient.Grant)
	return resp.GetRule(), err
}

// Revoke removes the permissions and roles in rule from the stored rule of the same subject. If rule contains neither
// permissions nor roles, the stored rule is deleted. Revoke returns the remaining rule, or nil if no rule remains.
// lockOut has the same meaning as in [Client.Grant]. Errors include those of Grant; [ErrNoRule] if the stored rule
// does not exist or lacks one of the permissions or roles.
func (c *Client) Revoke(
	ctx context.Context, rule *pb.AccessRule, lockOut bool,
) (*pb.AccessRule, error) {
	resp, err := changeBy(ctx, c, "revoke", &pb.RevokeRequest{Rule: rule, LockOut: lockOut}, accessService,
		pb.AccessServiceClient.Revoke)
	return resp.GetRule(), err
}

// PutRole creates a role, or replaces the role with the same name. lockOut and the errors are those of
// [Client.Grant].
func (c *Client) PutRole(
	ctx context.Context, role *pb.AccessRole, lockOut bool,
) (*pb.AccessRole, error) {
	resp, err := changeBy(ctx, c, "role "+role.GetName(), &pb.PutRoleRequest{Role: role, LockOut: lockOut},
		accessService, pb.AccessServiceClient.PutRole)
	return resp.GetRole(), err
}

// DeleteRole deletes a role. Errors include [ErrNoRule] if the role does not exist, [client.ErrRefused] while a rule
// contains the role.
func (c *Client) DeleteRole(ctx context.Context, name string) error {
	_, err := changeBy(ctx, c, "delete role "+name, &pb.DeleteRoleRequest{Name: name}, accessService,
		pb.AccessServiceClient.DeleteRole)
	return err
}

// CreateToken registers a token created by [NewToken], or another secret of at least 32 bytes. A client that presents
// the token is authenticated as the principal in info. Only the SHA-256 hash of the token is sent to the pair. Errors
// include [client.ErrInvalid] for a shorter token; [client.ErrAlreadyExists] if the pair has a token with this name
// or hash.
func (c *Client) CreateToken(
	ctx context.Context, token string, info *pb.AccessToken,
) (*pb.AccessToken, error) {
	const least = 32
	if len(token) < least {
		return nil, fmt.Errorf("create token %s: %w: a token of %d bytes is too short; use NewToken", info.GetName(),
			client.ErrInvalid, len(token))
	}
	info = proto.CloneOf(info)
	sum := sha256.Sum256([]byte(token))
	info.Sha256 = sum[:]
	resp, err := changeBy(ctx, c, "create token "+info.GetName(), &pb.CreateTokenRequest{Token: info}, accessService,
		pb.AccessServiceClient.CreateToken)
	return resp.GetToken(), err
}

// RevokeToken revokes the token with the given name: clients that present the token are no longer authenticated.
// Without lockOut, it is refused if this client would lose its own operate permission, or if this client uses a token
// and its principal would have no other one. Errors include [ErrNoRule].
func (c *Client) RevokeToken(ctx context.Context, name string, lockOut bool) error {
	_, err := changeBy(ctx, c, "revoke token "+name, &pb.RevokeTokenRequest{Name: name, LockOut: lockOut},
		accessService, pb.AccessServiceClient.RevokeToken)
	return err
}

// PutQuota creates or replaces the quota of the queues that match the pattern quota.Queue. Errors include
// [client.ErrInvalid].
func (c *Client) PutQuota(ctx context.Context, quota *pb.AccessQuota) (*pb.AccessQuota, error) {
	resp, err := changeBy(ctx, c, "quota of "+quota.GetQueue(), &pb.PutQuotaRequest{Quota: quota}, accessService,
		pb.AccessServiceClient.PutQuota)
	return resp.GetQuota(), err
}

// DeleteQuota deletes the quota of a queue pattern. Errors include [ErrNoRule] if the pattern has no quota.
func (c *Client) DeleteQuota(ctx context.Context, pattern string) error {
	_, err := changeBy(ctx, c, "delete the quota of "+pattern, &pb.DeleteQuotaRequest{Queue: pattern}, accessService,
		pb.AccessServiceClient.DeleteQuota)
	return err
}
