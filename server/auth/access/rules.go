// SPDX-License-Identifier: Apache-2.0

package access

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/store/queue"
	"github.com/lockstep-mq/lockstep/store/txn"
)

var (
	// ErrInvalid is returned for an invalid rule, role, token, quota or right.
	ErrInvalid = errors.New("invalid access request")
	// ErrDenied is returned if the caller does not have a required right.
	ErrDenied = errors.New("permission denied")
	// ErrUnauthenticated is returned if the credentials of a caller are invalid, expired or revoked.
	ErrUnauthenticated = errors.New("not authenticated")
	// ErrNotPeer is returned for calls reserved for the other node of the pair.
	ErrNotPeer = errors.New("only the other node of the pair may make this call")
	// ErrNotFound is returned if the rule, role, token or quota does not exist.
	ErrNotFound = errors.New("access entry not found")
	// ErrInUse is returned if a role cannot be deleted: a rule references it.
	ErrInUse = errors.New("access entry is in use")
	// ErrTokenExists is returned if a token with the same name or SHA-256 already exists.
	ErrTokenExists = errors.New("token already exists")
	// ErrQuota is returned for requests that would exceed a quota.
	ErrQuota = errors.New("quota exceeded")
	// ErrLockOut is returned if a change would remove the caller's right to operate.
	ErrLockOut = errors.New("caller would be locked out")
)

// Rules contains the access rules of the pair. Before the first rule is created, clients have all rights except Peer,
// unless Setting.Deny is set. After the first rule, clients have only granted rights, even when the last rule is
// revoked. The principals in Setting.Operators always have all rights except Peer. A nil or zero Rules contains no
// rules. Rules is safe for concurrent use.
type Rules struct {
	current atomic.Pointer[compiled]
	loading sync.Mutex // held during LoadFrom

	mu      sync.Mutex // guards the fields below, and changes of current
	setting Setting
	changed chan struct{}
}

// Setting is the part of the node's configuration that affects access.
type Setting struct {
	Deny      bool     // before the first rule, only Operators have rights
	Operators []string // globs of the principals with all rights
}

type compiled struct {
	table   *Table
	setting Setting
	open    bool // clients have all rights

	mu     sync.RWMutex
	grants map[identityName]*grants // at most maxIdentities
}

// The caches are cleared at these limits.
const (
	maxIdentities = 10_000
	maxQueues     = 1000 // limit for one identity
)

type grants struct { // the rights of one identity
	all    bool  // the identity has all rights
	pair   Right // on the pair
	any    Right // on at least one queue
	queues []queueGrant

	mu    sync.RWMutex
	cache map[string]Right
}

type queueGrant struct {
	pattern string
	rights  Right
}

// Configure applies the access settings of the node's configuration.
func (r *Rules) Configure(s Setting) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.setting = s
	r.swap(r.Table())
}

// Load replaces the rules with those in the store's access table. The error lists the entries that cannot be decoded
// or were written by a newer release. These entries grant no rights.
func (r *Rules) Load(version uint64, entries []queue.AccessEntry) error {
	t, err := Compile(version, entries)
	r.mu.Lock()
	defer r.mu.Unlock()
	t.generation = r.Table().generation
	r.swap(t)
	return err
}

// LoadFrom calls Load with the result of read. It serializes concurrent calls.
func (r *Rules) LoadFrom(read func() (version uint64, entries []queue.AccessEntry)) error {
	r.loading.Lock()
	defer r.loading.Unlock()
	return r.Load(read())
}

// swap replaces the table, increments the generation and closes changed. The caller must hold mu.
func (r *Rules) swap(t *Table) {
	next := *t
	next.generation++
	r.current.Store(newCompiled(&next, r.setting))
	if r.changed != nil {
		close(r.changed)
	}
	r.changed = make(chan struct{})
}

func newCompiled(t *Table, s Setting) *compiled {
	return &compiled{table: t, setting: s, open: !t.Closed() && !s.Deny, grants: make(map[identityName]*grants)}
}

// Changed returns a channel that is closed at the next change of the rules or of the setting.
func (r *Rules) Changed() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.changed == nil {
		r.changed = make(chan struct{})
	}
	return r.changed
}

// Generation returns a number that increases with each change of the rules or of the setting.
func (r *Rules) Generation() uint64 { return r.get().table.generation }

// Table returns the current table.
func (r *Rules) Table() *Table { return r.get().table }

// Open reports whether clients have all rights: Table.Closed returns false and Setting.Deny is not set.
func (r *Rules) Open() bool { return r.get().open }

// Setting returns the current setting.
func (r *Rules) Setting() Setting { return r.get().setting }

var noRules = newCompiled(new(Table), Setting{}) //nolint:gochecknoglobals // a constant

func (r *Rules) get() *compiled {
	if r == nil {
		return noRules
	}
	return cmp.Or(r.current.Load(), noRules)
}

// WithTable returns rules with another table and the same setting.
func (r *Rules) WithTable(t *Table) *Rules {
	next := &Rules{setting: r.Setting()}
	next.current.Store(newCompiled(t, next.setting))
	return next
}

// Token returns the owner of the token with the given SHA-256. A zero expiry means that the token does not expire.
func (r *Rules) Token(sum [sha256.Size]byte) (principal string, groups []string, expiry time.Time, ok bool) {
	return r.Table().Token(sum)
}

// PeerSecret returns the shared secret of the two nodes. It returns nil if no secret exists. The result must not be
// modified.
func (r *Rules) PeerSecret() []byte { return r.Table().peer }

// IsPeerSecret reports whether shown is the shared secret of the two nodes.
func (r *Rules) IsPeerSecret(shown []byte) bool {
	own := r.PeerSecret()
	return len(own) > 0 && subtle.ConstantTimeCompare(own, shown) == 1
}

// May returns an error that matches ErrDenied unless an identity has all given rights. Queue rights are checked for the
// named queue. If name is empty, one of these rights on any queue is sufficient. Other rights are checked for the pair,
// and must not be combined with queue rights. The error is a *DeniedError, except for Peer.
func (r *Rules) May(id *Identity, right Right, name string) error {
	if right&Peer != 0 && !id.Peer {
		return fmt.Errorf("%w: only the other node of the pair may make this call", ErrDenied)
	}
	c := r.get()
	if c.open {
		return nil
	}
	g := c.of(id)
	switch {
	case g.all, right&^Peer == 0:
		return nil
	case right&QueueRights == 0:
		if g.pair&right == right&^Peer {
			return nil
		}
	case name == "":
		if g.any&right != 0 {
			return nil
		}
	case g.on(name)&right == right:
		return nil
	}
	return denied(id, right, name)
}

// MayAny is like May, but one of the given rights on the queue is sufficient.
func (r *Rules) MayAny(id *Identity, rights Right, name string) error {
	c := r.get()
	if c.open {
		return nil
	}
	if g := c.of(id); g.all || g.on(name)&rights != 0 {
		return nil
	}
	return denied(id, rights, name)
}

// HasAnyRight returns a *DeniedError unless an identity has at least one right.
func (r *Rules) HasAnyRight(id *Identity) error {
	c := r.get()
	if c.open {
		return nil
	}
	if g := c.of(id); g.all || g.any|g.pair != 0 {
		return nil
	}
	return denied(id, 0, "")
}

// Rights returns the rights of an identity on the pair and on the named queue. If name is empty, it returns the
// rights on the pair and on at least one queue.
func (r *Rules) Rights(id *Identity, name string) Right {
	const all = QueueRights | Operate | Audit
	c := r.get()
	if c.open {
		return all
	}
	g := c.of(id)
	switch {
	case g.all:
		return all
	case name == "":
		return g.pair | g.any
	}
	return g.pair | g.on(name)
}

// Check calls May for the identity in ctx.
func (r *Rules) Check(ctx context.Context, right Right, queue string) error {
	if r.Open() && right&Peer == 0 {
		return nil
	}
	return r.May(FromContext(ctx), right, queue)
}

// CheckAny calls MayAny for the identity in ctx.
func (r *Rules) CheckAny(ctx context.Context, rights Right, queue string) error {
	if r.Open() {
		return nil
	}
	return r.MayAny(FromContext(ctx), rights, queue)
}

func (c *compiled) of(id *Identity) *grants {
	key := id.key()
	c.mu.RLock()
	g := c.grants[key]
	c.mu.RUnlock()
	if g != nil {
		return g
	}
	g = c.grant(id)
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.grants) >= maxIdentities {
		clear(c.grants)
	}
	c.grants[key] = g
	return g
}

func (id *Identity) key() identityName {
	name := identityName{principal: id.Principal, peer: id.Peer}
	if len(id.Groups) > 0 {
		var b strings.Builder
		for _, g := range id.Groups {
			b.WriteString(strconv.Quote(g))
		}
		name.groups = b.String()
	}
	return name
}

type identityName struct {
	principal, groups string
	peer              bool
}

func (c *compiled) grant(id *Identity) *grants {
	g := &grants{cache: make(map[string]Right)}
	if id.Peer {
		g.pair = Operate | Audit // the other node calls on behalf of an operator
	}
	g.all = slices.ContainsFunc(c.setting.Operators, func(glob string) bool { return matchPrincipal(glob, id.Principal) })
	for i := range c.table.rules {
		r := &c.table.rules[i]
		if !r.matches(id) {
			continue
		}
		g.pair |= r.pair
		g.any |= r.queues
		if r.queues != 0 {
			g.queues = append(g.queues, queueGrant{r.GetQueue(), r.queues})
		}
	}
	return g
}

func (g *grants) on(name string) Right {
	if len(g.queues) == 0 {
		return 0
	}
	g.mu.RLock()
	rights, known := g.cache[name]
	g.mu.RUnlock()
	if known {
		return rights
	}
	for i := range g.queues {
		if q := &g.queues[i]; q.rights&^rights != 0 && txn.MatchQueue(q.pattern, name) {
			rights |= q.rights
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.cache) >= maxQueues {
		clear(g.cache)
	}
	g.cache[name] = rights
	return rights
}

// DeniedError reports a missing right. It matches ErrDenied.
type DeniedError struct {
	Principal string
	Groups    []string
	Right     Right  // 0: the caller has no rights
	Queue     string // empty for a right on the pair or on any queue
}

func denied(id *Identity, right Right, name string) error {
	return &DeniedError{Principal: id.Principal, Groups: id.Groups, Right: right, Queue: name}
}

func (e *DeniedError) Error() string {
	var b strings.Builder
	b.WriteString(ErrDenied.Error() + ": ")
	if e.Principal == Anonymous {
		b.WriteString("call has neither a client certificate nor a token, and an anonymous caller")
	} else {
		fmt.Fprintf(&b, "%q", e.Principal)
		if len(e.Groups) > 0 {
			fmt.Fprintf(&b, " (in the groups %s)", strings.Join(e.Groups, ", "))
		}
	}
	if e.Right == 0 {
		b.WriteString(" has no rights at all")
	} else {
		b.WriteString(" has no right to " + strings.ReplaceAll(e.Right.String(), ",", " or "))
		switch {
		case e.Queue != "":
			fmt.Fprintf(&b, " queue %q", e.Queue)
		case e.Right&QueueRights != 0:
			b.WriteString(" any queue")
		}
	}
	if e.Principal == Anonymous {
		b.WriteString("; log in, or use a client certificate")
	} else {
		b.WriteString("; an operator can grant it: lockstep access grant --help")
	}
	return b.String()
}

// Is reports whether target is ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// Applicable returns the rules that apply to an identity, and the matching globs of Setting.Operators.
func (r *Rules) Applicable(id *Identity) (rules []*pb.AccessRule, operators []string) {
	c := r.get()
	for i := range c.table.rules {
		if c.table.rules[i].matches(id) {
			rules = append(rules, c.table.rules[i].AccessRule)
		}
	}
	for _, glob := range c.setting.Operators {
		if matchPrincipal(glob, id.Principal) {
			operators = append(operators, glob)
		}
	}
	return rules, operators
}

// QuotaError reports an exceeded quota. It matches ErrQuota.
type QuotaError struct {
	Quota       string // name as in `lockstep access quota`: queues, bytes, rate or connections
	Pattern     string // pattern of the queues
	Limit, Used uint64 // Used does not include the request
	Advice      string // suggested action
}

func (e *QuotaError) Error() string {
	if e.Quota == "rate" {
		return fmt.Sprintf("%s: limit is %d published messages per second for queues %q; %s", ErrQuota, e.Limit, e.Pattern,
			e.Advice)
	}
	return fmt.Sprintf("%s: queues %q: %s limit is %d, used %d; %s", ErrQuota, e.Pattern, e.Quota, e.Limit, e.Used,
		e.Advice)
}

// Is reports whether target is ErrQuota.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }
