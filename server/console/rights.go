// SPDX-License-Identifier: Apache-2.0

package console

import (
	"context"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

type rights map[string]bool

func (r rights) May(right string) bool { return r[right] }

// whoAmI returns the identity of the session as this node authenticates it. The result is cached in the view.
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
	may := make(rights)
	for _, name := range words(rightsOf(identity.GetRights())) {
		may[name] = true
	}
	return may, nil
}

// offered returns the menu pages that a session may see. Pages about queues are offered to every session, since the
// node lists only the queues that the session may see.
func (s *Server) offered(may rights) (menu []*Page) {
	for i := range s.pages {
		p := &s.pages[i]
		if p.Hidden || (p.Right == "operate" || p.Right == "audit") && may != nil && !may.May(p.Right) {
			continue
		}
		menu = append(menu, p)
	}
	return menu
}
