// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"
	"net/url"

	"google.golang.org/grpc"
	"google.golang.org/grpc/status"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Fleet connects a session to all pairs of a fleet. As a connection, it sends calls to this pair, and repeats a call
// at the owner of the queue after the error NOT_OWNER.
type Fleet interface {
	grpc.ClientConnInterface

	// Home returns the name of this pair.
	Home() string
	// Pair returns the connection to the pair that n names. own reports whether it is this pair.
	Pair(n *pb.NotOwner) (cc grpc.ClientConnInterface, own bool, err error)
	// Pairs returns the other pairs.
	Pairs() []*pb.NotOwner
}

// Caller is the identity with which calls of a session are sent to other pairs.
type Caller struct {
	Address   string // of the browser
	Token     string // empty without a token
	Principal string // of a session without a token: that of its certificate, or "anonymous"
	Groups    []string
}

// place is the connection for the calls of a page about queues.
type place struct {
	cc grpc.ClientConnInterface
	// pair is the name of the pair, if it is another one of the fleet. All calls are then sent to this pair.
	pair   string
	client Fleet // nil without a fleet
}

// Queues returns the connection for the calls of a page or an action about queues. In a fleet, this is the connection
// to the pair in the query or to the owner of the queue, if it is another pair. Otherwise, the calls are sent to the
// active node of this pair and, in a fleet, follow NOT_OWNER.
func (v *View) Queues(ctx context.Context) (grpc.ClientConnInterface, error) {
	p, err := v.place(ctx)
	if err != nil {
		return nil, err
	}
	return p.cc, nil
}

// place returns the connection for the calls of the page. It is cached in the view.
func (v *View) place(ctx context.Context) (*place, error) {
	v.placeMu.Lock()
	defer v.placeMu.Unlock()
	if v.cachedPlace == nil {
		p, err := v.findPlace(ctx)
		if err != nil {
			return nil, err
		}
		v.cachedPlace = p
	}
	return v.cachedPlace, nil
}

func (v *View) findPlace(ctx context.Context) (*place, error) {
	active, err := v.Active(ctx)
	if err != nil || v.server.o.Pairs == nil {
		return &place{cc: active}, err
	}
	client := v.server.o.Pairs(active, v.caller)
	here := &place{cc: client, client: client}
	owner := v.owner(ctx, client, active)
	if owner == nil {
		return here, nil
	}
	cc, own, err := client.Pair(owner)
	if err != nil {
		return nil, err
	}
	if own {
		return here, nil
	}
	return &place{cc: cc, pair: owner.GetPair(), client: client}, nil
}

// owner returns the pair in the query, or the owner of the queue of the page. It returns nil for the pair of this node,
// and if the owner is unknown.
func (v *View) owner(ctx context.Context, client Fleet, active grpc.ClientConnInterface) *pb.NotOwner {
	if pair := v.Query.Get("pair"); pair != "" {
		for _, p := range client.Pairs() {
			if p.GetPair() == pair {
				return p
			}
		}
		return nil
	}
	name := v.Query.Get("name")
	if name == "" {
		return nil
	}
	_, err := pb.NewQueueServiceClient(active).GetQueue(ctx, &pb.GetQueueRequest{Name: name})
	for _, d := range status.Convert(err).Details() {
		if n, is := d.(*pb.NotOwner); is {
			return n
		}
	}
	return nil
}

// caller returns the identity with which calls of the session are sent to other pairs.
func (v *View) caller(ctx context.Context) (Caller, error) {
	c := Caller{Token: v.token}
	if v.from.Addr != nil {
		c.Address = v.from.Addr.String()
	}
	if c.Token != "" {
		return c, nil
	}
	identity, err := v.whoAmI(ctx)
	if err != nil {
		return c, err
	}
	switch identity.GetMethod() {
	case "certificate":
		c.Principal, c.Groups = identity.GetPrincipal(), identity.GetGroups()
	case "none":
		c.Principal = "anonymous"
	default:
		return c, ErrNotForwarded
	}
	if c.Principal != v.Principal {
		return c, ErrNotForwarded
	}
	return c, nil
}

// queueRights returns the rights of the session at the pair of the page.
func (v *View) queueRights(ctx context.Context) (rights, error) {
	p, err := v.place(ctx)
	if err != nil {
		return nil, err
	}
	if p.pair == "" {
		return v.rights(ctx)
	}
	identity, err := pb.NewAccessServiceClient(p.cc).WhoAmI(ctx, &pb.WhoAmIRequest{Queue: v.Get("name")})
	if err != nil {
		return nil, err
	}
	return newRights(identity), nil
}

// pairLink is a link to the queues of a pair.
type pairLink struct {
	Name, Link string
	Selected   bool
}

// pairLinks returns links to the queues of all pairs of the fleet. It returns nil without other pairs.
func (p *place) pairLinks() (list []pairLink) {
	if p.client == nil {
		return nil
	}
	for _, other := range p.client.Pairs() {
		list = append(list, pairLink{
			Name: other.GetPair(), Link: "/queues?" + url.Values{"pair": {other.GetPair()}}.Encode(),
			Selected: other.GetPair() == p.pair,
		})
	}
	if len(list) == 0 {
		return nil
	}
	own := pairLink{Name: p.client.Home() + " (this pair)", Link: "/queues", Selected: p.pair == ""}
	return append([]pairLink{own}, list...)
}
