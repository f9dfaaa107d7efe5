// SPDX-License-Identifier: Apache-2.0

package rpc

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/auth/access"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Grant adds rights and roles to a rule. It creates the rule if it does not exist. The first rule makes
// access.Table.Closed true.
func (s *Service) Grant(ctx context.Context, req *pb.GrantRequest) (*pb.GrantResponse, error) {
	asked := req.GetRule()
	err := checkRule(asked)
	var granted *pb.AccessRule
	var version uint64
	if err == nil {
		version, err = s.change(ctx, req, req.GetLockOut(), func(t *access.Table) ([]txn.AccessChange, error) {
			granted, err = grant(t, asked)
			if err != nil {
				return nil, err
			}
			granted.ChangedBy, granted.ChangedAt = by(ctx)
			changes, err := put(access.KindRule, access.RuleName(granted), granted)
			if err == nil && !t.Closed() {
				changes = append(changes, txn.AccessChange{Kind: access.KindMode, Name: []byte(access.ModeName)})
			}
			return changes, err
		})
	}
	if err != nil {
		return nil, s.status("grant", err)
	}
	if granted == nil { // an earlier attempt has granted it
		granted = s.o.Rules.Table().Rule(asked)
	}
	return &pb.GrantResponse{Rule: granted, Version: version}, nil
}

func grant(t *access.Table, asked *pb.AccessRule) (*pb.AccessRule, error) {
	rule := proto.CloneOf(t.Rule(asked))
	if rule == nil {
		rule = &pb.AccessRule{Principal: asked.GetPrincipal(), Group: asked.GetGroup(), Queue: asked.GetQueue()}
	}
	rights := access.RightsFromProto(asked.GetRights())
	if rights == 0 && len(asked.GetRoles()) == 0 {
		return nil, fmt.Errorf("%w: no rights or roles specified", access.ErrInvalid)
	}
	if asked.GetQueue() == "" && rights&access.QueueRights != 0 {
		return nil, fmt.Errorf("%w: right %s requires a queue or a pattern such as %q or %q",
			access.ErrInvalid, rights&access.QueueRights, "orders.*", "*")
	}
	for _, name := range asked.GetRoles() {
		if t.Roles()[name] == nil {
			return nil, fmt.Errorf("%w: no role %q; create it first", access.ErrNotFound, name)
		}
		if !slices.Contains(rule.GetRoles(), name) {
			rule.Roles = append(rule.Roles, name)
		}
	}
	slices.Sort(rule.Roles)
	rule.Rights = access.RightsToProto(access.RightsFromProto(rule.GetRights()) | rights)
	return rule, nil
}

// Revoke removes rights and roles from a rule. If the request contains neither, it removes all of them. A rule without
// rights and roles is deleted.
func (s *Service) Revoke(ctx context.Context, req *pb.RevokeRequest) (*pb.RevokeResponse, error) {
	asked := req.GetRule()
	err := checkRule(asked)
	var version uint64
	if err == nil {
		version, err = s.change(ctx, req, req.GetLockOut(), func(t *access.Table) ([]txn.AccessChange, error) {
			left, err := revoke(t, asked)
			if err != nil {
				return nil, err
			}
			if len(left.GetRights())+len(left.GetRoles()) == 0 {
				return remove(access.KindRule, access.RuleName(left)), nil
			}
			left.ChangedBy, left.ChangedAt = by(ctx)
			return put(access.KindRule, access.RuleName(left), left)
		})
	}
	if err != nil {
		return nil, s.status("revoke", err)
	}
	return &pb.RevokeResponse{Rule: s.o.Rules.Table().Rule(asked), Version: version}, nil
}

func revoke(t *access.Table, asked *pb.AccessRule) (*pb.AccessRule, error) {
	rule := proto.CloneOf(t.Rule(asked))
	if rule == nil {
		return nil, fmt.Errorf("%w: no rule for %s; `lockstep access list` shows all rules",
			access.ErrNotFound, subject(asked))
	}
	if len(asked.GetRights())+len(asked.GetRoles()) == 0 {
		rule.Rights, rule.Roles = nil, nil
		return rule, nil
	}
	rights, has := access.RightsFromProto(asked.GetRights()), access.RightsFromProto(rule.GetRights())
	if missing := rights &^ has; missing != 0 {
		return nil, fmt.Errorf("%w: rule for %s does not grant %s, only %s", access.ErrNotFound, subject(asked), missing, has)
	}
	for _, name := range asked.GetRoles() {
		if !slices.Contains(rule.GetRoles(), name) {
			return nil, fmt.Errorf("%w: rule for %s has no role %q", access.ErrNotFound, subject(asked), name)
		}
	}
	rule.Rights = access.RightsToProto(has &^ rights)
	rule.Roles = slices.DeleteFunc(rule.Roles, func(n string) bool { return slices.Contains(asked.GetRoles(), n) })
	return rule, nil
}

func subject(r *pb.AccessRule) string {
	s := fmt.Sprintf("principal %q", r.GetPrincipal())
	if r.GetGroup() != "" {
		s = fmt.Sprintf("group %q", r.GetGroup())
	}
	if r.GetQueue() == "" {
		return s + " without a queue"
	}
	return s + fmt.Sprintf(" and queue %q", r.GetQueue())
}

func checkRule(r *pb.AccessRule) error {
	if (r.GetPrincipal() == "") == (r.GetGroup() == "") {
		return fmt.Errorf("%w: specify either a principal or a group", access.ErrInvalid)
	}
	for label, text := range map[string]string{
		"principal": r.GetPrincipal(), "group": r.GetGroup(), "queue": r.GetQueue(),
	} {
		if err := checkText(label, text, true); err != nil {
			return err
		}
	}
	return checkRights(r.GetRights())
}

func checkText(label, text string, mayBeEmpty bool) error {
	switch {
	case text == "" && !mayBeEmpty:
		return fmt.Errorf("%w: missing %s", access.ErrInvalid, label)
	case len(text) > txn.MaxNameBytes:
		return fmt.Errorf("%w: %s has %d bytes, maximum is %d", access.ErrInvalid, label, len(text), txn.MaxNameBytes)
	case strings.ContainsFunc(text, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\uFFFD' }):
		return fmt.Errorf("%w: %s has non-printable characters", access.ErrInvalid, label)
	}
	return nil
}

func checkRights(rights []pb.AccessRight) error {
	for _, r := range rights {
		if access.RightsFromProto([]pb.AccessRight{r}) == 0 {
			return fmt.Errorf("%w: unknown right %d", access.ErrInvalid, r)
		}
	}
	return nil
}

// PutRole creates or replaces a role.
func (s *Service) PutRole(ctx context.Context, req *pb.PutRoleRequest) (*pb.PutRoleResponse, error) {
	role := proto.CloneOf(req.GetRole())
	err := txn.CheckName(role.GetName())
	if err == nil {
		err = checkRights(role.GetRights())
	}
	if err == nil && len(role.GetRights()) == 0 {
		err = fmt.Errorf("%w: role has no rights", access.ErrInvalid)
	}
	var version uint64
	if err == nil {
		role.Rights = access.RightsToProto(access.RightsFromProto(role.GetRights()))
		version, err = s.change(ctx, req, req.GetLockOut(), func(_ *access.Table) ([]txn.AccessChange, error) {
			role.ChangedBy, role.ChangedAt = by(ctx)
			return put(access.KindRole, role.GetName(), role)
		})
	}
	if err != nil {
		return nil, s.status("set the role", err)
	}
	return &pb.PutRoleResponse{Role: role, Version: version}, nil
}

// DeleteRole deletes a role. It fails if a rule refers to the role.
func (s *Service) DeleteRole(ctx context.Context, req *pb.DeleteRoleRequest) (*pb.DeleteRoleResponse, error) {
	version, err := s.change(ctx, req, false, func(t *access.Table) ([]txn.AccessChange, error) {
		if t.Roles()[req.GetName()] == nil {
			return nil, fmt.Errorf("%w: no role %q", access.ErrNotFound, req.GetName())
		}
		for _, r := range t.Rules() {
			if slices.Contains(r.GetRoles(), req.GetName()) {
				return nil, fmt.Errorf("%w: rule for %s has role %q; revoke it first", access.ErrInUse, subject(r), req.GetName())
			}
		}
		return remove(access.KindRole, req.GetName()), nil
	})
	if err != nil {
		return nil, s.status("delete the role", err)
	}
	return &pb.DeleteRoleResponse{Version: version}, nil
}

func sorted[V any](m map[string]V) []V {
	list := make([]V, 0, len(m))
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, m[name])
	}
	return list
}
