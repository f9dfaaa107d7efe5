// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
)

// WhoAmI returns the identity and the rights of the caller.
func (s *Service) WhoAmI(ctx context.Context, req *pb.WhoAmIRequest) (*pb.WhoAmIResponse, error) {
	id := access.FromContext(ctx)
	rules, operators := s.o.Rules.Applicable(id)
	return &pb.WhoAmIResponse{
		Principal: id.Principal, Groups: id.Groups, Method: id.Method.String(), Open: s.o.Rules.Open(),
		BootstrapOperator: len(operators) > 0, Rules: byName(rules),
		Rights: access.RightsToProto(s.o.Rules.Rights(id, req.GetQueue())),
	}, nil
}

// ListAccess returns the rules, roles, tokens and quotas, with the usage of each quota. Tokens are returned without
// their hashes. The secret of the nodes is not returned.
func (s *Service) ListAccess(context.Context, *pb.ListAccessRequest) (*pb.ListAccessResponse, error) {
	if _, err := s.o.Serving.Session(); err != nil {
		return nil, s.status("list", err)
	}
	t, setting := s.o.Rules.Table(), s.o.Rules.Setting()
	resp := &pb.ListAccessResponse{
		Version: t.Version(), Mode: "open", Operators: setting.Operators, Rules: byName(t.Rules()), Roles: sorted(t.Roles()),
		Quotas: t.Quotas(),
	}
	if setting.Deny {
		resp.Mode = "deny"
	}
	for _, token := range sorted(t.Tokens()) {
		resp.Tokens = append(resp.Tokens, withoutHash(token))
	}
	for _, q := range t.Quotas() {
		resp.Used = append(resp.Used, s.o.Used(q.GetQueue()))
	}
	return resp, nil
}

func byName(rules []*pb.AccessRule) []*pb.AccessRule {
	rules = slices.Clone(rules)
	slices.SortFunc(rules, func(a, b *pb.AccessRule) int {
		return cmp.Or(cmp.Compare(a.GetPrincipal(), b.GetPrincipal()), cmp.Compare(a.GetGroup(), b.GetGroup()),
			cmp.Compare(a.GetQueue(), b.GetQueue()))
	})
	return rules
}

// TestAccess reports whether an identity has a right, and returns the rules that grant this right to the identity. If
// the request names no identity, it returns all rules that grant the right.
func (s *Service) TestAccess(_ context.Context, req *pb.TestAccessRequest) (*pb.TestAccessResponse, error) {
	right := access.RightsFromProto([]pb.AccessRight{req.GetRight()})
	switch {
	case right == 0:
		return nil, s.status("test", fmt.Errorf("%w: unknown right %d", access.ErrInvalid, req.GetRight()))
	case right&access.QueueRights != 0 && req.GetQueue() == "":
		return nil, s.status("test", fmt.Errorf("%w: right %s requires a queue", access.ErrInvalid, right))
	case right&access.QueueRights == 0 && req.GetQueue() != "":
		return nil, s.status("test", fmt.Errorf("%w: right %s does not apply to queues", access.ErrInvalid, right))
	}
	resp := &pb.TestAccessResponse{Open: s.o.Rules.Open(), Operators: s.o.Rules.Setting().Operators}
	rules := s.o.Rules.Table().Granting(right, req.GetQueue())
	if req.GetPrincipal() != "" || len(req.GetGroups()) > 0 {
		id := &access.Identity{Principal: cmp.Or(req.GetPrincipal(), access.Anonymous), Groups: req.GetGroups()}
		about, operators := s.o.Rules.Applicable(id)
		resp.Operators = operators
		rules = slices.DeleteFunc(rules, func(r *pb.AccessRule) bool { return !slices.Contains(about, r) })
		resp.Allowed = s.o.Rules.May(id, right, req.GetQueue()) == nil
	} else {
		resp.Allowed = resp.GetOpen() || len(resp.GetOperators())+len(rules) > 0
	}
	resp.Rules = byName(rules)
	return resp, nil
}
