// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

// Kinds of entries in the access table. The values are messages of access.proto, except for those of KindPeer,
// KindMode and KindReset. Entries of an unknown kind were written by a newer release and grant no rights.
const (
	KindQuota = 'q' // AccessQuota; named by its queue pattern
	KindRole  = 'o' // AccessRole; named by its name
	KindRule  = 'r' // AccessRule; named by RuleName
	KindToken = 't' // AccessToken; named by its name
	KindPeer  = 'p' // shared secret of the two nodes
	KindMode  = 'm' // a rule was created, so rights without a rule are denied
	KindReset = 'x' // ID of the last `lockstep access reset`
)

// Names of the entries of KindPeer, KindMode and KindReset.
const (
	PeerName  = "peer"   // name of the entry of KindPeer
	ModeName  = "closed" // name of the entry of KindMode
	ResetName = "reset"  // name of the entry of KindReset
)

// Table is the compiled access table at one version. It is immutable.
type Table struct {
	version    uint64
	generation uint64
	rules      []rule
	roles      map[string]*pb.AccessRole
	tokens     map[string]*pb.AccessToken
	byHash     map[[sha256.Size]byte]*pb.AccessToken
	quotas     []*pb.AccessQuota
	peer       []byte
	closed     bool
}

// rule is a rule with its rights, including those of its roles.
type rule struct {
	*pb.AccessRule

	queues, pair Right
}

// RuleName returns the entry name of a rule. There is one entry for each subject and queue pattern.
func RuleName(r *pb.AccessRule) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%q %q %q", r.GetPrincipal(), r.GetGroup(), r.GetQueue()))
	return hex.EncodeToString(sum[:16])
}

// Compile creates a Table from the entries. Rules and Quotas return the entries in the given order. The error lists the
// entries that cannot be decoded or were written by a newer release. These entries grant no rights. The Table is valid
// even if an error is returned.
func Compile(version uint64, entries []queue.AccessEntry) (*Table, error) {
	t := &Table{
		version: version, roles: map[string]*pb.AccessRole{}, tokens: map[string]*pb.AccessToken{},
		byHash: map[[sha256.Size]byte]*pb.AccessToken{},
	}
	var wrong []error
	read := func(e *queue.AccessEntry, m proto.Message) bool {
		err := proto.Unmarshal(e.Value, m)
		if err != nil {
			wrong = append(wrong, fmt.Errorf("entry %c %q of the access table: %w", e.Kind, e.Name, err))
		}
		return err == nil
	}
	for i := range entries {
		switch e := &entries[i]; e.Kind {
		case KindRole:
			if r := new(pb.AccessRole); read(e, r) {
				t.roles[r.GetName()] = r
			}
		case KindToken:
			if token := new(pb.AccessToken); read(e, token) && len(token.GetSha256()) == sha256.Size {
				t.tokens[token.GetName()] = token
				t.byHash[[sha256.Size]byte(token.GetSha256())] = token
			}
		case KindQuota:
			if q := new(pb.AccessQuota); read(e, q) {
				t.quotas = append(t.quotas, q)
			}
		case KindPeer:
			t.peer = e.Value
		case KindMode:
			t.closed = true
		case KindReset: // grants no rights
		case KindRule:
			if r := new(pb.AccessRule); read(e, r) {
				t.rules = append(t.rules, rule{AccessRule: r})
			}
		default:
			wrong = append(wrong, fmt.Errorf("entry %c %q of the access table was written by a newer release", e.Kind, e.Name))
		}
	}
	for i := range t.rules {
		r := &t.rules[i]
		rights := RightsFromProto(r.GetRights())
		for _, name := range r.GetRoles() {
			rights |= RightsFromProto(t.roles[name].GetRights())
		}
		if r.GetQueue() != "" {
			r.queues = rights & QueueRights
		}
		r.pair = rights & (Operate | Audit)
	}
	return t, errors.Join(wrong...)
}

func (r *rule) matches(id *Identity) bool {
	if r.GetGroup() == "" {
		return matchPrincipal(r.GetPrincipal(), id.Principal)
	}
	return slices.ContainsFunc(id.Groups, func(g string) bool { return txn.MatchGlob(r.GetGroup(), g) })
}

// RightsFromProto converts rights. It ignores rights that this release does not support.
func RightsFromProto(in []pb.AccessRight) (rights Right) {
	for _, r := range in {
		if r > pb.AccessRight_ACCESS_RIGHT_UNSPECIFIED && r <= pb.AccessRight_ACCESS_RIGHT_AUDIT {
			rights |= 1 << (r - 1)
		}
	}
	return rights
}

// RightsToProto is the inverse of RightsFromProto. It omits Peer.
func RightsToProto(rights Right) (out []pb.AccessRight) {
	for r := pb.AccessRight_ACCESS_RIGHT_PUBLISH; r <= pb.AccessRight_ACCESS_RIGHT_AUDIT; r++ {
		if rights>>(r-1)&1 == 1 {
			out = append(out, r)
		}
	}
	return out
}

// Version returns the logical number of the last change of the table, or 0.
func (t *Table) Version() uint64 { return t.version }

// Rules returns the rules. They must not be modified.
func (t *Table) Rules() (rules []*pb.AccessRule) {
	for i := range t.rules {
		rules = append(rules, t.rules[i].AccessRule)
	}
	return rules
}

// Rule returns the rule with the same subject and queue pattern, or nil.
func (t *Table) Rule(like *pb.AccessRule) *pb.AccessRule {
	for _, r := range t.Rules() {
		if r.GetPrincipal() == like.GetPrincipal() && r.GetGroup() == like.GetGroup() && r.GetQueue() == like.GetQueue() {
			return r
		}
	}
	return nil
}

// Roles returns the roles by name. They must not be modified.
func (t *Table) Roles() map[string]*pb.AccessRole { return t.roles }

// Tokens returns the tokens, with their hashes, by name. They must not be modified.
func (t *Table) Tokens() map[string]*pb.AccessToken { return t.tokens }

// Quotas returns the quotas, in the order of the entries. They must not be modified.
func (t *Table) Quotas() []*pb.AccessQuota { return t.quotas }

// Closed reports whether a rule was created since the last `lockstep access reset`, even if it was revoked later.
func (t *Table) Closed() bool { return t.closed || len(t.rules) > 0 }

// HasPeerSecret reports whether the two nodes have a shared secret.
func (t *Table) HasPeerSecret() bool { return len(t.peer) > 0 }

// Token returns the owner of the token with the given SHA-256. A zero expiry means that the token does not expire.
func (t *Table) Token(sum [sha256.Size]byte) (principal string, groups []string, expiry time.Time, ok bool) {
	token := t.byHash[sum]
	if token == nil {
		return "", nil, time.Time{}, false
	}
	if at := token.GetExpiresAt(); at != nil {
		expiry = at.AsTime()
	}
	return token.GetPrincipal(), token.GetGroups(), expiry, true
}

// Granting returns the rules that grant a right on the pair, or on the named queue if it is a queue right.
func (t *Table) Granting(right Right, name string) (rules []*pb.AccessRule) {
	for i := range t.rules {
		r := &t.rules[i]
		if r.pair&right != 0 || r.queues&right != 0 && txn.MatchQueue(r.GetQueue(), name) {
			rules = append(rules, r.AccessRule)
		}
	}
	return rules
}

// matchPrincipal is like txn.MatchGlob, but wildcards do not match the anonymous principal.
func matchPrincipal(glob, principal string) bool {
	if principal == Anonymous {
		return glob == Anonymous
	}
	return txn.MatchGlob(glob, principal)
}
