// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"google.golang.org/protobuf/types/known/timestamppb"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

func accessPage() Page {
	return Page{
		Path: "/access", Title: "Access", Key: "c", Right: "operate", Template: "access", Load: withAccess(loadAccess),
		Actions: []Action{
			{Name: "grant", Title: "Grant", Right: "operate", Dialog: "grant", Do: withAccess(doGrant)},
			{Name: "revoke", Title: "Revoke rule", Right: "operate", Dialog: "revoke", Danger: true, Do: withAccess(doRevoke)},
			{
				Name: "role", Title: "Save role", Right: "operate", Dialog: "role", Load: withAccess(loadRole),
				Do: withAccess(doPutRole),
			},
			{
				Name: "delete-role", Title: "Delete role", Right: "operate", Dialog: "delete-role", Danger: true,
				Do: withAccess(doDeleteRole),
			},
			{Name: "token", Title: "Create token", Right: "operate", Dialog: "token", Do: withAccess(doCreateToken)},
			{
				Name: "revoke-token", Title: "Revoke token", Right: "operate", Dialog: "revoke-token", Danger: true,
				Do: withAccess(doRevokeToken),
			},
			{
				Name: "quota", Title: "Save quota", Right: "operate", Dialog: "quota", Load: withAccess(loadQuota),
				Do: withAccess(doPutQuota),
			},
			{
				Name: "delete-quota", Title: "Delete quota", Right: "operate", Dialog: "delete-quota", Danger: true,
				Do: withAccess(doDeleteQuota),
			},
		},
	}
}

func rightNames() []string {
	return []string{"publish", "consume", "browse", "manage", "operate", "audit"}
}

func rightsOf(rights []pb.AccessRight) string {
	names := make([]string, 0, len(rights))
	for _, r := range rights {
		names = append(names, strings.ToLower(strings.TrimPrefix(r.String(), "ACCESS_RIGHT_")))
	}
	return strings.Join(names, ", ")
}

func (v *View) rightsFrom() ([]pb.AccessRight, error) {
	var rights []pb.AccessRight
	for _, name := range v.Form["right"] {
		r, ok := pb.AccessRight_value["ACCESS_RIGHT_"+strings.ToUpper(name)]
		if !ok {
			return nil, invalid("Unknown right " + strconv.Quote(name) + ".")
		}
		rights = append(rights, pb.AccessRight(r))
	}
	return rights, nil
}

func words(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || unicode.IsSpace(r) })
}

type accessView struct {
	*pb.ListAccessResponse

	Open     bool
	Identity *pb.WhoAmIResponse
}

func (d *accessView) Usage(i int) *pb.AccessQuota {
	if i < len(d.GetUsed()) {
		return d.GetUsed()[i]
	}
	return &pb.AccessQuota{}
}

func loadAccess(ctx context.Context, _ *View, a pb.AccessServiceClient) (any, error) {
	r, err := a.ListAccess(ctx, &pb.ListAccessRequest{})
	if err != nil {
		return nil, err
	}
	identity, err := a.WhoAmI(ctx, &pb.WhoAmIRequest{})
	if err != nil {
		return nil, err
	}
	return &accessView{ListAccessResponse: r, Open: identity.GetOpen(), Identity: identity}, nil
}

func (v *View) rule() *pb.AccessRule {
	r := &pb.AccessRule{Queue: strings.TrimSpace(v.Get("queue"))}
	if subject := strings.TrimSpace(v.Get("subject")); v.Get("kind") == "group" {
		r.Group = subject
	} else {
		r.Principal = subject
	}
	return r
}

func doGrant(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	rights, err := v.rightsFrom()
	if err != nil {
		return Done{}, err
	}
	rule := v.rule()
	rule.Rights, rule.Roles = rights, words(v.Form.Get("roles"))
	_, err = a.Grant(ctx, &pb.GrantRequest{Rule: rule, LockOut: v.Form.Get("lock_out") != ""})
	return Done{Message: "Granted to " + subjectText(rule) + "."}, err
}

func subjectText(r *pb.AccessRule) string {
	if r.GetGroup() != "" {
		return "group " + r.GetGroup()
	}
	return r.GetPrincipal()
}

func doRevoke(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	rule := v.rule()
	_, err := a.Revoke(ctx, &pb.RevokeRequest{Rule: rule, LockOut: v.Form.Get("lock_out") != ""})
	return Done{Message: "Rule of " + subjectText(rule) + " revoked."}, err
}

// loadRole returns the role that the request names. If it names no existing role, loadRole returns a new role.
func loadRole(ctx context.Context, v *View, a pb.AccessServiceClient) (any, error) {
	all, err := a.ListAccess(ctx, &pb.ListAccessRequest{})
	return find(all.GetRoles(), (*pb.AccessRole).GetName, v.Query.Get("name")), err
}

func doPutRole(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	rights, err := v.rightsFrom()
	if err != nil {
		return Done{}, err
	}
	role := &pb.AccessRole{Name: strings.TrimSpace(v.Form.Get("name")), Rights: rights}
	_, err = a.PutRole(ctx, &pb.PutRoleRequest{Role: role, LockOut: v.Form.Get("lock_out") != ""})
	return Done{Message: "Role " + role.GetName() + " saved."}, err
}

func doDeleteRole(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	_, err := a.DeleteRole(ctx, &pb.DeleteRoleRequest{Name: v.Get("name")})
	return Done{Message: "Role " + v.Get("name") + " deleted."}, err
}

type tokenView struct {
	*pb.AccessToken

	Secret string
}

func doCreateToken(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	var random [32]byte
	_, _ = rand.Read(random[:]) // never returns an error
	made := "lsk_" + base64.RawURLEncoding.EncodeToString(random[:])
	sum := sha256.Sum256([]byte(made))
	t := &pb.AccessToken{
		Name: strings.TrimSpace(v.Form.Get("name")), Principal: strings.TrimSpace(v.Form.Get("principal")),
		Groups: words(v.Form.Get("groups")), Sha256: sum[:],
	}
	if days := v.Form.Get("days"); days != "" {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil || n == 0 {
			return Done{}, invalid("The validity must be 1 to 65535 days, or empty.")
		}
		t.ExpiresAt = timestamppb.New(time.Now().Add(time.Duration(n) * 24 * time.Hour).Truncate(time.Second))
	}
	r, err := a.CreateToken(ctx, &pb.CreateTokenRequest{Token: t})
	if err != nil {
		return Done{}, err
	}
	return Done{Show: "made-token", Data: &tokenView{r.GetToken(), made}}, nil
}

func doRevokeToken(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	_, err := a.RevokeToken(ctx, &pb.RevokeTokenRequest{Name: v.Get("name"), LockOut: v.Form.Get("lock_out") != ""})
	return Done{Message: "Token " + v.Get("name") + " revoked; its open streams are closed."}, err
}

// loadQuota returns the quota that the request names. If it names no existing quota, loadQuota returns a new
// quota.
func loadQuota(ctx context.Context, v *View, a pb.AccessServiceClient) (any, error) {
	all, err := a.ListAccess(ctx, &pb.ListAccessRequest{})
	return find(all.GetQuotas(), (*pb.AccessQuota).GetQueue, v.Query.Get("queue")), err
}

// find returns the element with the given name, or a new element if none exists.
func find[T any](all []*T, nameOf func(*T) string, name string) *T {
	for _, one := range all {
		if nameOf(one) == name {
			return one
		}
	}
	return new(T)
}

func doPutQuota(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	q := &pb.AccessQuota{Queue: strings.TrimSpace(v.Form.Get("queue"))}
	for name, to := range map[string]*uint64{
		"queues": &q.Queues, "bytes": &q.Bytes, "messages_per_second": &q.MessagesPerSecond, "connections": &q.Connections,
	} {
		text := strings.TrimSpace(v.Form.Get(name))
		if text == "" {
			continue
		}
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			return Done{}, invalid(strconv.Quote(text) + " is not a number; 0 or empty: unlimited.")
		}
		*to = n
	}
	_, err := a.PutQuota(ctx, &pb.PutQuotaRequest{Quota: q})
	return Done{Message: "Quota of " + q.GetQueue() + " saved."}, err
}

func doDeleteQuota(ctx context.Context, v *View, a pb.AccessServiceClient) (Done, error) {
	_, err := a.DeleteQuota(ctx, &pb.DeleteQuotaRequest{Queue: v.Get("queue")})
	return Done{Message: "Quota of " + v.Get("queue") + " deleted."}, err
}

// chosen returns the names of the rights that are selected in a submitted form. Before the form is submitted, it
// returns the names of the given rights.
func chosen(form url.Values, rights []pb.AccessRight) map[string]bool {
	all := make(map[string]bool)
	names := form["right"]
	if len(form) == 0 {
		names = words(rightsOf(rights))
	}
	for _, name := range names {
		all[name] = true
	}
	return all
}
