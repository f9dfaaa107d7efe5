// SPDX-License-Identifier: Apache-2.0

package pairstatus

import (
	"fmt"
	"strings"

	pb "github.com/lockstep-mq/lockstep/proto/lockstep/v1"
)

// Site is the role of a pair among two sites.
type Site struct {
	Name    string `json:"name"`
	Role    string `json:"role"` // see SiteRole
	Lineage string `json:"lineage,omitempty"`
	Epoch   uint64 `json:"epoch"`
	// RemoteAddresses contains the addresses of the nodes of the other site.
	RemoteAddresses []string `json:"remote_addresses"`
}

// SiteRole returns the name of a role: "primary", "replica", "stopped" or "none".
func SiteRole(r pb.SiteRole) string {
	if r == pb.SiteRole_SITE_ROLE_UNSPECIFIED {
		return "none"
	}
	return strings.ToLower(strings.TrimPrefix(r.String(), "SITE_ROLE_"))
}

func newSite(s *pb.SiteInfo) *Site {
	if s == nil {
		return nil
	}
	return &Site{
		Name: s.GetName(), Role: SiteRole(s.GetRole()), Lineage: s.GetLineage(), Epoch: s.GetEpoch(),
		RemoteAddresses: append([]string{}, s.GetRemoteAddresses()...),
	}
}

// addSite sets the site as reported by the active, or else by the node with the highest epoch.
func (s *Status) addSite(info *pb.SiteInfo, active bool) {
	if info != nil && (s.Site == nil || active || !s.siteOfActive && info.GetEpoch() > s.Site.Epoch) {
		s.Site, s.siteOfActive = newSite(info), active
	}
}

func (s *Site) String() string {
	other := strings.Join(s.RemoteAddresses, ", ")
	if other == "" {
		other = "unknown"
	}
	switch s.Role {
	case "replica":
		return fmt.Sprintf("site %s: replica of the pair at %s, epoch %d", s.Name, other, s.Epoch)
	case "none":
		return fmt.Sprintf("site %s: no role; other site: %s", s.Name, other)
	case "stopped":
		return fmt.Sprintf("site %s: stopped, accepts no writes, epoch %d; other site: %s", s.Name, s.Epoch, other)
	}
	return fmt.Sprintf("site %s: %s, epoch %d; other site: %s", s.Name, s.Role, s.Epoch, other)
}
