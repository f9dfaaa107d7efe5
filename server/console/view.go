// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
	"github.com/lockstep-mq/lockstep/server/api/inprocgrpc"
	"github.com/lockstep-mq/lockstep/store/iolock"
)

// otherTimeout limits the status query to another node, and other short requests to it.
const otherTimeout = 700 * time.Millisecond

var errNoActive = errors.New("no active node")

// View is the context of a page or an action. It contains the parameters of the request, and provides connections
// for calls with the rights of the session.
type View struct {
	// Query contains the parameters of the address. Form contains the submitted values of an action.
	Query, Form url.Values
	Principal   string

	server *Server
	from   inprocgrpc.Caller
	token  string
	key    inprocgrpc.Key // identifies the caller in calls to this node

	mu     sync.Mutex // guards status
	status *pb.GetStatusResponse

	identityMu iolock.Mutex // guards who
	who        *pb.WhoAmIResponse

	nodesMu     iolock.Mutex // guards cachedNodes
	cachedNodes []*nodeView

	placeMu     iolock.Mutex // guards cachedPlace
	cachedPlace *place
}

// Get returns a value of the form or, if the form does not contain it, of the query.
func (v *View) Get(name string) string {
	if v.Form.Has(name) {
		return v.Form.Get(name)
	}
	return v.Query.Get(name)
}

// number returns a number in the query. It returns 0 if the number is missing or invalid.
func (v *View) number(name string) uint64 {
	n, _ := strconv.ParseUint(v.Query.Get(name), 10, 64)
	return n
}

// withActive converts fn to a function of a page or an action. The result connects to the active node and passes a
// client for that node to fn.
func withActive[C, T any](
	client func(grpc.ClientConnInterface) C, fn func(context.Context, *View, C) (T, error),
) func(context.Context, *View) (T, error) {
	return func(ctx context.Context, v *View) (result T, err error) {
		active, err := v.Active(ctx)
		if err != nil {
			return result, err
		}
		return fn(ctx, v, client(active))
	}
}

func withQueues[T any](
	fn func(context.Context, *View, pb.QueueServiceClient) (T, error),
) func(context.Context, *View) (T, error) {
	return func(ctx context.Context, v *View) (result T, err error) {
		cc, err := v.Queues(ctx)
		if err != nil {
			return result, err
		}
		return fn(ctx, v, pb.NewQueueServiceClient(cc))
	}
}

// withAccess is like withActive, but passes a client of AccessService.
func withAccess[T any](
	fn func(context.Context, *View, pb.AccessServiceClient) (T, error),
) func(context.Context, *View) (T, error) {
	return withActive(pb.NewAccessServiceClient, fn)
}

// Own returns the connection to the services of this node.
func (v *View) Own() grpc.ClientConnInterface {
	return conn{v.server.o.Link, func(ctx context.Context) context.Context {
		return withToken(inprocgrpc.As(ctx, v.key), v.token)
	}, func(err error) error { return err }}
}

// Status returns the status of this node. It is cached in the view.
func (v *View) Status(ctx context.Context) (*pb.GetStatusResponse, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.status == nil {
		st, err := pb.NewAdminServiceClient(v.Own()).GetStatus(ctx, &pb.GetStatusRequest{})
		if err != nil {
			return nil, err
		}
		v.status = st
	}
	return v.status, nil
}

// Active returns the connection to the services of the active node.
func (v *View) Active(ctx context.Context) (grpc.ClientConnInterface, error) {
	st, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	if len(st.GetPair().GetNodes()) == 0 || serving(st.GetRole()) {
		return v.Own(), nil
	}
	for _, n := range st.GetPair().GetNodes() {
		if n.GetActive() {
			return v.at(ctx, n)
		}
	}
	return nil, errNoActive
}

// Node returns the connection to the services of the node with the given UUID or name. An empty string selects
// this node.
func (v *View) Node(ctx context.Context, node string) (grpc.ClientConnInterface, error) {
	if node == "" {
		return v.Own(), nil
	}
	st, err := v.Status(ctx)
	if err != nil {
		return nil, err
	}
	if own := st.GetNode(); own.GetNodeId() == node || own.GetName() == node {
		return v.Own(), nil
	}
	for _, n := range st.GetPair().GetNodes() {
		if n.GetNodeId() == node || n.GetName() == node {
			return v.at(ctx, n)
		}
	}
	return nil, fmt.Errorf("node not found: %q", node)
}

func (v *View) at(ctx context.Context, n *pb.NodeStatus) (grpc.ClientConnInterface, error) {
	if n.GetNodeId() == v.status.GetNode().GetNodeId() {
		return v.Own(), nil
	}
	ctx, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	as, err := v.forOther(ctx)
	var cc grpc.ClientConnInterface
	if err == nil {
		cc, err = v.server.o.Other(n.GetAddress())
	}
	if err != nil {
		elsewhere := &otherConsole{err: err, node: n}
		if st, err := v.server.o.OtherStatus(ctx, n.GetAddress()); err == nil {
			elsewhere.console = st.GetConsole()
		}
		return nil, elsewhere
	}
	forwarding := v.token == "" && v.Principal != "anonymous"
	return conn{cc, as, func(err error) error {
		if forwarding && status.Code(err) == codes.Unauthenticated { // the other node has a release without forwarding
			return &otherConsole{err: err, node: n}
		}
		return err
	}}, nil
}

// forOther returns a function that adds the credentials of the session to a call to the other node. These are the
// token of the session or, for a session with a certificate, its principal.
func (v *View) forOther(ctx context.Context) (as func(context.Context) context.Context, err error) {
	if v.token != "" || v.Principal == "anonymous" {
		return func(ctx context.Context) context.Context { return withToken(ctx, v.token) }, nil
	}
	if v.server.o.Forward == nil {
		return nil, ErrNotForwarded
	}
	identity, err := v.whoAmI(ctx)
	if err != nil {
		return nil, err
	}
	if identity.GetMethod() != "certificate" || identity.GetPrincipal() != v.Principal {
		return nil, ErrNotForwarded
	}
	header, err := v.server.o.Forward(ctx, identity.GetPrincipal(), identity.GetGroups())
	if err != nil {
		return nil, err
	}
	md, _ := metadata.FromOutgoingContext(header)
	return func(ctx context.Context) context.Context { return metadata.NewOutgoingContext(ctx, md) }, nil
}

// otherConsole is returned if an action is possible only on the console of another node.
type otherConsole struct {
	err     error
	node    *pb.NodeStatus
	console string // URL of that console; empty if unknown
}

func (e *otherConsole) Error() string {
	return fmt.Sprintf("node %s: %v", e.node.GetName(), e.err)
}

func (e *otherConsole) Unwrap() error { return e.err }

// OtherStatus returns the status of another node, for sessions that may read the status of this node.
func (v *View) OtherStatus(ctx context.Context, n *pb.NodeStatus) (*pb.GetStatusResponse, error) {
	if _, err := v.Status(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, otherTimeout)
	defer cancel()
	return v.server.o.OtherStatus(ctx, n.GetAddress())
}

// serving reports whether a node in the given role is active, even if it is blocked.
func serving(r pb.Role) bool {
	return r == pb.Role_ROLE_ACTIVE || r == pb.Role_ROLE_ACTIVE_ALONE || r == pb.Role_ROLE_BLOCKED
}

type conn struct {
	grpc.ClientConnInterface

	as     func(context.Context) context.Context
	failed func(error) error // converts the error of a call
}

func (c conn) Invoke(ctx context.Context, method string, args, reply any, o ...grpc.CallOption) error {
	return c.failed(c.ClientConnInterface.Invoke(c.as(ctx), method, args, reply, o...))
}

func (c conn) NewStream(
	ctx context.Context, d *grpc.StreamDesc, method string, o ...grpc.CallOption,
) (grpc.ClientStream, error) {
	return c.ClientConnInterface.NewStream(c.as(ctx), d, method, o...) //nolint:wrapcheck // a status
}

type rights map[string]bool

func (r rights) May(right string) bool { return r[right] }

// whoAmI returns the identity of the session, as authenticated by this node. The result is cached in the view.
func (v *View) whoAmI(ctx context.Context) (*pb.WhoAmIResponse, error) {
	v.identityMu.Lock()
	defer v.identityMu.Unlock()
	if v.who == nil {
		identity, err := pb.NewAccessServiceClient(v.Own()).WhoAmI(ctx, &pb.WhoAmIRequest{Queue: v.Get("name")})
		if err != nil {
			return nil, err
		}
		v.who = identity
	}
	return v.who, nil
}

func (v *View) rights(ctx context.Context) (rights, error) {
	identity, err := v.whoAmI(ctx)
	if err != nil {
		return nil, err
	}
	return newRights(identity), nil
}

func newRights(identity *pb.WhoAmIResponse) rights {
	may := make(rights)
	for _, name := range words(rightsOf(identity.GetRights())) {
		may[name] = true
	}
	return may
}

// offered returns the pages that the menu shows to a session. st is the status of this node, or nil if the session
// may not see it.
func (s *Server) offered(may rights, st *pb.GetStatusResponse) (menu []*Page) {
	for i := range s.pages {
		p := &s.pages[i]
		if p.Hidden || p.Offered != nil && !p.Offered(st) ||
			(p.Right == "operate" || p.Right == "audit") && may != nil && !may.May(p.Right) {
			continue
		}
		menu = append(menu, p)
	}
	return menu
}
